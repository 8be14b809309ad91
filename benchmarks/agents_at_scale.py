"""What checkpoints cost an agent: steps of 5 ms, 2,000 conversations at once, and loading a long thread.

Model and tool wait for 5 ms each, as for a network, and measure themselves; the share is the rest of the time, less the
same without a checkpointer.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from benchmarks.table import Row, run, timed
from graphkit import Checkpoint, RunnableConfig
from graphkit.agents import Agent, AgentBuilder
from savers import FileSystemSaver, SqliteSaver

NODE = 0.005
"""Seconds that a model or a tool takes."""
CALLS = 50
"""Tool calls of one turn, one after the other."""
CONVERSATIONS = 2000
RECORD = bytes(300)
"""About what a checkpoint of a call appends."""
LONG = 100_000
"""Checkpoints of a long thread."""


class Work:
    """The model and the tool of a turn with CALLS tool calls; adds up how long they took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.requests = 0

    def _wait(self) -> None:
        started = perf_counter()
        sleep(NODE)
        self.seconds += perf_counter() - started

    def model(self, messages: list[dict[str, Any]]) -> Any:
        """Call the tool until it was called often enough."""
        self._wait()
        self.requests += 1
        if self.requests > CALLS:
            return "done"
        function = {"name": "tool", "arguments": json.dumps({"number": len(messages)})}
        call = {"id": f"call-{self.requests}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    def tool(self, number: int) -> int:
        """Wait."""
        self._wait()
        return number


def share_beside_calls(saver: Any) -> float:
    """The time of a turn outside its model and tools, as a share of what these should take."""
    work = Work()
    agent = with_saver(AgentBuilder().with_chat(work.model).with_tools(work.tool), saver)
    whole = timed(lambda: agent.run("go", "bench"))
    return (whole - work.seconds) / ((2 * CALLS + 1) * NODE)


def share_of_raw_appends(file: Path) -> float:
    """The time of an append and fdatasync after each wait, as a share of the waits: what the disk itself costs."""
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    waits = 2 * CALLS + 1
    seconds = 0.0
    for _ in range(waits):
        sleep(NODE)
        started = perf_counter()
        os.write(descriptor, RECORD)
        os.fdatasync(descriptor)
        seconds += perf_counter() - started
    os.close(descriptor)
    return seconds / (waits * NODE)


def with_saver(builder: AgentBuilder, saver: Any) -> Agent:
    """Build the agent, with or without a checkpointer."""
    return (builder if saver is None else builder.with_checkpointer(saver)).build()


def converse_at_once(saver: Any) -> float:
    """Seconds for CONVERSATIONS turns in one event loop."""

    async def answer(messages: list[dict[str, Any]]) -> str:
        await asyncio.sleep(NODE)
        return str(messages[-1]["content"])

    agent = with_saver(AgentBuilder().with_chat(answer), saver)

    async def converse(number: int) -> None:
        state = await agent.arun(str(number), f"thread {number}")
        assert state is not None
        assert state["messages"][-1]["content"] == str(number), "the answer of another conversation"

    async def converse_all() -> None:
        await asyncio.gather(*map(converse, range(CONVERSATIONS)))

    return timed(lambda: asyncio.run(converse_all()))


def load_long_thread(saver: Any) -> float:
    """Seconds until an agent that was just built has the state of a thread with LONG checkpoints."""
    config = RunnableConfig("long")
    for number in range(LONG):
        state = {"messages": [{"role": "user", "content": f"message {number}", "id": "1"}], "number": number}
        saver.put(config, Checkpoint(node_id="llm_step_0", next_node_id="llm_step_0", state=state))
    saver.close()
    agent = with_saver(AgentBuilder().with_chat(lambda _: "hello"), saver)
    started = perf_counter()
    assert agent.get_state("long").values["number"] == LONG - 1
    return perf_counter() - started


def main(folder: Callable[[], Path]) -> None:
    """Print the tables."""
    savers: dict[str, Callable[[], Any]] = {
        "no checkpointer": lambda: None,
        "FileSystemSaver, never": lambda: FileSystemSaver(folder(), fsync="never"),
        "FileSystemSaver, always": lambda: FileSystemSaver(folder()),
        "SqliteSaver, never": lambda: SqliteSaver(folder() / "agent.db", fsync="never"),
        "SqliteSaver, always": lambda: SqliteSaver(folder() / "agent.db"),
    }
    names = list(savers)[1:]

    def share(name: str) -> float:
        return share_beside_calls(savers[name]()) - share_beside_calls(None)

    shares = [Row(name, lambda name=name: share(name)) for name in names]  # type: ignore[misc]
    shares.append(Row("raw append + fdatasync", lambda: share_of_raw_appends(folder() / "raw")))
    run("What a checkpointer adds to model and tool calls of 5 ms", shares, rounds=5, unit="%", scale=100)
    at_once = [Row(name, lambda name=name: converse_at_once(savers[name]())) for name in savers]  # type: ignore[misc]
    run(f"{CONVERSATIONS} conversations at once", at_once, rounds=3, unit="s", scale=1, base="no checkpointer")
    long = [Row(name, lambda name=name: load_long_thread(savers[name]())) for name in names if "never" in name]  # type: ignore[misc]
    run(f"The state of a thread with {LONG} checkpoints, new object", long, rounds=3, unit="ms", scale=1e3)
