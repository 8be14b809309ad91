"""McpServers: the tools of MCP servers, from settings. Connects on first use, and again when needed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NoReturn

from graphkit.agents.configuration import AgentConfig, McpServerSettings
from graphkit.agents.messages import to_plain
from graphkit.agents.settings import require_package
from graphkit.agents.tools import Tool
from graphkit.errors import AgentConfigurationError, McpServerError, McpToolError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from mcp import Client

    from graphkit.agents.mcp_connection import McpConnection

_LONGEST_NAME: Final = 64
"""In characters; the protocol of chat completions accepts no longer name of a tool."""
_MOST_PAGES: Final = 1000
"""A server that lists more pages of tools than this repeats itself."""


class McpServers:
    """The tools of MCP servers, from settings.

    Nothing is started or connected before it is needed. A connection belongs to an event loop, serves
    all calls of this loop, and ends with it or with `aclose`. The next use connects again: after a
    restart of this process, in another loop, and after a connection broke.

    A call is sent once. If the connection breaks after that, the call fails, because the server may have
    executed it. It is sent again, once, if the server declares the tool to be read-only or idempotent, or has
    refused the call because of a session that is over.

    Args:
        servers: settings by name: `{name: {"command", "args", "env"} | {"url"}}`; `McpServerSettings`
            lists all keys.

    Raises:
        AgentConfigurationError: the settings are wrong; the message names the server and the key.
        MissingDependencyError: the package mcp is not installed.
    """

    def __init__(self, servers: Mapping[str, Any]) -> None:
        checked = AgentConfig.from_dict({"mcp_servers": servers}).mcp_servers
        if checked:
            require_package("mcp")
        self._servers = [_Server(name, settings) for name, settings in checked.items()]

    def __reduce__(self) -> NoReturn:
        raise TypeError("McpServers cannot be pickled: build them again from their settings")

    def tools(self) -> list[Tool]:
        """Return the tools of all servers; see `atools`. The connections are closed again.

        Raises:
            RuntimeError: an event loop is running in this thread.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with asyncio.Runner() as runner:
                try:
                    return runner.run(self.atools())
                finally:
                    runner.run(self.aclose())
        raise RuntimeError(
            "MCP servers cannot be asked for their tools while an event loop is running in this thread: await atools() "
            "instead of tools(), and abuild() instead of build(); for a file, await "
            "AgentBuilderDirector(load_agent_config(path)).abuild()"
        )

    async def atools(self) -> list[Tool]:
        """Return the tools of all servers, in the order of the settings and of each server.

        Their functions are asynchronous. They return the text of the result, or a list of content
        blocks if it is not only text.

        Raises:
            McpServerError: a server cannot be used.
            AgentConfigurationError: two servers have a tool of the same name, or a name in the settings
                is not a tool of the server.
        """
        lists = await asyncio.gather(*(server.list_tools() for server in self._servers))
        owners: dict[str, str] = {}
        for server, found in zip(self._servers, lists, strict=True):
            for tool in found:
                owner = owners.setdefault(tool.name, server.name)
                if owner != server.name:
                    raise AgentConfigurationError(
                        f"the MCP servers {owner!r} and {server.name!r} both have a tool {tool.name!r}: "
                        "give one of them a prefix, or choose its tools"
                    )
        return [*chain.from_iterable(lists)]

    async def aclose(self) -> None:
        """Close the connections of the running event loop; servers that were started end.

        The tools stay usable: the next call connects again.
        """
        await asyncio.gather(*(server.close() for server in self._servers))


@dataclass
class _LoopConnection:
    """The connection of an event loop to a server."""

    lock: asyncio.Lock
    """Held by the task that opens it."""
    connection: McpConnection | None = None


class _Server:
    """One server: its tools, and a connection to it for each event loop."""

    def __init__(self, name: str, settings: McpServerSettings) -> None:
        self.name = name
        self._settings = settings
        self._loops: dict[AbstractEventLoop, _LoopConnection] = {}

    async def list_tools(self) -> list[Tool]:
        """Return the tools that the settings choose; see `McpServers.atools`."""
        settings = self._settings
        found = await self._call("list its tools", _list_all_tools, may_repeat=True, within=settings.timeout)
        by_name = {described.name: described for described in found}
        # A misspelt name in requires_approval would let calls pass that a human has to see.
        for key in ("tools", "requires_approval"):
            names = getattr(settings, key)
            unknown = [] if isinstance(names, bool | None) else [name for name in names if name not in by_name]
            if unknown:
                known = ", ".join(sorted(by_name)) or "none"
                raise AgentConfigurationError(
                    f"the MCP server {self.name!r}: {key} names {unknown[0]!r}, which is not a tool of the server; "
                    f"it has {known}"
                )
        wanted = by_name if settings.tools is None else settings.tools
        return [self._make_tool(by_name[name]) for name in wanted]

    def _make_tool(self, described: Any) -> Tool:
        name = described.name
        hints = described.annotations
        may_repeat = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
        approval = self._settings.requires_approval
        offered = re.sub(r"[^A-Za-z0-9_-]", "_", self._settings.prefix + name)  # what the protocol allows

        async def call(**arguments: Any) -> Any:
            sendable = to_plain(arguments)

            async def call_tool(client: Client) -> Any:
                result = await client.call_tool(name, sendable)
                return _read_result(name, result)

            return await self._call(f"call {name}", call_tool, may_repeat=may_repeat)

        return Tool(
            name=offered[:_LONGEST_NAME],
            description=described.description or "",
            parameters={"type": "object", "properties": {}, **described.input_schema},  # models insist on both
            function=call,
            is_async=True,
            requires_approval=approval if isinstance(approval, bool) else name in approval,
            **self._settings.call_options(name),
        )

    async def _call(
        self,
        what: str,
        operation: Callable[[Client], Coroutine[Any, Any, Any]],
        *,
        may_repeat: bool,
        within: float | None = None,
    ) -> Any:
        """Return the result of an operation, on a connection that is there or on a new one.

        `within` limits the time of an attempt, in seconds.
        """
        from graphkit.agents.mcp_connection import CallFailedError

        # A call is sent once. It is sent again, once, if that cannot have a second effect: the server refused the
        # session, or has declared the tool read-only or idempotent. Never because of the text of an error.
        is_repeated = False
        while True:
            connection = await self._connect()
            try:
                async with asyncio.timeout(within):
                    return await connection.call(operation)
            except CallFailedError as error:
                has_no_effect = error.is_refused or (error.is_lost and may_repeat)
                if is_repeated or not has_no_effect:
                    raise McpServerError(self.name, f"could not {what}: {error}") from error
            except TimeoutError as error:
                raise McpServerError(self.name, f"could not {what} within {within} s") from error
            is_repeated = True

    async def _connect(self) -> McpConnection:
        """Return the connection of the running loop; open one if there is none."""
        from graphkit.agents.mcp_connection import McpConnection

        for loop in list(self._loops):
            if loop.is_closed():
                self._loops.pop(loop, None)
        held = self._loops.setdefault(asyncio.get_running_loop(), _LoopConnection(asyncio.Lock()))
        # The calls of a message arrive at once. The first opens the connection, and the others wait for it here
        # instead of starting the server again.
        async with held.lock:
            found = held.connection
            if found is None or not found.is_open:
                if found is not None:
                    await found.retire()
                found = McpConnection(self.name, self._settings)
                await found.open()
                held.connection = found
            return found

    async def close(self) -> None:
        """Close the connection of the running loop."""
        held = self._loops.get(asyncio.get_running_loop())
        if held is None or held.connection is None:
            return
        # The entry stays: a call may be opening another connection, which the next `close` must find.
        connection = held.connection
        held.connection = None
        await connection.close()


async def _list_all_tools(client: Client) -> list[Any]:
    found: list[Any] = []
    cursor = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


def _read_result(tool: str, result: Any) -> Any:
    """Return what a tool returned: its text, or its content blocks.

    Raises:
        McpToolError: the server reports that the tool failed.
    """
    blocks = result.content
    texts = [block.text for block in blocks if block.type == "text"]
    text = "\n".join(texts)
    if result.is_error:
        raise McpToolError(tool, text or "it gave no reason")
    if not blocks and result.structured_content is not None:
        return result.structured_content
    if len(texts) == len(blocks):
        return text
    return [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in blocks]
