"""Timers and deadlines when the store fails, or the process dies, at any write: nothing is lost, and the run ends the same."""

import pytest

from graphkit import interrupt, sleep, wait_until
from graphkit.errors import CheckpointStorageError
from graphkit.testing import ManualClock, ScriptedSaver
from graphkit.worker import Worker
from savers import FileSystemSaver
from tests.support.graphs import CONFIG, LOG, Killed, log_node, make_graph
from tests.support.times import HOUR, NOON
from tests.support.workers import status

ERROR = CheckpointStorageError("store", "write", "as scripted")


def nap(state):
    sleep(HOUR)
    return {"log": "nap"}


def late(state):
    wait_until(NOON + 3 * HOUR)
    return {"log": "late"}


def ask(state):
    return {"log": interrupt("?", deadline=2 * HOUR, default="no")}


def item(number):
    sleep(number * HOUR)
    return {"log": f"item {number}"}


def make_app(saver, clock):
    """A fork of two branches that sleep and a nested graph that asks, and then a map whose items sleep."""
    inner = make_graph(LOG, "START>ask ask>END", ask=ask)
    nodes = {"nap": nap, "late": late, "sub": inner.compile()}
    graph = make_graph(LOG, "START>s s>nap,late,sub nap>j late>j sub>j", log_node, **nodes)
    graph.add_map_node("m", item, lambda state: [1, 2]).add_edge("j", "m").set_finish_point("m")
    return graph.compile(checkpoint_saver=saver, clock=clock)


def go_on(saver, clock):
    """Serve the thread as workers do that come and go, until it has finished, or for eight hours."""
    for _ in range(8):
        for _ in range(3):  # a failure is repeated at once, and a death is noticed
            Worker(saver, make_app(saver, clock), failed=True).run(once=True)
            if status(saver) == "finished":
                return
        clock.advance(HOUR)


def run(store, script):
    """Submit and serve, with a store of which each write is scripted; return the log, and how many writes there were."""
    clock = ManualClock(NOON)
    with FileSystemSaver(store, fsync="never") as saver:
        make_app(saver, clock).submit({}, CONFIG)
        scripted = ScriptedSaver(saver)
        script(scripted)
        for _ in range(8):
            try:
                Worker(scripted, make_app(scripted, clock), failed=True).run(once=True)
            except Killed:
                break
            if status(saver) == "finished":
                break
            clock.advance(HOUR)
        writes = [call for call in scripted.calls if call.method in {"put", "put_writes"}]
    with FileSystemSaver(store, fsync="never") as saver:  # as another process
        go_on(saver, clock)
        latest = saver.get(CONFIG)
        assert status(saver) == "finished"
        return [*latest.state["log"]], len(writes)


EXPECTED = ["s", "nap", "late", "no", "j", "item 1", "item 2"]


def test_without_a_fault(tmp_path):
    log, writes = run(tmp_path / "runs", lambda saver: None)
    assert log == EXPECTED
    assert 12 <= writes <= 30


@pytest.mark.parametrize("fault", ["refused", "killed before", "killed after"])
def test_a_fault_at_each_write(tmp_path, fault, sweep):
    for nth in range(0, 24, sweep.count(1, 6)):
        left = [nth]

        def fail(left=left):
            left[0] -= 1
            if fault == "refused" and left[0] == -1:
                raise ERROR
            if fault != "refused" and left[0] < 0:  # nothing else is stored by this process
                raise Killed

        def script(saver, fail=fail):
            for method in ("put", "put_writes"):
                saver.on(method, fail, times=None, late=fault == "killed after")

        log, _ = run(tmp_path / f"runs {nth}", script)
        assert log == EXPECTED
