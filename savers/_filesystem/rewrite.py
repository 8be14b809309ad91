"""Writes new logs that take the place of old ones, or of none.

`new_generation`, `renew` and `copy_thread` copy whole records. `keep` writes the records of some
checkpoints again: prune, compact, seal, repair.

A new log is written to a temporary file, brought to the disk, and renamed. So if the process dies at
any moment, either the old or the new log is in its place. The caller holds the write lock of the
thread.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from graphkit.saver_kit import is_incomplete
from savers._filesystem import layout
from savers._filesystem.catalog import list_namespaces
from savers._filesystem.io import boot_number, write_whole
from savers._filesystem.store import remove_temporary_logs
from savers._log.frame import HEADER_SIZE, META, META_RECORDS, REPLACED, SEALED, Header, pack_frame
from savers._log.frame_log import new_header, pack_meta_frames
from savers._log.records import Records
from savers._log.rewriter import write_all
from savers._log.sealing import pack_place

if TYPE_CHECKING:
    from savers._filesystem.io import FileIO
    from savers._filesystem.layout import ThreadDirectory
    from savers._filesystem.log_bytes import FileLogBytes
    from savers._filesystem.store import FileLog, Store
    from savers._log.frame_log import AnyFrameLog, FrameLog, Identity
    from savers._log.sealing import LogSeal
    from savers._log.stored_checkpoint import StoredCheckpoint

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

    def __init__(self, io: FileIO, path: str, identity: Identity, header: Header, seal: LogSeal | None) -> None:
        """Begin the file.

        Args:
            io: the file system.
            path: the log whose place the file will take.
            identity: whose log it is.
            header: the header of the file.
            seal: what seals the source; None if it is plain.
        """
        self._io = io
        self._final_path = path
        self._path = _make_room_for(io, path, header)
        self._fid = header.fid
        self._seal: LogSeal | None = None
        """What seals the new records, if the log is sealed: not with the salt of the old ones."""
        self._fd = io.open(self._path, write=True, create=True)
        self._seq = META_RECORDS
        self._written = 0
        """Up to here the records are in the file."""
        meta = identity.make_meta()
        if seal is not None:
            self._seal = identity.make_seal(path, seal.key_id)
            meta["sealed"] = seal.key_id
        self._pending = bytearray(header.pack())
        """What follows them."""
        self._pending += pack_meta_frames(header.fid, meta, boot_number())

    @property
    def _end(self) -> int:
        """Where the next record goes."""
        return self._written + len(self._pending)

    def append(self, type: int, payload: bytes) -> None:
        """Append a record of a plain log."""
        self._add(type, payload, boot=boot_number())

    def _add(self, type: int, payload: bytes, flags: int = 0, back: int = 0, key: int = 0, boot: int = 0) -> None:
        # All bytes before it are on the disk when the file is used, so that it vouches for them.
        self._pending += pack_frame(self._end, self._fid, self._seq, type, payload, flags, back, key, boot=boot)
        self._seq += 1
        if len(self._pending) > _BATCH_SIZE:
            self._write_pending()

    def _write_pending(self) -> None:
        write_whole(self._io, self._fd, self._written, bytes(self._pending))
        self._written = self._end
        self._pending.clear()

    def copy_records(self, source: AnyFrameLog, end: int) -> None:
        """Copy all records of a log up to an offset, except META.

        Distances between records stay true, because all records move by the same distance.
        """
        # As they are in the file: a record of a sealed log is opened only to be sealed again.
        records = Records(source.bytes, source.fid)
        for frame in records.scan(HEADER_SIZE, end, 0):
            if frame.type == META:
                continue
            payload = frame.payload
            if frame.flags & SEALED:
                # A seal names the place of its record, so a reader refuses a record that was only moved.
                place = pack_place(frame.flags, frame.back, frame.key, self._seq, self._fid, frame.type, self._end)
                assert self._seal is not None
                # As long as it was.
                payload = self._seal.seal_as(payload, source.records.open(frame).payload, place)
            self._add(frame.type, payload, frame.flags, frame.back, frame.key)

    @contextmanager
    def writing(self) -> Iterator[Self]:
        """Enter with the file, which takes its place when the block ends; it is removed if anything fails."""
        is_installed = False
        try:
            yield self
            self._write_pending()
            _install(self._io, self._fd, self._path, self._final_path)
            is_installed = True
        finally:
            with suppress(OSError):
                self._io.close(self._fd)
                if not is_installed:
                    self._io.unlink(self._path)


def _make_room_for(io: FileIO, path: str, header: Header) -> str:
    """Remove what earlier rewrites of a log left; return the temporary path of its next generation."""
    directory = os.path.dirname(path)
    remove_temporary_logs(io, directory)
    return layout.join(directory, f"{layout.TEMPORARY}{header.fid:08x}")


def _install(io: FileIO, fd: int, temporary: str, path: str) -> None:
    """Put a new log in its place.

    The bytes are on the disk before the name leads to them. Otherwise a power loss could leave the
    name with an empty file, and the old log would be gone.
    """
    io.fsync(fd)
    io.rename(temporary, path)
    io.fsync_dir(os.path.dirname(path))


def _mark_as_replaced(frames: FrameLog[FileLogBytes, Any]) -> None:
    """Append REPLACED to the old file of a log, which has just lost its name.

    Another process that has the file open may look only when the new log is gone, too, because a
    process has deleted or released it. The record says that the file was replaced, and not lost. If
    this process dies before it appends the record, the next put of the other one fails once.
    """
    medium = frames.bytes
    # Repair opens the log for reading only: a damaged log may have no certain end.
    if medium.file is not None and medium.write_lock is not None:
        with suppress(OSError):
            frames.append(REPLACED, b"")


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
    # Another file id, which each record repeats: no offset in the old log is taken for one in the new.
    next_header = new_header(header.digest, header.generation + 1)
    with NewLog(medium.io, frames.path, frames.identity, next_header, frames.seal).writing() as new_log:
        yield new_log
    _mark_as_replaced(frames)
    medium.sync_names(None)
    log.close()
    medium.durability.note_replaced()


def renew(log: SyncedLog) -> None:
    """Rewrite a log after a failed sync, without unacknowledged records; remove it if it is empty.

    The caller holds the mutex of the log, and excludes other writers. Afterwards the log is closed.
    """
    # The pages that the disk refused are clean in the eyes of the system, which writes them no more. What
    # it reads of them is what was appended, so they can be copied to blocks that have not failed.
    frames = log.frames
    medium = frames.bytes
    if medium.is_open:
        with new_generation(log) as new_log:
            new_log.copy_records(frames, medium.durability.find_acknowledged_end(frames.end))
        return
    # Nothing in it was acknowledged, and no later sync of its file can be trusted: the next put begins
    # another file.
    with suppress(FileNotFoundError):
        medium.io.unlink(medium.path)
    medium.durability.note_replaced()


def copy_thread(store: Store, source: ThreadDirectory, target: ThreadDirectory, namespaces: Collection[str]) -> None:
    """Copy the live logs of a thread to a thread that has none, or only a log that marks it as incomplete.

    The first of the namespaces that the source had is last, and its log takes the place of that one.
    """
    for namespace in sorted({*namespaces, *list_namespaces(store, source)}, reverse=True):
        directory = target.in_namespace(namespace)
        with closing(store.new_log(source.thread_id, namespace)) as log:
            if not log.refresh() or log.history.find_latest() is None:
                _remove_mark(store, directory)
                continue
            frames = log.frames
            store.make_directories(directory)
            header = new_header(directory.digest, 1)
            with closing(store.new_log(directory.thread_id, directory.namespace)) as replaced:
                replaced.refresh()
                new_log = NewLog(store.io, directory.live_log, replaced.frames.identity, header, frames.seal)
                with new_log.writing():
                    new_log.copy_records(frames, frames.end)
                _mark_as_replaced(replaced.frames)
            store.sync_directories(directory)


def _remove_mark(store: Store, directory: ThreadDirectory) -> None:
    """Remove the log of a mark, if there is one: the checkpoints that would take its place were removed meanwhile."""
    with closing(store.new_log(directory.thread_id, directory.namespace)) as mark:
        latest = mark.history.find_latest() if mark.refresh() else None
        if latest is not None and is_incomplete(latest.metadata):
            keep(store, mark, [], early=[])


def keep(
    store: Store,
    log: FileLog,
    checkpoints: Sequence[StoredCheckpoint],
    *,
    early: Sequence[StoredCheckpoint],
    lost_offset: int | None = None,
    ending: tuple[int, int] | None = None,
) -> None:
    """Rewrite a log with some of its checkpoints; remove it if nothing is left. The caller holds the mutex of the log.

    Args:
        store: the store.
        log: the log, open; closed afterwards.
        checkpoints: the checkpoints to keep, in the order of the history.
        early: the early writes to keep.
        lost_offset: an offset inside the damaged region, if there is one; see TableReplay.
        ending: the type and the version of the record that ends the new log.

    Raises:
        CheckpointCorruptionError: a checkpoint cannot be read. The old log is unchanged.
        OSError: the file system refused. The same.
    """
    if not checkpoints and not early and ending is None:
        # A log stands for a history, without being read, where the threads of a store are listed.
        store.io.unlink(log.path)
        store.io.fsync_dir(os.path.dirname(log.path))
        _mark_as_replaced(log.frames)
        log.close()
        return
    header = log.frames.header
    assert header is not None
    next_header = new_header(header.digest, header.generation + 1)
    # First: a store with a sealed log says so, or a saver without a cipher could begin a plain log in it.
    store.marker.update()
    path = _make_room_for(store.io, log.path, next_header)
    new = store.new_copy(log, path)
    try:
        new.frames.begin(next_header, checkpoints[0].metadata if checkpoints else {})
        for _ in write_all(log, new, checkpoints, early, lost_offset=lost_offset):
            pass
        if ending is not None:
            new.end(*ending)
        _install(store.io, new.frames.bytes.fd, path, log.path)
    except BaseException:
        with suppress(OSError):
            store.io.unlink(path)
        raise
    finally:
        new.close()
    _mark_as_replaced(log.frames)
    log.close()


def keep_all(store: Store, log: FileLog, ending: tuple[int, int] | None = None) -> None:
    """Rewrite a log with all that it has, sealed with the current key if the saver has a cipher.

    See `keep` for the arguments and the errors.
    """
    checkpoints = log.history.load_index().checkpoints
    keep(store, log, checkpoints, early=list(log.history.scan.load_early()), ending=ending)
