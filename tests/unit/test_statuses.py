"""What a history says of its runs: a status that is true wherever and in whichever process it is asked for, and when they resumed."""

from datetime import UTC, datetime

import pytest

from graphkit import GraphResume, RunnableConfig, interrupt, operations
from graphkit.errors import NodeExecutionError
from savers import FileSystemSaver, MemorySaver, SqliteSaver
from tests.support.graphs import CONFIG, LOG, fail_once, make_chain
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


# When a run resumed, so that the time before it does not count as the time of a node


def ask(state):
    return {"n": interrupt("how many?")}


def step(state):
    return {"n": state["n"] + 1}


def resumed(saver, at=CONFIG):
    """The nodes whose checkpoint says when the run resumed, oldest first."""
    return [info.node_id for info in reversed(saver.history(at)) if "resumed_at" in info.metadata]


def test_the_first_checkpoint_after_an_answer_has_the_time_of_the_resume(saver):
    graph = make_chain({}, a=step, ask=ask, b=step, c=step).compile(checkpoint_saver=saver)
    graph.invoke({"n": 0}, CONFIG)

    assert resumed(saver) == []

    before = datetime.now(UTC)
    graph.invoke(GraphResume(3), CONFIG)
    assert resumed(saver) == ["ask"]

    info = next(info for info in saver.history(CONFIG) if info.node_id == "ask")
    assert before <= datetime.fromisoformat(info.metadata["resumed_at"]) <= info.created_at

    graph.invoke({"n": 0}, CONFIG)  # a new run does not carry it on
    assert resumed(saver) == ["ask"]


def test_after_a_failure_and_again_after_the_next_one(saver):
    graph = make_chain({}, start=step, a=fail_once(step), b=fail_once(step), c=step).compile(checkpoint_saver=saver)
    for given in ({"n": 0}, None):
        with pytest.raises(NodeExecutionError):
            graph.invoke(given, CONFIG)
    graph.invoke(None, CONFIG)
    assert resumed(saver) == ["a", "b"]


def test_a_nested_graph_notes_it_in_its_own_history(saver):
    inner = make_chain({}, x=step, ask=ask, y=step).compile()
    graph = make_chain({}, a=step, inner=inner, b=step).compile(checkpoint_saver=saver)
    graph.invoke({"n": 0}, CONFIG)
    graph.invoke(GraphResume(3), CONFIG)
    assert resumed(saver, RunnableConfig("t", checkpoint_ns="inner")) == ["ask"]
    assert resumed(saver) == ["inner"]


def test_a_watch_reports_when_a_change_was_stored(saver):
    graph = make_chain({}, a=step, ask=ask).compile(checkpoint_saver=saver)
    graph.invoke({"n": 0}, CONFIG)
    (waiting,) = saver.interrupts("t")
    latest = saver.history(CONFIG)[0]

    with saver.watch(CONFIG, latest=True, interval=0.01) as watch:
        first, second = watch.get(30), watch.get(30)

    assert first.kind == "checkpoint"
    assert first.at == latest.created_at
    assert second.kind == "interrupt"
    assert second.at == waiting.created_at


def test_a_release_on_files_has_the_time_of_the_last_write(tmp_path):
    saver = FileSystemSaver(tmp_path / "runs", fsync="never")
    graph = make_chain({}, a=step).compile(checkpoint_saver=saver)
    graph.invoke({"n": 0}, CONFIG)
    with saver.watch(CONFIG, interval=0.01) as watch:
        saver.release(CONFIG)
        change = watch.get(30)
    (version,) = (tmp_path / "runs").glob("t-*/v*.log")

    assert change.kind == "release"
    assert change.at == datetime.fromtimestamp(version.stat().st_mtime, UTC)
