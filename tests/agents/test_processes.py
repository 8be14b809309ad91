"""Agents over several processes: conversations, and approvals from elsewhere."""

import json
from pathlib import Path

import pytest

from graphkit.operations import answer
from savers import FileSystemSaver

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from graphkit import GraphResume
from graphkit.agents import AgentBuilder, tool
from savers import FileSystemSaver
from tests.support.agents import call, calling

directory, thread, given = json.loads(sys.argv[1])
sold = []

@tool(requires_approval=True)
def sell(item: str) -> str:
    sold.append(item)
    return f"sold {item}"

def model(messages):
    last = messages[-1]
    if last["role"] == "tool":
        return "; ".join(message["content"] for message in messages if message["role"] == "tool")
    if last["content"].startswith("sell "):
        items = last["content"].split()[1:]
        return calling(*(call("sell", id=f"c-{item}", item=item) for item in items))
    return ", ".join(message["content"] for message in messages if message["role"] == "user")

saver = FileSystemSaver(directory)
agent = AgentBuilder().with_chat(model, name="chat").with_tools(sell).with_checkpointer(saver).build()
if isinstance(given, dict):
    given = GraphResume(given["answer"])
state = agent.run(given, thread)
waiting = {one.payload["arguments"]["item"]: one.id for one in agent.get_state(thread).interrupts}
print(json.dumps([state["messages"][-1]["content"], waiting, sold]))
saver.close()
"""


@pytest.mark.requirement("P13", "P16", "P46")
def test_a_conversation_goes_on_in_other_processes_and_an_approval_comes_from_a_third_one(tmp_path, launcher):
    def run(given, thread="t"):
        """Run the agent in a process of its own: the last message, the approvals that wait, and what was sold."""
        done = launcher.run("-c", PROGRAM, json.dumps([str(tmp_path / "runs"), thread, given]), cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    assert run("one")[0] == "one"
    assert run("two")[0] == "one, two"
    assert run("other", thread="bob-456")[0] == "other"
    content, waiting, sold = run("sell tea rum")
    assert (content, set(waiting), sold) == (None, {"tea", "rum"}, [])
    with FileSystemSaver(tmp_path / "runs") as saver:
        answer(saver, "t", True, interrupt=waiting["tea"])
    _, waiting, sold = run(None)
    assert (set(waiting), sold) == ({"rum"}, ["tea"])
    content, waiting, sold = run({"answer": {"approved": False, "reason": "too strong"}})

    assert (waiting, sold) == ({}, [])
    assert content == "sold tea; The call was not executed: a human refused it: too strong"
