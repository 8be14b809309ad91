"""What the nodes and edges made of functions share: calling a function, and telling the observers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from graphkit._plan.events import EVENTS
from graphkit._plan.topology import Call
from graphkit._records.context import CURRENT_NODE_CONTEXT
from graphkit.errors import GraphRunnerError


def name_of(function: Callable[..., Any]) -> str:
    """What observers are told of a function: its `name`, or the name it was defined with."""
    name = getattr(function, "name", None) or getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def plain_call(function: Callable[..., Any]) -> Call:
    """A function that is to be called once and returns.

    Raises:
        TypeError: it cannot be called, or is a generator.
    """
    call = Call(function)
    if call.is_generator:
        raise TypeError(f"{name_of(function)} is a generator, which only a node of its own can be")
    return call


def run(call: Call, value: Any, config: Any) -> Any:
    """Call it, with the config if it takes one."""
    return settled(call.run(value, config), name_of(call.function))


async def arun(call: Call, value: Any, config: Any) -> Any:
    """Call it, in a thread if it is synchronous, and await what it gives."""
    import asyncio  # 25 ms to import, and only asynchronous runs need it

    result = call.run(value, config) if call.is_async else await asyncio.to_thread(call.run, value, config)
    return await result if inspect.isawaitable(result) else result


def settled(result: Any, name: str) -> Any:
    """What a synchronous call returned.

    Raises:
        GraphRunnerError: it is to be awaited.
    """
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise GraphRunnerError(f"{name} gave an awaitable; define it with async def, and run the graph with ainvoke")


def note(type_: str, **data: Any) -> None:
    """Tell the observers of the run that the calling code is a node of, at the type's usual level."""
    visit = CURRENT_NODE_CONTEXT.get()
    if visit is not None:
        visit.post_event(type_, EVENTS[type_].level, data)


@contextmanager
def told(what: str, **data: Any) -> Iterator[None]:
    """Tell the observers that something starts and completes, with its error; a stop for a human completes nothing."""
    note(f"{what}.start", **data)
    try:
        yield
    except Exception as error:
        note(f"{what}.complete", **data, error=f"{type(error).__name__}: {error}")
        raise
    note(f"{what}.complete", **data, error=None)
