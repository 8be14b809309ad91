"""McpConnection: one connection to an MCP server, in one event loop, held by a task of its own.

The official client must be entered and left in one task, and cancels that task when a connection
breaks. Calls come from many tasks. Therefore one task holds the client, and each call waits for its
result or for the end of that task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context, copy_context
from typing import Any, Final

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from graphkit._wording import describe_error
from graphkit.agents.mcp_settings import McpServer
from graphkit.agents.mcp_traffic import REQUESTS_OF_CALL, McpTraffic, SentRequest
from graphkit.agents.secret import Secret
from graphkit.errors import McpServerError, McpToolError

_CLOSE_TIMEOUT: Final = 10.0
"""How long a server may take to take leave, in seconds, before its connection is cut."""
_CONNECT_TIMEOUT: Final = 30.0


class ConnectionLostError(Exception):
    """The connection broke, or was found broken, in a call.

    Attributes:
        reason: what went wrong.
        was_sent: False if the server has surely not got the call.
    """

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent


class RequestFailedError(Exception):
    """The server refused a request, or its answer is malformed. The connection is usable."""


class McpConnection:
    """One connection to an MCP server. Not for use from other event loops.

    Raises:
        AgentConfigurationError: an environment variable that the settings name is not set.
    """

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._settings = server.settings
        self._environment = server.environment()
        self._token = server.token()
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._traffic = McpTraffic()
        # A context of its own: the variables of the node that happened to connect are not the connection's.
        self._task = asyncio.create_task(self._hold(), name=f"mcp {server.name}", context=Context())

    async def _hold(self) -> None:
        transport = self._traffic.watch(self._make_transport())
        async with Client(transport) as client:
            self._ready.set_result(client)
            await self._stop.wait()

    def _make_transport(self) -> AbstractAsyncContextManager[Any]:
        if self._settings.url is not None:
            return _http_transport(self._settings.url, self._token, self._traffic)
        program = StdioServerParameters(
            command=str(self._settings.command),
            args=list(self._settings.args),
            env=self._environment,
            cwd=self._settings.cwd,
        )
        return stdio_client(program)

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._ready.done() and not self._task.done() and not self._stop.is_set()

    async def open(self) -> None:
        """Wait until the server has answered.

        Raises:
            McpServerError: it does not start, answer in time, or speak the protocol. Nothing is left
                running.
        """
        either: set[asyncio.Future[Any]] = {self._ready, self._task}
        try:
            await asyncio.wait(either, timeout=self._settings.timeout, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._end()
            raise
        if self.is_open:
            return
        is_late = not self._task.done()
        await self._end()
        name = self._server.name
        if is_late:
            raise McpServerError(name, f"{self._server.where} did not answer within {self._settings.timeout:g} s")
        raise McpServerError(name, self._explain_end())

    async def call(self, operation: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
        """Return the result of an operation of the client.

        No error shows the token or a variable of the server.

        Raises:
            ConnectionLostError: the connection broke.
            RequestFailedError: the server answered with an error, or with something malformed.
            McpToolError: the operation found that a tool had failed.
        """
        if not self.is_open:
            raise ConnectionLostError("the connection is closed", was_sent=False)
        requests: list[SentRequest] = []
        context = copy_context()
        context.run(REQUESTS_OF_CALL.set, requests)
        call = asyncio.get_running_loop().create_task(operation(self._ready.result()), context=context)
        try:
            await asyncio.wait({call, self._task}, return_when=asyncio.FIRST_COMPLETED)
            is_over = call.done() and not call.cancelled()
            error = call.exception() if is_over else None
            if is_over and error is None:
                return call.result()
        finally:
            call.cancel()
            await asyncio.wait({call})
            _take_error(call)

        if error is not None and not _is_connection_lost(error, requests):
            raise self._explain(error)
        await self.close()
        for cause in _leaves(_take_error(self._task)):
            self._traffic.note_error(cause)
        was_sent = any(not request.is_refused for request in requests)
        raise ConnectionLostError(self._explain_end(), was_sent=was_sent)

    def _explain(self, error: BaseException) -> Exception:
        """Return the error for an operation that failed; the one of the client is not chained."""
        if isinstance(error, McpToolError):
            return McpToolError(error.tool, self._hide_secrets(error.reason))
        text = str(error) if isinstance(error, MCPError) else describe_error(error)
        return RequestFailedError(self._hide_secrets(text))

    def _hide_secrets(self, text: str) -> str:
        """Return a text of the server without the token and the variables that it was given."""
        values = sorted(self._environment.values(), key=len, reverse=True)  # one may contain another
        for value in values:
            text = Secret(value).hide_in(text)
        return text if self._token is None else self._token.hide_in(text)

    async def close(self) -> None:
        """Close the connection; a server that was started ends. Errors of a broken connection are gone."""
        self._stop.set()
        await asyncio.wait({self._task}, timeout=_CLOSE_TIMEOUT)
        await self._end()

    async def _end(self) -> None:
        """Cancel the task, and wait until the server that it started is gone."""
        self._task.cancel()
        await asyncio.wait({self._task})
        _take_error(self._task)

    def _explain_end(self) -> str:
        causes = _leaves(_take_error(self._task))
        found = next(causes, None)
        where = self._server.where
        if found is None:
            return f"{where} ended the connection"
        if isinstance(found, FileNotFoundError | PermissionError):
            return f"cannot start {where}: {found.strerror}"
        if isinstance(found, MCPError) and not self._traffic.has_answers:
            return f"{where} ended the connection without an answer: is it an MCP server?"
        return self._hide_secrets(f"{where}: {describe_error(found)}")


def _take_error(task: asyncio.Future[Any]) -> BaseException | None:
    """Return why a task failed, or None. Python reports an error that nothing takes."""
    if not task.done() or task.cancelled():
        return None
    return task.exception()


def _leaves(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the errors in groups of errors."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    elif error is not None:
        yield error


def _is_connection_lost(error: BaseException, requests: Sequence[SentRequest]) -> bool:
    """Return whether an error of a call is the client's own, and not the answer of the server."""
    is_answered = bool(requests) and requests[-1].is_answered
    return isinstance(error, MCPError) and not is_answered


@asynccontextmanager
async def _http_transport(url: str, token: Secret | None, traffic: McpTraffic) -> AsyncIterator[Any]:
    headers = {} if token is None else {"authorization": f"Bearer {token.reveal()}"}
    timeout = httpx2.Timeout(_CONNECT_TIMEOUT, read=None)  # each call has a limit of its own
    hooks = {"response": [traffic.watch_response]}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams
