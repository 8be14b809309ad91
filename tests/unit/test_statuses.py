"""What a history says of its runs: a status that is true wherever and in whichever process it is asked for, and when they resumed."""

import json
from datetime import UTC, datetime

import pytest

from graphkit import Checkpoint, GraphResume, RunnableConfig, interrupt, operations
from graphkit.errors import NodeExecutionError
from savers import FileSystemSaver, MemorySaver, SqliteSaver
from tests.support.graphs import CONFIG, LOG, Killed, connect, fail_once, make_chain, make_graph, make_map
from tests.support.savers import saver_fixture
from tests.support.sweeps import ALL
from tests.support.terminal import graphkit

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


# Progress of a fork or a map, and pending writes that are no failure and no cancel


def process_item(item):
    if item == 3:
        raise Killed
    return {"log": item}


def make_items(action=process_item):
    return make_map(action, range(5), max_concurrency=1)


def die(state):
    raise Killed


FORK = make_graph(LOG, "START>a a>END START>b1 b1>b2 b2>END", b2=die)
MAP_IN_A_BRANCH = connect(make_items().add_node("a", lambda state: None), "START>a a>END")


@pytest.mark.parametrize(
    ("graph", "progress"),
    [
        (make_items(), "3/5 items of m done"),
        (FORK, "1/2 branches done"),
        (MAP_IN_A_BRANCH, "1/2 branches done, 3/5 items of m done"),
    ],
)
def test_the_command_line_shows_how_much_is_done(graph, progress, tmp_path):
    with FileSystemSaver(tmp_path) as saver, pytest.raises(Killed):
        graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)
    (row,) = json.loads(graphkit("threads", tmp_path, "--json").out)
    assert row["progress"] == progress
    assert progress in graphkit("show", tmp_path, "t").out
    assert progress in graphkit("watch", tmp_path, "t", "--limit", "2").out


def test_a_finished_map_shows_no_progress(tmp_path):
    with FileSystemSaver(tmp_path) as saver:
        make_items(lambda item: {"log": item}).compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert "items of m" not in graphkit("show", tmp_path, "t").out


NOW = datetime(2026, 1, 2, tzinfo=UTC)
GOOD = {"node_id": "a", "when": "inside", "payload": "why?", "metadata": {}, "created_at": NOW}


@pytest.mark.parametrize("words", [("threads",), ("show", "t"), ("interrupts",)])
def test_the_command_line_shows_what_has_no_time_and_no_reason(words, tmp_path):
    with FileSystemSaver(tmp_path / "store", fsync="never") as saver:
        for thread in ("t", "u"):
            saver.put(RunnableConfig(thread), Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))
        saver.put_writes(CONFIG, {"interrupt:i": GOOD, "interrupt:j": {**GOOD, "created_at": 1}})
        saver.put_writes(RunnableConfig("u"), {"failure": {}})

    done = graphkit(words[0], tmp_path / "store", *words[1:])

    assert done.code == 0
    assert done.err == ""
    assert "why?" in done.out


@pytest.mark.sweep(ALL)
def test_what_is_no_failure_and_no_cancel_is_none_in_a_summary(saver):
    saver.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={}))
    # Keys like those of LangGraph.
    saver.put_writes(CONFIG, {"write:-1:t": {"no": "record"}, "write:-3:t": 5, "write:-3:u": [5] * 6})
    saver.put_writes(CONFIG, {"write:-1:v": [None] * 6, "write:-1:w": ["~__pregel_pull, a", "w", -1, "c", "t", "text"]})

    assert saver.interrupts("t") == []
    assert saver.summary(CONFIG).failure is None
    saver.put_writes(CONFIG, {"failure": "text", "cancelled": "text"})
    summary = saver.summary(CONFIG)

    assert (summary.failure, summary.cancellation) == (None, None)
