"""OpenAIModel: a model behind the protocol of chat completions, asked with the official client.

The client sends one request and reads one answer. Attempts are counted here, because the client
repeats neither a stream that broke nor an answer that cannot be read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING, Any, Final

from graphkit._records.context import CURRENT_NODE_CONTEXT
from graphkit.agents.completions import StreamedCompletion, UnreadableAnswerError, read_completion
from graphkit.agents.messages import Message, TextHandler, to_plain, to_request
from graphkit.agents.model_settings import ModelSettings, shown_url
from graphkit.agents.secret import Secret
from graphkit.errors import MissingDependencyError, ModelError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from openai import AsyncOpenAI, OpenAI

_NO_KEY: Final = "-"
"""What the client gets where the server needs no key: it insists on one."""
_RETRIED_STATUSES: Final = frozenset({408, 409, 425, 429})
"""Besides those from 500: the same request may be answered later."""
_ONLY_WITH_TOOLS: Final = frozenset({"parallel_tool_calls", "tool_choice"})
"""Options that servers refuse in a request without tools."""


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """Why an attempt failed. Replaces the error of the client, which may quote the key."""

    reason: str
    is_temporary: bool
    status: int | None = None
    retry_after: float | None = None
    """How long the server asked to wait, in seconds."""


class _AttemptError(Exception):
    """Carries a failure from where it happened to where attempts are counted."""

    def __init__(self, failure: _Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


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
        self._clients = _Clients(settings)

    def __repr__(self) -> str:
        return f"OpenAIModel({self.settings.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings alone. A key in them refuses; one in the environment is not in them."""
        return type(self), (self.settings,)

    def request(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        on_text: TextHandler | None = None,
    ) -> Message:
        """Return the answer to the messages; see `Model.request`.

        Raises:
            ModelError: all attempts failed, or one failed for good. It names the last reason. Also if a
                stream broke and the next answer differed from the text that `on_text` had got.
            AgentConfigurationError: there is no key.
        """
        attempts = _Attempts(self.settings, on_text)
        client = self._clients.sync_client()
        parameters = self._parameters(messages, tools, on_text)
        while True:
            try:
                return _ask(client, parameters, attempts)
            except _AttemptError as error:
                failure = error.failure
            # Outside of the handler, so that a ModelError has no context, which may quote the key.
            sleep(attempts.prepare_next(failure))

    async def arequest(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        on_text: TextHandler | None = None,
    ) -> Message:
        """As `request`, without blocking the event loop. A cancellation closes the connection."""
        from asyncio import sleep

        attempts = _Attempts(self.settings, on_text)
        client = await self._clients.async_client()
        parameters = self._parameters(messages, tools, on_text)
        while True:
            try:
                return await _ask_async(client, parameters, attempts)
            except _AttemptError as error:
                failure = error.failure
            await sleep(attempts.prepare_next(failure))

    def close(self) -> None:
        """Close the connections of synchronous requests. Those of an event loop close with the loop.

        The model stays usable: the next request connects again.
        """
        self._clients.close()

    def _parameters(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], on_text: TextHandler | None
    ) -> dict[str, Any]:
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
        return parameters


class _Attempts:
    """The attempts of one request: what they have streamed, and whether another one follows."""

    def __init__(self, settings: ModelSettings, on_text: TextHandler | None) -> None:
        self._settings = settings
        self._on_text = on_text
        self._number = 1
        self._handed_over = ""
        """The text that `on_text` has got, from all attempts."""
        self._position = 0
        """How much of it the current attempt has repeated."""

    def hand_over(self, text: str) -> None:
        """Pass new text to `on_text`, without what an attempt before has passed already.

        Raises:
            _AttemptError: the text differs from what was passed, and that cannot be taken back.
        """
        expected = self._handed_over[self._position : self._position + len(text)]
        if not text.startswith(expected):
            raise _AttemptError(
                _Failure(
                    reason=f"the stream broke after {len(self._handed_over)} characters had been shown, and the "
                    "answer to the next attempt differs from them; resume to ask again",
                    is_temporary=False,
                )
            )
        new = text[len(expected) :]
        self._position += len(text)
        if new and self._on_text is not None:
            self._handed_over += new
            self._on_text(new)

    def prepare_next(self, failure: _Failure) -> float:
        """Count an attempt that failed; return how long to wait before the next one, in seconds.

        Raises:
            ModelError: there is no next one.
        """
        policy = self._settings.retry
        delay = policy.delay_after(self._number)
        reason = failure.reason
        is_last = not failure.is_temporary or self._number >= policy.max_attempts
        if failure.retry_after is not None:
            delay = max(delay, failure.retry_after)
            if failure.retry_after > policy.max_delay:
                is_last = True
                reason = f"{reason}; the server asks to wait {failure.retry_after:g} s, more than max_delay"
        if is_last:
            raise ModelError(self._settings.name, reason, attempts=self._number, status=failure.status)
        self._report(reason, delay)
        self._number += 1
        self._position = 0
        return delay

    def _report(self, reason: str, delay: float) -> None:
        context = CURRENT_NODE_CONTEXT.get()
        if context is not None:
            data = {"model": self._settings.name, "attempt": self._number, "error": reason, "delay": delay}
            context.post_event("model.retry", "warning", data)


def _ask(client: OpenAI, parameters: Mapping[str, Any], attempts: _Attempts) -> Message:
    """Make one attempt; raise _AttemptError if it fails. An error of `on_text` passes through."""
    with _failures(client):
        answer: Any = client.chat.completions.create(**parameters)
        if "stream" not in parameters:
            return read_completion(_to_dict(answer))
        chunks = iter(answer)

    completion = StreamedCompletion()
    try:
        while True:
            with _failures(client):
                chunk = next(chunks, None)
                if chunk is None:
                    return completion.finish()
                text = completion.add(_to_dict(chunk))
            if text:
                attempts.hand_over(text)
    finally:
        answer.close()


async def _ask_async(client: AsyncOpenAI, parameters: Mapping[str, Any], attempts: _Attempts) -> Message:
    """As `_ask`."""
    with _failures(client):
        answer: Any = await client.chat.completions.create(**parameters)
        if "stream" not in parameters:
            return read_completion(_to_dict(answer))
        chunks = aiter(answer)

    completion = StreamedCompletion()
    try:
        while True:
            with _failures(client):
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


@contextmanager
def _failures(client: OpenAI | AsyncOpenAI) -> Iterator[None]:
    """Raise _AttemptError for each error of the client, without the error itself."""
    failure = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - each becomes a failure with a reason
        failure = _explain(error, client)
    if failure is not None:
        raise _AttemptError(failure)


def _explain(error: Exception, client: OpenAI | AsyncOpenAI) -> _Failure:
    """Return what an error of the client means, without the key."""
    import openai

    secret = Secret(client.api_key)
    where = shown_url(str(client.base_url))
    if isinstance(error, openai.APIStatusError):
        return _explain_status(error, secret)
    if isinstance(error, openai.APITimeoutError):
        reason = f"{where} did not answer within the timeout of {client.timeout} s"
    elif isinstance(error, openai.APIConnectionError) or _is_transport_error(error):
        cause = error.__cause__ or error
        reason = f"the connection to {where} failed: {type(cause).__name__}: {cause}"
    elif isinstance(error, openai.APIError):  # an event of a stream
        reason = f"the server reported: {error.message}"
    elif isinstance(error, UnreadableAnswerError):
        reason = str(error)
    elif isinstance(error, ValueError):
        reason = f"the answer of {where} is not valid JSON"
    else:
        return _Failure(reason=secret.hide_in(f"{type(error).__name__}: {error}"), is_temporary=False)
    return _Failure(reason=secret.hide_in(reason), is_temporary=True)


def _is_transport_error(error: Exception) -> bool:
    """Return whether the connection broke in a stream; clients before 3.0 let such errors through."""
    return any(base.__name__ == "TransportError" for base in type(error).__mro__)


def _explain_status(error: Any, secret: Secret) -> _Failure:
    status = error.status_code
    body = error.body
    message = body.get("message") if isinstance(body, Mapping) else None
    reason = f"status {status}"
    if message:
        reason = f"{reason}: {message}"
    # This code means that the account has no credit left, which no waiting changes.
    is_out_of_credit = isinstance(body, Mapping) and body.get("code") == "insufficient_quota"
    return _Failure(
        reason=secret.hide_in(reason),
        status=status,
        is_temporary=(status in _RETRIED_STATUSES or status >= 500) and not is_out_of_credit,  # noqa: PLR2004 - of HTTP
        retry_after=_parse_retry_after(error.response.headers.get("retry-after")),
    )


def _parse_retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date; None if there is none to read."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        then = parsedate_to_datetime(value)
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return max(0.0, (then - datetime.now(UTC)).total_seconds())


class _Clients:
    """The clients of a model: one for all threads of a process, and one for each event loop."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._process = 0
        self._client: OpenAI | None = None
        self._of_loops: dict[AbstractEventLoop, _LoopClient] = {}

    def sync_client(self) -> OpenAI:
        """Return the client of this process. A process that was forked makes its own connections."""
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
        with self._lock:
            found = self._of_loops.get(loop)
            if found is None:
                found = self._open_in(loop)
        if found.is_new:
            found.is_new = False
            await anext(found.until_loop_closes)
        return found.client

    def _open_in(self, loop: AbstractEventLoop) -> _LoopClient:
        from openai import AsyncOpenAI

        client = AsyncOpenAI(**self._options())  # takes about 30 ms, therefore not for each request
        opened = _LoopClient(client, self._close_with(loop, client))
        for other in [other for other in self._of_loops if other.is_closed()]:
            del self._of_loops[other]
        self._of_loops[loop] = opened
        return opened

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
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _options(self) -> dict[str, Any]:
        key = self._settings.find_key()
        return {
            "api_key": _NO_KEY if key is None else key.reveal(),
            "base_url": self._settings.base_url,
            "timeout": self._settings.timeout,
            "max_retries": 0,
        }


@dataclass
class _LoopClient:
    """The client of an event loop."""

    client: AsyncOpenAI
    until_loop_closes: AsyncGenerator[None, None]
    is_new: bool = True
    """True until the generator has been started."""


def _require_package() -> None:
    from importlib.util import find_spec  # importing the package takes half a second

    if find_spec("openai") is None:
        raise MissingDependencyError("openai", "agents")
