"""Run locks in PostgreSQL: a row with a token and a lease, and an advisory lock on the token.

The advisory lock tells others that the session of the holder is alive: they take over at once when
it is not. The lease tells them that the holder is not paused: they take over when it has expired.
The holder that was paused finds another token in the row when it puts, and changes nothing.

One connection has the advisory locks of all runs of a database object. A thread renews their leases,
and takes the advisory locks again on a new connection, if the server has restarted. Others do not
take over for the lack of an advisory lock that was there before the restart; they wait for the
lease, from the restart on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from logging import getLogger
from time import monotonic
from typing import Final

from graphkit.errors import CheckpointStorageError, ThreadBusyError
from graphkit.saver_kit import hold_process_lock, is_process_lock_mine
from savers._sql.columns import encode_text
from savers._sql.database import Row, RunLocks, WakeUp
from savers._sql.postgres_server import BUSY, PostgresServer
from savers._sql.postgres_session import LostError, PostgresError, PostgresSession, get_state
from savers._threads import Backoff

_LOGGER: Final = getLogger("graphkit")
_NOW: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"
"""The time by the clock of the server, in microseconds."""
_START: Final = "CAST(extract(epoch FROM pg_postmaster_start_time()) * 1000000 AS BIGINT)"
_EXPIRES: Final = f"greatest(l.expires, {_START} + l.expires - l.renewed)"
"""When the lease of row l ends. While the server was down, no holder could renew it."""
_NUMBER_LOCK: Final = (
    "SELECT t.token, pg_advisory_lock(? + t.token) FROM (SELECT nextval(CAST(? AS regclass)) AS token OFFSET 0) AS t"
)
_TAKE: Final = f"""
    INSERT INTO {{table}} AS l (thread, token, renewed, expires, holder)
    VALUES (?, ?, {_NOW}, {_NOW} + ?, ?)
    ON CONFLICT (thread) DO UPDATE
    SET token = excluded.token, renewed = excluded.renewed, expires = excluded.expires, holder = excluded.holder
    WHERE {_EXPIRES} < {_NOW}
    OR CASE WHEN l.renewed > {_START} THEN pg_try_advisory_xact_lock(? + l.token) ELSE false END
    RETURNING token"""
"""Takes the lock of a thread that no process holds, or whose holder has died or is paused."""
_UNLOCK: Final = "SELECT pg_advisory_unlock(? + ?)"
_RETRY_WAIT: Final = 0.1
"""Seconds before a renewal that failed is tried again."""
_ROW_TIMEOUT: Final = "SELECT set_config('lock_timeout', '100ms', false)"
"""A row that another transaction keeps must not delay the renewal of other leases."""


@dataclass(slots=True)
class _HeldLock:
    token: int | None = None
    """None until it has a token with its advisory lock, and when both are gone."""
    is_lost: bool = False
    """Whether another process has taken it over."""
    must_lock: bool = False
    """Whether its advisory lock went with a connection, and is to be taken again."""


class PostgresRunLocks(RunLocks):
    """The run locks of one schema."""

    def __init__(self, server: PostgresServer, read: Callable[[str, tuple[object, ...]], list[Row]]) -> None:
        """Prepare; the first lock connects.

        Args:
            server: the server.
            read: executes a statement on another connection; creates the tables if necessary.
        """
        self._server = server
        self._read = read
        self._lease = server.lease
        self._microseconds = round(server.lease * 1_000_000)
        # The key of the advisory lock of token 0. Keys are signed numbers of 64 bits, which a token must not overflow.
        self._key = server.make_advisory_key("run lock") >> 1
        self._table = server.names.run_locks
        self._sequence = server.names.run_locks_token
        self._lent: dict[str, int] = {}
        """The tokens of runs of other processes that this object writes for, by thread."""
        self._reset()

    def _reset(self) -> None:
        """Begin without connection and locks."""
        self._holders = object()
        """Names the locks of this object within the process: in the child of a fork, there are none of the parent."""
        self._locks: dict[str, _HeldLock] = {}
        """What this object holds, by thread."""
        self._mutex = threading.Lock()
        """Held while the connection is used, and while the locks change."""
        self._session: PostgresSession | None = None
        self._thread: threading.Thread | None = None
        """Renews the leases while there are locks;"""
        self._wake_up: WakeUp | None = None
        """and this ends its wait."""

    # Holding

    @contextmanager
    def hold(self, thread_id: str, timeout: float) -> Iterator[None]:
        backoff = Backoff(timeout)
        holders = self._holders
        lock = _HeldLock()
        with hold_process_lock((holders, thread_id), thread_id, timeout) as holder:
            try:
                self._acquire(lock, thread_id, holder, backoff)
                # The run that has lent one has ended.
                self._lent.pop(thread_id, None)
                yield
            finally:
                if holders is self._holders:
                    try:
                        self._release(lock, thread_id)
                    except BaseException:
                        # Ctrl-C may have come within the first attempt.
                        self._release(lock, thread_id)
                        raise

    def token_of(self, thread_id: str) -> int | None:
        lock = self._locks.get(thread_id)
        if lock is None:
            return self._lent.get(thread_id)
        return lock.token

    def borrow(self, tokens: Mapping[str, int]) -> None:
        """Fence what this object writes with the locks of runs in other processes.

        Args:
            tokens: their tokens, by thread.
        """
        self._lent.update(tokens)

    def is_mine(self, thread_id: str) -> bool:
        return is_process_lock_mine((self._holders, thread_id))

    def is_held(self, thread_id: str) -> bool:
        # Shared, so that two who ask at the same time do not take each other for the holder.
        # A standby has no advisory lock of the primary, so that only the lease counts there.
        select_held = f"""
            SELECT 1 FROM {self._table} AS l WHERE thread = ? AND {_EXPIRES} >= {_NOW}
            AND CASE WHEN l.renewed > {_START} AND NOT pg_is_in_recovery()
                THEN NOT pg_try_advisory_xact_lock_shared(? + l.token) ELSE true END
        """
        return bool(self._read(select_held, (encode_text(thread_id), self._key)))

    def read_mark(self, thread_id: str) -> int | None:
        """Return the token of the lock, whose row goes when its holder lets it go."""
        select_token = f"SELECT max(token) FROM {self._table} WHERE thread = ?"
        token: int | None = self._read(select_token, (encode_text(thread_id),))[0][0]
        return token

    def is_abandoned(self, thread_id: str, mark: object) -> bool:
        # A holder that is only paused has lost its lease, but still has its advisory lock.
        select_abandoned = f"""
            SELECT 1 FROM {self._table} WHERE thread = ? AND token = ?
            AND CASE WHEN pg_is_in_recovery() THEN false ELSE pg_try_advisory_xact_lock_shared(? + token) END
        """
        return bool(self._read(select_abandoned, (encode_text(thread_id), mark, self._key)))

    def _acquire(self, lock: _HeldLock, thread_id: str, holder: str, backoff: Backoff) -> None:
        """Take a lock. After an error or an interrupt, it has a token if there is something to release."""
        # Creates the tables, and waits for a server that restarts.
        self._read_holder(thread_id)
        locked_on: PostgresSession | None = None
        while True:
            try:
                with self._mutex:
                    session = self._open_session()
                    if lock.token is None or session is not locked_on:
                        # A token is worth nothing without its advisory lock, which went with the session: others take
                        # over a row whose lock is free at once.
                        ((lock.token, _),) = session.run(_NUMBER_LOCK, (self._key, self._sequence))
                        locked_on = session
                    row = (encode_text(thread_id), lock.token, self._microseconds, holder, self._key)
                    if session.run(_TAKE.format(table=self._table), row):
                        self._locks[thread_id] = lock
                        # Ctrl-C may have come before an earlier one was started.
                        if self._thread is None or not self._thread.is_alive():
                            wake_up = self._wake_up = WakeUp()
                            self._thread = threading.Thread(
                                target=self._renew_periodically,
                                args=(wake_up,),
                                name="graphkit-run-locks",
                                daemon=True,
                            )
                            self._thread.start()
                        return
            except (LostError, CheckpointStorageError) as error:
                # Whether the row has our token now does not matter: the advisory lock is lost.
                lock.token = None
                if backoff.is_over:
                    if isinstance(error, CheckpointStorageError):
                        raise
                    reason = f"the connection was lost ({error})"
                    raise CheckpointStorageError(self._server.path, "lock", reason) from error
            except PostgresError as error:
                if get_state(error) not in BUSY:
                    lock.token = None
                    raise self._server.translate(error, "lock") from error
            if backoff.is_over:
                raise ThreadBusyError(thread_id, self._read_holder(thread_id), round(backoff.waited, 1))
            backoff.wait()

    def _read_holder(self, thread_id: str) -> str:
        select_holder = f"SELECT coalesce(max(holder), 'another process') FROM {self._table} WHERE thread = ?"
        return str(self._read(select_holder, (encode_text(thread_id),))[0][0])

    def _release(self, lock: _HeldLock, thread_id: str) -> None:
        """Delete the row of a lock, if it has the token, and release its advisory lock; does nothing a second time.

        If that fails, others see that the advisory lock is free. After a restart of the server they do not, and wait
        for the end of the lease.
        """
        with self._mutex:
            self._locks.pop(thread_id, None)
        if lock.token is None:
            return
        failure: Exception | None = None
        for _ in range(2):
            try:
                with self._mutex:
                    session = self._open_session()
                    # No process can take it before its row is gone, and there is no row without advisory lock.
                    delete = f"DELETE FROM {self._table} WHERE thread = ? AND token = ?"
                    session.run(delete, (encode_text(thread_id), lock.token))
                    session.run(_UNLOCK, (self._key, lock.token))
                    lock.token = None
                return
            except LostError as error:
                failure = error
            except (PostgresError, CheckpointStorageError) as error:
                failure = error
                break
        lock.token = None
        _LOGGER.warning(
            "the run lock of thread %.80r in %s was not released; other runs may wait for up to %s seconds, "
            "until its lease ends: %s",
            thread_id,
            self._server.path,
            self._lease,
            failure,
        )

    # The connection

    def _open_session(self) -> PostgresSession:
        """Return the connection, opened if necessary; the caller holds the mutex."""
        session = self._session
        if session is not None and session.is_usable():
            return session
        if session is not None:
            session.close()
            self._session = None
        # The server has released all advisory locks with the session. The new one has none of them.
        for lock in self._locks.values():
            lock.must_lock = not lock.is_lost
        session = self._server.connect()
        try:
            session.run(_ROW_TIMEOUT)
        except BaseException:
            session.close()
            raise
        self._session = session
        return session

    # Renewing

    def _renew_periodically(self, wake_up: WakeUp) -> None:
        due = monotonic() + self._lease / 3
        renewed_on = self._session
        is_warned = False
        while True:
            self._wait(wake_up, due)
            with self._mutex:
                if not self._locks:
                    self._thread = self._wake_up = None
                    wake_up.close()
                    return
                try:
                    session = self._open_session()
                    self._lock_tokens_again(session)
                    if session is not renewed_on or monotonic() >= due:
                        self._renew_leases(session)
                        due = monotonic() + self._lease / 3
                        renewed_on = session
                        is_warned = False
                except (LostError, PostgresError, CheckpointStorageError) as error:
                    # Also where a put keeps a row for a moment.
                    if get_state(error) not in BUSY and not is_warned:
                        _LOGGER.warning(
                            "the run locks in %s could not be renewed, trying again: %s", self._server.path, error
                        )
                        is_warned = True
                    due = min(due, monotonic() + _RETRY_WAIT)

    def _wait(self, wake_up: WakeUp, due: float) -> None:
        """Wait until leases are due, the connection is lost, or the object is closed."""
        fd = None
        with self._mutex:
            session = self._session
            if session is not None and session.is_usable():
                fd = session.fileno()
            if fd is None or any(lock.must_lock for lock in self._locks.values()):
                due = min(due, monotonic() + _RETRY_WAIT)
        wake_up.wait(max(0.0, due - monotonic()), fd)

    def _lock_tokens_again(self, session: PostgresSession) -> None:
        """Take the advisory locks that went with the last connection, where the row still has the token."""
        waiting = {lock.token: lock for lock in self._locks.values() if lock.must_lock}
        if not waiting:
            return
        lock_again = f"SELECT token, pg_try_advisory_lock(? + token) FROM {self._table} WHERE token = ANY(?)"
        rows = session.run(lock_again, (self._key, list(waiting)))
        # Those without a row were taken over, which renewing finds out. Others may be refused for a moment: another
        # process looks at the token, or the server has not noticed the end of the old connection yet.
        for lock in waiting.values():
            lock.must_lock = False
        for token, is_locked in rows:
            waiting[token].must_lock = not is_locked

    def _renew_leases(self, session: PostgresSession) -> None:
        tokens = [lock.token for lock in self._locks.values() if not lock.is_lost]
        if not tokens:
            return
        renew = f"UPDATE {self._table} SET renewed = {_NOW}, expires = {_NOW} + ? WHERE token = ANY(?) RETURNING token"
        renewed = set(session.run(renew, (self._microseconds, tokens)))
        for thread_id, lock in self._locks.items():
            if lock.is_lost or (lock.token,) in renewed:
                continue
            lock.is_lost = True
            _LOGGER.warning(
                "another process has taken the run lock of thread %.80r in %s", thread_id, self._server.path
            )

    # Closing

    def close(self) -> None:
        with self._mutex:
            if self._locks:
                return
            thread = self._thread
            if self._wake_up is not None:
                self._wake_up.wake()
        if thread is not None and thread.is_alive():
            thread.join()
        with self._mutex:
            if self._session is not None and not self._locks:
                self._session.close()
                self._session = None

    def close_after_fork(self) -> PostgresSession | None:
        """Forget the locks of the parent, in the child; return its connection, which must stay open."""
        session = self._session
        if self._wake_up is not None:
            self._wake_up.close_after_fork()
        self._reset()
        return session
