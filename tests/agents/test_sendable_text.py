"""Half a surrogate pair in a text, which no request can carry: it is replaced where it enters or is sent."""

import logging
from contextlib import ExitStack

import pytest

from graphkit.agents import AgentBuilder, ModelError
from savers import MemorySaver
from tests.agents import chat_server
from tests.agents.chat_server import calls, text
from tests.support.agents import contents

HALF = "name \udce9"
ESCAPED = r"name \udce9"


@pytest.fixture
def build(monkeypatch):
    """Builds an agent whose model is behind a server."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with ExitStack() as stack:

        def build(server, *tools, step=lambda _: {}, **options):
            settings = {"provider": "openai", "model": "m", "base_url": server.base_url, "retry": {"max_attempts": 1}}
            builder = AgentBuilder().with_step("step", step).with_chat(settings, **options).with_tools(*tools)
            return stack.enter_context(builder.with_checkpointer(MemorySaver()).build())

        yield build


def sent_texts(server):
    return [message["content"] for message in server.requests[-1]["messages"]]


def test_a_text_of_the_user_is_sent_and_the_thread_goes_on(build, caplog):
    with chat_server.start([text("What?"), text("Hello")]) as server:
        agent = build(server)
        state = agent.run(HALF, "t")
        assert contents(state, "user") == [ESCAPED]
        state = agent.run("hello", "t")
        assert contents(state, "assistant") == ["What?", "Hello"]
    assert sent_texts(server) == [ESCAPED, "What?", "hello"]
    (record,) = caplog.records
    assert record.name == "graphkit.agents"
    assert record.levelno == logging.WARNING
    assert r"'\udce9'" in record.getMessage()


@pytest.mark.parametrize("result", [HALF, {"sizes": {HALF: [HALF]}}], ids=ascii)
def test_a_result_of_a_tool_is_sent(build, result):
    def look() -> object:
        """Look."""
        return result

    with chat_server.start([calls(("look", {})), text("done"), text("bye")]) as server:
        agent = build(server, look)
        state = agent.run("go", "t")
        assert agent.run("more", "t")["messages"][-1]["content"] == "bye"
    content = state["messages"][2]["content"]
    assert "\\udce9" in content
    assert HALF not in content
    content.encode()


def test_the_error_of_a_tool_is_sent(build):
    def look():
        """Look."""
        raise ValueError(HALF)

    with chat_server.start([calls(("look", {})), text("done")]) as server:
        build(server, look).run("go", "t")
    assert r"\udce9" in sent_texts(server)[2]


def test_what_other_steps_and_inputs_store_is_sent(build):
    message = {"role": "user", "content": [{"type": "text", "text": HALF}]}

    def step(state):
        return {"file": HALF, "messages": [{"role": "user", "content": HALF}]}

    with chat_server.start([text("one"), text("two")]) as server:
        agent = build(server, step=step, prompt_template="Read {file}.")
        agent.run({"messages": [message]}, "t")
        parts = [{"type": "text", "text": ESCAPED}]
        assert sent_texts(server) == [f"Read {ESCAPED}.", parts, ESCAPED]
        agent.update_state("t", {"messages": [{"role": "user", "content": HALF}]})
        agent.run("more", "t")
    assert sent_texts(server)[-3:] == [ESCAPED, "more", ESCAPED]  # of update_state, and again of the step


def test_two_halves_of_one_character_become_it(build, caplog):
    with chat_server.start([text("done")]) as server:
        build(server).run("\ud83d\ude00", "t")
    assert sent_texts(server) == ["\N{GRINNING FACE}"]
    assert not caplog.records


def test_a_request_that_cannot_be_written_is_not_blamed_on_the_server(build):
    with chat_server.start([]) as server:
        agent = build(server)
        with pytest.raises(ModelError) as raised:
            agent.run({"messages": [{"role": "user", "content": [{"type": "text", "text": float("nan")}]}]}, "t")
    assert server.requests == []
    assert "ValueError" in raised.value.reason
    assert "answer" not in raised.value.reason
