"""AuditLog: an append-only log of what was done with savers, in the files of one directory.

Theory of operation. The log is a chain of entries, and each file holds a part of it as a log of frames.
A writer holds the write lock of the directory, reads what other processes have appended, and appends an
entry with the digest of the last one. A file that is full ends in an entry of the kind `end`, which is on
the disk before the next file begins. Only intents wait for the disk: their outcomes follow from the store.

`_LogFiles` reads all files. An `_AuditFile` is one of them, to append to; AuditLog has the last one.

A process remembers the last head that it has brought to the disk. If that is no longer in the log, the log
was cut or exchanged under it, and the process writes nothing more.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, Self, final

from graphkit.errors import CheckpointCorruptionError, CheckpointerConfigurationError, CheckpointFormatError
from graphkit.saver_kit import check_count, check_time
from savers._audit.chain import AuditReport, ChainChecker, KeySource, SignatureChecker, Signer
from savers._audit.digests import Digester
from savers._audit.entries import (
    BEGINNING,
    FORMAT,
    AuditHead,
    AuditRecord,
    Entry,
    digest_entry,
    format_time,
    join_entries,
    now,
    parse_entry,
    parse_head,
    to_canonical,
)
from savers._filesystem import layout
from savers._filesystem.io import FileIO, preload_modules
from savers._filesystem.lock import is_locked
from savers._filesystem.log_bytes import FileLogBytes
from savers._filesystem.rewrite import renew
from savers._filesystem.store import LOG_LOCK_TIMEOUT, LogDirectory, StorageErrors
from savers._filesystem.sync import make_sync_mode
from savers._log.frame import META, WRITE, IncompleteLog
from savers._log.frame_log import FrameLog, NamedIdentity
from savers._log.log_bytes import Change
from savers._threads import call_after_fork

if TYPE_CHECKING:
    from graphkit.abc import BaseCheckpointSaver

_PREFIX: Final = "audit-"
_SUFFIX: Final = ".log"
_SIGNED: Final = b'"signature":"'
"""Is in the canonical form of an entry if and only if it has a signature: within a text, quotes are escaped."""
_HEAD: Final = b'"kind":"head"'
"""Is in the canonical form of a head only, for the same reason."""
_TRIES: Final = 4
"""How often a reader looks at a last record that seems cut: a writer may be at work on it."""
_PAUSE: Final = 0.005


def identify(number: int) -> NamedIdentity:
    """Return the identity of a file: its number, so that files cannot change places."""
    return NamedIdentity("audit", number, f"{_PREFIX}{number}", "this file of an audit log")


class _LogFiles:
    """The files of a log, in their directory: their names, and how they are read."""

    def __init__(self, root: str | os.PathLike[str], io: FileIO | None) -> None:
        self.directory = LogDirectory(root, "", io)
        self.root = self.directory.root
        self.io = self.directory.io

    def path_of(self, number: int) -> str:
        return layout.join(self.root, f"{_PREFIX}{number:06}{_SUFFIX}")

    def list_numbers(self) -> list[int]:
        """Return the numbers of the files, in order."""
        names = self.io.listdir(self.root)
        numbers = [name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def find_last(self) -> int:
        """Return the number of the last file; 0 if there is none."""
        return max(self.list_numbers(), default=0)

    def read(self, checker: ChainChecker) -> Iterator[Entry]:
        """Yield the entries of all files, and tell a checker what is wrong. Takes no lock."""
        last = self.find_last()
        number = 0
        while number < last:
            number += 1
            path = self.path_of(number)
            if self.io.stat(path) is None:
                checker.report(path, "the file is missing")
                checker.skip_damage()
                continue
            kind = ""
            for entry in self._read_file(number, checker, is_last=number == last):
                kind = entry["kind"]
                yield entry
            if kind == "end" and number == last:
                last = self._wait_for(number + 1)
                if number == last:
                    reason = "the file is missing: it was removed, or its writer died before it began it"
                    checker.report(self.path_of(number + 1), reason)
            elif kind != "end" and number < last:
                checker.report(path, "its end was cut: another file follows")

    def _read_file(self, number: int, checker: ChainChecker, *, is_last: bool) -> Iterator[Entry]:
        medium = FileLogBytes(self.io, self.path_of(number))
        frames = FrameLog(medium, identify(number))
        try:
            if not medium.open():
                return
            for payload in _read_payloads(frames, may_grow=is_last):
                entry = checker.add(payload)
                if entry is not None:
                    yield entry
            if not frames.records.is_zero(frames.end, medium.size):
                checker.report(medium.path, f"the last write did not finish, or was cut, at byte {frames.end}")
        except IncompleteLog:
            checker.report(medium.path, "its beginning did not finish, or was cut")
        except (CheckpointCorruptionError, CheckpointFormatError) as error:
            checker.report(medium.path, error.reason)
            checker.skip_damage()
        finally:
            frames.close()

    def _wait_for(self, number: int) -> int:
        """Wait for a file that a writer may be about to begin; return the number of the last one.

        A writer ends a file, syncs it and begins the next one without freeing the lock. So if the lock is
        free after `end` was read, the file is there, or the writer died.
        """
        deadline = monotonic() + LOG_LOCK_TIMEOUT
        while True:
            has_writer = is_locked(self.directory.lock_path)
            last = self.find_last()
            if last >= number or not has_writer or monotonic() > deadline:
                return last
            sleep(_PAUSE)


def _read_payloads(frames: FrameLog[FileLogBytes, NamedIdentity], *, may_grow: bool) -> Iterator[bytes]:
    """Yield the entries of an open file, in their canonical form.

    A writer may be at work on the beginning or the last record. So what seems cut is looked at again,
    unless the file has been followed by another one.

    Raises:
        IncompleteLog: the beginning is cut.
    """
    medium = frames.bytes
    for looks_left in reversed(range(_TRIES)):
        try:
            if not frames.end:
                frames.read_beginning(medium.size)
        except IncompleteLog:
            if not may_grow or not looks_left:
                raise
        else:
            for frame in frames.records.scan(frames.end, medium.size, frames.seq):
                frames.note_read(frame)
                if frame.type != META:
                    yield frame.payload
            if not may_grow or frames.records.is_zero(frames.end, medium.size):
                return
        sleep(_PAUSE)
        medium.refresh(frames.end)


@final
class _AuditFile:
    """One file of the log, to append to. The caller holds the mutex of the log and the write lock.

    Attributes:
        mutex: that of the log.
        frames: the records, and the file below them.
        number: that of the file.
        head: the last entry of the log, up to the end of this file.
        unsigned: how many entries follow the last signed one in this file.
        sign_every: that of the last signed head of the log; 0 if it is in an earlier file that was not read.
        has_ended: whether another file follows.
    """

    def __init__(
        self, files: _LogFiles, mutex: Any, number: int, start: AuditHead = BEGINNING, sign_every: int = 0
    ) -> None:
        self.mutex = mutex
        self.number = number
        self._files = files
        self.frames: FrameLog[FileLogBytes, NamedIdentity] = FrameLog(
            files.directory.make_medium(files.path_of(number)), identify(number)
        )
        self._start = start
        self._start_sign_every = sign_every
        self._known = BEGINNING
        """A head that was brought to the disk, or seen before the file was cut: it must stay."""
        self._forget()

    def _forget(self) -> None:
        self.head = self._start
        self.unsigned = 0
        self.sign_every = self._start_sign_every
        self.has_ended = False

    def close(self) -> None:
        """Forget what was read; the next use reads it again."""
        self.frames.close()
        self._forget()

    def refresh_to_write(self) -> bool:
        """Read what other processes have appended, and cut off what a dead one left; return whether there is a file."""
        self.prepare()
        return self.frames.bytes.is_open

    def prepare(self) -> str:
        """Do what `refresh_to_write` does; return the name of the file to which a torn end was moved, or ""."""
        frames = self.frames
        change = frames.find_change()
        if change is not Change.NONE:
            if change is not Change.GREW:
                self.close()
            if frames.bytes.is_open or frames.open():
                self._read_on()
        if self.head.seq < self._known.seq:
            raise self._explain_cut()
        return frames.prepare_end()

    def _read_on(self) -> None:
        frames = self.frames
        medium = frames.bytes
        frames.in_doubt = True
        if frames.seq == 1:
            # From the beginning: an exception may have come between the two halves of `close`.
            self._forget()
        known = b'"seq":%d,' % self._known.seq
        prev = b'"prev":"%s"' % self.head.digest.encode()
        last = signed_head = b""
        for frame in frames.read_on(medium.size):
            if frame.type != WRITE:
                continue
            if not last and self.head.seq and prev not in frame.payload:
                # The file was cut, and has grown again. Whether or not the head was on the disk, it was
                # seen: the next try refuses, too.
                self._known = self.head
                raise self._explain_cut()
            last = frame.payload
            # Only the last entry and head are parsed: 64 MiB of entries would take a second.
            if _SIGNED not in last:
                self.unsigned += 1
            else:
                self.unsigned = 0
                if _HEAD in last:
                    signed_head = last
            if known in last and digest_entry(last) != self._known.digest:
                raise self._explain_cut()
        medium.note_end(frames.end)
        if signed_head:
            self.sign_every = self._parse(signed_head)["sign_every"]
        if last:
            entry = self._parse(last)
            self.head = AuditHead(entry["seq"], digest_entry(last))
            self.has_ended = entry["kind"] == "end"
        frames.in_doubt = False

    def _parse(self, canonical: bytes) -> Entry:
        entry = parse_entry(canonical)
        if entry is None:
            raise CheckpointCorruptionError(self.frames.path, self.frames.end, "a record is no entry of an audit log")
        return entry

    def _explain_cut(self) -> CheckpointCorruptionError:
        reason = f"entry {self._known.seq} is gone, which was there: the audit log was cut, or exchanged for another"
        return CheckpointCorruptionError(self.frames.path, 0, reason)

    def append(self, fields: Entry, signer: Signer | None = None) -> None:
        """Append an entry, and sign it if there is a signer."""
        entry = {**fields, "seq": self.head.seq + 1, "prev": self.head.digest, "time": now()}
        if signer is not None:
            entry = signer.sign(entry)
        canonical = to_canonical(entry)
        self.frames.append(WRITE, canonical)
        self.head = AuditHead(entry["seq"], digest_entry(canonical))
        if signer is None:
            self.unsigned += 1
        else:
            self.unsigned = 0
            self.sign_every = entry.get("sign_every", self.sign_every)
        self.has_ended = entry["kind"] == "end"
        self.frames.in_doubt = False

    def sync(self) -> None:
        """Bring all entries to the disk, while the locks are held; for what happens rarely."""
        medium = self.frames.bytes
        try:
            medium.io.fdatasync(medium.fd)
            self._files.directory.sync_names()
        except OSError:
            medium.durability.note_failed_sync()
            raise
        self.note_synced(self.head)

    def note_synced(self, head: AuditHead) -> None:
        """Note that the entries up to a head are on the disk."""
        if head.seq > self._known.seq:
            self._known = head


class AuditLog:
    """What was done with savers: append-only, chained by digests, signed if there is a key.

    Any number of threads and processes may share the directory. Give all of them the same keys. See
    docs/security.md.

    Attributes:
        digester: makes the digests of entries; for AuditedSaver.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        signing_key: KeySource | None = None,
        digest_key: bytes | str | os.PathLike[str] | None = None,
        sign_every: int = 1000,
        max_bytes: int = 64 << 20,
        io: FileIO | None = None,
    ) -> None:
        """Prepare a log. The first entry creates the directory.

        Args:
            directory: the directory of its files.
            signing_key: an Ed25519 private key, with which heads are signed: 32 bytes, the content of a
                PEM file, the path of one, or a key object of `cryptography`.
            digest_key: at least 16 bytes, or the path of a key file: digests, thread ids, namespaces and
                principals are keyed with it.
            sign_every: how many entries there are between two signed heads.
            max_bytes: a longer file is followed by another one.
            io: the file system; for tests.

        Raises:
            CheckpointerConfigurationError: an option is invalid.
            MissingDependencyError: there is a signing key, and `cryptography` is not installed.
        """
        check_count("sign_every", sign_every, CheckpointerConfigurationError)
        check_count("max_bytes", max_bytes, CheckpointerConfigurationError)
        self._options: dict[str, Any] = {
            "signing_key": signing_key,
            "digest_key": digest_key,
            "sign_every": sign_every,
            "max_bytes": max_bytes,
        }
        self.digester = Digester(digest_key)
        self._signer = None if signing_key is None else Signer(signing_key)
        self._files = _LogFiles(directory, io)
        self._sign_every = sign_every
        self._max_bytes = max_bytes
        self._sync_mode = make_sync_mode("always")
        self._reset()
        _LOGS.add(self)

    def _reset(self) -> None:
        self._mutex = threading.RLock()
        """Held by the thread that appends. It comes before the write lock, as everywhere: a thread that waits for
        another process holds back only the threads that use the same log."""
        self._file: _AuditFile | None = None
        self._gaps = 0
        """How many entries could not be written, and are in no entry of the kind `gap` yet."""
        self._gap_time = ""
        """When the first of them could not be written."""

    def __repr__(self) -> str:
        """Return the class and the directory; no key."""
        return f"{type(self).__name__}({self._files.root!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the directory and the options, keys included, for a node in another process."""
        return partial(AuditLog, self._files.root, **self._options), ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Writing

    def append(self, fields: Entry, *, is_lasting: bool) -> int:
        """Append an entry and return its number; for AuditedSaver.

        Args:
            fields: the entry, without its number, the digest of the last one, and the time.
            is_lasting: whether it survives a power loss when this returns.

        Raises:
            CheckpointStorageError: the file system refused. The entry is not there, or, after a failed sync,
                may be.
            CheckpointCorruptionError: the log is damaged, or was cut. Nothing was written.
            CheckpointerConfigurationError: the log was begun with another digest key. Nothing was written.
        """
        entry = self.digester.hide(fields)
        with StorageErrors("write", self._files.root):
            with self._mutex, self._files.directory.write_lock:
                file = self._make_ready()
                start = file.frames.end
                file.append(entry)
                seq = file.head.seq
                # Until the next head, the last one holds: a writer with another number may have signed it.
                if self._signer is not None and file.unsigned >= min(file.sign_every, self._sign_every):
                    self._sign(file)
                    is_lasting = True
                if not is_lasting:
                    return seq
                head = file.head
                ticket = self._sync_mode.take_ticket(file, start, expects_put=False)
            # Without the locks: others append meanwhile, and one sync serves all of them.
            self._sync_mode.settle(ticket, expects_put=False)
            with self._mutex:
                file.note_synced(head)
            return seq

    def note_gap(self) -> None:
        """Note that an entry could not be written: the next one that can says so; for AuditedSaver."""
        with self._mutex:
            if not self._gaps:
                self._gap_time = now()
            self._gaps += 1

    def _make_ready(self) -> _AuditFile:
        """Return the file for the next entry; begin the log, or its next file."""
        file = self._find_end()
        if file.head.seq and file.frames.end >= self._max_bytes:
            file.append({"kind": "end"}, self._signer)
            file = self._go_on(file)
        if not file.head.seq:
            file.append({
                "kind": "begin",
                "format": FORMAT,
                "log": os.urandom(16).hex(),
                "key_check": self.digester.check,
                "sign_every": 0 if self._signer is None else self._sign_every,
            })  # fmt: skip
            if self._signer is not None:
                self._sign(file)
        if self._gaps:
            # It is on the disk before it is forgotten here.
            file.append({"kind": "gap", "count": self._gaps, "since": self._gap_time})
            file.sync()
            self._gaps = 0
        return file

    def _find_end(self) -> _AuditFile:
        """Return the last file, up to date; what a dead writer left at its end is set aside."""
        if self._file is None:
            preload_modules()
            self._file = self._find_last()
        file = self._file
        torn = file.prepare()
        if file.frames.bytes.durability.is_suspect:
            renew(file)
            torn = file.prepare() or torn
        while file.has_ended:
            file = self._go_on(file)
        if torn and file.head.seq:
            file.append({"kind": "torn", "file": torn})
        return file

    def _sign(self, file: _AuditFile) -> None:
        file.append({"kind": "head", "sign_every": self._sign_every}, self._signer)

    def _go_on(self, file: _AuditFile) -> _AuditFile:
        """Return the file after one that has ended; what is in that is on the disk before the next one begins."""
        file.sync()
        following = _AuditFile(self._files, self._mutex, file.number + 1, file.head, file.sign_every)
        following.note_synced(file.head)
        following.prepare()
        file.close()
        self._file = following
        return following

    def _find_last(self) -> _AuditFile:
        """Return the last file of the log that has an entry, or the first file."""
        if not self.digester.has_made(next(self._files.read(ChainChecker()), None)):
            raise CheckpointerConfigurationError(
                f"{self._files.root}: the log was begun with another digest_key, or none"
            )
        for number in reversed(self._files.list_numbers()):
            file = _AuditFile(self._files, self._mutex, number)
            file.prepare()
            if file.head.seq:
                return file
            file.close()
        return _AuditFile(self._files, self._mutex, 1)

    def close(self) -> None:
        """Sign the head if there is a key, bring all to the disk, and close the files. A later use opens them again.

        What could not be written before (see `on_error="warn"`) is recorded as a gap; if that fails, too,
        the next entry or close does it.

        Raises:
            CheckpointStorageError: the file system refused. The files are closed.
            CheckpointCorruptionError: the log is damaged, or was cut. The files are closed.
        """
        with StorageErrors("write", self._files.root), self._mutex:
            if self._file is not None or self._gaps:
                with self._files.directory.write_lock:
                    try:
                        file = self._make_ready() if self._gaps else self._find_end()
                        if self._signer is not None and file.unsigned:
                            self._sign(file)
                        if file.frames.bytes.is_open:
                            file.sync()
                    finally:
                        if self._file is not None:
                            self._file.close()
                        self._file = None
            self._files.directory.write_lock.close()

    def _close_after_fork(self) -> None:
        """Start over in the child of a fork: it shares locks and positions with the parent."""
        if self._file is not None:
            self._file.frames.bytes.close_after_fork()
            self._file.close()
        self._files.directory.close_after_fork()
        self._reset()

    # Reading

    def records(
        self,
        *,
        principal: str | None = None,
        thread_id: str | None = None,
        operation: str | None = None,
        since: datetime | None = None,
    ) -> list[AuditRecord]:
        """Return one record for each operation, oldest first.

        Args:
            principal: only those of this principal.
            thread_id: only those about this thread.
            operation: only those of this method.
            since: only those that began then or later; aware.

        Raises:
            ValueError: `since` is naive.
            CheckpointerConfigurationError: a principal or a thread is named, the log has keyed digests of
                them, and this object was made without that key; or the other way round.
            CheckpointCorruptionError: the log is damaged; `verify` says where.
            CheckpointStorageError: the file system refused.
        """
        if since is not None:
            check_time("since", since)
        names_what_is_hidden = principal is not None or thread_id is not None
        if names_what_is_hidden and not self.digester.has_made(next(self._read_whole(), None)):
            raise CheckpointerConfigurationError(
                f"{self._files.root}: principals and threads have digests with another key, or with none: "
                "give the log its digest_key to look for one"
            )
        given = {"principal": principal, "thread_id": thread_id, "operation": operation}
        wanted = self.digester.hide({name: value for name, value in given.items() if value is not None})
        start = "" if since is None else format_time(since)

        def is_wanted(entry: Entry) -> bool:
            return entry["time"] >= start and all(entry.get(name) == value for name, value in wanted.items())

        return join_entries(self._read_whole(), is_wanted)

    def export(self) -> Iterator[str]:
        """Yield the canonical form of each entry, for a program that verifies them without graphkit.

        Raises:
            CheckpointCorruptionError: the log is damaged. What was yielded before is as it is in the log.
            CheckpointStorageError: the file system refused.
        """
        for entry in self._read_whole():
            yield to_canonical(entry).decode()

    def _read_whole(self) -> Iterator[Entry]:
        """Yield all entries; raise an error if records cannot be read, but not if they are only unfinished."""
        checker = ChainChecker()
        with StorageErrors("read", self._files.root):
            yield from self._files.read(checker)
        if checker.is_damaged:
            where, reason = checker.problems[0]
            raise CheckpointCorruptionError(where, 0, f"{reason}; `verify` finds all problems")

    def verify(
        self,
        store: BaseCheckpointSaver | None = None,
        public_key: KeySource | None = None,
        digest_key: bytes | str | os.PathLike[str] | None = None,
        expect_head: AuditHead | str | None = None,
    ) -> AuditReport:
        """Find entries that were removed, changed or reordered, and a cut end. Change nothing.

        Args:
            store: the saver that was audited, or better a new one on the same store, which remembers
                nothing of it: checkpoints, pending writes, tags and versions are compared with what the log
                says. Wrappers around it are passed over.
            public_key: signatures are checked with it: 32 bytes, a PEM file, or a key object.
            digest_key: the key of the digests, if this object was made without it.
            expect_head: a head of this log that was kept elsewhere, as an AuditHead or as text.

        Raises:
            CheckpointerConfigurationError: a key is invalid, or the log has keyed digests and there is no
                digest key.
            CheckpointSerializationError: the store has a value of a type that is not registered with it.
            CheckpointStorageError: the file system refused.
        """
        signatures = None if public_key is None else SignatureChecker(public_key)
        head = parse_head(expect_head)
        digester = self.digester if digest_key is None else Digester(digest_key)
        checker = ChainChecker(signatures=signatures, expect_head=head)
        with StorageErrors("read", self._files.root):
            for _ in self._files.read(checker):
                pass
            report = checker.finish()
            if store is None:
                return report
            from savers._audit.store_check import StoreChecker

            checked = StoreChecker(lambda: self._files.read(ChainChecker()), store, digester)
            return replace(report, problems=(*report.problems, *checked.find_problems()))


_LOGS: Final[weakref.WeakSet[AuditLog]] = weakref.WeakSet()
call_after_fork(_LOGS, AuditLog._close_after_fork)  # noqa: SLF001
