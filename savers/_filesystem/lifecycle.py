"""Ends a history: releases it as a version, or deletes the thread.

If the process dies at any moment, the store is unchanged, or the operation is complete, or a record
shows that it was begun and the next holder of the write lock finishes it. The caller holds the
write lock of the thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointerError
from savers._filesystem import layout, log_copy
from savers._filesystem.catalog import (
    has_checkpoints,
    has_salvaged_files,
    list_logs,
    list_namespaces,
    list_versions,
)
from savers._filesystem.leftovers import remove_tree
from savers._log.frame import RELEASE, TOMBSTONE

if TYPE_CHECKING:
    from savers._filesystem.store import Store

_LOGGER: Final = getLogger("graphkit")


def release(store: Store, thread_id: str) -> int | None:
    """Make the live logs of a thread its next version; return None if there are no checkpoints.

    From the RELEASE record at the end of the root's log on, the history is released. If the process
    dies, the next writer that finds the record finishes the release.
    """
    namespaces = list_namespaces(store, thread_id)
    if not any(has_checkpoints(store, thread_id, namespace) for namespace in namespaces):
        return None
    versions = list_versions(store, thread_id)
    version = versions[-1] + 1 if versions else 1
    for namespace in namespaces:
        if namespace:
            _sync_log(store, thread_id, namespace)
    _mark_as_ending(store, thread_id)
    store.io.fsync_dir(store.root)
    store.begun_releases[thread_id] = version
    finish_release(store, thread_id, version)
    del store.begun_releases[thread_id]
    return version


def _mark_as_ending(store: Store, thread_id: str) -> None:
    """Show in the root that the end of a thread's log may say that the thread has ended.

    A reader that lists 10,000 threads cannot read the end of each log.
    """
    store.io.close(store.io.open(_ending_path(store, thread_id), write=True, create=True))


def _sync_log(store: Store, thread_id: str, namespace: str) -> None:
    """Bring a live log to the disk, before the root's RELEASE record makes it a version.

    Otherwise a power loss could leave the record and a log that lacks its last checkpoints.
    """
    log = store.new_log(thread_id, namespace)
    try:
        if log.refresh_to_write():
            store.io.fsync(log.frames.bytes.fd)
    finally:
        log.close()


def _ending_path(store: Store, thread_id: str) -> str:
    return layout.join(store.root, layout.releasing_name(layout.locate_thread(thread_id).name))


def finish_release(store: Store, thread_id: str, version: int) -> None:
    """Finish a release, from any state in which a process left it."""
    _end_log(store, thread_id, "", version)
    for namespace in list_namespaces(store, thread_id):
        if namespace:
            is_complete = _end_log(store, thread_id, namespace, version)
            _move_log(store, thread_id, namespace, version, is_complete=is_complete)
    # The root's log is last: its RELEASE record decides for the namespaces.
    _move_log(store, thread_id, "", version, is_complete=True)
    _remove_ending_name(store, thread_id)


def _move_log(
    store: Store,
    thread_id: str,
    namespace: str,
    version: int,
    *,
    is_complete: bool,
) -> None:
    """Rename a live log to its version; remove it if it is incomplete."""
    directory = store.directory(thread_id, namespace)
    path = layout.join(directory, layout.LOG)
    if is_complete:
        store.io.rename(path, layout.join(directory, layout.version_name(version)))
    else:
        store.io.unlink(path)
    store.io.fsync_dir(directory)


def _remove_ending_name(store: Store, thread_id: str) -> None:
    path = _ending_path(store, thread_id)
    # The end is finished. If the name stays, listing threads reads the end of this log.
    with suppress(OSError):
        if store.io.stat(path) is not None:
            store.io.unlink(path)


def _end_log(store: Store, thread_id: str, namespace: str, version: int) -> bool:
    """Append RELEASE to a live log, unless it ends in RELEASE; False if the log is incomplete.

    Creates the root's log if there is none, because its end decides for the namespaces.
    """
    log = store.new_log(thread_id, namespace)
    try:
        is_live = log.refresh_to_write()
        if not is_live and log.history.closed_by is not None:
            # A release that was interrupted, perhaps by a failed sync: no later sync of that file
            # can be trusted.
            log_copy.renew(log)
            return True
        if not is_live and namespace:
            return False
        log.end(RELEASE, version)
        store.io.fsync(log.frames.bytes.fd)
        if not is_live:
            store.sync_directories(thread_id, namespace)
        return True
    finally:
        log.close()


def delete(store: Store, thread_id: str, *, keep_lock: bool) -> bool:
    """Delete a thread.

    A TOMBSTONE record at the end of each live log shows the processes that have it open that the
    thread was deleted. The root's TOMBSTONE decides, so it is on the disk before any other. If a
    namespace's were there without it, the next writer of that namespace would delete a thread that
    had continued. One rename removes the directory, so that a thread exists or does not. Its
    content is removed afterwards.

    Args:
        store: the store.
        thread_id: the thread.
        keep_lock: whether a run that continues holds the run lock of the thread, or may hold it.
            Then the lock file is moved back to a new directory: processes that wait for the lock
            keep waiting, and others find it.

    Returns:
        Whether the thread had a history, a version, or salvaged files.
    """
    directory = store.directory(thread_id)
    had_content = bool(list_logs(store, directory, released=True)) or has_salvaged_files(
        store,
        directory,
    )
    # Not brought to the disk: after a power loss, the thread is at worst listed, and empty.
    with suppress(OSError):
        _mark_as_ending(store, thread_id)
    open_namespaces = _append_tombstones(store, thread_id)
    removed = store.leftovers.choose_path(thread_id)
    store.leftovers.sweep_once()
    store.io.rename(directory, removed)
    if keep_lock:
        _restore_run_lock(store, directory, removed)
    store.io.fsync_dir(store.root)
    _append_late_tombstones(store, thread_id, removed, open_namespaces)
    _remove_ending_name(store, thread_id)
    store.begun_releases.pop(thread_id, None)
    kept_directories = remove_tree(store.io, removed)
    if kept_directories:
        _LOGGER.warning(
            "thread %.80r is deleted, but %s stays, because graphkit did not make it: remove it yourself",
            thread_id,
            ", ".join(kept_directories),
        )
    return had_content


def _append_tombstones(store: Store, thread_id: str) -> set[str]:
    """Append TOMBSTONE to the live logs of a thread, the root's first.

    Readers take a thread for deleted if its root's log ends in TOMBSTONE, and the next writer that
    finds any TOMBSTONE deletes the whole thread. Therefore, if there are several logs, the root's
    TOMBSTONE must be on the disk before the others are written; without a root log, none is written.

    Returns:
        The namespaces whose logs have none yet.
    """
    namespaces = list_namespaces(store, thread_id)
    open_namespaces = set(namespaces)
    if "" not in namespaces:
        return open_namespaces
    for namespace in namespaces:
        log = store.new_log(thread_id, namespace)
        medium = log.frames.bytes
        try:
            if log.refresh_to_write():
                log.end(TOMBSTONE, 0)
            if medium.fd >= 0 and not namespace and len(namespaces) > 1:
                store.io.fsync(medium.fd)
            open_namespaces.discard(namespace)
        except (OSError, CheckpointerError):
            # Deleting must work even if the disk is full or the log is damaged.
            _LOGGER.info("%s is deleted without a TOMBSTONE record", log.path)
            break
        finally:
            log.close()
    return open_namespaces


def _restore_run_lock(store: Store, directory: str, removed: str) -> None:
    """Move the run lock of a removed thread back to a new directory, if there is one."""
    lock_path = layout.join(removed, layout.RUN_LOCK)
    if store.io.stat(lock_path) is not None:
        store.io.mkdir(directory)
        store.io.rename(lock_path, layout.join(directory, layout.RUN_LOCK))


def _append_late_tombstones(
    store: Store,
    thread_id: str,
    removed: str,
    namespaces: Iterable[str],
) -> None:
    """Append TOMBSTONE to the logs of a removed thread, as far as possible.

    So the processes that have them open see that the thread was deleted, not lost.
    """
    for namespace in namespaces:
        path = layout.join(removed, layout.namespace_name(namespace), layout.LOG)
        log = store.new_log(thread_id, namespace, path)
        with suppress(OSError, CheckpointerError):
            if log.refresh_to_write():
                log.end(TOMBSTONE, 0)
        log.close()
