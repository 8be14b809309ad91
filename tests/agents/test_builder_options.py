"""What a builder takes besides steps: MCP servers, thread ids, and a checkpointer as a mapping."""

import asyncio
import sys
from pathlib import Path

import pytest

from graphkit.agents import AgentBuilder, Tool, builder
from graphkit.errors import AgentConfigurationError, CheckpointerConfigurationError
from tests.support.agents import Script, call, calling, contents

SERVER = Path(__file__).with_name("plain_mcp_server.py")


def servers_in(directory):
    return {"local": {"command": sys.executable, "args": [str(SERVER), str(directory / "journal")]}}


@pytest.mark.requirement("P11", "P83")
def test_the_tools_of_an_mcp_server_are_called_by_the_model(tmp_path):
    (tmp_path / "journal").touch()
    model = Script(calling(call("add", a=1, b=2)), "done")
    agent = AgentBuilder().with_chat(model, name="chat").with_mcp_servers(servers_in(tmp_path)).build()

    async def use():
        async with agent:
            return contents(await agent.arun("go"))

    result, *_ = asyncio.run(use())
    assert "3" in result
    _, schemas = model.requests[0]
    assert "add" in [schema["function"]["name"] for schema in schemas]


def test_wrong_servers_are_an_error_that_names_the_key():
    for servers in ({"broken": {"colour": "red"}}, ["files"]):
        with pytest.raises(AgentConfigurationError, match=r"^mcp_servers(\.broken\.colour)?: "):
            AgentBuilder().with_mcp_servers(servers)


class Closable(Script):
    is_open = True

    def close(self):
        self.is_open = False


@pytest.mark.parametrize("way", ["close", "aclose"])
def test_a_model_made_from_settings_is_closed_with_the_agent_and_no_other(way, monkeypatch):
    made = Closable("x")
    given = Closable("y")
    monkeypatch.setattr(builder, "make_model", lambda config: made if config == "openai:m" else config)
    agent = AgentBuilder().with_chat("openai:m").with_chat(given).build()
    if way == "close":
        agent.close()
    else:
        asyncio.run(agent.aclose())
    assert made.is_open is False
    assert given.is_open is True


@pytest.mark.requirement("P24")
def test_the_strategy_makes_the_thread_ids():
    builder = AgentBuilder().with_chat(Script("x"))
    agent = builder.with_thread_ids("user_specific", user_id="ada").build()
    assert agent.new_thread_id().startswith("user-ada-")
    assert agent.new_thread_id(user_id="bob").startswith("user-bob-")
    agent = builder.with_thread_ids("user_specific").build()
    with pytest.raises(ValueError, match="user_id"):
        agent.new_thread_id()


@pytest.mark.requirement("P7")
def test_a_mapping_is_a_checkpointer(tmp_path):
    settings = {"type": "sqlite", "config": {"db_file": str(tmp_path / "agent.db")}}
    with AgentBuilder().with_chat(Script("one", "two")).with_checkpointer(settings).build() as agent:
        agent.run("go", "t")
    with AgentBuilder().with_chat(Script("one", "two")).with_checkpointer(settings).build() as agent:
        assert contents(agent.run("go on", "t"), "assistant") == ["one", "two"]


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


def test_a_tool_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="cannot be called"):
        Tool(name="x", description="", parameters={}, function="f", is_async=False)
