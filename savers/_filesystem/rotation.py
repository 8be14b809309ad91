"""Seals everything in a store with the current key.

Each log that has a record of another key, and each plain log, is rewritten: the live ones and the
released ones. If the process dies at any moment, each log is the old or the new one, and a second
rotation continues with those that are left.
"""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from graphkit.abc import RotationReport
from graphkit.errors import CheckpointCorruptionError, CheckpointErasedError, CheckpointFormatError
from savers._filesystem import catalog, layout, lifecycle, rewrite
from savers._filesystem.store import remove_temporary_logs
from savers._filesystem.verify import find_thread_id, list_files, list_others
from savers._log.frame import RELEASE
from savers._log.rewriter import needs_rotation

if TYPE_CHECKING:
    from collections.abc import Callable

    from savers._cipher import KeyRing
    from savers._filesystem.layout import ThreadDirectory
    from savers._filesystem.store import FileLog, Store
    from savers._filesystem.verify import ThreadFiles


def identify_thread(store: Store, files: ThreadFiles) -> str:
    """Return the id of the thread that some logs belong to.

    Raises:
        CheckpointFormatError: no log has it.
    """
    thread_id = find_thread_id(store, files)
    if thread_id is None:
        raise CheckpointFormatError(files.path, "its thread id cannot be read: repair it, naming the thread")
    return thread_id


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
    (files,) = list_files(store, thread_id)
    for path in files.logs:
        version = layout.parse_version(os.path.basename(path))
        if version is not None:
            note(path, partial(_rotate_version, store, key_ring, thread, path, version))
    set_aside = list_others(store, thread.path, layout.SALVAGED_PREFIXES)
    return RotationReport(rewritten=tuple(rewritten), set_aside=tuple(set_aside), erased=tuple(erased))


def _rotate_live(store: Store, key_ring: KeyRing, log: FileLog) -> bool:
    """Rewrite a live log if it needs it; return whether it did. The caller holds its mutex and the write lock."""
    remove_temporary_logs(store.io, os.path.dirname(log.path))
    # Then `make_ready` seals it.
    was_plain = log.refresh() and log.frames.seal is None
    lifecycle.make_ready(store, log)
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
    log = store.new_log(thread.in_namespace(namespace), path, expects_release=True)
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
