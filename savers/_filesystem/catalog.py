"""Lists what a store contains: its threads; and the namespaces, versions and size of a thread.

Changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final

from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from savers._filesystem import layout
from savers._filesystem.log_bytes import FileLogBytes
from savers._log import payloads
from savers._log.frame import HEADER_SIZE, META, OVERHEAD
from savers._log.records import Records

if TYPE_CHECKING:
    from savers._filesystem.layout import ThreadDirectory
    from savers._filesystem.store import Store
    from savers._log.frame import Frame

_LOGGER: Final = getLogger("graphkit")
_SHORT_READ: Final = 1 << 10
"""Nearly all META records end within this many bytes of a log."""
_LONG_READ: Final = 1 << 20
"""All META records end within this many bytes of a log."""
DELETED: Final = 0
"""What a TOMBSTONE record names in place of a version; versions begin with 1."""


# Ids


def find_id(store: Store, path: str, logs: Iterable[str], key: str) -> str | None:
    """Return the thread id or the namespace of a directory.

    The name of the directory shows a plain id; for others, any readable log of the directory has it.

    Args:
        store: the store.
        path: the directory.
        logs: the logs to read.
        key: the key in the META records.

    Returns:
        None if no log can be read.
    """
    name = os.path.basename(path)
    known = _find_known_id(store, name)
    if known is not None:
        return known
    for log in logs:
        found = read_meta(store, log).get(key)
        # The file may have been moved here from elsewhere.
        if isinstance(found, str) and layout.is_name_of(name, found):
            store.remember_id(name, found)
            return found
    return None


def _find_known_id(store: Store, name: str) -> str | None:
    """Return the id of a directory if its name shows it, or if it is remembered."""
    known = store.ids.get(name)
    if known is None:
        known = layout.plain_id(name)
        if known is not None:
            store.remember_id(name, known)
    return known


def find_namespace(store: Store, path: str) -> str | None:
    """Return the namespace of a directory; "" for that of a thread, None if no log can be read."""
    if not layout.is_namespace(os.path.basename(path)):
        return ""
    logs = (layout.join(path, name) for name in store.io.listdir(path) if layout.is_log(name))
    return find_id(store, path, logs, "ns")


def read_meta(store: Store, path: str) -> dict[str, Any]:
    """Return a META record of a log, any whose checksum is right; empty if none can be read.

    Logs a warning, unless the log is missing or is being created.
    """
    problem: object = "it does not say whose log it is"
    frame: Frame | None = None
    try:
        with closing(FileLogBytes(store.io, path)) as medium:
            # A search, not a look behind the header: of the two META records, the first may be damaged.
            lengths = (_SHORT_READ, _LONG_READ) if medium.open() else ()
            for length in lengths:
                frame = frame or next(Records(medium, None).search(HEADER_SIZE, min(medium.size, length)), None)
        if frame is None and medium.size <= HEADER_SIZE + OVERHEAD:
            # It is gone; or its writer has not written the first record yet, or died before it could.
            return {}
        meta = None
        if frame is not None and frame.type == META:
            meta = payloads.unpack_payload(path, frame)
        if isinstance(meta, dict):
            return meta
    except CheckpointCorruptionError as error:
        problem = error
    except OSError as error:
        problem = error.strerror or error
    _LOGGER.warning("%s cannot be read: %s", path, problem)
    return {}


# One thread


def list_directories(store: Store, path: str) -> list[str]:
    """Return the directories of a thread that may have logs: its own, and those of its namespaces."""
    names = store.directories_in(path, layout.is_namespace)
    return [path, *(layout.join(path, name) for name in names)]


def list_thread_files(store: Store, path: str) -> list[tuple[str, str]]:
    """Return the directory and the name of each file in the directory of a thread, and in those of its namespaces."""
    directories = list_directories(store, path)
    return [(directory, name) for directory in directories for name in store.io.listdir(directory)]


def list_others(store: Store, path: str, prefixes: tuple[str, ...]) -> list[str]:
    """Return the files of a thread's directory whose names have a prefix, relative to the store's root."""
    files = list_thread_files(store, path)
    found = [layout.join(directory, name) for directory, name in files if name.startswith(prefixes)]
    return sorted(os.path.relpath(file, store.root) for file in found)


def list_namespaces(store: Store, thread: ThreadDirectory, log_names: Collection[str] = (layout.LOG,)) -> list[str]:
    """Return the namespaces of a thread that have a live log, or one with other names, the root first."""
    namespaces: list[str] = []
    for path in list_directories(store, thread.path):
        if all(store.io.stat(layout.join(path, name)) is None for name in log_names):
            continue
        namespace = find_namespace(store, path)
        if namespace is not None:
            namespaces.append(namespace)
    return namespaces


def find_finished_versions(store: Store, thread: ThreadDirectory) -> set[int]:
    """Return the versions of a thread whose release is finished; nothing is asked of its live logs."""
    versions = {layout.parse_version(name) for _, name in list_thread_files(store, thread.path)}
    return {version for version in versions if version is not None}


def find_begun_end(store: Store, thread_id: str) -> int | None:
    """Return the version that the live logs of a thread become, or DELETED, if that was begun and not finished.

    The RELEASE or TOMBSTONE record at the end of the root's log says so; the process that wrote the
    record died or failed.
    """
    root = store.shared_log(thread_id, "")
    # A log that cannot be read names no version. Reading its history raises the error.
    with root.mutex, suppress(OSError, CheckpointerError):
        root.refresh()
        if root.history.closed_by is None:
            return None
        return root.history.scan.read_closing_version()
    return None


def list_logs(store: Store, path: str, *, released: bool) -> list[str]:
    """Return logs of a thread; empty if it holds nothing.

    If the root has a live log, this is the only one returned.

    Args:
        store: the store.
        path: the directory of the thread.
        released: whether versions count.
    """
    root_log = layout.join(path, layout.LOG)
    if _is_complete(store.io.stat(root_log)):
        return [root_log]
    logs: list[str] = []
    for directory, name in list_thread_files(store, path):
        log = layout.join(directory, name)
        if name == layout.LOG:
            is_counted = _is_complete(store.io.stat(log))
        else:
            is_counted = released and layout.parse_version(name) is not None
        if is_counted:
            logs.append(log)
    return logs


def _is_complete(status: os.stat_result | None) -> bool:
    """Return whether the status of a log shows that it is not incomplete.

    What is not a regular file counts: its thread is listed, so that reading it raises the error.
    """
    if status is None:
        return False
    return status.st_size > HEADER_SIZE + OVERHEAD or not stat.S_ISREG(status.st_mode)


def iter_files(store: Store, path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the name and the status of each file below a directory."""
    for name in store.io.listdir(path):
        inner = layout.join(path, name)
        status = store.io.stat(inner)
        if status is None:
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from iter_files(store, inner)
        else:
            yield name, status


# All threads


def iter_threads(store: Store, *, released: bool) -> Iterator[tuple[str, str]]:
    """Yield the directory's name and the id of each thread that has a live log, in the order of the names.

    Reads no log of a thread whose id is plain or remembered, and that is not being released or
    deleted. A store may have 10,000 threads.

    Args:
        store: the store.
        released: whether a thread counts that has only versions.
    """
    names: list[str] = []
    ending: set[str | None] = set()
    """The directories whose thread may be in the middle of a release or a delete."""
    for name, is_directory in store.io.entries(store.root):
        if name.startswith(layout.RELEASING):
            ending.add(layout.parse_releasing_name(name))
        elif is_directory and name.startswith(layout.THREAD):
            names.append(name)
        elif layout.is_thread(name):
            _LOGGER.warning("%s is not listed, for it is not a directory", layout.join(store.root, name))
    for name in sorted(names):
        try:
            thread_id = _find_thread(store, name, released=released)
        except PermissionError as error:
            _LOGGER.warning("a thread is not listed: %s", error)
            continue
        if thread_id is None:
            continue
        if name in ending:
            version = find_begun_end(store, thread_id)
            if version == DELETED or (version is not None and not released):
                continue
        yield name, thread_id


def _find_thread(store: Store, name: str, *, released: bool) -> str | None:
    """Return the thread of a directory; None if it is not a thread's, or holds nothing."""
    directory = f"{store.root}{os.sep}{name}"
    # First the usual case: the id is remembered or plain, and there is a live log.
    thread_id = _find_known_id(store, name)
    if thread_id is not None:
        # `stat` would also check the directories on the way, which doubles the system calls.
        status = store.io.stat_unchecked(f"{directory}{os.sep}{layout.LOG}")
        if _is_complete(status):
            return thread_id
    if not layout.is_thread(name):
        return None
    logs = list_logs(store, directory, released=released)
    if not logs:
        return None
    return find_id(store, directory, logs, "thread")
