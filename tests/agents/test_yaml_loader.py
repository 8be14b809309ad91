"""Agents from files of YAML."""

import asyncio
import json
import traceback
from typing import Annotated, TypedDict

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from graphkit import AgentState, MessagesState, NodeExecutionError, RetryPolicy, RunnableConfig, registry
from graphkit.agents import (
    AgentBuilder,
    AgentBuilderDirector,
    AgentConfig,
    CheckpointerConfig,
    DefaultState,
    load_agent,
    load_agent_config,
)
from graphkit.agents.yaml_loader import check_agent_file, make_schema
from graphkit.errors import (
    AgentConfigurationError,
    AgentFileNotFoundError,
    AgentFileSyntaxError,
    MissingDependencyError,
)
from savers import FileSystemSaver, MemorySaver
from tests.agents import application, chat_server
from tests.agents.chat_server import Reply
from tests.support.agents import APP, STEPS


def test_a_tool_of_the_decorator_may_get_other_options_and_keeps_them_as_data(write):
    path = write(f"tools: [{{function: '{APP}:cancel_order', requires_approval: false, name: stop}}]\n{STEPS}")
    config = load_agent_config(path)
    stop = config.tools[0].make_tool()
    assert (stop.name, stop.requires_approval, stop.timeout) == ("stop", False, 5)
    assert application.cancel_order.requires_approval
    assert config.to_dict()["tools"] == [
        {"function": f"{APP}:cancel_order", "requires_approval": False, "name": "stop"}
    ]


@pytest.mark.requirement("P43")
@pytest.mark.parametrize("place", ["step", "agent"])
def test_a_nested_agent_has_a_checkpointer_of_its_own(place, write, tmp_path):
    block = "checkpointer: {type: file, config: {base_directory: inner}}"
    function = f"state_type: '{APP}:OrderState', steps: [{{type: function, function: '{APP}:Shop.ship'}}]"
    agent = f"agent: {{{function}}}, {block}" if place == "step" else f"agent: {{{function}, {block}}}"
    outer = "checkpointer: {type: file, config: {base_directory: outer}}"
    path = write(f"state_type: '{APP}:OrderState'\n{outer}\nsteps: [{{type: agent, name: ship, {agent}}}]\n")
    load_agent(path).run({"order": "", "city": ""}, "t")
    with FileSystemSaver(tmp_path / "outer") as saver:
        assert list(saver.namespaces("t")) == [""]
    with FileSystemSaver(tmp_path / "inner") as saver:
        assert saver.list(RunnableConfig("t", checkpoint_ns="ship"))


def test_merge_keys_and_aliases_are_resolved(write):
    path = write(
        f"""
        tools:
          - &base {{function: "{APP}:find_order", timeout: 3, name: one}}
          - {{name: two, <<: [*base, {{on_error: raise}}]}}
        steps:
          - {{type: llm, <<: {{model: "{APP}:echo"}}}}
        mcp_servers: {{c: {{command: x}}, <<: [{{a: {{command: x}}}}, {{b: {{command: x}}, a: {{command: y}}}}]}}
        """
    )
    config = load_agent_config(path)
    assert [(tool.name, tool.timeout, tool.on_error) for tool in config.tools] == [
        ("one", 3.0, "model"),
        ("two", 3.0, "raise"),
    ]
    assert [(name, server.command) for name, server in config.mcp_servers.items()] == [
        ("a", "x"),
        ("b", "x"),
        ("c", "x"),
    ]


@pytest.mark.requirement("P44")
def test_a_missing_file_is_an_error_of_its_own(tmp_path):
    (tmp_path / "agent.yaml").touch()
    for name in ("nowhere.yaml", "", "agent.yaml/inner.yaml"):
        with pytest.raises(AgentFileNotFoundError, match=f"{tmp_path / name}: there is no such file"):
            load_agent(tmp_path / name)


@pytest.mark.requirement("P44")
def test_a_file_that_is_not_yaml_or_no_mapping_is_an_error_of_its_own(write):
    for text, line, message in (
        ("steps: [\n", 2, "is not YAML"),
        ("a: *nothing", 1, "is not YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", 2, "is not YAML: but found another document"),
        ("a: \x00", None, "is not YAML"),
        ("", 1, "must be a mapping .* it is empty"),
        ("name: \udce9", None, "is not UTF-8"),
        ("[1, 2]", 1, "it is a sequence"),
        ("a: " + "[" * 3000, None, "is not YAML|nested too deeply"),
    ):
        path = write("")
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(AgentFileSyntaxError, match=message) as caught:
            load_agent(path)
        if line is not None:
            assert caught.value.line == line


ECHO = f"steps:\n  - type: llm\n    model: {APP}:echo\n"
AGENT = "steps:\n  - type: agent\n"
INNER = f"{AGENT}    agent: {{{STEPS.strip()}}}\n"
TWINS = (
    f"{{type: llm, model: '{APP}:echo', tools: ['{APP}:find_order', {{function: '{APP}:search', name: find_order}}]}}"
)
MCP = "mcp_servers: {a: {url: 'http://h/', token_env: NOT_SET_ANYWHERE}}"
SHIP = f"{{type: function, name: one, function: '{APP}:Shop.ship'}}, "


def test_bad_input_names_file_line_and_key_of_all_problems_and_leaves_no_file(write, tmp_path):
    inner = write(f"checkpointer: {{type: memory}}\n{STEPS}", "inner.yaml")
    for text, line, key, message in (
        ("name: x\nstesp: []\n" + STEPS, 2, "stesp", "is unknown"),
        ("name: x\n", 1, "steps", "is missing: an agent needs at least one step"),
        ("steps:\n  - type: llm\n", 2, "steps[0].model", "is missing"),
        ("steps:\n  - type: llm\n    model: nowhere:m\n", 3, "steps[0].model", "no module nowhere.*: openai"),
        ("steps:\n  - type: dance\n", 2, "steps[0].type", "there is no type 'dance'"),
        (f"steps:\n  - type: function\n    function: {APP}:gone\n", 3, "steps[0].function", "has no 'gone'"),
        (f"steps:\n  - type: function\n    function: {APP}:not_callable\n", 3, "steps[0].function", "cannot be called"),
        (STEPS + "state_type: nowhere:X\n", 2, "state_type", "there is no module nowhere"),
        (STEPS + "checkpointer:\n  type: redis\n", 3, "checkpointer.type", "Unsupported checkpointer type: 'redis'"),
        (STEPS + "checkpointer:\n  type: sqlite\n", 2, "checkpointer", "db_file"),
        (STEPS + "name: a\nname: b\n", 3, "name", "occurs twice; it is in line 2 already"),
        (STEPS + "1: x\n", 2, "", "keys must be text"),
        (STEPS + "name: ${AGENT_NAME_MISSING}\n", 2, "name", "the environment variable AGENT_NAME_MISSING is not set"),
        (STEPS + "name: '${a b}'\n", 2, "name", "must name an environment variable"),
        (STEPS + "name: '${HOME'\n", 2, "name", r"\$\{ must name .* \$\$\{ stands for"),
        (STEPS + "tools: &t [*t]\n", 2, "tools[0]", "contains itself: the anchors form a cycle"),
        (STEPS + "checkpointer: &c\n  <<: *c\n", 2, "checkpointer", "contains itself"),
        (STEPS + "checkpointer: {<<: 3}\n", 2, "checkpointer", "<< must be followed by a mapping"),
        (STEPS + "name: !!python/object/apply:os.system ['touch ran']\n", 2, "name", "has the tag"),
        (STEPS + "name: !!int x\n", 2, "name", "cannot be read as int"),
        ("steps: [{type: agent, file: '${HOME}.yaml'}]\n", None, "", r"/\$\{HOME\}.yaml: .*; .*agent.yaml names it"),
        ("steps: [{type: agent, file: .}]\n", None, "", "there is no such file; .*agent.yaml names it"),
        ("steps:\n  - type: agent\n    file: agent.yaml\n", 3, "steps[0].file", "contains itself"),
        # What only building finds
        (f"{ECHO}    tools: ['{APP}:many']\n", 4, "steps[0].tools[0]", "takes any number"),
        (f"{INNER}    checkpointer: {{type: file}}\n", 4, "steps[0].checkpointer", "base_dir"),
        (f"{INNER[:-2]}, checkpointer: {{type: file}}}}\n", 3, "steps[0].agent.checkpointer", "base_dir"),
        (f"{INNER[:-2]}, {MCP}}}\n", 3, "steps[0].agent.mcp_servers", "'a' needs the environment variable"),
        (STEPS + MCP.replace("token_env", "requires_approval"), 2, "mcp_servers.a.requires_approval", "true, false or"),
        (f"{AGENT}    file: inner.yaml\n    checkpointer: {{}}\n", 4, "steps[0].checkpointer", "is in its agent, too"),
        (f"{AGENT}    agent:\n      steps: [{TWINS}]\n", 4, "steps[0].agent.steps[0]", "two tools named 'find_order'"),
        (f"{AGENT}    agent:\n      steps: [{2 * SHIP}]\n", 4, "steps[0].agent.steps", "one"),
        (f"{INNER[:-2]}, max_iterations: 3}}\n", 2, "steps[0]", "set that of the outer agent"),
        (STEPS + "state_type: Tour\n", 2, "state_type", r"DefaultState, MessagesState\..* state_types=\[Tour\]"),
        ("name: 3\nsteps: [{}]\nmore: 1\n", 1, "name", r"line 2: steps\[0\].type: is missing; line 3: more: is"),
        ("steps:\n" + "  - type: llm\n" * 12, 2, "steps[0].model", "and 2 more problems"),
    ):
        path = write("")
        path.write_text(text)
        for load in (load_agent, lambda file: asyncio.run(AgentBuilderDirector(load_agent_config(file)).abuild())):
            with pytest.raises(AgentConfigurationError, match=message) as caught:
                load(path)
            if line is not None:
                assert caught.value.line == line
                assert caught.value.key == key
                assert caught.value.file == str(path)
        assert {*tmp_path.iterdir()} == {path, inner}


@pytest.mark.parametrize(("first", "line"), [("[x]", "[{}]"), ("{k: x}", "{{<<: [{}]}}")], ids=["aliases", "merges"])
def test_a_file_that_grows_by_its_aliases_is_refused(first, line, write):
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{level}: &a{level} {line.format(', '.join([f'*a{level - 1}'] * 10))}" for level in range(1, 10)]
    path = write("\n".join(lines))
    with pytest.raises(AgentConfigurationError, match="more than 100000 values"):
        load_agent(path)


def test_the_value_of_a_secret_is_in_no_traceback(write):
    for text in (
        "steps: [{type: llm, model: {provider: openai, model: m, api_key: '${TOKEN}'}}]",
        "steps: [{type: llm, config: {provider: openai, model: m, api_key: '${TOKEN}'}}]",
        f"mcp_servers: {{a: {{command: c, env: {{A: '${{TOKEN}}', B=C: '${{TOKEN}}'}}}}}}\n{STEPS}",
        f"checkpointer: {{type: postgres, config: {{connection_string: '${{TOKEN}}', lease: -1}}}}\n{STEPS}",
    ):
        environment = {"TOKEN": "sk-12345 with a space"}
        with pytest.raises((AgentConfigurationError, ValueError)) as caught:
            load_agent(write(text), environment=environment)
        assert "sk-12345" not in "".join(traceback.format_exception(caught.value))


def test_a_secret_in_another_field_is_a_warning_at_check_time(write, caplog):
    write(f"name: ${{INNER_TOKEN}}\n{STEPS}", "inner.yaml")
    path = write(
        """
        name: ${AGENT_KEY} ${HOME}
        mcp_servers: {a: {command: "${HOME}", env: {A: "${MY_TOKEN}"}}}
        checkpointer: {type: postgres, config: {connection_string: "host=${DB_PASSWORD}"}}
        steps:
          - {type: llm, config: {provider: openai, model: m, api_key: "${MY_KEY}", extra_body: {k: "${MY_SECRET}"}}}
          - {type: agent, file: inner.yaml}
        """
    )
    names = ("AGENT_KEY", "HOME", "MY_TOKEN", "DB_PASSWORD", "MY_KEY", "MY_SECRET", "INNER_TOKEN")
    check_agent_file(path, environment=dict.fromkeys(names, "x" * 8))
    warned = [record.getMessage().partition(" is probably")[0] for record in caplog.records]
    assert [text.rpartition("/")[2] for text in warned] == [
        "inner.yaml, line 1: name: ${INNER_TOKEN}",
        "agent.yaml, line 2: name: ${AGENT_KEY}",
        "agent.yaml, line 6: steps[0].config.extra_body.k: ${MY_SECRET}",
    ]


def test_the_value_of_a_variable_is_not_written_and_an_escaped_one_is_as_in_the_file(write):
    text = (
        "name: 'a $${NAME} and $5'\n"
        "steps:\n"
        f"  - {{type: agent, agent: {{name: '${{INNER}}', steps: [{{type: function, function: '{APP}:take_order'}}]}}}}\n"
        "mcp_servers: {files: {command: serve, args: [--key, 'key=${TOKEN}'], env: {KEY: '${TOKEN}', LEVEL: high}}}\n"
        "checkpointer: {type: postgres, config: {connection_string: 'postgres://me:${TOKEN}@db/x'}}\n"
    )
    environment = {"TOKEN": "sk-12345", "INNER": "sk-67890$${Y}: [${TOKEN}]"}
    config = load_agent_config(write(text), environment=environment)
    plain = config.to_dict()
    nested = config.steps[0].agent.to_dict()
    assert "sk-" not in json.dumps([plain, nested])
    assert (config.name, plain["name"]) == ("a ${NAME} and $5", "a $${NAME} and $5")
    assert config.steps[0].agent.name == "sk-67890$${Y}: [${TOKEN}]"
    assert plain["mcp_servers"]["files"]["env"] == {"KEY": "${TOKEN}", "LEVEL": "high"}
    assert plain["mcp_servers"]["files"]["args"] == ["--key", "key=${TOKEN}"]
    assert plain["checkpointer"]["config"]["connection_string"] == "postgres://me:${TOKEN}@db/x"
    assert nested["name"] == "${INNER}"
    assert load_agent_config(write(json.dumps(plain)), environment=environment) == config


@pytest.mark.parametrize("check", [check_agent_file, load_agent])
@pytest.mark.parametrize(
    ("type", "option", "value", "required"),
    [
        ("file", "fsync", "sometimes", "base_directory: missing/runs"),
        ("postgres", "lease", "-1", "connection_string: host=db"),
        ("sqlite", "compresion", "zlib", "db_file: missing/runs.db"),
        ("file", "fsync", "-1\n    lock_timeout: soon\n    base_directory: missing/runs", "compression: null"),
    ],
)
def test_the_value_of_an_option_is_checked_and_its_line_named(check, type, option, value, required, write, tmp_path):
    config = f"checkpointer:\n  type: {type}\n  config:\n    {required}\n    {option}: {value}\n"
    path = write(STEPS + config)
    with pytest.raises(AgentConfigurationError) as caught:
        check(path)
    error = caught.value
    assert (error.file, error.line, error.key) == (str(path), 6, f"checkpointer.config.{option}")
    assert not error.reason.startswith(option)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_read_where_the_package_of_its_saver_is_missing(write, monkeypatch):
    class RedisSaver(MemorySaver):
        def __init__(self, url):
            raise NotImplementedError

        @staticmethod
        def check_options(url):
            AgentConfig(name="without steps")  # which a file may not leave out
            raise MissingDependencyError("redis", "redis")

    monkeypatch.setattr(registry._SAVERS, "registered", {"redis": RedisSaver})
    path = write(f"checkpointer: {{type: redis, config: {{url: localhost}}}}\n{STEPS}")
    outer = write(
        f"checkpointer: {{type: file, config: {{base_directory: runs}}}}\n{AGENT}    file: {path}\n", "outer.yaml"
    )
    for check in (check_agent_file, load_agent):
        for file in (path, outer):
            with pytest.raises(MissingDependencyError):
                check(file)
    assert not path.with_name("runs").exists()

    config = load_agent_config(path)
    config.set_checkpointer(CheckpointerConfig())
    AgentBuilderDirector(config).build()
    with pytest.raises(AgentConfigurationError) as caught:
        load_agent(write(f"{STEPS}checkpointer: {{type: redis, config: {{url: localhost, port: 3}}}}\n"))
    assert caught.value.key == "checkpointer.config.port"


def test_a_store_that_cannot_be_made_for_a_nested_agent_is_no_key_of_the_outer_file(write):
    write("", "runs")
    write(f"{STEPS}checkpointer: {{type: file, config: {{base_directory: runs}}}}\n", "inner.yaml")
    path = write("checkpointer: {type: memory}\nsteps: [{type: agent, file: inner.yaml}]\n")
    with pytest.raises(AgentConfigurationError, match="runs is a file") as caught:
        load_agent(path)
    assert (caught.value.line, caught.value.key) == (2, "steps[0]")


@pytest.mark.parametrize("place", ["outer", "inner"])
def test_a_server_needs_its_package_at_check_time(place, write, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    agent = f"{{mcp_servers: {{a: {{command: c}}}}, {STEPS.strip()}}}"
    path = write(agent if place == "outer" else f"steps: [{{type: agent, agent: {agent}}}]")
    with pytest.raises(MissingDependencyError, match="mcp"):
        check_agent_file(path)
    monkeypatch.undo()
    write(f"{MCP}\nsteps: [{SHIP}]", path)
    with pytest.raises(AgentConfigurationError, match=r"of the MCP servers a\) and no chat step"):
        check_agent_file(path)


@given(st.text(alphabet="abz:{}[]&*!<>-?|'\"#%@,$ \n\t0", max_size=60) | st.binary(max_size=60))
def test_any_text_is_read_or_refused_with_the_file_named(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "agent.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(AgentConfigurationError, match=str(path)):
        load_agent(path, environment={})


def test_the_schema_describes_each_key_and_accepts_no_other():
    schema = json.loads(json.dumps(make_schema()))
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["steps"]
    assert all("description" in value for value in schema["properties"].values())
    assert {"LlmStepSettings", "FunctionStepSettings", "AgentStepSettings"} <= set(schema["$defs"])


@pytest.mark.requirement("P83")
def test_the_calls_of_an_mcp_server_have_the_options_of_tools(write):
    text = """
        steps: [{type: llm, model: openai:m}]
        mcp_servers:
          files:
            command: files
            calls: {timeout: 20, on_error: raise}
            tools: {read: {retry: {max_attempts: 2}}, write: null}
        """
    config = load_agent_config(write(text))
    decoded = json.loads(json.dumps(config.to_dict()))
    assert AgentConfig.from_dict(decoded).mcp_servers == config.mcp_servers
    settings = config.mcp_servers["files"]
    for name, retry in (("write", None), ("read", RetryPolicy(max_attempts=2))):
        assert settings.call_options(name) == {"timeout": 20, "on_error": "raise", "retry": retry}
    with pytest.raises(AgentConfigurationError, match="must be greater than or equal to 1") as caught:
        load_agent(write(text.replace("attempts: 2", "attempts: 0")))
    assert caught.value.key == "mcp_servers.files.tools.read.retry.max_attempts"


# The form of Petal's plan: bare state types, and steps with a `config`


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


@pytest.mark.requirement("P16", "P40", "P45", "P46")
def test_the_plans_file_is_loaded_as_it_stands(write, tmp_path, monkeypatch):
    path = write(PLAN)
    with chat_server.start(answer_by_memory) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        with load_agent(path) as agent:
            assert agent.name == "helper"
            agent.run("I am Ada", "t")
        with load_agent(path) as agent:
            state = agent.run("Who am I?", "t")

    assert state["messages"][-1]["content"] == "You are Ada.", "it remembers after a restart"
    request, _ = server.requests
    assert request["model"] == "gpt-4"
    assert [(message["role"], message["content"]) for message in request["messages"]] == [
        ("system", "You help with travel. I am Ada"),
        ("user", "I am Ada"),
    ]
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
    path = write(f"state_type: {state_type.__name__}\nthread_id: timestamp\n{STEPS}")
    config = load_agent_config(path, state_types=[TravelState, TypedState, ModelState, TravelState])
    assert config.to_dict()["state_type"] == f"{__name__}:{state_type.__name__}"
    agent = load_agent(path, state_types=iter([state_type]))
    assert agent.new_thread_id() < agent.new_thread_id()
    assert agent.run({"city": "Graz", "messages": [{"role": "user", "content": "x"}]})["city"] == "Graz"


def test_the_state_types_of_graphkit_are_known_and_those_of_the_application_come_first(write):
    path = write(f"state_type: DefaultState\n{STEPS}")
    assert load_agent_config(path).state_type is DefaultState
    own = type("DefaultState", (AgentState,), {})
    assert load_agent_config(path, state_types=[own]).state_type is own


def test_wrong_state_types_are_an_error(write):
    for state_types, message in (
        ([TravelState, type("TravelState", (), {})], "two state_types are named TravelState"),
        ([TravelState()], "state_types must be classes"),
    ):
        with pytest.raises(ValueError, match=message):
            load_agent(write(STEPS), state_types=state_types)


def test_a_module_that_a_file_names_may_build_agents_of_its_own(write, tmp_path, monkeypatch):
    (tmp_path / "building_module.py").write_text(
        "from graphkit.agents import AgentBuilder, AgentConfig, CheckpointerConfig\n"
        "answer = AgentBuilder().with_chat(lambda _: 'yes').with_max_iterations(5).build().run\n"
        "plain = AgentConfig(tools=['no_such_module:f'], checkpointer=CheckpointerConfig('file'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    load_agent(write("steps: [{type: function, function: 'building_module:answer'}]"))


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
        ("config:\n      provider: openai\n      model: ''", 5, "config.model", "is missing"),
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
    outer = write("steps:\n  - {type: agent, file: agent.yaml}\n", "outer.yaml")
    for file, wrong, message in ((path, "'a {}'", r"has \{\}"), (path, "[]", "must be"), (outer, "[]", "must be")):
        inner = write(f"steps:\n  - type: llm\n    model: {APP}:echo\n    prompt_template: {wrong}\n", "inner.yaml")
        with pytest.raises(AgentConfigurationError, match=f"prompt_template: {message}") as caught:
            load_agent(file)
        assert (caught.value.file, caught.value.line, caught.value.key) == (str(inner), 4, "steps[0].prompt_template")
    write(f"{AGENT}    agent:\n      steps: [{TWINS}]\n", "inner.yaml")
    alone = load_agent_config(outer).steps[0].agent.steps[0].agent.steps[0].agent
    for build in (lambda: load_agent(outer), AgentBuilderDirector(alone).build):
        with pytest.raises(AgentConfigurationError, match="two tools named") as caught:
            build()
        assert (caught.value.file, caught.value.line, caught.value.key) == (str(inner), 4, "steps[0].agent.steps[0]")
