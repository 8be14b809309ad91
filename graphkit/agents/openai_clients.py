"""Clients: the official clients of one model, and when they are made and closed."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from graphkit.agents.model_settings import ModelSettings

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from openai import AsyncOpenAI, OpenAI

_NO_KEY: Final = "-"
"""What the client gets where the server needs no key: it insists on one."""


class Clients:
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
        until_loop_closes = self._close_with(loop, client)
        opened = _LoopClient(client, until_loop_closes)
        self._forget_closed_loops()
        self._of_loops[loop] = opened
        return opened

    def _forget_closed_loops(self) -> None:
        for loop in list(self._of_loops):
            if loop.is_closed():
                del self._of_loops[loop]

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


@dataclass
class _LoopClient:
    """The client of an event loop."""

    client: AsyncOpenAI
    until_loop_closes: AsyncGenerator[None, None]
    is_new: bool = True
    """True until the generator has been started."""
