"""Model: what answers messages. make_model: a model from settings, a name or a function.

OpenAIModel asks behind the protocol of chat completions, with the official client. The client sends
one request and reads one answer. Attempts are counted here, because the client repeats neither a
stream that broke nor an answer that cannot be read.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from json import JSONDecodeError
from time import sleep, time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from pydantic import SecretStr

from graphkit._plan.topology import Call, require_result
from graphkit._records.context import post_event
from graphkit._to_thread import run_in_thread
from graphkit._wording import describe_error
from graphkit.agents.configuration import ModelSettings
from graphkit.agents.messages import (
    Message,
    Messages,
    TextHandler,
    ToolSchemas,
    as_reply,
    new_message_id,
    to_plain,
    to_request,
)
from graphkit.agents.settings import hide_secrets, require_package, shown_url
from graphkit.agents.tools import name_of
from graphkit.errors import AgentConfigurationError, ModelError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from openai import AsyncOpenAI, OpenAI


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
        return OpenAIModel(ModelSettings.from_text(llm_config))
    if isinstance(llm_config, Mapping):
        return OpenAIModel(ModelSettings.from_dict(llm_config))
    if isinstance(llm_config, ModelSettings):
        return OpenAIModel(llm_config)
    if callable(llm_config):
        return FunctionModel(llm_config)
    raise AgentConfigurationError(
        "a model must be a mapping with provider and model, a text 'provider:model', a function of the "
        f"messages, or a Model, not {type(llm_config).__name__}"
    )


class FunctionModel:
    """A model that is a function of the messages, synchronous or asynchronous.

    Args:
        function: gets the messages as a list; returns a message or a text. Parameters named `tools`
            and `on_text` get the arguments of `request`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        parameters: Mapping[str, Any] = {}
        with suppress(TypeError, ValueError):  # a builtin may have no signature
            parameters = inspect.signature(function).parameters
        self._passes = [name for name in ("tools", "on_text") if name in parameters]
        self.is_async = Call(function).is_async

    def __repr__(self) -> str:
        return f"FunctionModel({name_of(self._function)})"

    def request(self, messages: Messages, tools: ToolSchemas = (), on_text: TextHandler | None = None) -> Message:
        """Return what the function returns, as a message.

        Raises:
            GraphRunnerError: the function is asynchronous.
            TypeError, ValueError: it returned something else than a text or a message.
        """
        result = self._call(messages, tools, on_text)
        advice = "define it with async def, and run the agent with arun or astream"
        return as_reply(require_result(result, f"the model {name_of(self._function)}", advice))

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


_KEPT: Final = ("content", "refusal", "annotations", "audio", "reasoning", "reasoning_content")
"""What a state keeps of an answer, besides its role and tool calls, where the server sent it."""


class UnreadableAnswerError(ValueError):
    """The answer does not have the form of chat completions, or is not complete."""


def read_completion(completion: Any) -> Message:
    """Return the message of a whole answer.

    Raises:
        UnreadableAnswerError: it has no message, or one that the protocol does not allow.
    """
    if not isinstance(completion, Mapping):
        raise UnreadableAnswerError("the server did not answer with JSON; check base_url")
    choice = _first_choice(completion)
    if choice is None or not isinstance(choice.get("message"), Mapping):
        raise UnreadableAnswerError(_explain_no_choice(completion))
    finish_reason = choice.get("finish_reason")
    usage = completion.get("usage")
    return _finish(choice["message"], finish_reason, usage)


def _first_choice(completion: Mapping[str, Any]) -> Mapping[str, Any] | None:
    match completion.get("choices"):
        case [Mapping() as first, *_]:
            return first
    return None


_NO_MESSAGE: Final = "the answer has no message; check that base_url speaks the protocol of chat completions"


def _explain_no_choice(completion: Mapping[str, Any]) -> str:
    error = completion.get("error")
    if isinstance(error, Mapping) and error.get("message"):  # some servers send errors with status 200
        return f"the server reported: {error['message']}"
    return _NO_MESSAGE


def _finish(sent: Mapping[str, Any], finish_reason: Any, usage: Any) -> Message:
    """Return the message of an answer, as a state keeps it."""
    message: Message = {"role": "assistant", "content": None}
    for name in _KEPT:
        value = sent.get(name)
        if value is not None:
            message[name] = value
    calls = sent.get("tool_calls")
    if calls:
        # A result is matched to its call by the id, and some compatible servers send none, or always the same.
        seen: set[str] = set()
        completed = []
        for call in _require_calls(calls):
            call_id = _text_of(call, "id")
            if not call_id or call_id in seen:
                call_id = f"call_{new_message_id()}"
            seen.add(call_id)
            call_type = call.get("type") or "function"
            completed.append({**call, "id": call_id, "type": call_type})
        message["tool_calls"] = completed
    if isinstance(finish_reason, str):
        message["finish_reason"] = finish_reason
    if isinstance(usage, Mapping):
        message["usage"] = dict(usage)
    message["id"] = new_message_id()  # ids of compatible servers are not unique
    try:
        return as_reply(message)
    except (TypeError, ValueError) as error:
        raise UnreadableAnswerError(f"the answer is not a message: {error}") from error


def _require_calls(calls: Any) -> list[Mapping[str, Any]]:
    """Return tool calls, or pieces of some, if they are a list of mappings."""
    if isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls):
        return calls
    raise UnreadableAnswerError("tool_calls is not a list of calls")


class StreamedCompletion:
    """An answer that arrives in chunks."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._calls: list[_StreamedCall] = []
        self._finish_reason: str | None = None
        self._usage: Any = None

    def add(self, chunk: Any) -> str:
        """Take a chunk; return the text that it adds, "" if none.

        Raises:
            UnreadableAnswerError: the chunk does not have the form of the protocol.
        """
        if not isinstance(chunk, Mapping):
            raise UnreadableAnswerError("the server sent an event that is not a JSON object")
        if chunk.get("error"):
            raise UnreadableAnswerError(_explain_no_choice(chunk))
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        choice = _first_choice(chunk)
        if choice is None:  # the last chunk has the usage and no choice
            return ""
        if isinstance(choice.get("finish_reason"), str):
            self._finish_reason = choice["finish_reason"]
        delta = choice.get("delta")
        if not isinstance(delta, Mapping):
            return ""
        pieces = delta.get("tool_calls")
        if pieces is not None:
            for piece in _require_calls(pieces):
                # The protocol numbers the calls. Some compatible servers send no numbers, or the same number for all
                # calls; there, an id that is new begins a call. The newest first: where a server sends neither number
                # nor id with the rest of the arguments, they belong to the call that it began last.
                index, call_id = piece.get("index"), piece.get("id")
                call = next((call for call in reversed(self._calls) if call.may_have(index, call_id)), None)
                if call is None:
                    call = _StreamedCall(index)
                    self._calls.append(call)
                call.add(piece)
        for name in _KEPT:
            text = delta.get(name)
            if isinstance(text, str):
                self._texts.setdefault(name, []).append(text)
        return _text_of(delta, "content")

    def finish(self) -> Message:
        """Return the message.

        Raises:
            UnreadableAnswerError: the stream ended without the reason of its end, so a part is missing.
        """
        if self._finish_reason is None:
            has_begun = self._texts or self._calls  # a page of HTML, say, has neither
            raise UnreadableAnswerError("the stream ended before the answer did" if has_begun else _NO_MESSAGE)
        sent: dict[str, Any] = {}
        for name, pieces in self._texts.items():
            text = "".join(pieces)
            is_empty = name == "content" and not text
            if not is_empty:
                sent[name] = text
        if self._calls:
            sent["tool_calls"] = [call.finish() for call in self._calls]
        return _finish(sent, self._finish_reason, self._usage)


class _StreamedCall:
    """A tool call that arrives in pieces."""

    def __init__(self, index: Any) -> None:
        self.index = index
        self.id = ""
        self._name = ""
        self._arguments: list[str] = []

    def may_have(self, index: Any, call_id: Any) -> bool:
        """Return whether a piece with this number and this id can be a part of the call."""
        is_same_number = index is None or index == self.index
        is_same_id = not call_id or not self.id or call_id == self.id
        return is_same_number and is_same_id

    def add(self, piece: Mapping[str, Any]) -> None:
        self.id = self.id or _text_of(piece, "id")
        function = piece.get("function")
        if not isinstance(function, Mapping):
            return
        self._name = self._name or _text_of(function, "name")
        self._arguments.append(_text_of(function, "arguments"))

    def finish(self) -> dict[str, Any]:
        function = {"name": self._name, "arguments": "".join(self._arguments)}
        return {"id": self.id, "type": "function", "function": function}


def _text_of(piece: Mapping[str, Any], key: str) -> str:
    """Return the text under a key; empty if there is none."""
    value = piece.get(key)
    return value if isinstance(value, str) else ""


_RETRIED_STATUSES: Final = frozenset({408, 409, 425, 429})
"""Besides those from 500: the same request may be answered later."""


class Failure(NamedTuple):
    """Why an attempt failed. Stands for the error of the client, which may quote the key."""

    reason: str
    is_temporary: bool
    """Whether the same request may be answered later."""
    status: int | None = None
    """The status of the answer, if there was one."""
    retry_after: float | None = None
    """How long the server asked to wait, in seconds."""


def _explain(error: Exception, client: OpenAI | AsyncOpenAI) -> Failure:
    """Return what an error of the client means, without the key."""
    import openai

    def hide(text: str) -> str:
        return hide_secrets(text, [SecretStr(client.api_key)])

    if isinstance(error, openai.APIStatusError):
        status = error.status_code
        body = error.body if isinstance(error.body, Mapping) else {}
        reason = f"status {status}"
        message = body.get("message")
        if message:
            reason = f"{reason}: {message}"
        elif status == 404:  # noqa: PLR2004 - of HTTP
            reason = f"{reason} of {shown_url(str(client.base_url))}: check base_url"
        may_pass = status in _RETRIED_STATUSES or status >= 500  # noqa: PLR2004 - of HTTP
        # This code means that the account has no credit left, which no waiting changes.
        is_out_of_credit = body.get("code") == "insufficient_quota"
        retry_after = error.response.headers.get("retry-after")
        return Failure(
            hide(reason),
            is_temporary=may_pass and not is_out_of_credit,
            status=status,
            retry_after=_parse_retry_after(retry_after),
        )
    no_answer = _explain_answer(error, client)
    return Failure(hide(no_answer or describe_error(error)), is_temporary=no_answer is not None)


def _explain_answer(error: Exception, client: OpenAI | AsyncOpenAI) -> str | None:
    """Return why there was no usable answer; None if the error is of another kind."""
    import openai

    where = shown_url(str(client.base_url))
    if isinstance(error, openai.APITimeoutError):
        return f"{where} did not answer within the timeout of {client.timeout} s"
    # Clients before 3.0 let the errors of their HTTP library through, which depends on their version, if the
    # connection breaks in a stream.
    libraries = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    transport_errors = tuple(library.TransportError for library in libraries)
    if isinstance(error, (openai.APIConnectionError, *transport_errors)):
        cause = error.__cause__ or error
        return f"the connection to {where} failed: {describe_error(cause)}"
    if isinstance(error, openai.APIError):  # an event of a stream
        return f"the server reported: {error.message}"
    if isinstance(error, UnreadableAnswerError):
        return str(error)
    if isinstance(error, JSONDecodeError | UnicodeDecodeError):
        return f"the answer of {where} is not valid JSON"
    return None


def _parse_retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date; None if there is none to read."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    from email.utils import mktime_tz, parsedate_tz

    then = parsedate_tz(value)
    try:
        return None if then is None else max(0.0, mktime_tz(then) - time())
    except (ValueError, OverflowError):  # a year of five digits, or of more than a number in C holds
        return None


_NO_KEY: Final = "-"
"""What the client gets where the server needs no key: it insists on one."""


class Clients:
    """The clients of a model: one for all threads of a process, and one for each event loop."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._process = 0
        self._client: OpenAI | None = None
        self._of_loops: dict[AbstractEventLoop, tuple[AsyncOpenAI, AsyncGenerator[None, None]]] = {}

    def sync_client(self) -> OpenAI:
        """Return the client of this process. A process that was forked makes its own connections."""
        # A forked process has copies of the sockets of its parent: both would read the answers of one connection.
        with self._lock:
            if self._client is None or self._process != os.getpid():
                from openai import OpenAI

                self._client = OpenAI(**self._options())
                self._process = os.getpid()
            return self._client

    async def async_client(self) -> AsyncOpenAI:
        """Return the client of the running event loop: connections cannot move to another loop."""
        from asyncio import get_running_loop

        loop = get_running_loop()
        opened = self._of_loops.get(loop)
        if opened is None:
            from openai import AsyncOpenAI

            client = AsyncOpenAI(**self._options())  # takes about 30 ms, therefore not for each request
            opened = (client, self._close_with(loop, client))
            # Nothing was awaited since the look-up, so no other task of this loop has made a client. Other loops
            # run in other threads, and change only their own entries and those of loops that are closed.
            for other in list(self._of_loops):
                if other.is_closed():
                    self._of_loops.pop(other, None)
            self._of_loops[loop] = opened
            await anext(opened[1])  # starts the generator, which the loop then finishes
        return opened[0]

    async def _close_with(self, loop: AbstractEventLoop, client: AsyncOpenAI) -> AsyncGenerator[None, None]:
        """Close the client when the loop ends.

        A loop finishes the asynchronous generators that were started in it before it closes. It
        offers no other hook.
        """
        try:
            yield
        finally:
            self._of_loops.pop(loop, None)
            await client.close()

    def close(self) -> None:
        """Close the connections of this process that belong to no loop."""
        with self._lock:
            client = self._client
            self._client = None
        if client is not None:
            client.close()

    def _options(self) -> dict[str, Any]:
        key = self._settings.find_key()
        return {
            "api_key": _NO_KEY if key is None else key.get_secret_value(),
            "base_url": self._settings.base_url,
            "timeout": self._settings.seconds,
            "max_retries": 0,
        }


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
        require_package("openai")
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
        attempts = _Attempts(client, self.settings, on_text, self._parameters(messages, tools, on_text))
        while True:
            with attempts:
                return self._take(_ask(client, attempts), attempts)
            sleep(attempts.prepare_next())

    async def arequest(
        self, messages: Messages, tools: ToolSchemas = (), on_text: TextHandler | None = None
    ) -> Message:
        """As `request`, without blocking the event loop. A cancellation closes the connection."""
        from asyncio import sleep

        client = await self._clients.async_client()
        attempts = _Attempts(client, self.settings, on_text, self._parameters(messages, tools, on_text))
        while True:
            with attempts:
                return self._take(await _ask_async(client, attempts), attempts)
            await sleep(attempts.prepare_next())

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
        """Return a reply that has all the text that was shown; learn whether the server knows the usage option."""
        attempts.hand_over("", is_end=True)
        if attempts.is_usage_refused:
            self._asks_for_usage = False
        return reply


class _Attempts:
    """The attempts of one request: what they send, what they have streamed, and whether another one follows.

    A context manager that is entered for each of them, and swallows the error of the client.
    """

    def __init__(
        self,
        client: OpenAI | AsyncOpenAI,
        settings: ModelSettings,
        on_text: TextHandler | None,
        parameters: dict[str, Any],
    ) -> None:
        self._client = client
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
        self._own_error: Exception | None = None
        """What `hand_over` has raised, which is no error of the client."""
        self._failure: Failure
        """Why the last attempt failed."""

    def __enter__(self) -> None:
        """Start an attempt."""

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        """End an attempt. Swallow its error, unless it is one of ours or of the caller's."""
        # `prepare_next` raises what follows from the error. An error that is raised here would have that of the client
        # as its context, and a traceback would show the request with its headers.
        if not isinstance(error, Exception) or error is self._own_error:
            return False
        self._failure = _explain(error, self._client)
        return True

    def hand_over(self, text: str, *, is_end: bool = False) -> None:
        """Pass new text to `on_text`, without what an attempt before has passed already.

        Args:
            text: what follows in the answer.
            is_end: the answer is complete with it.

        Raises:
            ModelError: the text differs from what was passed, or ends before it, and that cannot be taken back.
            Exception: what `on_text` raises.
        """
        # After a stream that broke, the model is asked for the whole answer again. As long as the new text repeats
        # what the reader has seen, nothing is passed on; then the rest is. `text` may span that border.
        end = None if is_end else self._position + len(text)
        expected = self._handed_over[self._position : end]
        if not text.startswith(expected):
            shown = len(self._handed_over)
            reason = (
                f"the stream broke after {shown} characters had been shown, and the answer to the next "
                "attempt differs from them; resume to ask again"
            )
            self._own_error = ModelError(self._settings.name, reason, attempts=self._number)
            raise self._own_error
        new = text[len(expected) :]
        self._position += len(text)
        if new and self._on_text is not None:
            self._handed_over += new
            try:
                self._on_text(new)
            except Exception as error:
                self._own_error = error
                raise

    def prepare_next(self) -> float:
        """Count an attempt that failed; return how long to wait before the next one, in seconds.

        Raises:
            ModelError: there is no next one.
        """
        failure = self._failure
        if failure.status in _REFUSED and self.parameters.pop(_USAGE_OPTION, None) is not None:
            # Perhaps the server does not know the option. A refused request has cost nothing, so the same
            # one without it shows whether that was the reason.
            self.is_usage_refused = True
            return 0.0
        policy = self._settings.policy
        # A server that asks for more patience than the settings have would fail each further attempt as well, so the
        # error comes at once, and says how long the server asks to wait.
        wait = failure.retry_after or 0.0
        delay = max(policy.delay_after(self._number), wait)
        reason = failure.reason
        is_too_long = wait > policy.max_delay
        if is_too_long:
            reason = f"{reason}; the server asks to wait {wait:g} s, more than max_delay"
        is_last = self._number >= policy.max_attempts
        if is_last or is_too_long or not failure.is_temporary:
            raise ModelError(self._settings.name, reason, attempts=self._number, status=failure.status)
        data = {
            "model": self._settings.name,
            "attempt": self._number,
            "error": reason,
            "delay": delay,
        }
        post_event("model.retry", data)
        self._number += 1
        self._position = 0
        return delay


def _ask(client: OpenAI, attempts: _Attempts) -> Message:
    """Make one attempt."""
    answer: Any = client.chat.completions.create(**attempts.parameters)
    if "stream" not in attempts.parameters:
        return read_completion(_to_dict(answer))
    completion = StreamedCompletion()
    with answer:
        for chunk in answer:
            attempts.hand_over(completion.add(_to_dict(chunk)))
    return completion.finish()


async def _ask_async(client: AsyncOpenAI, attempts: _Attempts) -> Message:
    """As `_ask`."""
    answer: Any = await client.chat.completions.create(**attempts.parameters)
    if "stream" not in attempts.parameters:
        return read_completion(_to_dict(answer))
    completion = StreamedCompletion()
    async with answer:
        async for chunk in answer:
            attempts.hand_over(completion.add(_to_dict(chunk)))
    return completion.finish()


def _to_dict(answer: Any) -> Any:
    """Return what the client parsed as plain data. It does not validate, so neither may this."""
    to_dict = getattr(answer, "to_dict", None)
    return to_dict(warnings=False) if callable(to_dict) else answer
