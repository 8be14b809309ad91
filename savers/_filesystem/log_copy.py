"""Copies whole logs, record by record: to a new generation, or to another thread.

If the process dies at any moment, either the old or the new log is in its place. The caller holds
the write lock of the thread.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from savers._filesystem import layout
from savers._filesystem.catalog import list_namespaces
from savers._filesystem.file_log_writer import FileLogWriter
from savers._filesystem.leftovers import remove_temporary_logs
from savers._log import log
from savers._log.beginning import META_RECORDS, new_header
from savers._log.sealing import pack_place

if TYPE_CHECKING:
    from savers._filesystem.store import Store

_BATCH_SIZE: Final = 1 << 20
"""Records are written in batches of about this many bytes."""


class _NewLog:
    """A temporary file that takes the place of a log once it is complete."""

    def __init__(
        self,
        store: Store,
        writer: FileLogWriter,
        header: log.Header,
    ) -> None:
        """Begin the file.

        Args:
            store: the store.
            writer: the log whose place the file will take.
            header: the header of the file.
        """
        self._store = store
        directory = os.path.dirname(writer.path)
        self._directory = directory
        self._fid = header.fid
        self._seal = writer.new_seal()
        """What seals the new records, if the log is sealed: not with the salt of the old ones."""
        store.update_marker()
        remove_temporary_logs(store.io, directory)
        self._path = layout.join(directory, f"{layout.TEMPORARY}{header.fid:08x}")
        self._fd = store.io.open(self._path, write=True, create=True)
        self._end = 0
        """Where the next record goes."""
        self._seq = META_RECORDS
        self._written = 0
        self._pending: list[bytes] = []
        self._add(header.pack() + writer.pack_meta_frames(header.fid))

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
            done += self._store.io.write_at(self._fd, self._written + done, data[done:])
        self._written = self._end

    def copy_records(self, source: FileLogWriter, end: int) -> None:
        """Copy all records of a log up to an offset, except META.

        Distances between records stay true, because all records move by the same distance.
        """
        start = source.find_first_record()
        for frame in log.scan(source.file._replace(seal=None), start, end, 1):
            if frame.type == log.META:
                continue
            moved = frame._replace(seq=self._seq)
            if frame.flags & log.SEALED:
                moved = moved._replace(payload=self._reseal(source, frame))
            self._add(log.repack_frame(moved, self._end, self._fid))
            self._seq += 1

    def _reseal(self, source: FileLogWriter, frame: log.Frame) -> bytes:
        """Return the payload of a sealed record for its new place, as long as it was."""
        opened = source.open_frame(frame)
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
        self._store.io.fsync(self._fd)
        self._store.io.close(self._fd)
        self._fd = -1
        self._store.io.rename(self._path, layout.join(self._directory, layout.LOG))
        self._store.io.fsync_dir(self._directory)

    def discard(self) -> None:
        """Remove the file, if it was not installed and as far as possible."""
        with suppress(OSError):
            if self._fd >= 0:
                self._store.io.close(self._fd)
                self._store.io.unlink(self._path)


def renew(store: Store, writer: FileLogWriter, end: int) -> None:
    """Rewrite a log up to `end` as a new generation, in disk blocks that have not failed.

    The caller holds the writer's mutex. Afterwards the writer is closed and no longer suspect.
    """
    assert writer.header is not None
    header = new_header(writer.header.digest, writer.header.generation + 1)
    new_log = _NewLog(store, writer, header)
    try:
        new_log.copy_records(writer, end)
        new_log.install()
        store.sync_directories(writer.thread_id, writer.namespace)
    finally:
        new_log.discard()
    writer.close()
    writer.suspect = False
    writer.unacknowledged = None


def copy_thread(store: Store, source: str, target: str) -> None:
    """Copy the live logs of a thread to a thread that has none, or only a log that marks it as incomplete.

    The root's log is last, and takes the place of that one.
    """
    for namespace in sorted(list_namespaces(store, source), reverse=True):
        reader = store.new_writer(source, namespace)
        try:
            if reader.refresh() and reader.find_latest() is not None:
                _copy_log(store, reader, target)
        finally:
            reader.close()


def _copy_log(store: Store, source: FileLogWriter, target: str) -> None:
    writer = store.new_writer(target, source.namespace)
    writer.make_directories()
    header = new_header(layout.locate_thread(target).digest, 1)
    if source.seal is not None:
        writer.adopt_seal(source.seal.key_id)
    new_log = _NewLog(store, writer, header)
    try:
        new_log.copy_records(source, source.end)
        new_log.install()
        store.sync_directories(target, source.namespace)
    finally:
        new_log.discard()
