"""A log of entries that any number of threads and processes read and append to.

It is what LangGraph's store and cache keep their data in. docs/format.md specifies the bytes.

Theory of operation. All entries are in one log, so that one append and one sync store a whole batch,
and one look at the size of the file shows whether another process has written. Each process keeps
the table of all entries in memory, without long contents. The log is rewritten when half of it is of
no use any more.

LangGraph need not be installed: graphkit's commands verify and repair these logs, too.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from logging import getLogger
from pathlib import Path
from time import time, time_ns
from typing import Any, Final, Literal, NamedTuple, final
from zlib import crc32

import ormsgpack

from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointFormatError,
    CheckpointStorageError,
)
from savers._filesystem import layout
from savers._filesystem.io import FileIO, FileRange, preload_modules
from savers._filesystem.log_bytes import FileLogBytes
from savers._filesystem.rewrite import new_generation, renew
from savers._filesystem.store import LogDirectory, StorageErrors, make_root
from savers._filesystem.sync import make_sync_mode
from savers._log.frame import ANCILLARY, HEADER_SIZE, META, WRITE, IncompleteLog, is_newer
from savers._log.frame_log import FrameLog, NamedIdentity, new_header
from savers._log.log_bytes import Change
from savers._log.records import Records
from savers._threads import call_after_fork
from savers.langgraph.entry_records import Entry, EntryChange, EntryTable, make_batches, pack_changes, unpack_changes
from savers.langgraph.opening import ContextMethods

Fsync = Literal["always", "never"]
Noun = Literal["item", "cached value"]
STORE: Final = "langgraph-store"
"""The name of the directory of the store, and the kind of its log."""
CACHE: Final = "langgraph-cache"
"""The same of the cache."""
_NOUNS: Final[dict[str, Noun]] = {STORE: "item", CACHE: "cached value"}
"""What the entries of each log are called."""

_MAX_ATTEMPTS: Final = 3
"""How often a log that a writer changes meanwhile is examined."""
_LEAST_REWRITTEN: Final = 1 << 16
"""A shorter log is not rewritten."""
_WAS_REMOVED: Final = "its file was removed while it was in use, and its entries with it. Put the directory back"
_LOGGER: Final = getLogger("graphkit")


def _identify(kind: str) -> NamedIdentity:
    """Return the identity of a log of entries: its kind, which is also the name of its directory."""
    return NamedIdentity("entries", kind, kind, f"a log of {kind}")


EntryFrames = FrameLog[FileLogBytes, NamedIdentity]


def read_on(frames: EntryFrames, table: EntryTable) -> None:
    """Apply the records behind the known end of a log to a table.

    Raises:
        CheckpointCorruptionError: the log is damaged. The table has a part of the changes.
        CheckpointFormatError: it needs a newer graphkit. Likewise.
    """
    for frame in frames.read_on(frames.bytes.size):
        if frame.type == WRITE:
            changes = unpack_changes(frames.path, frame.offset, frame.payload)
            table.apply(changes)
        elif frame.type != META and not frame.type & ANCILLARY:
            reason = f"the record at byte {frame.offset} needs a newer graphkit"
            raise CheckpointFormatError(frames.path, reason)
    frames.bytes.note_end(frames.end)


class GoodEntries(NamedTuple):
    """What is good of a damaged log."""

    table: EntryTable
    lost: int
    """How many bytes do not belong to a good record."""


def read_good_entries(frames: EntryFrames) -> GoodEntries:
    """Read all records of an open log that prove themselves, whatever is between them."""
    table = EntryTable()
    size = frames.bytes.size
    lost = max(0, size - HEADER_SIZE)
    for frame in Records(frames.bytes, None).search(0, size):
        lost -= frame.end - frame.offset
        if frame.type != WRITE:
            continue
        try:
            table.apply(unpack_changes(frames.path, frame.offset, frame.payload))
        except CheckpointCorruptionError as error:
            _LOGGER.warning("%s; the record was left out", error)
    return GoodEntries(table, lost)


class EntriesState(StrEnum):
    """What is wrong with a log; see EntriesReport."""

    OK = "ok"
    TORN = "torn"
    DAMAGED = "damaged"
    NEWER = "newer"
    FOREIGN = "foreign"


@final
@dataclass(frozen=True, kw_only=True)
class EntriesReport:
    """What verify found in the log of a store or a cache."""

    path: str
    """Relative to the directory of the store."""
    state: EntriesState = EntriesState.OK
    """ok; torn: the last write did not finish, and the next write moves its bytes away; damaged; newer:
    the log needs a newer graphkit; foreign: it is another log, or not a log."""
    offset: int = 0
    """Where the problem begins, if there is one."""
    reason: str = ""
    """What the problem is."""
    size: int = 0
    """Bytes; 0 also if there is no log yet."""
    entries: int = 0
    """Items or cached values that can be read. Of a damaged log, those that a repair keeps."""
    lost: int = 0
    """Bytes of a damaged log that a repair loses; it keeps a copy of the whole log."""

    @property
    def ok(self) -> bool:
        """Whether all of it can be read."""
        return self.state is EntriesState.OK


@final
@dataclass(frozen=True, kw_only=True)
class EntriesRepair:
    """What repair did to the log of a store or a cache, or would do."""

    before: EntriesReport
    set_aside: str = ""
    """The path of the file with a copy of the old bytes, relative to the directory of the store."""
    refused: str = ""
    """Why repair did nothing."""

    @property
    def kept(self) -> int:
        """How many items or cached values were kept."""
        return 0 if self.refused else self.before.entries


def _examine(frames: EntryFrames, nothing: EntriesReport) -> EntriesReport:
    """Return the report of a log that is open, given that of none."""
    size = frames.bytes.size
    empty = replace(nothing, size=size)
    table = EntryTable()
    try:
        frames.read_beginning(size)
        read_on(frames, table)
    except IncompleteLog:
        if frames.records.is_zero(0, size):
            return empty
        return replace(empty, state=EntriesState.TORN, reason="its creation did not finish")
    except CheckpointCorruptionError as error:
        good = read_good_entries(frames)
        damaged = replace(empty, state=EntriesState.DAMAGED, offset=error.offset, reason=error.reason)
        return replace(damaged, entries=len(good.table), lost=good.lost)
    except CheckpointFormatError as error:
        # A record of unknown type is of a newer format, too.
        is_of_newer = frames.end > 0 or is_newer(frames.bytes.read_at(0, HEADER_SIZE))
        state = EntriesState.NEWER if is_of_newer else EntriesState.FOREIGN
        return replace(empty, state=state, offset=frames.end, reason=error.reason)
    report = replace(empty, entries=len(table))
    if frames.records.is_zero(frames.end, size):
        return report
    return replace(report, state=EntriesState.TORN, offset=frames.end, reason="the last write did not finish")


class EntryLog:
    """The entries of one kind in a directory.

    Attributes:
        path: the file.
        mutex: held by the user of what follows.
        frames: the records, and the file below them.
    """

    def __init__(
        self,
        base_directory: str | os.PathLike[str],
        kind: str,
        *,
        fsync: Fsync,
        clock: Callable[[], float],
        io: FileIO | None,
    ) -> None:
        """Open a log; create the directory `base_directory` if it is missing.

        Args:
            base_directory: the directory that holds the threads, too.
            kind: the name of the subdirectory.
            fsync: whether a write waits for the disk.
            clock: returns seconds since 1970.
            io: the file system.

        Raises:
            CheckpointerConfigurationError: the path is a file, or an option is invalid.
            CheckpointStorageError: the file system refused.
        """
        if fsync not in {"always", "never"}:
            raise CheckpointerConfigurationError(f'fsync must be "always" or "never", not {fsync!r}')
        preload_modules()
        self._kind = kind
        self._sync_mode = make_sync_mode(fsync)
        self._clock = clock
        self._directory = LogDirectory(base_directory, kind, io)
        self._io = self._directory.io
        self.path = layout.join(self._directory.path, layout.LOG)
        self._reset()
        _LOGS.add(self)
        with StorageErrors("open", self.path):
            make_root(self._io, self._directory.root)

    def _reset(self) -> None:
        self.mutex = threading.RLock()
        self.frames: EntryFrames = EntryFrames(self._directory.make_medium(self.path), _identify(self._kind))
        self._table = EntryTable()
        self._next_look = _LEAST_REWRITTEN
        """How long the log must be before a writer looks whether to rewrite it."""

    def now(self) -> int:
        """Return the time in microseconds since 1970."""
        return int(self._clock() * 1_000_000)

    # Reading

    @contextmanager
    def reading(self) -> Iterator[EntryTable]:
        """Enter with the table of all entries, up to date; no other thread changes it meanwhile.

        Raises:
            CheckpointCorruptionError: the log is damaged.
            CheckpointFormatError: it needs a newer graphkit.
            CheckpointStorageError: the file system refused.
        """
        with StorageErrors("read", self.path), self.mutex:
            self._refresh()
            yield self._table

    def read_content(self, entry: Entry) -> bytes:
        """Return the content of an entry; call it while `reading`.

        Raises:
            CheckpointCorruptionError: the bytes on the disk are no longer what was stored.
        """
        if entry.content is not None:
            return entry.content
        content = self.frames.bytes.read_at(entry.offset, entry.length)
        if len(content) != entry.length or crc32(content) != entry.crc:
            reason = f"the checksum of the entry {entry.key!r} is wrong"
            raise CheckpointCorruptionError(self.path, entry.offset, reason)
        return content

    def _refresh(self) -> None:
        """Read what other processes have written since; open the file if need be."""
        frames = self.frames
        change = frames.find_change()
        if change is Change.NONE:
            return
        if change is not Change.GREW:
            # Another process has rewritten the log, which is then read from its beginning. Or the
            # file was removed by hand: then the entries are gone, and the caller must know it, for
            # the next write would begin an empty log without a word.
            was_removed = change is Change.REMOVED and self._io.stat(self.path) is None
            self.close()
            if was_removed:
                raise CheckpointStorageError(self.path, "read", _WAS_REMOVED)
            if not frames.open():
                return
        frames.in_doubt = True
        read_on(frames, self._table)
        frames.in_doubt = False

    def close_files(self) -> None:
        """Close the files; the next use opens them again."""
        with self.mutex:
            self.close()
            self._directory.write_lock.close()

    def close(self) -> None:
        """Forget what was read; the caller holds the mutex."""
        self.frames.close()
        self._table = EntryTable()
        self._next_look = _LEAST_REWRITTEN

    def close_after_fork(self) -> None:
        """Start over in the child of a fork: it shares locks and positions with the parent."""
        self.frames.bytes.close_after_fork()
        self.frames.close()
        self._directory.close_after_fork()
        self._reset()

    # Writing

    def append(self, decide: Callable[[EntryTable], Iterable[EntryChange]], *, is_lasting: bool = True) -> None:
        """Store changes; no other thread or process writes while they are decided.

        Args:
            decide: returns the changes, given the table of all entries. It may be called only once.
            is_lasting: whether the changes must survive power loss when this returns, if the log is
                opened that way.

        Raises:
            CheckpointSerializationError: the changes cannot be stored. Nothing was changed.
            CheckpointCorruptionError: the log is damaged. Nothing was changed.
            CheckpointFormatError: it needs a newer graphkit.
            CheckpointStorageError: the file system refused. Nothing was changed; after a failed
                sync, the changes may be stored.
        """
        with StorageErrors("write", self.path):
            # The mutex comes before the write lock, as everywhere: a thread that waits for another
            # process holds back only the threads that use the same log.
            with self.mutex, self._directory.write_lock:
                self._make_ready()
                changes = list(decide(self._table))
                if not changes:
                    return
                payload = pack_changes(changes)
                start = self.frames.append(WRITE, payload)
                # Read back from the payload, so that this process sees what every other one will.
                self._table.apply(unpack_changes(self.path, start, payload))
                self.frames.in_doubt = False
                if not is_lasting:
                    return
                ticket = self._sync_mode.take_ticket(self, start, expects_put=False)
            # Without the locks: others append meanwhile, and one sync serves all of them.
            self._sync_mode.settle(ticket, expects_put=False)

    def refresh_to_write(self) -> bool:
        """Refresh, and cut off what a dead writer left at the end; return whether there is a log."""
        self._refresh()
        self.frames.prepare_end()
        return self.frames.bytes.is_open

    def _make_ready(self) -> None:
        """Bring the log up to date for an append; rewrite it after a failed sync, or if that is useful."""
        self.refresh_to_write()
        if self.frames.bytes.durability.is_suspect:
            renew(self)
            self.refresh_to_write()
        if self.frames.end < self._next_look:
            return
        now = self.now()
        if 2 * self._table.measure(now) <= self.frames.end:
            # Half of it is of no use any more.
            self._rewrite(entry for entry in self._table.oldest_first() if not entry.has_expired(now))
            self._refresh()
        self._next_look = max(_LEAST_REWRITTEN, 2 * self.frames.end)

    # Rewriting

    def _rewrite(self, entries: Iterable[Entry]) -> None:
        """Rewrite the log with these entries, and close it."""
        with new_generation(self) as new_log:
            for batch in make_batches(entries, self.read_content):
                new_log.append(WRITE, pack_changes(batch))

    # Erasing

    def erase_where(self, metadata: Mapping[str, Any]) -> list[str]:
        """Erase the entries of a person; see `graphkit.operations.erase_where`.

        Rewrites the log, so that nothing is left of what was replaced or deleted earlier either, and
        removes the bytes of writes that did not finish.

        Returns:
            Why bytes are left: copies of the log that a repair has made.

        Raises:
            CheckpointCorruptionError: the log is damaged. Nothing was changed.
            CheckpointStorageError: the file system refused.
            ValueError: the metadata is empty: that would be everybody's.
        """
        if not metadata:
            raise ValueError("metadata must not be empty: every entry would be erased")
        left: list[str] = []
        with StorageErrors("erase from", self.path), self.mutex, self._directory.write_lock:
            if self.refresh_to_write():
                kept = [entry for entry in self._table.oldest_first() if not self._is_of(entry, metadata)]
                self._rewrite(kept)
            if not self._io.is_dir(self._directory.path):
                return left
            for name in self._io.listdir(self._directory.path):
                path = layout.join(self._directory.path, name)
                if name.startswith(layout.TORN):
                    self._io.unlink(path)
                elif name.startswith(layout.DAMAGED):
                    left.append(f"{path} was made by a repair, and may have any entry of that time: remove it")
        return left

    def _is_of(self, entry: Entry, metadata: Mapping[str, Any]) -> bool:
        """Return whether an entry belongs to a person."""
        if self._kind == CACHE:  # nothing tells whose a cached value is
            return True
        if all(value in entry.namespace for value in metadata.values()):
            return True
        value: dict[str, Any] = ormsgpack.unpackb(self.read_content(entry)[: entry.value_length])
        return metadata.items() <= value.items()

    # Damage

    def verify(self) -> EntriesReport:
        """Read every byte of the log and report damage. Change nothing, and block no writer.

        A log that a writer changes meanwhile is read again, up to three times.

        Raises:
            CheckpointStorageError: the file system refused.
        """
        medium = FileLogBytes(self._io, self.path)
        frames = EntryFrames(medium, _identify(self._kind))
        report = nothing = EntriesReport(path=layout.join(self._kind, layout.LOG))
        with StorageErrors("read", self.path):
            for _ in range(_MAX_ATTEMPTS):
                try:
                    if not medium.open():
                        break
                    report = _examine(frames, nothing)
                    is_unchanged = medium.refresh(report.size) is Change.NONE
                finally:
                    frames.close()
                if report.ok or is_unchanged:
                    break
        return report

    def repair(self) -> EntriesRepair:
        """Rewrite a damaged log from its good records; keep a copy of the damaged one.

        An entry whose last record is damaged has the content of the record before, or is gone. What
        a write that did not finish left at the end is moved to a file of its own.

        Raises:
            CheckpointFormatError: the log needs a newer graphkit, or is another log.
            CheckpointStorageError: the file system refused. Nothing was changed.
        """
        with StorageErrors("repair", self.path), self.mutex, self._directory.write_lock:
            frames = self.frames
            medium = frames.bytes
            before = self.verify()
            self.close()
            try:
                self._refresh()
                name = frames.prepare_end()
            except CheckpointCorruptionError as error:
                _LOGGER.warning("%s", error)
                self.close()
                frames.in_doubt = True
                medium.open()
                frames.adopt(new_header(frames.identity.digest, 0), None)
                good = read_good_entries(frames)
                whole = FileRange(io=self._io, fd=medium.fd, start=0, end=medium.size)
                name = whole.salvage(self._directory.path, f"{layout.DAMAGED}{time_ns() // 1_000_000_000}")
                self._io.fsync_dir(self._directory.path)
                self._rewrite(good.table.oldest_first())
        return EntriesRepair(before=before, set_aside=layout.join(self._kind, name) if name else "")


_LOGS: Final[weakref.WeakSet[EntryLog]] = weakref.WeakSet()
call_after_fork(_LOGS, EntryLog.close_after_fork)


class EntryLogMethods(ContextMethods):
    """What the store and the cache of LangGraph do with their log."""

    _log: EntryLog

    def close(self) -> None:
        """Close the files. A later use opens them again."""
        self._log.close_files()

    def _close(self) -> None:
        self.close()

    def erase_where(self, metadata: Mapping[str, Any]) -> Sequence[str]:
        """Erase the items of a person, or all values of a cache, and what was replaced or deleted earlier.

        An item is that person's if its value has all of these keys and values, or if its namespace has
        all of these values as labels. Nothing tells whose a cached value is. The file is rewritten.

        Returns:
            Why bytes are left; empty if none is.

        Raises:
            CheckpointCorruptionError: the stored data are damaged. Nothing was changed.
            CheckpointStorageError: the file system refused.
            ValueError: the metadata is empty. Nothing was changed.
        """
        return self._log.erase_where(metadata)

    def verify(self) -> EntriesReport:
        """Read every byte and report damage. Changes nothing, and blocks no other process.

        Raises:
            CheckpointStorageError: the file system refused.
        """
        return self._log.verify()

    def repair(self) -> int:
        """Rewrite damaged data from what is readable; keep a copy of the damaged file beside it.

        An entry whose last change is damaged has the value of the change before, or is gone.

        Returns:
            How many bytes could not be read; 0 if nothing is damaged and nothing was changed.

        Raises:
            CheckpointFormatError: the data need a newer graphkit.
            CheckpointStorageError: the file system refused. Nothing was changed.
        """
        return self._log.repair().before.lost


def verify_entries(directory: str | os.PathLike[str]) -> dict[Noun, EntriesReport]:
    """Read every byte of the logs of a FileSystemStore and a FileSystemCache, and report damage.

    Returns:
        The report of each log that the directory has, by what its entries are called.

    Raises:
        CheckpointStorageError: the file system refused.
    """
    return {noun: entry_log.verify() for noun, entry_log in open_logs(directory)}


def repair_entries(directory: str | os.PathLike[str], *, dry_run: bool = False) -> dict[Noun, EntriesRepair]:
    """Repair these logs, as `repair` of the store and of the cache does.

    Args:
        directory: the directory.
        dry_run: change nothing, and report what a repair would do.

    Returns:
        What was done to each log that has a problem, by what its entries are called.

    Raises:
        CheckpointStorageError: the file system refused. What was repaired before stays repaired.
    """
    repairs: dict[Noun, EntriesRepair] = {}
    for noun, entry_log in open_logs(directory):
        before = entry_log.verify()
        if before.ok:
            continue
        if before.state in {EntriesState.NEWER, EntriesState.FOREIGN}:
            repairs[noun] = EntriesRepair(before=before, refused=before.reason)
        elif dry_run:
            repairs[noun] = EntriesRepair(before=before)
        else:
            repairs[noun] = entry_log.repair()
    return repairs


def open_logs(directory: str | os.PathLike[str]) -> Iterator[tuple[Noun, EntryLog]]:
    """Yield the logs of a FileSystemStore and a FileSystemCache, by what their entries are called; closes them."""
    for kind, noun in _NOUNS.items():
        if Path(directory, kind, layout.LOG).exists():
            entry_log = EntryLog(directory, kind, fsync="always", clock=time, io=None)
            try:
                yield noun, entry_log
            finally:
                entry_log.close_files()
