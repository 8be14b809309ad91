"""Tools and their calls: schemas, execution, approvals, errors, retries and timeouts, and what is recorded."""

import asyncio
import functools
import threading
from datetime import date
from typing import Annotated, Literal
from unittest import mock

import pytest
from pydantic import BaseModel, Field

from graphkit import CheckpointStorageError, GraphResume, NodeExecutionError, RetryPolicy, RunnableConfig, interrupt
from graphkit.agents import AgentBuilder, Tool, ToolError, tool
from graphkit.agents.tools import ToolArgumentsError, collect_tools
from savers import MemorySaver
from tests.support.agents import AsyncScript, Script, call, calling, contents
from tests.support.sweeps import ALL


class Till:
    """Tools that count."""

    def __init__(self):
        self.sold = []
        self.calls = []

    def add(self, a: int, b: int = 1) -> int:
        """Add."""
        self.calls.append(("add", a, b))
        return a + b

    def sell(self, item: str, amount: int = 1) -> dict:
        """Sell."""
        self.sold.append((item, amount))
        return {"sold": item, "amount": amount}


@pytest.fixture
def till():
    return Till()


def build(*replies, tools, saver=None, kind=Script):
    return AgentBuilder().with_chat(kind(*replies), name="chat").with_tools(*tools).with_checkpointer(saver).build()


@pytest.mark.sweep(ALL)
def test_tools_are_called_until_the_model_answers(run, till):
    replies = calling(call("add", a=1)), calling(call("add", a=2, b=3), call("sell", item="tea")), "done"
    agent = build(*replies, tools=[till.add, till.sell], saver=MemorySaver())
    state = run(agent, "go", "t")
    assert contents(state) == ["2", "5", '{"sold":"tea","amount":1}']
    assert contents(state, "assistant")[-1] == "done"
    nodes = [snapshot.node for snapshot in agent.get_state_history("t")]
    assert nodes == ["chat", "chat_tools", "chat", "chat_tools", "chat", "__START__"]


def tool_names(request):
    _, schemas = request
    return [schema["function"]["name"] for schema in schemas]


def test_the_model_gets_the_schemas_of_its_tools_and_the_results_of_its_calls(run, till):
    asked = calling(call("add", id="c1", a=1))
    one = Script(asked, "x")
    two = Script("x", "y", "z")
    builder = AgentBuilder().with_chat(one, tools=[till.sell]).with_chat(two)
    run(builder.with_tools(till.add).build(), "go")
    assert tool_names(one.requests[0]) == ["add", "sell"]
    assert tool_names(two.requests[0]) == ["add"]
    messages, _ = one.requests[1]
    result = messages[-1]
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "c1", "2")


@pytest.mark.sweep(ALL)
def test_as_many_calls_of_one_message_run_at_the_same_time_as_the_step_allows(run):
    pair = threading.Barrier(2, timeout=10)
    lock = threading.Lock()
    running = []
    counts = []

    def meet(number: int) -> None:
        with lock:
            running.append(number)
            counts.append(len(running))
        pair.wait()
        with lock:
            running.remove(number)

    model = Script(calling(*(call("meet", number=number) for number in range(8))), "done")
    agent = AgentBuilder().with_chat(model, max_parallel_tools=2).with_tools(meet).build()
    assert contents(run(agent, "go")) == ["null"] * 8
    assert max(counts) == 2


@pytest.mark.parametrize(
    ("wrong", "content"),
    [
        (call("nothing"), "Error: there is no tool 'nothing'; the tools are: add"),
        (call("add", a="x"), "Error: the call was not executed: a: must be a valid integer"),
        ({"id": "1", "function": {"name": "add", "arguments": "{"}}, "the arguments are not valid JSON"),
    ],
)
def test_a_wrong_call_is_reported_to_the_model(run, till, wrong, content):
    agent = build(calling(wrong, call("add", a=1)), "sorry", tools=[till.add])
    state = run(agent, "go")
    assert content in contents(state)[0]
    assert contents(state)[1] == "2"
    assert till.calls == [("add", 1, 1)]


def test_all_attempts_of_a_call_have_one_key_and_may_use_it_once_and_no_other_call_has_it(run):
    keys = {"tea": [], "rum": []}

    @tool(retry=RetryPolicy(max_attempts=3, initial_delay=0, jitter=False))
    def pay(item: str, config: RunnableConfig) -> str:
        keys[item].append(config.idempotency_key)
        paid = config.once("payment", lambda: f"paid in attempt {config.attempt}")
        if config.attempt < 3:
            raise ConnectionError("busy")
        return paid

    agent = build(calling(call("pay", item="tea"), call("pay", item="rum")), "done", tools=[pay], saver=MemorySaver())
    assert contents(run(agent, "go", "t")) == ["paid in attempt 1"] * 2
    (tea,) = set(keys["tea"])
    (rum,) = set(keys["rum"])
    assert len(keys["tea"]) == 3
    assert tea != rum


# Errors


@pytest.mark.sweep(ALL)
@pytest.mark.requirement("P82")
def test_an_error_that_stops_the_run_names_the_tool_and_repeats_no_other_call(run, till):
    attempts = []

    @tool(on_error="raise")
    def flaky() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("gone")
        return "here"

    replies = calling(call("add", a=1), call("flaky", id="c2"), call("add", a=2)), "done"
    agent = build(*replies, tools=[till.add, flaky], saver=MemorySaver())
    with pytest.raises(ToolError, match="tool 'flaky' failed in call 'c2': ConnectionError: gone") as raised:
        run(agent, "go", "t")
    error = raised.value
    assert (error.tool, error.call_id, error.node_id, error.thread_id) == ("flaky", "c2", "chat_tools", "t")
    assert isinstance(error, NodeExecutionError)
    assert isinstance(error.__cause__, ConnectionError)
    assert contents(run(agent, None, "t")) == ["2", "here", "3"]
    assert sorted(till.calls) == [("add", 1, 1), ("add", 2, 1)]


@pytest.mark.parametrize("result", [object(), b"\xff"], ids=["object", "bytes"])
def test_a_result_without_a_json_form_is_an_error_of_the_tool(run, result):
    agent = build(calling(call("strange")), "sorry", tools=[tool(lambda: result, name="strange")])
    (content,) = contents(run(agent, "go"))
    assert content.startswith("Error: TypeError: the tool was executed, but its result, ")


def test_a_store_that_fails_in_a_tool_is_no_error_of_the_tool(run):
    def broken():
        raise CheckpointStorageError("put", "/p", OSError(28, "full"))

    agent = build(calling(call("broken")), "sorry", tools=[broken])
    with pytest.raises(CheckpointStorageError):
        run(agent, "go")


@pytest.mark.sweep(ALL)
def test_a_failed_tool_is_tried_again(run):
    attempts = []

    @tool(retry=RetryPolicy(max_attempts=3, initial_delay=0, retry_on=ConnectionError))
    def flaky(stop_at: int) -> str:
        attempts.append(1)
        if len(attempts) < stop_at:
            raise ConnectionError("gone")
        return "here"

    agent = build(calling(call("flaky", stop_at=3)), calling(call("flaky", stop_at=99)), "x", tools=[flaky])
    assert contents(run(agent, "go")) == ["here", "Error: ConnectionError: gone"]
    assert len(attempts) == 6


TOO_SLOW = ["Error: TimeoutError: tool 'slow' took longer than its timeout of 0.05 s"]


@pytest.mark.sweep(ALL)
def test_a_slow_tool_is_given_up(run):
    released = threading.Event()
    slow = tool(lambda: released.wait(60), name="slow", timeout=0.05)
    agent = build(calling(call("slow")), "done", tools=[slow])
    try:
        assert contents(run(agent, "go")) == TOO_SLOW
    finally:
        released.set()


def test_a_slow_asynchronous_tool_is_cancelled():
    cancelled = []

    @tool(timeout=0.05)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    agent = build(calling(call("slow")), "done", tools=[slow], kind=AsyncScript)
    assert contents(asyncio.run(agent.arun("go"))) == TOO_SLOW
    assert cancelled == [True]


async def test_a_call_on_a_thread_is_recorded_although_the_run_is_cancelled(till):
    is_running = threading.Event()
    may_end = threading.Event()

    def act(number: int) -> str:
        till.calls.append(number)
        is_running.set()
        may_end.wait()
        return "acted"

    async def look() -> str:
        return "seen"

    agent = build(calling(call("act", number=1), call("look")), "done", tools=[act, look], saver=MemorySaver())

    work = asyncio.create_task(agent.arun("go", "t"))
    await asyncio.to_thread(is_running.wait)
    work.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await work

    assert contents(await agent.arun(None, "t")) == ["acted", "seen"]
    assert till.calls == [1]


# Approvals


def selling(till, **options):
    return tool(till.sell, requires_approval=True, **options)


@pytest.mark.parametrize(
    ("reply", "content", "sold"),
    [
        (True, '{"sold":"tea","amount":1}', [("tea", 1)]),
        (False, "The call was not executed: a human refused it", []),
        ({"approved": False, "reason": "too dear"}, "The call was not executed: a human refused it: too dear", []),
        (
            {"approved": True, "arguments": {"item": "tea", "amount": 2}},
            'A human changed the arguments to {"item": "tea", "amount": 2}.\n{"sold":"tea","amount":2}',
            [("tea", 2)],
        ),
    ],
)
def test_a_human_approves_refuses_or_changes(run, till, reply, content, sold):
    agent = build(calling(call("sell", id="c1", item="tea")), "done", tools=[selling(till)], saver=MemorySaver())
    run(agent, "go", "t")
    (waiting,) = agent.get_state("t").interrupts
    assert waiting.payload == {"tool": "sell", "arguments": {"item": "tea"}, "id": "c1"}
    assert till.sold == []
    assert contents(run(agent, GraphResume(reply), "t")) == [content]
    assert till.sold == sold


def test_arguments_of_an_approval_in_code_may_be_objects(run):
    booked = []

    @tool(requires_approval=True)
    def book(day: date) -> str:
        booked.append(day)
        return "done"

    agent = build(calling(call("book", day="2026-01-01")), "done", tools=[book], saver=MemorySaver())
    run(agent, "go", "t")
    state = run(agent, GraphResume({"approved": True, "arguments": {"day": date(2027, 1, 2)}}), "t")
    assert contents(state) == ['A human changed the arguments to {"day": "2027-01-02"}.\ndone']
    assert booked == [date(2027, 1, 2)]


@pytest.mark.parametrize(
    "useless",
    [
        None,
        {"approved": True, "arguments": [1]},
        {"approved": True, "arguments": {"item": "tea", "amount": "many"}},
        {"approved": True, "arguments": {"item": b"\xff"}},
        {"approved": False, "reason": 1},
    ],
)
def test_an_answer_that_cannot_be_used_is_asked_for_again(run, till, useless):
    sale = calling(call("sell", id="c1", item="tea"))
    agent = build(sale, "done", tools=[selling(till)], saver=MemorySaver())
    run(agent, "go", "t")
    run(agent, GraphResume(useless), "t")
    (waiting,) = agent.get_state("t").interrupts
    assert waiting.payload["error"]
    assert waiting.payload["id"] == "c1"
    assert till.sold == []
    assert contents(run(agent, GraphResume(True), "t")) == ['{"sold":"tea","amount":1}']


@pytest.mark.sweep(ALL)
def test_several_approvals_wait_at_once_while_other_calls_go_on(run, till):
    sales = [call("sell", item=item) for item in ("tea", "milk", "salt")]
    calls = calling(call("add", a=1), *sales)
    agent = build(calls, "done", tools=[selling(till), till.add], saver=MemorySaver())
    run(agent, "go", "t")
    ids = {}
    snapshot = agent.get_state("t")
    for waiting in snapshot.interrupts:
        item = waiting.payload["arguments"]["item"]
        ids[item] = waiting.id
    run(agent, GraphResume({ids["milk"]: True}), "t")
    assert till.sold == [("milk", 1)]
    answers = {ids["tea"]: False, ids["salt"]: True}
    state = run(agent, GraphResume(answers), "t")
    assert till.sold == [("milk", 1), ("salt", 1)]
    assert till.calls == [("add", 1, 1)]
    assert ["refused" in content for content in contents(state)] == [False, True, False, False]


def test_wrong_arguments_are_not_shown_to_a_human(run, till):
    agent = build(calling(call("sell", thing="tea")), "done", tools=[selling(till)], saver=MemorySaver())
    (content,) = contents(run(agent, "go", "t"))
    assert "item: is missing" in content


def test_a_tool_may_ask_a_human_itself(run):
    def ask(question: str) -> str:
        return interrupt(question)

    agent = build(calling(call("ask", question="which?")), "done", tools=[ask], saver=MemorySaver())
    run(agent, "go", "t")
    assert contents(run(agent, GraphResume("this"), "t")) == ["this"]


# A conversation that goes on


def test_after_new_input_every_call_that_is_sent_has_one_result(run, till):
    sale = calling(call("sell", id="c1", item="tea"))
    model = Script(sale, "never mind", calling(call("add", a=1)), "2")
    builder = AgentBuilder().with_chat(model).with_tools(selling(till), till.add)
    agent = builder.with_checkpointer(MemorySaver()).build()
    run(agent, "go", "t")
    state = run(agent, "forget it", "t")
    sent, _ = model.requests[-1]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
    result = sent[2]
    assert result["tool_call_id"] == "c1"
    assert result["content"].startswith("No result")
    stored = state["messages"]
    assert [message["role"] for message in stored] == ["user", "assistant", "user", "assistant"]
    assert till.sold == []
    run(agent, "add 1", "t")
    assert [message["role"] for message in model.requests[-1][0][-3:]] == ["user", "assistant", "tool"]


def test_a_result_that_was_supplied_is_not_computed(run, till):
    both = calling(call("sell", id="c1", item="tea"), call("add", a=1))
    agent = build(both, "x", tools=[selling(till), till.add], saver=MemorySaver())
    run(agent, "go", "t")
    supplied = {"role": "tool", "tool_call_id": "c1", "content": "sold by phone"}
    start = agent.get_state("t")
    agent.update_state("t", {"messages": [supplied]}, start.checkpoint_id, as_node="chat")
    state = run(agent, None, "t")
    assert contents(state) == ["sold by phone", "2"]
    assert till.sold == []


# The schema and the checks of a function


class Address(BaseModel):
    street: str
    number: int


def ship(to: Address, weight: Annotated[float, Field(description="in kg", gt=0)], express: bool = False) -> None:
    """Ship a parcel."""


def test_the_signature_is_the_schema_and_arguments_are_converted_to_it():
    function = tool(ship).schema["function"]
    assert (function["name"], function["description"]) == ("ship", "Ship a parcel.")
    parameters = function["parameters"]
    assert parameters["required"] == ["to", "weight"]
    assert parameters["additionalProperties"] is False
    properties = parameters["properties"]
    assert properties["weight"] == {"description": "in kg", "exclusiveMinimum": 0, "type": "number"}
    assert properties["express"] == {"default": False, "type": "boolean"}
    address = parameters["$defs"]["Address"]
    assert address["properties"] == {"street": {"type": "string"}, "number": {"type": "integer"}}
    checked = tool(ship).check_arguments({"to": {"street": "Elm", "number": 5}, "weight": 2})
    assert checked == {"to": Address(street="Elm", number=5), "weight": 2.0}


def test_wrong_arguments_are_named():
    for arguments, problem in (
        ({"weight": 1}, "to: is missing"),
        ({"to": {"street": "Elm", "number": "five"}, "weight": 1}, "to.number: must be a valid integer"),
        ({"to": {"street": "Elm", "number": 5}, "weight": 0}, "weight: must be greater than 0"),
        ({"to": {"street": "Elm", "number": 5}, "weight": 1, "colour": 1}, "colour: is unknown"),
    ):
        with pytest.raises(ToolArgumentsError, match=problem):
            tool(ship).check_arguments(arguments)


def test_names_that_pydantic_reserves_are_names_of_parameters():
    def odd(schema: str, model_config: int, _private: date, copy: Literal["a", "b"] = "a"):
        pass

    odd_tool = tool(odd)
    assert list(odd_tool.parameters["properties"]) == ["schema", "model_config", "_private", "copy"]
    checked = odd_tool.check_arguments({"schema": "s", "model_config": 1, "_private": "2026-11-22"})
    assert checked == {"schema": "s", "model_config": 1, "_private": date(2026, 11, 22)}


def test_a_decorated_function_can_still_be_called():
    @tool(name="twice", requires_approval=True, retry=RetryPolicy(max_attempts=2), timeout=3, on_error="raise")
    def double(number: int) -> int:
        return 2 * number

    assert isinstance(double, Tool)
    assert double(4) == 8
    assert (double.name, double.requires_approval, double.timeout, double.on_error) == ("twice", True, 3, "raise")


def test_partials_and_objects_are_tools():
    class Adder:
        """Adds."""

        def __call__(self, a: int, b: int) -> int:
            return a + b

    async def wait(seconds: int, unit: str) -> None:
        pass

    adder = tool(Adder())
    assert (adder.name, list(adder.parameters["properties"]), adder.is_async) == ("Adder", ["a", "b"], False)
    waiting = tool(functools.partial(wait, unit="s"))
    assert (waiting.name, waiting.is_async) == ("wait", True)
    with pytest.raises(TypeError, match="tool 'Mock': parameter 'args'"):
        tool(mock.Mock())  # it has every attribute, also that of a partial


def takes_any(*values):
    pass


def takes_keywords(**values):
    pass


def takes_positions(value, /):
    pass


class Opaque:
    pass


def takes_opaque(value: Opaque):
    pass


def takes_unknown(value: "NoSuchType"):  # noqa: F821
    pass


def yields(value: int):
    yield value


def test_a_function_that_cannot_be_a_tool_is_refused():
    for function in (takes_any, takes_keywords, takes_positions, takes_opaque, takes_unknown, yields, Till.add):
        with pytest.raises(TypeError, match=function.__name__):
            tool(function)


def test_wrong_options_are_refused():
    for options, problem in (
        ({"name": "two words"}, "1 to 64 letters"),
        ({"timeout": 0}, "above 0"),
        ({"on_error": "ignore"}, "one of 'model', 'raise'"),
    ):
        with pytest.raises(ValueError, match=problem):
            tool(ship, **options)
    with pytest.raises(TypeError, match="cannot be called"):
        Tool(name="x", description="", parameters={}, function="f", is_async=False)


def test_each_tool_has_a_name_of_its_own():
    assert list(collect_tools([ship, ship])) == ["ship"]
    with pytest.raises(ValueError, match="two tools named 'ship'"):
        collect_tools([ship, tool(lambda: None, name="ship")])
    with pytest.raises(TypeError, match="a function or a Tool"):
        collect_tools(["ship"])
