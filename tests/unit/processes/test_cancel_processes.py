"""Cancels and several processes: whoever comes first and whoever dies, a thread ends as one thing."""

from collections import Counter

import pytest

from graphkit import RunnableConfig
from graphkit.operations import cancel
from graphkit.worker import Worker
from tests.support.workers import PATIENCE, status

LOG = ["first", *range(1, 20)]
T = RunnableConfig("t")

PROGRAM = """
import os
import graphkit._engine.history


def first(state):
    if what == "run and wait":
        print("at work", flush=True)
        sys.stdin.readline()
    return {"log": "first"}


def second(state):
    return {"log": len(state["log"])}


def go_on(state):
    return "second" if len(state["log"]) < 20 else END


graph = StateGraph({"log": Channels.appender_with_duplicate()})
graph.add_node("first", first).add_node("second", second)
graph.add_edge(START, "first").add_edge("first", "second").add_conditional_edges("second", go_on)
app = graph.compile(checkpoint_saver=saver)


class Mortal(type(saver)):
    def put_writes(self, config, writes):
        if what == "die before":
            os._exit(9)
        super().put_writes(config, writes)
        os._exit(9)


if what == "cancel":
    print("ready", flush=True)
    for line in sys.stdin:
        print(operations.cancel(saver, line.strip(), reason="race"), flush=True)
elif what == "run":
    graphkit._engine.history.LOOK_INTERVAL = 0.0
    graphkit._engine.history._REST = 0
    print("ready", flush=True)
    for line in sys.stdin:
        app.invoke({}, RunnableConfig(line.strip()))
        print("done", flush=True)
elif what.startswith("die"):
    saver.__class__ = Mortal
    operations.cancel(saver, "t", reason="die")
else:
    app.invoke({}, RunnableConfig("t"))
"""


@pytest.fixture
def runner(start):
    """A process whose run waits in its first node."""
    runner = start("run and wait")
    assert runner.stdout.readline() == "at work\n"
    return runner


def kill(runner):
    runner.kill()
    runner.wait()


def tell(process, line):
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def test_a_thread_whose_process_was_killed_is_cancelled(saver, app, runner):
    kill(runner)
    assert status(saver) == "stalled"
    assert cancel(saver, "t", reason="dead")
    assert status(saver) == "cancelled"
    assert app.invoke(None, T)["log"] == LOG


def test_a_process_that_is_killed_after_the_request_leaves_it_to_a_worker(saver, app, runner):
    assert cancel(saver, "t", reason="late")
    assert status(saver) == "running"
    kill(runner)
    assert status(saver) == "stalled"
    assert Worker(saver, app).run(once=True) == 0
    assert (status(saver), saver.summary(T).cancellation["reason"]) == ("cancelled", "late")


@pytest.mark.parametrize(("where", "left"), [("die before", "stalled"), ("die after", "cancelled")])
def test_a_cancel_that_is_killed_has_happened_or_not(saver, app, start, runner, where, left):
    kill(runner)
    assert start(where).wait(PATIENCE) == 9
    assert status(saver) == left
    assert app.invoke(None, T)["log"] == LOG


@pytest.mark.parametrize("where", ["die before", "die after"])
def test_a_request_that_is_killed_disturbs_no_later_run(saver, app, start, runner, where):
    assert start(where).wait(PATIENCE) == 9
    tell(runner, "go on")
    assert runner.wait(PATIENCE) == 0
    assert status(saver) in {"finished", "cancelled"}
    assert app.invoke_final({}, T).is_end


def test_a_cancel_and_a_finish_at_the_same_moment(saver, app, start, sweep):
    outcomes = Counter()
    runner, canceller = start("run"), start("cancel")
    for process in (runner, canceller):
        assert process.stdout.readline() == "ready\n"
    with saver.watch(interval=0.01) as changes:
        for number in range(sweep.count(500, 20)):
            thread = f"t{number}"
            tell(runner, thread)
            while not saver.recent(RunnableConfig(thread), limit=1):
                changes.get(0.001)
            tell(canceller, thread)
            answer = canceller.stdout.readline()
            assert runner.stdout.readline() == "done\n"
            # The cancel waits until such short runs have ended.
            outcomes[answer, status(saver, thread)] += 1
            log = saver.get(RunnableConfig(thread)).state["log"]
            if answer == "False\n":
                assert log == LOG
                assert not any(saver.get_writes(RunnableConfig(thread)).values())
            else:
                assert log == LOG[: len(log)]
                assert app.invoke(None, thread)["log"] == LOG
    assert set(outcomes) <= {("False\n", "finished"), ("True\n", "cancelled")}, outcomes


def test_two_cancels_at_once(saver, app, start, sweep):
    cancellers = [start("cancel") for _ in range(2)]
    for process in cancellers:
        assert process.stdout.readline() == "ready\n"
    for number in range(sweep.count(500, 20)):
        thread = f"t{number}"
        app.submit({}, thread)
        for process in cancellers:
            tell(process, thread)
        answers = [process.stdout.readline() for process in cancellers]
        assert "True\n" in answers
        assert status(saver, thread) == "cancelled"
        assert saver.summary(RunnableConfig(thread)).cancellation["reason"] == "race"
        assert app.invoke(None, RunnableConfig(thread))["log"] == LOG
