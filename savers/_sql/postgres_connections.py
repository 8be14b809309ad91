"""The connections to PostgreSQL that statements are executed on: our own, or those of the application."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from graphkit.errors import CheckpointStorageError
from savers._sql.database import Backoff
from savers._sql.postgres_session import Pool, PoolError, PostgresSession

if TYPE_CHECKING:
    import psycopg

_MOST: Final = 10
"""The most connections that are open at the same time."""
_LONGEST_IDLE: Final = 60.0
"""Seconds after which a connection is closed that nothing has used."""
_LENT: Final[WeakKeyDictionary[Any, threading.Lock]] = WeakKeyDictionary()
"""The locks of single connections: one for all savers that were given the same connection."""
_LENT_GUARD: Final = threading.Lock()
_FIRST_WAIT: Final = 0.01
_LONGEST_WAIT: Final = 0.25


class Connections(ABC):
    """Lends connections that work, or did a microsecond ago."""

    @abstractmethod
    def take(self, timeout: float) -> PostgresSession:
        """Return a connection in autocommit mode; the caller gives it back.

        Args:
            timeout: seconds to wait for a connection that is free, and for a server that restarts.

        Raises:
            CheckpointStorageError: there was none.
        """

    @abstractmethod
    def give_back(self, session: PostgresSession) -> None:
        """Take back a connection that is in no transaction, or that was lost."""

    def close(self) -> None:  # noqa: B027 - those of the application stay open
        """Close the connections that are not lent, if they are our own."""


class OwnConnections(Connections):
    """Keeps connections open from one statement to the next.

    A pool of psycopg connects in the background: its callers wait for the end of their timeout and
    do not learn the reason when a server cannot be reached, and for longer after each failure.
    """

    def __init__(self, connect: Callable[[], PostgresSession], path: str) -> None:
        """Prepare; the first use connects.

        Args:
            connect: opens a connection.
            path: the database in messages.
        """
        self._connect = connect
        self._path = path
        self._free = threading.Semaphore(_MOST)
        self._idle: list[tuple[PostgresSession, float]] = []
        """The connections that are not lent, with the time of their return; the last one is lent first."""
        self._has_connected = False
        self._is_closed = False

    def take(self, timeout: float) -> PostgresSession:
        started = monotonic()
        if not self._free.acquire(timeout=timeout):
            raise CheckpointStorageError(
                self._path, "use", f"all {_MOST} connections were in use for {timeout:g} s; start fewer threads at once"
            )
        try:
            return self._find_usable() or self._connect_patiently(started + timeout - monotonic())
        except BaseException:
            self._free.release()
            raise

    def _find_usable(self) -> PostgresSession | None:
        while self._idle:
            with suppress(IndexError):
                session, _ = self._idle.pop()
                if session.is_usable():
                    return session
                session.close()
        return None

    def _connect_patiently(self, timeout: float) -> PostgresSession:
        """Connect; wait for a server that was there before, because it may be restarting."""
        backoff = Backoff(timeout, first=_FIRST_WAIT, longest=_LONGEST_WAIT)
        while True:
            try:
                session = self._connect()
            except CheckpointStorageError:
                if not self._has_connected or backoff.is_over:
                    raise
            else:
                self._has_connected = True
                return session
            backoff.wait()

    def give_back(self, session: PostgresSession) -> None:
        now = monotonic()
        if session.is_reusable:
            self._idle.append((session, now))
        else:
            session.close()
        self._free.release()
        if self._is_closed:
            # It was lent when the others were closed.
            self.close()
        elif self._idle and self._idle[0][1] < now - _LONGEST_IDLE:
            with suppress(IndexError):
                self._idle.pop(0)[0].close()

    def close(self) -> None:
        self._is_closed = True
        while self._idle:
            with suppress(IndexError):
                self._idle.pop()[0].close()


class GuestConnections(Connections):
    """Borrows connections of a pool, and gives them back as they were."""

    def __init__(self, pool: Pool, connect: Callable[[], PostgresSession], path: str) -> None:
        """Prepare; the pool is never closed.

        Args:
            pool: an open pool.
            connect: opens a connection outside the pool, to learn why the pool has none.
            path: the database in messages.
        """
        self._pool = pool
        self._connect = connect
        self._path = path
        self._sessions: WeakKeyDictionary[Any, PostgresSession] = WeakKeyDictionary()

    def take(self, timeout: float) -> PostgresSession:
        deadline = monotonic() + timeout
        pool = self._pool
        while True:
            try:
                connection = pool.getconn(timeout=max(0.1, deadline - monotonic()))
            except PoolError as error:
                raise self._explain(error) from error
            session = self._sessions.get(connection)
            if session is None:
                session = self._sessions[connection] = PostgresSession(connection)
            if session.is_usable():
                break
            # The server has ended this connection, and so probably all of them.
            session.close()
            pool.putconn(connection)
            pool.check()
        session.begin_autocommit()
        return session

    def _explain(self, error: Exception) -> CheckpointStorageError:
        try:
            self._connect().close()
        except CheckpointStorageError as reason:
            return reason
        return CheckpointStorageError(
            self._path, "use", f"the pool lends no connection ({error}); open it, or raise its max_size"
        )

    def give_back(self, session: PostgresSession) -> None:
        session.restore_mode()
        self._pool.putconn(session.connection)


class GuestConnection(Connections):
    """Borrows the only connection that the application has passed in, for one statement or transaction at a time."""

    def __init__(self, connection: psycopg.Connection[Any], path: str) -> None:
        """Prepare; the connection is never closed.

        Args:
            connection: an open connection.
            path: the database in messages.
        """
        self._connection = connection
        self._path = path
        self._session: PostgresSession | None = None
        with _LENT_GUARD:
            self._free = _LENT.setdefault(connection, threading.Lock())
        """Held while the connection is lent, to this saver or to another one."""

    def take(self, timeout: float) -> PostgresSession:
        if not self._free.acquire(timeout=timeout):
            raise self._error(f"the connection was in use for {timeout:g} s; pass a pool of several")
        try:
            session = self._find_usable()
            session.begin_autocommit()
        except BaseException:
            self._free.release()
            raise
        return session

    def _find_usable(self) -> PostgresSession:
        if self._session is None and not self._connection.closed:
            self._session = PostgresSession(self._connection)
        session = self._session
        if session is None or self._connection.closed or not session.is_usable():
            raise self._error("the connection that was passed in is closed; a pool would replace it")
        if session.is_in_pipeline:
            raise self._error("the connection that was passed in is in a pipeline; end it, or pass a pool")
        if session.is_in_transaction:
            raise self._error("the connection that was passed in has an open transaction; end it, or pass a pool")
        return session

    def _error(self, reason: str) -> CheckpointStorageError:
        return CheckpointStorageError(self._path, "use", reason)

    def give_back(self, session: PostgresSession) -> None:
        try:
            session.restore_mode()
        finally:
            self._free.release()
