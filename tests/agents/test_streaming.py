"""Streams: the text of a model in pieces while it answers."""

import asyncio
import threading

import pytest

from graphkit import RunnableConfig, StreamingOutput
from graphkit.agents import AgentBuilder
from savers import MemorySaver
from tests.support.agents import AsyncScript, Script, call, calling, texts


def add(a: int) -> int:
    return a + 1


def build(model, saver=None):
    return AgentBuilder().with_chat(model, name="chat").with_tools(add).with_checkpointer(saver).build()


async def collect(agent, *arguments):
    return [output async for output in agent.astream(*arguments)]


@pytest.fixture(params=["sync", "async", "async model"])
def stream(request):
    """Streams a script to the end: what it emits."""

    def run(*replies, pieces, saver=None, thread=None):
        kind = AsyncScript if request.param == "async model" else Script
        agent = build(kind(*replies, pieces=pieces), saver)
        if request.param == "sync":
            return list(agent.stream("go", thread))
        return asyncio.run(collect(agent, "go", thread))

    return run


def test_text_arrives_in_pieces_with_the_nodes_between(stream):
    outputs = stream(calling(call("add", a=1), content="let me add"), "it is 2", pieces=True)
    assert texts(outputs) == ["let", "me", "add", "it", "is", "2"]
    assert [output.node for output in outputs if not isinstance(output, StreamingOutput)] == [
        "__START__",
        "chat",
        "chat_tools",
        "chat",
        "__END__",
    ]


def test_the_text_of_a_model_that_does_not_stream_is_one_piece(stream):
    assert texts(stream(calling(call("add", a=1)), "it is 2", pieces=False)) == ["it is 2"]


def test_text_is_streamed_after_a_run_that_did_not_stream():
    agent = build(Script("one"))
    agent.run("go")
    assert texts(agent.stream("go")) == ["one"]


def test_closing_the_stream_ends_the_request():
    threads = []

    class Model(Script):
        def request(self, messages, tools=(), on_text=None):
            threads.append(threading.current_thread())
            while True:
                on_text("on and on")

    agent = build(Model(), MemorySaver())
    outputs = agent.stream("go", "t", stream_mode="custom")
    assert next(outputs) == "on and on"
    outputs.close()
    assert not threads[0].is_alive()
    assert agent.get_state("t").next == "chat"


def test_a_stream_is_closed_although_the_model_is_stuck(monkeypatch):
    monkeypatch.setattr("graphkit.agents.steps.GRACE", 0.01)
    released, recorded = threading.Event(), threading.Event()

    class Model(Script):
        def request(self, messages, tools=(), on_text=None):
            on_text("first")
            RunnableConfig().once("begun", lambda: released.wait(60))
            RunnableConfig().once("late", lambda: "effect")
            recorded.set()
            return {"role": "assistant", "content": "first"}

    saver = MemorySaver()
    agent = build(Model(), saver)
    outputs = agent.stream("go", "t")
    assert any(isinstance(output, StreamingOutput) for output in outputs)
    outputs.close()
    before = dict(saver.get_writes(RunnableConfig("t")))
    released.set()
    assert recorded.wait(60)
    assert dict(saver.get_writes(RunnableConfig("t"))) == before


async def test_closing_an_asynchronous_stream_cancels_the_request():
    cancelled = []

    class Model(AsyncScript):
        async def arequest(self, messages, tools=(), on_text=None):
            on_text("first")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    outputs = build(Model()).astream("go")
    async for output in outputs:
        if isinstance(output, StreamingOutput):
            break
    await outputs.aclose()
    assert cancelled == [True]
