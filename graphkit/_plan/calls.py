"""One call of user code with its wrap hooks, retries and timeout.

The hooks are outermost, inside them are the retries, and inside those the timeout: a hook sees one
call for each node execution, however many attempts it takes.

A function is of one of four kinds: sync or async, and a generator or not. So is a hook's result:

- It is async if the hook or anything inside it is. An async hook may always await `call()`; if what
  is inside is sync, it runs on a thread. A sync hook around something async gets an awaitable,
  which it may return. Such a hook runs on the event loop and must not block it.
- It is a generator if the hook or anything inside it is. `call()` then returns an iterator, which
  the hook may return, or iterate over as a generator itself. The return value of a sync generator
  is its update, so `return (yield from call())` keeps it. An async generator cannot return a value;
  its update comes last, as a Command.

A hook need not call what is inside. Its result is converted to the kind that the caller expects.

A timeout fails the attempt that exceeds it, and what the attempt does from then on is dropped. An
async attempt is cancelled. A sync one runs on a thread of its own and is abandoned, because a thread
cannot be stopped.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, nullcontext
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from queue import Empty
from threading import Lock
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, Self, final

from graphkit._plan.topology import Call
from graphkit._records.context import ABSENT, CURRENT_NODE_CONTEXT, Journal, NodeContext, post_event
from graphkit._records.output import Command
from graphkit._to_thread import JobThread, Thunk, finish_in_thread, unwrap_outcome
from graphkit._wording import message_of
from graphkit.errors import GraphRunnerError

if TYPE_CHECKING:
    from graphkit._plan.retry import RetryPolicy

# The four kinds of call: sync or async, and with chunks or without.
#
# The chunks and the result of a call are passed on in one way for each kind, whatever is around the
# call: a hook, retries or a timeout. The result of a sync generator is its return value. An async
# generator cannot return one; its result comes last, as a Command.
#
# A call that may be repeated is made inside `with attempts:`, which swallows an error that another
# attempt follows. A generator starts over then, so chunks that it yielded before come again.


@final
@dataclass(slots=True, eq=False, repr=False)
class Ended:
    """Stands for the next chunk of a generator that has ended; holds what it returned."""

    value: Any


def next_chunk(chunks: Iterator[Any]) -> Any:
    """Return the next chunk of a generator, or Ended."""
    try:
        return next(chunks)
    except StopIteration as end:
        return Ended(end.value)


@final
class Attempts:
    """The attempts of one call: a context manager that is entered for each of them.

    There is only one without a policy. With one, the observers hear of each attempt that failed.
    """

    def __init__(self, policy: RetryPolicy | None = None) -> None:
        self.policy = policy
        self.number = 1
        self.delay = 0.0
        """Seconds to wait before the next attempt."""

    def __enter__(self) -> None:
        """Start an attempt."""

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        """End an attempt, and swallow its error if another follows."""
        policy = self.policy
        if error is None or policy is None or not policy.covers(error):
            return False
        data: dict[str, Any] = {
            "attempt": self.number,
            "error_type": type(error).__name__,
            "error": message_of(error),
        }
        if self.number >= policy.max_attempts:
            post_event("retry.exhausted", data)
            return False
        self.delay = policy.delay_after(self.number)
        post_event("retry.attempt", {**data, "delay": self.delay})
        self.number += 1
        return True


ONCE: Final = Attempts()


def run_again(thunk: Thunk, attempts: Attempts) -> Any:
    """Call until an attempt succeeds; the kind is that of the first result."""
    while True:
        with attempts:
            result = thunk()
            is_generator = isinstance(result, (AsyncIterable, Iterator))
            is_async = isinstance(result, AsyncIterable) or inspect.isawaitable(result)
            if not is_generator and not is_async:
                return result
            break
        sleep(attempts.delay)
    # This attempt has only begun. It fails, and others are made, where its chunks are passed on.
    begun = [result]
    return RUN[is_async, is_generator](lambda: begun.pop() if begun else thunk(), attempts)


async def _run_async_function(thunk: Thunk, attempts: Attempts = ONCE) -> Any:
    from asyncio import sleep  # 25 ms to import, and only async runs need it

    while True:
        with attempts:
            result = thunk()
            return await result if inspect.isawaitable(result) else result
        await sleep(attempts.delay)


def _run_generator(thunk: Thunk, attempts: Attempts = ONCE) -> Generator[Any, Any, Any]:
    while True:
        with attempts:
            result = thunk()
            return (yield from result) if isinstance(result, Iterator) else result
        sleep(attempts.delay)


async def _run_async_generator(thunk: Thunk, attempts: Attempts = ONCE) -> AsyncGenerator[Any]:
    from asyncio import sleep

    while True:
        with attempts:
            result = thunk()
            if inspect.isawaitable(result):
                result = await result
            if isinstance(result, Iterator):
                result = iterate_on_thread(result)
            if isinstance(result, AsyncIterable):
                iterator: Any = aiter(result)
                closing = aclosing(iterator) if hasattr(iterator, "aclose") else nullcontext(iterator)
                async with closing as chunks:
                    async for chunk in chunks:
                        yield chunk
            elif result is not None:
                yield _to_command(result)
            return
        await sleep(attempts.delay)


RUN: Final[Mapping[tuple[bool, bool], Callable[..., Any]]] = {
    (False, False): operator.call,  # `run_again` makes the attempts itself
    (True, False): _run_async_function,
    (False, True): _run_generator,
    (True, True): _run_async_generator,
}
"""By kind, (is_async, is_generator): makes a call whose result may be of another kind, and converts it."""


async def iterate_on_thread(chunks: Iterator[Any]) -> AsyncGenerator[Any]:
    """Iterate with each step on a thread; what a generator returns comes last, as a Command."""
    try:
        while not isinstance(chunk := await finish_in_thread(next_chunk, chunks), Ended):
            yield chunk
        if chunk.value is not None:
            yield _to_command(chunk.value)
    finally:
        if inspect.isgenerator(chunks):
            chunks.close()


def _to_command(update: Any) -> Command:
    return update if isinstance(update, Command) else Command(update=update)


# A call with what is around it


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
    """
    hooks = [*wraps]
    if retry is not None:
        hooks.append(Call(retry.as_hook(), takes_config=True))
    if not hooks and timeout is None:
        return call
    composed = call
    if timeout is not None:
        composed = _as_call(partial(_call_in_time, call, node_id, timeout, kind), call)
    for hook in reversed(hooks):
        composed = _as_call(partial(_call_hook, hook, node_id, composed), hook, composed)
    # A sync hook expects what the sync form returns.
    if call.async_form is not None and all(wrap.is_async for wrap in wraps):
        composed.async_form = compose_call(call.async_form, node_id, wraps, retry, timeout, kind=kind)
    return composed


def _as_call(function: Callable[[Any, Any], Any], *parts: Call) -> Call:
    """Return a function of (state, config) as a call; it is of the kinds that its parts are of."""
    call = Call(function, takes_config=True)
    call.is_async = any(part.is_async for part in parts)
    call.is_generator = any(part.is_generator for part in parts)
    return call


def _call_hook(hook: Call, node_id: str, inner: Call, state: Any, config: Any) -> Any:
    """Call a hook around a call."""
    needs_thread = hook.is_async and not inner.is_async
    call = _InnerCall(inner, state, config, needs_thread)
    thunk = partial(hook.function, node_id, state, config, call)
    return RUN[hook.is_async or inner.is_async, hook.is_generator or inner.is_generator](thunk)


def _call_in_time(call: Call, node_id: str, timeout: float, kind: str, state: Any, config: Any) -> Any:
    """Make a call with a timeout."""
    budget = _TimeBudget(node_id, timeout, kind, left=timeout)
    thunk = partial(call.run, state, config)
    return _RUN_IN_TIME[call.is_async, call.is_generator](thunk, budget)


@final
@dataclass(slots=True, eq=False, repr=False)
class _InnerCall:
    """The `call` that a hook receives: call(), call(state) or call(state, config).

    It runs what is inside the hook. An omitted argument is as the hook received it. A second call
    starts another attempt: it resets the interrupts and outputs of the node context to what they
    were before the first call.
    """

    inner: Call
    state: Any
    config: Any
    needs_thread: bool
    first: NodeContext | None = None
    """The node context as it was when the hook called what is inside for the first time."""

    def __call__(self, state: Any = ABSENT, config: Any = ABSENT) -> Any:
        context = CURRENT_NODE_CONTEXT.get()
        first = self.first
        if context is not None and first is None:
            self.first = copy(context)
            self.first.outputs = [*context.outputs]
        elif context is not None and first is not None:
            # A hook that asked or dispatched before its first call() is not repeated by the second, so
            # what it did stays; only what came from inside is taken back.
            # By identity: outputs may compare equal, or not at all.
            known = {id(output) for output in first.outputs}
            context.outputs[:] = [output for output in context.outputs if id(output) in known]
            context.attempt += 1
            context.interrupt_calls = first.interrupt_calls
            context.answers = first.answers  # without the timers that had passed in the attempt before
        if state is ABSENT:
            state = self.state
        if config is ABSENT:
            config = self.config
        inner = self.inner
        thunk = partial(inner.run, state, config)
        # What is inside an async hook is called in the event loop if it is async. If not, it may block,
        # so it is called on a thread, chunk by chunk.
        if self.needs_thread:
            if inner.is_generator:
                return _AwaitableChunks(iterate_on_thread(thunk()))
            return finish_in_thread(thunk)
        if inner.is_async and inner.is_generator:
            return _AwaitableChunks(thunk())
        return thunk()


@final
@dataclass(slots=True, eq=False, repr=False)
class _AwaitableChunks:
    """An async generator that a hook may also await, as it awaits any other `call()`."""

    generator: AsyncGenerator[Any]

    def __aiter__(self) -> AsyncGenerator[Any]:
        return self.generator

    def __await__(self) -> Generator[Any, Any, AsyncGenerator[Any]]:
        yield from ()
        return self.generator


# Timeouts


@final
@dataclass(slots=True, eq=False, repr=False)
class _TimeBudget:
    """The time that an attempt has left, in seconds."""

    node_id: str
    timeout: float
    kind: str
    left: float

    def make_error(self) -> TimeoutError:
        return TimeoutError(f"{self.kind} {self.node_id!r} took longer than its timeout of {self.timeout:g} s")

    async def run(self, awaitable: Awaitable[Any]) -> Any:
        """Await something, and cancel it when the time is over."""
        import asyncio

        started = monotonic()
        try:
            async with asyncio.timeout(self.left) as limit:
                return await awaitable
        except TimeoutError:
            if limit.expired():
                raise self.make_error() from None
            raise
        finally:
            self.left -= monotonic() - started


def _run_function_in_time(thunk: Thunk, budget: _TimeBudget) -> Any:
    with _TimedAttempt(budget) as attempt:
        result = attempt.run(thunk)
    # A function may return an awaitable although it is not known to be async.
    return budget.run(result) if inspect.isawaitable(result) else result


async def _run_async_function_in_time(thunk: Thunk, budget: _TimeBudget) -> Any:
    return await budget.run(RUN[True, False](thunk))


def _run_generator_in_time(thunk: Thunk, budget: _TimeBudget) -> Generator[Any, Any, Any]:
    with _TimedAttempt(budget) as attempt:
        chunks = RUN[False, True](thunk)
        try:
            while not isinstance(chunk := attempt.run(partial(next_chunk, chunks)), Ended):
                yield chunk
            return chunk.value
        except GeneratorExit:
            attempt.run(chunks.close)
            raise
        finally:
            attempt.thread.jobs.put(chunks.close)  # an abandoned attempt closes it as soon as it can


async def _run_async_generator_in_time(thunk: Thunk, budget: _TimeBudget) -> AsyncGenerator[Any]:
    async with aclosing(RUN[True, True](thunk)) as chunks:
        while not isinstance(chunk := await budget.run(anext(chunks, Ended(None))), Ended):
            yield chunk


_RUN_IN_TIME: Final[dict[tuple[bool, bool], Callable[[Thunk, _TimeBudget], Any]]] = {
    (False, False): _run_function_in_time,
    (True, False): _run_async_function_in_time,
    (False, True): _run_generator_in_time,
    (True, True): _run_async_generator_in_time,
}
"""As `RUN`, with a timeout."""


@final
class _TimedAttempt:
    """An attempt on a thread of its own, abandoned on a timeout. A daemon, so that no exit waits for it.

    The attempt has a copy of the node context. The real node context takes over what the attempt did
    as long as it is in time.
    """

    def __init__(self, budget: _TimeBudget) -> None:
        self.budget = budget
        self.context = CURRENT_NODE_CONTEXT.get()
        self.own_context: NodeContext | None = None
        self.journal: _GuardedJournal | None = None
        variables = copy_context()
        if self.context is not None:
            # An attempt that is too late keeps its thread, its context and its journal. It may go on,
            # but they are closed or no longer read: it cannot change the run or the next attempt.
            self.own_context = copy(self.context)
            self.own_context.outputs = []
            self.journal = _GuardedJournal(self.context.journal, budget)
            self.own_context.journal = self.journal
            variables.run(CURRENT_NODE_CONTEXT.set, self.own_context)
        self.thread = JobThread(f"graphkit-{budget.node_id}", variables, is_daemon=True)

    def run(self, job: Thunk) -> Any:
        """Run a job on the thread.

        Raises:
            TimeoutError: the job did not end in time. The thread may still be running it.
        """
        started = monotonic()
        self.thread.jobs.put(job)
        try:
            outcome = self.thread.outcomes.get(timeout=max(self.budget.left, 0))
        except Empty:
            raise self.budget.make_error() from None
        self.budget.left -= monotonic() - started
        # In time: what the attempt did counts, and moves to the real node context.
        if self.context is not None and self.own_context is not None:
            self.context.adopt(self.own_context)
        return unwrap_outcome(outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.jobs.put(None)
        if self.journal is not None:
            self.journal.close()


@final
class _GuardedJournal(Journal):
    """A journal that refuses to record once the attempt is over."""

    def __init__(self, journal: Journal, budget: _TimeBudget) -> None:
        self.config = journal.config
        self.journal = journal
        self.budget = budget
        self.lock = Lock()
        self.is_open = True

    def idempotency_key(self, context: NodeContext) -> str:
        return self.journal.idempotency_key(context)

    def find_result(self, context: NodeContext, key: str) -> tuple[bool, Any]:
        with self.lock:
            self._require_open()
            return self.journal.find_result(context, key)

    def record_result(self, context: NodeContext, key: str, value: Any) -> Any:
        with self.lock:
            self._require_open()
            return self.journal.record_result(context, key, value)

    def now(self) -> datetime:
        return self.journal.now()

    def is_cancelled(self) -> bool:
        return self.journal.is_cancelled()

    def post_event(self, context: NodeContext, type: str, data: dict[str, Any]) -> None:
        with self.lock:
            if self.is_open:
                self.journal.post_event(context, type, data)

    def dispatch(self, output: Any) -> bool:
        with self.lock:
            return not self.is_open or self.journal.dispatch(output)

    def close(self) -> None:
        """Refuse further records; wait for one that is being made."""
        with self.lock:
            self.is_open = False

    def _require_open(self) -> None:
        if not self.is_open:
            node_id = self.budget.node_id
            reason = f"this attempt of {self.budget.kind} {node_id!r} is over: nothing more is recorded for it"
            raise GraphRunnerError(reason, node_id=node_id)
