"""AgentConfig and CheckpointerConfig: an agent and its checkpointer as plain data."""

import json
import pickle
import re
import sys
from dataclasses import replace

import pytest

from docs.make_agents_configuration import MARK, PAGE, make_reference
from graphkit import AgentState, RetryPolicy, registry
from graphkit.agents import (
    AgentBuilder,
    AgentBuilderDirector,
    AgentConfig,
    CheckpointerConfig,
    CheckpointerYAMLHandler,
    load_agent,
    load_agent_config,
    tool,
)
from graphkit.agents.settings import resolve_reference
from graphkit.agents.yaml_loader import check_agent_file
from graphkit.errors import AgentConfigurationError, CheckpointerConfigurationError
from graphkit.retention import RetentionPolicy
from savers import MemorySaver
from tests.agents import application

HERE = "tests.agents.application"
BUILT = AgentBuilder().with_chat(application.echo).build()
PICKY = RetryPolicy(retry_on=ConnectionError)
FULL = {
    "name": "shop",
    "state_type": f"{HERE}:OrderState",
    "steps": [
        {"type": "function", "name": "take", "function": f"{HERE}:take_order"},
        {
            "type": "llm",
            "model": {"provider": "openai", "model": "m", "temperature": 0.5, "retry": {"max_attempts": 2}},
            "system_prompt": "Be kind.",
            "tools": [f"{HERE}:find_order"],
            "max_parallel_tools": 4,
        },
        {"type": "llm", "model": "openai:m"},
        {"type": "agent", "agent": {"name": "inner", "steps": [{"type": "function", "function": f"{HERE}:Shop.ship"}]}},
        {"type": "agent", "file": "inner.yaml", "checkpointer": {"type": "memory", "enabled": True}},
    ],
    "checkpointer": {"type": "sqlite", "config": {"db_file": "a.db"}, "enabled": True},
    "tools": [f"{HERE}:cancel_order", {"function": f"{HERE}:find_order", "name": "find", "timeout": 3.0}],
    "mcp_servers": {
        "files": {"command": "serve", "args": ["-v"], "env": {"A": "b"}},
        "web": {"url": "http://x", "tools": []},
    },
    "thread_id": {"strategy": "user_specific", "user_id": "bob"},
}


@pytest.mark.requirement("P6")
def test_plain_data_are_read_and_written_back_without_loss():
    config = AgentConfig.from_dict(json.loads(json.dumps(FULL)))
    assert json.loads(json.dumps(config.to_dict())) == FULL
    assert AgentConfig.from_dict(config.to_dict()) == config


def test_a_checkpointer_may_be_a_mapping_of_its_fields():
    config = AgentConfig(checkpointer=MemorySaver())
    config.set_checkpointer({"type": "file", "config": {"base_directory": "x"}})
    assert config.checkpointer == CheckpointerConfig("file", {"base_directory": "x"})
    with pytest.raises(CheckpointerConfigurationError, match="redis"):
        config.set_checkpointer({"type": "redis"})
    with pytest.raises(CheckpointerConfigurationError, match="a CheckpointerConfig or a saver, not str"):
        config.set_checkpointer("file")
    assert config.checkpointer.type == "file"
    config.set_checkpointer(None)
    assert "checkpointer" not in config.to_dict()


def test_objects_of_an_application_are_written_as_their_names():
    nested = AgentConfig(steps=[{"type": "function", "function": application.Shop.ship}])
    config = AgentConfig(
        state_type=application.OrderState,
        steps=[
            {"type": "function", "name": None, "function": application.take_order},
            {"type": "llm", "model": application.echo, "tools": (application.find_order,)},
            {"type": "agent", "agent": nested},
        ],
        tools=[application.cancel_order, {"function": application.find_order, "retry": RetryPolicy(jitter=False)}],
        thread_id={"strategy": "custom", "generator_func": application.make_id},
    )
    plain = json.loads(json.dumps(config.to_dict()))
    assert plain["state_type"] == f"{HERE}:OrderState"
    assert plain["steps"] == [
        {"type": "function", "function": f"{HERE}:take_order"},
        {"type": "llm", "model": f"{HERE}:echo", "tools": [f"{HERE}:find_order"]},
        {"type": "agent", "agent": {"name": "agent", "steps": [{"type": "function", "function": f"{HERE}:Shop.ship"}]}},
    ]
    cancel, find = plain["tools"]
    assert (cancel, find["function"]) == (f"{HERE}:cancel_order", f"{HERE}:find_order")
    assert find["retry"]["jitter"] is False
    assert plain["thread_id"]["generator_func"] == f"{HERE}:make_id"
    assert AgentConfig.from_dict(plain).to_dict() == plain


def test_names_alone_are_never_imported():
    chat = {"type": "llm", "model": application.echo}
    for data, place in (
        ({"steps": [{"type": "function", "function": "m:f"}]}, "Invalid step 0: function"),
        ({"steps": [{"type": "agent", "file": "m:f"}]}, "Invalid step 0: file"),
        ({"steps": [chat | {"tools": [{"function": "m:f"}]}]}, "Invalid step 0: function"),
        ({"steps": [chat], "tools": [application.search, "m:f"]}, "tools"),
        ({"steps": [chat], "state_type": "m:f"}, "state_type"),
        ({"steps": [chat], "thread_id": {"strategy": "custom", "generator_func": "m:f"}}, "thread_id.generator_func"),
    ):
        with pytest.raises(AgentConfigurationError, match=f"^{place}: is still the name 'm:f', which only load_agent"):
            AgentBuilderDirector(AgentConfig.from_dict(data)).build()


def test_the_key_of_a_model_is_neither_written_nor_shown():
    model = {"provider": "openai", "model": "m", "api_key": "sk-secret"}
    config = AgentConfig.from_dict({"steps": [{"type": "llm", "model": model}]})
    assert config.steps[0].model.api_key.get_secret_value() == "sk-secret"
    assert "sk-secret" not in json.dumps(config.to_dict()) + repr(config)
    with pytest.raises(AgentConfigurationError) as caught:
        AgentConfig.from_dict({"steps": [{"type": "llm", "model": model | {"modle": 1, "timeout": "sk-secret"}}]})
    assert "sk-secret" not in str(caught.value) + str(caught.value.__cause__)


def test_what_has_no_plain_form_is_an_error_that_names_the_key():
    for change, key in (
        ({"checkpointer": MemorySaver()}, "checkpointer"),
        ({"steps": [{"type": "function", "function": lambda state: {}}]}, r"steps\[0\].function"),
        ({"steps": [{"type": "agent", "agent": BUILT}]}, r"steps\[0\].agent"),
        ({"steps": [{"type": "llm", "model": application.scripted}]}, r"steps\[0\].model"),
        ({"tools": [tool(lambda number: "", name="x")]}, r"tools\[0\]"),
        ({"tools": [{"function": application.find_order, "retry": PICKY}]}, r"tools\[0\].retry.retry_on"),
        ({"tools": [replace(application.search, name="other")]}, r"tools\[0\]"),
        ({"state_type": {"n": int}}, "state_type"),
        ({"state_type": type("Local", (AgentState,), {"__module__": "__main__"})}, "state_type"),
    ):
        with pytest.raises(AgentConfigurationError, match=f"^{key}: has no plain form"):
            AgentConfig(**change).to_dict()


def test_a_wrong_key_is_named():
    for change, message in (
        ({"nmae": "x"}, "nmae: is unknown; did you mean 'name'"),
        ({"steps": [{"type": "llm", "model": "m"}]}, r"steps\[0\].model: must be provider:model"),
        ({"steps": [{"type": "function", "function": "f"}]}, r"steps\[0\].function: must be module:name"),
        ({"steps": [{"type": "function", 1: "x"}]}, r"steps\[0\]: keys must be text, not 1"),
        ({"steps": [{"type": "agent"}]}, r"steps\[0\]: needs either agent or file"),
        ({"tools": [{"function": "m:f", "on_error": "x"}]}, r"tools\[0\].on_error: must be 'model' or 'raise'"),
        ({"thread_id": {"strategy": "uuid", "user_id": "b"}}, "thread_id: the thread id strategy 'uuid' has no option"),
        ({"state_type": 3}, "state_type: must be module:name, not int"),
    ):
        with pytest.raises(AgentConfigurationError, match=f"^{message}"):
            AgentConfig.from_dict(change)


def test_a_module_that_fails_is_named_with_its_cause(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, text, message in (
        ("failing", "1 / 0", "importing failing failed: ZeroDivisionError"),
        ("lacking", "import not_installed_at_all", "lacking needs the module not_installed_at_all"),
        ("refusing", "raise ModuleNotFoundError('get it')", "importing refusing failed: ModuleNotFoundError: get it"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
        with pytest.raises(ValueError, match=message) as caught:
            resolve_reference(f"{name}:f")
        assert caught.value.__cause__ is not None


# Checkpointers


@pytest.mark.requirement("P1")
def test_memory_is_the_default_and_each_type_is_legal_without_its_keys():
    config = CheckpointerConfig()
    assert (config.type, config.config, config.enabled) == ("memory", None, True)
    for name in ("memory", "versioned_memory", "file", "disk", "filesystem", "sqlite", "postgres"):
        assert CheckpointerConfig(type=name).type == name


@pytest.mark.requirement("P1")
def test_a_wrong_shape_names_the_key_when_it_is_made():
    for fields, words in (
        ({"type": "redis"}, "type: Unsupported checkpointer type: 'redis'; known are .*sqlite"),
        ({"type": None}, "type: must be a valid string"),
        ({"config": "runs.db"}, "config: must be a mapping"),
        ({"enabled": "yes"}, "enabled: must be a valid boolean"),
        ({"db_file": "runs.db"}, "db_file: is unknown"),
    ):
        for make in (CheckpointerConfig, lambda **given: CheckpointerConfig.from_dict(given)):
            with pytest.raises(CheckpointerConfigurationError, match=words) as caught:
                make(**fields)
            assert isinstance(caught.value, ValueError)
            assert caught.value.__cause__ is not None


def test_a_checkpointer_config_is_immutable_and_pickles_and_its_text_has_no_password():
    config = CheckpointerConfig("postgres", {"connection_string": "postgresql://me:secret@host/db"})
    with pytest.raises(ValueError, match="frozen"):
        config.type = "file"
    assert pickle.loads(pickle.dumps(config)) == config != CheckpointerConfig("postgres", {})
    assert "secret" not in repr(config) + str(config)


@pytest.mark.requirement("P2")
def test_a_wrong_key_is_named_when_it_is_built(tmp_path, monkeypatch):
    for name, config, key in (
        ("sqlite", None, "db_file"),
        ("sqlite", {"db_file": "a.db", "types": ["x"]}, "^config of the checkpointer type 'sqlite': 'x' cannot be"),
        ("sqlite", {"db_file": "a.db", "nope": 1}, "nope"),
        ("file", {"base_directory": "missing/runs", "lock_timeout": "soon"}, "lock_timeout"),
        ("postgres", {"connection_string": "nonsense"}, "connection_string"),
    ):
        monkeypatch.chdir(tmp_path)
        for use in (CheckpointerConfig.build, CheckpointerConfig.check):
            with pytest.raises(CheckpointerConfigurationError, match=key):
                use(CheckpointerConfig(name, config))
        CheckpointerConfig(name, config, enabled=False).check()
        assert list(tmp_path.iterdir()) == []


def test_a_registered_kind_is_accepted(monkeypatch):
    monkeypatch.setattr(registry._SAVERS, "registered", {})
    with pytest.raises(CheckpointerConfigurationError):
        CheckpointerConfig("redis")
    registry.register_saver("redis", lambda url: MemorySaver())
    assert isinstance(CheckpointerConfig("redis", {"url": "x"}).build(), MemorySaver)
    with pytest.raises(CheckpointerConfigurationError, match="url"):
        CheckpointerConfig("redis").build()


@pytest.mark.requirement("P41", "P42")
def test_a_block_is_parsed():
    handler = CheckpointerYAMLHandler()
    block = {"type": "sqlite", "config": {"db_file": "a.db"}}
    assert handler.parse_checkpointer_config(block) == CheckpointerConfig("sqlite", {"db_file": "a.db"})
    assert handler.parse_checkpointer_config({}) == CheckpointerConfig()
    assert handler.validate_checkpointer_config(block) is True


@pytest.mark.requirement("P41", "P42")
def test_a_wrong_block_is_an_error():
    for block in (None, [], "memory", 3, {"type": "redis"}, {1: 2}, {"typ": "memory"}):
        with pytest.raises(CheckpointerConfigurationError):
            CheckpointerYAMLHandler().parse_checkpointer_config(block)
        assert CheckpointerYAMLHandler().validate_checkpointer_config(block) is False


# docs/agents-configuration.md: its reference is that of the models, and each YAML block of the docs is loaded


DOCS = PAGE.parent
BLOCK = re.compile(r"^```(yaml|python)\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [page for page in sorted(DOCS.glob("*.md")) if "```yaml" in page.read_text(encoding="utf-8")]
RETENTION = "retention.yaml"
"""The only file that configures no agent."""
ENVIRONMENT = {"SHOP_DATA": "data", "SHOP_KEY": "k"}


def write_files(page, directory):
    """Write the blocks of a page that begin with the name of a file; return the names of the YAML files."""
    names = []
    for language, name, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        (directory / name).write_text(body, encoding="utf-8")
        if language == "yaml":
            names.append(name)
    return names


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    loaded = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_reference_is_that_of_the_models():
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(MARK)[2] == "\n" + make_reference(), "run python docs/make_agents_configuration.py"


@pytest.mark.requirement("P45")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_yaml_block_names_its_file_and_is_valid(page, directory):
    names = write_files(page, directory)
    assert len(names) == page.read_text(encoding="utf-8").count("```yaml")
    before = sorted(directory.iterdir())
    for name in names:
        if name == RETENTION:
            assert RetentionPolicy.from_file(name).statuses
            continue
        config = load_agent_config(name, environment=ENVIRONMENT)
        check_agent_file(name, environment=ENVIRONMENT)
        plain = config.to_dict()
        decoded = json.loads(json.dumps(plain))
        assert AgentConfig.from_dict(decoded).to_dict() == plain
    assert [path for path in sorted(directory.iterdir()) if path.name != "__pycache__"] == before


def test_the_agents_without_a_provider_run(directory):
    write_files(PAGE, directory)
    assert load_agent("echo.yaml").run("Hello")["messages"][-1]["content"] == "You said: Hello"
    desk = load_agent("desk.yaml")
    assert desk.run("Hello", "t")["messages"][1]["content"] == "You said: Hello"
    desk.graph.compile_config.saver.close()
    assert (directory / "desk.db").exists()
    assert any((directory / "audits").iterdir())
