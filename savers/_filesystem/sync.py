"""Brings appended records to the disk: at each put, every few seconds, or never."""

from __future__ import annotations

import errno
import threading
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Final, NamedTuple

from graphkit.errors import CheckpointerError
from savers._filesystem import rewrite
from savers._filesystem.log_bytes import FileId
from savers._options import Fsync
from savers._threads import PeriodicFlush, call_after_fork

if TYPE_CHECKING:
    from savers._filesystem.log_bytes import FileLogBytes, LogFile
    from savers._filesystem.rewrite import SyncedLog

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
    file: LogFile
    start: int
    end: int
    fid: int


def release_ticket(ticket: Ticket) -> None:
    """Release the descriptor of a ticket."""
    with ticket.log.mutex:
        ticket.file.unpin()


def sync_bytes(ticket: Ticket) -> None:
    """Bring the bytes of a log up to the end of a ticket to the disk.

    After a failed sync, no later one can be trusted: on Linux the kernel marks the pages that it
    could not write as clean, so the next fsync of the same file succeeds, and reading it back still
    returns what the disk does not have. Therefore the bytes stay suspect until the log has been
    rewritten to another file.

    The caller holds no lock, so that other callers do not wait for the disk.

    Raises:
        OSError: the bytes may not be on the disk. They are marked as suspect.
    """
    log = ticket.log
    file = ticket.file
    medium = log.frames.bytes
    durability = medium.durability
    # One sync covers what several threads have appended: those that waited here find it done.
    with durability.sync_mutex:
        # Even if the file was closed since: the log could not be rewritten after the failed sync.
        if durability.is_suspect:
            raise OSError(errno.EIO, "an earlier sync of this file failed", medium.path)
        # The log may have been rewritten or closed since the ticket was taken. Then `durability` speaks
        # of another file, and the sync is for the ticket's file alone.
        if medium.file is file and durability.is_synced(ticket.end):
            return
        synced_end = max(ticket.end, file.appended_end)
        try:
            medium.io.fdatasync(file.fd)
            if not durability.is_name_synced:
                medium.sync_names(FileId(ticket.fid, file.inode))
        except OSError as error:
            if isinstance(error, FileNotFoundError) and medium.io.stat(medium.path) is None:
                # The log was deleted meanwhile, so there is nothing to sync; or it was released,
                # which syncs it.
                return
            durability.note_failed_sync()
            raise
        # The order of these two locks is the same everywhere: no caller waits for a sync while it
        # holds the mutex.
        with log.mutex:
            if durability.is_suspect:
                # The system reports a failure once, and another sync has got this report.
                raise OSError(errno.EIO, "another sync of this file failed meanwhile", medium.path)
            if medium.file is file:
                durability.note_synced(synced_end, with_names=True)


def sync(ticket: Ticket, *, is_acknowledged: bool) -> None:
    """Bring the bytes of a ticket to the disk, and release the ticket.

    Args:
        ticket: the ticket.
        is_acknowledged: whether `put` has returned already.

    Raises:
        OSError: the bytes may not be on the disk. The log was rewritten, or is marked as suspect:
            nothing is stored in it until it has been rewritten.
    """
    try:
        sync_bytes(ticket)
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
            if not medium.durability.is_suspect or not log.refresh_to_write():
                return
            is_last = medium.file is ticket.file and log.frames.end == ticket.end
            if is_last and not is_acknowledged:
                medium.durability.note_unacknowledged(ticket.start, ticket.end)
            rewrite.renew(log)
        except (OSError, CheckpointerError):
            _LOGGER.exception("%s could not be rewritten; nothing is stored in it until it can be", medium.path)
            _take_back(medium, log.frames.end)
            log.close()


def _take_back(medium: FileLogBytes, end: int) -> None:
    """Cut off the records that no put has acknowledged, if rewriting the log has failed, too.

    The disk may still hold them, so the bytes stay suspect, unless there are none now. The caller
    closes them.
    """
    durability = medium.durability
    start = durability.find_acknowledged_end(end)
    if medium.file is None or start == end:
        return
    try:
        is_empty = medium.file.truncate_or_overwrite(start, end) and not start
    except OSError:
        _LOGGER.exception("%s: a put that failed could not be undone; the next writer will", medium.path)
        return
    if is_empty:
        durability.note_replaced()
    else:
        durability.note_taken_back()


class SyncMode(ABC):
    """When a saver waits for the disk."""

    def take_ticket(self, log: SyncedLog, start: int, *, expects_put: bool) -> Ticket | None:  # noqa: ARG002 - for a mode that waits
        """Take a ticket for the bytes appended from `start` on; the caller holds the mutex.

        Args:
            log: the log.
            start: where the bytes begin.
            expects_put: whether a put to this log will probably follow at once.
        """
        frames = log.frames
        file = frames.bytes.file
        assert file is not None
        file.pin()
        # By position, because this is part of every put.
        return Ticket(log, file, start, frames.end, frames.fid)

    @abstractmethod
    def settle(self, ticket: Ticket | None, *, expects_put: bool) -> None:
        """Do with a ticket what the mode demands before `put` returns; the caller holds no lock."""

    def flush(self) -> None:  # noqa: B027 - most modes keep nothing back
        """Bring everything to the disk that the mode promises to bring there.

        Raises:
            OSError: something may not be on the disk.
        """

    def stop(self) -> None:  # noqa: B027 - most modes have no thread
        """Stop the flush thread, if there is one; what is not on the disk can still be flushed."""


class SyncNever(SyncMode):
    """`fsync="never"`: the operating system decides when to write."""

    def take_ticket(self, log: SyncedLog, start: int, *, expects_put: bool) -> Ticket | None:  # noqa: ARG002
        return None

    def settle(self, ticket: Ticket | None, *, expects_put: bool) -> None:
        pass


class _Waits:
    """How the pending writes of one log wait for the put that follows them."""

    def __init__(self) -> None:
        self._no_put = threading.Lock()
        """Locked while no put has followed. The methods of an Event are in Python: Ctrl-C within one leaves the lock of
        the Event held, and every later put to the log would wait for it."""
        self.to_skip = 0
        """How many of the next pending writes do not wait."""
        self.in_vain = 0
        """How many were to be skipped after the last wait, if it was in vain."""

    def expect_put(self) -> None:
        """Note that a put will probably follow."""
        self._no_put.acquire(blocking=False)

    def note_put(self) -> None:
        """End the wait for the put."""
        with suppress(RuntimeError):  # it has been noted already
            self._no_put.release()

    def wait(self) -> bool:
        """Wait a moment for the put; return whether it has come."""
        has_come = self._no_put.acquire(timeout=_LONGEST_WAIT)
        if has_come:
            self.note_put()  # for the others that wait
        return has_come


class SyncAlways(SyncMode):
    """`fsync="always"`: a put returns when its bytes are on the disk."""

    def __init__(self) -> None:
        self._waiting = 0
        """About how many callers wait for a put."""
        self._waits: weakref.WeakKeyDictionary[SyncedLog, _Waits] = weakref.WeakKeyDictionary()
        """Of the logs to which LangGraph puts."""

    def take_ticket(self, log: SyncedLog, start: int, *, expects_put: bool) -> Ticket | None:
        if expects_put:
            self._waits.setdefault(log, _Waits()).expect_put()
        return super().take_ticket(log, start, expects_put=expects_put)

    def settle(self, ticket: Ticket | None, *, expects_put: bool) -> None:
        assert ticket is not None
        if expects_put:
            self._wait_for_put(ticket)
        sync(ticket, is_acknowledged=False)
        # After the sync, which the waiting callers would otherwise begin in its place, at the cost of
        # a change of threads.
        waits = self._waits.get(ticket.log)
        if waits is not None and not expects_put:
            waits.note_put()

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
            has_arrived = waits.wait()
        finally:
            self._waiting -= 1
        if has_arrived or ticket.log.frames.end != ticket.end:
            waits.in_vain = 0
        else:
            # The caller puts only after the writes have returned: waiting is in vain.
            waits.in_vain = min(2 * waits.in_vain + 1, _MOST_SKIPPED)
            waits.to_skip = waits.in_vain


class SyncPeriodically(SyncMode):
    """`fsync=seconds`: a daemon thread syncs what was put, and ends when nothing is left."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()
        _PERIODIC_MODES.add(self)

    def reset(self) -> None:
        """Begin with nothing to sync, no thread, and a free mutex.

        So does the child of a fork: it has no flush thread, and the parent syncs its own puts.
        """
        self._tickets: dict[LogFile, Ticket] = {}
        self._mutex = threading.Lock()
        self._flushing = PeriodicFlush(self._seconds, self.flush, lambda: bool(self._tickets))

    def settle(self, ticket: Ticket | None, *, expects_put: bool) -> None:  # noqa: ARG002
        """Keep a ticket until the next flush; start the thread if there is none."""
        assert ticket is not None
        with self._mutex:
            earlier = self._tickets.get(ticket.file)
            if earlier is not None:
                ticket = ticket._replace(start=earlier.start)
            self._tickets[ticket.file] = ticket
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
call_after_fork(_PERIODIC_MODES, SyncPeriodically.reset)


def make_sync_mode(fsync: Fsync) -> SyncMode:
    """Return the mode that a checked option names."""
    if fsync == "never":
        return SyncNever()
    if isinstance(fsync, float):
        return SyncPeriodically(fsync)
    return SyncAlways()
