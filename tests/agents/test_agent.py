"""Agents from code: steps, runs, threads, limits, and what is stored."""

import asyncio
import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, TypedDict
from unittest import mock

import pytest
from pydantic import BaseModel

from graphkit import (
    END,
    START,
    AgentState,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    GraphResume,
    GraphRunnerError,
    GraphStateError,
    MaxIterationsError,
    MessagesState,
    ModelError,
    NodeExecutionError,
    RunnableConfig,
)
from graphkit.agents import (
    Agent,
    AgentBuilder,
    AgentBuilderDirector,
    AgentConfig,
    AgentFactory,
    DefaultState,
    builder,
    tool,
)
from graphkit.errors import AgentConfigurationError
from savers import FileSystemSaver, MemorySaver
from tests.support.agents import AsyncScript, Script, call, calling, contents, transcript
from tests.support.graphs import make_chain


def echo(messages):
    return f"{len(messages)}: {messages[-1]['content']}"


def ways_to_start(agent):
    return agent.run, agent.stream, agent.astream, lambda *given: asyncio.run(agent.arun(*given))


# Building


@pytest.mark.requirement("P8", "P12")
@pytest.mark.parametrize("door", [AgentBuilder, AgentFactory])
def test_steps_are_a_chain_and_checkpoints_have_their_names(door):
    agent = (
        door()
        .with_step("prepare", lambda state: {"topic": "tea"})
        .with_chat(echo, prompt_template="About {topic}")
        .with_chat(echo, name="answer")
        .with_checkpointer(MemorySaver())
        .build()
    )
    state = agent.run("hello", "t")
    assert contents(state, "assistant") == ["2: hello", "2: 2: hello"]
    nodes = [snapshot.node for snapshot in agent.get_state_history("t")]
    assert nodes == ["answer", "llm_step_1", "prepare", START]
    assert agent.get_state("t").next == END


@pytest.mark.requirement("P10")
def test_wrong_steps_are_named_by_their_number():
    built = {"type": "agent", "agent": make_graph().compile(), "checkpointer": MemorySaver()}
    for steps, problem in (
        ([], "at least one step"),
        (["llm"], r"steps\[0\]: must be a mapping"),
        ([{"type": "llm", "model": echo}, {"type": "dream"}], "Invalid step 1: there is no type 'dream'"),
        ([{"type": "agent", "agent": 3}], r"steps\[0\].agent: must be an agent or a graph"),
        ([{"type": "agent", "agent": Agent()}], "before build"),
        ([built], "give the checkpointer to the agent"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=problem):
            AgentBuilderDirector(AgentConfig(steps=steps)).build()


def test_an_agent_in_a_step_is_refused_as_it_is_alone():
    step = {"type": "function", "function": lambda state: {}}
    for wrong, kind in (
        ({"steps": [step], "checkpointer": {"type": "sqlite"}}, CheckpointerConfigurationError),
        ({"steps": [step, {**step, "name": "function_step_0"}]}, GraphStateError),
    ):
        for config in (wrong, {"steps": [{"type": "agent", "agent": wrong}]}):
            with pytest.raises(kind):
                AgentBuilderDirector(AgentConfig.from_dict(config)).build()


def test_a_step_that_lacks_its_counterpart_is_refused():
    with pytest.raises(ValueError, match=r"tools \(add\) and no chat step"):
        AgentBuilder().with_step("f", lambda state: {}).with_tools(tool(lambda a: a, name="add")).build()
    with pytest.raises(ValueError, match="needs a model"):
        AgentBuilder().with_chat()


class SaverInMemory:
    """A configuration of a saver that can be closed."""

    def __init__(self, closed):
        self.closed = closed

    def build(self):
        saver = MemorySaver()
        saver.close = lambda: self.closed.append(saver)
        return saver


def test_an_agent_closes_what_its_builder_has_opened():
    closed = []
    inner = AgentConfig(steps=[{"type": "llm", "model": echo}], checkpointer=SaverInMemory(closed))
    config = AgentConfig(steps=[{"type": "agent", "agent": inner}], checkpointer=SaverInMemory(closed))
    with AgentBuilderDirector(config).build() as agent:
        agent.run("hello", "t")
        assert closed == []
    assert len(closed) == 2

    async def use():
        async with await AgentBuilderDirector(config).abuild() as agent:
            await agent.arun("hello", "t")

    asyncio.run(use())
    assert len(closed) == 4


def make_graph(**state):
    return make_chain(DefaultState, think=lambda _: state)


@pytest.mark.parametrize("build", [AgentBuilderDirector.build, lambda director: asyncio.run(director.abuild())])
def test_what_was_opened_for_an_agent_that_cannot_be_built_is_closed(build):
    closed = []
    inner = AgentConfig(steps=[{"type": "llm", "model": echo}], checkpointer=SaverInMemory(closed))
    steps = [
        {"type": "agent", "agent": inner},
        {"type": "agent", "agent": make_graph(thought=1), "checkpointer": SaverInMemory(closed)},
        {"type": "function", "function": "no:name"},
    ]
    with pytest.raises(ValueError, match="Invalid step 2"):
        build(AgentBuilderDirector(AgentConfig(steps=steps)))
    assert len(closed) == 2


@pytest.mark.parametrize("close", [Agent.close, lambda agent: asyncio.run(agent.aclose())], ids=["close", "aclose"])
def test_all_resources_are_closed_although_one_fails(close):
    closed = []
    failing = mock.Mock(spec=["close"], close=mock.Mock(side_effect=OSError("the disk is gone")))
    resources = [SaverInMemory(closed).build(), failing, SaverInMemory(closed).build()]
    with pytest.raises(OSError, match="the disk is gone"):
        close(Agent(resources=resources))
    assert len(closed) == 2


async def test_building_with_mcp_servers_in_a_running_loop_names_abuild():
    servers = {"files": {"command": "/bin/false"}}
    inner = AgentConfig(steps=[{"type": "llm", "model": echo}], mcp_servers=servers)
    outer = AgentConfig(steps=[{"type": "agent", "agent": inner}])

    with pytest.raises(RuntimeError, match=r"abuild\(\) instead"):
        AgentBuilderDirector(outer).build()


class Closable(Script):
    is_open = True

    def close(self):
        self.is_open = False


def test_a_model_made_from_settings_is_closed_with_the_agent_and_nothing_that_was_passed_in(monkeypatch):
    made, given, closed = Closable("x"), Closable("y"), []
    monkeypatch.setattr(builder, "make_model", lambda config: made if config == "openai:m" else config)
    chats = AgentBuilder().with_chat("openai:m").with_chat(given)
    chats.with_checkpointer(SaverInMemory(closed).build()).build().close()
    assert (made.is_open, given.is_open, closed) == (False, True, [])


@pytest.mark.requirement("P7")
def test_a_wrong_mapping_is_an_error_with_its_cause():
    for settings in ({"type": "dream"}, {"colour": 1}, 7):
        with pytest.raises(ValueError, match="Invalid checkpointer configuration: ") as raised:
            AgentBuilder().with_checkpointer(settings)
        assert isinstance(raised.value.__cause__, CheckpointerConfigurationError)


@pytest.mark.requirement("P4")
def test_a_checkpointer_that_is_not_enabled_stores_nothing(tmp_path):
    settings = {"type": "file", "config": {"base_directory": str(tmp_path / "runs")}, "enabled": False}
    agent = AgentBuilder().with_chat(Script("one")).with_checkpointer(settings).build()
    assert contents(agent.run("go"), "assistant") == ["one"]
    assert not (tmp_path / "runs").exists()
    with pytest.raises(CheckpointerConfigurationError):
        agent.get_state("t")


# State types


class Trip(TypedDict):
    city: str
    seen: Annotated[list[str], operator.add]


class Form(BaseModel):
    name: str = ""


class Journal(AgentState):
    SCHEMA = MessagesState.SCHEMA


@pytest.mark.requirement("P12")
@pytest.mark.parametrize("state_type", [DefaultState, MessagesState, Journal, Trip, {}])
def test_a_chat_step_adds_the_messages_to_any_state_type(state_type):
    agent = AgentBuilder(state_type).with_chat(echo).with_chat(echo).build()
    assert contents(agent.run("hello"), "assistant") == ["1: hello", "2: 1: hello"]


def test_a_pydantic_state_must_have_messages_itself():
    with pytest.raises(GraphStateError, match="needs messages: add `messages:"):
        AgentBuilder(Form).with_chat(echo).build()

    class Talk(Form):
        messages: Annotated[list, MessagesState.SCHEMA["messages"]] = []

    agent = AgentBuilder(Talk).with_chat(echo).build()
    assert contents(agent.run("hello"), "assistant") == ["1: hello"]
    form = AgentBuilder(Form).with_step("f", lambda state: {"name": "x"}).build()
    assert form.run({})["name"] == "x"


# Prompts and replies


def test_the_model_gets_the_system_prompt_the_template_and_the_conversation():
    model = Script("one")
    agent = (
        AgentBuilder()
        .with_step("where", lambda state: {"city": "Rome"})
        .with_chat(model, system_prompt="Be {brief}.", prompt_template="You are in {city}.")
        .build()
    )
    state = agent.run("hello")
    ((messages, tools),) = model.requests
    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", "Be {brief}."),
        ("system", "You are in Rome."),
        ("user", "hello"),
    ]
    assert list(tools) == []
    assert [message["role"] for message in state["messages"]] == ["user", "assistant"]
    assert state["messages"][-1]["id"]


@pytest.mark.parametrize("reply", [{"role": "user", "content": "x"}, 7, calling(call("add"))])
def test_a_reply_that_the_step_cannot_use_is_an_error(run, reply):
    agent = AgentBuilder().with_chat(lambda messages: reply, name="chat").build()
    with pytest.raises(NodeExecutionError, match="chat"):
        run(agent, "hello")


def test_an_answer_that_was_cut_off_is_a_warning(run, caplog):
    reply = {"role": "assistant", "content": "Once upon a", "finish_reason": "length"}
    agent = AgentBuilder().with_chat(lambda messages: reply, name="chat").build()
    state = run(agent, "A tale")
    assert state["messages"][-1]["finish_reason"] == "length"
    (record,) = caplog.records
    assert "step 'chat' is not complete" in record.getMessage()


@pytest.mark.parametrize("is_nested", [False, True])
def test_the_error_of_a_model_leaves_the_run_as_itself(run, is_nested):
    def down(messages):
        raise ModelError("openai:m", "status 500", attempts=3, status=500)

    saver = MemorySaver()
    builder = AgentBuilder().with_chat(down, name="chat")
    if is_nested:
        builder = AgentBuilder().with_step("inner", builder.build())
    agent = builder.with_checkpointer(saver).build()
    with pytest.raises(ModelError) as raised:
        run(agent, "hello", "t")
    error = raised.value
    assert (error.model, error.reason, error.attempts, error.status) == ("openai:m", "status 500", 3, 500)
    assert (error.thread_id, error.node_id) == ("t", "chat")
    assert error.__cause__ is None
    assert isinstance(error, NodeExecutionError)  # what catches the errors of all steps
    assert saver.summary(RunnableConfig("t")).failure["type"] == "ModelError"


# Threads


@pytest.mark.requirement("P13", "P30")
def test_an_agent_with_a_checkpointer_needs_a_thread_id(run):
    agent = AgentBuilder().with_chat(echo).with_checkpointer(MemorySaver()).build()
    for missing in (None, ""):
        with pytest.raises(ValueError, match=r"agent\.new_thread_id\(\)"):
            run(agent, "hello", missing)
        with pytest.raises(ValueError, match="needs the thread_id of its thread"):
            run(agent, "hello", missing, "a-checkpoint")

    assert agent.get_state_history("$default") == []
    assert agent.get_state_history("") == []

    state = run(agent, "hello", agent.new_thread_id())
    assert contents(state, "assistant") == ["1: hello"]


@pytest.mark.requirement("P25")
def test_a_thread_id_that_is_not_valid_is_refused():
    for thread_id in ("a\nb", " t", "x" * 4097, "a\udce9", 7):
        saver = MemorySaver()
        agent = AgentBuilder().with_chat(echo).with_checkpointer(saver).build()
        for start in ways_to_start(agent):
            with pytest.raises(ValueError, match="a thread id"):
                start("hello", thread_id)
        assert not saver.threads()


@pytest.mark.requirement("P5")
def test_without_a_checkpointer_no_thread_id_is_needed(run):
    agent = AgentBuilder().with_chat(echo).build()
    assert contents(run(agent, "hello"), "assistant") == ["1: hello"]
    assert contents(run(agent, "again", "t"), "assistant") == ["1: again"]
    assert agent.new_thread_id() != agent.new_thread_id()
    with pytest.raises(ValueError, match="no option user_id"):
        agent.new_thread_id(user_id="ada")


@pytest.mark.requirement("P24")
def test_the_strategy_makes_the_thread_ids():
    agent = AgentBuilder().with_chat(echo).with_thread_ids("user_specific", user_id="ada").build()
    assert agent.new_thread_id().startswith("user-ada-")
    assert agent.new_thread_id(user_id="bob").startswith("user-bob-")


def test_a_text_needs_a_state_with_messages(run):
    agent = AgentBuilder(Trip).with_step("look", lambda state: {"seen": ["Rome"]}).build()
    with pytest.raises(ValueError, match="has no messages"):
        run(agent, "hello")
    assert run(agent, {})["seen"] == ["Rome"]


@pytest.mark.requirement("P14", "P15", "P31", "P32")
def test_state_history_and_a_run_from_an_older_checkpoint(run):
    agent = AgentBuilder().with_chat(echo, name="chat").with_checkpointer(MemorySaver()).build()
    run(agent, "one", "t")
    older = agent.get_state("t")
    assert (older.node, older.next) == ("chat", END)
    assert [snapshot.node for snapshot in agent.get_state_history("t")] == ["chat", START]
    run(agent, "two", "t")
    later = agent.get_state("t").checkpoint_id
    state = run(agent, "three", "t", older.checkpoint_id)

    assert contents(state, "user") == ["one", "three"]
    assert len(agent.get_state_history("t")) == 6
    assert contents(agent.get_state("t", later).state, "user") == ["one", "two"]
    assert agent.get_state_history("other") == []
    with pytest.raises(CheckpointNotFoundError):
        agent.get_state("t", "unknown")
    with pytest.raises(CheckpointNotFoundError):
        agent.get_state("other")


@pytest.mark.requirement("P33")
def test_update_state_goes_on_as_if_a_node_had_returned_the_values():
    chats = AgentBuilder().with_chat(echo, name="one").with_chat(echo, name="two")
    agent = chats.with_checkpointer(MemorySaver()).build()
    agent.run("hello", "t")
    start = agent.get_state_history("t")[-1]
    mine = {"role": "assistant", "content": "mine"}
    config = agent.update_state("t", {"messages": [mine]}, start.checkpoint_id, as_node="one")
    corrected = agent.get_state("t")

    assert corrected.checkpoint_id == config.checkpoint_id
    assert corrected.parent_id == start.checkpoint_id
    assert corrected.next == "two"
    assert contents(agent.run(None, "t"), "assistant") == ["mine", "2: mine"]


@pytest.mark.requirement("P34")
def test_an_agent_that_was_not_built_raises():
    for method in ("run", "stream", "astream"):
        with pytest.raises(RuntimeError, match=rf"{method}\(\) called before build\(\)"):
            getattr(Agent(), method)("hello")
    with pytest.raises(RuntimeError, match=r"arun\(\) called before build\(\)"):
        asyncio.run(Agent().arun("hello"))


# Asynchronous parts


async def look_up(word: str) -> str:
    """Look up a word."""
    return word.upper()


async def afunction(state):
    return {}


@pytest.mark.parametrize(
    ("builder", "where"),
    [
        (AgentBuilder().with_chat(AsyncScript("x"), name="chat"), "'chat'"),
        (AgentBuilder().with_chat(Script("x"), name="chat").with_tools(look_up), "'chat_tools'"),
        (AgentBuilder().with_step("wait", afunction), "'wait'"),
    ],
)
def test_a_synchronous_run_with_asynchronous_parts_names_arun(builder, where):
    agent = builder.build()
    with pytest.raises(GraphRunnerError, match=rf"asynchronous .*{where}.*call arun\(\)"):
        agent.run("hello")
    with pytest.raises(GraphRunnerError, match=r"call astream\(\)"):
        agent.stream("hello")
    assert asyncio.run(agent.arun("hello")) is not None


def test_asynchronous_runs_wait_for_their_models_without_threads():
    threads = set()

    class BothWays(Script):
        """Can be called and awaited."""

        async def arequest(self, messages, tools=(), on_text=None):
            threads.add(threading.current_thread())
            return super().request(messages, tools, on_text)

    asyncio.run(AgentBuilder().with_chat(BothWays("done")).build().arun("hello"))
    assert threads == {threading.current_thread()}


# Wrong input


def test_a_wrong_message_is_an_error_before_anything_is_stored():
    for messages, problem in (
        ("Hello", "messages must be a list of messages, not a text"),
        (["Hello"], r"messages\[0\] must be a mapping such as .*, not str"),
        ([{"role": "human", "content": "x"}], r"messages\[0\] must be .*, not the role 'human'; "),
    ):
        agent = AgentBuilder().with_chat(Script("x")).with_checkpointer(MemorySaver()).build()
        for start in ways_to_start(agent):
            with pytest.raises(ValueError, match=problem):
                start({"messages": messages}, "t")
        assert agent.get_state_history("t") == []


def test_a_model_names_a_message_of_a_step_that_is_none():
    agent = AgentBuilder().with_step("s", lambda state: {"messages": ["b"]}).with_chat(Script("x")).build()
    with pytest.raises(NodeExecutionError, match=r"messages\[1\] must be a mapping with role and content, not str"):
        agent.run("a")


def test_what_is_no_input_is_an_error():
    for given in (3, ["x"], b"x"):
        agent = AgentBuilder().with_chat(Script("x")).build()
        with pytest.raises(GraphRunnerError, match="an agent is run with a text, a mapping, a GraphResume or None"):
            agent.run(given)


@pytest.mark.requirement("P4")
def test_the_error_without_a_checkpointer_has_advice():
    for use, what in (
        (lambda agent: agent.get_state("t"), "get_state"),
        (lambda agent: agent.get_state_history("t"), "get_state_history"),
        (lambda agent: agent.update_state("t", {}), "update_state"),
        (lambda agent: agent.run(None), "a resume"),
        (lambda agent: agent.run(GraphResume(True)), "a resume"),
    ):
        agent = AgentBuilder(name="shop").with_chat(Script("x")).build()
        message = rf"agent 'shop' has no checkpointer, which {what} needs: add one with with_checkpointer\(\)"
        with pytest.raises(CheckpointerConfigurationError, match=message):
            use(agent)


def test_a_wrong_prompt_template_is_found_when_the_agent_is_built():
    for template, problem in (
        ("{", "is malformed: "),
        ("{}", r"has \{\}: name a key"),
        ('{"city": 1}', r'has \{"city"\}: name a key'),
        ("{city!x}", r"has \{city!x\}: only !r, !s and !a"),
    ):
        with pytest.raises(ValueError, match=rf"steps\[0\].prompt_template: {problem}"):
            AgentBuilder().with_chat(Script("x"), prompt_template=template).build()


# max_iterations


THREAD = "customer"


class Greedy:
    """Calls the tool at each request, until the conversation says enough."""

    requests = 0

    def __call__(self, messages):
        self.requests += 1
        if messages[-1]["content"] == "enough":
            return "I stop."
        return calling(call("look", number=self.requests))


def look(number: int) -> str:
    """Look."""
    return f"result {number}"


def make_builder(model):
    return AgentBuilder().with_chat(model, name="chat").with_tools(look)


def roles(agent):
    return [message["role"] for message in agent.get_state(THREAD).state["messages"]]


def test_a_run_stops_at_the_limit_and_the_next_message_goes_on_with_what_it_has_done(run):
    model = Greedy()
    agent = make_builder(model).with_max_iterations(3).with_checkpointer(MemorySaver()).build()
    with pytest.raises(MaxIterationsError, match="its max_iterations, 3,") as caught:
        run(agent, "look around", THREAD)
    assert caught.value.thread_id == THREAD
    assert model.requests == 2
    assert roles(agent) == ["user", "assistant", "tool", "assistant"]
    state = run(agent, "enough", THREAD)
    assert state["messages"][-1]["content"] == "I stop."
    assert roles(agent) == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    with pytest.raises(MaxIterationsError):  # each input may execute as many nodes
        run(agent, "look again", THREAD)
    assert model.requests == 5


def test_the_calls_of_one_message_count_once():
    replies = iter([calling(*(call("look", number=number) for number in range(10))), "seen"])
    agent = make_builder(lambda messages: next(replies)).with_max_iterations(3).build()
    assert agent.run("look")["messages"][-1]["content"] == "seen"


def test_an_agent_in_a_step_counts_its_own_nodes_to_the_limit_of_the_outer_one():
    model = Greedy()
    inner = make_builder(model).with_max_iterations(2).build()
    outer = AgentBuilder().with_step("inner", inner).with_max_iterations(5).build()
    with pytest.raises(MaxIterationsError, match="its max_iterations, 5,"):
        outer.run({"messages": [{"role": "user", "content": "look"}]})
    assert model.requests == 3


def test_a_wrong_limit_is_refused():
    for limit in (0, True, "3"):
        with pytest.raises(AgentConfigurationError, match=r"^max_iterations: must be "):
            AgentBuilder().with_max_iterations(limit)


# Threads do not interfere


@tool(requires_approval=True)
def sell(item: str) -> str:
    """Sell something."""
    return f"sold {item}"


def sell_what_is_asked(messages):
    verb, _, thing = messages[-1]["content"].partition(" ")
    if verb == "sell":
        return calling(call("sell", id=f"c{len(messages)}", item=thing))
    return f"{len(messages)}: {verb} {thing}"


def converse(saver, thread, name):
    """Have the conversation of a user; return its transcript and its nodes."""
    agent = AgentBuilder().with_chat(sell_what_is_asked, name="chat").with_tools(sell).with_checkpointer(saver).build()
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
