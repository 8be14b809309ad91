"""RetryPolicy: when a failed node runs again, and after which delay.

Ports langgraph4j 1.9's class, builder included.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, Self, final

from graphkit._options import check_function
from graphkit._plan.calls import Attempts, run_again
from graphkit._public_names import JavaBuilder, JavaNames
from graphkit._wording import name_type
from graphkit.errors import InterruptExpiredError

Retryable = type[Exception] | Callable[[Exception], bool]
"""The errors to retry on: a class, or a predicate."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RetryPolicy(JavaNames):
    """When a failed node runs again, and after which delay. Immutable; pickles if `retry_on` does.

    Only an Exception is retried. An `interrupt()`, a cancellation and Ctrl-C are not.
    """

    max_attempts: int = 3
    """How often the node may run, including the first time."""
    initial_delay: float = 0.5
    """Seconds between the first attempt and the second."""
    backoff: float = 2.0
    """The factor by which the delay grows after each further attempt."""
    max_delay: float = 128.0
    """The longest delay in seconds, including jitter."""
    jitter: bool = True
    """Add a random part of the delay to each delay, so that nodes do not retry at the same time."""
    retry_on: Retryable | Collection[Retryable] = (Exception,)
    """Classes of errors, predicates of the error, or several of either; one must match.

    Stored as a tuple.
    """

    def __post_init__(self) -> None:
        attempts: object = self.max_attempts
        if not isinstance(attempts, int):
            raise TypeError(f"max_attempts must be an int, not {attempts!r}")
        if attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, the first attempt, not {attempts}")

        _check_number("initial_delay", self.initial_delay, minimum=0)
        _check_number("max_delay", self.max_delay, minimum=0)
        _check_number("backoff", self.backoff, minimum=1)
        object.__setattr__(self, "retry_on", _parse_retry_on(self.retry_on))

    def retries(self, error: BaseException, attempt: int) -> bool:
        """Return whether another attempt follows.

        Args:
            error: why the attempt failed.
            attempt: its number, from 1.
        """
        return attempt < self.max_attempts and self.covers(error)

    def covers(self, error: BaseException) -> bool:
        """Return whether this error is one to retry on, however many attempts there were."""
        if not isinstance(error, Exception) or isinstance(error, InterruptExpiredError):
            return False  # an attempt after the deadline would expire as well
        conditions: Any = self.retry_on  # a tuple, since __post_init__
        for condition in conditions:
            matches = isinstance(error, condition) if isinstance(condition, type) else condition(error)
            if matches:
                return True
        return False

    def delay_after(self, attempt: int) -> float:
        """Return how many seconds to wait after a failed attempt.

        Args:
            attempt: the number of the attempt, from 1.
        """
        # With 1 s and a factor of 2: 1, 2, 4, 8, ... up to max_delay. Jitter adds up to the same again, so
        # that many runs that failed at one moment do not come back at one moment.
        try:
            delay = self.initial_delay * float(self.backoff) ** (attempt - 1)
        except OverflowError:  # after a thousand attempts
            delay = self.max_delay if self.initial_delay else 0.0

        if self.jitter:
            import random  # a millisecond, and few runs fail

            delay += delay * random.random()  # noqa: S311 - not for cryptography
        return min(delay, self.max_delay)

    def replace(self, **changes: Any) -> RetryPolicy:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def as_hook(self) -> RetryHook:
        """Return the policy as a wrap hook. It retries all that it wraps, including other hooks."""
        return RetryHook(self)

    @staticmethod
    def builder(policy: RetryPolicy | None = None) -> RetryPolicyBuilder:
        """Return a builder, as in Java, optionally starting from another policy."""
        return RetryPolicyBuilder(RetryPolicy, vars(policy or RetryPolicy()))

    # Java names
    delayAfter = delay_after
    asHook = as_hook


@final
class RetryPolicyBuilder(JavaBuilder[RetryPolicy]):
    """Java's builder for a RetryPolicy; Python callers pass keywords.

    A Duration is a timedelta, or a number of seconds.
    """

    _retry_on: tuple[Retryable, ...] = ()

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
        # As in Java, the errors of several calls add up.
        self._retry_on += _parse_retry_on(errors)
        return self._with(retry_on=self._retry_on)


@final
@dataclasses.dataclass(frozen=True)
class RetryHook:
    """A policy as a wrap hook, for every kind of action: plain, asynchronous, and generators.

    A generator starts over, so chunks that it yielded before may be repeated.
    """

    policy: RetryPolicy

    def __call__(self, node_id: str, state: Any, config: Any, call: Callable[[], Any]) -> Any:  # noqa: ARG002 - a hook's
        """Run the call, and run it again as the policy says."""
        return run_again(call, Attempts(self.policy))


def check_retry(name: str, retry: object, error: type[Exception] = TypeError) -> None:
    """Check that an option, if it is given, is a RetryPolicy.

    Raises:
        error: it is something else.
    """
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise error(f"{name} must be a graphkit.RetryPolicy, not {name_type(retry)}")


def _check_number(name: str, value: Any, *, minimum: float) -> None:
    if not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not (math.isfinite(value) and value >= minimum):
        raise ValueError(f"{name} must be finite and at least {minimum}, not {value!r}")


def _parse_retry_on(retry_on: Retryable | Collection[Retryable]) -> tuple[Retryable, ...]:
    conditions: tuple[Any, ...] = tuple(retry_on) if isinstance(retry_on, Collection) else (retry_on,)
    if not conditions:
        raise ValueError("retry_on is empty: name the errors to retry on, or set max_attempts=1")
    for condition in conditions:
        if isinstance(condition, type) and not issubclass(condition, Exception):
            raise TypeError(
                f"retry_on names {condition.__name__}, which is never retried: name subclasses of Exception",
            )
        if not callable(condition):
            raise TypeError(f"retry_on must contain exception classes and predicates, not {condition!r}")
        check_function("a predicate of retry_on", condition)
    return conditions


def _seconds(delay: float | timedelta) -> float:
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    return delay
