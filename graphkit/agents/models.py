"""Model: what answers messages. make_model: a model from settings, a name or a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from graphkit._plan.topology import Call
from graphkit._to_thread import run_in_thread
from graphkit.agents.configuration import ModelSettings
from graphkit.agents.messages import Message, Messages, TextHandler, ToolSchemas, as_reply
from graphkit.errors import AgentConfigurationError


@runtime_checkable
class Model(Protocol):
    """What answers messages. Implementations are safe to call from several threads at once."""

    is_async: bool
    """True if only `arequest` works."""

    def request(self, messages: Messages, tools: ToolSchemas = (), on_text: TextHandler | None = None) -> Message:
        """Return the answer to the messages, a message of the assistant with an id of its own.

        Args:
            messages: the conversation, oldest first.
            tools: what the model may call, each in the form of chat completions:
                `{"type": "function", "function": {"name", "description", "parameters"}}`.
            on_text: is called with each piece of text as it arrives. The pieces make up the text of
                the message; none comes twice.

        Raises:
            ModelError: the model gave no usable answer. The request can be repeated.
            AgentConfigurationError: the settings do not allow any request, for example without a key.
        """
        ...

    async def arequest(
        self, messages: Messages, tools: ToolSchemas = (), on_text: TextHandler | None = None
    ) -> Message:
        """As `request`, without blocking the event loop."""
        ...


def make_model(llm_config: Any) -> Model:
    """Return the model that a configuration describes. Nothing is connected, and no key is read.

    Args:
        llm_config: one of

            - a mapping: `{"provider": "openai", "model": "gpt-4o", "base_url": ..., ...}`; `ModelSettings`
              lists the keys. `openai` means the protocol of chat completions, which many servers
              speak: `base_url` names the server.
            - a text `"provider:model"`.
            - a function of the messages that returns a message or a text; it may be asynchronous. If
              it has parameters `tools` or `on_text`, it gets them by name.
            - a Model, which is returned as it is.

    Raises:
        AgentConfigurationError: the configuration is none of these, or a key of it is wrong; the
            message names the key.
        MissingDependencyError: the package for the provider is not installed.
    """
    if isinstance(llm_config, Model) and not isinstance(llm_config, type):
        return llm_config
    if isinstance(llm_config, str):
        return _make_provider_model(ModelSettings.from_text(llm_config))
    if isinstance(llm_config, Mapping):
        return _make_provider_model(ModelSettings.from_mapping(llm_config))
    if isinstance(llm_config, ModelSettings):
        return _make_provider_model(llm_config)
    if callable(llm_config):
        return FunctionModel(llm_config)
    raise AgentConfigurationError(
        "a model must be a mapping with provider and model, a text 'provider:model', a function of the "
        f"messages, or a Model, not {type(llm_config).__name__}"
    )


def _make_provider_model(settings: ModelSettings) -> Model:
    from graphkit.agents.openai_model import OpenAIModel

    return OpenAIModel(settings)


class FunctionModel:
    """A model that is a function of the messages, synchronous or asynchronous.

    Args:
        function: gets the messages as a list; returns a message or a text. Parameters named `tools`
            and `on_text` get the arguments of `request`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._passes = _named_parameters(function)
        self.is_async = Call(function, takes_config=False).is_async

    def __repr__(self) -> str:
        return f"FunctionModel({_name_of(self._function)})"

    def request(self, messages: Messages, tools: ToolSchemas = (), on_text: TextHandler | None = None) -> Message:
        """Return what the function returns, as a message.

        Raises:
            RuntimeError: the function is asynchronous.
            TypeError, ValueError: it returned something else than a text or a message.
        """
        if self.is_async:
            raise self._needs_arun()
        result = self._call(messages, tools, on_text)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()  # nothing will await it, and Python would warn about it
            raise self._needs_arun()
        return as_reply(result)

    async def arequest(
        self, messages: Messages, tools: ToolSchemas = (), on_text: TextHandler | None = None
    ) -> Message:
        """As `request`; a synchronous function runs in a worker thread."""
        if self.is_async:
            result = self._call(messages, tools, on_text)
        else:
            result = await run_in_thread(self._call, messages, tools, on_text)
        if inspect.isawaitable(result):
            result = await result
        return as_reply(result)

    def _call(self, messages: Messages, tools: ToolSchemas, on_text: TextHandler | None) -> Any:
        named = {"tools": tools, "on_text": on_text}
        wanted = {name: named[name] for name in self._passes}
        return self._function(list(messages), **wanted)

    def _needs_arun(self) -> RuntimeError:
        return RuntimeError(f"the model {_name_of(self._function)} is asynchronous: run the agent with arun or astream")


def _named_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return which of `tools` and `on_text` the function has as parameters."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        return ()
    return tuple(name for name in ("tools", "on_text") if name in parameters)


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
