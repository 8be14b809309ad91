"""Finds out whether a pooler lends the sessions of the server for single transactions.

Theory of operation. A server tells its client the number of its process when the client connects. A
pooler, which does not know yet on which process its client will work, makes up a number. So a wrong
number tells of a pooler, but not of its mode: PgBouncer says `pool_mode` to its administrators only.

What tells the mode is a notification. A client that is idle and listens is notified only if it has
the process for itself: a pooler of transactions has taken the process back, and drops what arrives
there. That the same process serves two clients tells it at once, but they may also happen to get
different ones, as where several poolers have one address.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import closing
from time import monotonic
from typing import Final

from savers._sql.postgres_session import PostgresSession

_LONGEST_DELIVERY: Final = 10.0
"""Seconds after which a notification does not arrive any more. It takes 0.1 ms on an idle server."""


def lends_transactions(session: PostgresSession, connect: Callable[[], PostgresSession]) -> bool:
    """Return whether a pooler gives each transaction of a new connection any session of the server.

    On a standby, which cannot notify, the answer may be False although a pooler does.

    Args:
        session: the connection.
        connect: opens another one.

    Raises:
        LostError, psycopg.Error: a connection failed.
    """
    ((process, is_standby),) = session.run("SELECT pg_backend_pid(), pg_is_in_recovery()")[0]
    if process == session.process:
        return False
    channel = f"graphkit_{os.urandom(8).hex()}"
    if not is_standby:
        session.run(f"LISTEN {channel}")
    with closing(connect()) as other:
        notify = "NULL" if is_standby else f"pg_notify('{channel}', '')"
        ((other_process, _),) = other.run(f"SELECT pg_backend_pid(), {notify}")[0]
    if other_process == process:
        return True
    return not is_standby and not _is_notified(session)


def _is_notified(session: PostgresSession) -> bool:
    deadline = monotonic() + _LONGEST_DELIVERY
    poller = select.poll()
    poller.register(session.fileno(), select.POLLIN)
    while not session.take_notifications():
        seconds = deadline - monotonic()
        if seconds < 0:
            return False
        poller.poll(seconds * 1000)
    return True
