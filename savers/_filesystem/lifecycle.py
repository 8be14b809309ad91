"""Whole threads: brings live logs up to date, releases them as versions, deletes threads, seals them with new keys.

If the process dies at any moment, the store is unchanged, or the operation is complete, or a record
shows that it was begun and the next holder of the write lock finishes it. The caller holds the
write lock of the thread, except to read.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing, suppress
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Final

from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointErasedError,
    CheckpointerError,
    CheckpointFormatError,
    ThreadBusyError,
)
from savers._filesystem import catalog, layout, rewrite
from savers._filesystem.lock import RunLock
from savers._filesystem.log_bytes import ReleasedFileBytes
from savers._filesystem.store import WAS_REMOVED, remove_temporary_logs, remove_tree
from savers._log.frame import RELEASE, TOMBSTONE
from savers._log.rewriter import needs_rotation

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphkit.abc import RotationReport
    from savers._cipher import KeyRing
    from savers._filesystem.layout import ThreadDirectory
    from savers._filesystem.store import FileLog, Store

_LOGGER: Final = getLogger("graphkit")


# Live logs


def refresh_to_read(store: Store, log: FileLog) -> bool:
    """Bring a log up to date for reading. The caller holds its mutex.

    Returns:
        Whether the log has a live history, or is a released one. Of the live logs, the end of the
        root's decides for the namespaces.
    """
    is_found = log.refresh()
    medium = log.frames.bytes
    if isinstance(medium, ReleasedFileBytes):
        has_ended = log.history.scan.closed_by is not None
        medium.check_release(log.frames.end, is_found=is_found, has_ended=has_ended)
        return is_found
    if not is_found or not log.namespace:
        return is_found
    return catalog.find_begun_end(store, log.thread_id) is None


def make_ready(store: Store, log: FileLog) -> None:
    """Bring a log up to date for an append, if it is not, so that the next record can follow.

    Rewrites a log after a failed sync, and a plain log if the saver has a cipher; finishes a
    release or a delete. The caller holds the mutex of the log and the write lock of the thread.

    Raises:
        CheckpointConflictError: something other than graphkit has removed the file of the open log.
        OSError: the log can only be read.
    """
    frames = log.frames
    medium = frames.bytes
    # The usual case: no other process has written since. `is_ready` asks the file, so it is last.
    needs_work = frames.in_doubt or log.history.scan.closed_by is not None or frames.must_be_sealed
    file = medium.file
    if file is not None and not needs_work and not medium.durability.is_suspect and file.is_ready(frames.end):
        return
    if file is not None and file.read_only_error is not None:
        # The file system may have become writable since.
        log.close()
    is_live = log.refresh_to_write()
    if log.was_removed:
        raise CheckpointConflictError(log.thread_id, WAS_REMOVED)
    if medium.durability.is_suspect and (is_live or not medium.is_open):
        rewrite.renew(log)
        is_live = log.refresh_to_write()
    if is_live and frames.must_be_sealed:
        rewrite.keep_all(store, log)
        is_live = log.refresh_to_write()
    if not is_live:
        finish_begun(store, log)


def finish_begun(store: Store, log: FileLog) -> int | None:
    """Finish the release or the delete that the end of a log shows as begun.

    The caller holds the mutex of the log. The log is closed if there was one.

    Returns:
        The version, if it was a release.
    """
    log.refresh_to_write()
    if log.history.closed_by is None:
        return None
    thread = store.locate(log.thread_id)
    version = None
    if log.history.closed_by.type == RELEASE:
        version = log.history.scan.read_closing_version()
        finish_release(store, thread, version)
    else:
        delete(store, thread, keep_lock=True)
    log.close()
    return version


def finish_begun_in_thread(store: Store, thread: ThreadDirectory) -> None:
    """Finish a release or a delete of a thread that a process began."""
    for namespace in catalog.list_namespaces(store, thread):
        with closing(store.new_log(thread.thread_id, namespace)) as log:
            finish_begun(store, log)


# Release


def release(store: Store, thread: ThreadDirectory) -> int | None:
    """Make the live logs of a thread its next version; return None if there are no checkpoints.

    From the RELEASE record at the end of the root's log on, the history is released. If the process
    dies, the next writer that finds the record finishes the release. No end has been begun: the caller
    has the write lock, and has finished what it found.
    """
    namespaces = catalog.list_namespaces(store, thread)
    has_checkpoints = False
    for namespace in namespaces:
        with closing(store.new_log(thread.thread_id, namespace)) as log:
            is_live = log.refresh_to_write()
            has_checkpoints = has_checkpoints or (is_live and log.history.find_latest() is not None)
            if is_live and namespace:
                # Before the root's RELEASE record makes it a version. Otherwise a power loss could leave the
                # record and a log that lacks its last checkpoints.
                store.io.fsync(log.frames.bytes.fd)
    if not has_checkpoints:
        return None
    version = 1 + max(catalog.find_finished_versions(store, thread), default=0)
    _mark_as_ending(store, thread)
    store.io.fsync_dir(store.root)
    store.begun_releases[thread.thread_id] = version
    finish_release(store, thread, version)
    del store.begun_releases[thread.thread_id]
    return version


def _mark_as_ending(store: Store, thread: ThreadDirectory) -> None:
    """Show in the root that the end of a thread's log may say that the thread has ended.

    A reader that lists 10,000 threads cannot read the end of each log.
    """
    store.io.close(store.io.open(thread.ending_mark, write=True, create=True))


def finish_release(store: Store, thread: ThreadDirectory, version: int) -> None:
    """Finish a release, from any state in which a process left it."""
    io = store.io
    _end_log(store, thread, version)
    for namespace in filter(None, catalog.list_namespaces(store, thread)):
        directory = thread.in_namespace(namespace)
        if _end_log(store, directory, version):
            io.rename(directory.live_log, directory.released_log(version))
        else:
            io.unlink(directory.live_log)
        io.fsync_dir(directory.path)
    # The root's log is last: its RELEASE record decides for the namespaces.
    io.rename(thread.live_log, thread.released_log(version))
    io.fsync_dir(thread.path)
    _remove_ending_mark(store, thread)


def _remove_ending_mark(store: Store, thread: ThreadDirectory) -> None:
    # The end is finished. If the name stays, listing threads reads the end of this log.
    with suppress(OSError):
        if store.io.stat(thread.ending_mark) is not None:
            store.io.unlink(thread.ending_mark)


def _end_log(store: Store, directory: ThreadDirectory, version: int) -> bool:
    """Append RELEASE to a live log, unless it ends in RELEASE; False if the log is incomplete.

    Creates the root's log if there is none, because its end decides for the namespaces.
    """
    with closing(store.new_log(directory.thread_id, directory.namespace)) as log:
        is_live = log.refresh_to_write()
        if log.history.closed_by is not None:
            # A release that was interrupted, perhaps by a failed sync: no later sync of that file
            # can be trusted.
            rewrite.renew(log)
            return True
        if not is_live and directory.namespace:
            return False
        log.end(RELEASE, version)
        store.io.fsync(log.frames.bytes.fd)
        if not is_live:
            store.sync_directories(directory)
        return True


# Delete


def delete(store: Store, thread: ThreadDirectory, *, keep_lock: bool) -> bool:
    """Delete a thread.

    A TOMBSTONE record at the end of each live log shows the processes that have it open that the
    thread was deleted. The root's TOMBSTONE decides, so it is on the disk before any other. If a
    namespace's were there without it, the next writer of that namespace would delete a thread that
    had continued. One rename removes the directory, so that a thread exists or does not. Its
    content is removed afterwards.

    Args:
        store: the store.
        thread: the thread.
        keep_lock: whether a run that continues holds the run lock of the thread, or may hold it.
            Then the lock file is moved back to a new directory: processes that wait for the lock
            keep waiting, and others find it.

    Returns:
        Whether the thread had a history, a version, or salvaged files.
    """
    io = store.io
    logs = catalog.list_logs(store, thread.path, released=True)
    had_content = bool(logs or catalog.list_others(store, thread.path, layout.SALVAGED_PREFIXES))
    # Not brought to the disk: after a power loss, the thread is at worst listed, and empty.
    with suppress(OSError):
        _mark_as_ending(store, thread)
    open_namespaces = _append_tombstones(store, thread)
    removed = store.leftovers.choose_path(thread.name)
    store.leftovers.sweep_once()
    io.rename(thread.path, removed)
    lock_path = layout.join(removed, layout.RUN_LOCK)
    if keep_lock and io.stat(lock_path) is not None:
        io.mkdir(thread.path)
        io.rename(lock_path, thread.run_lock)
    io.fsync_dir(store.root)
    # So the processes that have the other logs open see that the thread was deleted, not lost; as far as possible.
    for namespace in open_namespaces:
        path = layout.join(removed, layout.namespace_name(namespace), layout.LOG)
        log = store.new_log_at(path, thread.in_namespace(namespace))
        with closing(log), suppress(OSError, CheckpointerError):
            if log.refresh_to_write():
                log.end(TOMBSTONE, 0)
    _remove_ending_mark(store, thread)
    store.begun_releases.pop(thread.thread_id, None)
    kept_directories = remove_tree(io, removed)
    if kept_directories:
        names = ", ".join(kept_directories)
        message = "thread %.80r is deleted, but %s stays, because graphkit did not make it: remove it yourself"
        _LOGGER.warning(message, thread.thread_id, names)
    return had_content


def _append_tombstones(store: Store, thread: ThreadDirectory) -> set[str]:
    """Append TOMBSTONE to the live logs of a thread, the root's first.

    Readers take a thread for deleted if its root's log ends in TOMBSTONE, and the next writer that
    finds any TOMBSTONE deletes the whole thread. Therefore, if there are several logs, the root's
    TOMBSTONE must be on the disk before the others are written; without a root log, none is written.

    Returns:
        The namespaces whose logs have none yet.
    """
    namespaces = catalog.list_namespaces(store, thread)
    open_namespaces = set(namespaces)
    if "" not in namespaces:
        return open_namespaces
    for namespace in namespaces:
        with closing(store.new_log(thread.thread_id, namespace)) as log:
            medium = log.frames.bytes
            try:
                if log.refresh_to_write():
                    log.end(TOMBSTONE, 0)
                if medium.file is not None and not namespace and len(namespaces) > 1:
                    store.io.fsync(medium.fd)
            except (OSError, CheckpointerError):
                # Deleting must work even if the disk is full or the log is damaged.
                _LOGGER.info("%s is deleted without a TOMBSTONE record", log.path)
                break
            open_namespaces.discard(namespace)
    return open_namespaces


def erase_deleted(store: Store) -> list[str]:
    """Remove what deletes that did not finish have left, and names of threads; return why some of it stays."""
    io = store.io
    store.leftovers.sweep()
    marked = {mark: layout.parse_releasing_name(mark) for mark in io.listdir(store.root)}
    marks = {mark: name for mark, name in marked.items() if name is not None}
    unused = [name for name in store.directories_in(store.root, layout.is_thread) if _has_only_lock(store, name)]
    if marks or unused:
        with ExitStack() as locks:
            # What is marked, and what is empty, may be about to change. The name of a directory does not tell which
            # lock excludes the writers of its thread.
            for lock in store.all_write_locks():
                locks.enter_context(lock)
            for mark, name in marks.items():
                path = layout.join(store.root, name)
                logs = catalog.list_logs(store, path, released=True)
                thread_id = catalog.find_id(store, path, logs, "thread") if logs else None
                if thread_id is not None:
                    finish_begun_in_thread(store, store.locate(thread_id))
                if _has_only_lock(store, name):
                    with suppress(FileNotFoundError):
                        io.unlink(layout.join(store.root, mark))
            for name in (*unused, *marks.values()):
                _remove_unused(store, name)
    kept = sum(map(layout.is_leftover, io.listdir(store.root)))
    if not kept:
        return []
    what = "1 directory of a deleted thread stays" if kept == 1 else f"{kept} directories of deleted threads stay"
    advice = "remove what graphkit did not make there, or wait for the process that deletes"
    return [f"{what} in {store.root}, with a name that begins with tmp-t-: {advice}"]


def _has_only_lock(store: Store, name: str) -> bool:
    """Return whether the directory of a thread has nothing but a run lock, or is gone."""
    return {*store.io.listdir(layout.join(store.root, name))} <= {layout.RUN_LOCK}


def _remove_unused(store: Store, name: str) -> None:
    """Remove the directory of a thread that has nothing but a run lock, unless a run holds it."""
    io = store.io
    path = layout.join(store.root, name)
    lock_path = layout.join(path, layout.RUN_LOCK)
    if io.stat(path) is None or not _has_only_lock(store, name):
        return
    # Whoever waits for the lock finds that its file is not at the path any more, and makes another one.
    with (
        suppress(ThreadBusyError),
        RunLock(io, lock_path, name, lambda: io.open(lock_path, write=True, create=True), 0.0).hold(),
    ):
        removed = store.leftovers.choose_path(name)
        io.rename(path, removed)
        io.fsync_dir(store.root)
        remove_tree(io, removed)


# Idle threads


def is_idle(store: Store, thread: ThreadDirectory, since_ns: int) -> bool:
    """Return whether no process has written to a thread since a moment.

    The files of a thread show when a process last wrote to it: each put, pending write, tag, release
    and repair changes one of them. Reading does not, nor does taking the run lock.

    Args:
        store: the store.
        thread: the thread.
        since_ns: the moment, in nanoseconds since 1970.

    Returns:
        False also if the thread has no files.
    """
    files = catalog.iter_files(store, thread.path)
    written_ns = max((status.st_mtime_ns for name, status in files if name != layout.RUN_LOCK), default=0)
    return 0 < written_ns < since_ns


# Keys
#
# Each log that has a record of another key, and each plain log, is rewritten: the live ones and the
# released ones. If the process dies at any moment, each log is the old or the new one, and a second
# rotation continues with those that are left.


def rotate_thread(store: Store, key_ring: KeyRing, thread_id: str) -> RotationReport:
    """Seal all logs of a thread with the current key. Waits for no run.

    Raises:
        CheckpointKeyError: a key is missing or wrong.
        CheckpointCorruptionError: a log is damaged. In both cases, that log is unchanged.
    """
    thread = store.locate(thread_id)
    rewritten: list[str] = []
    erased: list[str] = []

    def note(path: str, rotate: Callable[[], bool]) -> None:
        try:
            if rotate():
                rewritten.append(os.path.relpath(path, store.root))
        except CheckpointErasedError:
            erased.append(os.path.relpath(path, store.root))

    for namespace in catalog.list_namespaces(store, thread):
        log = store.shared_log(thread_id, namespace)
        with log.mutex, store.write_lock(thread):
            note(log.path, partial(_rotate_live, store, key_ring, log))
    for directory, name in sorted(catalog.list_thread_files(store, thread.path)):
        version = layout.parse_version(name)
        if version is not None:
            path = layout.join(directory, name)
            note(path, partial(_rotate_version, store, key_ring, thread, path, version))
    set_aside = catalog.list_others(store, thread.path, layout.SALVAGED_PREFIXES)
    from graphkit.abc import RotationReport

    return RotationReport(rewritten=tuple(rewritten), set_aside=tuple(set_aside), erased=tuple(erased))


def _rotate_live(store: Store, key_ring: KeyRing, log: FileLog) -> bool:
    """Rewrite a live log if it needs it; return whether it did. The caller holds its mutex and the write lock."""
    remove_temporary_logs(store.io, os.path.dirname(log.path))
    # Then `make_ready` seals it.
    was_plain = log.refresh() and log.frames.seal is None
    make_ready(store, log)
    if not log.is_open:
        return False
    is_old = needs_rotation(log, key_ring)
    if is_old:
        rewrite.keep_all(store, log)
    return is_old or was_plain


def _rotate_version(store: Store, key_ring: KeyRing, thread: ThreadDirectory, path: str, version: int) -> bool:
    """Rewrite a released log if it needs it; return whether it did."""
    directory = os.path.dirname(path)
    namespace = catalog.find_namespace(store, directory)
    if namespace is None:
        raise CheckpointFormatError(path, "its namespace cannot be read: repair it")
    log = store.new_log_at(path, thread.in_namespace(namespace), expects_release=True)
    with store.write_lock(thread), closing(log):
        remove_temporary_logs(store.io, directory)
        log.refresh()
        if log.is_open and log.history.closed_by is None:
            reason = "the end of the released history is missing"
            raise CheckpointCorruptionError(path, log.frames.end, reason)
        if not log.is_open or not needs_rotation(log, key_ring):
            return False
        rewrite.keep_all(store, log, ending=(RELEASE, version))
        return True
