"""A log of entries that any number of threads and processes read and append to.

It is what LangGraph's store and cache keep their data in. docs/format.md specifies the bytes.

Theory of operation. All entries are in one log, so that one append and one sync store a whole batch,
and one look at the size of the file shows whether another process has written. Each process keeps
the table of all entries in memory, without long contents. The log is rewritten when half of it is of
no use any more.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from logging import getLogger
from pathlib import Path
from time import time_ns
from typing import Final, Literal
from zlib import crc32

from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointSerializationError,
    CheckpointStorageError,
)
from savers._filesystem import layout
from savers._filesystem.containment import DirectoryGuard
from savers._filesystem.io import FileIO
from savers._filesystem.lock import WriteLock
from savers._filesystem.preload import preload_modules
from savers._filesystem.salvaged_files import FileRange
from savers._filesystem.store import make_room
from savers._log import log
from savers.langgraph._entries.examine import EntriesRepair, EntriesReport, examine
from savers.langgraph._entries.file import EntryFile
from savers.langgraph._entries.records import (
    Change,
    Entry,
    pack_changes,
    unpack_changes,
)
from savers.langgraph._entries.rewrite import make_batches, new_header, read_good_entries, replace_log
from savers.langgraph._entries.table import EntryTable

Fsync = Literal["always", "never"]

_LOCK: Final = "lock"
_LOCK_TIMEOUT: Final = 10.0
"""How many seconds a writer waits for another one."""
_LEAST_REWRITTEN: Final = 1 << 16
"""A shorter log is not rewritten."""
_WAS_REMOVED: Final = "its file was removed while it was in use, and its entries with it. Put the directory back"
_LOGGER: Final = getLogger("graphkit")


class EntryLog:
    """The entries of one kind in a directory.

    Attributes:
        path: the file.
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
        self._root = os.fspath(base_directory)
        self._kind = kind
        self._fsync = fsync
        self._clock = clock
        self._io = DirectoryGuard(FileIO() if io is None else io, self._root, make_room)
        self._directory = layout.join(self._root, kind)
        self.path = layout.join(self._directory, layout.LOG)
        self._reset()
        _LOGS.add(self)
        with self._storage_errors("open"):
            self._make_root()

    def _reset(self) -> None:
        self._mutex = threading.RLock()
        self._write_lock = WriteLock(
            self._io, layout.join(self._directory, _LOCK), self._make_directories, _LOCK_TIMEOUT
        )
        self._file: EntryFile | None = None
        self._table = EntryTable()
        self._is_suspect = False
        """A sync failed. The log must be rewritten before anything else is stored in it."""
        self._is_in_doubt = False
        """Whether an append or a reading has begun and not ended: an exception at any line, as Ctrl-C
        raises it, may have left the table different from the log. It is read again before it is used."""
        self._next_look = _LEAST_REWRITTEN
        """How long the log must be before a writer looks whether to rewrite it."""

    def now(self) -> int:
        """Return the time in microseconds since 1970."""
        return int(self._clock() * 1_000_000)

    # Directories

    def _make_root(self) -> None:
        path = Path(self._root).absolute()
        missing = list(takewhile(lambda one: not self._io.is_dir(str(one)), (path, *path.parents)))
        try:
            for directory in reversed(missing):
                self._io.mkdir(str(directory))
        except (FileExistsError, NotADirectoryError) as error:
            raise CheckpointerConfigurationError(f"{error.filename} is a file; name a directory") from error
        for directory in missing:
            self._io.fsync_dir(str(directory.parent))

    def _make_directories(self) -> None:
        self._make_root()
        self._io.mkdir(self._directory)

    # Reading

    @contextmanager
    def reading(self) -> Iterator[EntryTable]:
        """Enter with the table of all entries, up to date; no other thread changes it meanwhile.

        Raises:
            CheckpointCorruptionError: the log is damaged.
            CheckpointFormatError: it needs a newer graphkit.
            CheckpointStorageError: the file system refused.
        """
        with self._storage_errors("read"), self._mutex:
            self._refresh()
            yield self._table

    def read_content(self, entry: Entry) -> bytes:
        """Return the content of an entry; call it while `reading`.

        Raises:
            CheckpointCorruptionError: the bytes on the disk are no longer what was stored.
        """
        if entry.content is not None:
            return entry.content
        assert self._file is not None
        content = self._io.read_at(self._file.fd, entry.offset, entry.length)
        if len(content) != entry.length or crc32(content) != entry.crc:
            raise CheckpointCorruptionError(
                self.path, entry.offset, f"the checksum of the entry {entry.key!r} is wrong"
            )
        return content

    def _refresh(self) -> None:
        """Read what other processes have written since; open the file if need be."""
        if self._is_in_doubt:
            self._close()
        file = self._file
        if file is not None:
            status = self._io.fstat(file.fd)
            if status.st_nlink and status.st_size == file.end:
                return
            try:
                if status.st_nlink and status.st_size > file.end:
                    file.read_on(self._table, status.st_size)
                    return
            except BaseException:
                self._close()  # The table has a part of what was appended.
                raise
            self._close()
            if not status.st_nlink and self._io.stat(self.path) is None:
                raise CheckpointStorageError(self.path, "read", _WAS_REMOVED)
        self._open()

    def _open(self) -> None:
        file = EntryFile.open(self._io, self.path, self._kind)
        if file is None:
            return
        try:
            self._table = file.read_all()
            self._file = file
        except log.IncompleteLog:
            file.close()
        except BaseException:
            self._file = None
            file.close()
            raise

    def close(self) -> None:
        """Close the files; the next use opens them again."""
        with self._mutex:
            self._close()
            self._write_lock.close()

    def _close(self) -> None:
        self._is_in_doubt = True
        file, self._file = self._file, None
        if file is not None:
            file.close()
        self._table = EntryTable()
        self._next_look = _LEAST_REWRITTEN
        self._is_in_doubt = False

    def close_after_fork(self) -> None:
        """Begin anew in the child of a fork: it shares locks and positions with the parent."""
        if self._file is not None:
            self._file.close_after_fork()
        self._write_lock.close_after_fork()
        self._reset()

    # Writing

    def append(self, decide: Callable[[EntryTable], Iterable[Change]], *, is_lasting: bool = True) -> None:
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
        with self._storage_errors("write"):
            with self._mutex, self._write_lock:
                self._refresh_to_write()
                changes = list(decide(self._table))
                if not changes:
                    return
                start = self._append(changes)
                file = self._file
                assert file is not None
                if self._fsync == "never" or not is_lasting:
                    return
                end = file.end
                file.pin()
            self._settle(file, start, end)

    def _refresh_to_write(self) -> str:
        """Refresh, cut off what a dead writer left at the end, and rewrite the log if need be.

        Returns:
            The name of the file in which the end is kept; "" if nothing was cut off but zeros.
        """
        self._refresh()
        file = self._file
        if file is None:
            return ""
        if file.read_only_error is not None:
            raise file.read_only_error
        if self._is_suspect:
            self._rewrite(self._table.oldest_first())
            return ""
        set_aside = ""
        size = file.size()
        if size > file.end:
            set_aside = self._cut_off_tail(file, size)
        if file.end >= self._next_look:
            self._rewrite_if_useful(file)
        return set_aside

    def _append(self, changes: list[Change]) -> int:
        """Append one record with these changes; return where it begins."""
        payload = pack_changes(changes)
        if len(payload) > log.MAX_PAYLOAD:
            reason = f"it takes {len(payload)} bytes, and one call stores at most {log.MAX_PAYLOAD}"
            raise CheckpointSerializationError("", "batch", reason)
        self._is_in_doubt = True
        beginning = b""
        file = self._file
        if file is None:
            file, beginning = self._create()
        start = file.end or len(beginning)
        frame = file.pack_record(payload, start)
        try:
            file.write(beginning + frame)
        except BaseException:
            self._undo(file)
            raise
        file.note_appended(start + len(frame))
        self._file = file
        # Read back from the payload, so that this process sees what every other one will.
        for change in unpack_changes(payload, start + log.FRAME_SIZE):
            self._table.apply(change)
        self._is_in_doubt = False
        return start

    def _create(self) -> tuple[EntryFile, bytes]:
        """Create the file; return it, and the bytes with which it begins.

        A file whose creation was cut short is emptied. Its bytes are salvaged unless they are zero.
        """
        self._make_directories()
        self._write_lock.reopen()
        fd = self._io.open(self.path, write=True, create=True)
        file = EntryFile(self._io, self.path, self._kind, fd)
        try:
            size = file.size()
            if size:
                content = FileRange(io=self._io, fd=fd, start=0, end=size)
                if not content.is_zero():
                    content.salvage(self._directory, f"{layout.TORN}0-0")
                self._io.truncate(fd, 0)
        except BaseException:
            file.close()
            raise
        return file, file.begin(new_header(self._kind, 1))

    def _undo(self, file: EntryFile) -> None:
        """Cut off a record that could not be written whole."""
        try:
            self._io.truncate(file.fd, file.end)
            # Otherwise power loss could mix sectors of the old bytes with those that replace them.
            self._io.fdatasync(file.fd)
        except OSError:
            _LOGGER.warning("%s: a write that failed could not be undone; the next writer will", self.path)
            self._is_suspect = file is self._file
        if file is not self._file:
            file.close()

    def _cut_off_tail(self, file: EntryFile, size: int) -> str:
        """Salvage what an unfinished write left at the end, unless it is zero, and cut it off.

        Returns:
            The name of the salvaged file, or "".
        """
        name = ""
        tail = FileRange(io=self._io, fd=file.fd, start=file.end, end=size)
        if not tail.is_zero():
            name = tail.salvage(self._directory, f"{layout.TORN}{file.generation}-{file.end}")
            self._io.fsync_dir(self._directory)
            _LOGGER.warning(
                "%s: the last write did not finish; its %d bytes are set aside in %s",
                self.path,
                size - file.end,
                name,
            )
        self._io.truncate(file.fd, file.end)
        try:
            self._io.fsync(file.fd)
        except OSError:
            self._is_suspect = True
            raise
        file.synced = file.end
        return name

    # Syncing

    def _settle(self, file: EntryFile, start: int, end: int) -> None:
        """Bring a record to the disk, and unpin the file; the caller holds no lock."""
        try:
            file.sync(end, (self._directory, self._root))
        except OSError:
            self._renew(file, start, end)
            raise
        finally:
            with self._mutex:
                file.unpin()

    def _renew(self, file: EntryFile, start: int, end: int) -> None:
        """Rewrite the log after a failed sync, without the record from `start` to `end` if it is the last."""
        with self._mutex:
            if self._file is not file:
                return  # Another file, which is on the disk, has taken its place.
            self._is_suspect = True
            try:
                with self._write_lock:
                    # First what other processes have appended since, or written to another file.
                    self._refresh()
                    if self._file is not file:
                        self._is_suspect = False
                        return
                    if file.end == end:
                        self._table = file.read_all(start)
                    self._rewrite(self._table.oldest_first())
            except (OSError, CheckpointerError):
                _LOGGER.exception("%s could not be rewritten; nothing is stored in it until it can be", self.path)

    # Rewriting

    def _rewrite_if_useful(self, file: EntryFile) -> None:
        """Rewrite the log if half of it is of no use any more; else look again when it is twice as long."""
        now = self.now()
        if 2 * self._table.measure(now) <= file.end:
            self._rewrite([entry for entry in self._table.oldest_first() if not entry.has_expired(now)])
        if self._file is not None:
            self._next_look = max(_LEAST_REWRITTEN, 2 * self._file.end)

    def _rewrite(self, entries: list[Entry]) -> None:
        """Rewrite the log with these entries."""
        assert self._file is not None
        generation = self._file.generation + 1
        is_name_synced = self._file.is_name_synced
        try:
            batches = make_batches(entries, self.read_content)
            replace_log(self._io, self.path, self._kind, generation, batches)
        finally:
            self._close()
        self._is_suspect = False
        self._open()
        assert self._file is not None
        self._file.synced = self._file.end
        self._file.is_name_synced = is_name_synced

    # Damage

    def verify(self) -> EntriesReport:
        """Read every byte of the log and report damage. Change nothing, and block no writer.

        Raises:
            CheckpointStorageError: the file system refused.
        """
        with self._storage_errors("read"):
            return examine(self._io, self.path, self._kind)

    def repair(self) -> EntriesRepair:
        """Rewrite a damaged log from its good records; keep a copy of the damaged one.

        An entry whose last record is damaged has the content of the record before, or is gone. What
        a write that did not finish left at the end is moved to a file of its own.

        Raises:
            CheckpointFormatError: the log needs a newer graphkit, or is another log.
            CheckpointStorageError: the file system refused. Nothing was changed.
        """
        with self._storage_errors("repair"), self._mutex, self._write_lock:
            self._close()
            before = examine(self._io, self.path, self._kind)
            try:
                name = self._refresh_to_write()
            except CheckpointCorruptionError as error:
                _LOGGER.warning("%s", error)
                name = self._repair()
        return EntriesRepair(before=before, set_aside=layout.join(self._kind, name) if name else "")

    def _repair(self) -> str:
        """Rewrite a damaged log; return the name of the copy of the old one."""
        self._file = file = EntryFile.open(self._io, self.path, self._kind)
        assert file is not None
        try:
            good = read_good_entries(file)
            whole = FileRange(io=self._io, fd=file.fd, start=0, end=file.size())
            name = whole.salvage(self._directory, f"{layout.DAMAGED}{time_ns() // 1_000_000_000}")
            self._io.fsync_dir(self._directory)
            self._rewrite(good.table.oldest_first())
        except BaseException:
            self._close()
            raise
        return name

    # Errors

    @contextmanager
    def _storage_errors(self, operation: str) -> Iterator[None]:
        """Turn an OSError into a CheckpointStorageError that names the path and the operation."""
        try:
            yield
        except CheckpointerError:
            raise
        except OSError as error:
            path = os.fsdecode(error.filename or self.path)
            raise CheckpointStorageError(path, operation, error) from error


_LOGS: Final[weakref.WeakSet[EntryLog]] = weakref.WeakSet()


def _after_fork() -> None:
    for entry_log in list(_LOGS):
        entry_log.close_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
