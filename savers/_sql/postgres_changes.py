"""Learns of changes in PostgreSQL by LISTEN, on a connection of its own."""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger
from typing import Final

from graphkit.errors import CheckpointStorageError
from savers._sql.changes import ChangeSource, WakeUp
from savers._sql.postgres_session import LostError, PostgresError, PostgresSession

_LOGGER: Final = getLogger("graphkit")
_LONGEST_WAIT: Final = 60.0
"""Seconds after which a connection is looked at on which nothing has arrived."""
_RECONNECT_WAIT: Final = 0.1


class PostgresChanges(ChangeSource):
    """The changes of one schema, which its writers notify of."""

    def __init__(self, connect: Callable[[], PostgresSession], channel: str) -> None:
        """Prepare; the first listener connects.

        Args:
            connect: opens a connection.
            channel: the channel of the notifications.
        """
        super().__init__()
        self._connect = connect
        self._listen = f"LISTEN {channel}"
        self._session: PostgresSession | None = None

    def _start_watching(self) -> Callable[[WakeUp], None]:
        session = self._open_session()
        return lambda stop: self._read_notifications(session, stop)

    def _open_session(self) -> PostgresSession:
        session = self._connect()
        try:
            session.run(self._listen)
        except BaseException:
            session.close()
            raise
        self._session = session
        return session

    def _read_notifications(self, session: PostgresSession | None, stop: WakeUp) -> None:
        while not stop.is_woken:
            try:
                if session is None:
                    session = self._open_session()
                    # What has happened meanwhile was not received.
                    self.tell()
                stop.wait(_LONGEST_WAIT, session.fileno())
                if session.take_notifications():
                    self.tell()
            except (LostError, PostgresError, CheckpointStorageError):
                if session is not None:
                    session.close()
                    session = None
                    # Who reads now gets the error, or waits for the server.
                    self.tell()
                stop.wait(_RECONNECT_WAIT)
        if session is not None:
            session.close()

    def close_after_fork(self) -> PostgresSession | None:
        """Forget the listeners of the parent, in the child; return its connection, which must stay open."""
        session = self._session
        self._session = None
        self.reset_after_fork()
        return session
