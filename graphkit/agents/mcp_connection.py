"""McpConnection: one connection to an MCP server, in one event loop, held by a task of its own.

The official client must be entered and left in one task, and cancels that task when a connection
breaks. Calls come from many tasks. Therefore a task of its own holds the client.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, Final, Self

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import CONNECTION_CLOSED, jsonrpc_message_adapter
from pydantic import SecretStr, ValidationError

from graphkit._records.context import setting
from graphkit._wording import describe_error
from graphkit.agents.configuration import McpServerSettings
from graphkit.agents.messages import to_plain
from graphkit.agents.settings import check_key, hide_secrets, shown_url
from graphkit.errors import AgentConfigurationError, McpServerError, McpToolError

_CLOSE_TIMEOUT: Final = 10.0
"""Seconds to wait for the server to shut down before its connection is cut."""
_CONNECT_TIMEOUT: Final = 30.0
_SESSION: Final = "mcp-session-id"
_NOT_FOUND: Final = 404
_SERVER_ERROR: Final = 500


class CallFailedError(Exception):
    """A call brought no result. The message hides the secrets of the server."""

    def __init__(self, reason: str, *, is_refused: bool = False, is_lost: bool = False) -> None:
        super().__init__(reason)
        self.is_refused = is_refused
        """Whether the server has forgotten the session, as after its restart, and has executed nothing."""
        self.is_lost = is_lost
        """Whether the connection broke, so that the server may have executed the call."""


@dataclass
class _Call:
    """A call on its way."""

    is_refused: bool = False
    """Whether the server has refused it because of its session."""
    has_failed: bool = False
    """Whether the server, or a gateway before it, has failed on it (a status from 500)."""


_CALL: Final[ContextVar[_Call | None]] = ContextVar("graphkit_mcp_call", default=None)
"""The call that a request belongs to: the client sends each request in the context of its caller."""


class McpConnection:
    """One connection to an MCP server. Not for use from other event loops.

    Args:
        name: the name of the server in the settings.
        settings: what to start or reach.

    Raises:
        AgentConfigurationError: an environment variable that the settings name is not set, or has no usable token.
    """

    def __init__(self, name: str, settings: McpServerSettings) -> None:
        self._name = name
        self._settings = settings
        self._where = str(settings.command) if settings.url is None else shown_url(settings.url)
        """What is started or reached, for messages; without arguments and variables, which may be secret."""
        self._environment = {
            variable: SecretStr(self._require_variable(variable)) if value is None else value
            for variable, value in settings.env.items()
        }
        """The environment variables that a server gets besides the usual ones."""
        self._headers = dict(settings.headers)
        """The headers of each request, with that of the bearer token."""
        if settings.token_env is not None:
            variable = settings.token_env
            token = check_key(self._require_variable(variable), f"the environment variable {variable}")
            self._headers["authorization"] = SecretStr(f"Bearer {token.get_secret_value()}")
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._has_ended = False
        """Whether the connection or the session is over."""
        self._is_cut = False
        """Whether the server has ended the connection."""
        self._calls: set[asyncio.Future[None]] = set()
        """The ends of the calls on their way."""
        self._failure: BaseException | None = None
        """Why the client has failed, when its task has ended."""
        # A context of its own: the variables of the node that happened to connect are not the connection's.
        self._task = asyncio.create_task(self._hold(), name=f"mcp {name}", context=Context())

    def _require_variable(self, variable: str) -> str:
        value = os.environ.get(variable)
        if not value:
            raise AgentConfigurationError(
                f"the MCP server {self._name!r} needs the environment variable {variable}: set it"
            )
        return value

    async def _hold(self) -> None:
        # The only place where the client is entered and left. If the connection breaks, the client cancels this
        # task, and none of those that call.
        async with Client(self._connect()) as client:
            self._ready.set_result(client)
            await self._stop.wait()

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        """Start the server or reach it, and yield the streams that lead from it and to it."""
        async with AsyncExitStack() as stack:
            transport: AbstractAsyncContextManager[Any]
            if self._settings.url is None:
                program = StdioServerParameters(
                    command=str(self._settings.command),
                    args=list(self._settings.args),
                    env={name: value.get_secret_value() for name, value in self._environment.items()},
                    cwd=self._settings.cwd,
                )
                transport = stdio_client(program)
            else:
                headers = {name: value.get_secret_value() for name, value in self._headers.items()}
                timeout = httpx2.Timeout(_CONNECT_TIMEOUT, read=None)  # each call has a limit of its own
                hooks = {"response": [self._note_response]}
                client = httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks)
                await stack.enter_async_context(client)
                transport = streamable_http_client(self._settings.url, http_client=client)
            read_stream, write_stream = await stack.enter_async_context(transport)
            yield _ReadStream(read_stream, self._note_end), write_stream

    async def _note_response(self, response: httpx2.Response) -> None:
        # The protocol: 404 to a request with a session means that the session is over, and a client that
        # receives it opens a new one. The error of the client says so in words only.
        is_refused = response.status_code == _NOT_FOUND and _SESSION in response.request.headers
        if is_refused:
            self._has_ended = True
        call = _CALL.get()
        if call is not None:
            call.is_refused = call.is_refused or is_refused
            call.has_failed = response.status_code >= _SERVER_ERROR

    def _note_end(self, *, is_cut: bool) -> None:
        self._has_ended = True
        self._is_cut = is_cut

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._ready.done() and not self._has_ended

    async def open(self) -> None:
        """Wait until the server has answered.

        Raises:
            McpServerError: it does not start, answer in time, or speak the protocol. Nothing is left
                running.
        """
        # A server that does not start ends the task; one that hangs ends neither. Both are waited for, and a
        # cancelled caller leaves no process behind.
        either: set[asyncio.Future[Any]] = {self._ready, self._task}
        try:
            await asyncio.wait(either, timeout=self._settings.timeout, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._end()
            raise
        if self._ready.done() and not self._task.done():
            return
        is_late = not self._task.done()
        await self._end()
        if is_late:
            raise McpServerError(self._name, f"{self._where} did not answer within {self._settings.timeout:g} s")
        raise McpServerError(self._name, self._explain_end())

    async def call(self, operation: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
        """Return the result of an operation of the client.

        No error shows the token or a variable of the server.

        Raises:
            CallFailedError: the connection broke, the server refused the call, or its answer is malformed.
            McpToolError: the operation found that a tool had failed.
        """
        # The client sends each request in the context of the task that asks, where `_note_response` finds the call.
        # When the connection ends, it fails each request on its way.
        sent = _Call()
        end = asyncio.get_running_loop().create_future()
        self._calls.add(end)
        try:
            with setting(_CALL, sent):
                return await operation(self._ready.result())
        except Exception as failure:  # noqa: BLE001 - the client may raise anything, and its errors may show a secret
            error = failure
        finally:
            # Also if the caller was cancelled. The connection stays usable for the other calls.
            self._calls.discard(end)
            end.set_result(None)

        # Four ends: the server refused the session, and executed nothing; the tool failed; the connection broke, and
        # the server may have executed the call; or the server answered with an error of its own.
        if sent.is_refused:
            raise CallFailedError(self._explain(error), is_refused=True)
        if isinstance(error, McpToolError):
            raise McpToolError(error.tool, self._hide(error.reason))
        reason = self._explain(error)
        # The code of a connection that broke. Servers use it for errors of their own, too. A request that cannot be
        # written fails before the client has read the end; it reads it in its next turn.
        is_lost = isinstance(error, MCPError) and error.code == CONNECTION_CLOSED
        if is_lost:
            await asyncio.sleep(0)
        if is_lost and not self.is_open:
            await self.close()
            reason = self._explain_end(reason)
        # An error of another kind is an answer that the client cannot read.
        if is_lost or sent.has_failed or not isinstance(error, MCPError):
            reason = f"{reason}; the server may have executed it"
        raise CallFailedError(reason, is_lost=is_lost)

    def _explain(self, error: BaseException) -> str:
        """Return what an error of the client says; the error is not chained, because it may show a secret."""
        return self._hide(str(error) if isinstance(error, MCPError) else describe_error(error))

    def _hide(self, text: str) -> str:
        return hide_secrets(text, [*self._environment.values(), *self._headers.values()])

    async def retire(self) -> None:
        """Close the connection after the calls on it: each learns for itself what became of it."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=_CLOSE_TIMEOUT)
        await self.close()

    async def close(self) -> None:
        """Close the connection; a server that was started ends. Errors of a broken connection are gone."""
        self._has_ended = True
        self._stop.set()
        await asyncio.wait({self._task}, timeout=_CLOSE_TIMEOUT)
        await self._end()

    async def _end(self) -> None:
        """Cancel the task, and wait until the server that it started is gone."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._failure = self._task.exception()  # retrieving it keeps asyncio from logging it

    def _explain_end(self, reason: str = "") -> str:
        """Return why the connection ended, or a reason that is known already if the client does not say."""
        found = self._failure
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        where = self._where
        if found is None:
            return reason or f"{where} ended the connection"
        if isinstance(found, FileNotFoundError | PermissionError):
            return f"cannot start {where}: {found.strerror}"
        if self._is_cut and not self._ready.done():
            return f"{where} ended the connection: is it an MCP server?"
        return self._hide(f"{where}: {describe_error(found)}")


class _ReadStream:
    """What a transport receives. Reports its end, and reads texts that the client refuses."""

    def __init__(self, stream: Any, note_end: Callable[..., None]) -> None:
        self._stream = stream
        self._note_end = note_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> Any:
        # The client leaves the stream before it fails the requests on their way: `call` can rely on the note.
        self._note_end(is_cut=kind is None)
        return await self._stream.__aexit__(kind, *error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        received: SessionMessage | Exception = await self._stream.__anext__()
        if isinstance(received, ValidationError):
            # The client refuses half a surrogate pair, which a server's JSON may have in the name of a file. It drops
            # such a line, so the call would wait for its answer until its timeout. With sendable texts it is read.
            line = received.errors()[0]["input"]
            with suppress(TypeError, ValueError):
                message = jsonrpc_message_adapter.validate_python(to_plain(json.loads(line)), by_name=False)
                received = SessionMessage(message)
        return received
