"""LangGraph's graphs that the tests of its checkpointer run."""

import dataclasses
import operator
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Send, interrupt


class Log(TypedDict):
    log: Annotated[list[str], operator.add]
    n: int


def chain(state, **nodes):
    """Nodes that run one after another."""
    graph = StateGraph(state)
    for before, (name, node) in zip([START, *nodes], nodes.items(), strict=False):
        graph.add_node(name, node)
        graph.add_edge(before, name)
    return graph


def loop(turns=3, state=Log):
    """Two nodes, round and round."""
    graph = chain(
        state,
        a=lambda state: {"log": [f"a{state['n']}"], "n": state["n"] + 1},
        b=lambda state: {"log": [f"b{state['n']}"]},
    )
    graph.add_conditional_edges("b", lambda state: "a" if state["n"] < turns else END, ["a", END])
    return graph


def _extended(old, writes):
    return [*(old or []), *(item for write in writes for item in write)]


def delta(frequency, turns=3):
    """The same with a list that is stored whole only now and then."""

    class Deltas(TypedDict):
        log: Annotated[list, DeltaChannel(_extended, list, snapshot_frequency=frequency)]
        n: int

    return loop(turns, Deltas)


def parallel(failures=None):
    """Four branches that meet; the last fails as often as `failures` says."""

    def branch(name):
        def run(_):
            if name == "d" and failures:
                failures.pop()
                raise ValueError("for a while")
            return {"log": [name]}

        return run

    graph = StateGraph(Log)
    graph.add_node("start", lambda _: {"log": ["start"]})
    graph.add_node("meet", lambda _: {"log": ["meet"]})
    for name in "abcd":
        graph.add_node(name, branch(name))
        graph.add_edge("start", name)
    graph.add_edge(["a", "b", "c", "d"], "meet")
    graph.add_edge(START, "start")
    return graph


def mapped():
    """One node for each item, by Send."""
    graph = chain(Log, split=lambda _: {"log": ["split"]})
    graph.add_node("one", lambda item: {"log": [f"one{item['n']}"]})
    graph.add_node("all", lambda state: {"n": len(state["log"])})
    sends = [Send("one", {"n": n}) for n in (3, 1, 2)]
    graph.add_conditional_edges("split", lambda _: sends, ["one"])
    graph.add_edge("one", "all")
    return graph


def nested():
    """Two subgraphs, one in the other; the inner one asks."""

    def ask(state):
        return {"log": ["asked " + interrupt({"at": state["log"][-1]})]}

    inner = chain(Log, first=lambda _: {"log": ["first"]}, ask=ask).compile()
    middle = chain(Log, before=lambda _: {"log": ["before"]}, inner=inner).compile()
    return chain(Log, middle=middle, after=lambda state: {"n": len(state["log"])})


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def chat():
    """A conversation that forgets its first message, and edits its last."""

    def answer(state):
        messages = state["messages"]
        said = messages[-1].content
        return {"messages": [AIMessage(f"you said {said}", id=f"a{len(messages)}")]}

    def tidy(state):
        messages = state["messages"]
        first, *_, last = messages
        forgotten = [RemoveMessage(first.id)] if len(messages) > 4 else []
        return {"messages": [*forgotten, AIMessage(last.content + "!", id=last.id)]}

    return chain(Chat, answer=answer, tidy=tidy)


def said(n):
    """What a human says."""
    return {"messages": [HumanMessage(f"line {n}", id=f"h{n}")]}


@dataclasses.dataclass
class Note:
    text: str


class Notes(TypedDict):
    note: Note
    more: Annotated[list[Note], operator.add]


def notes():
    return chain(Notes, write=lambda state: {"note": Note("new"), "more": [Note("one")]})
