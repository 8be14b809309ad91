"""Threads do not interfere: runs that are interleaved, or at the same time, end as each does alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings, strategies as st

from graphkit import GraphResume
from graphkit.agents import AgentBuilder, tool
from savers import FileSystemSaver, MemorySaver
from tests.support.agents import call, calling, transcript
from tests.support.sweeps import examples

THREADS = ["ada", "bob-456", "charlie-789"]
INPUTS = st.sampled_from(["hello", "add 2", "sell tea", "sell rum", "yes", "no", "resume"])
"""What a user does: say something, answer what waits, or resume."""


def count(number: int) -> int:
    """Add one."""
    return number + 1


@tool(requires_approval=True)
def sell(item: str) -> str:
    """Sell something."""
    return f"sold {item}"


def model(messages):
    last = messages[-1]
    said = sum(message["role"] == "user" for message in messages)
    call_id = f"c{len(messages)}"
    verb, _, thing = last["content"].partition(" ")
    if last["role"] == "tool":
        verb = "show"
    if verb == "add":
        number = int(thing)
        return calling(call("count", id=call_id, number=number))
    if verb == "sell":
        return calling(call("sell", id=call_id, item=thing))
    return f"{said}: {last['content']}"


def build(saver):
    return AgentBuilder().with_chat(model, name="chat").with_tools(count, sell).with_checkpointer(saver).build()


def act(agent, thread, what):
    """Do one thing on a thread; answers and resumes need something that waits."""
    is_new = not agent.get_state_history(thread)
    waits = not is_new and bool(agent.get_state(thread).interrupts)
    if what in {"yes", "no"}:
        return agent.run(GraphResume(what == "yes"), thread) if waits else None
    if what == "resume":
        return None if is_new else agent.run(None, thread)
    return agent.run(what, thread)


def ends_of(agent, threads):
    """What each thread has in the end: its transcript, its nodes, and what waits."""
    ends = {}
    for thread in threads:
        history = agent.get_state_history(thread)
        nodes = [(snapshot.node, snapshot.next) for snapshot in history]
        if history:
            payloads = [waiting.payload for waiting in history[0].interrupts]
            messages = transcript({"messages": [], **history[0].values})
            ends[thread] = (messages, nodes, payloads)
    return ends


@pytest.mark.requirement("P26")
@given(actions=st.lists(st.tuples(st.sampled_from(THREADS), INPUTS), max_size=20))
@settings(max_examples=examples(100))
def test_interleaved_threads_end_as_each_does_alone(actions):
    alone = {}
    for thread in THREADS:
        agent = build(MemorySaver())
        for actor, what in actions:
            if actor == thread:
                act(agent, thread, what)
        alone |= ends_of(agent, [thread])
    together = build(MemorySaver())
    for thread, what in actions:
        act(together, thread, what)
    assert ends_of(together, THREADS) == alone


CONVERSATION = ["hello", "add 1", "sell tea", "yes", "sell rum", "no", "bye"]


@pytest.mark.requirement("P26")
def test_conversations_at_the_same_time_end_as_one_alone(tmp_path, sweep):
    threads = [f"user-{number}" for number in range(sweep.count(200, 40))]
    lonely = build(MemorySaver())
    for what in CONVERSATION:
        act(lonely, "alone", what)
    (expected,) = ends_of(lonely, ["alone"]).values()
    with FileSystemSaver(tmp_path, fsync="never") as saver, ThreadPoolExecutor(16) as pool:
        agent = build(saver)

        def converse(thread):
            for what in CONVERSATION:
                act(agent, thread, what)

        list(pool.map(converse, threads))
        assert ends_of(agent, threads) == dict.fromkeys(threads, expected)
