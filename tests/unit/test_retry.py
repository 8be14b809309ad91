"""RetryPolicy: which failures are retried, how often, and after how long. Behaviour 18; G26's retries; H35 reads attempts."""

import asyncio
import inspect
import pickle
from datetime import timedelta

import pytest

from graphkit._plan import call_kinds
from graphkit._plan.retry import RetryHook, RetryPolicy
from graphkit._records.context import CURRENT_NODE_CONTEXT, GraphInterrupt, NodeContext


class Journal:
    """Keeps what the observers would be told."""

    def __init__(self):
        self.told = []

    def post_event(self, visit, type, data):
        self.told.append((type, data))


@pytest.fixture
def told():
    journal = Journal()
    token = CURRENT_NODE_CONTEXT.set(NodeContext("n", (), frozenset(), journal=journal))
    yield journal.told
    CURRENT_NODE_CONTEXT.reset(token)


@pytest.fixture
def slept(monkeypatch):
    seconds = []

    async def later(delay):
        seconds.append(delay)

    monkeypatch.setattr(call_kinds, "sleep", seconds.append)
    monkeypatch.setattr(asyncio, "sleep", later)
    return seconds


def is_odd(error):
    return error.args[0] % 2 == 1


class Failing:
    """Raises the errors in turn, then returns how often it was called."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


# --- The policy -------------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_java():  # behaviour 18
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


def test_the_delay_grows_up_to_the_maximum():  # behaviour 18
    policy = RetryPolicy(jitter=False)
    assert [policy.delay_after(n) for n in range(1, 12)] == [0.5, 1, 2, 4, 8, 16, 32, 64, 128, 128, 128]
    assert [RetryPolicy(jitter=False, backoff=1).delay_after(n) for n in (1, 2, 9)] == [0.5, 0.5, 0.5]
    assert RetryPolicy(jitter=False, initial_delay=10, max_delay=3).delay_after(1) == 3
    assert policy.delay_after(100_000) == 128
    assert RetryPolicy(initial_delay=0, max_attempts=10**6).delay_after(100_000) == 0


@pytest.mark.parametrize(("chance", "delays"), [(0.0, [2, 6, 10]), (0.5, [3, 9, 10]), (1.0, [4, 10, 10])])
def test_jitter_adds_up_to_the_delay_and_is_capped(chance, delays):  # behaviour 18
    policy = RetryPolicy(initial_delay=2, backoff=3, max_delay=10)
    assert [policy.delay_after(n, chance=lambda: chance) for n in (1, 2, 3)] == delays
    assert RetryPolicy(initial_delay=2, jitter=False).delay_after(1, chance=lambda: chance) == 2


def test_jitter_is_thrown_anew_each_time():
    delays = {RetryPolicy(initial_delay=1).delay_after(1) for _ in range(50)}
    assert len(delays) > 1
    assert all(1 <= delay <= 2 for delay in delays)


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
def test_which_errors_are_retried(retry_on, error, expected):  # behaviour 18
    assert RetryPolicy(retry_on=retry_on).retries(error, 1) is expected


@pytest.mark.parametrize(
    "error", [GraphInterrupt("q"), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(), GeneratorExit()]
)
def test_what_is_no_exception_is_never_retried(error, slept):
    policy = RetryPolicy(retry_on=lambda error: True)
    assert not policy.retries(error, 1)
    failing = Failing(error)
    with pytest.raises(type(error)):
        policy.as_hook()("n", {}, None, failing)
    assert (failing.calls, slept) == (1, [])


def test_the_last_attempt_is_not_retried():
    policy = RetryPolicy(max_attempts=2)
    assert [policy.retries(ValueError(), attempt) for attempt in (1, 2, 3)] == [True, False, False]
    assert not RetryPolicy(max_attempts=1).retries(ValueError(), 1)


def test_a_policy_pickles_and_compares():
    policy = RetryPolicy(max_attempts=7, retry_on=[ValueError, is_odd])
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(policy.replace(jitter=True))
    assert policy != policy.replace(jitter=False)
    assert pickle.loads(pickle.dumps(policy.as_hook())) == RetryHook(policy)


# --- Java's builder ---------------------------------------------------------------------------------------------------


def test_the_builder_builds_what_keywords_make():  # behaviour 18
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


def test_what_several_calls_of_retry_on_name_adds_up():  # behaviour 18
    built = RetryPolicy.builder().retryOn(KeyError).retryOn(is_odd).build()
    assert built.retry_on == (KeyError, is_odd)
    assert RetryPolicy.builder(built).retryOn(OSError).build().retry_on == (OSError,)


def test_the_builder_refuses_as_keywords_do():
    with pytest.raises(ValueError, match="max_attempts"):
        RetryPolicy.builder().maxAttempts(0)
    with pytest.raises(ValueError, match="retry_on is empty"):
        RetryPolicy.builder().retryOn()


def test_java_names():
    assert inspect.getattr_static(RetryPolicy, "asHook") is inspect.getattr_static(RetryPolicy, "as_hook")
    assert inspect.getattr_static(RetryPolicy, "delayAfter") is inspect.getattr_static(RetryPolicy, "delay_after")


# --- The policy as a hook, around each kind of function ---------------------------------------------------------------


def plain(failing):
    return failing


def later(failing):
    async def call():
        return failing()

    return call


def chunks(failing):
    def call():
        yield "first"
        result = failing()
        yield "second"
        return result

    return call


def later_chunks(failing):
    async def call():
        yield "first"
        result = failing()
        yield "second"
        yield result

    return call


def outcome(result):
    """What came of a call, whatever its kind: chunks, and the value or what was raised."""
    if inspect.isgenerator(result):
        seen = []
        while True:
            try:
                seen.append(next(result))
            except StopIteration as end:
                return seen, end.value
    if inspect.isasyncgen(result):
        return asyncio.run(all_of(result))
    return [], asyncio.run(awaited(result)) if inspect.isawaitable(result) else result


async def awaited(result):
    return await result


async def all_of(result):
    *chunks, last = [chunk async for chunk in result]
    return chunks, last


KINDS = pytest.mark.parametrize("kind", [plain, later, chunks, later_chunks])


@KINDS
def test_a_failure_is_run_again_after_a_delay(kind, slept, told):  # behaviour 18
    failing = Failing(ValueError("one"), KeyError("two"))
    hook = RetryPolicy(max_attempts=4, jitter=False).as_hook()
    seen, value = outcome(hook("n", {}, None, kind(failing)))
    assert (value, slept) == (3, [0.5, 1.0])
    # A generator starts over, so what it handed out comes again.
    assert seen == (["first", "first", "first", "second"] if "chunks" in kind.__name__ else [])
    assert told == [
        ("retry.attempt", {"attempt": 1, "delay": 0.5, "error_type": "ValueError", "error": "one"}),
        ("retry.attempt", {"attempt": 2, "delay": 1.0, "error_type": "KeyError", "error": "'two'"}),
    ]


@KINDS
def test_the_last_failure_is_raised(kind, slept, told):  # behaviour 18
    last = ValueError("last")
    failing = Failing(ValueError("first"), last, ValueError("never"))
    with pytest.raises(ValueError, match="last") as raised:
        outcome(RetryPolicy(max_attempts=2, jitter=False).as_hook()("n", {}, None, kind(failing)))
    assert raised.value is last
    assert (failing.calls, slept) == (2, [0.5])
    assert [(one, data["attempt"]) for one, data in told] == [("retry.attempt", 1), ("retry.exhausted", 2)]
    assert told[-1] == ("retry.exhausted", {"attempt": 2, "error_type": "ValueError", "error": "last"})


@KINDS
def test_another_failure_is_raised_at_once(kind, slept, told):
    failing = Failing(ValueError("again"), KeyError("not this"), ValueError("never"))
    with pytest.raises(KeyError):
        outcome(RetryPolicy(retry_on=ValueError, jitter=False).as_hook()("n", {}, None, kind(failing)))
    assert (failing.calls, slept) == (2, [0.5])
    assert [one for one, _ in told] == ["retry.attempt"]  # there were attempts left


@KINDS
def test_nobody_need_be_told(kind, slept):
    failing = Failing(ValueError())
    assert outcome(RetryPolicy().as_hook()("n", {}, None, kind(failing)))[1] == 2


def test_a_failing_predicate_is_an_error_of_its_own(slept):
    failing = Failing(ValueError("text"))
    with pytest.raises(TypeError) as raised:
        RetryPolicy(retry_on=is_odd).as_hook()("n", {}, None, failing)
    assert isinstance(raised.value.__context__, ValueError)


def test_what_is_sometimes_asynchronous_is_retried_too(slept):
    failing = Failing(ValueError("in the coroutine"), ValueError("at once"))

    def call():
        return later(failing)() if failing.calls == 0 else failing()

    assert outcome(RetryPolicy().as_hook()("n", {}, None, call)) == ([], 3)
    assert failing.calls == 3


def test_a_generator_that_is_closed_is_not_retried(slept):
    closed = []

    def call():
        try:
            yield 1
        finally:
            closed.append(1)

    stream = RetryPolicy().as_hook()("n", {}, None, call)
    next(stream)
    stream.close()
    assert (closed, slept) == ([1], [])


def test_an_asynchronous_generator_that_is_closed_closes_what_is_inside(slept):
    closed = []

    async def call():
        try:
            yield 1
        finally:
            closed.append(1)

    async def run():
        stream = RetryPolicy().as_hook()("n", {}, None, call)
        await anext(stream)
        await stream.aclose()
        assert closed == [1]

    asyncio.run(run())
    assert slept == []


def test_a_cancelled_delay_ends_the_retries():
    failing = Failing(ValueError("one"))

    async def run():
        task = asyncio.ensure_future(RetryPolicy(initial_delay=60).as_hook()("n", {}, None, later(failing)))
        await asyncio.sleep(0)
        assert failing.calls == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert failing.calls == 1
