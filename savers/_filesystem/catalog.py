"""Lists what a store contains: its threads; and the namespaces, versions and size of a thread.

Changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from graphkit.errors import CheckpointerError
from savers._filesystem import layout
from savers._log import payloads
from savers._log.frame import HEADER_SIZE, OVERHEAD, TOMBSTONE, IncompleteLog, parse_frame, read_header

if TYPE_CHECKING:
    from savers._filesystem.store import Store

_LOGGER: Final = getLogger("graphkit")
_SHORT_READ: Final = 1 << 10
"""Nearly all META records end within this many bytes of a log."""
_LONG_READ: Final = 1 << 20
"""All META records end within this many bytes of a log."""
DELETED: Final = 0
"""What stands for a version where a thread is being deleted; versions begin with 1."""


def list_versions(store: Store, thread_id: str) -> list[int]:
    """Return the versions of a thread, of all its namespaces, including an unfinished release."""
    # In this order: if the release is finished in between, its version is found as a file.
    ending = find_begun_end(store, thread_id)
    if ending == DELETED:
        return []
    versions = _list_version_files(store, store.directory(thread_id))
    if ending is not None:
        versions.add(ending)
    for directory in _list_namespace_directories(store, store.directory(thread_id)):
        versions |= _list_version_files(store, directory)
    return sorted(versions)


def list_version_namespaces(store: Store, thread_id: str, version: int) -> list[str]:
    """Return the namespaces of a thread that have the log of a version, the root first."""
    if version == find_unfinished_release(store, thread_id):
        return list_namespaces(store, thread_id)
    name = layout.version_name(version)
    namespaces: list[str] = []
    if store.io.stat(layout.join(store.directory(thread_id), name)) is not None:
        namespaces.append("")
    for directory in _list_namespace_directories(store, store.directory(thread_id)):
        if store.io.stat(layout.join(directory, name)) is None:
            continue
        namespace = find_id(store, directory, [name], "ns")
        if namespace is not None:
            namespaces.append(namespace)
    return namespaces


def _list_version_files(store: Store, directory: str) -> set[int]:
    versions: set[int] = set()
    for name in store.io.listdir(directory):
        version = layout.parse_version(name)
        if version is not None:
            versions.add(version)
    return versions


def find_unfinished_release(store: Store, thread_id: str) -> int | None:
    """Return the version that the live logs of a thread become, if a release is unfinished."""
    return find_begun_end(store, thread_id) or None


def find_begun_end(store: Store, thread_id: str) -> int | None:
    """Return the version that the live logs of a thread become, or DELETED, if that was begun and not finished.

    The RELEASE or TOMBSTONE record at the end of the root's log says so; the process that wrote the
    record died or failed.
    """
    root = store.shared_log(thread_id, "")
    # A log that cannot be read names no version. Reading its history raises the error.
    with root.mutex, suppress(OSError, CheckpointerError):
        is_live = root.refresh()
        if is_live or root.history.closed_by is None:
            return None
        if root.history.closed_by.type == TOMBSTONE:
            return DELETED
        return root.history.read_closing_version()
    return None


def _list_namespace_directories(store: Store, directory: str) -> list[str]:
    names = store.directories_in(directory, layout.is_namespace)
    return [layout.join(directory, name) for name in names]


def list_namespaces(store: Store, thread_id: str) -> list[str]:
    """Return the namespaces of a thread that have a live log, the root first."""
    namespaces: list[str] = []
    if store.io.stat(layout.join(store.directory(thread_id), layout.LOG)) is not None:
        namespaces.append("")
    for directory in _list_namespace_directories(store, store.directory(thread_id)):
        if store.io.stat(layout.join(directory, layout.LOG)) is None:
            continue
        namespace = find_id(store, directory, [layout.LOG], "ns")
        if namespace is not None:
            namespaces.append(namespace)
    return namespaces


def find_id(store: Store, directory: str, log_names: Iterable[str], key: str) -> str | None:
    """Return the thread id or namespace of a directory.

    The name of the directory shows a plain id; for others, the META record of a log has it.

    Args:
        store: the store.
        directory: the directory.
        log_names: the logs to read, relative to the directory.
        key: the key in the META record.

    Returns:
        None if no log can be read.
    """
    name = os.path.basename(directory)
    known = layout.plain_id(name) or store.ids.get(name)
    if known is not None:
        return known
    for log_name in log_names:
        meta = _read_meta(store, layout.join(directory, log_name))
        if isinstance(meta, dict) and isinstance(meta.get(key), str):
            store.remember_id(name, meta[key])
            return str(meta[key])
    return None


def _read_meta(store: Store, path: str) -> Any:
    """Return the first META record of a log; None, with a warning, if it cannot be read."""
    try:
        fd = store.io.open(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        _LOGGER.warning("%s cannot be read, so its thread is not listed: %s", path, error)
        return None
    try:
        data = store.io.read_at(fd, 0, _SHORT_READ)
        header = read_header(path, data)
        frame = parse_frame(data, HEADER_SIZE, HEADER_SIZE, header.fid)
        if frame == "":
            data = store.io.read_at(fd, 0, _LONG_READ)
            frame = parse_frame(data, HEADER_SIZE, HEADER_SIZE, header.fid)
        return None if isinstance(frame, str) else payloads.unpack_payload(path, frame)
    except (IncompleteLog, CheckpointerError):
        _LOGGER.warning("%s cannot be read, so its thread is not listed", path)
        return None
    finally:
        store.io.close(fd)


class ThreadDirectories(NamedTuple):
    """The directories of a store that may be those of threads."""

    names: list[str]
    """Their names, sorted."""
    ending: set[str | None]
    """The names of those whose thread may be in the middle of a release or a delete."""
    others: int
    """How many other directories the root has."""


def find_directories(store: Store) -> ThreadDirectories:
    """Return the directories of the root that may be those of threads; read nothing in them."""
    names: list[str] = []
    others = 0
    ending: set[str | None] = set()
    for name, is_directory in store.io.entries(store.root):
        if name.startswith(layout.RELEASING):
            ending.add(layout.parse_releasing_name(name))
        if not is_directory:
            if layout.is_thread(name):
                path = layout.join(store.root, name)
                _LOGGER.warning("%s is not listed, for it is not a directory", path)
        elif name.startswith(layout.THREAD):
            names.append(name)
        else:
            others += 1
    names.sort()
    return ThreadDirectories(names, ending, others)


def list_threads(store: Store, *, released: bool) -> list[str]:
    """Return the threads that have a live log; with `released`, also those with only versions.

    Reads no log of a thread whose id is plain or remembered, and that is not being released or
    deleted. A store may have 10,000 threads.
    """
    directories = find_directories(store)
    found = [find_thread(store, directories, name, released=released) for name in directories.names]
    return sorted(thread_id for thread_id in found if thread_id is not None)


def find_thread(store: Store, directories: ThreadDirectories, name: str, *, released: bool) -> str | None:
    """Return the thread of a directory; None if there is none, or one that is being deleted or released.

    Args:
        store: the store.
        directories: what `find_directories` has just returned.
        name: one of them.
        released: whether a thread counts that has only versions.
    """
    try:
        thread_id = _find_thread(store, name, released=released)
    except PermissionError as error:
        _LOGGER.warning("a thread is not listed: %s", error)
        return None
    if thread_id is None or name not in directories.ending:
        return thread_id
    ending = find_begun_end(store, thread_id)
    is_listed = ending is None or (released and ending != DELETED)
    return thread_id if is_listed else None


def iter_live_logs(store: Store) -> Iterator[tuple[str, str, str]]:
    """Yield the thread, the namespace and the path of each live log, in the order of the directories' names."""
    directories = find_directories(store)
    for name in directories.names:
        thread_id = find_thread(store, directories, name, released=False)
        if thread_id is None:
            continue
        directory = layout.join(store.root, name)
        # Nearly all threads have no namespace but the root.
        if any(map(layout.is_namespace, store.io.listdir_unchecked(directory))):
            namespaces = list_namespaces(store, thread_id)
        else:
            namespaces = [""]
        for namespace in namespaces:
            yield thread_id, namespace, layout.join(directory, layout.namespace_name(namespace), layout.LOG)


def _find_thread(store: Store, name: str, *, released: bool) -> str | None:
    """Return the thread of a directory; None if it is not a thread's, or holds nothing."""
    # First the usual case: the id is remembered or plain, and there is a live log.
    thread_id = store.ids.get(name)
    if thread_id is None:
        thread_id = layout.plain_id(name)
        if thread_id is not None:
            store.remember_id(name, thread_id)
    if thread_id is not None:
        # `stat` would also check the directories on the way, which doubles the system calls.
        status = store.io.stat_unchecked(f"{store.root}{os.sep}{name}{os.sep}{layout.LOG}")
        if _is_complete(status):
            return thread_id
    if not layout.is_thread(name):
        return None
    directory = layout.join(store.root, name)
    logs = list_logs(store, directory, released=released)
    return find_id(store, directory, logs, "thread") if logs else None


def _is_complete(status: os.stat_result | None) -> bool:
    """Return whether the status of a log shows that it is not incomplete.

    What is not a regular file counts: its thread is listed, so that reading it raises the error.
    """
    if status is None:
        return False
    return status.st_size > HEADER_SIZE + OVERHEAD or not stat.S_ISREG(status.st_mode)


def list_logs(store: Store, directory: str, *, released: bool) -> list[str]:
    """Return logs of a thread, relative to its directory; empty if it holds nothing.

    If the root has a live log, this is the only one returned.

    Args:
        store: the store.
        directory: the directory of the thread.
        released: whether versions count.
    """
    if _is_complete(store.io.stat(layout.join(directory, layout.LOG))):
        return [layout.LOG]
    logs: list[str] = []
    if released:
        logs += filter(_is_version, store.io.listdir(directory))
    for name in store.directories_in(directory, layout.is_namespace):
        live_log = layout.join(name, layout.LOG)
        if _is_complete(store.io.stat(layout.join(directory, live_log))):
            logs.append(live_log)
        if released:
            versions = filter(_is_version, store.io.listdir(layout.join(directory, name)))
            logs += [layout.join(name, version) for version in versions]
    return logs


def _is_version(name: str) -> bool:
    return layout.parse_version(name) is not None


def has_salvaged_files(store: Store, directory: str) -> bool:
    """Return whether the directory of a thread, or of one of its namespaces, has salvaged files."""
    for path in (directory, *_list_namespace_directories(store, directory)):
        if any(name.startswith(layout.SALVAGED_PREFIXES) for name in store.io.listdir(path)):
            return True
    return False


def has_checkpoints(store: Store, thread_id: str, namespace: str) -> bool:
    """Return whether a live log has checkpoints; the caller holds the write lock."""
    log = store.new_log(thread_id, namespace)
    try:
        return log.refresh_to_write() and log.history.find_latest() is not None
    finally:
        log.close()


def measure_size(store: Store, thread_id: str | None) -> int:
    """Return the bytes of all files of a thread, or of the whole store (None)."""
    return _measure_directory(
        store,
        store.root if thread_id is None else store.directory(thread_id),
    )


def _measure_directory(store: Store, directory: str) -> int:
    total = 0
    for name in store.io.listdir(directory):
        path = layout.join(directory, name)
        status = store.io.stat(path)
        if status is None:
            continue
        if stat.S_ISDIR(status.st_mode):
            total += _measure_directory(store, path)
        else:
            total += status.st_size
    return total
