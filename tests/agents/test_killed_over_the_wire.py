"""A process that runs an agent with a provider's model and an MCP server is killed; the next one repeats nothing."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.agents import chat_server
from tests.agents.chat_server import calls, text

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-0123456789-topsecret"
PROGRAM = """
import asyncio, json, os, sys
os.dup2(1, 2)  # nothing on either may show the key
from graphkit.agents import AgentBuilder

model, servers, directory, question = json.loads(sys.argv[1])
builder = AgentBuilder().with_chat(model).with_mcp_servers(servers)
agent = builder.with_checkpointer({"type": "file", "config": {"path": directory}}).build()
state = None if question is None else {"messages": [{"role": "user", "content": question}]}
done = asyncio.run(agent.arun(state, "t"))
print(json.dumps([[message["role"], message["content"]] for message in done["messages"]]))
"""
TRANSCRIPT = [["user", "Sums?"], ["assistant", None], ["tool", "3"], ["tool", "7"], ["assistant", "They are 3 and 7."]]


class Run:
    """One conversation over several processes."""

    def __init__(self, launcher, tmp_path, killed_at):
        self.launcher = launcher
        self.tmp_path = tmp_path
        self.killed_at = killed_at
        self.journal = tmp_path / "journal"
        self.journal.touch()
        self.process = None
        self.answered = []

    def answer(self, request):
        """Answer a request; in the place that the test names, kill the process that asks, once."""
        last = request["messages"][-1]["role"]
        if last == self.killed_at:
            self.killed_at = None
            os.kill(self.process.pid, signal.SIGKILL)
            return text("too late")
        self.answered.append(last)
        if last == "user":
            return calls(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}))
        return text("They are 3 and 7.")

    def start(self, base_url, question):
        model = {"provider": "openai", "model": "m", "base_url": base_url}
        program = str(Path(__file__).with_name("plain_mcp_server.py"))
        servers = {"plain": {"command": sys.executable, "args": [program, str(self.journal)], "tools": ["add"]}}
        arguments = json.dumps([model, servers, str(self.tmp_path / "store"), question])
        self.process = self.launcher.start("-c", PROGRAM, arguments, cwd=ROOT, environment={"OPENAI_API_KEY": KEY})
        return self.process.communicate()[0], self.process.returncode


@pytest.mark.parametrize("killed_at", ["user", "tool"])
def test_no_recorded_call_of_model_or_tool_is_repeated(launcher, tmp_path, killed_at):
    run = Run(launcher, tmp_path, killed_at)
    with chat_server.start(run.answer) as server:
        _, status = run.start(server.base_url, "Sums?")
        assert status == -signal.SIGKILL
        printed, status = run.start(server.base_url, None)

    assert status == 0, printed
    assert json.loads(printed) == TRANSCRIPT
    assert run.answered == ["user", "tool"]
    assert run.journal.read_text(encoding="utf-8").split().count("add") == 2
    stored = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert KEY.encode() not in stored
    assert KEY not in printed
