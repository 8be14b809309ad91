"""Learns of changes in PostgreSQL by LISTEN, on a connection of its own.

Theory of operation. A commit that notifies excludes all others of the server until it is on the
disk. So puts notify only those who watch their very thread, and changes of the status those who
watch all threads: a table says who watches what, and every statement of a put asks it. An entry
expires, unless its watcher renews it. A put that has asked before the entry was there still holds
its lock on the table; a new watcher waits for the end of those puts before it reads.

A standby neither notifies nor accepts entries, so that its watchers read at intervals.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing, suppress
from hashlib import blake2b
from logging import getLogger
from time import monotonic, sleep
from typing import Any, Final

from graphkit.errors import CheckpointerError, CheckpointStorageError
from savers._sql.columns import encode_text
from savers._sql.database import ChangeListener, ChangeSource, WakeUp
from savers._sql.postgres_server import PostgresServer
from savers._sql.postgres_session import LostError, PostgresError, PostgresSession

_LOGGER: Final = getLogger("graphkit")
_RENEWAL: Final = 20.0
"""Seconds between two renewals of the entries, and between two looks at a silent connection."""
_EXPIRES: Final = "now() + interval '60 seconds'"
_RECONNECT_WAIT: Final = 0.1
_LONGEST_PUT: Final = 1.0
"""Seconds to wait for puts that began before. A process that was paused in one would take longer:
its change is read with the next read of all histories."""
_PUT_WAIT: Final = 0.002
_ONLY_READS: Final = {errno.EACCES, errno.EROFS}
"""The role may only read, or the server is a standby."""


class PostgresChanges(ChangeSource):
    """The changes of one schema, which its writers notify of."""

    def __init__(self, server: PostgresServer, run: Callable[[str, tuple[Any, ...]], Any]) -> None:
        """Prepare; the first listener connects.

        Args:
            server: the server.
            run: executes a statement as a transaction on another connection, and returns its rows.
        """
        super().__init__()
        self._server = server
        self._run = run
        self.channel = f"graphkit_{blake2b(server.schema.encode(), digest_size=12).hexdigest()}"
        table = self._table = server.names.watchers
        self.notify_clause = (
            f" RETURNING (SELECT pg_notify('{self.channel}', w.thread) FROM {table} AS w"
            " WHERE w.thread = ? AND w.expires > now() LIMIT 1)"
        )
        self._register = (
            f"INSERT INTO {table} (watcher, thread, expires) VALUES (?, ?, {_EXPIRES})"
            " ON CONFLICT (watcher) DO UPDATE SET expires = excluded.expires"
        )
        self._session: PostgresSession | None = None
        self._watchers: dict[ChangeListener, int] = {}
        """The keys of the entries of the listeners."""

    def make_notification(self, thread_id: str) -> tuple[str, tuple[str, ...]]:
        thread = encode_text(thread_id)
        expression = (
            f"(SELECT pg_notify(?, ?) WHERE EXISTS (SELECT 1 FROM {self._table} AS w"
            " WHERE w.expires > now() AND (w.thread IS NULL OR w.thread = ?)))"
        )
        return expression, (self.channel, thread, thread)

    def open_listener(self, thread: str | None = None) -> ChangeListener:
        listener = super().open_listener(thread)
        try:
            self._add_watcher(listener)
        except BaseException as error:
            if isinstance(error, CheckpointStorageError) and error.errno in _ONLY_READS:
                # Nothing notifies the watch, so that it reads at intervals.
                return listener
            listener.close()
            raise
        return listener

    def _add_watcher(self, listener: ChangeListener) -> None:
        """Have the puts notify a listener.

        Raises:
            CheckpointStorageError: the server refuses; with EACCES or EROFS, nothing can be written.
        """
        # Signed numbers of 64 bits.
        watcher = int.from_bytes(os.urandom(8), "big") >> 1
        self._run(f"DELETE FROM {self._table} WHERE expires < now()", ())
        self._run(self._register, (watcher, listener.thread))
        self._watchers[listener] = watcher
        # A put that goes on and has asked the table before does not notify the listener. Until it has ended, its change
        # is not there to be read either.
        deadline = monotonic() + _LONGEST_PUT
        earlier = self._list_readers()
        while earlier and monotonic() < deadline:
            sleep(_PUT_WAIT)
            earlier &= self._list_readers()
        self._ask_for_echo()

    def _list_readers(self) -> set[str]:
        rows = self._run(
            "SELECT virtualtransaction FROM pg_locks"
            " WHERE relation = CAST(? AS regclass) AND pid <> pg_backend_pid() AND granted",
            (self._table,),
        )
        return {transaction for (transaction,) in rows}

    def _ask_for_echo(self) -> None:
        """Send a notification without thread. Its arrival proves that notifications arrive."""
        self._run("SELECT pg_notify(?, '')", (self.channel,))

    def _start_watching(self) -> Callable[[WakeUp], None]:
        session: PostgresSession | None = None
        try:
            session = self._open_session()
        except CheckpointStorageError as error:
            if error.errno != errno.EROFS:
                raise
        return lambda stop: self._read_notifications(session, stop)

    def _open_session(self) -> PostgresSession:
        session = self._server.connect()
        try:
            with self._server.explained("watch"):
                session.run(f"LISTEN {self.channel}")
        except BaseException:
            session.close()
            raise
        self._session = session
        return session

    def _read_notifications(self, session: PostgresSession | None, stop: WakeUp) -> None:
        due = monotonic() + _RENEWAL
        while not stop.is_woken:
            try:
                if session is None:
                    session = self._open_session()
                    self._renew()
                    self._ask_for_echo()
                    # What has happened meanwhile was not received.
                    self.notify()
                stop.wait(max(0.0, due - monotonic()), session.fileno())
                self._take(session.take_notifications())
                if monotonic() >= due:
                    self._renew()
                    due = monotonic() + _RENEWAL
            except (LostError, PostgresError, CheckpointerError) as error:
                for listener in list(self._watchers):
                    listener.hears_all = False
                if session is not None:
                    session.close()
                    session = None
                    # Who reads now gets the error, or waits for the server.
                    self.notify()
                # A standby may become the primary.
                is_standby = isinstance(error, CheckpointStorageError) and error.errno == errno.EROFS
                stop.wait(_RENEWAL if is_standby else _RECONNECT_WAIT)
        if session is not None:
            # A pooler resets what its client leaves, for the next one. If a notification arrives meanwhile, PgBouncer
            # 1.18 takes it for the end of the reset, and the next client gets the answer to `DISCARD ALL` as that of
            # its first statement. So there must be none on its way. A connection that is lost gets none.
            with closing(session), suppress(LostError, PostgresError):
                session.run("UNLISTEN *")

    def _take(self, threads: list[str]) -> None:
        for thread in dict.fromkeys(threads):
            if thread:
                self.notify(thread)
            else:
                for listener in list(self._watchers):
                    listener.hears_all = listener.thread is not None

    def _renew(self) -> None:
        for listener, watcher in list(self._watchers.items()):
            self._run(self._register, (watcher, listener.thread))

    def _remove(self, listener: ChangeListener) -> None:
        super()._remove(listener)
        watcher = self._watchers.pop(listener, None)
        if watcher is None:
            return
        try:
            self._run(f"DELETE FROM {self._table} WHERE watcher = ?", (watcher,))
        except CheckpointerError as error:
            _LOGGER.warning("puts notify a watch that was closed, for a minute at most: %s", error)

    def close_after_fork(self) -> PostgresSession | None:
        """Forget the listeners of the parent, in the child; return its connection, which must stay open."""
        session = self._session
        self._session = None
        self._watchers = {}
        self.reset_after_fork()
        return session
