"""What LangGraph's checkpointers are given to do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from benchmarks.peers.own_api import OwnApi
from benchmarks.table import timed

THREAD: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}


class Counter(TypedDict):
    """What a loop counts."""

    n: int


def count(state: Any) -> dict[str, int]:
    """The node: one cheap update."""
    return {"n": state["n"] + 1}


async def acount(state: Any) -> dict[str, int]:
    """The node of an asynchronous graph."""
    return {"n": state["n"] + 1}


def counting_graph(checkpointer: Any, steps: int, *, node: Any = count) -> Any:
    """Return a LangGraph of two nodes that take turns for this many steps."""
    from langgraph.graph import StateGraph

    graph = StateGraph(Counter)
    graph.add_node("a", node)
    graph.add_node("b", node)
    graph.add_edge("__start__", "a")
    graph.add_edge("a", "b")
    graph.add_conditional_edges("b", lambda state: "__end__" if state["n"] >= steps else "a", ["a", "__end__"])
    return graph.compile(checkpointer=checkpointer)


def config_of(thread: str, steps: int) -> Any:
    """Return the config of a run of this many steps."""
    return {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10}


def run_steps(checkpointer: Any, steps: int, **options: Any) -> float:
    """Measure one step of the loop with `invoke`, in seconds."""
    if isinstance(checkpointer, OwnApi):
        return checkpointer.run_steps(steps)
    app = counting_graph(checkpointer, steps)
    app.invoke({"n": steps - 2}, config_of("first", steps), **options)  # what a store does once
    return timed(lambda: app.invoke({"n": 0}, config_of("bench", steps), **options)) / steps


async def arun_steps(checkpointer: Any, steps: int, **options: Any) -> float:
    """Measure one step of the loop with `ainvoke`, in seconds."""
    app = counting_graph(checkpointer, steps, node=acount)
    await app.ainvoke({"n": steps - 2}, config_of("first", steps), **options)
    clock = asyncio.get_running_loop().time
    started = clock()
    await app.ainvoke({"n": 0}, config_of("bench", steps), **options)
    return (clock() - started) / steps


async def arun_threads(checkpointer: Any, threads: int) -> float:
    """Measure threads that run at once in one event loop: two runs of six steps each, in seconds."""
    app = counting_graph(checkpointer, 6, node=acount)

    async def converse(thread: str) -> None:
        for _ in range(2):
            await app.ainvoke({"n": 0}, config_of(thread, 6))

    clock = asyncio.get_running_loop().time
    started = clock()
    await asyncio.gather(*(converse(f"t{n}") for n in range(threads)))
    return clock() - started


def make_message(number: int) -> dict[str, str]:
    """Return a message of 200 bytes."""
    return {"id": str(number), "role": "user", "content": "x" * 200}


def put_growing(checkpointer: Any, thread: str, count: int) -> None:
    """Put checkpoints whose list grows by a message each time."""
    messages: list[Any] = []
    put = make_putter(checkpointer, thread)
    for number in range(count):
        messages.append(make_message(number))
        put(number, messages)


def put_in_turn(checkpointer: Any, threads: int, puts: int) -> None:
    """Put checkpoints into many threads, one into each in turn."""
    putters = [make_putter(checkpointer, f"t{n}") for n in range(threads)]
    for number in range(puts):
        for put in putters:
            put(number, [make_message(number)])


def make_putter(checkpointer: Any, thread: str) -> Any:
    """Return a function that puts the next checkpoint of a thread."""
    from langgraph.checkpoint.base import empty_checkpoint

    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    version = None

    def put(step: int, messages: list[Any]) -> None:
        nonlocal config, version
        version = checkpointer.get_next_version(version, None)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": messages}
        checkpoint["channel_versions"] = {"messages": version}
        metadata = {"source": "loop", "step": step, "parents": {}}
        config = checkpointer.put(config, checkpoint, metadata, {"messages": version})

    return put


WINDOW = 100


def keep_last(left: list[Any], right: list[Any]) -> list[Any]:
    """The reducer of a sliding window."""
    return (left + right)[-WINDOW:]


def append_writes(state: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    """The reducer of a DeltaChannel."""
    return [*state, *(message for write in writes for message in write)]


def chat_graph(checkpointer: Any, steps: int, *, delta: bool) -> Any:
    """Return a graph that adds a message in each step: to a sliding window, or to a DeltaChannel."""
    from langgraph.channels.delta import DeltaChannel
    from langgraph.graph import StateGraph

    channel: Any = DeltaChannel(append_writes) if delta else keep_last
    chat = TypedDict("chat", {"n": int, "messages": Annotated[list, channel]})  # type: ignore[misc] # noqa: UP013

    def say(state: Any) -> dict[str, Any]:
        return {"n": state["n"] + 1, "messages": [make_message(state["n"])]}

    graph = StateGraph(chat)
    graph.add_node("say", say)
    graph.add_edge("__start__", "say")
    graph.add_conditional_edges("say", lambda state: "__end__" if state["n"] >= steps else "say", ["say", "__end__"])
    return graph.compile(checkpointer=checkpointer)


def run_chat(checkpointer: Any, steps: int, *, delta: bool) -> float:
    """Measure one step of a chat, in seconds."""
    app = chat_graph(checkpointer, steps, delta=delta)
    given = {"n": 0, "messages": []}
    return timed(lambda: app.invoke(given, config_of("bench", steps), durability="sync")) / steps
