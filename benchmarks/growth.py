"""How the cost of a step grows: with the messages in the state, with the checkpoints in the history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.table import Row, run, timed
from graphkit import END, START, BaseCheckpointSaver, Channels, RunnableConfig, StateGraph
from savers import FileSystemSaver, MemorySaver

STEPS = 200
MESSAGES = (10, 1_000, 10_000, 100_000)
CHECKPOINTS = (10, 1_000, 10_000, 100_000)
SCHEMA = {"messages": Channels.appender_with_duplicate()}
DISTINCT = {"messages": Channels.appender()}


def say(state: Any) -> dict[str, Any]:
    """The node: one message more."""
    return {"messages": f"message {state['n']}", "n": state["n"] + 1}


def loop(schema: Any, saver: BaseCheckpointSaver | None, steps: int) -> Any:
    """Build a graph that appends this many messages."""
    graph = StateGraph(schema).add_node("say", say).add_edge(START, "say")
    graph.add_conditional_edges("say", lambda state: END if state["n"] % steps == 0 else "say")
    return graph.compile(checkpoint_saver=saver, max_iterations=10**9)


def with_messages(count: int, schema: Any, make_saver: Callable[[], BaseCheckpointSaver | None]) -> float:
    """Measure the time per step of a state that starts with this many messages."""
    app, config = loop(schema, make_saver(), STEPS), RunnableConfig("bench")
    given = {"n": 1, "messages": [f"message {-n}" for n in range(1, count + 1)]}
    whole = timed(lambda: app.invoke(given, config))
    once = timed(lambda: app.invoke({**given, "n": STEPS - 1}, RunnableConfig("start")))  # what the input itself costs
    return max(whole - once, 0.0) / (STEPS - 2)


def with_history(count: int, make_saver: Callable[[], BaseCheckpointSaver]) -> float:
    """Measure the time per step on a thread that has this many checkpoints."""
    saver, config = make_saver(), RunnableConfig("bench")
    graph = StateGraph({}).add_node("count", lambda state: {"n": state["n"] + 1}).add_edge(START, "count")
    graph.add_conditional_edges("count", lambda state: END if state["n"] % count == 0 else "count")
    graph.compile(checkpoint_saver=saver, max_iterations=10**9).invoke({"n": 0}, config)
    app = loop({}, saver, STEPS)
    return timed(lambda: app.invoke({"n": 1, "messages": ""}, config)) / STEPS


def main(folder: Callable[[], Path]) -> None:
    """Print the tables."""

    def files() -> FileSystemSaver:
        return FileSystemSaver(folder(), fsync="never")

    def rows(name: str, measure: Callable[..., float], sizes: tuple[int, ...], *arguments: Any) -> list[Row]:
        return [Row(f"{name}, {size:,}", lambda size=size: measure(size, *arguments)) for size in sizes]

    run(
        f"One step that appends a message, by the messages that are there ({STEPS} steps)",
        [
            *rows("duplicates kept, no saver", with_messages, MESSAGES, SCHEMA, lambda: None),
            *rows("duplicates kept, MemorySaver", with_messages, MESSAGES, SCHEMA, MemorySaver),
            *rows("duplicates kept, files, never", with_messages, MESSAGES, SCHEMA, files),
            *rows("without duplicates, no saver", with_messages, MESSAGES[:3], DISTINCT, lambda: None),
        ],
        rounds=3,
    )
    run(
        f"One step, by the checkpoints that are there ({STEPS} steps)",
        [
            *rows("MemorySaver", with_history, CHECKPOINTS[:3], MemorySaver),
            *rows("files, never", with_history, CHECKPOINTS, files),
        ],
        rounds=2,
    )
