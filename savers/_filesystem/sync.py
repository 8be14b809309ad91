"""Brings appended records to the disk: at each put, every few seconds, or never."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from logging import getLogger
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from graphkit.errors import CheckpointerError
from savers._filesystem import log_copy
from savers._filesystem.store import FileId
from savers._options import Fsync

if TYPE_CHECKING:
    from savers._filesystem.file_log_writer import FileLogWriter
    from savers._filesystem.store import Store

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

    writer: FileLogWriter
    fd: int
    start: int
    end: int
    fid: int
    inode: int


def take_ticket(writer: FileLogWriter, start: int) -> Ticket:
    """Return a ticket for the bytes appended from `start` on; the caller holds the mutex."""
    writer.pins += 1
    # By position, because this is part of every put.
    return Ticket(writer, writer.fd, start, writer.end, writer.fid, writer.inode)


def release_ticket(ticket: Ticket) -> None:
    """Release the descriptor of a ticket."""
    with ticket.writer.mutex:
        ticket.writer.unpin()


def sync_ticket(store: Store, ticket: Ticket) -> None:
    """Bring the bytes of a ticket to the disk.

    One sync covers what several threads have appended. After a failed sync, no later one can be
    believed: on Linux the next fsync of the same file succeeds, and reading it back still returns
    what the disk does not have. The caller holds no lock, so that other callers do not wait for the
    disk.

    Raises:
        OSError: the bytes may not be on the disk. The log is marked as suspect.
    """
    writer, fd, _, end, fid, inode = ticket
    with writer.sync_mutex:
        synced_end = end
        if writer.fd == fd:
            if writer.suspect:
                raise OSError(errno.EIO, "an earlier sync of this file failed", writer.path)
            if writer.synced >= end and writer.creation_synced:
                return
            synced_end = writer.end
        try:
            store.io.fdatasync(fd)
            if not writer.creation_synced:
                store.sync_names(writer.thread_id, writer.namespace, FileId(fid, inode))
        except OSError as error:
            if isinstance(error, FileNotFoundError) and store.io.stat(writer.path) is None:
                # The log was deleted meanwhile, so there is nothing to sync; or it was released,
                # which syncs it.
                return
            writer.suspect = True
            raise
        with writer.mutex:
            if writer.fd != fd:
                return
            if writer.suspect:
                # The system reports a failure once, and another sync has got this report.
                raise OSError(errno.EIO, "another sync of this file failed meanwhile", writer.path)
            writer.synced = max(writer.synced, synced_end)
            writer.creation_synced = True


class Syncer:
    """Syncs tickets; rewrites a log after a failed sync."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def sync(self, ticket: Ticket, *, is_acknowledged: bool) -> None:
        """Bring the bytes of a ticket to the disk, and release the ticket.

        Args:
            ticket: the ticket.
            is_acknowledged: whether `put` has returned already.

        Raises:
            OSError: the bytes may not be on the disk. The log was rewritten, or is marked as
                suspect: nothing is stored in it until it has been rewritten.
        """
        try:
            sync_ticket(self._store, ticket)
        except OSError:
            self._rewrite_log(ticket, is_acknowledged=is_acknowledged)
            raise
        finally:
            release_ticket(ticket)

    def _rewrite_log(self, ticket: Ticket, *, is_acknowledged: bool) -> None:
        """Rewrite the log after a failed sync, dropping unacknowledged records at its end."""
        writer = ticket.writer
        with writer.mutex, self._store.write_lock(writer.thread_id):
            try:
                if not writer.suspect or not writer.refresh_to_write():
                    return
                is_last = writer.fd == ticket.fd and writer.end == ticket.end
                if is_last and not is_acknowledged:
                    writer.unacknowledged = ticket.start, ticket.end
                log_copy.renew(self._store, writer, writer.acknowledged_end)
            except (OSError, CheckpointerError):
                _LOGGER.exception(
                    "%s could not be rewritten; nothing is stored in it until it can be",
                    writer.path,
                )
                writer.cut_off_unacknowledged()


class SyncMode(Protocol):
    """When a saver waits for the disk."""

    worker_fsync: Fsync
    """The option of a saver for the same store in a worker process, which has no flush thread."""

    def take_ticket(self, writer: FileLogWriter, start: int) -> Ticket | None:
        """Take a ticket for the bytes appended from `start` on; the caller holds the mutex."""
        ...

    def settle(self, ticket: Ticket | None) -> None:
        """Do with a ticket what the mode demands before `put` returns; the caller holds no lock."""
        ...

    def wait_for_put(self, ticket: Ticket | None) -> None:
        """Wait a moment for a put that follows, if the mode syncs both; the caller holds no lock."""
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

    def take_ticket(self, writer: FileLogWriter, start: int) -> Ticket | None:  # noqa: ARG002 - as in every mode
        return None

    def settle(self, ticket: Ticket | None) -> None:
        pass

    def wait_for_put(self, ticket: Ticket | None) -> None:
        pass

    def flush(self) -> None:
        pass

    def stop(self) -> None:
        pass


class SyncAlways:
    """`fsync="always"`: a put returns when its bytes are on the disk."""

    worker_fsync: Fsync = "always"

    def __init__(self, syncer: Syncer) -> None:
        self._syncer = syncer
        self._waiting = 0
        """About how many callers wait for a put."""

    def take_ticket(self, writer: FileLogWriter, start: int) -> Ticket | None:
        return take_ticket(writer, start)

    def settle(self, ticket: Ticket | None) -> None:
        assert ticket is not None
        self._syncer.sync(ticket, is_acknowledged=False)

    def wait_for_put(self, ticket: Ticket | None) -> None:
        # Not all threads of an executor may wait here: the puts need some of them. The counters are
        # not locked; a wrong count costs one wait more or less.
        assert ticket is not None
        writer = ticket.writer
        if writer.waits_to_skip:
            writer.waits_to_skip -= 1
            return
        if self._waiting >= _MOST_WAITING:
            return
        self._waiting += 1
        try:
            has_arrived = writer.put_arrived.wait(_LONGEST_WAIT)
        finally:
            self._waiting -= 1
        if has_arrived or writer.end != ticket.end:
            writer.vain_waits = 0
        else:
            # The caller puts only after the writes have returned: waiting is in vain.
            writer.vain_waits = min(2 * writer.vain_waits + 1, _MOST_SKIPPED)
            writer.waits_to_skip = writer.vain_waits

    def flush(self) -> None:
        pass

    def stop(self) -> None:
        pass


class SyncPeriodically:
    """`fsync=seconds`: a daemon thread syncs what was put, and ends when nothing is left."""

    worker_fsync: Fsync = "always"

    def __init__(self, syncer: Syncer, seconds: float) -> None:
        self._syncer = syncer
        self._seconds = seconds
        self._reset()
        _PERIODIC_MODES.add(self)

    def _reset(self) -> None:
        """Begin with nothing to sync, no thread, and a free mutex."""
        self._tickets: dict[tuple[int, int], Ticket] = {}
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop_event = threading.Event()

    def reset_after_fork(self) -> None:
        """Reset, in the child: it has no flush thread, and the parent syncs its own puts."""
        self._reset()

    def take_ticket(self, writer: FileLogWriter, start: int) -> Ticket | None:
        return take_ticket(writer, start)

    def settle(self, ticket: Ticket | None) -> None:
        """Keep a ticket until the next flush; start the thread if there is none."""
        assert ticket is not None
        key = (id(ticket.writer), ticket.fd)
        with self._mutex:
            earlier = self._tickets.get(key)
            self._tickets[key] = ticket if earlier is None else ticket._replace(start=earlier.start)
            if self._thread is None:
                self._start_thread()
        if earlier is not None:
            release_ticket(earlier)

    def wait_for_put(self, ticket: Ticket | None) -> None:
        pass

    def _start_thread(self) -> None:
        self._stop_event = threading.Event()
        self._thread = threading.Thread(
            target=self._flush_periodically,
            args=(self._stop_event,),
            name="graphkit-flush",
            daemon=True,
        )
        self._thread.start()

    def flush(self) -> None:
        with self._mutex:
            tickets = list(self._tickets.values())
            self._tickets = {}
        failure: OSError | None = None
        for ticket in tickets:
            try:
                self._syncer.sync(ticket, is_acknowledged=True)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def stop(self) -> None:
        with self._mutex:
            thread = self._thread
            self._thread = None
            self._stop_event.set()
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join()

    def _flush_periodically(self, stop: threading.Event) -> None:
        while not stop.wait(self._seconds):
            try:
                self.flush()
            except OSError:
                # The log is suspect: the next put rewrites it before it appends anything.
                _LOGGER.exception("checkpoints could not be brought to the disk")
            with self._mutex:
                if not self._tickets:
                    if self._thread is threading.current_thread():
                        self._thread = None
                    return


_PERIODIC_MODES: Final[weakref.WeakSet[SyncPeriodically]] = weakref.WeakSet()


def _after_fork() -> None:
    for mode in list(_PERIODIC_MODES):
        mode.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def make_sync_mode(fsync: Fsync, store: Store) -> SyncMode:
    """Return the mode that a checked option names."""
    if fsync == "never":
        return SyncNever()
    syncer = Syncer(store)
    if isinstance(fsync, float):
        return SyncPeriodically(syncer, fsync)
    return SyncAlways(syncer)
