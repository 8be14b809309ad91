"""One call of user code with its wrap hooks, retries and timeout.

A function is of one of four kinds: sync or async, and a generator or not. So is a hook's result:

- It is async if the hook or anything inside it is. An async hook may always await `call()`; if what
  is inside is sync, it runs on a thread. A sync hook around something async gets an awaitable,
  which it may return. Such a hook runs on the event loop and must not block it.
- It is a generator if the hook or anything inside it is. `call()` then returns an iterator, which
  the hook may return, or iterate over as a generator itself. The return value of a sync generator
  is its update, so `return (yield from call())` keeps it. An async generator cannot return a value;
  its update comes last, as a Command.

A hook need not call what is inside. Its result is converted to the kind that the caller expects.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

from graphkit._engine.call_kinds import RUN, AwaitableChunks, call_on_thread, iterate_on_thread
from graphkit._engine.timeouts import RUN_IN_TIME, TimeBudget
from graphkit._plan.topology import Call
from graphkit._records.context import CURRENT_NODE_CONTEXT, NodeContext
from graphkit._records.output import ABSENT

if TYPE_CHECKING:
    from graphkit._plan.retry import RetryPolicy


def compose_call(
    call: Call,
    node_id: str,
    wraps: Sequence[Call],
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
    *,
    kind: str = "node",
) -> Call:
    """Compose a call with its wrap hooks, inside them the retries, inside those the timeout.

    A sync function that exceeds its timeout is abandoned, because a thread cannot be stopped: it
    may go on, but what it returns, records and dispatches from then on is dropped. An async
    function is cancelled. The timeout of a generator covers the time that it takes itself for all
    its chunks, not what the caller does between them.

    Args:
        call: the action of a node, or the condition of an edge.
        node_id: the node, or the edge's source.
        wraps: called as hook(node_id, state, config, call); the first is outermost.
        retry: when to call again. A generator starts over, so chunks may be emitted again.
        timeout: seconds for one attempt. An attempt that exceeds it fails with a TimeoutError,
            which is retried like any other error.
        kind: what the error of a timeout calls it.

    Returns:
        The call itself if there is nothing to add; otherwise a call that takes the config, and that
        pickles if its parts do.

    Raises:
        ValueError: the timeout is not a positive number of seconds.
    """
    _check_timeout(node_id, timeout)
    hooks = [*wraps]
    if retry is not None:
        hooks.append(Call(retry.as_hook(), takes_config=True))
    if not hooks and timeout is None:
        return call
    composed = Call(_ComposedCall(call, node_id, tuple(hooks), timeout, kind), takes_config=True)
    parts = (call, *hooks)
    composed.is_async = any(part.is_async for part in parts)
    composed.is_generator = any(part.is_generator for part in parts)
    # A sync hook expects what the sync form returns.
    if call.async_form is not None and all(wrap.is_async for wrap in wraps):
        composed.async_form = compose_call(call.async_form, node_id, wraps, retry, timeout, kind=kind)
    return composed


def _check_timeout(node_id: str, timeout: float | None) -> None:
    if timeout is None:
        return
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"the timeout of {node_id!r} must be a number of seconds above 0, not {timeout!r}")


@final
class _ComposedCall:
    """The function of a composed call; is sent to other processes."""

    __slots__ = ("call", "hooks", "kind", "node_id", "timeout")

    def __init__(self, call: Call, node_id: str, hooks: tuple[Call, ...], timeout: float | None, kind: str) -> None:
        self.call = call
        self.kind = kind
        self.node_id = node_id
        self.hooks = hooks
        self.timeout = timeout

    def __call__(self, state: Any, config: Any) -> Any:
        layer: _Layer = _Attempt(self.call, self.node_id, self.timeout, self.kind)
        for hook in reversed(self.hooks):
            layer = _HookLayer(hook, self.node_id, layer)
        return layer.run(state, config)


class _Layer(Protocol):
    """The function, or a hook with everything inside it."""

    is_async: bool
    is_generator: bool

    def run(self, state: Any, config: Any) -> Any:
        """Run it.

        Returns:
            A value, an awaitable of one, a generator or an async generator, depending on the kind.
        """
        ...


@final
class _HookLayer:
    """A hook around an inner layer."""

    __slots__ = ("hook", "inner", "is_async", "is_generator", "needs_thread", "node_id")

    def __init__(self, hook: Call, node_id: str, inner: _Layer) -> None:
        self.hook = hook
        self.node_id = node_id
        self.inner = inner
        self.is_async = hook.is_async or inner.is_async
        self.is_generator = hook.is_generator or inner.is_generator
        self.needs_thread = hook.is_async and not inner.is_async

    def run(self, state: Any, config: Any) -> Any:
        call = _InnerCall(self.inner, state, config, needs_thread=self.needs_thread)
        thunk = partial(self.hook.function, self.node_id, state, config, call)
        return RUN[self.is_async, self.is_generator](thunk)


class _FirstCall(NamedTuple):
    """The node context as it was when a hook called what is inside for the first time."""

    interrupt_calls: int
    outputs: tuple[Any, ...]


@final
class _InnerCall:
    """The `call` that a hook receives: call(), call(state) or call(state, config).

    It runs what is inside the hook. An omitted argument is as the hook received it. A second call
    starts another attempt: it resets the interrupts and outputs of the node context to what they
    were before the first call.
    """

    __slots__ = ("config", "first_call", "layer", "needs_thread", "state")

    def __init__(self, layer: _Layer, state: Any, config: Any, *, needs_thread: bool) -> None:
        self.layer = layer
        self.state = state
        self.config = config
        self.needs_thread = needs_thread
        self.first_call: _FirstCall | None = None

    def __call__(self, state: Any = ABSENT, config: Any = ABSENT) -> Any:
        context = CURRENT_NODE_CONTEXT.get()
        if context is not None:
            self._start_attempt(context)
        if state is ABSENT:
            state = self.state
        if config is ABSENT:
            config = self.config
        layer = self.layer
        thunk = partial(layer.run, state, config)
        if self.needs_thread:
            if layer.is_generator:
                return AwaitableChunks(iterate_on_thread(thunk()))
            return call_on_thread(thunk)
        if layer.is_async and layer.is_generator:
            return AwaitableChunks(thunk())
        return thunk()

    def _start_attempt(self, context: NodeContext) -> None:
        first = self.first_call
        if first is None:
            self.first_call = _FirstCall(context.interrupt_calls, tuple(context.outputs))
            return
        # By identity: outputs may compare equal, or not at all.
        known = {id(output) for output in first.outputs}
        kept = [output for output in context.outputs if id(output) in known]
        context.start_attempt(context.attempt + 1)
        context.interrupt_calls = first.interrupt_calls
        context.outputs.extend(kept)


@final
class _Attempt:
    """The function itself: each run is an attempt."""

    __slots__ = ("call", "is_async", "is_generator", "kind", "node_id", "timeout")

    def __init__(self, call: Call, node_id: str, timeout: float | None, kind: str) -> None:
        self.call = call
        self.kind = kind
        self.is_async = call.is_async
        self.is_generator = call.is_generator
        self.node_id = node_id
        self.timeout = timeout

    def run(self, state: Any, config: Any) -> Any:
        thunk = partial(self.call.run, state, config)
        function_kind = (self.is_async, self.is_generator)
        if self.timeout is None:
            return RUN[function_kind](thunk)
        budget = TimeBudget(self.node_id, self.timeout, self.kind)
        return RUN_IN_TIME[function_kind](thunk, budget)
