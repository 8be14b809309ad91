"""OpenAIModel: a model behind the protocol of chat completions, asked with the official client.

The client sends one request and reads one answer. Attempts are counted here, because the client
repeats neither a stream that broke nor an answer that cannot be read.
"""

from __future__ import annotations

from time import sleep
from typing import TYPE_CHECKING, Any, Final

from graphkit._records.context import CURRENT_NODE_CONTEXT
from graphkit.agents.completions import StreamedCompletion, read_completion
from graphkit.agents.messages import Message, Messages, TextHandler, ToolSchemas, to_plain, to_request
from graphkit.agents.model_settings import ModelSettings
from graphkit.agents.openai_clients import Clients
from graphkit.agents.openai_failures import AttemptError, failures
from graphkit.errors import MissingDependencyError, ModelError

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

_ONLY_WITH_TOOLS: Final = frozenset({"parallel_tool_calls", "tool_choice"})
"""Options that servers refuse in a request without tools."""
_USAGE_OPTION: Final = "stream_options"
_REFUSED: Final = frozenset({400, 422})
"""How servers answer a request with an option that they do not know."""


class OpenAIModel:
    """A model behind the protocol of chat completions. Safe to call from several threads at once.

    A failure that may pass (no connection, a timeout, status 408, 409, 425, 429 and from 500, an answer
    that broke off or cannot be read) is followed by another attempt, as `settings.retry` says and not
    before the time that the server names in Retry-After. Each further attempt is reported to the
    observers of the run as the event `model.retry`.

    Args:
        settings: which model, where, and how. The key is read at the first request.

    Raises:
        MissingDependencyError: the package openai is not installed.
    """

    is_async: bool = False

    def __init__(self, settings: ModelSettings) -> None:
        _require_package()
        self.settings = settings
        self._clients = Clients(settings)
        self._asks_for_usage = True
        """Whether a stream is asked for the usage of tokens; False once the server has refused that."""

    def __repr__(self) -> str:
        return f"OpenAIModel({self.settings.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings alone; fails if they contain a key."""
        if self.settings.api_key is not None:
            raise TypeError("a key is not stored: name its environment variable in api_key_env instead of api_key")
        return type(self), (self.settings,)

    def request(self, messages: Messages, tools: ToolSchemas = (), on_text: TextHandler | None = None) -> Message:
        """Return the answer to the messages; see `Model.request`.

        Raises:
            ModelError: all attempts failed, or one failed for good. It names the last reason. Also if a
                stream broke and the next answer differed from the text that `on_text` had got.
            AgentConfigurationError: there is no key.
        """
        client = self._clients.sync_client()
        attempts = _Attempts(self.settings, on_text, self._parameters(messages, tools, on_text))
        while True:
            try:
                return self._take(_ask(client, attempts), attempts)
            except AttemptError as error:
                failure = error
            # Outside of the handler, so that a ModelError has no context, which may quote the key.
            sleep(attempts.prepare_next(failure))

    async def arequest(
        self, messages: Messages, tools: ToolSchemas = (), on_text: TextHandler | None = None
    ) -> Message:
        """As `request`, without blocking the event loop. A cancellation closes the connection."""
        from asyncio import sleep

        client = await self._clients.async_client()
        attempts = _Attempts(self.settings, on_text, self._parameters(messages, tools, on_text))
        while True:
            try:
                return self._take(await _ask_async(client, attempts), attempts)
            except AttemptError as error:
                failure = error
            await sleep(attempts.prepare_next(failure))

    def close(self) -> None:
        """Close the connections of synchronous requests. Those of an event loop close with the loop.

        The model stays usable: the next request connects again.
        """
        self._clients.close()

    def _parameters(self, messages: Messages, tools: ToolSchemas, on_text: TextHandler | None) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [to_request(message) for message in messages],
        }
        for name, value in self.settings.options.items():
            if tools or name not in _ONLY_WITH_TOOLS:
                parameters[name] = to_plain(value)
        if tools:
            parameters["tools"] = to_plain(tools)
        if on_text is not None:
            parameters["stream"] = True
            if self._asks_for_usage and _USAGE_OPTION not in parameters.get("extra_body", {}):
                parameters[_USAGE_OPTION] = {"include_usage": True}
        return parameters

    def _take(self, reply: Message, attempts: _Attempts) -> Message:
        """Return a reply; learn from it whether the server knows the option for the usage."""
        if attempts.is_usage_refused:
            self._asks_for_usage = False
        return reply


class _Attempts:
    """The attempts of one request: what they send, what they have streamed, and whether another one follows."""

    def __init__(self, settings: ModelSettings, on_text: TextHandler | None, parameters: dict[str, Any]) -> None:
        self._settings = settings
        self._on_text = on_text
        self.parameters = parameters
        self.is_usage_refused = False
        """Whether a request with the option for the usage was refused."""
        self._number = 1
        self._handed_over = ""
        """The text that `on_text` has got, from all attempts."""
        self._position = 0
        """How much of it the current attempt has repeated."""

    def hand_over(self, text: str) -> None:
        """Pass new text to `on_text`, without what an attempt before has passed already.

        Raises:
            AttemptError: the text differs from what was passed, and that cannot be taken back.
        """
        end = self._position + len(text)
        expected = self._handed_over[self._position : end]
        if not text.startswith(expected):
            shown = len(self._handed_over)
            raise AttemptError(
                f"the stream broke after {shown} characters had been shown, and the answer to the next "
                "attempt differs from them; resume to ask again",
                is_temporary=False,
            )
        new = text[len(expected) :]
        self._position += len(text)
        if new and self._on_text is not None:
            self._handed_over += new
            self._on_text(new)

    def prepare_next(self, failure: AttemptError) -> float:
        """Count an attempt that failed; return how long to wait before the next one, in seconds.

        Raises:
            ModelError: there is no next one.
        """
        if failure.status in _REFUSED and self.parameters.pop(_USAGE_OPTION, None) is not None:
            # Perhaps the server does not know the option. A refused request has cost nothing, so the same
            # one without it shows whether that was the reason.
            self.is_usage_refused = True
            return 0.0
        policy = self._settings.policy
        wait = failure.retry_after or 0.0
        delay = max(policy.delay_after(self._number), wait)
        reason = failure.reason
        is_too_long = wait > policy.max_delay
        if is_too_long:
            reason = f"{reason}; the server asks to wait {wait:g} s, more than max_delay"
        is_last = self._number >= policy.max_attempts
        if is_last or is_too_long or not failure.is_temporary:
            raise ModelError(self._settings.name, reason, attempts=self._number, status=failure.status)
        self._report(reason, delay)
        self._number += 1
        self._position = 0
        return delay

    def _report(self, reason: str, delay: float) -> None:
        context = CURRENT_NODE_CONTEXT.get()
        if context is None:
            return
        data = {
            "model": self._settings.name,
            "attempt": self._number,
            "error": reason,
            "delay": delay,
        }
        context.post_event("model.retry", "warning", data)


def _ask(client: OpenAI, attempts: _Attempts) -> Message:
    """Make one attempt; raise AttemptError if it fails. An error of `on_text` passes through."""
    with failures(client):
        answer: Any = client.chat.completions.create(**attempts.parameters)
        if "stream" not in attempts.parameters:
            return read_completion(_to_dict(answer))
        chunks = iter(answer)

    completion = StreamedCompletion()
    try:
        while True:
            with failures(client):
                chunk = next(chunks, None)
                if chunk is None:
                    return completion.finish()
                text = completion.add(_to_dict(chunk))
            if text:
                attempts.hand_over(text)
    finally:
        answer.close()


async def _ask_async(client: AsyncOpenAI, attempts: _Attempts) -> Message:
    """As `_ask`."""
    with failures(client):
        answer: Any = await client.chat.completions.create(**attempts.parameters)
        if "stream" not in attempts.parameters:
            return read_completion(_to_dict(answer))
        chunks = aiter(answer)

    completion = StreamedCompletion()
    try:
        while True:
            with failures(client):
                chunk = await anext(chunks, None)
                if chunk is None:
                    return completion.finish()
                text = completion.add(_to_dict(chunk))
            if text:
                attempts.hand_over(text)
    finally:
        await answer.close()


def _to_dict(answer: Any) -> Any:
    """Return what the client parsed as plain data. It does not validate, so neither may this."""
    to_dict = getattr(answer, "to_dict", None)
    return to_dict(warnings=False) if callable(to_dict) else answer


def _require_package() -> None:
    from importlib.util import find_spec  # importing the package takes half a second

    if find_spec("openai") is None:
        raise MissingDependencyError("openai", "agents")
