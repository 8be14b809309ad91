"""Finds and deletes threads that no process has written to for a while.

The files of a thread show when a process last wrote to it: each put, pending write, tag, release
and repair changes one of them. Reading does not, nor does taking the run lock.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from savers._filesystem import layout, lifecycle

if TYPE_CHECKING:
    from savers._filesystem.store import Store


def is_idle(store: Store, thread_id: str, since_ns: int) -> bool:
    """Return whether no process has written to a thread since a moment.

    Args:
        store: the store.
        thread_id: the thread.
        since_ns: the moment, in nanoseconds since 1970.

    Returns:
        False also if the thread has no files.
    """
    written_ns = _find_last_write(store, store.directory(thread_id))
    return 0 < written_ns < since_ns


def _find_last_write(store: Store, directory: str) -> int:
    """Return when a file of a directory was last written, in nanoseconds since 1970; 0 without files."""
    newest = 0
    for name in store.io.listdir(directory):
        if name == layout.RUN_LOCK:
            continue
        path = layout.join(directory, name)
        status = store.io.stat(path)
        if status is None:
            continue
        if stat.S_ISDIR(status.st_mode):
            newest = max(newest, _find_last_write(store, path))
        else:
            newest = max(newest, status.st_mtime_ns)
    return newest


def delete_if_idle(store: Store, thread_id: str, since_ns: int) -> bool:
    """Delete a thread if it is still idle; return whether it was deleted.

    The caller holds the run lock of the thread. Writers append under the write lock, so none can
    write between this check and the deletion.
    """
    with store.write_lock(thread_id):
        if not is_idle(store, thread_id, since_ns):
            return False
        lifecycle.delete(store, thread_id, keep_lock=False)
    store.logs.close_thread(thread_id)
    return True
