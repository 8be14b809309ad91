"""Writing a log anew: a new generation after a failed sync, a copy, and a log without what is not wanted any more.

Each leaves, at whatever instant it is interrupted, what was there before or what is wanted. The caller holds the
thread's short lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from graphkit.errors import CheckpointCorruptionError
from savers import _delta as delta
from savers._filesystem import layout, log, payloads
from savers._filesystem.catalog import holds_something, namespaces
from savers._filesystem.log_writer import META_RECORDS, LogWriter, new_header
from savers._filesystem.replay import Replay
from savers._filesystem.stored_checkpoint import StoredCheckpoint

if TYPE_CHECKING:
    from savers._filesystem.store import Store

_BATCH: Final = 1 << 20


class _NewLog:
    """A file beside a log that takes its place once it is whole."""

    def __init__(self, store: Store, directory: str, header: log.Header, beginning: bytes) -> None:
        self._store, self._directory, self.header = store, directory, header
        store.update_marker()
        store.remove_leftovers(directory)
        self.path = layout.join(directory, f"{layout.TEMPORARY}{header.fid:08x}")
        self._fd = store.io.open(self.path, write=True, create=True, append=True)
        self.end = 0
        self._seq = META_RECORDS
        self._drained = 0
        self._pending: list[bytes] = []
        self._add(beginning)

    def _add(self, data: bytes) -> None:
        self._pending.append(data)
        self.end += len(data)
        if self.end - self._drained > _BATCH:
            self._drain()

    def _drain(self) -> None:
        data, done = b"".join(self._pending), 0
        self._pending.clear()
        self._drained = self.end
        while done < len(data):
            done += self._store.io.append(self._fd, data[done:])

    def copy(self, frame: log.Frame) -> None:
        """Take over a record as it is: distances stay true, because records move as a block."""
        self._add(log.repack_frame(frame._replace(seq=self._seq), self.end, self.header.fid))
        self._seq += 1

    def install(self) -> None:
        """Bring it to the disk and put it in its place."""
        self._drain()
        self._store.io.fsync(self._fd)
        self._store.io.close(self._fd)
        self._fd = -1
        self._store.io.rename(self.path, layout.join(self._directory, layout.LOG))
        self._store.io.fsync_dir(self._directory)

    def discard(self) -> None:
        """Remove it, as far as that is possible."""
        with suppress(OSError):
            if self._fd >= 0:
                self._store.io.close(self._fd)
                self._store.io.unlink(self.path)


def _copy_records(history: LogWriter, target: _NewLog, end: int) -> None:
    start = history.find_first_record()
    for frame in history.scan(start, end, 1):
        if frame.type != log.META:
            target.copy(frame)


def renew(store: Store, history: LogWriter, end: int) -> None:
    """Write a log anew up to `end`, in blocks of the disk that have not failed; the caller holds its mutex."""
    assert history.header is not None
    header = new_header(history.header.digest, history.header.generation + 1)
    directory = os.path.dirname(history.path)
    new = _NewLog(store, directory, header, header.pack() + history.meta_frames(header.fid))
    try:
        _copy_records(history, new, end)
        new.install()
        store.sync_directories(history.thread_id, history.namespace)
    finally:
        new.discard()
    history.close()
    history.suspect = False
    history.refused = None


def is_half_copy(store: Store, source: str, target: str) -> bool:
    """Whether a thread holds what a copy of another one has left that died: some namespaces, and not yet the last."""
    whole = [namespace for namespace in namespaces(store, source) if holds_something(store, source, namespace)]
    there = [namespace for namespace in namespaces(store, target) if holds_something(store, target, namespace)]
    if min(whole) in there or not set(there) <= set(whole):
        return False
    return all(_begins_alike(store, (source, target), namespace) for namespace in there)


def _begins_alike(store: Store, threads: tuple[str, str], namespace: str) -> bool:
    """Whether the second thread's history is the beginning of the first one's."""
    whole, part = (store.new_writer(thread_id, namespace) for thread_id in threads)
    try:
        if (
            not whole.refresh()
            or not part.refresh()
            or len(part.load_index().checkpoints) > len(whole.load_index().checkpoints)
        ):
            return False
        return all(one == other for one, other in zip(_contents(part), _contents(whole), strict=False))
    finally:
        whole.close()
        part.close()


def _contents(history: LogWriter) -> Iterator[tuple[Any, ...]]:
    """Each checkpoint, with what is recorded of it, as far as it tells one from another."""
    for entry, table in _tables(history, history.load_index().checkpoints, None):
        values = [(name, one.kind, one.count, one.length, one.crc) for name, one in table.values.items()]
        fields = (entry.id, entry.node, entry.next, entry.parent, entry.created, entry.metadata, entry.tags)
        yield *fields, history.read_packed_writes(entry), values


def copy(store: Store, source: str, target: str) -> None:
    """Copy the live logs of a thread to one that has none; the root's last, so that a half copy is an empty thread."""
    for namespace in sorted(namespaces(store, source), reverse=True):
        history, new_history = store.new_writer(source, namespace), store.new_writer(target, namespace)
        try:
            if history.refresh() and history.find_latest() is not None:
                new_history.make_directories()
                header = new_header(layout.locate_thread(target).digest, 1)
                beginning = header.pack() + new_history.meta_frames(header.fid)
                new = _NewLog(store, os.path.dirname(new_history.path), header, beginning)
                try:
                    _copy_records(history, new, history.end)
                    new.install()
                    store.sync_directories(target, namespace)
                finally:
                    new.discard()
        finally:
            history.close()


def keep(
    store: Store,
    history: LogWriter,
    entries: Sequence[StoredCheckpoint],
    *,
    lost_offset: int | None = None,
    ending: tuple[int, int] | None = None,
) -> None:
    """Write a log anew with these checkpoints only; the caller holds its mutex.

    Args:
        store: where it is.
        history: the log, open.
        entries: the checkpoints, in the order of the history.
        lost_offset: a position within the damage, if there is any; see Replay.
        ending: the type and the version of the record that is to end the log.
    """
    assert history.header is not None
    directory = os.path.dirname(history.path)
    header = new_header(history.header.digest, history.header.generation + 1)
    beginning = header.pack() + history.meta_frames(header.fid)
    path = layout.join(directory, f"{layout.TEMPORARY}{header.fid:08x}")
    new = store.new_writer(history.thread_id, history.namespace, path)
    new.is_synced_before_use = True
    new.serializer = history.serializer
    store.update_marker()
    store.remove_leftovers(directory)
    try:
        new.begin(header, beginning)
        mover = _Mover(history, new)
        for entry, table in _tables(history, entries, lost_offset):
            mover.move(entry, table)
        if ending is not None:
            new.finish(*ending)
        store.io.fsync(new.fd)
        store.io.rename(path, history.path)
        store.io.fsync_dir(directory)
    except BaseException:
        with suppress(OSError):
            store.io.unlink(path)
        raise
    finally:
        new.close()
    history.close()


def _tables(
    history: LogWriter, entries: Sequence[StoredCheckpoint], lost_offset: int | None
) -> Iterator[tuple[StoredCheckpoint, delta.Table]]:
    """Each checkpoint with its packed state, by one walk over the log; those that were replaced later by their own."""
    ahead, later = [], history.end
    for entry in reversed(entries):
        ahead.append(entry.offset < later)
        later = min(later, entry.offset)
    walk = Replay(history, lost_offset=lost_offset)
    frames = history.file.good_frames(log.HEADER_SIZE, history.end)
    for entry in entries:
        if ahead.pop():
            yield entry, walk.advance_to(entry, frames)
        else:
            own = history.file.good_frames(entry.keyframe_offset, entry.offset + entry.size)
            yield entry, Replay(history, lost_offset=lost_offset).advance_to(entry, own)


class _Was(NamedTuple):
    """A value as it was when it was written: it may have grown since."""

    kind: int
    elements: int
    length: int
    crc: int
    pieces: list[int]


class _Mover:
    """Writes checkpoints of one log to another, each as what changed since the one before."""

    def __init__(self, history: LogWriter, new: LogWriter) -> None:
        self._history, self._new = history, new
        self._before: dict[str, _Was] = {}

    def move(self, entry: StoredCheckpoint, table: delta.Table) -> None:
        """Write one; `table` is its packed state.

        Raises:
            CheckpointCorruptionError: its bytes are not what was stored.
        """
        history, values = self._history, table.values
        draft: delta.Draft = {name: delta.DELETE for name in self._before if name not in values}

        def packed(name: str) -> bytes:
            value = values[name]
            return delta.pack_header(value.kind, value.count) + history.read_bodies([value], entry)[0]

        try:
            for name, value in values.items():
                op = self._change(self._before.get(name), value, partial(packed, name))
                if op is not None:
                    draft[name] = op
        except delta.Mismatch:
            raise CheckpointCorruptionError(history.path, entry.offset, "the state's checksum is wrong") from None
        except delta.MALFORMED as error:
            raise CheckpointCorruptionError(history.path, entry.offset, f"the state makes no sense: {error}") from error
        moved = StoredCheckpoint(
            id=entry.id,
            node=entry.node,
            next=entry.next,
            created=entry.created,
            parent=entry.parent,
            metadata=entry.metadata,
        )
        changed = list(draft)
        self._new.store(moved, draft, list(values), packed)
        self._check(entry, changed, values)
        if entry.writes:
            self._new.put_packed(moved, history.read_packed_writes(entry))
        if entry.tags:
            self._new.put_tags(moved, entry.tags, ())
        for name in changed:
            self._before.pop(name, None)
            if (now := values.get(name)) is not None:
                self._before[name] = _Was(now.kind, now.count, now.length, now.crc, now.pieces.copy())

    def _change(self, was: _Was | None, value: delta.Value, packed: Callable[[], bytes]) -> delta.Operation | None:
        """Return what turns the value into this one; None if they are equal."""
        if was is None or was.kind != value.kind:
            return delta.Set(packed())
        dropped = delta.find_moved_window(was.pieces, was.length, value)
        if dropped is not None:
            pieces, prefix, gone = dropped
            middle = delta.read_pieces(value, pieces, self._history.read_bytes) if pieces else b""
            return delta.Drop(count=value.count, prefix=prefix, dropped=gone, crc=value.crc, data=middle)
        pieces, prefix, removed = delta.compare_pieces(was.pieces, was.length, value)
        length = value.length - (was.length - removed)
        if not length and not removed and value.count == was.elements:
            return None
        if length + delta.SPLICE_COST >= value.length:
            return delta.Set(packed())
        middle = delta.read_pieces(value, pieces, self._history.read_bytes) if pieces else b""
        if value.kind == delta.LIST and not removed and prefix == was.length and value.count > was.elements:
            return delta.Append(value.count - was.elements, middle)
        return delta.Splice(count=value.count, prefix=prefix, removed=removed, crc=value.crc, data=middle)

    def _check(self, entry: StoredCheckpoint, changed: Sequence[str], values: Mapping[str, delta.Value]) -> None:
        written = self._new.table.values if self._new.table is not None else {}
        for name in changed:
            if name in values and (written[name].crc, written[name].length) != (values[name].crc, values[name].length):
                raise CheckpointCorruptionError(self._history.path, entry.offset, "the state's checksum is wrong")


def compact(store: Store, history: LogWriter) -> bool:
    """Write a log anew without what nobody can reach any more; whether there was such. The caller holds its mutex."""
    entries = history.load_index().checkpoints
    reached = {offset for entry in entries for offset in entry.writes.values()}
    reached.update(entry.offset for entry in entries)
    tagged = sum(bool(entry.tags) for entry in entries)
    data: list[log.Frame] = []
    for frame in history.scan(log.HEADER_SIZE, history.end, 0):
        if frame.type in {log.CHECKPOINT, log.WRITE} and frame.offset not in reached:
            break
        if frame.type == log.DATA:
            data.append(frame._replace(payload=b""))
        elif data and not _names_all(history, frame, data):
            break
        else:
            data.clear()
        tagged -= frame.type == log.MARK
        if tagged < 0:
            break
    else:
        if not data:
            return False
    keep(store, history, entries)
    return True


def _names_all(history: LogWriter, frame: log.Frame, data: Sequence[log.Frame]) -> bool:
    """Whether a record is a keyframe that names bytes of each of the DATA records before it.

    One that it does not name is left of a put that never finished.
    """
    if frame.type != log.CHECKPOINT or not frame.flags & log.KEY:
        return False
    decoded = payloads.decode_checkpoint(history.path, frame, None, history.codec.unpack)
    starts: set[int] = set()
    for entry in (decoded.table or ())[1::2]:
        if entry is not None and not delta.names_base(entry):
            starts.update(delta.decode_entry(entry, frame.offset, _no_base).pieces[::2])
    return all(one.offset + log.FRAME_SIZE in starts for one in data)


def _no_base(position: int) -> delta.Value:
    raise ValueError(f"the value has no base, and none at byte {position}")
