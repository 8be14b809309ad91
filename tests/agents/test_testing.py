"""What graphkit.agents.testing has for tests."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from graphkit import CheckpointStorageError, RunnableConfig
from graphkit.agents.testing import FailingSaver, ManualClock, ScriptedModel
from graphkit.testing import made
from savers import MemorySaver

T = RunnableConfig("t")


@pytest.mark.requirement("P81")
def test_a_failing_saver_fails_at_the_nth_put_only_and_stores_nothing_of_it():
    saver = FailingSaver(saver=MemorySaver(), nth=2)
    saver.put(T, made({"n": 1}))
    with pytest.raises(CheckpointStorageError, match="call 2 of put fails, as scripted"):
        saver.put(T, made({"n": 2}))
    saver.put(T, made({"n": 3}))
    assert [checkpoint.state["n"] for checkpoint in saver.list(T)] == [3, 1]


def test_a_manual_clock_moves_only_when_advanced():
    clock = ManualClock(1_000_000_000)
    assert ManualClock(clock())() == clock() == datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)
    clock.advance(1.5)
    clock.advance(timedelta(weeks=1))
    for seconds in (-1, float("nan")):
        with pytest.raises(ValueError, match="seconds"):
            clock.advance(seconds)

    assert clock() == datetime(2001, 9, 16, 1, 46, 41, 500_000, tzinfo=UTC)


def test_a_scripted_model_gives_its_replies_in_order_and_records_the_requests():
    question = {"role": "user", "content": "Hi"}
    model = ScriptedModel(["Hello.", {"role": "assistant", "content": None, "tool_calls": []}])
    first = model([question])
    second = model.request([], tools=[{"type": "function"}])
    assert first["role"] == "assistant"
    assert first["content"] == "Hello."
    assert second["tool_calls"] == []
    assert first["id"] != second["id"]
    assert model.calls == [[question], []]
    assert model.tools == [[], [{"type": "function"}]]
    assert model.count == 2


def test_a_scripted_model_streams_word_by_word_raises_the_errors_of_its_script_and_calls_its_functions():
    words = []
    script = ["One two\n  three ", OSError("gone"), lambda messages: f"You said {messages[-1]['content']}."]
    model = ScriptedModel(script)
    assert model.request([], [], words.append)["content"] == "".join(words)
    assert words == ["One ", "two\n  ", "three "]
    with pytest.raises(OSError, match="gone"):
        model([])

    assert model([{"role": "user", "content": "x"}])["content"] == "You said x."
    with pytest.raises(AssertionError, match="the script has 3 replies, and this is request 4"):
        model([])
    with pytest.raises(TypeError, match="must return a text or a message, not int"):
        ScriptedModel([7])([])


def test_an_asynchronous_scripted_model_answers_only_there():
    model = ScriptedModel(["one"], is_async=True)
    with pytest.raises(RuntimeError, match="asynchronous"):
        model.request([])
    assert asyncio.run(model.arequest([]))["content"] == "one"
    assert model.count == 1
