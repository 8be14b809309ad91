"""What concerns whole logs and whole threads: release, delete, copy, prune, and a new generation after a failed sync.

Each leaves, at whatever instant it is interrupted, what was there before or what is wanted, or a mark by which the next
holder of the thread's short lock finishes it. The caller holds that lock.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from savers import _delta as delta
from savers._filesystem import layout, log, payloads
from savers._filesystem.log_writer import META_RECORDS, LogWriter, new_header
from savers._filesystem.payloads import StoredCheckpoint
from savers._filesystem.replay import Replay, frames_of

if TYPE_CHECKING:
    from savers._filesystem.store import Store

_LOGGER: Final = getLogger("graphkit")
_BATCH: Final = 1 << 20
_BASE: Final = 4
"""Which number of a keyframe's entry is the distance to its base."""
_HEAD: Final = 1 << 10
_LONG_HEAD: Final = 1 << 20
"""Where the description of a log ends at the latest; nearly all end within the first KiB."""


# Looking around


def versions(store: Store, thread_id: str) -> list[int]:
    """The versions of a thread, of all its namespaces; with the one whose release is unfinished."""
    # In this order: a release that is finished in between is found as a version.
    ending = unfinished_release(store, thread_id)
    found = _versions_in(store, store.directory(thread_id))
    if ending is not None:
        found.add(ending)
    for directory in _namespace_directories(store, thread_id):
        found |= _versions_in(store, directory)
    return sorted(found)


def _versions_in(store: Store, directory: str) -> set[int]:
    return {number for name in store.io.listdir(directory) if (number := layout.parse_version(name)) is not None}


def unfinished_release(store: Store, thread_id: str) -> int | None:
    """The version that a thread's live logs become: the root's log ends so, and its writer died or failed then."""
    history = store.live(thread_id, "")
    # A log that cannot be read names no version. Reading the live history tells why.
    with history.mutex, suppress(OSError, CheckpointerError):
        is_live = history.refresh()
        if not is_live and history.closed_by is not None and history.closed_by.type == log.RELEASE:
            return history.read_closing_version()
    return None


def _namespace_directories(store: Store, thread_id: str) -> list[str]:
    directory = store.directory(thread_id)
    return [layout.join(directory, name) for name in store.directories_in(directory, layout.is_namespace)]


def namespaces(store: Store, thread_id: str) -> list[str]:
    """The namespaces of a thread that have a live log: the root first."""
    found = [""] if store.io.stat(layout.join(store.directory(thread_id), layout.LOG)) is not None else []
    for directory in _namespace_directories(store, thread_id):
        if store.io.stat(layout.join(directory, layout.LOG)) is not None:
            namespace = _id_in(store, directory, [layout.LOG], "ns")
            if namespace is not None:
                found.append(namespace)
    return found


def _id_in(store: Store, directory: str, names: Iterable[str], key: str) -> str | None:
    """The id that a directory stands for: its name tells if the id is plain, else the description in a log."""
    own_name = os.path.basename(directory)
    known = layout.plain_id(own_name) or store.ids.get(own_name)
    if known is not None:
        return known
    for name in names:
        meta = _description(store, layout.join(directory, name))
        if isinstance(meta, dict) and isinstance(meta.get(key), str):
            store.remember(own_name, meta[key])
            return str(meta[key])
    return None


def _description(store: Store, path: str) -> Any:
    try:
        fd = store.io.open(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        _LOGGER.warning("%s cannot be read, so its thread is not listed: %s", path, error)
        return None
    try:
        data = store.io.read_at(fd, 0, _HEAD)
        header = log.read_header(path, data)
        frame = log.parse_frame(data, log.HEADER_SIZE, log.HEADER_SIZE, header.fid)
        if frame == "":
            data = store.io.read_at(fd, 0, _LONG_HEAD)
            frame = log.parse_frame(data, log.HEADER_SIZE, log.HEADER_SIZE, header.fid)
        return None if isinstance(frame, str) else payloads.unpack_payload(path, frame)
    except (log.IncompleteLog, CheckpointerError):
        _LOGGER.warning("%s cannot be read, so its thread is not listed", path)
        return None
    finally:
        store.io.close(fd)


def threads(store: Store, *, released: bool) -> list[str]:
    """The threads of a store that have a live log; with `released`, those too that have versions only."""
    found: list[str] = []
    begin, end = store.root + os.sep, os.sep + layout.LOG
    entries = store.io.entries(store.root)
    releasing = {layout.parse_releasing_name(name) for name, _ in entries if name.startswith(layout.RELEASING)}
    for name, is_directory in entries:
        if not is_directory:
            if layout.is_thread(name):
                _LOGGER.warning("%s is not listed, for it is not a directory", begin + name)
            continue
        # The usual case first, for there may be 10,000: a log, and an id that the name tells or that is remembered.
        thread_id = store.ids.get(name)
        if thread_id is None and name.startswith("t-") and (thread_id := layout.plain_id(name)) is not None:
            store.remember(name, thread_id)
        try:
            if thread_id is None or not _is_complete(store.io.stat_unchecked(begin + name + end)):
                thread_id = _thread_in(store, name, released=released) if layout.is_thread(name) else None
        except PermissionError as error:
            _LOGGER.warning("a thread is not listed: %s", error)
            continue
        if thread_id is None:
            continue
        if released or name not in releasing or unfinished_release(store, thread_id) is None:
            found.append(thread_id)
    return sorted(found)


def _thread_in(store: Store, name: str, *, released: bool) -> str | None:
    """The thread of a directory, if it holds anything."""
    directory = layout.join(store.root, name)
    logs = _logs_of_thread(store, directory, released=released)
    return _id_in(store, directory, logs, "thread") if logs else None


def _is_complete(found: os.stat_result | None) -> bool:
    if found is None:
        return False
    # What is no file cannot be read; its thread is listed, so that reading it tells why.
    return found.st_size > log.HEADER_SIZE + log.OVERHEAD or not stat.S_ISREG(found.st_mode)


def _logs_of_thread(store: Store, directory: str, *, released: bool) -> list[str]:
    if _is_complete(store.io.stat(layout.join(directory, layout.LOG))):
        return [layout.LOG]
    names = store.io.listdir(directory)
    logs = [name for name in names if layout.parse_version(name) is not None] if released else []
    for name in store.directories_in(directory, layout.is_namespace):
        if _is_complete(store.io.stat(layout.join(directory, name, layout.LOG))):
            logs.append(layout.join(name, layout.LOG))
        if released:
            inside = store.io.listdir(layout.join(directory, name))
            logs += [layout.join(name, one) for one in inside if layout.parse_version(one) is not None]
    return logs


def _has_set_aside(store: Store, directory: str) -> bool:
    """Whether a thread's directory, or that of one of its namespaces, holds bytes that were set aside."""
    inside = [layout.join(directory, name) for name in store.directories_in(directory, layout.is_namespace)]
    return any(
        name.startswith(layout.SALVAGED_PREFIXES) for place in (directory, *inside) for name in store.io.listdir(place)
    )


def size(store: Store, thread_id: str | None) -> int:
    """The bytes of all files below a thread's directory, or below the root."""
    return _size_below(store, store.root if thread_id is None else store.directory(thread_id))


def _size_below(store: Store, directory: str) -> int:
    total = 0
    for name in store.io.listdir(directory):
        path = layout.join(directory, name)
        found = store.io.stat(path)
        if found is not None:
            total += _size_below(store, path) if stat.S_ISDIR(found.st_mode) else found.st_size
    return total


# Ending a history


def release(store: Store, thread_id: str) -> int | None:
    """Make the live logs of a thread its next version; None if there are no checkpoints.

    The RELEASE record at the end of the root's log decides; whoever finds it there finishes the work.
    """
    names = namespaces(store, thread_id)
    if not any(_holds_something(store, thread_id, namespace) for namespace in names):
        return None
    version = (versions(store, thread_id) or [0])[-1] + 1
    # Those who list 10,000 threads cannot look at the end of each log: a name in the root tells them where to.
    store.io.close(store.io.open(_releasing_path(store, thread_id), write=True, create=True))
    store.io.fsync_dir(store.root)
    store.begun_releases[thread_id] = version
    finish_release(store, thread_id, version)
    del store.begun_releases[thread_id]
    return version


def _releasing_path(store: Store, thread_id: str) -> str:
    return layout.join(store.root, layout.releasing_name(layout.locate_thread(thread_id).name))


def _holds_something(store: Store, thread_id: str, namespace: str) -> bool:
    history = store.fresh(thread_id, namespace)
    try:
        return history.refresh_to_write() and history.find_latest() is not None
    finally:
        history.close()


def finish_release(store: Store, thread_id: str, version: int) -> None:
    """Bring a release to its end, from wherever it stands."""
    _end_log(store, thread_id, "", version)
    inner = [namespace for namespace in namespaces(store, thread_id) if namespace]
    for namespace in [*inner, ""]:
        is_born = not namespace or _end_log(store, thread_id, namespace, version)
        directory = store.directory(thread_id, namespace)
        path = layout.join(directory, layout.LOG)
        if is_born:
            store.io.rename(path, layout.join(directory, layout.version_name(version)))
        else:
            store.io.unlink(path)
        store.io.fsync_dir(directory)
    _forget_release(store, thread_id)


def _forget_release(store: Store, thread_id: str) -> None:
    path = _releasing_path(store, thread_id)
    # The release is over. A name that stays costs a look at that thread's log when threads are listed.
    with suppress(OSError):
        if store.io.stat(path) is not None:
            store.io.unlink(path)


def _end_log(store: Store, thread_id: str, namespace: str, version: int) -> bool:
    """Append RELEASE, unless it is there; False if the log's creation never finished.

    The root's log is made if there is none, for its end decides about those of the namespaces.
    """
    history = store.fresh(thread_id, namespace)
    try:
        is_live = history.refresh_to_write()
        if not is_live and history.closed_by is not None:
            # A release that was cut short, perhaps by a failed sync: no later sync of that file can be believed.
            renew(store, history, history.end)
            return True
        if not is_live and namespace:
            return False
        history.finish(log.RELEASE, version)
        store.io.fsync(history.fd)
        if not is_live:
            store.sync_directories(thread_id, namespace)
        return True
    finally:
        history.close()


def delete(store: Store, thread_id: str, *, keep_lock: bool) -> bool:
    """Remove a thread; whether it held anything: a history, a version, or bytes that were set aside.

    `keep_lock`: a run that goes on holds the thread's run lock (or may), so its file is brought back: whoever waits for
    the lock keeps waiting, and whoever comes finds it.

    A TOMBSTONE at the end of each live log tells those who have it open. The root's decides, so it is on the disk
    before any other: a namespace's without it would later take a thread along that had gone on. The directory goes in
    one rename, so that a thread is there or not; what it held is removed afterwards.
    """
    directory = store.directory(thread_id)
    found = bool(_logs_of_thread(store, directory, released=True)) or _has_set_aside(store, directory)
    names = namespaces(store, thread_id)
    unended = set(names)
    for namespace in names if "" in names else names[: len(names) == 1]:
        history = store.fresh(thread_id, namespace)
        try:
            if history.refresh_to_write():
                history.finish(log.TOMBSTONE, 0)
            if history.fd >= 0 and not namespace and len(names) > 1:
                store.io.fsync(history.fd)
            unended.discard(namespace)
        except (OSError, CheckpointerError):
            # A full disk or a damaged log must not keep anybody from deleting it.
            _LOGGER.info("%s is deleted without a last record", history.path)
            break
        finally:
            history.close()
    away = store.free_leftover(thread_id)
    if not store.swept:
        store.sweep()
    store.io.rename(directory, away)
    if keep_lock and store.io.stat(layout.join(away, layout.RUN_LOCK)) is not None:
        store.io.mkdir(directory)
        store.io.rename(layout.join(away, layout.RUN_LOCK), layout.join(directory, layout.RUN_LOCK))
    store.io.fsync_dir(store.root)
    _tell_readers(store, thread_id, away, unended)
    _forget_release(store, thread_id)
    store.begun_releases.pop(thread_id, None)
    stays = store.remove_tree(away)
    if stays:
        _LOGGER.warning(
            "thread %.80r is deleted, but %s stays, which graphkit did not make: remove it", thread_id, ", ".join(stays)
        )
    return found


def _tell_readers(store: Store, thread_id: str, away: str, namespaces: Iterable[str]) -> None:
    """End the logs of a thread that is gone: those who have them open shall know that it was deleted, not lost."""
    for namespace in namespaces:
        path = layout.join(away, layout.namespace_name(namespace), layout.LOG)
        history = store.fresh(thread_id, namespace, path)
        with suppress(OSError, CheckpointerError):
            if history.refresh_to_write():
                history.finish(log.TOMBSTONE, 0)
        history.close()


# Writing a log anew


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
    start = history._first_record()  # noqa: SLF001 - of the same package
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
    whole = [namespace for namespace in namespaces(store, source) if _holds_something(store, source, namespace)]
    there = [namespace for namespace in namespaces(store, target) if _holds_something(store, target, namespace)]
    if min(whole) in there or not set(there) <= set(whole):
        return False
    return all(_begins_alike(store, (source, target), namespace) for namespace in there)


def _begins_alike(store: Store, threads: tuple[str, str], namespace: str) -> bool:
    """Whether the second thread's history is the beginning of the first one's."""
    whole, part = (store.fresh(thread_id, namespace) for thread_id in threads)
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
        history, new_history = store.fresh(source, namespace), store.fresh(target, namespace)
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
    new = store.fresh(history.thread_id, history.namespace, path)
    new.is_synced_before_use = True
    new._serializer = history._serializer  # noqa: SLF001 - of the same package; repair goes by the log
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
    walk, frames = Replay(history, lost_offset=lost_offset), frames_of(history, log.HEADER_SIZE, history.end)
    for entry in entries:
        if ahead.pop():
            yield entry, walk.advance_to(entry, frames)
        else:
            own = frames_of(history, entry.keyframe_offset, entry.offset + entry.size)
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
        draft: delta.Draft = {name: (delta.DEL,) for name in self._before if name not in values}

        def packed(name: str) -> bytes:
            value = values[name]
            return delta.header(value.kind, value.count) + history.read_bodies([value], entry)[0]

        try:
            for name, value in values.items():
                op = self._change(self._before.get(name), value)
                if op is not None:
                    draft[name] = op if len(op) > 1 else (delta.SET, packed(name))
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

    def _change(self, was: _Was | None, value: delta.Value) -> tuple[Any, ...] | None:
        """What turns the value into this one; (SET,) if that is as short; None if nothing does."""
        if was is None or was.kind != value.kind:
            return (delta.SET,)
        dropped = delta.window_by_pieces(was.pieces, was.length, value)
        if dropped is not None:
            pieces, prefix, gone = dropped
            middle = delta.part(value, pieces, self._history._read) if pieces else b""  # noqa: SLF001 - of the same package
            return delta.DROP, value.count, prefix, gone, value.crc, middle
        pieces, prefix, removed = delta.by_pieces(was.pieces, was.length, value)
        length = value.length - (was.length - removed)
        if not length and not removed and value.count == was.elements:
            return None
        if length + delta.SPLICE_COST >= value.length:
            return (delta.SET,)
        middle = delta.part(value, pieces, self._history._read) if pieces else b""  # noqa: SLF001 - of the same package
        if value.kind == delta.LIST and not removed and prefix == was.length and value.count > was.elements:
            return delta.APPEND, value.count - was.elements, middle
        return delta.SPLICE, value.count, prefix, removed, value.crc, middle

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
    decoded = payloads.decode_checkpoint(history.path, frame, None, history._codec.unpack)  # noqa: SLF001 - of the same package
    starts: set[int] = set()
    for entry in (decoded.table or ())[1::2]:
        if entry is not None and not entry[_BASE]:
            starts.update(delta.value_of(entry, frame.offset, _no_base).pieces[::2])
    return all(one.offset + log.FRAME_SIZE in starts for one in data)


def _no_base(position: int) -> delta.Value:
    raise ValueError(f"the value has no base, and none at byte {position}")
