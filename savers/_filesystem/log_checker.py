"""Looking at every byte of one log, and telling what is wrong with it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, Final

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError
from savers import _delta as delta
from savers._filesystem import layout, log, payloads
from savers._filesystem.log_writer import LogWriter
from savers._filesystem.replay import Replay
from savers._filesystem.reports import FileReport, FileState

if TYPE_CHECKING:
    from savers._filesystem.store import Store

_PAIR: Final = 2


class Examined(LogWriter):
    """A log that may be damaged, opened to be looked at."""

    def examine(self) -> None:
        """Open the file without judging it."""
        self.fd = self.io.open(self.path)
        self.end = self.io.fstat(self.fd).st_size

    def _check_owner(self, meta: Any) -> None:
        if not isinstance(meta, dict) or meta.get("thread") != self.thread_id or meta.get("ns") != self.namespace:
            raise CheckpointFormatError(self.path, "it belongs to another thread; put the file back where it came from")
        self.take_meta(meta)

    def take_meta(self, meta: dict[str, Any]) -> None:
        """Take over from a description whether states are opaque."""
        self.serializer = _OPAQUE if meta.get("opaque") else None


_OPAQUE: Any = object()
"""Stands for a StateSerializer that is not needed, for states are not decoded."""


class _Checker:
    """Follows the records of one log."""

    def __init__(self, history: Examined) -> None:
        self.history = history
        self.records = 0
        self.good = 0
        """Where the good records end."""
        self.ids: set[str] = set()
        self.closed_by: log.Frame | None = None
        self._walk = Replay(history, skips_metadata=True)
        self._data_from: int | None = None
        """Where the DATA records begin that stand between the last checkpoint and the next, if there are any."""

    def check(self, size: int) -> None:
        """Read all of it.

        Raises:
            log.IncompleteLog: its creation never finished.
            CheckpointCorruptionError: it is damaged.
            CheckpointFormatError: it is newer, or another thread's.
        """
        history = self.history
        start = history.read_beginning(size)
        history.end = size
        self.records, self.good = 1, start
        for frame in history.scan(start, size, 1):
            self._take(frame)
            self.records, self.good = self.records + 1, frame.end
        table, entry = self._walk.table, self._walk.checkpoint
        if table is not None and entry is not None:
            try:
                delta.check_pieces(table.values.values())
            except delta.Mismatch as error:
                reason = "its values name the same bytes twice"
                raise CheckpointCorruptionError(history.path, entry.offset, reason) from error
            for value in table.values.values():
                history.read_bodies([value], entry)

    def is_followed_by_zeros(self, size: int) -> bool:
        """Whether only zeros stand behind the good records, which a writer has put there ahead."""
        history = self.history
        return history.version == log.MAJOR and history.file.is_zero(self.good, size)

    def _take(self, frame: log.Frame) -> None:
        path = self.history.path
        if frame.type == log.CHECKPOINT:
            self._checkpoint(frame)
            self._data_from = None
        elif frame.type == log.DATA:
            self._data_from = frame.offset if self._data_from is None else self._data_from
        elif frame.type in {log.RELEASE, log.TOMBSTONE}:
            payloads.decode_ending(path, frame)
            self.closed_by = frame
        elif frame.type == log.WRITE:
            payloads.decode_writes(path, frame)
        elif frame.type == log.MARK:
            payloads.decode_tags(path, frame)

    def _checkpoint(self, frame: log.Frame) -> None:
        before = self._walk.table
        decoded = self._walk.step(frame)
        if frame.offset - frame.key != self._walk.keyframe_offset:
            raise CheckpointCorruptionError(self.history.path, frame.offset, "it names another record as its keyframe")
        if decoded.table is not None and before is not None:
            self._compare(before, decoded)
        if decoded.target is not None:
            if decoded.target not in self.ids:
                raise CheckpointCorruptionError(
                    self.history.path, frame.offset, "it replaces a checkpoint that is not there"
                )
            self.ids.remove(decoded.target)
        self.ids.add(decoded.checkpoint.id)

    def _compare(self, before: delta.Table, decoded: payloads.DecodedRecord) -> None:
        """See that what a keyframe names is what the records before it led to."""
        listed = decoded.table or ()
        for name, entry in zip(listed[::2], listed[1::2], strict=True):
            if entry is not None:
                old = before.values.get(name)
                same = old is not None and [old.kind, old.count, old.length, old.crc] == [
                    delta.kind_in_entry(entry), *entry[1:4],
                ]  # fmt: skip
                if not same and not self._is_new_data(name):
                    raise CheckpointCorruptionError(
                        self.history.path, decoded.checkpoint.offset, "the keyframe contradicts the records before it"
                    )

    def _is_new_data(self, name: str) -> bool:
        """Whether a keyframe names a new value, whose bytes stand in the DATA records before it.

        Raises:
            CheckpointCorruptionError: they are not what it says.
        """
        table, entry = self._walk.table, self._walk.checkpoint
        if self._data_from is None or table is None or entry is None:
            return False
        value = table.values[name]
        if min(value.pieces[::_PAIR], default=0) < self._data_from:
            return False
        self.history.read_bodies([value], entry)
        return True


def is_log(name: str) -> bool:
    """Whether this is the name of a live or a released log."""
    return name == layout.LOG or layout.parse_version(name) is not None


def owner_of(store: Store, name: str, files: list[str]) -> str | None:
    """The thread that a directory belongs to: its name tells if the id is plain, else any log that can be read."""
    found = layout.plain_id(name)
    if found is not None:
        return found
    for path in files:
        meta = description(store, path)
        thread_id = meta.get("thread")
        if isinstance(thread_id, str) and layout.locate_thread(thread_id).name == name:
            return thread_id
    return None


def namespace_of(store: Store, directory: str) -> str | None:
    """The namespace that a directory belongs to, as `owner_of`; "" for a thread's own."""
    name = os.path.basename(directory)
    if not layout.is_namespace(name):
        return ""
    found = layout.plain_id(name)
    if found is not None:
        return found
    for one in filter(is_log, store.io.listdir(directory)):
        namespace = description(store, layout.join(directory, one)).get("ns")
        if isinstance(namespace, str) and layout.namespace_name(namespace) == name:
            return namespace
    return None


def description(store: Store, path: str) -> dict[str, Any]:
    """The META record of a log, as far as it can be read; any one whose checksum is right will do."""
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


def examined(store: Store, path: str, owner: str | None, namespace: str | None) -> Examined:
    """A log to be looked at, not yet opened."""
    arguments = store._arguments(path, owner or "", namespace or "")  # noqa: SLF001 - of the same package
    return Examined(*arguments)


def check_file(store: Store, path: str, owner: str | None) -> tuple[FileReport | None, str]:
    """Look at one log, and whether it ends as one that is to be released or deleted; None if it is gone."""
    namespace = namespace_of(store, os.path.dirname(path))
    history = examined(store, path, owner, namespace)
    checker = _Checker(history)
    size, shown = 0, os.path.relpath(path, store.root)
    is_released = layout.parse_version(os.path.basename(path)) is not None
    state: FileState = "ok"
    offset, reason = 0, ""
    try:
        history.examine()
        size = history.end
        checker.check(size)
        is_whole = checker.good == size or checker.is_followed_by_zeros(size)
        if is_released and (not is_whole or checker.closed_by is None):
            state, offset, reason = "damaged", checker.good, "the end of a released history is missing"
        elif not is_whole:
            state, offset, reason = "torn", checker.good, "the last write never finished"
    except FileNotFoundError:
        return None, ""
    except log.IncompleteLog:
        state, reason = ("damaged" if is_released else "torn"), "its creation never finished"
    except CheckpointCorruptionError as error:
        state, offset, reason = "damaged", error.offset, error.reason
    except CheckpointFormatError as error:
        state, offset, reason = ("newer" if _is_newer(history, checker) else "foreign"), checker.good, error.reason
    except OSError as error:
        state = "damaged" if _is_file(store, path) else "foreign"
        reason = f"it cannot be read: {error.strerror or error}"
    finally:
        history.close()
    report = FileReport(
        path=shown,
        state=state,
        offset=offset,
        reason=reason,
        size=size,
        records=checker.records,
        checkpoints=len(checker.ids),
    )
    return report, _ending(path, state, checker)


def _is_file(store: Store, path: str) -> bool:
    found = store.io.stat(path)
    return found is None or stat.S_ISREG(found.st_mode)


def _ending(path: str, state: FileState, checker: _Checker) -> str:
    if os.path.basename(path) != layout.LOG or state != "ok" or checker.closed_by is None:
        return ""
    return "release" if checker.closed_by.type == log.RELEASE else "delete"


def _is_newer(history: Examined, checker: _Checker) -> bool:
    """Whether a refusal is about the version: a record of an unknown kind, or a header that is one but for it."""
    if checker.records:
        return True
    data = history.io.read_at(history.fd, 0, log.HEADER_SIZE)
    return data.startswith(log.MAGIC) and history.header is None
