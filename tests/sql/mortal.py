"""Processes that do one operation on a saver, and kill themselves at a statement.

The statements are counted from the first of the operation on, BEGIN and COMMIT included. A process
dies when the nth has been executed, which is before the next one. It ends well when the operation
has returned.
"""

import os
import pickle
import signal
import sys
import traceback
from datetime import UTC, datetime
from random import Random

from graphkit import RunnableConfig
from graphkit.retention import RetentionPolicy
from graphkit.testing import made
from tests.support.databases import PostgresSession, SqliteConnection, SqliteDatabase

FAILED = 255
"""What a process returns whose operation has raised; else it returns the number of statements."""
T = RunnableConfig("t")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Mortal:
    """Counts statements, and dies at one of them."""

    def __init__(self, nth):
        self.nth = nth
        self.count = 0

    def around(self, call):
        """Return a function that counts as a statement."""

        def counted(*args, **kwargs):
            self.count += 1
            result = call(*args, **kwargs)
            if 0 < self.nth <= self.count:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted

    def attach(self, database):
        """Count the statements of a database, BEGIN and COMMIT included."""
        owner, names = PostgresSession, ("run", "run_many", "commit")
        if isinstance(database, SqliteDatabase):
            owner, names = SqliteConnection, ("run", "run_many")
        for name in names:
            setattr(owner, name, self.around(getattr(owner, name)))


def checkpoint(number, state=None):
    if state is None:
        state = {"items": [f"item {at}" for at in range(number + 1)], "number": number}
    return made(state, id=f"put {number}", metadata={"put": number}, created_at=NOON)


def begin(saver):
    """What is there before the operation that is interrupted."""
    for number in range(6):
        saver.put(T, checkpoint(number))
        saver.put(RunnableConfig("other"), checkpoint(number))


OPERATIONS = {
    "first put": lambda saver: saver.put(RunnableConfig("new"), checkpoint(0)),
    "put": lambda saver: saver.put(T, checkpoint(6)),
    "put of a keyframe": lambda saver: saver.put(T, checkpoint(6, {"whole": Random(1).randbytes(100_000)})),
    "put_writes": lambda saver: saver.put_writes(T, {"key": 1}),
    "early writes": lambda saver: saver.put_writes(T.with_check_point_id("later"), {"key": 1}, early=True),
    "interrupt": lambda saver: saver.put_writes(
        T, {"interrupt:1": {"node_id": "a", "when": "inside", "payload": 1, "created_at": NOON}}
    ),
    "replace": lambda saver: saver.put(T.with_check_point_id("put 3"), checkpoint(3)),
    "tag": lambda saver: saver.add_tags(T, "label"),
    "release": lambda saver: saver.release(T),
    "delete": lambda saver: saver.delete("t"),
    "copy": lambda saver: saver.copy("t", "copy"),
    "prune": lambda saver: saver.prune("t", keep_last=2),
}

POLICY = "retention policy"
STEPS = {POLICY: lambda saver: RetentionPolicy(keep_last=2).apply(saver)}
"""Operations on several histories, each of which is changed at once."""


def execute(opener, name, nth):
    """Execute an operation; return the number of its statements."""
    saver = opener()
    saver.info(T)  # connects
    mortal = Mortal(nth)
    mortal.attach(saver._database)
    (OPERATIONS | STEPS)[name](saver)
    return mortal.count


def main():
    """Fork for each operation that is asked for, which is faster than to import everything again."""
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            code = FAILED
            try:
                code = execute(*job)
            finally:
                if code == FAILED:
                    traceback.print_exc()
                os._exit(code)
        pickle.dump(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
