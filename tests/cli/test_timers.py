"""What the commands say of a thread that sleeps, and of deadlines."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.support import terminal

FLOW = """
from datetime import timedelta
from graphkit import interrupt, sleep
from tests.support.graphs import make_chain


def step(state):
    if state["what"] == "nap":
        sleep(timedelta(days=1))
    else:
        terms = {"default": "no"} if state["what"] == "default" else {}
        return {"answer": interrupt("pay?", deadline=state["seconds"], **terms)}


app = make_chain({}, step=step).compile()
"""


def graphkit(*args, **options):
    """Run a command line at the time of the system, by which its runs go."""
    return terminal.graphkit(*args, now=datetime.now(UTC), **options)


def read_json(*args):
    return terminal.read_json(*args, now=datetime.now(UTC))


@pytest.fixture
def store(runs, write_module):
    write_module("naps", FLOW)
    return runs


def run(store, what, seconds=3600):
    return graphkit(
        "run", store, "--app", "naps:app", "--thread", "t", "--input", f'{{"what": "{what}", "seconds": {seconds}}}'
    )


def test_a_thread_that_sleeps(store):
    began = datetime.now(UTC)
    assert "waits in step until " in run(store, "nap").out
    (row,) = read_json("threads", store, "--status", "sleeping")
    progress = row["progress"]
    until = datetime.fromisoformat(progress.removeprefix("sleeps until "))
    duration = until - began
    assert timedelta(hours=23) < duration < timedelta(hours=25)
    shown = read_json("show", store, "t")
    assert shown["status"] == "sleeping"
    assert shown["progress"] == progress
    assert shown["waiting"] == []
    assert read_json("stats", store)["statuses"] == {"sleeping": 1}
    assert read_json("interrupts", store) == []
    assert "sleeps until " in graphkit("watch", store, "t", "--limit", "2").lines[1]
    # Nothing wakes it before its time.
    pruned = graphkit("prune", store, "--idle", "0s", "--interrupted", "--yes")
    assert pruned.out == "no thread is idle for 0s\n"
    assert graphkit("worker", store, "--app", "naps:app", "--once").out == "resumed 0 runs\n"
    assert read_json("resume", store, "t", "--app", "naps:app")["status"] == "sleeping"
    assert graphkit("wait", store, "t", "--timeout", "0.1").code == 124


def test_an_interrupt_with_a_deadline(store):
    assert "pay?" in run(store, "default").out
    (row,) = read_json("interrupts", store)
    left = datetime.fromisoformat(row["deadline"]) - datetime.fromisoformat(row["since"])
    assert timedelta(hours=1) - left < timedelta(seconds=5)
    assert "DEADLINE" in graphkit("interrupts", store, terminal=True).out
    assert read_json("answer", store, "t", "--text", "yes")["deadline"] == row["deadline"]


@pytest.mark.parametrize("what", ["default", "ask"])
def test_an_answer_that_is_too_late(store, what):
    run(store, what, seconds=0)
    late = graphkit("answer", store, "t", "--text", "yes")
    terminal.assert_refused(late, 16, "the answer is too late: the deadline of interrupt")
    late = graphkit("resume", store, "t", "--app", "naps:app", "--value", '"yes"')
    terminal.assert_refused(late, 4, "the answer is too late")
    graphkit("worker", store, "--app", "naps:app", "--once")
    shown = read_json("show", store, "t")
    assert shown["status"] == ("finished" if what == "default" else "failed")
