"""Brings appended records to the disk: at each put, every few seconds, or never."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from graphkit.errors import CheckpointerError
from savers._filesystem import log_copy
from savers._filesystem.log_bytes import FileId
from savers._options import Fsync
from savers._periodic_flush import PeriodicFlush

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from savers._filesystem.log_bytes import FileLogBytes
    from savers._filesystem.log_copy import SyncedLog

_LOGGER: Final = getLogger("graphkit")
_LONGEST_WAIT: Final = 0.0004
"""Seconds for which pending writes wait for the put that follows. A step of LangGraph puts its
checkpoint 0.1 to 0.3 ms after its writes, and a sync takes 0.15 ms on a fast disk."""
_MOST_SKIPPED: Final = 63
"""After waits in vain, so many writes to the log do not wait."""
_MOST_WAITING: Final = 2
"""The most callers that wait at the same time."""


class Ticket(NamedTuple):
    """Bytes that were appended and may not be on the disk. Keeps the log's descriptor open."""

    log: SyncedLog
    fd: int
    start: int
    end: int
    fid: int
    inode: int


def take_ticket(log: SyncedLog, start: int) -> Ticket:
    """Return a ticket for the bytes appended from `start` on; the caller holds the mutex."""
    frames = log.frames
    medium = frames.bytes
    medium.pins += 1
    # By position, because this is part of every put.
    return Ticket(log, medium.fd, start, frames.end, frames.fid, medium.inode)


def release_ticket(ticket: Ticket) -> None:
    """Release the descriptor of a ticket."""
    with ticket.log.mutex:
        ticket.log.frames.bytes.unpin()


def sync_bytes(
    medium: FileLogBytes, mutex: AbstractContextManager[object], fd: int, end: int, sync_names: Callable[[], None]
) -> None:
    """Bring the bytes of a log up to an offset to the disk.

    One sync covers what several threads have appended. After a failed sync, no later one can be
    trusted: on Linux the next fsync of the same file succeeds, and reading it back still returns
    what the disk does not have. The caller holds no lock, so that other callers do not wait for the
    disk.

    Args:
        medium: the bytes; the caller has pinned them.
        mutex: guards them.
        fd: the descriptor of the file to which the caller has appended.
        end: where the caller's record ends.
        sync_names: brings the names that lead to the file to the disk.

    Raises:
        OSError: the bytes may not be on the disk. They are marked as suspect.
    """
    with medium.sync_mutex:
        # Even if the file was closed since: the log could not be rewritten after the failed sync.
        if medium.is_suspect:
            raise OSError(errno.EIO, "an earlier sync of this file failed", medium.path)
        synced_end = end
        if medium.fd == fd:
            if medium.synced >= end and medium.is_name_synced:
                return
            synced_end = max(end, medium.appended_end)
        try:
            medium.io.fdatasync(fd)
            if not medium.is_name_synced:
                sync_names()
        except OSError as error:
            if isinstance(error, FileNotFoundError) and medium.io.stat(medium.path) is None:
                # The log was deleted meanwhile, so there is nothing to sync; or it was released,
                # which syncs it.
                return
            medium.is_suspect = True
            raise
        with mutex:
            if medium.is_suspect:
                # The system reports a failure once, and another sync has got this report.
                raise OSError(errno.EIO, "another sync of this file failed meanwhile", medium.path)
            if medium.fd != fd:
                return
            medium.synced = max(medium.synced, synced_end)
            medium.is_name_synced = True


def sync(ticket: Ticket, *, is_acknowledged: bool) -> None:
    """Bring the bytes of a ticket to the disk, and release the ticket.

    Args:
        ticket: the ticket.
        is_acknowledged: whether `put` has returned already.

    Raises:
        OSError: the bytes may not be on the disk. The log was rewritten, or is marked as suspect:
            nothing is stored in it until it has been rewritten.
    """
    log = ticket.log
    medium = log.frames.bytes
    names = partial(medium.sync_names, FileId(ticket.fid, ticket.inode))
    try:
        sync_bytes(medium, log.mutex, ticket.fd, ticket.end, names)
    except OSError:
        _rewrite_log(ticket, is_acknowledged=is_acknowledged)
        raise
    finally:
        release_ticket(ticket)


def _rewrite_log(ticket: Ticket, *, is_acknowledged: bool) -> None:
    """Rewrite the log after a failed sync, dropping unacknowledged records at its end."""
    log = ticket.log
    medium = log.frames.bytes
    assert medium.write_lock is not None
    with log.mutex, medium.write_lock:
        try:
            if not medium.is_suspect or not log.refresh_to_write():
                return
            is_last = medium.fd == ticket.fd and log.frames.end == ticket.end
            if is_last and not is_acknowledged:
                medium.unacknowledged = ticket.start, ticket.end
            log_copy.renew(log)
        except (OSError, CheckpointerError):
            _LOGGER.exception("%s could not be rewritten; nothing is stored in it until it can be", medium.path)
            medium.take_back(log.frames.end)
            log.close()


class SyncMode(Protocol):
    """When a saver waits for the disk."""

    worker_fsync: Fsync
    """The option of a saver for the same store in a worker process, which has no flush thread."""

    def take_ticket(self, log: SyncedLog, start: int, *, expects_put: bool) -> Ticket | None:
        """Take a ticket for the bytes appended from `start` on; the caller holds the mutex.

        Args:
            log: the log.
            start: where the bytes begin.
            expects_put: whether a put to this log will probably follow at once.
        """
        ...

    def settle(self, ticket: Ticket | None, *, expects_put: bool) -> None:
        """Do with a ticket what the mode demands before `put` returns; the caller holds no lock."""
        ...

    def flush(self) -> None:
        """Bring everything to the disk that the mode promises to bring there.

        Raises:
            OSError: something may not be on the disk.
        """
        ...

    def stop(self) -> None:
        """Stop the flush thread, if there is one; what is not on the disk can still be flushed."""
        ...


class SyncNever:
    """`fsync="never"`: the operating system decides when to write."""

    worker_fsync: Fsync = "never"

    def take_ticket(self, log: SyncedLog, start: int, *, expects_put: bool) -> Ticket | None:  # noqa: ARG002
        return None

    def settle(self, ticket: Ticket | None, *, expects_put: bool) -> None:
        pass

    def flush(self) -> None:
        pass

    def stop(self) -> None:
        pass


class _Waits:
    """How the pending writes of one log wait for the put that follows them."""

    def __init__(self) -> None:
        self.put_arrived = threading.Event()
        self.to_skip = 0
        """How many of the next pending writes do not wait."""
        self.in_vain = 0
        """How many were to be skipped after the last wait, if it was in vain."""


class SyncAlways:
    """`fsync="always"`: a put returns when its bytes are on the disk."""

    worker_fsync: Fsync = "always"

    def __init__(self) -> None:
        self._waiting = 0
        """About how many callers wait for a put."""
        self._waits: weakref.WeakKeyDictionary[SyncedLog, _Waits] = weakref.WeakKeyDictionary()
        """Of the logs to which LangGraph puts."""

    def take_ticket(self, log: SyncedLog, start: int, *, expects_put: bool) -> Ticket | None:
        if expects_put:
            self._waits.setdefault(log, _Waits()).put_arrived.clear()
        return take_ticket(log, start)

    def settle(self, ticket: Ticket | None, *, expects_put: bool) -> None:
        assert ticket is not None
        if expects_put:
            self._wait_for_put(ticket)
        sync(ticket, is_acknowledged=False)
        # After the sync, which the waiting callers would otherwise begin in its place, at the cost of
        # a change of threads.
        waits = self._waits.get(ticket.log)
        if waits is not None and not expects_put:
            waits.put_arrived.set()

    def _wait_for_put(self, ticket: Ticket) -> None:
        """Wait a moment for the put that will probably follow, so that one sync covers both."""
        # Not all threads of an executor may wait here: the puts need some of them. The counters are
        # not locked; a wrong count costs one wait more or less.
        waits = self._waits[ticket.log]
        if waits.to_skip:
            waits.to_skip -= 1
            return
        if self._waiting >= _MOST_WAITING:
            return
        self._waiting += 1
        try:
            has_arrived = waits.put_arrived.wait(_LONGEST_WAIT)
        finally:
            self._waiting -= 1
        if has_arrived or ticket.log.frames.end != ticket.end:
            waits.in_vain = 0
        else:
            # The caller puts only after the writes have returned: waiting is in vain.
            waits.in_vain = min(2 * waits.in_vain + 1, _MOST_SKIPPED)
            waits.to_skip = waits.in_vain

    def flush(self) -> None:
        pass

    def stop(self) -> None:
        pass


class SyncPeriodically:
    """`fsync=seconds`: a daemon thread syncs what was put, and ends when nothing is left."""

    worker_fsync: Fsync = "always"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._reset()
        _PERIODIC_MODES.add(self)

    def _reset(self) -> None:
        """Begin with nothing to sync, no thread, and a free mutex."""
        self._tickets: dict[tuple[int, int], Ticket] = {}
        self._mutex = threading.Lock()
        self._flushing = PeriodicFlush(self._seconds, self.flush, lambda: bool(self._tickets))

    def reset_after_fork(self) -> None:
        """Reset, in the child: it has no flush thread, and the parent syncs its own puts."""
        self._reset()

    def take_ticket(self, log: SyncedLog, start: int, *, expects_put: bool) -> Ticket | None:  # noqa: ARG002
        return take_ticket(log, start)

    def settle(self, ticket: Ticket | None, *, expects_put: bool) -> None:  # noqa: ARG002
        """Keep a ticket until the next flush; start the thread if there is none."""
        assert ticket is not None
        key = (id(ticket.log), ticket.fd)
        with self._mutex:
            earlier = self._tickets.get(key)
            self._tickets[key] = ticket if earlier is None else ticket._replace(start=earlier.start)
        self._flushing.start()
        if earlier is not None:
            release_ticket(earlier)

    def flush(self) -> None:
        with self._mutex:
            tickets = list(self._tickets.values())
            self._tickets = {}
        failure: OSError | None = None
        for ticket in tickets:
            try:
                sync(ticket, is_acknowledged=True)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def stop(self) -> None:
        self._flushing.stop()


_PERIODIC_MODES: Final[weakref.WeakSet[SyncPeriodically]] = weakref.WeakSet()


def _after_fork() -> None:
    for mode in list(_PERIODIC_MODES):
        mode.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def make_sync_mode(fsync: Fsync) -> SyncMode:
    """Return the mode that a checked option names."""
    if fsync == "never":
        return SyncNever()
    if isinstance(fsync, float):
        return SyncPeriodically(fsync)
    return SyncAlways()
