"""Agent files in the form of Petal's plan, as they stand: bare state types, and steps with a `config`."""

from contextlib import ExitStack
from typing import Annotated, TypedDict

import pytest
from pydantic import BaseModel

from graphkit import AgentState, MessagesState, NodeExecutionError
from graphkit.agents import AgentBuilder, AgentConfig, AgentConfigurationError, DefaultState, load_agent
from graphkit.agents.yaml_loader import load_agent_config
from tests.agents import chat_server
from tests.agents.chat_server import Reply
from tests.support.agents import APP, STEPS

PLAN = """\
name: "helper"
state_type: "DefaultState"          # or the name of a state class of the application, which is given to load_agent
checkpointer:
  type: "sqlite"
  enabled: true
  config:
    db_file: "./data/helper.db"
steps:
  - type: "llm"
    name: "chat"
    config:
      provider: "openai"
      model: "gpt-4"
      prompt_template: "You help with travel. {input}"
"""


def answer_by_memory(request):
    """Say the name that the user has given, if any."""
    names = [message["content"][5:] for message in request["messages"] if message["content"].startswith("I am ")]
    return Reply({"role": "assistant", "content": f"You are {names[-1]}." if names else "Who are you?"})


@pytest.fixture
def server(monkeypatch):
    with chat_server.start(answer_by_memory) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


@pytest.fixture
def load(write):
    """Writes a file, and loads the agent."""
    with ExitStack() as stack:
        yield lambda content: stack.enter_context(load_agent(write(content)))


def last(state):
    return state["messages"][-1]["content"]


@pytest.mark.requirement("P16", "P40", "P45")
def test_the_plans_file_is_loaded_as_it_stands(load, server, tmp_path):
    agent = load(PLAN)
    assert agent.name == "helper"
    agent.run("I am Ada", "t")
    (request,) = server.requests
    assert request["model"] == "gpt-4"
    assert [(message["role"], message["content"]) for message in request["messages"]] == [
        ("system", "You help with travel. I am Ada"),
        ("user", "I am Ada"),
    ]
    assert last(load(PLAN).run("Who am I?", "t")) == "You are Ada.", "it remembers after a restart"
    assert (tmp_path / "data" / "helper.db").exists()


# What {input} stands for


def prompts(agent_input, template, **options):
    """Run an agent with a template; return the system messages that its model got."""
    received = []

    def model(messages):
        received.extend(message["content"] for message in messages if message["role"] == "system")
        return "done"

    AgentBuilder(**options).with_chat(model, prompt_template=template).build().run(agent_input)
    return received


def test_input_is_the_newest_message_of_the_user_or_a_key_of_the_state():
    parts = [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "two"}]
    conversation = [
        {"role": "user", "content": "first"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "another"},
    ]
    assert prompts("hello {city}", "Say {input}!") == ["Say hello {city}!"]
    assert prompts({"messages": conversation}, "{input!r:>12}") == ["  'one\\ntwo'"]
    assert prompts({"input": 3, "messages": conversation}, "{input}") == ["3"]


@pytest.mark.parametrize("key", ["input", "street"])
def test_a_key_that_the_state_lacks_is_named_and_so_is_input_without_a_message_of_the_user(key):
    message = f"prompt template of step 'llm_step_0' needs '{key}', which the state does not have"
    with pytest.raises(NodeExecutionError, match=message):
        prompts({"city": "Graz"}, f"{{{key}}}")


# State types


class TravelState(AgentState):
    def dump(self):
        return "a method of the application"


class TypedState(TypedDict):
    city: str


class ModelState(BaseModel):
    city: str = ""
    messages: Annotated[list, MessagesState.SCHEMA["messages"]] = []


@pytest.mark.parametrize("state_type", [TravelState, TypedState, ModelState], ids=lambda one: one.__name__)
def test_a_state_type_of_the_application_is_named_without_its_module(write, state_type):
    path = write(f"state_type: {state_type.__name__}\n{STEPS}")
    config = load_agent_config(path, state_types=[TravelState, TypedState, ModelState, TravelState])
    assert config.to_dict()["state_type"] == f"{__name__}:{state_type.__name__}"
    agent = load_agent(path, state_types=iter([state_type]))
    assert agent.run({"city": "Graz", "messages": [{"role": "user", "content": "x"}]})["city"] == "Graz"


def test_the_state_types_of_graphkit_are_known_and_those_of_the_application_come_first(write):
    path = write(f"state_type: DefaultState\n{STEPS}")
    assert load_agent_config(path).state_type is DefaultState
    own = type("DefaultState", (AgentState,), {})
    assert load_agent_config(path, state_types=[own]).state_type is own


def test_the_error_of_an_unknown_state_type_has_advice(write):
    path = write(f"name: x\nstate_type: TravelState\n{STEPS}")
    with pytest.raises(AgentConfigurationError) as caught:
        load_agent(path)
    assert (caught.value.line, caught.value.key) == (2, "state_type")
    assert "AgentState, DefaultState, MessagesState" in caught.value.reason
    assert "load_agent(..., state_types=[TravelState])" in caught.value.reason


def test_wrong_state_types_are_an_error(write):
    for state_types, message in (
        ([TravelState, type("TravelState", (), {})], "two state_types are named TravelState"),
        ([TravelState()], "state_types must be classes"),
    ):
        with pytest.raises(ValueError, match=message):
            load_agent(write(STEPS), state_types=state_types)


# Where the keys of a step stand


def test_what_config_holds_is_as_if_the_step_had_it():
    model = {"provider": "openai", "model": "gpt-4", "api_key_env": None, "retry": {"max_attempts": 2}}
    others = {"prompt_template": "{input}", "tools": [f"{APP}:find_order"], "max_parallel_tools": 2}
    flat = AgentConfig.from_dict({"steps": [{"type": "llm", "name": "chat", "model": model, **others}]})
    for config, step in (
        (model | others, {}),
        (model, others),
        (others | {"provider": None, "api_key_env": None}, {"model": model}),
    ):
        given = AgentConfig.from_dict({"steps": [{"type": "llm", "name": "chat", **step, "config": config}]})
        assert given.steps[0].merge_config() == flat.steps[0]


def test_a_key_at_a_wrong_place_is_named_with_its_line(write):
    for step, line, key, message in (
        ("model: openai:m\n    config:\n      model: m", 5, "config.model", "is in the step, too; keep one"),
        ("model: openai:m\n    config:\n      timeout: 1", 5, "config.timeout", "the step has its model in `model`"),
        ("config:\n      model: gpt-4", 3, "config.provider", "is missing"),
        ("config:\n      prompt_template: b", 2, "model", "is missing"),
        ("config:\n      provider: openai\n      model: m\n      name: n", 6, "config.name", "is unknown"),
        ("config:\n      model: m\n      provider: petal", 5, "config.provider", "unknown provider 'petal'"),
    ):
        path = write(f"steps:\n  - type: llm\n    {step}\n")
        with pytest.raises(AgentConfigurationError) as caught:
            load_agent(path)
        error = caught.value
        assert (error.file, error.line, error.key) == (str(path), line, f"steps[0].{key}")
        assert message in error.reason


def test_an_invalid_step_of_an_inner_agent_is_named_where_it_stands(write):
    path = write("steps:\n  - {type: agent, file: inner.yaml}\n")
    for wrong, key, message in (("'a {}'", "prompt_template", r"has \{\}"), ("[]", "prompt_template", "must be")):
        inner = write(f"steps:\n  - type: llm\n    model: {APP}:echo\n    prompt_template: {wrong}\n", "inner.yaml")
        with pytest.raises(AgentConfigurationError, match=f"{key}: {message}") as caught:
            load_agent(path)
        assert (caught.value.file, caught.value.line, caught.value.key) == (str(inner), 4, f"steps[0].{key}")
