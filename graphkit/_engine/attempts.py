"""One call of the user's, with what surrounds it: wrap hooks, retries, a timeout.

A function is of one of four kinds: plain or asynchronous, and a generator or not. So is what a hook makes of it:

- asynchronous, if the hook or anything inside it is. An asynchronous hook may await `call()` whatever is inside; what
  is not asynchronous runs on a thread then. A plain hook around something asynchronous gets an awaitable, which it may
  return; it runs on the event loop, and must not block it.
- a generator, if the hook or anything inside it is. `call()` then gives an iterator, which a hook may return, or go
  through as a generator itself. What a plain generator returns is its update, so `return (yield from call())` keeps
  it; an asynchronous one cannot return, and its update comes last, as a Command.

Hooks that only sometimes call what is inside are welcome: whatever one returns is made what was foreseen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, final

from graphkit._engine.call_kinds import RUN, Chunks, on_thread, on_threads
from graphkit._engine.timeouts import RUN_IN_TIME, Time
from graphkit._plan.topology import Call
from graphkit._records.context import CURRENT_NODE_CONTEXT, NodeContext
from graphkit._records.output import ABSENT

if TYPE_CHECKING:
    from graphkit._plan.retry import RetryPolicy


def compose_call(
    call: Call, node_id: str, wraps: Sequence[Call], retry: RetryPolicy | None = None, timeout: float | None = None
) -> Call:
    """A call with everything around it: the wrap hooks, inside them the retries, inside those the timeout.

    A plain function that is late is abandoned, for a thread cannot be stopped: it may go on, but what it returns,
    records and dispatches from then on is dropped. An asynchronous one is cancelled. The time of a generator is what
    it takes itself for all its chunks, not what is done with them in between.

    Args:
        call: the action of a node, or the condition of an edge.
        node_id: the node, or the edge's source.
        wraps: called as hook(node_id, state, config, call); the first is outermost.
        retry: when to run it again. A generator starts over, so chunks handed out already may come again.
        timeout: seconds for one attempt. What is late fails with a TimeoutError, which is retried as any error is.

    Returns:
        The call itself if there is nothing to add; else one that takes the config, and pickles if its parts do.

    Raises:
        ValueError: the timeout is no positive number of seconds.
    """
    if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"the timeout of {node_id!r} must be a number of seconds above 0, not {timeout!r}")
    hooks = [*wraps] if retry is None else [*wraps, Call(retry.as_hook(), takes_config=True)]
    if not hooks and timeout is None:
        return call
    whole = Call(_Composed(call, node_id, tuple(hooks), timeout), takes_config=True)
    whole.is_async = any(part.is_async for part in (call, *hooks))
    whole.is_generator = any(part.is_generator for part in (call, *hooks))
    return whole


@final
class _Composed:
    """What a composed call calls; travels to other processes."""

    __slots__ = ("call", "hooks", "node_id", "timeout")

    def __init__(self, call: Call, node_id: str, hooks: tuple[Call, ...], timeout: float | None) -> None:
        self.call = call
        self.node_id = node_id
        self.hooks = hooks
        self.timeout = timeout

    def __call__(self, state: Any, config: Any) -> Any:
        part: _Part = _Function(self.call, self.node_id, self.timeout)
        for hook in reversed(self.hooks):
            part = _Hooked(hook, self.node_id, part)
        return part.run(state, config)


class _Part(Protocol):
    """Something that can be run, and of which kind it is."""

    is_async: bool
    is_generator: bool

    def run(self, state: Any, config: Any) -> Any:
        """Run it: a value, an awaitable of one, a generator or an asynchronous generator, as its kind says."""
        ...


@final
class _Hooked:
    """A hook around a part: a part again."""

    __slots__ = ("hook", "inside", "is_async", "is_generator", "needs_thread", "node_id")

    def __init__(self, hook: Call, node_id: str, inside: _Part) -> None:
        self.hook = hook
        self.node_id = node_id
        self.inside = inside
        self.is_async = hook.is_async or inside.is_async
        self.is_generator = hook.is_generator or inside.is_generator
        self.needs_thread = hook.is_async and not inside.is_async

    def run(self, state: Any, config: Any) -> Any:
        call = _Inside(self.inside, state, config, needs_thread=self.needs_thread)
        start = partial(self.hook.function, self.node_id, state, config, call)
        return RUN[self.is_async, self.is_generator](start)


@final
class _Inside:
    """What a hook gets as `call`: call(), call(state) and call(state, config) run what is inside the hook.

    What is left out is as the hook was given it. Called again, it takes back what the visit was asked and handed out
    inside it.
    """

    __slots__ = ("before", "config", "needs_thread", "part", "state")

    def __init__(self, part: _Part, state: Any, config: Any, *, needs_thread: bool) -> None:
        self.part = part
        self.state = state
        self.config = config
        self.needs_thread = needs_thread
        self.before: tuple[int, Sequence[Any]] | None = None
        """How often the visit had asked, and what it had handed out, when this was called first."""

    def __call__(self, state: Any = ABSENT, config: Any = ABSENT) -> Any:
        visit = CURRENT_NODE_CONTEXT.get()
        if visit is not None:
            self._begin(visit)
        part = self.part
        state = self.state if state is ABSENT else state
        config = self.config if config is ABSENT else config
        start = partial(part.run, state, config)
        if self.needs_thread:
            return Chunks(on_threads(start())) if part.is_generator else on_thread(start)
        return Chunks(start()) if part.is_async and part.is_generator else start()

    def _begin(self, visit: NodeContext) -> None:
        if self.before is None:
            self.before = visit.interrupt_calls, tuple(visit.outputs)
            return
        asked, outputs = self.before
        kept = [one for one in visit.outputs if any(one is other for other in outputs)]
        visit.start_attempt(visit.attempt + 1)
        visit.interrupt_calls = asked
        visit.outputs.extend(kept)


@final
class _Function:
    """The function itself: each run is an attempt."""

    __slots__ = ("call", "is_async", "is_generator", "node_id", "timeout")

    def __init__(self, call: Call, node_id: str, timeout: float | None) -> None:
        self.call = call
        self.is_async = call.is_async
        self.is_generator = call.is_generator
        self.node_id = node_id
        self.timeout = timeout

    def run(self, state: Any, config: Any) -> Any:
        start = partial(self.call.run, state, config)
        if self.timeout is None:
            return RUN[self.is_async, self.is_generator](start)
        return RUN_IN_TIME[self.is_async, self.is_generator](start, Time(self.node_id, self.timeout))
