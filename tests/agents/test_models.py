"""Models from settings, names and functions; messages and their tool calls."""

import asyncio
import json
from functools import partial
from urllib.parse import quote

import pytest
from pydantic import SecretStr

from graphkit import RetryPolicy
from graphkit.agents import Model, make_model
from graphkit.agents.configuration import ModelSettings
from graphkit.agents.settings import RetrySettings, hide_secrets
from graphkit.agents.tools import ToolArgumentsError, parse_arguments
from graphkit.errors import AgentConfigurationError
from tests.support.fresh_process import fresh_process

QUESTION = [{"role": "user", "content": "Hello?"}]
OPENAI = {"provider": "openai", "model": "gpt-4o"}


@pytest.mark.requirement("P9")
def test_only_what_a_configuration_uses_is_imported(tmp_path):
    code = f"""
import sys, graphkit.agents as agents
def show(*names):
    print([name for name in names if name in sys.modules])
agents.make_model("openai:gpt-4o")
agents.CheckpointerConfig("memory").build()
agents.CheckpointerConfig("file", {{"base_directory": {str(tmp_path)!r}}}).build()
agents.CheckpointerConfig("sqlite")
agents.CheckpointerConfig("sqlite", enabled=False).build()
show("langgraph", "openai", "mcp", "httpx2", "psycopg", "sqlite3", "yaml", "asyncio")
agents.CheckpointerConfig("sqlite", {{"db_file": {str(tmp_path / "x.db")!r}}}).build()
show("psycopg", "sqlite3")
agents.CheckpointerConfig("postgres", {{"connection_string": "host=h"}}).build()
show("psycopg")
"""
    assert fresh_process(code).splitlines() == ["[]", "['sqlite3']", "['psycopg']"]


# ---------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "config", ["openai:gpt-4o", OPENAI, ModelSettings(**OPENAI)], ids=["text", "mapping", "settings"]
)
def test_a_name_and_settings_make_the_same_model(config):
    model = make_model(config)
    assert isinstance(model, Model)
    assert not model.is_async
    assert model.settings == ModelSettings(provider="openai", model="gpt-4o")
    assert repr(model) == "OpenAIModel('openai:gpt-4o')"


def test_the_defaults_of_the_settings():
    settings = ModelSettings(**OPENAI, timeout=None, retry=None)
    assert (settings.seconds, settings.api_key_env) == (600, "OPENAI_API_KEY")
    assert settings.policy == RetryPolicy(max_attempts=3, max_delay=60)
    assert ModelSettings(**OPENAI, retry=RetryPolicy()).policy == RetryPolicy()
    some = ModelSettings(**OPENAI, retry=RetrySettings(max_attempts=5))
    assert some.policy == RetryPolicy(max_attempts=5, max_delay=60)


def test_a_wrong_configuration_is_refused_by_name():
    for config, message in (
        ({"provider": "openai"}, "model: is missing"),
        ({"provider": "opanai", "model": "m"}, "unknown provider 'opanai'; the known providers are: openai"),
        ({**OPENAI, "modle": "m"}, "modle: is unknown"),
        ({**OPENAI, "base_url": "localhost"}, "base_url: must be an address"),
        ({**OPENAI, "base_url": "http://me:topsecret@localhost/v1"}, "base_url: must not contain a user"),
        ({**OPENAI, "api_key": ""}, "api_key: it is empty"),
        ({**OPENAI, "api_key_env": "sk-topsecret"}, "api_key_env: must be the name of an environment variable"),
        ({**OPENAI, "timeout": float("nan")}, "timeout: must be a finite number"),
        ({**OPENAI, "retry": 3}, "retry: must be a mapping or a RetryPolicy, not int"),
        ("gpt-4o", "'gpt-4o' does not name a model: write 'provider:model', for example 'openai:gpt-4o'"),
        ("acme:m", "unknown provider 'acme'"),
        (3, "a model must be a mapping with provider and model"),
    ):
        with pytest.raises(AgentConfigurationError) as caught:
            make_model(config)
        assert message in str(caught.value)
        assert "topsecret" not in str(caught.value)


def test_a_secret_is_hidden_in_the_message_of_a_server_however_it_is_written():
    secrets = [SecretStr('a/b+"c\n'), SecretStr("sk-1234"), SecretStr("sk-1234-and-more"), SecretStr("x")]
    for secret in secrets[:3]:
        text = secret.get_secret_value()
        for form in (text, repr(text), json.dumps(text), quote(text, safe="")):
            assert hide_secrets(form, secrets).strip("'\"") == "***"
    assert hide_secrets("extra sk-1234, sk-1234-and-more!", secrets) == "extra ***, ***!"
    assert "sk-1234" not in repr(ModelSettings(**OPENAI, api_key=secrets[1]))


# ---------------------------------------------------------------------------------------------- functions


def answer_with(returned, messages):
    return returned


def reply(messages):
    return f"{len(messages)} messages"


async def reply_later(messages):
    return {"content": f"{len(messages)} messages"}


def plain_but_later(messages):
    return reply_later(messages)


class Callable:
    async def __call__(self, messages):
        return await reply_later(messages)


@pytest.mark.parametrize("function", [reply, lambda messages: {"content": reply(messages)}, reply_later, Callable()])
def test_a_function_is_a_model(function):
    model = make_model(function)
    assert isinstance(model, Model)
    assert make_model(model) is model
    is_async = function is reply_later or isinstance(function, Callable)
    assert model.is_async == is_async
    message = asyncio.run(model.arequest(QUESTION))
    assert message == {"role": "assistant", "content": "1 messages", "id": message["id"]}
    assert message["id"]
    if not is_async:
        message = model.request(QUESTION)
        assert message["content"] == "1 messages"


@pytest.mark.parametrize("function", [reply_later, plain_but_later])
def test_an_asynchronous_function_needs_arun(function):
    with pytest.raises(RuntimeError, match="is asynchronous: define it with async def, and run the agent with arun"):
        make_model(function).request(QUESTION)


def test_a_function_gets_tools_and_on_text_if_it_names_them():
    seen = {}

    def answer(messages, on_text, tools):
        on_text("Hel")
        on_text("lo")
        seen.update(messages=messages, tools=tools)
        return "Hello"

    pieces = []
    make_model(answer).request(tuple(QUESTION), [{"type": "function"}], pieces.append)
    assert pieces == ["Hel", "lo"]
    assert seen == {"messages": QUESTION, "tools": [{"type": "function"}]}


def test_what_is_not_a_message_is_refused():
    for returned, error in (
        (None, TypeError),
        (3, TypeError),
        ({"role": "user", "content": "Hello"}, ValueError),
        ({"content": 3}, ValueError),
        ({"content": None, "tool_calls": [{"id": "1"}]}, ValueError),
        ({"content": None, "tool_calls": [{"function": {"name": "f"}}]}, ValueError),
    ):
        with pytest.raises(error):
            make_model(partial(answer_with, returned)).request(QUESTION)


# ---------------------------------------------------------------------------------------------- messages


def test_a_message_without_an_id_gets_one_of_its_own():
    for given in ({}, {"id": ""}, {"id": None}):
        model = make_model(partial(answer_with, {"content": "Hello", **given}))
        replies = [model.request(QUESTION) for _ in range(2)]
        assert all(reply == {"role": "assistant", "content": "Hello", "id": reply["id"]} for reply in replies)
        assert len({reply["id"] for reply in replies if reply["id"]}) == 2


def test_the_arguments_of_a_call():
    for sent, expected in (('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ({"a": 1}, {"a": 1})):
        assert parse_arguments(sent) == expected
    for sent, problem in (
        ('{"a": ', "not valid JSON"),
        ("[1]", "must be a JSON object, not list"),
        (3, "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a": NaN}', "not valid JSON: JSON has no NaN"),
    ):
        with pytest.raises(ToolArgumentsError, match=problem):
            parse_arguments(sent)
