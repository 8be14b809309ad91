"""Calls a user's function, and reports what happens to the observers of the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from graphkit._plan.events import EVENTS
from graphkit._plan.topology import Call
from graphkit._records.context import CURRENT_NODE_CONTEXT
from graphkit.errors import GraphRunnerError


def get_name(function: Callable[..., Any]) -> str:
    """Return the name of a function for events and messages: its `name` or its `__name__`."""
    name = getattr(function, "name", None) or getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def make_call(function: Callable[..., Any]) -> Call:
    """Return a Call for a function that returns once.

    Raises:
        TypeError: it cannot be called, or is a generator.
    """
    call = Call(function)
    if call.is_generator:
        raise TypeError(f"{get_name(function)} is a generator: add it to the graph as a node")
    return call


def run_call(call: Call, value: Any, config: Any) -> Any:
    """Call a function, with the config if it takes one."""
    return require_result(call.run(value, config), get_name(call.function))


async def arun_call(call: Call, value: Any, config: Any) -> Any:
    """Call a function, in a thread if it is synchronous, and await its result."""
    import asyncio  # 25 ms to import, and only asynchronous runs need it

    if call.is_async:
        result = call.run(value, config)
    else:
        result = await asyncio.to_thread(call.run, value, config)
    return await result if inspect.isawaitable(result) else result


def require_result(result: Any, name: str) -> Any:
    """Return the result of a synchronous call.

    Raises:
        GraphRunnerError: it is an awaitable.
    """
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise GraphRunnerError(
        f"{name} returned an awaitable; define it with async def, and run the graph with ainvoke",
    )


def notify(type_: str, **data: Any) -> None:
    """Send an event to the observers of the run, at the usual level of its type.

    Code outside a node has no run, and sends nothing.
    """
    context = CURRENT_NODE_CONTEXT.get()
    if context is not None:
        context.post_event(type_, EVENTS[type_].level, data)


@contextmanager
def notify_start_and_end(subject: str, **data: Any) -> Iterator[None]:
    """Send `<subject>.start` and, at the end, `<subject>.complete` with the error.

    After a stop for a human nothing has completed, so only the start is sent.
    """
    notify(f"{subject}.start", **data)
    try:
        yield
    except Exception as error:
        notify(f"{subject}.complete", **data, error=f"{type(error).__name__}: {error}")
        raise
    notify(f"{subject}.complete", **data, error=None)
