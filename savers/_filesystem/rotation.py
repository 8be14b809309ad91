"""Seals everything in a store with the current key.

Each log that has a record of another key, and each plain log, is rewritten: the live ones and the
released ones. If the process dies at any moment, each log is the old or the new one, and a second
rotation continues with those that are left.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError
from savers._filesystem import catalog, layout, live_logs, rewrite
from savers._filesystem.leftovers import remove_temporary_logs
from savers._filesystem.log_checker import find_namespace, find_thread_id
from savers._filesystem.verify import list_files
from savers._log.frame import RELEASE
from savers._log.reports import RotationReport
from savers._log.rewriter import needs_rotation

if TYPE_CHECKING:
    from savers._cipher import KeyRing
    from savers._filesystem.store import FileLog, Store
    from savers._filesystem.verify import ThreadFiles


def list_threads(store: Store, thread_id: str | None) -> list[ThreadFiles]:
    """Return the logs of one thread, or of all threads (None), whether they can be read or not."""
    return [files for files in list_files(store, thread_id) if files.paths]


def identify_thread(store: Store, files: ThreadFiles) -> str:
    """Return the id of the thread that some logs belong to.

    Raises:
        CheckpointFormatError: no log has it.
    """
    thread_id = find_thread_id(store, files.directory_name, files.paths)
    if thread_id is None:
        path = layout.join(store.root, files.directory_name)
        raise CheckpointFormatError(path, "its thread id cannot be read: repair it, naming the thread")
    return thread_id


def rotate_thread(store: Store, key_ring: KeyRing, thread_id: str) -> RotationReport:
    """Seal all logs of a thread with the current key. Waits for no run.

    Raises:
        CheckpointKeyError: a key is missing or wrong.
        CheckpointCorruptionError: a log is damaged. In both cases, that log is unchanged.
    """
    rewritten: list[str] = []
    for namespace in catalog.list_namespaces(store, thread_id):
        log = store.shared_log(thread_id, namespace)
        with log.mutex, store.write_lock(thread_id):
            remove_temporary_logs(store.io, os.path.dirname(log.path))
            was_plain = _is_plain(log)
            live_logs.make_ready(store, log)
            if not log.is_open:
                continue
            if needs_rotation(log, key_ring):
                rewrite.keep_all(store, log)
                rewritten.append(log.path)
            elif was_plain:
                # `make_ready` has sealed it.
                rewritten.append(log.path)
    set_aside: list[str] = []
    for files in list_files(store, thread_id):
        for path in files.paths:
            version = layout.parse_version(os.path.basename(path))
            if version is not None and _rotate_version(store, key_ring, thread_id, path, version):
                rewritten.append(path)
        for directory in sorted({os.path.dirname(path) for path in files.paths}):
            set_aside += _list_salvaged(store, directory)
    return RotationReport(
        rewritten=tuple(os.path.relpath(path, store.root) for path in rewritten),
        set_aside=tuple(os.path.relpath(path, store.root) for path in set_aside),
    )


def _is_plain(log: FileLog) -> bool:
    return log.refresh() and log.frames.seal is None


def _rotate_version(store: Store, key_ring: KeyRing, thread_id: str, path: str, version: int) -> bool:
    """Rewrite a released log if it needs it; return whether it did."""
    namespace = find_namespace(store, os.path.dirname(path))
    if namespace is None:
        raise CheckpointFormatError(path, "its namespace cannot be read: repair it")
    log = store.new_log(thread_id, namespace, path, expects_release=True)
    with store.write_lock(thread_id):
        try:
            remove_temporary_logs(store.io, os.path.dirname(path))
            log.refresh()
            if log.is_open and log.history.closed_by is None:
                reason = "the end of the released history is missing"
                raise CheckpointCorruptionError(path, log.frames.end, reason)
            if not log.is_open or not needs_rotation(log, key_ring):
                return False
            rewrite.keep_all(store, log, ending=(RELEASE, version))
            return True
        finally:
            log.close()


def _list_salvaged(store: Store, directory: str) -> list[str]:
    names = sorted(store.io.listdir(directory))
    return [layout.join(directory, name) for name in names if name.startswith(layout.SALVAGED_PREFIXES)]
