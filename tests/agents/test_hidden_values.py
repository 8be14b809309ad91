"""What `${NAME}` stands for in an agent file is in no error of a run: raised, recorded, posted or sent to a model."""

import asyncio
import json
import pickle
import subprocess
import traceback
from contextlib import closing
from copy import deepcopy
from pathlib import Path

import pytest

from graphkit import GraphResume, RunnableConfig, StateGraph
from graphkit.agents import AgentBuilderDirector, AgentConfig, Step, load_agent, load_agent_config, make_model, tool
from graphkit.agents.error_hiding import HiddenError, hide_in_error
from graphkit.agents.models import hide_in_model
from graphkit.agents.steps import STRATEGIES
from graphkit.agents.variables import Variables
from graphkit.errors import AgentConfigurationError, ModelError, NodeExecutionError, ToolError
from graphkit.testing import ScriptedSaver
from savers import MemorySaver
from tests.agents import chat_server
from tests.agents.scripted import call, calling, contents

HERE = "tests.agents.test_hidden_values"
SECRET = "sk-0123456789/+\nsecond line"
ENVIRONMENT = {"TOKEN": SECRET, "PORT": "80"}
ROOT = Path(__file__).resolve().parents[2]


class StubbornError(Exception):
    """An error whose text does not follow from its arguments."""

    __slots__ = ("token",)

    def __init__(self):
        self.token = SECRET.encode()

    def __str__(self):
        return f"wrong token {self.token.decode()}"


def make_noted():
    error = ValueError("wrong token")
    error.add_note(f"it was {SECRET}")
    return error


def make_handling():
    error = ValueError(f"{SECRET}, while handling")
    error.__context__ = StubbornError()
    return error


def make_circle():
    """An error that is the context of its own cause."""
    error = KeyError(SECRET)
    error.__cause__ = StubbornError()
    error.__cause__.__context__ = error
    return error


MAKERS = {
    "stubborn": StubbornError,
    "group": lambda: ExceptionGroup(f"for {SECRET}", [ValueError(SECRET), StubbornError()]),
    "system": lambda: FileNotFoundError(2, "no such file", f"/run/{SECRET}"),
    "command": lambda: subprocess.CalledProcessError(1, ["curl", "--key", SECRET]),
    "noted": make_noted,
    "handling": make_handling,
    "key": make_circle,
}
KINDS = tuple(MAKERS)


def make_error(kind):
    return MAKERS[kind]()


def fail(messages):
    raise make_error(messages[-1]["content"])


async def fail_later(messages):
    raise make_error(messages[-1]["content"])


def fail_in_function(state):
    raise make_error(state["messages"][-1]["content"])


def fail_between_chunks(state):
    yield "chunk"
    raise make_error(state["messages"][-1]["content"])


async def fail_between_chunks_later(state):
    yield "chunk"
    raise make_error(state["messages"][-1]["content"])


def call_failing(messages):
    """Call the tool, and end with what it answered."""
    if messages[-1]["role"] == "tool":
        return messages[-1]["content"]
    return calling(call("break_down", kind=messages[-1]["content"]))


def break_down(kind: str) -> str:
    """Fail."""
    raise make_error(kind)


async def break_down_later(kind: str) -> str:
    """Fail."""
    raise make_error(kind)


class StepWithCondition(Step):
    """A step whose condition fails."""

    def add_to(self, graph):
        graph.add_node(self.name, lambda state: {})

    def connect(self, graph, target):
        graph.add_conditional_edges(self.name, fail_in_function, {"next": target})


def is_shown_in(*texts):
    """Whether a part of the secret is in a text."""
    return any("0123456789" in text or "second line" in text for text in texts)


def everything_about(error):
    """The traceback, the representation and the attributes of an error and of those that belong to it."""
    parts = []
    waiting = [error]
    seen = []
    while waiting:
        error = waiting.pop()
        if error is None or any(error is one for one in seen):
            continue
        seen.append(error)
        parts += [*traceback.format_exception(error), repr(error), repr(error.args), repr(vars(error))]
        waiting += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
    return "\n".join(parts)


def file_with(step, **more):
    config = {
        "thread_id": {"strategy": "user_specific", "user_id": "${TOKEN}"},
        "checkpointer": {"type": "file", "config": {"base_directory": "runs", "compression": None}},
        "steps": [step],
    }
    return json.dumps(config | more)


def stored_bytes(directory):
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


def run_and_observe(agent, text):
    """Run the graph of an agent inside of another; return the error and what the observers got."""
    events = []
    graph = StateGraph({}).add_node("agent", agent.graph)
    graph = graph.add_edge("__START__", "agent").add_edge("agent", "__END__")
    with pytest.raises(Exception) as caught:
        asyncio.run(graph.compile(observers=events.append).ainvoke({"messages": [{"role": "user", "content": text}]}))
    return caught.value, [event for event in events if event.type != "node.state"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "step",
    [
        {"type": "llm", "model": f"{HERE}:fail"},
        {"type": "llm", "model": f"{HERE}:fail_later"},
        {"type": "function", "function": f"{HERE}:fail_in_function"},
        {"type": "function", "function": f"{HERE}:fail_between_chunks"},
        {"type": "function", "function": f"{HERE}:fail_between_chunks_later"},
        {
            "type": "llm",
            "model": f"{HERE}:call_failing",
            "tools": [{"function": f"{HERE}:break_down", "on_error": "raise"}],
        },
        {"type": "conditional"},
    ],
    ids=["model", "async model", "function", "generator", "async generator", "tool", "condition"],
)
def test_what_a_step_raises_is_raised_recorded_and_posted_without_the_value(step, kind, write, tmp_path, monkeypatch):
    monkeypatch.setitem(STRATEGIES, "conditional", StepWithCondition)
    function = step.get("function", "")
    state_type = {"state_type": "graphkit:MessagesState"} if function or step["type"] == "conditional" else {}
    agent = load_agent(write(file_with(step, **state_type)), environment=ENVIRONMENT)
    user = {"messages": [{"role": "user", "content": kind}]}
    with pytest.raises(Exception) as caught:
        asyncio.run(agent.arun(user, "t"))
    assert "${TOKEN}" in everything_about(caught.value)
    assert not is_shown_in(everything_about(caught.value))
    summary = agent.graph.compile_config.saver.summary(RunnableConfig("t"))
    assert "${TOKEN}" in summary.failure["message"] or kind == "noted"
    assert not is_shown_in(str(summary))
    assert not is_shown_in(stored_bytes(tmp_path / "runs").decode("latin-1"))

    error, events = run_and_observe(agent, kind)
    assert not is_shown_in(everything_about(error), str(events))
    assert any("${TOKEN}" in str(event) for event in events) or kind == "noted"


@pytest.mark.parametrize("method", ["run", "stream", "arun", "astream", "graph"])
def test_each_way_to_run_hides_the_values(method, write):
    agent = load_agent(write(file_with({"type": "llm", "model": f"{HERE}:fail"})), environment=ENVIRONMENT)

    user = {"messages": [{"role": "user", "content": "key"}]}

    async def read():
        return [output async for output in agent.astream("key", "t")]

    runs = {
        "run": lambda: agent.run("key", "t"),
        "stream": lambda: list(agent.stream("key", "t")),
        "arun": lambda: asyncio.run(agent.arun("key", "t")),
        "astream": lambda: asyncio.run(read()),
        "graph": lambda: agent.graph.invoke(user, RunnableConfig("t")),
    }
    with pytest.raises(NodeExecutionError, match=r"\$\{TOKEN\}") as caught:
        runs[method]()
    assert not is_shown_in(everything_about(caught.value))


@pytest.mark.parametrize("function", ["break_down", "break_down_later"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_learns_of_a_failed_tool_without_the_value(kind, function, write, tmp_path):
    entry = {"function": f"{HERE}:{function}", "name": "break_down", "retry": {"max_attempts": 2, "initial_delay": 0}}
    step = {"type": "llm", "model": f"{HERE}:call_failing"}
    agent = load_agent(write(file_with(step, tools=[entry])), environment=ENVIRONMENT)
    state = asyncio.run(agent.arun(kind, "t"))
    (answer,) = contents(state)
    assert answer.startswith("Error: ")
    assert "${TOKEN}" in answer or kind == "noted"
    assert not is_shown_in(answer, stored_bytes(tmp_path / "runs").decode("latin-1"))
    events = []
    graph = StateGraph({}).add_node("agent", agent.graph)
    graph = graph.add_edge("__START__", "agent").add_edge("agent", "__END__").compile(observers=events.append)
    asyncio.run(graph.ainvoke({"messages": [{"role": "user", "content": kind}]}))
    retried = [event for event in events if event.type.startswith("retry.")]
    assert len(retried) == 2
    assert not is_shown_in(str(retried))


def test_the_tool_of_a_step_and_of_its_agent_may_be_the_same(write):
    entry = f"{HERE}:break_down"
    step = {"type": "llm", "model": f"{HERE}:call_failing", "tools": [entry]}
    agent = load_agent(write(file_with(step, tools=[entry])), environment=ENVIRONMENT)
    assert contents(agent.run("key", "t")) == ["Error: KeyError: '${TOKEN}'"]


def test_the_value_of_an_inner_file_is_hidden_by_the_outer_one(write):
    inner = {"steps": [{"type": "llm", "model": {"provider": "openai", "model": "m", "base_url": "${TOKEN}"}}]}
    write(json.dumps(inner), "inner.yaml")
    path = write("steps: [{type: agent, file: inner.yaml}]")
    with pytest.raises(AgentConfigurationError) as caught:
        load_agent(path, environment=ENVIRONMENT)
    assert not is_shown_in(everything_about(caught.value))


def test_what_only_the_director_finds_is_raised_without_the_value(write):
    path = write(file_with({"type": "llm", "model": {"provider": "openai", "model": "m", "tool_choice": "${TOKEN}"}}))
    config = load_agent_config(path, environment=ENVIRONMENT)
    config.checkpointer = FailingCheckpointer()
    for build in (AgentBuilderDirector(config).build, lambda: asyncio.run(AgentBuilderDirector(config).abuild())):
        with pytest.raises(KeyError, match=r"\$\{TOKEN\}") as caught:
            build()
        assert not is_shown_in(everything_about(caught.value))


def test_an_error_of_the_store_is_raised_without_the_value(write):
    config = load_agent_config(write(file_with({"type": "llm", "model": f"{HERE}:fail"})), environment=ENVIRONMENT)
    saver = ScriptedSaver(MemorySaver())
    config.checkpointer = saver
    agent = AgentBuilderDirector(config).build()

    def break_down():
        raise make_error("system")

    for method in ("get", "list", "put"):
        saver.on(method, break_down, times=None)
    for read in (
        lambda: agent.get_state("t"),
        lambda: agent.get_state_history("t"),
        lambda: agent.update_state("t", {}),
        lambda: agent.run("key", "t"),
    ):
        with pytest.raises(Exception) as caught:
            read()
        assert "${TOKEN}" in str(caught.value)
        assert not is_shown_in(everything_about(caught.value))


class FailingCheckpointer:
    def build(self):
        raise make_error("key")


def test_the_event_of_a_repeated_request_does_not_show_the_value():
    variables = Variables()
    variables.add_value("TOKEN", SECRET)
    events = []
    with chat_server.start([chat_server.failure(500, f"{SECRET} broke")] * 2) as server:
        settings = {
            "provider": "openai",
            "model": "m",
            "base_url": server.base_url,
            "api_key_env": None,
            "retry": {"max_attempts": 2, "initial_delay": 0},
        }
        model = make_model(hide_in_model(settings, variables.hide_in))
        graph = StateGraph({}).add_node("ask", lambda state: model.request([{"role": "user", "content": "?"}]))
        graph = graph.add_edge("__START__", "ask").add_edge("ask", "__END__").compile(observers=events.append)
        with closing(model), pytest.raises(ModelError) as caught:
            graph.invoke({})
    (retried,) = [event for event in events if event.type == "model.retry"]
    assert "${TOKEN} broke" in str(retried)
    assert not is_shown_in(str(events), everything_about(caught.value))


def test_a_model_in_a_file_hides_the_values_in_its_events(write):
    step = {"type": "llm", "model": {"provider": "openai", "model": "m", "tool_choice": "${TOKEN}"}}
    config = load_agent_config(write(file_with(step)), environment=ENVIRONMENT)
    hidden = hide_in_model(config.steps[0]["model"], config.variables.hide_in)
    assert hidden.hide(f"wrong {SECRET}") == "wrong ${TOKEN}"
    with pytest.raises(TypeError, match="values of environment variables are not stored"):
        pickle.dumps(make_model(hidden))


@pytest.mark.parametrize("way", ["run", "arun", "stream"])
def test_a_provider_that_quotes_the_value_is_an_error_without_it(way, write):
    model = {
        "provider": "openai",
        "model": "m",
        "base_url": "${BASE}",
        "api_key_env": None,
        "extra_body": {"k": "${TOKEN}"},
    }
    path = write(file_with({"type": "llm", "model": model}))
    with chat_server.start([chat_server.failure(401, f"wrong key {SECRET}")]) as server:
        agent = load_agent(path, environment=ENVIRONMENT | {"BASE": server.base_url})
        runs = {
            "run": lambda: agent.run("go", "t"),
            "arun": lambda: asyncio.run(agent.arun("go", "t")),
            "stream": lambda: list(agent.stream("go", "t")),
        }
        with agent, pytest.raises(ModelError, match=r"status 401: wrong key \$\{TOKEN\}") as caught:
            runs[way]()
    assert server.requests[0]["k"] == SECRET
    assert not is_shown_in(everything_about(caught.value))


def test_the_command_shows_no_value_also_with_its_traceback(write, launcher, tmp_path):
    write(file_with({"type": "llm", "model": f"{HERE}:fail"}))
    for kind in ("stubborn", "key"):
        command = ["-m", "graphkit", "agents", "run", "agent.yaml", "--thread", "t", "--debug"]
        environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
        done = launcher.run(*command, cwd=tmp_path, environment=environment, given=f"{kind}\n")
        assert done.returncode == NodeExecutionError.exit_code, done.stderr
        assert "Traceback" in done.stderr
        assert "${TOKEN}" in done.stderr
        assert not is_shown_in(done.stdout, done.stderr)


# ---------------------------------------------------------------------------------------------- the parts


def test_an_error_stays_itself_where_it_can():
    variables = Variables()
    variables.add_value("TOKEN", "topsecret")
    for error in (ValueError("a topsecret"), ToolError("t", "id", "topsecret"), OSError(2, "x", "/topsecret")):
        shown = hide_in_error(error, variables.hide_in)
        assert shown is error
        assert "topsecret" not in str(shown) + repr(shown)
    error = ModelError("m", "topsecret", status=401)
    error.thread_id = "user_topsecret"
    hide_in_error(error, variables.hide_in)
    assert (error.reason, error.status, error.thread_id) == ("${TOKEN}", 401, "user_topsecret")


def test_an_error_that_cannot_be_changed_is_replaced_by_its_text():
    variables = Variables()
    variables.add_value("TOKEN", SECRET)
    shown = hide_in_error(StubbornError(), variables.hide_in)
    assert type(shown) is HiddenError
    assert str(shown) == f"{HERE}.StubbornError: wrong token ${{TOKEN}}"


def test_a_value_that_contains_another_is_hidden_as_a_whole():
    variables = Variables()
    variables.add_value("SHORT", "secret")
    variables.add_value("LONG", "secret-and-more")
    variables.add_value("TINY", "abc")
    assert variables.hide_in("secret-and-more, secret, abc") == "${LONG}, ${SHORT}, abc"


@pytest.mark.parametrize("show", [str, repr, json.dumps, lambda text: f"http://host/?key={text}"])
def test_a_value_is_hidden_in_each_form(show):
    variables = Variables()
    variables.add_value("TOKEN", SECRET)
    assert not is_shown_in(variables.hide_in(show(SECRET)))


def test_variables_show_their_names_and_are_not_stored():
    variables = Variables()
    variables.add_value("TOKEN", SECRET)
    assert repr(variables) == "Variables(${TOKEN})"
    assert deepcopy(variables) is variables
    with pytest.raises(TypeError, match="load the agent file again"):
        pickle.dumps(AgentConfig(variables=variables))
    assert pickle.loads(pickle.dumps(AgentConfig(name="a"))) == AgentConfig(name="a")


def test_without_variables_nothing_is_wrapped():
    assert Variables().guard(fail) is fail


def test_approvals_go_on_inside_of_a_guarded_step(write):
    step = {"type": "llm", "model": f"{HERE}:ask_first"}
    agent = load_agent(write(file_with(step, tools=[f"{HERE}:sign"])), environment=ENVIRONMENT)
    agent.run("Sign", "t")
    assert len(agent.get_state("t").interrupts) == 1
    assert contents(agent.run(GraphResume(True), "t")) == ["signed"]
    assert len(agent.get_state_history("t")) == 4


@tool(requires_approval=True)
def sign() -> str:
    """Sign."""
    return "signed"


def ask_first(messages):
    return "Done" if messages[-1]["role"] == "tool" else calling(call("sign"))
