"""Brings live logs up to date before they are read or appended to."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from graphkit.errors import CheckpointConflictError
from savers._filesystem import catalog, lifecycle, log_copy, rewrite
from savers._filesystem.store import WAS_REMOVED
from savers._log import log

if TYPE_CHECKING:
    from savers._filesystem.file_log_writer import FileLogWriter
    from savers._filesystem.store import Store


def refresh_to_read(store: Store, writer: FileLogWriter) -> bool:
    """Bring a log up to date for reading. The caller holds its mutex.

    Returns:
        Whether the log has a live history. The end of the root's log decides for the namespaces.
    """
    if not writer.refresh():
        return False
    return not writer.namespace or catalog.find_begun_end(store, writer.thread_id) is None


def refresh_to_append(store: Store, writer: FileLogWriter) -> None:
    """Bring a log up to date for an append, if it is not; see `make_ready`."""
    if not writer.is_ready():
        make_ready(store, writer)


def make_ready(store: Store, writer: FileLogWriter) -> None:
    """Bring a log up to date for an append, so that the next record can follow.

    Rewrites a log after a failed sync, a log of version 1, and a plain log if the saver has a
    cipher; finishes a release or a delete. The caller holds the writer's mutex and the write lock
    of the thread.

    Raises:
        CheckpointConflictError: something other than a delete has removed the file of the open log.
        OSError: the log can only be read.
    """
    if writer.read_only_error is not None:
        # The file system may have become writable since.
        writer.close()
    is_live = writer.refresh_to_write()
    if writer.was_removed:
        raise CheckpointConflictError(writer.thread_id, WAS_REMOVED)
    if writer.read_only_error is not None:
        raise writer.read_only_error
    if is_live and (writer.suspect or writer.version < log.MAJOR):
        log_copy.renew(store, writer, writer.acknowledged_end)
        is_live = writer.refresh_to_write()
    if is_live and writer.must_be_sealed:
        rewrite.keep_all(store, writer)
        is_live = writer.refresh_to_write()
    if writer.suspect and writer.fd < 0:
        # The log is empty. No later sync of its file can be believed.
        with suppress(FileNotFoundError):
            store.io.unlink(writer.path)
        writer.suspect = False
    if not is_live:
        finish_begun(store, writer)


def finish_begun(store: Store, writer: FileLogWriter) -> int | None:
    """Finish the release or the delete that the end of a log shows as begun.

    The caller holds the writer's mutex and the write lock of the thread. The writer is closed if
    there was one.

    Returns:
        The version, if it was a release.
    """
    if writer.refresh_to_write() or writer.closed_by is None:
        return None
    version = None
    if writer.closed_by.type == log.RELEASE:
        version = writer.read_closing_version()
        lifecycle.finish_release(store, writer.thread_id, version)
    else:
        lifecycle.delete(store, writer.thread_id, keep_lock=True)
    writer.close()
    return version


def finish_begun_in_thread(store: Store, thread_id: str) -> None:
    """Finish a release or a delete of a thread; the caller holds the write lock of the thread."""
    for namespace in catalog.list_namespaces(store, thread_id):
        writer = store.new_writer(thread_id, namespace)
        try:
            finish_begun(store, writer)
        finally:
            writer.close()
