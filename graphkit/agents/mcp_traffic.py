"""McpTraffic: what became of each request to an MCP server, as the transport saw it.

The errors of the official client do not tell. It reports a broken connection with the error code -32000,
which servers use for errors of their own, and a session that the server has forgotten with a text. So the
streams between client and transport are watched, and the answers over HTTP.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import httpx2
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter
from pydantic import ValidationError

from graphkit.agents.messages import to_plain

if TYPE_CHECKING:
    from mcp.client import Transport

_SESSION: Final = "mcp-session-id"
_NOT_FOUND: Final = 404
"""How a server answers to a session that it does not know; it has executed nothing then."""


@dataclass(eq=False)
class SentRequest:
    """A request that was handed to the transport."""

    is_answered: bool = False
    """Whether the server has answered, with a result or an error."""
    is_broken: bool = False
    """Whether its answer broke off."""
    is_refused: bool = False
    """Whether the server has surely not executed it."""


REQUESTS_OF_CALL: Final[ContextVar[list[SentRequest] | None]] = ContextVar("graphkit_mcp_requests", default=None)
"""Collects the requests that a call makes: the client sends them in the task of the call."""


class McpTraffic:
    """Watches the traffic of one connection.

    Attributes:
        has_answers: whether the server has answered any request.
    """

    def __init__(self) -> None:
        self.has_answers = False
        self._waiting: dict[str, SentRequest] = {}
        """The requests without an answer, by id."""

    @asynccontextmanager
    async def watch(self, transport: Transport) -> AsyncIterator[Any]:
        """Open a transport, and yield its streams watched."""
        async with transport as (read_stream, write_stream):
            yield _ReadStream(read_stream, self._note_received), _WriteStream(write_stream, self._note_sent)

    async def watch_response(self, response: httpx2.Response) -> None:
        """Take note of an answer over HTTP; a hook of the HTTP client."""
        request = self._find(response.request)
        if request is None:
            return
        if response.status_code == _NOT_FOUND and _SESSION in response.request.headers:
            request.is_refused = True
        elif response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _AnswerStream(response.stream, request)  # type: ignore[arg-type]

    def note_error(self, error: BaseException) -> None:
        """Take note of why a connection ended: a request that found no server was not executed."""
        if not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return
        request = self._find(error.request)
        if request is not None:
            request.is_refused = True

    def _find(self, sent: httpx2.Request) -> SentRequest | None:
        """Return the request that was sent over HTTP; None for a message of another kind."""
        if sent.method != "POST":
            return None
        message = json.loads(sent.content)
        return self._waiting.get(str(message.get("id")))

    def _note_sent(self, item: SessionMessage) -> None:
        message = item.message
        if not isinstance(message, JSONRPCRequest):
            return
        request = SentRequest()
        self._waiting[str(message.id)] = request
        requests = REQUESTS_OF_CALL.get()
        if requests is not None:
            requests.append(request)

    def _note_received(self, item: SessionMessage) -> None:
        message = item.message
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            return
        self.has_answers = True
        request = self._waiting.pop(str(message.id), None)
        # After an answer that broke off, or a 404, an error is the client's own.
        if request is not None and not request.is_broken and not request.is_refused:
            request.is_answered = True


class _WatchedStream:
    """A stream between client and transport."""

    def __init__(self, stream: Any, note: Callable[[SessionMessage], None]) -> None:
        self._stream = stream
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._stream.__aexit__(*error)


class _WriteStream(_WatchedStream):
    async def send(self, item: SessionMessage) -> None:
        self._note(item)
        await self._stream.send(item)


class _ReadStream(_WatchedStream):
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        item = await self._stream.__anext__()
        if isinstance(item, Exception):
            item = _parse_again(item)
        if not isinstance(item, Exception):
            self._note(item)
        received: SessionMessage | Exception = item
        return received


def _parse_again(error: Exception) -> SessionMessage | Exception:
    """Return the message of a line that the client could not parse, with sendable texts; else the error.

    The client refuses half a surrogate pair, which a server's JSON may have in the name of a file. It
    drops such a line, so the call would wait for its answer until its timeout.
    """
    if not isinstance(error, ValidationError):
        return error
    line = error.errors()[0]["input"]
    try:
        message = jsonrpc_message_adapter.validate_python(to_plain(json.loads(line)), by_name=False)
    except (TypeError, ValueError):
        return error
    return SessionMessage(message)


class _AnswerStream(httpx2.AsyncByteStream):
    """The events that answer a request. The client leaves them when it has found the answer."""

    def __init__(self, stream: httpx2.AsyncByteStream, request: SentRequest) -> None:
        self._stream = stream
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                yield chunk
        except httpx2.TransportError:
            self._request.is_broken = True
            raise
        self._request.is_broken = True

    async def aclose(self) -> None:
        await self._stream.aclose()
