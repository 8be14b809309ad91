"""kill -9 of a client after every statement of an operation, which is before the next one."""

import itertools
import os
from datetime import UTC, datetime
from random import Random
from signal import SIGKILL

import pytest

from graphkit import RunnableConfig
from graphkit.testing import made
from tests.support.contents import read_all
from tests.support.databases import PostgresSession, SqliteConnection, SqliteDatabase
from tests.support.forked import exit_code_of_child

# Since 3.12 a fork beside other threads warns; none of them is in the middle of anything here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
ENDED = 100
"""The exit code of a child whose operation has returned, without the number of its statements."""
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
                os.kill(os.getpid(), SIGKILL)
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


def run(opener, name, nth):
    """Execute an operation in a child that dies when so many statements have been executed, BEGIN and COMMIT included.

    Returns:
        The number of statements if the operation was acknowledged, else 0.
    """

    def execute():
        saver = opener()
        saver.info(T)  # connects
        mortal = Mortal(nth)
        mortal.attach(saver._database)
        OPERATIONS[name](saver)
        os._exit(ENDED + mortal.count)

    code = exit_code_of_child(execute)
    assert code > ENDED or code == -SIGKILL
    return max(code - ENDED, 0)


def count_rows(saver):
    database = saver._database
    tables = [database.names.histories, database.names.records]
    if not database.dialect.combines_writes:
        tables.append(database.names.terms)
    return [database.read(f"SELECT count(*) FROM {table}")[0][0] for table in tables]


def wait_for_the_end(saver):
    """A server notices a moment later that a client has died, and readers see a run that has its lock until then."""
    for thread in saver.threads(released=True):
        with saver.run_lock(RunnableConfig(thread)):
            pass


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_killed_client_leaves_all_or_nothing(open_saver, name, sweep):
    saver = open_saver()

    def reset():
        for thread in saver.threads(released=True):
            saver.delete(thread)
        begin(saver)

    reset()
    assert run(open_saver.opener, name, 0)  # on a new store some operations take more statements than later
    reset()
    before = read_all(saver)
    statements = run(open_saver.opener, name, 0)
    assert statements
    after = read_all(saver)
    outcomes = []
    is_acknowledged = False
    numbers = itertools.chain(sweep.some(range(1, statements + 1), 3), itertools.count(statements + 1))
    while not is_acknowledged:
        reset()
        rows = count_rows(saver)
        is_acknowledged = bool(run(open_saver.opener, name, next(numbers)))
        wait_for_the_end(saver)
        found = read_all(saver)
        assert found in (before, after)
        outcomes.append(count_rows(saver) != rows)
        if is_acknowledged:
            assert found == after
        assert saver.verify().ok
        # The locks of the dead are free, and the thread goes on.
        saver.put(T, checkpoint(7))
        assert saver.get(T).id == "put 7"
        assert open_saver().get(T).id == "put 7"
    assert len(outcomes) > 1
    # Nothing until the commit, and everything from then on.
    assert outcomes == sorted(outcomes)
    assert outcomes[-1] or name == "release"
