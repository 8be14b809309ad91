"""Brings live logs up to date before they are read or appended to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphkit.errors import CheckpointConflictError
from savers._filesystem import catalog, lifecycle, log_copy, rewrite
from savers._filesystem.store import WAS_REMOVED
from savers._log.frame import RELEASE

if TYPE_CHECKING:
    from savers._filesystem.store import FileLog, Store


def refresh_to_read(store: Store, log: FileLog) -> bool:
    """Bring a log up to date for reading. The caller holds its mutex.

    Returns:
        Whether the log has a live history, or is a released one. Of the live logs, the end of the
        root's decides for the namespaces.
    """
    if not log.refresh():
        return False
    if log.expects_release or not log.namespace:
        return True
    return catalog.find_begun_end(store, log.thread_id) is None


def is_ready(log: FileLog) -> bool:
    """Return whether a record can be appended to a log at once: no other process has written.

    The usual case of a put, in one system call, or two if zeros follow the last record.
    """
    frames = log.frames
    if frames.in_doubt or log.history.closed_by is not None or frames.must_be_sealed:
        return False
    return frames.bytes.is_ready(frames.end)


def make_ready(store: Store, log: FileLog) -> None:
    """Bring a log up to date for an append, if it is not, so that the next record can follow.

    Rewrites a log after a failed sync, and a plain log if the saver has a cipher; finishes a
    release or a delete. The caller holds the mutex of the log and the write lock of the thread.

    Raises:
        CheckpointConflictError: something other than a delete has removed the file of the open log.
        OSError: the log can only be read.
    """
    if is_ready(log):
        return
    medium = log.frames.bytes
    if medium.read_only_error is not None:
        # The file system may have become writable since.
        log.close()
    is_live = log.refresh_to_write()
    if log.was_removed:
        raise CheckpointConflictError(log.thread_id, WAS_REMOVED)
    if medium.read_only_error is not None:
        raise medium.read_only_error
    if medium.is_suspect and (is_live or not medium.is_open):
        log_copy.renew(log)
        is_live = log.refresh_to_write()
    if is_live and log.frames.must_be_sealed:
        rewrite.keep_all(store, log)
        is_live = log.refresh_to_write()
    if not is_live:
        finish_begun(store, log)


def finish_begun(store: Store, log: FileLog) -> int | None:
    """Finish the release or the delete that the end of a log shows as begun.

    The caller holds the mutex of the log and the write lock of the thread. The log is closed if
    there was one.

    Returns:
        The version, if it was a release.
    """
    if log.refresh_to_write() or log.history.closed_by is None:
        return None
    version = None
    if log.history.closed_by.type == RELEASE:
        version = log.history.read_closing_version()
        lifecycle.finish_release(store, log.thread_id, version)
    else:
        lifecycle.delete(store, log.thread_id, keep_lock=True)
    log.close()
    return version


def finish_begun_in_thread(store: Store, thread_id: str) -> None:
    """Finish a release or a delete of a thread; the caller holds the write lock of the thread."""
    for namespace in catalog.list_namespaces(store, thread_id):
        log = store.new_log(thread_id, namespace)
        try:
            finish_begun(store, log)
        finally:
            log.close()
