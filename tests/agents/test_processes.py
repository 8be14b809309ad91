"""Agents over several processes: conversations, approvals from elsewhere, and every backend."""

import json
from pathlib import Path

import pytest

from graphkit.operations import answer
from graphkit.registry import get_saver

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from graphkit import GraphResume
from graphkit.agents import AgentBuilder, tool
from graphkit.registry import get_saver
from tests.support.agents import call, calling

kind, location, thread, given = json.loads(sys.argv[1])
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

saver = get_saver(kind, **location)
agent = AgentBuilder().with_chat(model, name="chat").with_tools(sell).with_checkpointer(saver).build()
if isinstance(given, dict):
    given = GraphResume(given["answer"])
state = agent.run(given, thread)
waiting = {one.payload["arguments"]["item"]: one.id for one in agent.get_state(thread).interrupts}
print(json.dumps([state["messages"][-1]["content"], waiting, sold]))
saver.close()
"""


@pytest.fixture(params=["file", "sqlite", "postgres"])
def backend(request, tmp_path):
    """The registered name of a saver, and where a new store is."""
    if request.param == "file":
        return "file", {"base_directory": str(tmp_path / "runs")}
    if request.param == "sqlite":
        return "sqlite", {"db_file": str(tmp_path / "runs" / "agent.db")}
    return "postgres", {"connection_string": request.getfixturevalue("server").create_database()}


@pytest.fixture
def in_process(launcher):
    def run(backend, given, thread="t"):
        """Run the agent in a process of its own: the last message, the approvals that wait, and what was sold."""
        done = launcher.run("-c", PROGRAM, json.dumps([*backend, thread, given]), cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return run


@pytest.mark.requirement("P13", "P16", "P46")
def test_a_conversation_goes_on_in_another_process(backend, in_process):
    assert in_process(backend, "one")[0] == "one"
    assert in_process(backend, "two")[0] == "one, two"
    assert in_process(backend, "other", thread="bob-456")[0] == "other"
    with get_saver(backend[0], **backend[1]) as saver:
        assert sorted(saver.threads()) == ["bob-456", "t"]
        nodes = [checkpoint.node_id for checkpoint in saver.list({"configurable": {"thread_id": "t"}})]
    assert nodes == ["chat", "__START__", "chat", "__START__"]


@pytest.mark.requirement("P46")
def test_an_approval_is_given_by_a_third_process(backend, in_process):
    content, waiting, sold = in_process(backend, "sell tea rum")
    assert content is None
    assert set(waiting) == {"tea", "rum"}
    assert sold == []
    kind, location = backend
    with get_saver(kind, **location) as saver:
        answer(saver, "t", True, interrupt=waiting["tea"])
    content, waiting, sold = in_process(backend, None)
    assert set(waiting) == {"rum"}
    assert sold == ["tea"]
    content, waiting, sold = in_process(backend, {"answer": {"approved": False, "reason": "too strong"}})
    assert waiting == {}
    assert sold == []
    assert content == "sold tea; The call was not executed: a human refused it: too strong"
