"""The end of a history: release it as a version, or delete the thread.

Each leaves, at whatever instant it is interrupted, what was there before or what is wanted, or a mark by which the next
holder of the thread's short lock finishes it. The caller holds that lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointerError
from savers._filesystem import layout, log, rewrite
from savers._filesystem.catalog import has_set_aside, holds_something, logs_of_thread, namespaces, versions

if TYPE_CHECKING:
    from savers._filesystem.store import Store

_LOGGER: Final = getLogger("graphkit")


def release(store: Store, thread_id: str) -> int | None:
    """Make the live logs of a thread its next version; None if there are no checkpoints.

    The RELEASE record at the end of the root's log decides; whoever finds it there finishes the work.
    """
    names = namespaces(store, thread_id)
    if not any(holds_something(store, thread_id, namespace) for namespace in names):
        return None
    version = (versions(store, thread_id) or [0])[-1] + 1
    # Those who list 10,000 threads cannot look at the end of each log: a name in the root tells them where to.
    store.io.close(store.io.open(_releasing_path(store, thread_id), write=True, create=True))
    store.io.fsync_dir(store.root)
    store.begun_releases[thread_id] = version
    finish_release(store, thread_id, version)
    del store.begun_releases[thread_id]
    return version


def _releasing_path(store: Store, thread_id: str) -> str:
    return layout.join(store.root, layout.releasing_name(layout.locate_thread(thread_id).name))


def finish_release(store: Store, thread_id: str, version: int) -> None:
    """Bring a release to its end, from wherever it stands."""
    _end_log(store, thread_id, "", version)
    inner = [namespace for namespace in namespaces(store, thread_id) if namespace]
    for namespace in [*inner, ""]:
        is_born = not namespace or _end_log(store, thread_id, namespace, version)
        directory = store.directory(thread_id, namespace)
        path = layout.join(directory, layout.LOG)
        if is_born:
            store.io.rename(path, layout.join(directory, layout.version_name(version)))
        else:
            store.io.unlink(path)
        store.io.fsync_dir(directory)
    _forget_release(store, thread_id)


def _forget_release(store: Store, thread_id: str) -> None:
    path = _releasing_path(store, thread_id)
    # The release is over. A name that stays costs a look at that thread's log when threads are listed.
    with suppress(OSError):
        if store.io.stat(path) is not None:
            store.io.unlink(path)


def _end_log(store: Store, thread_id: str, namespace: str, version: int) -> bool:
    """Append RELEASE, unless it is there; False if the log's creation never finished.

    The root's log is made if there is none, for its end decides about those of the namespaces.
    """
    history = store.new_writer(thread_id, namespace)
    try:
        is_live = history.refresh_to_write()
        if not is_live and history.closed_by is not None:
            # A release that was cut short, perhaps by a failed sync: no later sync of that file can be believed.
            rewrite.renew(store, history, history.end)
            return True
        if not is_live and namespace:
            return False
        history.finish(log.RELEASE, version)
        store.io.fsync(history.fd)
        if not is_live:
            store.sync_directories(thread_id, namespace)
        return True
    finally:
        history.close()


def delete(store: Store, thread_id: str, *, keep_lock: bool) -> bool:
    """Remove a thread; whether it held anything: a history, a version, or bytes that were set aside.

    `keep_lock`: a run that goes on holds the thread's run lock (or may), so its file is brought back: whoever waits for
    the lock keeps waiting, and whoever comes finds it.

    A TOMBSTONE at the end of each live log tells those who have it open. The root's decides, so it is on the disk
    before any other: a namespace's without it would later take a thread along that had gone on. The directory goes in
    one rename, so that a thread is there or not; what it held is removed afterwards.
    """
    directory = store.directory(thread_id)
    found = bool(logs_of_thread(store, directory, released=True)) or has_set_aside(store, directory)
    names = namespaces(store, thread_id)
    unended = set(names)
    for namespace in names if "" in names else names[: len(names) == 1]:
        history = store.new_writer(thread_id, namespace)
        try:
            if history.refresh_to_write():
                history.finish(log.TOMBSTONE, 0)
            if history.fd >= 0 and not namespace and len(names) > 1:
                store.io.fsync(history.fd)
            unended.discard(namespace)
        except (OSError, CheckpointerError):
            # A full disk or a damaged log must not keep anybody from deleting it.
            _LOGGER.info("%s is deleted without a last record", history.path)
            break
        finally:
            history.close()
    away = store.free_leftover(thread_id)
    if not store.swept:
        store.sweep()
    store.io.rename(directory, away)
    if keep_lock and store.io.stat(layout.join(away, layout.RUN_LOCK)) is not None:
        store.io.mkdir(directory)
        store.io.rename(layout.join(away, layout.RUN_LOCK), layout.join(directory, layout.RUN_LOCK))
    store.io.fsync_dir(store.root)
    _tell_readers(store, thread_id, away, unended)
    _forget_release(store, thread_id)
    store.begun_releases.pop(thread_id, None)
    stays = store.remove_tree(away)
    if stays:
        _LOGGER.warning(
            "thread %.80r is deleted, but %s stays, which graphkit did not make: remove it", thread_id, ", ".join(stays)
        )
    return found


def _tell_readers(store: Store, thread_id: str, away: str, namespaces: Iterable[str]) -> None:
    """End the logs of a thread that is gone: those who have them open shall know that it was deleted, not lost."""
    for namespace in namespaces:
        path = layout.join(away, layout.namespace_name(namespace), layout.LOG)
        history = store.new_writer(thread_id, namespace, path)
        with suppress(OSError, CheckpointerError):
            if history.refresh_to_write():
                history.finish(log.TOMBSTONE, 0)
        history.close()
