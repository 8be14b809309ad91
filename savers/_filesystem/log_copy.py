"""Copies whole logs, record by record: to a new generation, or to another thread.

If the process dies at any moment, either the old or the new log is in its place. The caller holds
the write lock of the thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from savers._filesystem import layout
from savers._filesystem.catalog import list_namespaces
from savers._filesystem.io import boot_number
from savers._filesystem.leftovers import remove_temporary_logs
from savers._log.frame import HEADER_SIZE, META, META_RECORDS, SEALED, Frame, Header, pack_frame, repack_frame
from savers._log.frame_log import new_header, pack_meta_frames
from savers._log.records import Records
from savers._log.sealing import pack_place

if TYPE_CHECKING:
    from savers._filesystem.io import FileIO
    from savers._filesystem.log_bytes import FileLogBytes
    from savers._filesystem.store import FileLog, Store
    from savers._log.frame_log import AnyFrameLog, FrameLog, Identity

_BATCH_SIZE: Final = 1 << 20
"""Records are written in batches of about this many bytes."""


class SyncedLog(Protocol):
    """A log in a file that is synced, and rewritten after a failed sync: of a history, or of LangGraph's entries."""

    @property
    def mutex(self) -> AbstractContextManager[object]:
        """Held by the user of the log."""

    @property
    def frames(self) -> FrameLog[FileLogBytes, Any]:
        """The records."""

    def refresh_to_write(self) -> bool:
        """Take in what other writers have appended, and cut off what a dead one left; return whether there is a log."""

    def close(self) -> None:
        """Forget what was read."""


class NewLog:
    """A temporary file that takes the place of a log once it is complete."""

    def __init__(self, io: FileIO, path: str, identity: Identity, header: Header, key_id: str | None) -> None:
        """Begin the file.

        Args:
            io: the file system.
            path: the log whose place the file will take.
            identity: whose log it is.
            header: the header of the file.
            key_id: the id of the key with which the source was begun; None if it is plain.
        """
        self._io = io
        directory = os.path.dirname(path)
        self._directory = directory
        self._fid = header.fid
        self._seal = None if key_id is None else identity.make_seal(path, key_id)
        """What seals the new records, if the log is sealed: not with the salt of the old ones."""
        remove_temporary_logs(io, directory)
        self._path = layout.join(directory, f"{layout.TEMPORARY}{header.fid:08x}")
        self._fd = io.open(self._path, write=True, create=True)
        self._end = 0
        """Where the next record goes."""
        self._seq = META_RECORDS
        self._written = 0
        self._pending: list[bytes] = []
        meta = identity.make_meta()
        if key_id is not None:
            meta["sealed"] = key_id
        self._add(header.pack() + pack_meta_frames(header.fid, meta, boot_number()))

    def _add(self, data: bytes) -> None:
        self._pending.append(data)
        self._end += len(data)
        if self._end - self._written > _BATCH_SIZE:
            self._write_pending()

    def _write_pending(self) -> None:
        data = b"".join(self._pending)
        self._pending.clear()
        done = 0
        while done < len(data):
            done += self._io.write_at(self._fd, self._written + done, data[done:])
        self._written = self._end

    def append(self, type: int, payload: bytes) -> None:
        """Append a record of a plain log."""
        self._add(pack_frame(self._end, self._fid, self._seq, type, payload, boot=boot_number()))
        self._seq += 1

    def copy_records(self, source: AnyFrameLog, end: int) -> None:
        """Copy all records of a log up to an offset, except META.

        Distances between records stay true, because all records move by the same distance.
        """
        for frame in Records(source.bytes, source.fid).scan(HEADER_SIZE, end, 0):
            if frame.type == META:
                continue
            moved = frame._replace(seq=self._seq)
            if frame.flags & SEALED:
                moved = moved._replace(payload=self._reseal(source, frame))
            self._add(repack_frame(moved, self._end, self._fid))
            self._seq += 1

    def _reseal(self, source: AnyFrameLog, frame: Frame) -> bytes:
        """Return the payload of a sealed record for its new place, as long as it was."""
        opened = source.records.open(frame)
        place = pack_place(
            frame.flags,
            frame.back,
            frame.key,
            self._seq,
            self._fid,
            frame.type,
            self._end,
        )
        assert self._seal is not None
        return self._seal.seal_as(frame.payload, opened.payload, place)

    def install(self) -> None:
        """Bring the file to the disk and rename it to its final name."""
        self._write_pending()
        self._io.fsync(self._fd)
        self._close()
        self._io.rename(self._path, layout.join(self._directory, layout.LOG))
        self._io.fsync_dir(self._directory)

    def _close(self) -> None:
        # First out of reach: the system gives the number of a closed descriptor to other files.
        fd, self._fd = self._fd, -1
        self._io.close(fd)

    def discard(self) -> None:
        """Remove the file, if it was not installed and as far as possible."""
        with suppress(OSError):
            if self._fd >= 0:
                self._close()
                self._io.unlink(self._path)


@contextmanager
def new_generation(log: SyncedLog) -> Iterator[NewLog]:
    """Enter with the next generation of a log, which takes its place when the block ends.

    The caller holds the mutex of the log, and excludes other writers. Afterwards the log is closed,
    and it is no longer suspect: the new one is in disk blocks that have not failed.
    """
    frames = log.frames
    medium = frames.bytes
    header = frames.header
    assert header is not None
    next_header = new_header(header.digest, header.generation + 1)
    new_log = NewLog(medium.io, frames.path, frames.identity, next_header, _get_key_id(frames))
    try:
        yield new_log
        new_log.install()
        medium.sync_names(None)
    finally:
        new_log.discard()
    log.close()
    medium.is_suspect = False
    medium.unacknowledged = None


def renew(log: SyncedLog) -> None:
    """Rewrite a log after a failed sync, without unacknowledged records; remove it if it is empty.

    The caller holds the mutex of the log, and excludes other writers. Afterwards the log is closed.
    """
    frames = log.frames
    medium = frames.bytes
    if medium.is_open:
        with new_generation(log) as new_log:
            new_log.copy_records(frames, medium.find_acknowledged_end(frames.end))
        return
    # No later sync of its file can be trusted.
    with suppress(FileNotFoundError):
        medium.io.unlink(medium.path)
    medium.is_suspect = False


def _get_key_id(frames: AnyFrameLog) -> str | None:
    return None if frames.seal is None else frames.seal.key_id


def copy_thread(store: Store, source: str, target: str) -> None:
    """Copy the live logs of a thread to a thread that has none, or only a log that marks it as incomplete.

    The root's log is last, and takes the place of that one.
    """
    for namespace in sorted(list_namespaces(store, source), reverse=True):
        log = store.new_log(source, namespace)
        try:
            if log.refresh() and log.history.find_latest() is not None:
                _copy_log(store, log, target)
        finally:
            log.close()


def _copy_log(store: Store, source: FileLog, target: str) -> None:
    namespace = source.namespace
    store.make_directories(target, namespace)
    copied = store.new_log(target, namespace)
    identity = copied.frames.identity
    header = new_header(identity.digest, 1)
    new_log = NewLog(store.io, copied.path, identity, header, _get_key_id(source.frames))
    try:
        new_log.copy_records(source.frames, source.frames.end)
        new_log.install()
        store.sync_directories(target, namespace)
    finally:
        new_log.discard()
