"""Agents of pydantic-ai on graphkit threads: what is recorded is not made again, whoever goes on."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai")
from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, PromptedOutput, RunContext, TextOutput, ToolOutput
from pydantic_ai.messages import (
    ImageUrl,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel

from graphkit import GraphResume, GraphRunnerError, NodeExecutionError
from graphkit.pydantic_ai import DurableResult, make_durable
from savers import FileSystemSaver, MemorySaver
from tests.agents.durable_program import CALLS

ROOT = Path(__file__).resolve().parents[2]


def call(tool, id, **arguments):
    return ToolCallPart(tool, arguments, id)


class Script:
    """A model that gives the answers of a list, and knows how often it was asked."""

    def __init__(self, *answers):
        self.answers = [answer if isinstance(answer, list) else [answer] for answer in answers]
        self.asked = []
        self.model = FunctionModel(self.answer, stream_function=self.stream)

    def next_answer(self, messages):
        self.asked.append(messages)
        number = sum(isinstance(message, ModelResponse) for message in messages)
        return self.answers[number]

    def answer(self, messages, info):
        parts = [TextPart(part) if isinstance(part, str) else part for part in self.next_answer(messages)]
        return ModelResponse(parts=parts)

    async def stream(self, messages, info):
        for index, part in enumerate(self.next_answer(messages)):
            if isinstance(part, str):
                for word in part.split(" "):
                    yield f"{word} "
            else:
                yield {index: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}


def make_shop(script, calls, **options):
    agent = Agent(script.model, output_type=[str, DeferredToolRequests], name="shop", **options)

    @agent.tool_plain
    def look_up(number: int) -> str:
        calls.append(f"look up {number}")
        return f"order {number}"

    @agent.tool_plain(requires_approval=True)
    def cancel(number: int) -> str:
        calls.append(f"cancel {number}")
        return f"cancelled {number}"

    @agent.tool_plain
    def ship(number: int) -> str:
        raise CallDeferred

    return agent


def returned(result):
    return [part.content for message in result.messages for part in message.parts if isinstance(part, ToolReturnPart)]


def test_a_thread_remembers_the_conversation(tmp_path):
    for number, prompt in enumerate(["Hello", "Who am I?"]):
        script = Script("Hello.", "Bob.")
        with FileSystemSaver(tmp_path) as saver:
            result = make_durable(make_shop(script, []), saver).run(prompt, "bob")
        assert (result.output, result.interrupts) == (["Hello.", "Bob."][number], ())
        assert len(script.asked) == 1
        assert len(result.messages) == 2 * (number + 1)


def test_tools_that_wait_are_interrupts_that_another_process_answers(tmp_path):
    asked = [call("look_up", "c1", number=1), call("cancel", "c2", number=2), call("ship", "c3", number=3)]
    answers = [asked, "done"]
    calls = []
    with FileSystemSaver(tmp_path) as saver:
        durable = make_durable(make_shop(Script(*answers), calls), saver)
        first = durable.run("go", "t")
    assert first.output is None
    assert [interrupt.payload for interrupt in first.interrupts] == [
        {"kind": "approval", "tool": "cancel", "arguments": {"number": 2}, "id": "c2"},
        {"kind": "call", "tool": "ship", "arguments": {"number": 3}, "id": "c3"},
    ]
    approval, external = (interrupt.id for interrupt in first.interrupts)
    script = Script(*answers)
    with FileSystemSaver(tmp_path) as saver:
        durable = make_durable(make_shop(script, calls), saver)
        second = durable.run(GraphResume({external: {"parcel": 7}}), "t")
        (waiting,) = second.interrupts
        assert waiting.id == approval
        assert script.asked == []
        last = durable.run(GraphResume(True), "t")
    assert last.output == "done"
    assert calls == ["look up 1", "cancel 2"]
    assert sorted(map(str, returned(last))) == ["cancelled 2", "order 1", "{'parcel': 7}"]
    assert len(script.asked) == 1


@pytest.mark.parametrize(
    ("answer", "content", "called"),
    [
        (True, "cancelled 2", ["cancel 2"]),
        (False, "The tool call was denied.", []),
        ({"approved": False, "reason": "it is shipped"}, "it is shipped", []),
        ({"approved": True, "arguments": {"number": 4}}, "cancelled 4", ["cancel 4"]),
    ],
)
def test_an_approval_approves_changes_or_refuses(answer, content, called):
    calls = []
    durable = make_durable(make_shop(Script(call("cancel", "c2", number=2), "done"), calls), MemorySaver())
    durable.run("go", "t")
    for useless in ("perhaps", {"approved": True, "arguments": [4]}):
        asked_again = durable.run(GraphResume(useless), "t")
        assert "answer True, False" in asked_again.interrupts[0].payload["error"]
    result = durable.run(GraphResume(answer), "t")
    assert (result.output, returned(result), calls) == ("done", [content], called)


def test_of_two_prompts_at_a_time_the_second_is_refused_if_tools_wait():
    begun, both_try = threading.Event(), threading.Barrier(2)

    class Noting(MemorySaver):
        def run_lock(self, config=None, timeout=None):
            if begun.is_set():  # by the second prompt, which has found nothing that waits
                both_try.wait(60)
            return super().run_lock(config, timeout)

    class Waiting(Script):
        def next_answer(self, messages):
            if not begun.is_set():
                begun.set()
                both_try.wait(60)
            return super().next_answer(messages)

    durable = make_durable(make_shop(Waiting(call("cancel", "c2", number=2), "done"), []), Noting())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(durable.run, "go", "t")
        assert begun.wait(60)
        second = pool.submit(durable.run, "again", "t")
        (waiting,) = first.result(60).interrupts
        with pytest.raises(GraphRunnerError, match="tools wait: give GraphResume"):
            second.result(60)
    assert [each.id for each in durable.saver.interrupts("t")] == [waiting.id]


def test_a_new_prompt_is_refused_and_changes_nothing_until_the_answers_are_used():
    script = Script(call("cancel", "c2", number=2))
    durable = make_durable(make_shop(script, calls := []), MemorySaver())
    before = durable.run("go", "t").interrupts
    with pytest.raises(GraphRunnerError, match="tools wait: give GraphResume"):
        durable.run("something else", "t")
    assert durable.run(None, "t").interrupts == before
    with pytest.raises(NodeExecutionError, match="IndexError"):  # the script has no further answer
        durable.run(GraphResume(True), "t")
    with pytest.raises(GraphRunnerError, match="or None if all are answered"):
        durable.run("something else", "t")
    script.answers += [["done"], ["something else"]]
    assert durable.run(None, "t").output == "done"
    assert durable.run("something else", "t").output == "something else"
    assert calls == ["cancel 2"]


@pytest.mark.parametrize("first", ["run", "stream"])
def test_a_run_that_failed_goes_on_with_or_without_a_stream_whatever_the_name_of_the_agent(tmp_path, first):
    script = Script([call("break_down", "c1")], "done")
    agent = make_shop(script, [])
    attempts = []

    @agent.tool_plain
    def break_down() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("no")
        return "yes"

    durable = make_durable(agent, saver := MemorySaver())
    with pytest.raises(NodeExecutionError, match="no"):
        list(durable.stream("go", "t")) if first == "stream" else durable.run("go", "t")
    agent.name = "renamed"  # pydantic-ai infers one from the variable of the first caller
    durable = make_durable(agent, saver)
    result = durable.run(None, "t") if first == "stream" else [*durable.stream(None, "t")][-1]
    assert result.output.strip() == "done"
    assert len(script.asked) == 2


class SlowSaver(MemorySaver):
    """Takes its time for each record, so that finished calls wait for theirs."""

    def put_writes(self, config, writes):
        time.sleep(0.05)
        super().put_writes(config, writes)


def test_calls_that_have_finished_when_another_one_fails_are_not_made_again():
    agent = make_shop(Script([call("act", "c1"), call("act", "c2"), call("break_down", "c3")], "done"), [])
    calls = []

    @agent.tool
    async def act(context: RunContext) -> str:
        calls.append(context.tool_call_id)
        return "acted"

    @agent.tool_plain
    async def break_down() -> str:
        await asyncio.sleep(0.01)
        calls.append("c3")
        if calls.count("c3") == 1:
            raise OSError("no")
        return "repaired"

    durable = make_durable(agent, SlowSaver())
    with pytest.raises(NodeExecutionError, match="no"):
        durable.run("go", "t")
    assert durable.run(None, "t").output == "done"
    assert Counter(calls) == {"c1": 1, "c2": 1, "c3": 2}


async def test_a_tool_on_a_thread_is_waited_for_and_recorded_although_the_run_is_cancelled():
    calls = []
    is_running, may_end = threading.Event(), threading.Event()
    agent = make_shop(Script(call("act", "c1"), "done"), [])

    @agent.tool_plain
    def act() -> str:
        calls.append("begun")
        is_running.set()
        may_end.wait()
        calls.append("ended")
        return "acted"

    durable = make_durable(agent, MemorySaver())

    work = asyncio.create_task(durable.arun("go", "t"))
    await asyncio.to_thread(is_running.wait)
    work.cancel()
    for _ in range(50):  # the cancellation passes through several tasks
        await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert calls == ["begun", "ended"]

    assert returned(await durable.arun(None, "t")) == ["acted"]
    assert calls == ["begun", "ended"]


def test_a_stream_yields_events_while_they_happen_and_the_result_last():
    script = Script([call("look_up", "c1", number=1)], "All is well")
    durable = make_durable(make_shop(script, []), MemorySaver())
    *events, result = durable.stream("go", "t")
    pieces = []
    for event in events:
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            pieces.append(event.part.content)
        if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            pieces.append(event.delta.content_delta)

    assert pieces == ["All ", "is ", "well "]
    assert isinstance(result, DurableResult)
    assert result.output == "All is well "
    assert returned(result) == ["order 1"]
    assert len(script.asked) == 2


def test_closing_a_stream_ends_the_call_of_the_model(caplog):
    ended = []

    async def slow(messages, info):
        try:
            yield "one "
            await asyncio.sleep(60)
        finally:
            ended.append(1)

    durable = make_durable(Agent(FunctionModel(stream_function=slow), name="slow"), MemorySaver())
    stream = durable.stream("go", "t")
    assert next(stream).part.content == "one "
    stream.close()
    assert (ended, caplog.records) == ([1], [])  # asyncio logs what it cannot close


def test_prompts_and_dependencies_of_any_type():
    agent = Agent(TestModel(), deps_type=list)

    @agent.tool
    def note(context: RunContext[list]) -> str:
        context.deps.append(context.tool_call_id)
        return "noted"

    deps = []
    prompt = ["Where is this?", ImageUrl("https://example.com/a.png")]
    result = make_durable(agent, MemorySaver()).run(prompt, "t", deps=deps)
    assert result.messages[0].parts[0].content == prompt
    assert len(deps) == 1


class Seat(BaseModel):
    number: int
    day: date = date(2026, 11, 26)


SEATED = []


def take_seat(number: int) -> Seat:
    SEATED.append(number)
    return Seat(number=number)


def find_seat(answer: str) -> Seat:
    return take_seat(len(answer))


def name_day(number: int) -> date:
    return "someday"


@pytest.mark.parametrize(
    ("output_type", "text"),
    [
        (take_seat, None),
        (TextOutput(find_seat), None),
        (ToolOutput(Seat), None),
        (PromptedOutput(Seat), '{"number": 3}'),
        ([Seat, bool], None),
        ([take_seat, DeferredToolRequests], None),
        (name_day, None),
    ],
    ids=["function", "text", "tool", "prompted", "several", "deferred", "other than declared"],
)
def test_an_output_is_what_the_agent_returned(output_type, text):
    agent = Agent(TestModel(custom_output_text=text), output_type=output_type, name="seats")
    expected = asyncio.run(agent.run("go")).output
    SEATED.clear()
    durable = make_durable(agent, MemorySaver())
    assert durable.run("go", "t").output == expected
    assert durable.run(None, "t").output == expected
    assert len(SEATED) <= 1


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_store_call_nothing_recorded_is_made_again(tmp_path, launcher, when, sweep):
    def go_on(directory, when="never", number=0):
        """Go on with the run in a process of its own; its exit code and its notes."""
        directory.mkdir(exist_ok=True)
        done = launcher.run("-m", "tests.agents.durable_program", directory, when, number, cwd=ROOT)
        return done.returncode, (directory / "notes").read_text(encoding="utf-8").splitlines()

    _, undisturbed = go_on(tmp_path / "undisturbed")
    calls = int(undisturbed[-1])
    assert calls > 10
    for number in sweep.some(range(2, calls), 3):  # the first call stores the input
        directory = tmp_path / f"{number}"
        killed, _ = go_on(directory, when, number)
        ended, (*notes, _) = go_on(directory)
        assert (killed, ended) == (-signal.SIGKILL, 0)
        made = set()
        recorded = set()
        for note in notes:
            kind, _, name = note.partition(" ")
            if kind == "effect":
                assert name not in recorded
                made.add(name)
            else:
                recorded.add(name)
        assert made == CALLS
