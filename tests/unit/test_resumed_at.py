"""A run notes when it resumed, so that the time before it does not count as the time of a node."""

from datetime import UTC, datetime
from functools import partial
from typing import TypedDict

import pytest

from graphkit import GraphResume, RunnableConfig, interrupt
from graphkit.errors import NodeExecutionError
from savers import FileSystemSaver
from tests.support.graphs import fail_once, make_chain
from tests.support.savers import saver_fixture
from tests.support.sweeps import ALL

AT = RunnableConfig("t")


class State(TypedDict):
    n: int


saver = saver_fixture(["memory", "file"], most=ALL)


line = partial(make_chain, State)


def ask(state):
    return {"n": interrupt("how many?")}


def step(state):
    return {"n": state["n"] + 1}


def resumed(saver, at=AT):
    """The nodes whose checkpoint says when the run resumed, oldest first."""
    return [info.node_id for info in reversed(saver.history(at)) if "resumed_at" in info.metadata]


def test_the_first_checkpoint_after_an_answer_has_the_time_of_the_resume(saver):
    graph = line(a=step, ask=ask, b=step, c=step).compile(checkpoint_saver=saver)
    graph.invoke({"n": 0}, AT)

    assert resumed(saver) == []

    before = datetime.now(UTC)
    graph.invoke(GraphResume(3), AT)
    assert resumed(saver) == ["ask"]

    info = next(info for info in saver.history(AT) if info.node_id == "ask")
    assert before <= datetime.fromisoformat(info.metadata["resumed_at"]) <= info.created_at

    graph.invoke({"n": 0}, AT)  # a new run does not carry it on
    assert resumed(saver) == ["ask"]


def test_after_a_failure_and_again_after_the_next_one(saver):
    graph = line(start=step, a=fail_once(step), b=fail_once(step), c=step).compile(checkpoint_saver=saver)
    for given in ({"n": 0}, None):
        with pytest.raises(NodeExecutionError):
            graph.invoke(given, AT)
    graph.invoke(None, AT)
    assert resumed(saver) == ["a", "b"]


def test_a_nested_graph_notes_it_in_its_own_history(saver):
    inner = line(x=step, ask=ask, y=step).compile()
    graph = line(a=step, inner=inner, b=step).compile(checkpoint_saver=saver)
    graph.invoke({"n": 0}, AT)
    graph.invoke(GraphResume(3), AT)
    assert resumed(saver, RunnableConfig("t", checkpoint_ns="inner")) == ["ask"]
    assert resumed(saver) == ["inner"]


def test_a_watch_reports_when_a_change_was_stored(saver):
    graph = line(a=step, ask=ask).compile(checkpoint_saver=saver)
    graph.invoke({"n": 0}, AT)
    (waiting,) = saver.interrupts("t")
    latest = saver.history(AT)[0]

    with saver.watch(AT, latest=True, interval=0.01) as watch:
        first, second = watch.get(30), watch.get(30)

    assert first.kind == "checkpoint"
    assert first.at == latest.created_at
    assert second.kind == "interrupt"
    assert second.at == waiting.created_at


def test_a_release_on_files_has_the_time_of_the_last_write(tmp_path):
    saver = FileSystemSaver(tmp_path / "runs", fsync="never")
    graph = line(a=step).compile(checkpoint_saver=saver)
    graph.invoke({"n": 0}, AT)
    with saver.watch(AT, interval=0.01) as watch:
        saver.release(AT)
        change = watch.get(30)
    (version,) = (tmp_path / "runs").glob("t-*/v*.log")

    assert change.kind == "release"
    assert change.at == datetime.fromtimestamp(version.stat().st_mtime, UTC)
