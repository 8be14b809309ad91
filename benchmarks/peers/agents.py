"""The same agent for graphkit and for LangGraph: a scripted model, three tools, and a store.

Run as a program, it executes one turn and kills itself within one call; the calls that finish are lines of a file:

    python -m benchmarks.peers.agents KIND FOLDER CALL
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

KINDS = ("graphkit-file", "graphkit-sqlite", "langgraph-async", "langgraph-sync")
CALLS = ("model 0", "tool a", "tool b", "model 1", "tool c", "model 2")
"""The calls of a turn; a and b are parallel, and b ends after a."""
HEAD_START = 0.3
"""Seconds that b waits before it is killed, in which the store may record a."""


class Work:
    """What happens when a call is made: it is counted, or it kills the process."""

    def __init__(self, log: Path | None = None, deadly: str = "") -> None:
        self.log = log
        self.deadly = deadly
        self.is_a_done = threading.Event()

    def do(self, call: str) -> None:
        """Do the work of a call."""
        if call == self.deadly:
            if call == "tool b":
                self.is_a_done.wait(10)
                sleep(HEAD_START)
            os.kill(os.getpid(), signal.SIGKILL)
        if call == "tool a":
            self.is_a_done.set()
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(call + "\n")


def reply_to(roles: list[str], work: Work) -> tuple[str, list[str]]:
    """Return the text of the model and the tools that it calls, from the roles of the conversation."""
    last_user = len(roles) - 1 - roles[::-1].index("user")
    number = roles[last_user:].count("assistant")
    work.do(f"model {number}")
    tools = [["a", "b"], ["c"], []][number]
    return "x" * 200, tools


def graphkit_agent(work: Work, saver: Any) -> Callable[[str | None], Any]:
    """Return what runs one turn, or resumes it with None."""
    from graphkit.agents import AgentBuilder, tool

    def model(messages: Any) -> dict[str, Any]:
        text, names = reply_to([message["role"] for message in messages], work)
        functions = [{"name": name, "arguments": json.dumps({"word": "tea"})} for name in names]
        calls = [{"id": f"{len(messages)}-{f['name']}", "type": "function", "function": f} for f in functions]
        return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}

    def make_tool(name: str) -> Any:
        def call(word: str) -> str:
            """Look up a word."""
            work.do(f"tool {name}")
            return word * 50

        return tool(call, name=name)

    builder = AgentBuilder().with_chat(model, name="agent").with_tools(*map(make_tool, "abc"))
    agent = builder.with_checkpointer(saver).build()
    return lambda text: agent.run(text, "bench")


def langgraph_agent(work: Work, saver: Any, durability: str) -> Callable[[str | None], Any]:
    """As `graphkit_agent`, of LangGraph's prebuilt agent."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import StructuredTool
    from langgraph.prebuilt import create_react_agent

    roles = {"human": "user", "ai": "assistant", "tool": "tool"}

    class Model(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - the script knows them
            return self

        def _generate(self, messages: Any, *_: Any, **__: Any) -> Any:
            text, names = reply_to([roles[message.type] for message in messages], work)
            calls = [{"id": f"{len(messages)}-{name}", "name": name, "args": {"word": "tea"}} for name in names]
            return ChatResult(generations=[ChatGeneration(message=AIMessage(content=text, tool_calls=calls))])

    def make_tool(name: str) -> Any:
        def call(word: str) -> str:
            """Look up a word."""
            work.do(f"tool {name}")
            return word * 50

        return StructuredTool.from_function(call, name=name)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the name moved to another package, which is not installed here
        agent = create_react_agent(Model(), [make_tool(name) for name in "abc"], checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "bench"}}

    def run(text: str | None) -> Any:
        given = None if text is None else {"messages": [("user", text)]}
        return agent.invoke(given, config, durability=durability)  # type: ignore[call-overload]

    return run


@contextmanager
def open_agent(kind: str, folder: Path, work: Work, *, is_durable: bool) -> Iterator[Callable[[str | None], Any]]:
    """Open an agent on a folder; yield what runs one turn.

    Args:
        kind: one of KINDS.
        folder: where the store is.
        work: the work of its calls.
        is_durable: whether each record is on the disk before the run goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if kind.startswith("langgraph-"):
        from langgraph.checkpoint.sqlite import SqliteSaver as Peer

        connection = sqlite3.connect(folder / "peer.db", check_same_thread=False)
        saver = Peer(connection)
        saver.setup()
        connection.execute(f"PRAGMA synchronous={'FULL' if is_durable else 'OFF'}")
        yield langgraph_agent(work, saver, kind.removeprefix("langgraph-"))
        connection.close()
        return
    from savers import FileSystemSaver, SqliteSaver

    fsync: Any = "always" if is_durable else "never"
    own: Any = (
        FileSystemSaver(folder, fsync=fsync) if kind == "graphkit-file" else SqliteSaver(folder / "own.db", fsync=fsync)
    )
    with own:
        yield graphkit_agent(work, own)


def main() -> None:
    """Execute or resume one turn, and be killed in a call."""
    kind, folder, deadly = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    is_first = deadly != "none"
    with open_agent(kind, folder / "store", Work(folder / "calls", deadly), is_durable=True) as run:
        run("What is tea?" if is_first else None)


if __name__ == "__main__":
    main()
