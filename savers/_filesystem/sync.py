"""When bytes must be on the disk: tickets for what was appended, and the flusher of `fsync=seconds`."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from savers._filesystem.log_writer import LogWriter
    from savers._filesystem.store import Store

_LOGGER: Final = getLogger("graphkit")


class Ticket(NamedTuple):
    """Bytes that were appended and are not known to be on the disk. The log's descriptor is pinned meanwhile."""

    history: LogWriter
    fd: int
    start: int
    end: int


def take_ticket(history: LogWriter, start: int) -> Ticket:
    """A ticket for what was appended from `start` on; the caller holds the log's mutex."""
    history.pins += 1
    return Ticket(history, history.fd, start, history.end)


def give_back(ticket: Ticket) -> None:
    """Let the descriptor go."""
    with ticket.history.mutex:
        ticket.history.unpin()


def sync(store: Store, ticket: Ticket) -> None:
    """Bring a ticket's bytes to the disk; the caller holds no lock, so that nobody waits for the disk but who must.

    One sync covers what several threads have appended. After a failure nothing that follows can be believed: on Linux
    the next fsync of the same file succeeds and reading it back still shows what the disk does not have.

    Raises:
        OSError: they may not be there. The log is marked as suspect.
    """
    history, fd = ticket.history, ticket.fd
    with history.sync_mutex:
        if history.fd == fd:
            if history.suspect:
                raise OSError(errno.EIO, "an earlier sync of this file failed", history.path)
            if history.synced >= ticket.end and history.creation_synced:
                return
        mark = history.end if history.fd == fd else ticket.end
        try:
            store.io.fdatasync(fd)
            if not history.creation_synced:
                store.sync_directories(history.thread_id, history.namespace)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and store.io.stat(history.path) is None:
                return  # Deleted meanwhile, and with it what there was to sync; or released, which syncs.
            history.suspect = True
            raise
        with history.mutex:
            if history.fd == fd:
                if history.suspect:  # The system tells a failure once, and that was somebody else's sync.
                    raise OSError(errno.EIO, "another sync of this file failed meanwhile", history.path)
                history.synced, history.creation_synced = max(history.synced, mark), True


class Flusher:
    """Syncs what was put every so many seconds, in a daemon thread that ends when there is nothing to do."""

    def __init__(self, seconds: float | None, settle: Callable[[Ticket], None]) -> None:
        self._seconds, self._settle = seconds, settle
        self._forget()
        _FLUSHERS.add(self)

    def _forget(self) -> None:
        """Begin with nothing to sync, no thread, and a mutex that is free."""
        self._tickets: dict[tuple[int, int], Ticket] = {}
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def after_fork(self) -> None:
        """In the child: the thread did not come along, and what the parent has put is the parent's to sync."""
        self._forget()

    def add(self, ticket: Ticket) -> None:
        """Take over a ticket."""
        assert self._seconds is not None
        key = (id(ticket.history), ticket.fd)
        with self._mutex:
            earlier = self._tickets.get(key)
            self._tickets[key] = ticket if earlier is None else ticket._replace(start=earlier.start)
            if self._thread is None:
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._stop, self._seconds), name="graphkit-flush", daemon=True
                )
                self._thread.start()
        if earlier is not None:
            give_back(earlier)

    def flush(self) -> None:
        """Sync everything now.

        Raises:
            OSError: something may not be on the disk.
        """
        with self._mutex:
            tickets, self._tickets = list(self._tickets.values()), {}
        failure: OSError | None = None
        for ticket in tickets:
            try:
                self._settle(ticket)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """End the thread; what is still to be synced stays."""
        with self._mutex:
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join()

    def _run(self, stop: threading.Event, seconds: float) -> None:
        while not stop.wait(seconds):
            try:
                self.flush()
            except OSError:
                # The log is marked: it is written anew before anything else is accepted.
                _LOGGER.exception("checkpoints could not be brought to the disk")
            with self._mutex:
                if not self._tickets:
                    if self._thread is threading.current_thread():
                        self._thread = None
                    return


_FLUSHERS: Final[weakref.WeakSet[Flusher]] = weakref.WeakSet()


def _after_fork() -> None:
    for flusher in list(_FLUSHERS):
        flusher.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
