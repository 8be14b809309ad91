"""RetryPolicy: when a node that failed is run again, and after how long. Ports langgraph4j 1.9's, builder included."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Generator, Iterator
from contextlib import aclosing
from datetime import timedelta
from time import sleep
from typing import Any, Self, final

from graphkit._java_names import JavaNames
from graphkit._records.context import CURRENT_NODE_CONTEXT

Retryable = type[Exception] | Callable[[Exception], bool]
"""Which errors: a class of them, or a predicate."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RetryPolicy(JavaNames):
    """When a node that failed is run again, and after how long. Immutable; pickles if `retry_on` does.

    Only an Exception is ever retried: an `interrupt()`, a cancellation and Ctrl-C pass.
    """

    max_attempts: int = 3
    """How often the node is run at most, the first time included."""
    initial_delay: float = 0.5
    """Seconds between the first attempt and the second."""
    backoff: float = 2.0
    """What the delay is multiplied with after every further attempt."""
    max_delay: float = 128.0
    """Seconds that no delay exceeds, jitter included."""
    jitter: bool = True
    """Add to each delay a random part of it, so that what failed together does not come back together."""
    retry_on: Retryable | Collection[Retryable] = (Exception,)
    """Classes of errors, predicates of the error, or several of either; kept as a tuple. One that fits is enough."""

    def __post_init__(self) -> None:
        attempts: object = self.max_attempts
        if not isinstance(attempts, int):
            raise TypeError(f"max_attempts must be an int, not {attempts!r}")
        if attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, the first attempt, not {attempts}")
        for name, least in (("initial_delay", 0), ("max_delay", 0), ("backoff", 1)):
            value = getattr(self, name)
            if not isinstance(value, int | float):
                raise TypeError(f"{name} must be a number, not {value!r}")
            if not (math.isfinite(value) and value >= least):
                raise ValueError(f"{name} must be finite and at least {least}, not {value!r}")
        object.__setattr__(self, "retry_on", _all_of(self.retry_on))

    def retries(self, error: BaseException, attempt: int) -> bool:
        """Whether there is another attempt after this one, counted from 1, failed with this error."""
        return attempt < self.max_attempts and self.covers(error)

    def covers(self, error: BaseException) -> bool:
        """Whether this is an error to retry on, attempts apart."""
        return isinstance(error, Exception) and any(
            isinstance(error, one) if isinstance(one, type) else one(error) for one in _several(self.retry_on)
        )

    def delay_after(self, attempt: int, *, chance: Callable[[], float] | None = None) -> float:
        """How many seconds to wait after an attempt, counted from 1.

        Args:
            attempt: the one that failed.
            chance: gives a number from 0 to 1, the part of the delay that jitter adds; `random.random` by default.
        """
        try:
            delay = self.initial_delay * float(self.backoff) ** (attempt - 1)
        except OverflowError:  # after a thousand attempts
            delay = self.max_delay if self.initial_delay else 0.0
        if self.jitter:
            delay += delay * (chance or _chance())()
        return min(delay, self.max_delay)

    def replace(self, **changes: Any) -> RetryPolicy:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def as_hook(self) -> RetryHook:
        """The policy as a wrap hook: what stands inside it is retried, other hooks too."""
        return RetryHook(self)

    @staticmethod
    def builder(policy: RetryPolicy | None = None) -> RetryPolicyBuilder:
        """Java's way to make one, optionally starting from another."""
        return RetryPolicyBuilder(policy)

    # Java names
    delayAfter = delay_after
    asHook = as_hook


@final
class RetryPolicyBuilder:
    """Java's builder for a RetryPolicy; Python callers pass keywords instead. A Duration is a timedelta, or seconds."""

    def __init__(self, policy: RetryPolicy | None = None) -> None:
        self._policy = policy or RetryPolicy()
        self._retry_on: tuple[Retryable, ...] = ()

    def _with(self, **changes: Any) -> Self:
        self._policy = self._policy.replace(**changes)
        return self

    def maxAttempts(self, attempts: int) -> Self:
        return self._with(max_attempts=attempts)

    def retryDelay(self, delay: float | timedelta) -> Self:
        return self._with(initial_delay=_seconds(delay))

    def backoffFactor(self, factor: float) -> Self:
        return self._with(backoff=factor)

    def maxInterval(self, delay: float | timedelta) -> Self:
        return self._with(max_delay=_seconds(delay))

    def jitter(self, jitter: bool) -> Self:
        return self._with(jitter=jitter)

    def retryOn(self, *errors: Retryable) -> Self:
        # As in Java, what several calls name adds up.
        self._retry_on += _all_of(errors)
        return self._with(retry_on=self._retry_on)

    def build(self) -> RetryPolicy:
        return self._policy


@final
@dataclasses.dataclass(frozen=True)
class RetryHook:
    """A policy as a wrap hook, for actions of every kind: plain, asynchronous, and generators of either sort.

    A generator starts over, so chunks that were handed out already may come again.
    """

    policy: RetryPolicy

    def __call__(self, node_id: str, state: Any, config: Any, call: Callable[[], Any]) -> Any:  # noqa: ARG002 - a hook's
        """Run what is inside, again if need be."""
        tries = _Tries(self.policy, call)
        result = tries.value()
        if isinstance(result, AsyncIterable):
            return tries.later_chunks(result)
        if inspect.isawaitable(result):
            return tries.later(result)
        return tries.chunks(result) if isinstance(result, Iterator) else result


@final
class _Tries:
    """The attempts at one call."""

    __slots__ = ("attempt", "call", "policy")

    def __init__(self, policy: RetryPolicy, call: Callable[[], Any]) -> None:
        self.policy = policy
        self.call = call
        self.attempt = 1

    def value(self) -> Any:
        while True:
            try:
                return self.call()
            except Exception as error:
                delay = self._delay_after(error)
                if delay is None:
                    raise
            sleep(delay)

    def chunks(self, chunks: Iterator[Any]) -> Generator[Any, Any, Any]:
        while True:
            try:
                return (yield from chunks)
            except Exception as error:
                delay = self._delay_after(error)
                if delay is None:
                    raise
            sleep(delay)
            chunks = self.call()

    async def later(self, result: Any) -> Any:
        from asyncio import sleep  # 25 ms to import, and only asynchronous runs need it

        while True:
            try:
                return await result
            except Exception as error:
                delay = self._delay_after(error)
                if delay is None:
                    raise
            await sleep(delay)
            result = self._awaited()

    async def _awaited(self) -> Any:
        # A function that is not known to be asynchronous may raise where another time it gave an awaitable.
        result = self.call()
        return await result if inspect.isawaitable(result) else result

    async def later_chunks(self, chunks: AsyncIterable[Any]) -> AsyncIterator[Any]:
        from asyncio import sleep

        while True:
            try:
                async with aclosing(aiter(chunks)) as open_chunks:  # type: ignore[type-var]
                    async for chunk in open_chunks:
                        yield chunk
                return
            except Exception as error:
                delay = self._delay_after(error)
                if delay is None:
                    raise
            await sleep(delay)
            chunks = self.call()

    def _delay_after(self, error: Exception) -> float | None:
        """How long to wait, in seconds, before the next attempt; None: there is none."""
        attempt, policy = self.attempt, self.policy
        if not policy.covers(error):
            return None
        told = {"attempt": attempt, "error_type": type(error).__name__, "error": str(error)}
        if attempt >= policy.max_attempts:
            _note("retry.exhausted", told)
            return None
        delay = policy.delay_after(attempt)
        _note("retry.attempt", {**told, "delay": delay})
        self.attempt += 1
        return delay


def _note(type: str, data: dict[str, Any]) -> None:
    visit = CURRENT_NODE_CONTEXT.get()
    if visit is not None:
        visit.post_event(type, "warning", data)


def _several(retry_on: Retryable | Collection[Retryable]) -> Collection[Retryable]:
    return retry_on if isinstance(retry_on, Collection) else (retry_on,)


def _all_of(retry_on: Retryable | Collection[Retryable]) -> tuple[Retryable, ...]:
    every = tuple(_several(retry_on))
    if not every:
        raise ValueError("retry_on is empty: name the errors to retry on, or set max_attempts=1")
    for one in every:
        given: object = one
        if isinstance(given, type) and not issubclass(given, Exception):
            raise TypeError(f"retry_on names {given.__name__}, which is never retried: name subclasses of Exception")
        if not callable(given):
            raise TypeError(f"retry_on is made of exception classes and predicates, not {given!r}")
    return every


def _chance() -> Callable[[], float]:
    from random import random  # a millisecond to import, and few runs fail

    return random


def _seconds(delay: float | timedelta) -> float:
    return delay.total_seconds() if isinstance(delay, timedelta) else delay
