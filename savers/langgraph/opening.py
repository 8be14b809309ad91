"""How the checkpointer, the store and the cache are opened and closed: as LangGraph's own classes are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Generator
from typing import Self

from graphkit.abc import run_in_thread


class _Completed:
    """An awaitable that is done; unlike a coroutine, the caller need not await it."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class ContextMethods:
    """`with` and `async with`, which close the files at the end. A later use opens them again."""

    @abstractmethod
    def _close(self) -> None:
        """Close the files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await run_in_thread(self._close)


class SetupMethod:
    """`setup`, which LangGraph's users call after opening."""

    def setup(self) -> Awaitable[None]:
        """Do nothing; the directory needs no setup.

        Returns:
            An awaitable without effect: the `setup` of LangGraph's asynchronous classes is awaited.
        """
        return _Completed()
