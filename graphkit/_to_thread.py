"""Calls of blocking functions from async code, on threads.

A thread cannot be cancelled. When the asyncio task that waits for one is cancelled, `run_in_thread`
leaves the thread behind, which is right for a read. `finish_in_thread` waits for it first: code of a
node, or a write, must not go on after the run has released its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from asyncio import CancelledError, Future

P = ParamSpec("P")
T = TypeVar("T")
Thunk = Callable[[], Any]
"""A function with its arguments."""
Outcome = tuple[Any, BaseException | None]
"""The result of a call, or the error that it raised."""


async def run_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a worker thread and return its result, without blocking the event loop."""
    import asyncio  # takes 25 ms to import, and only async callers need it

    outcome = await asyncio.to_thread(capture_outcome, partial(call, *args, **kwargs))
    result: T = unwrap_outcome(outcome)
    return result


async def finish_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `run_in_thread`, but a cancellation is raised only when the function has ended."""
    import asyncio

    task = asyncio.ensure_future(asyncio.to_thread(capture_outcome, partial(call, *args, **kwargs)))
    cancelled = await wait_until_done((task,))
    if cancelled is not None:
        raise cancelled
    result: T = unwrap_outcome(task.result())
    return result


async def wait_until_done(tasks: Collection[Future[Any]]) -> CancelledError | None:
    """Wait until all tasks are done; return the last cancellation of the caller in the meantime."""
    import asyncio

    # `shield` would not do: it leaves the task behind, and the caller goes on without it. `wait` is
    # cancelled without cancelling the tasks, so it can be repeated until they end.
    cancelled = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


def capture_outcome(thunk: Thunk) -> Outcome:
    """Call, and return the result or the error."""
    # A future can hold any exception but StopIteration: it would never be done.
    try:
        return thunk(), None
    except BaseException as error:  # noqa: BLE001 - `unwrap_outcome` raises it again
        return None, error


def unwrap_outcome(outcome: Outcome) -> Any:
    """Return the result, or raise the error."""
    result, error = outcome
    if error is not None:
        raise error
    return result
