"""The status of a thread is true wherever it is asked for, and whichever process asks."""

import pytest

from graphkit import GraphResume, RunnableConfig, interrupt, operations
from graphkit.errors import NodeExecutionError
from savers import FileSystemSaver, MemorySaver, SqliteSaver
from tests.support.graphs import CONFIG, LOG, make_chain
from tests.support.savers import saver_fixture

saver = saver_fixture(["memory", "file", "sqlite", "wrapped"], most=2)


def chain(saver, /, **nodes):
    """A graph of these nodes, one after the other; each logs what its function returns."""
    graph = make_chain(LOG, **{name: logs(action) for name, action in nodes.items()})
    return graph.compile(checkpoint_saver=saver)


def logs(action):
    return lambda _state: {"log": action()}


def status(saver, config=CONFIG):
    """The status, which is the same at every place."""
    summary = saver.summary(config)
    newest, *older = saver.history(config)
    found = [summary.status, summary.latest.status, newest.status, saver.recent(config, limit=1)[0].status]
    (status,) = {*found, *(info.status for info in saver.search({}, thread_id=config.thread) if info.id == newest.id)}
    assert [info.status for info in older] == [""] * len(older)
    assert [info.status for info in saver.recent(config, limit=9)] == [status, *("" for _ in older)]
    return status


# Runs without interrupts


@pytest.mark.requirement("H20", "W1")
def test_a_failed_run_has_failed_until_it_goes_on(saver):
    seen = []

    def fail():
        seen.append(status(saver))
        if len(seen) == 1:
            raise ValueError("no")

    app = chain(saver, a=lambda: "a", b=fail)
    with pytest.raises(NodeExecutionError):
        app.invoke({}, CONFIG)
    assert status(saver) == "failed"
    app.invoke(None, CONFIG)
    assert seen == ["running", "running"]
    assert status(saver) == "finished"


def test_a_fork_and_a_rollback_are_stalled_until_they_go_on(saver):
    app = chain(saver, a=lambda: "a", b=lambda: "b")
    app.invoke({}, CONFIG)
    *_, first = saver.history(CONFIG)
    operations.fork(saver, RunnableConfig("t", first.id), "copy")
    assert status(saver, RunnableConfig("copy")) == "stalled"
    operations.rollback(saver, RunnableConfig("t", first.id))
    assert status(saver) == "stalled"


KILLED = """
import os, sys
import savers
from graphkit import END, START, StateGraph, GraphResume, interrupt

def ask(state):
    answer = interrupt("ok?")
    os._exit(9)

kind, path, given = sys.argv[1:]
graph = StateGraph({}).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
app = graph.compile(checkpoint_saver=getattr(savers, kind)(path))
if given == "start":
    app.invoke({}, "t")
app.invoke(GraphResume(True) if given == "answer" else None, "t")
"""


@pytest.mark.parametrize("kind", [FileSystemSaver, SqliteSaver])
@pytest.mark.parametrize("given", ["answer", "go"])
def test_a_process_that_died_after_the_answer_leaves_a_stalled_thread(tmp_path, launcher, kind, given):
    path = tmp_path / "store"
    with kind(path) as saver:
        assert launcher.run("-c", KILLED, kind.__name__, path, "start").returncode == 0
        assert status(saver) == "interrupted"
        if given == "go":
            operations.answer(saver, "t", True)
            assert status(saver) == "answered"
        assert launcher.run("-c", KILLED, kind.__name__, path, given).returncode == 9
        assert status(saver) == "stalled"


# With nested graphs


@pytest.mark.parametrize("place", ["the graph", "a nested graph", "a nested graph with its own saver"])
def test_an_answer_from_elsewhere_waits_for_the_next_resume(saver, place):
    seen = []

    def ask():
        answer = interrupt("ok?")
        seen.append(status(saver))
        return answer

    has_own_saver = "own" in place
    graph = make_chain(LOG, ask=logs(ask))
    if place != "the graph":
        graph = make_chain(LOG, sub=graph.compile(checkpoint_saver=MemorySaver() if has_own_saver else None))
    app = graph.compile(checkpoint_saver=saver)
    app.invoke({}, CONFIG)
    assert status(saver) == "interrupted"
    if has_own_saver:
        app.invoke(GraphResume("yes"), CONFIG)
    else:
        operations.answer(saver, "t", "yes")
        assert status(saver) == "answered"
        app.invoke(None, CONFIG)
    assert seen == ["running"]
    assert status(saver) == "finished"
