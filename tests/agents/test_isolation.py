"""Threads do not interfere: runs at the same time end as each does alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from graphkit import GraphResume
from graphkit.agents import AgentBuilder, tool
from savers import FileSystemSaver, MemorySaver
from tests.support.agents import call, calling, transcript


@tool(requires_approval=True)
def sell(item: str) -> str:
    """Sell something."""
    return f"sold {item}"


def model(messages):
    verb, _, thing = messages[-1]["content"].partition(" ")
    if verb == "sell":
        return calling(call("sell", id=f"c{len(messages)}", item=thing))
    return f"{len(messages)}: {verb} {thing}"


def converse(saver, thread, name):
    """Have the conversation of a user; return its transcript and its nodes."""
    agent = AgentBuilder().with_chat(model, name="chat").with_tools(sell).with_checkpointer(saver).build()
    for given in (f"I am {name}", f"sell {name}", GraphResume(True), "sell rum", GraphResume(False), "bye"):
        agent.run(given, thread)
    history = agent.get_state_history(thread)
    return transcript(history[0].values), [(snapshot.node, snapshot.next) for snapshot in history]


@pytest.mark.requirement("P26")
def test_conversations_at_the_same_time_end_as_each_does_alone(tmp_path, sweep):
    names = [f"user-{number}" for number in range(sweep.count(200, 24))]
    with FileSystemSaver(tmp_path, fsync="never") as saver, ThreadPoolExecutor(16) as pool:
        ends = pool.map(lambda name: converse(saver, f"thread of {name}", name), names)
        for name, end in zip(names, ends, strict=True):
            assert end == converse(MemorySaver(), "alone", name)
