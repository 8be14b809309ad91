"""RetryPolicy: which failures are retried, how often, and after how long."""

import asyncio
import pickle
from datetime import timedelta

import pytest

from graphkit import GraphInterrupt, RetryPolicy


def is_odd(error):
    return error.args[0] % 2 == 1


# --- The policy -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 18")
def test_the_defaults_are_those_of_java():
    policy = RetryPolicy()
    assert (policy.max_attempts, policy.initial_delay, policy.backoff, policy.max_delay) == (3, 0.5, 2.0, 128.0)
    assert (policy.jitter, policy.retry_on) == (True, (Exception,))


def test_a_policy_cannot_be_changed():
    with pytest.raises(AttributeError):
        RetryPolicy().max_attempts = 5


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"max_attempts": 0}, ValueError, "max_attempts must be at least 1"),
        ({"max_attempts": -1}, ValueError, "max_attempts"),
        ({"max_attempts": 2.5}, TypeError, "max_attempts must be an int"),
        ({"max_attempts": "3"}, TypeError, "max_attempts must be an int"),
        ({"initial_delay": -0.1}, ValueError, "initial_delay must be finite and at least 0"),
        ({"initial_delay": float("nan")}, ValueError, "initial_delay"),
        ({"initial_delay": timedelta(seconds=1)}, TypeError, "initial_delay must be a number"),
        ({"max_delay": -1}, ValueError, "max_delay"),
        ({"max_delay": float("inf")}, ValueError, "max_delay must be finite"),
        ({"max_delay": None}, TypeError, "max_delay"),
        ({"backoff": 0.9}, ValueError, "backoff must be finite and at least 1"),
        ({"backoff": "2"}, TypeError, "backoff"),
        ({"retry_on": ()}, ValueError, "retry_on is empty"),
        ({"retry_on": "ValueError"}, TypeError, "not 'V"),
        ({"retry_on": 500}, TypeError, "not 500"),
        ({"retry_on": [ValueError, None]}, TypeError, "not None"),
        ({"retry_on": str}, TypeError, "subclasses of Exception"),
        ({"retry_on": BaseException}, TypeError, "BaseException, which is never retried"),
        ({"retry_on": (ValueError, KeyboardInterrupt)}, TypeError, "KeyboardInterrupt"),
        ({"retry_on": asyncio.CancelledError}, TypeError, "CancelledError"),
        ({"retry_on": GraphInterrupt}, TypeError, "GraphInterrupt"),
    ],
)
def test_what_is_refused(wrong, error, says):
    with pytest.raises(error, match=says):
        RetryPolicy(**wrong)


@pytest.mark.requirement("behaviour 18")
def test_the_delay_grows_up_to_the_maximum():
    policy = RetryPolicy(jitter=False)
    assert [policy.delay_after(n) for n in range(1, 12)] == [0.5, 1, 2, 4, 8, 16, 32, 64, 128, 128, 128]
    assert [RetryPolicy(jitter=False, backoff=1).delay_after(n) for n in (1, 2, 9)] == [0.5, 0.5, 0.5]
    assert RetryPolicy(jitter=False, initial_delay=10, max_delay=3).delay_after(1) == 3
    assert policy.delay_after(100_000) == 128
    assert RetryPolicy(initial_delay=0, max_attempts=10**6).delay_after(100_000) == 0


@pytest.mark.requirement("behaviour 18")
@pytest.mark.parametrize(("chance", "delays"), [(0.0, [2, 6, 10]), (0.5, [3, 9, 10]), (1.0, [4, 10, 10])])
def test_jitter_adds_up_to_the_delay_and_is_capped(chance, delays):
    policy = RetryPolicy(initial_delay=2, backoff=3, max_delay=10)
    assert [policy.delay_after(n, chance=lambda: chance) for n in (1, 2, 3)] == delays
    assert RetryPolicy(initial_delay=2, jitter=False).delay_after(1, chance=lambda: chance) == 2


def test_jitter_is_thrown_anew_each_time():
    delays = {RetryPolicy(initial_delay=1).delay_after(1) for _ in range(50)}
    assert len(delays) > 1
    assert all(1 <= delay <= 2 for delay in delays)


@pytest.mark.requirement("behaviour 18")
@pytest.mark.parametrize(
    ("retry_on", "error", "expected"),
    [
        (Exception, ValueError(), True),
        (ValueError, ValueError(), True),
        (ValueError, UnicodeError(), True),
        (ValueError, KeyError(), False),
        ((ValueError, KeyError), KeyError(), True),
        ([OSError], TimeoutError(), True),
        (is_odd, ValueError(3), True),
        (is_odd, ValueError(2), False),
        ([KeyError, is_odd], ValueError(3), True),
        ([KeyError, is_odd], KeyError(2), True),
        ([KeyError, is_odd], ValueError(2), False),
    ],
)
def test_which_errors_are_retried(retry_on, error, expected):
    assert RetryPolicy(retry_on=retry_on).retries(error, 1) is expected


@pytest.mark.parametrize(
    "error", [GraphInterrupt("q"), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(), GeneratorExit()]
)
def test_what_is_no_exception_is_never_retried(error):
    assert not RetryPolicy(retry_on=lambda error: True).retries(error, 1)


def test_the_last_attempt_is_not_retried():
    policy = RetryPolicy(max_attempts=2)
    assert [policy.retries(ValueError(), attempt) for attempt in (1, 2, 3)] == [True, False, False]
    assert not RetryPolicy(max_attempts=1).retries(ValueError(), 1)


def test_a_policy_pickles_and_compares():
    policy = RetryPolicy(max_attempts=7, retry_on=[ValueError, is_odd])
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(policy.replace(jitter=True))
    assert policy != policy.replace(jitter=False)
    assert pickle.loads(pickle.dumps(policy.as_hook())) == policy.as_hook()


# --- Java's builder ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 18")
def test_the_builder_builds_what_keywords_make():
    built = (
        RetryPolicy.builder().maxAttempts(5).retryDelay(timedelta(milliseconds=250)).backoffFactor(1.5)
        .maxInterval(timedelta(minutes=1)).jitter(False).retryOn(ValueError, KeyError).build()
    )  # fmt: skip
    assert built == RetryPolicy(
        max_attempts=5, initial_delay=0.25, backoff=1.5, max_delay=60, jitter=False, retry_on=(ValueError, KeyError)
    )
    assert RetryPolicy.builder().retryDelay(2).maxInterval(3.5).build() == RetryPolicy(initial_delay=2, max_delay=3.5)
    assert RetryPolicy.builder(built).build() == built
    assert RetryPolicy.builder().build() == RetryPolicy()
