"""Calls of blocking functions from async code."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a worker thread and return its result, without blocking the event loop."""
    import asyncio  # takes 25 ms to import, and only async callers need it

    return await asyncio.to_thread(call, *args, **kwargs)
