"""kill -9 of a client after every statement of an operation, which is before the next one."""

import itertools
import pickle
import subprocess
import sys
from signal import SIGKILL

import pytest

from graphkit import RunnableConfig
from tests.sql.mortal import FAILED, OPERATIONS, POLICY, STEPS, begin, checkpoint
from tests.support.contents import read_all

T = RunnableConfig("t")


@pytest.fixture(scope="module")
def run():
    """Runs an operation that dies at a statement, in a process of its own.

    Returns the number of statements if it was acknowledged, else 0.
    """
    command = [sys.executable, "-m", "tests.sql.mortal"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:

        def run_once(opener, name, nth):
            pickle.dump((opener, name, nth), parent.stdin)
            parent.stdin.flush()
            code = pickle.load(parent.stdout)
            assert code != FAILED
            assert code > 0 or code == -SIGKILL
            return max(code, 0)

        yield run_once
        parent.stdin.close()


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
def test_a_killed_client_leaves_all_or_nothing(open_saver, run, name, sweep):
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


def test_a_retention_policy_that_was_killed_is_applied_again(open_saver, run, sweep):
    saver = open_saver()
    begin(saver)
    before = read_all(saver)
    statements = run(open_saver.opener, POLICY, 0)
    after = read_all(saver)
    lengths = {name: len(history) for name, history in after.items()}
    assert lengths == {("t", "", None): 2, ("other", "", None): 2}
    seen = set()
    for number in sweep.some(range(1, statements + 1), 8):
        for thread in saver.threads():
            saver.delete(thread)
        begin(saver)
        assert not run(open_saver.opener, POLICY, number)
        wait_for_the_end(saver)
        found = read_all(saver)
        for name, history in found.items():
            assert history in (before[name], after[name])
        seen.add(tuple(history == after[name] for name, history in found.items()))
        assert saver.verify().ok
        STEPS[POLICY](saver)
        assert read_all(saver) == after
    assert len(seen) > 1
