"""Half a copy of LangGraph's thread is neither resumed nor overwritten by LangGraph, and listings go past it."""

from typing import TypedDict
from unittest import mock

import pytest

pytest.importorskip("langgraph")

from langgraph.types import Command, interrupt

from graphkit import CheckpointConflictError, RunnableConfig
from graphkit.transfer import copy_threads
from savers import MemorySaver
from savers.langgraph import CheckpointSaver
from tests.integrations.langgraph_graphs import chain
from tests.support.threads import assert_same

T = {"configurable": {"thread_id": "t"}}
OTHER = {"configurable": {"thread_id": "other"}}


class State(TypedDict):
    n: int


def make_graph(saver, effects):
    def count(state):
        effects.append("count")
        return {"n": state["n"] + 1}

    inner = chain(State, count=count).compile(checkpointer=True)
    graph = chain(State, inner=inner, ask=lambda _: {"n": interrupt("go on?")})
    return graph.compile(checkpointer=CheckpointSaver(saver))


class FullError(Exception):
    """No room for another checkpoint."""


def copy_half(source, target, puts):
    """Let the copy fail after some puts."""
    effects = [*[mock.DEFAULT] * puts, FullError]
    with mock.patch.object(target, "put", wraps=target.put, side_effect=effects), pytest.raises(FullError):
        copy_threads(source, target, ["t"])


@pytest.mark.sweep(2, of="puts", in_turn=True)
@pytest.mark.parametrize("puts", [1, 3, 4])
def test_langgraph_leaves_half_a_copy_alone_and_goes_on_with_the_whole(make_saver, puts):
    source, target = MemorySaver(), make_saver("target")
    make_graph(source, []).invoke({"n": 1}, T)
    effects = []
    graph = make_graph(target, effects)
    graph.invoke({"n": 5}, OTHER)
    effects.clear()
    copy_half(source, target, puts)
    assert target.history(RunnableConfig("t"))[0].status == "incomplete"
    for attempt in (
        lambda: graph.invoke(None, T),
        lambda: graph.invoke(Command(resume=7), T),
        lambda: graph.invoke({"n": 1}, T),
        lambda: graph.get_state(T),
        lambda: graph.update_state(T, {"n": 3}),
    ):
        with pytest.raises(CheckpointConflictError, match="it is incomplete"):
            attempt()
    assert effects == []
    assert {found.config["configurable"]["thread_id"] for found in graph.checkpointer.list(None)} >= {"other"}
    copy_threads(source, target, ["t"])
    assert_same(source, target)
    assert graph.invoke(Command(resume=7), T) == {"n": 7}
