"""What concerns whole logs and whole threads: release, delete, copy, prune, and a new generation after a failed sync.

Each leaves, at whatever instant it is interrupted, what was there before or what is wanted, or a mark by which the next
holder of the thread's short lock finishes it. The caller holds that lock.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final

from graphkit.errors import CheckpointerError
from savers import _delta as delta
from savers._filesystem import layout, log, record
from savers._filesystem.live import LiveHistory, new_header
from savers._filesystem.record import Entry

if TYPE_CHECKING:
    from savers._filesystem.store import Store

_LOGGER: Final = getLogger("graphkit")
_BATCH: Final = 1 << 20


# Looking around


def versions(store: Store, thread_id: str) -> list[int]:
    """The versions of a thread, of all its namespaces."""
    found = _versions_in(store, store.directory(thread_id))
    for directory in _namespace_directories(store, thread_id):
        found |= _versions_in(store, directory)
    return sorted(found)


def _versions_in(store: Store, directory: str) -> set[int]:
    return {number for name in store.io.listdir(directory) if (number := layout.version_of(name)) is not None}


def _namespace_directories(store: Store, thread_id: str) -> list[str]:
    directory = store.directory(thread_id)
    return [layout.join(directory, name) for name in sorted(store.io.listdir(directory)) if layout.is_namespace(name)]


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
    plain = layout.plain_id(os.path.basename(directory))
    if plain is not None:
        return plain
    for name in names:
        meta = _description(store, layout.join(directory, name))
        if isinstance(meta, dict) and isinstance(meta.get(key), str):
            return str(meta[key])
    return None


def _description(store: Store, path: str) -> Any:
    try:
        fd = store.io.open(path)
    except OSError:
        return None
    try:
        data = store.io.read_at(fd, 0, 1 << 17)
        header = log.read_header(path, data)
        frame = log.parse_frame(data, log.HEADER_SIZE, log.HEADER_SIZE, header.fid)
        return None if isinstance(frame, str) else record.unpack_payload(path, frame)
    except (log.Unborn, CheckpointerError):
        _LOGGER.warning("%s cannot be read, so its thread is not listed", path)
        return None
    finally:
        store.io.close(fd)


def threads(store: Store, *, released: bool) -> list[str]:
    """The threads of a store that have a live log; with `released`, those too that have versions only."""
    found: list[str] = []
    for name in store.io.listdir(store.root):
        if layout.is_thread(name):
            directory = layout.join(store.root, name)
            logs = _logs_of_thread(store, directory, released=released)
            if logs and (thread_id := _id_in(store, directory, logs, "thread")) is not None:
                found.append(thread_id)
    return sorted(found)


def _logs_of_thread(store: Store, directory: str, *, released: bool) -> list[str]:
    found = store.io.stat(layout.join(directory, layout.LOG))
    if found is not None and found.st_size > log.HEADER_SIZE + log.OVERHEAD:
        return [layout.LOG]
    names = store.io.listdir(directory)
    logs = [name for name in names if layout.version_of(name) is not None] if released else []
    for name in names:
        if layout.is_namespace(name):
            inside = store.io.listdir(layout.join(directory, name))
            wanted = [one for one in inside if one == layout.LOG or (released and layout.version_of(one) is not None)]
            logs += [layout.join(name, one) for one in wanted]
    return logs


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
    finish_release(store, thread_id, version)
    return version


def _holds_something(store: Store, thread_id: str, namespace: str) -> bool:
    history = store.fresh(thread_id, namespace)
    try:
        return history.refresh_to_write() and history.latest() is not None
    finally:
        history.close()


def finish_release(store: Store, thread_id: str, version: int) -> None:
    """Bring a release to its end, from wherever it stands."""
    names = namespaces(store, thread_id)
    if "" in names:
        _end_log(store, thread_id, "", version)
    for namespace in [name for name in names if name] + names[: 1 if "" in names else 0]:
        if namespace:
            _end_log(store, thread_id, namespace, version)
        directory = store.directory(thread_id, namespace)
        store.io.rename(layout.join(directory, layout.LOG), layout.join(directory, layout.version_name(version)))
        store.io.fsync_dir(directory)


def _end_log(store: Store, thread_id: str, namespace: str, version: int) -> None:
    history = store.fresh(thread_id, namespace)
    try:
        if history.refresh_to_write():
            history.finish(log.RELEASE, version)
        if history.fd >= 0:
            store.io.fsync(history.fd)
    finally:
        history.close()


def delete(store: Store, thread_id: str, *, keep_lock: bool) -> bool:
    """Remove a thread; whether it held anything.

    `keep_lock`: a run that goes on holds the thread's run lock (or may), so its file is brought back: whoever waits for
    the lock keeps waiting, and whoever comes finds it.

    A TOMBSTONE at the end of each live log tells those who have it open. The root's decides, so it is on the disk
    before any other: a namespace's without it would later take a thread along that had gone on. The directory goes in
    one rename, so that a thread is there or not; what it held is removed afterwards.
    """
    directory = store.directory(thread_id)
    found = bool(_logs_of_thread(store, directory, released=True))
    names = namespaces(store, thread_id)
    for namespace in names if "" in names else names[: len(names) == 1]:
        history = store.fresh(thread_id, namespace)
        try:
            if history.refresh_to_write():
                history.finish(log.TOMBSTONE, 0)
            if history.fd >= 0 and not namespace and len(names) > 1:
                store.io.fsync(history.fd)
        except (OSError, CheckpointerError):
            # A full disk or a damaged log must not keep anybody from deleting it.
            _LOGGER.info("%s is deleted without a last record", history.path)
            break
        finally:
            history.close()
    away = layout.join(store.root, layout.TEMPORARY + os.path.basename(directory))
    if store.io.stat(away) is not None:
        store.remove_tree(away)
    if not store.swept:
        store.sweep()
    store.io.rename(directory, away)
    if keep_lock and store.io.stat(layout.join(away, layout.RUN_LOCK)) is not None:
        store.io.mkdir(directory)
        store.io.rename(layout.join(away, layout.RUN_LOCK), layout.join(directory, layout.RUN_LOCK))
    store.io.fsync_dir(store.root)
    store.remove_tree(away)
    return found


# Writing a log anew


class _NewLog:
    """A file beside a log that takes its place once it is whole."""

    def __init__(self, store: Store, directory: str, header: log.Header, beginning: bytes) -> None:
        self._store, self._directory, self.header = store, directory, header
        store.remove_leftovers(directory)
        self.path = layout.join(directory, f"{layout.TEMPORARY}{header.fid:08x}")
        self._fd = store.io.open(self.path, write=True, create=True, append=True)
        self.end = 0
        self._pending: list[bytes] = []
        self._add(beginning)

    def _add(self, data: bytes) -> None:
        self._pending.append(data)
        self.end += len(data)
        if sum(map(len, self._pending)) > _BATCH:
            self._drain()

    def _drain(self) -> None:
        data, done = b"".join(self._pending), 0
        self._pending.clear()
        while done < len(data):
            done += self._store.io.append(self._fd, data[done:])

    def copy(self, frame: log.Frame) -> None:
        """Take over a record as it is: distances stay true, because records move as a block."""
        self._add(
            log.pack_frame(
                self.end,
                self.header.fid,
                frame.seq,
                frame.type,
                frame.payload,
                frame.flags & ~log.LOOSE,  # all of it is on the disk before it takes its place
                frame.depth,
                frame.back,
                frame.key,
            )
        )

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


def _copy_records(history: LiveHistory, target: _NewLog, end: int) -> None:
    start = history._first_record()  # noqa: SLF001 - of the same package
    for frame in log.scan(history.io, history.fd, history.path, history.fid, start, end, 1):
        target.copy(frame)


def renew(store: Store, history: LiveHistory, end: int) -> None:
    """Write a log anew up to `end`, in blocks of the disk that have not failed; the caller holds its mutex."""
    assert history.header is not None
    header = new_header(history.header.digest, history.header.generation + 1)
    directory = os.path.dirname(history.path)
    new = _NewLog(store, directory, header, header.pack() + history.meta_frame(header.fid))
    try:
        _copy_records(history, new, end)
        new.install()
        store.sync_place(history.thread_id, history.namespace)
    finally:
        new.discard()
    history.close()
    history.suspect = False


def copy(store: Store, source: str, target: str) -> None:
    """Copy the live logs of a thread to one that has none; the root's last, so that a half copy is an empty thread."""
    for namespace in sorted(namespaces(store, source), reverse=True):
        history, new_history = store.fresh(source, namespace), store.fresh(target, namespace)
        try:
            if history.refresh() and history.latest() is not None:
                new_history.make_place()
                header = new_header(layout.place_of(target).digest, 1)
                beginning = header.pack() + new_history.meta_frame(header.fid)
                new = _NewLog(store, os.path.dirname(new_history.path), header, beginning)
                try:
                    _copy_records(history, new, history.end)
                    new.install()
                    store.sync_place(target, namespace)
                finally:
                    new.discard()
        finally:
            history.close()


def keep(store: Store, history: LiveHistory, entries: Sequence[Entry]) -> None:
    """Write a log anew with these checkpoints only; the caller holds its mutex."""
    assert history.header is not None
    directory = os.path.dirname(history.path)
    header = new_header(history.header.digest, history.header.generation + 1)
    beginning = header.pack() + history.meta_frame(header.fid)
    path = layout.join(directory, f"{layout.TEMPORARY}{header.fid:08x}")
    new = store.fresh(history.thread_id, history.namespace, path)
    new.careful = False  # All of it is on the disk before it takes its place.
    store.remove_leftovers(directory)
    try:
        new.begin(header, beginning)
        before = delta.Table(opaque=False)
        for entry in entries:
            before = _carry_over(history, entry, before, new)
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


def _carry_over(history: LiveHistory, entry: Entry, before: delta.Table, new: LiveHistory) -> delta.Table:
    table = history.table_of(entry)
    draft: delta.Draft = {name: (delta.DEL,) for name in before.values if name not in table.values}

    def packed(name: str) -> bytes:
        value = table.values[name]
        return delta.header(value.kind, value.count) + history.bodies_of([value], entry)[0]

    for name, value in table.values.items():
        old = before.values.get(name)
        if old is None or old.kind != value.kind:
            draft[name] = (delta.SET, packed(name))
        elif old.pieces != value.pieces or old.crc != value.crc or old.count != value.count:
            size = len(old.pieces)
            if value.kind == delta.LIST and value.count > old.count and value.pieces[:size] == old.pieces:
                body = history.bodies_of([value], entry)[0]
                draft[name] = (delta.APPEND, value.count - old.count, body[old.length :])
            else:
                draft[name] = (delta.SET, packed(name))
    moved = Entry(
        0, 0, 0, entry.id, entry.node, entry.next, entry.created, entry.parent, entry.metadata, replaces=False
    )
    new.store(moved, draft, list(table.values), packed)
    if entry.writes:
        new.put_packed(moved, history.packed_values_of(entry))
    if entry.tags:
        new.put_tags(moved, entry.tags, ())
    return table
