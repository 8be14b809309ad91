"""Checks every byte of one log.

Theory of operation. The checker reads the log once, a window at a time. Each record proves itself
by its checksums, its place and its number. The checker then interprets the content as a reader
would: states change as the records say, a keyframe must name the values that the records before it
led to, and a checkpoint that a record replaces must exist. Therefore it reports every flipped byte,
and a log that it reports as ok can be read.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError, CheckpointKeyError
from savers import _delta as delta
from savers._filesystem import layout
from savers._filesystem.file_log_writer import FileLogWriter
from savers._filesystem.reports import FileReport, FileState, Unfinished
from savers._log import log, payloads
from savers._log.early_writes import EarlyWrites
from savers._log.replay import Replay

if TYPE_CHECKING:
    from savers._filesystem.store import Store


class ExaminedLog(FileLogWriter):
    """A log that may be damaged, opened to be checked or repaired."""

    def open_unchecked(self) -> None:
        """Open the file without checking any of its content."""
        self.fd = self.io.open(self.path)
        self.end = self.io.fstat(self.fd).st_size

    def _check_owner(self, meta: Any) -> None:
        owner = (self.thread_id, self.namespace)
        if not isinstance(meta, dict) or (meta.get("thread"), meta.get("ns")) != owner:
            raise CheckpointFormatError(
                self.path,
                "it belongs to another thread; put the file back where it came from",
            )
        self.adopt_meta(meta)

    def adopt_meta(self, meta: dict[str, Any]) -> None:
        """Adopt from a META record whether states are opaque, and whether the log is sealed.

        How the store was opened does not matter.
        """
        self.serializer = _OPAQUE if meta.get("opaque") else None
        self.adopt_seal(meta.get("sealed"))


_OPAQUE: Any = object()
"""Stands for the StateSerializer, which is not needed: no state is decoded."""


class LogChecker:
    """Checks the records of one log in order."""

    def __init__(self, checked_log: ExaminedLog) -> None:
        self._log = checked_log
        self.records = 0
        self.good_end = 0
        """Where the good records end."""
        self.checkpoint_ids: set[str] = set()
        self.closed_by: log.Frame | None = None
        """The RELEASE or TOMBSTONE record at the end, if any."""
        self._replay = Replay(checked_log, skips_metadata=True)
        self._early = EarlyWrites()
        """The early writes that wait for their checkpoint. It may never come."""
        self._data_start: int | None = None
        """Where the DATA records after the last checkpoint begin, if there are any."""

    def check(self, size: int) -> None:
        """Read the whole log.

        Raises:
            log.IncompleteLog: its creation did not finish.
            CheckpointCorruptionError: it is damaged.
            CheckpointFormatError: it needs a newer graphkit, or belongs to another thread.
            CheckpointKeyError: it is sealed, and a key is missing or wrong. All checksums of its
                records are right.
        """
        checked = self._log
        start = checked.read_beginning(size)
        checked.end = size
        self.records = 1
        self.good_end = start
        try:
            for frame in checked.scan(start, size, 1):
                self._check_record(frame)
                self.records += 1
                self.good_end = frame.end
        except CheckpointKeyError:
            self._check_checksums(start, size)
            raise
        self._check_last_state()

    def _check_checksums(self, start: int, size: int) -> None:
        """Check the records of a sealed log without opening them."""
        checked = self._log
        self.records = 1
        self.good_end = start
        self.checkpoint_ids.clear()
        for frame in log.scan(checked.file._replace(seal=None), start, size, 1):
            self.records += 1
            self.good_end = frame.end
            if frame.type in {log.RELEASE, log.TOMBSTONE}:
                self.closed_by = frame

    def _check_last_state(self) -> None:
        """Read and check all values of the last state, on which the next record depends."""
        table = self._replay.table
        checkpoint = self._replay.checkpoint
        if table is None or checkpoint is None:
            return
        try:
            delta.check_pieces(table.values.values())
        except delta.Mismatch as error:
            reason = "its values name the same bytes twice"
            raise CheckpointCorruptionError(self._log.path, checkpoint.offset, reason) from error
        for value in table.values.values():
            self._log.read_bodies([value], checkpoint)

    def is_followed_by_zeros(self, size: int) -> bool:
        """Return whether only zeros follow the good records; writers may extend a log with zeros."""
        checked = self._log
        return checked.version == log.MAJOR and checked.file.is_zero(self.good_end, size)

    def _check_record(self, frame: log.Frame) -> None:
        path = self._log.path
        if frame.type == log.CHECKPOINT:
            self._check_checkpoint(frame)
            self._data_start = None
        elif frame.type == log.DATA:
            if self._data_start is None:
                self._data_start = frame.offset
        elif frame.type in {log.RELEASE, log.TOMBSTONE}:
            payloads.decode_ending(path, frame)
            self.closed_by = frame
        elif frame.type == log.WRITE:
            self._check_writes(frame)
        elif frame.type == log.MARK:
            payloads.decode_tags(path, frame)

    def _check_writes(self, frame: log.Frame) -> None:
        owner, values = payloads.decode_writes(self._log.path, frame)
        if not frame.flags & log.EARLY:
            return
        if owner in self.checkpoint_ids:
            reason = "the checkpoint of its early writes precedes it"
            raise CheckpointCorruptionError(self._log.path, frame.offset, reason)
        self._early.add(owner, values, frame.offset)

    def _check_checkpoint(self, frame: log.Frame) -> None:
        path = self._log.path
        before = self._replay.table
        record = self._replay.step(frame)
        if frame.offset - frame.key != self._replay.keyframe_offset:
            raise CheckpointCorruptionError(
                path,
                frame.offset,
                "it names another record as its keyframe",
            )
        if record.table is not None and before is not None:
            self._check_keyframe(before, record)
        if record.target is not None:
            if record.target not in self.checkpoint_ids:
                raise CheckpointCorruptionError(
                    path,
                    frame.offset,
                    "it replaces a checkpoint that does not exist",
                )
            self.checkpoint_ids.remove(record.target)
        expected = self._early.measure(record.checkpoint.id, frame.offset) or (0, 0)
        if record.early != expected:
            reason = "it does not name the early writes before it"
            raise CheckpointCorruptionError(path, frame.offset, reason)
        self._early.drop(record.checkpoint.id)
        self.checkpoint_ids.add(record.checkpoint.id)

    def _check_keyframe(self, before: delta.Table, record: payloads.DecodedRecord) -> None:
        """Check that a keyframe's table has the values that the records before it led to."""
        described = record.table or ()
        for name, entry in zip(described[::2], described[1::2], strict=True):
            if entry is None or _describes(entry, before.values.get(name)):
                continue
            if not self._is_new_data(name):
                reason = "the keyframe contradicts the records before it"
                raise CheckpointCorruptionError(self._log.path, record.checkpoint.offset, reason)

    def _is_new_data(self, name: str) -> bool:
        """Return whether a keyframe names a new value, with bytes in the DATA records before it.

        Raises:
            CheckpointCorruptionError: the bytes do not match the keyframe.
        """
        table = self._replay.table
        checkpoint = self._replay.checkpoint
        if self._data_start is None or table is None or checkpoint is None:
            return False
        value = table.values[name]
        if min(value.pieces[::2], default=0) < self._data_start:
            return False
        self._log.read_bodies([value], checkpoint)
        return True


def _describes(entry: list[int], value: delta.Value | None) -> bool:
    """Return whether an entry of a keyframe's table describes a value."""
    if value is None:
        return False
    kind = delta.kind_in_entry(entry)
    return [kind, *entry[1:4]] == [value.kind, value.count, value.length, value.crc]


def is_log(name: str) -> bool:
    """Return whether this is the name of a live or a released log."""
    return name == layout.LOG or layout.parse_version(name) is not None


def find_thread_id(store: Store, name: str, files: list[str]) -> str | None:
    """Return the id of the thread that a directory belongs to, or None if no file has it.

    The name of the directory shows a plain id; for others, any readable log of the thread has it.
    """
    plain = layout.plain_id(name)
    if plain is not None:
        return plain
    for path in files:
        thread_id = read_meta(store, path).get("thread")
        if isinstance(thread_id, str) and layout.locate_thread(thread_id).name == name:
            return thread_id
    return None


def find_namespace(store: Store, directory: str) -> str | None:
    """Return the namespace that a directory belongs to; "" for the directory of a thread.

    Finds it as `find_thread_id` does.
    """
    name = os.path.basename(directory)
    if not layout.is_namespace(name):
        return ""
    plain = layout.plain_id(name)
    if plain is not None:
        return plain
    for file_name in filter(is_log, store.io.listdir(directory)):
        namespace = read_meta(store, layout.join(directory, file_name)).get("ns")
        if isinstance(namespace, str) and layout.namespace_name(namespace) == name:
            return namespace
    return None


def read_meta(store: Store, path: str) -> dict[str, Any]:
    """Return a META record of a log, any whose checksum is right; empty if none can be read."""
    try:
        fd = store.io.open(path)
    except OSError:
        return {}
    try:
        file = log.LogFile(io=store.io, fd=fd, path=path, fid=None)
        frame = next(file.good_frames(log.HEADER_SIZE, 1 << 20), None)
        if frame is None or frame.type != log.META:
            return {}
        meta = payloads.unpack_payload(path, frame)
    except (OSError, CheckpointCorruptionError):
        return {}
    finally:
        store.io.close(fd)
    return meta if isinstance(meta, dict) else {}


def new_examined_log(
    store: Store,
    path: str,
    thread_id: str | None,
    namespace: str | None,
) -> ExaminedLog:
    """Return a log to examine, not yet opened."""
    arguments = store._arguments(path, thread_id or "", namespace or "")  # noqa: SLF001 - of the same package
    return ExaminedLog(*arguments)


def check_file(
    store: Store,
    path: str,
    thread_id: str | None,
) -> tuple[FileReport | None, Unfinished]:
    """Check one log.

    Returns:
        The report, or None if the file is gone; and the operation that the end of the log shows as
        begun, if it is live.
    """
    namespace = find_namespace(store, os.path.dirname(path))
    examined = new_examined_log(store, path, thread_id, namespace)
    checker = LogChecker(examined)
    is_released = layout.parse_version(os.path.basename(path)) is not None
    state: FileState = "ok"
    size = 0
    offset = 0
    reason = ""
    try:
        examined.open_unchecked()
        size = examined.end
        checker.check(size)
        is_whole = checker.good_end == size or checker.is_followed_by_zeros(size)
        if is_released and (not is_whole or checker.closed_by is None):
            state = "damaged"
            offset = checker.good_end
            reason = "the end of the released history is missing"
        elif not is_whole:
            state = "torn"
            offset = checker.good_end
            reason = "the last write did not finish"
    except FileNotFoundError:
        return None, ""
    except log.IncompleteLog:
        state = "damaged" if is_released else "torn"
        reason = "the creation of the log did not finish"
    except CheckpointCorruptionError as error:
        state = "damaged"
        offset = error.offset
        reason = error.reason
    except CheckpointKeyError as error:
        state = "sealed"
        offset = checker.good_end
        reason = f"key {error.key_id!r}: {error.reason}"
    except CheckpointFormatError as error:
        state = "newer" if _is_newer(examined, checker) else "foreign"
        offset = checker.good_end
        reason = error.reason
    except OSError as error:
        state = "damaged" if _is_file(store, path) else "foreign"
        reason = f"it cannot be read: {error.strerror or error}"
    finally:
        examined.close()
    report = FileReport(
        path=os.path.relpath(path, store.root),
        state=state,
        offset=offset,
        reason=reason,
        size=size,
        records=checker.records,
        checkpoints=len(checker.checkpoint_ids),
    )
    return report, _find_unfinished(report, checker)


def _is_file(store: Store, path: str) -> bool:
    """Return whether a regular file, or nothing, is at a path."""
    status = store.io.stat(path)
    return status is None or stat.S_ISREG(status.st_mode)


def _find_unfinished(report: FileReport, checker: LogChecker) -> Unfinished:
    """Return the operation that the last record of a live log shows as begun."""
    is_live = os.path.basename(report.path) == layout.LOG
    if not is_live or report.state != "ok" or checker.closed_by is None:
        return ""
    return "release" if checker.closed_by.type == log.RELEASE else "delete"


def _is_newer(examined: ExaminedLog, checker: LogChecker) -> bool:
    """Return whether a log was refused for its version.

    That is the case for a record of unknown type, and for a header that only has another version.
    """
    if checker.records:
        return True
    data = examined.io.read_at(examined.fd, 0, log.HEADER_SIZE)
    return data.startswith(log.MAGIC) and examined.header is None
