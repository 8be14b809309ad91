"""What a store contains: its threads, and of a thread its namespaces, versions and size. Changes nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final

from graphkit.errors import CheckpointerError
from savers._filesystem import layout, log, payloads

if TYPE_CHECKING:
    from savers._filesystem.store import Store

_LOGGER: Final = getLogger("graphkit")
_HEAD: Final = 1 << 10
_LONG_HEAD: Final = 1 << 20
"""Where the description of a log ends at the latest; nearly all end within the first KiB."""


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
    history = store.shared_writer(thread_id, "")
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
            namespace = find_id(store, directory, [layout.LOG], "ns")
            if namespace is not None:
                found.append(namespace)
    return found


def find_id(store: Store, directory: str, names: Iterable[str], key: str) -> str | None:
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
    logs = logs_of_thread(store, directory, released=released)
    return find_id(store, directory, logs, "thread") if logs else None


def _is_complete(found: os.stat_result | None) -> bool:
    if found is None:
        return False
    # What is no file cannot be read; its thread is listed, so that reading it tells why.
    return found.st_size > log.HEADER_SIZE + log.OVERHEAD or not stat.S_ISREG(found.st_mode)


def logs_of_thread(store: Store, directory: str, *, released: bool) -> list[str]:
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


def has_set_aside(store: Store, directory: str) -> bool:
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


def holds_something(store: Store, thread_id: str, namespace: str) -> bool:
    history = store.new_writer(thread_id, namespace)
    try:
        return history.refresh_to_write() and history.find_latest() is not None
    finally:
        history.close()
