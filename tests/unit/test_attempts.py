"""One execution of a node with what surrounds it: hooks, retries and timeouts, for every kind of function."""

import asyncio
import contextvars
import itertools
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from time import monotonic
from types import SimpleNamespace

import pytest
from hypothesis import assume, given, settings, strategies as st

from graphkit import (
    Command,
    GraphInterrupt,
    GraphResume,
    NodeExecutionError,
    RetryPolicy,
    StateGraph,
    StreamingOutput,
    interrupt,
)
from graphkit._plan.topology import TwoForms
from graphkit.compat.go_agents import process_chain
from graphkit.errors import GraphRunnerError
from savers import MemorySaver
from tests.support.graphs import CONFIG, close_at, connect, fail_once, invoke, is_chunk
from tests.support.sweeps import examples

AT_ONCE = RetryPolicy(initial_delay=0)
LONG = 60
"""Seconds that no test waits."""
SHORT = 0.01


# Nodes and hooks of each kind, which log that they ran.


def make_nodes(body, closed=None):
    """Make functions of each kind; those with chunks list when they are closed."""
    closed = [] if closed is None else closed

    def plain(state, config):
        return body(state)

    async def later(state, config):
        return body(state)

    def chunks(state, config):
        try:
            yield "chunk"
            return body(state)
        finally:
            closed.append("closed")

    async def later_chunks(state, config):
        try:
            yield "chunk"
            yield Command(update=body(state))
        finally:
            closed.append("closed")

    return {"plain": plain, "later": later, "chunks": chunks, "later_chunks": later_chunks}


def make_hooks(log, name):
    def plain(node_id, state, config, call):
        log.append(name)
        return call()

    async def later(node_id, state, config, call):
        log.append(name)
        return await call()

    def chunks(node_id, state, config, call):
        log.append(name)
        return (yield from call())

    async def later_chunks(node_id, state, config, call):
        log.append(name)
        async for chunk in call():
            yield chunk

    return {"plain": plain, "later": later, "chunks": chunks, "later_chunks": later_chunks}


KINDS = ["plain", "later", "chunks", "later_chunks"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def is_generator(kind):
    return "chunks" in kind


def is_async(kind):
    return "later" in kind


def make_graph(node, *hooks, retry=None, timeout=None):
    graph = StateGraph({}).add_node("n", node, retry=retry, timeout=timeout, destinations=["other"])
    for hook in hooks:
        graph.add_wrap_call_node_hook("n", hook)
    graph.add_node("other", lambda state: {"other": True})
    return connect(graph, "START>n n>END other>END")


def retries_of(events):
    return [(event.type, event.data["attempt"]) for event in events if event.type.startswith("retry.")]


async def collect(outputs):
    return [output async for output in outputs]


def run(node, *hooks, events=None, **options):
    """Run a graph of one node; raise what it raised, or return what the run emitted, where it ended, what observers saw."""
    events = [] if events is None else events
    compiled = make_graph(node, *hooks, **options).compile(observers=[events.append])
    is_async_only = bool(compiled.topology.asynchronous)
    try:
        if is_async_only:
            outputs = asyncio.run(collect(compiled.astream({}, CONFIG)))
        else:
            outputs = list(compiled.stream({}, CONFIG))
    except NodeExecutionError as error:
        raise error.__cause__ from None
    chunks = [output.chunk for output in outputs if isinstance(output, StreamingOutput)]
    return SimpleNamespace(chunks=chunks, state=dict(outputs[-1].state), events=events, is_async=is_async_only)


# --- Composing --------------------------------------------------------------------------------------------------------


def can_wrap(hook, inside):
    """Whether a hook of this kind can wrap what is inside: a generator needs chunks that it can go through."""
    if hook == "chunks":
        return any(map(is_generator, inside)) and not any(map(is_async, inside))
    return hook != "later_chunks" or any(map(is_generator, inside))


class Failing:
    """The body of a node that raises the errors in turn, then counts its calls in the update."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, state):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return {"calls": self.calls}


def expect_attempts(errors, *, is_retried):
    """Return how often a node runs that raises the errors in turn, and the events of its three attempts at most."""
    events = []
    for attempt, error in enumerate(errors, 1):
        if not is_retried or not isinstance(error, ValueError):
            return attempt, events
        if attempt == 3:
            return attempt, [*events, ("retry.exhausted", attempt)]
        events.append(("retry.attempt", attempt))
    return len(errors) + 1, events


@pytest.mark.requirement("behaviour 18", "G26")
@settings(max_examples=examples(300))
@given(
    st.lists(st.sampled_from(KINDS), max_size=3),
    st.sampled_from(KINDS),
    st.lists(st.sampled_from([ValueError, ValueError, KeyError, TimeoutError]), max_size=4),
    st.sampled_from([None, "option", 0, 1, 2, 3]),
    st.sampled_from([None, LONG]),
)
def test_hooks_of_every_kind_around_functions_of_every_kind(outer, kind, errors, retried_by, timeout):
    """A policy is an option of the node, or one of the hooks."""
    kinds = [*outer, kind]
    for place, hook in enumerate(outer):
        assume(can_wrap(hook, kinds[place + 1 :]))
    errors = [error(number) for number, error in enumerate(errors)]
    failing = Failing(*errors)
    log = []
    events = []
    calls, retries = expect_attempts(errors, is_retried=retried_by is not None)
    policy = AT_ONCE.replace(retry_on=ValueError)
    hooks = [make_hooks(log, place)[hook] for place, hook in enumerate(outer)]
    inside = []
    if isinstance(retried_by, int):
        hooks.insert(retried_by, policy.as_hook())
        inside = [*range(len(outer))][retried_by:]

    def run_node():
        node = make_nodes(failing)[kind]
        retry = policy if retried_by == "option" else None
        return run(node, *hooks, retry=retry, timeout=timeout, events=events)

    if calls <= len(errors):
        with pytest.raises(type(errors[calls - 1])) as raised:
            run_node()
        assert raised.value is errors[calls - 1]
    else:
        result = run_node()
        assert result.is_async == any(map(is_async, kinds))
        # A generator starts over, so what it emitted comes again.
        assert result.chunks == (["chunk"] * calls if is_generator(kind) else [])
        assert result.state == {"calls": calls}
    assert failing.calls == calls
    assert log == [*range(len(outer)), *inside * (calls - 1)]  # the first is outermost
    assert retries_of(events) == retries


@pytest.mark.parametrize("answer", [None, {"cached": True}])
@pytest.mark.parametrize("hook_kind", ["plain", "later"])
@every_kind
def test_a_hook_may_answer_instead(hook_kind, kind, answer):
    def plain(node_id, state, config, call):
        return answer

    async def later(node_id, state, config, call):
        return answer

    node = make_nodes(lambda state: pytest.fail("the node ran"))[kind]
    around = make_hooks([], "around")["plain"]
    result = run(node, around, {"plain": plain, "later": later}[hook_kind], retry=AT_ONCE, timeout=LONG)
    assert (result.chunks, result.state) == ([], answer or {})


def test_a_hook_may_emit_chunks_where_the_function_has_none():
    def hook(node_id, state, config, call):
        yield "begun"
        return call()

    async def later_hook(node_id, state, config, call):
        yield "begun"
        yield Command(update=await call())

    for wrap in (hook, later_hook):
        result = run(lambda state: {"done": True}, wrap, retry=AT_ONCE, timeout=LONG)
        assert (result.chunks, result.state) == (["begun"], {"done": True})


def test_a_hook_may_change_chunks():
    def number(node_id, state, config, call):
        chunks = call()
        for position in itertools.count():
            try:
                yield f"{position}: {next(chunks)}"
            except StopIteration as end:
                return {**end.value, "count": position}

    async def shout(node_id, state, config, call):
        async for chunk in await call():
            yield chunk.upper() if isinstance(chunk, str) else chunk

    node = make_nodes(lambda state: {"done": True})["chunks"]
    result = run(node, number)
    assert (result.chunks, result.state) == (["0: chunk"], {"done": True, "count": 1})
    assert run(node, shout, number, retry=AT_ONCE, timeout=LONG).chunks == ["0: CHUNK"]


def test_a_hook_may_return_an_iterator_of_its_own():
    class Letters:
        def __init__(self):
            self.left = list("ab")

        def __aiter__(self):
            return self

        async def __anext__(self):
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    nodes = make_nodes(lambda state: None)
    for kind, make in (("chunks", lambda: iter("ab")), ("later_chunks", Letters), ("later_chunks", lambda: iter("ab"))):
        assert run(nodes[kind], lambda node_id, state, config, call, make=make: make()).chunks == ["a", "b"]


def test_a_command_of_a_plain_generator_stays_one_where_it_is_asynchronous():
    def chunks(state):
        yield "chunk"
        return Command("other", {"x": 1})

    result = run(chunks, make_hooks([], "hook")["later"])
    assert (result.chunks, result.state) == (["chunk"], {"x": 1, "other": True})


def test_nothing_runs_on_the_event_loop_that_may_block_it():
    threads = {}

    def node(state, config):
        threads["node"] = threading.get_ident()
        yield config.thread_id
        threads["next"] = threading.get_ident()

    def inner(node_id, state, config, call):
        threads["inner"] = threading.get_ident()
        return call()

    async def outer(node_id, state, config, call):
        threads["outer"] = threading.get_ident()
        return await call()

    assert run(node, outer, inner).chunks == ["t"]
    assert threads["outer"] == threading.get_ident()
    assert threading.get_ident() not in {threads["node"], threads["next"], threads["inner"]}


@pytest.mark.parametrize("raised", [ValueError("no"), StopIteration(3), KeyboardInterrupt()])
def test_what_is_raised_on_a_thread_comes_through(raised):
    def node(state):
        raise raised

    with pytest.raises(type(raised)) as caught:
        run(node, timeout=LONG)
    assert caught.value is raised

    # No coroutine can raise a StopIteration, as Python has it; but the hook does not wait for ever.
    expected = RuntimeError if isinstance(raised, StopIteration) else type(raised)

    async def hook(node_id, state, config, call):
        with pytest.raises(expected) as caught:
            await call()
        assert raised in {caught.value, caught.value.__cause__}
        return {"done": True}

    assert run(node, hook).state == {"done": True}


@pytest.mark.parametrize("timeout", [None, LONG])
@pytest.mark.parametrize(
    ("kind", "hook"), [("chunks", "plain"), ("chunks", "chunks"), ("chunks", "later"), ("later_chunks", "plain")]
)
def test_a_stream_that_is_closed_closes_everything_inside_and_is_not_retried(kind, hook, timeout):
    closed = []
    node = make_nodes(lambda state: pytest.fail("went on"), closed)[kind]
    compiled = make_graph(node, make_hooks([], "hook")[hook], retry=AT_ONCE, timeout=timeout).compile()
    for how in ("async",) if compiled.topology.asynchronous else ("async", "sync"):
        closed.clear()
        close_at(compiled, is_chunk, {}, how=how)
        assert closed == ["closed"]


# --- Retries ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G26", "behaviour 18")
@pytest.mark.parametrize("is_hook", [False, True])
def test_a_failed_attempt_is_an_event_and_the_next_one_waits_longer(is_hook):
    policy = RetryPolicy(max_attempts=3, initial_delay=0.002, jitter=False)
    hooks, retry = ([policy.as_hook()], None) if is_hook else ([], policy)
    failing = Failing(ValueError("one"), KeyError("two"), ValueError("last"))
    events = []
    started = monotonic()

    with pytest.raises(ValueError, match="last"):
        run(make_nodes(failing)["plain"], *hooks, retry=retry, events=events)

    assert monotonic() - started >= 0.006
    assert [dict(event.data) for event in events if event.type.startswith("retry.")] == [
        {"attempt": 1, "delay": 0.002, "error_type": "ValueError", "error": "one"},
        {"attempt": 2, "delay": 0.004, "error_type": "KeyError", "error": "'two'"},
        {"attempt": 3, "error_type": "ValueError", "error": "last"},
    ]


def test_a_failing_predicate_is_an_error_of_its_own():
    graph = make_graph(lambda state: {}["missing"], retry=RetryPolicy(retry_on=lambda error: 1 / 0))
    with pytest.raises(NodeExecutionError, match="ZeroDivisionError") as raised:
        graph.compile().invoke({})
    assert isinstance(raised.value.__cause__.__context__, KeyError)


def test_a_predicate_is_asked_once_about_each_failure():
    asked = []
    with pytest.raises(KeyError):
        run(lambda state: {}["missing"], retry=AT_ONCE.replace(retry_on=lambda error: not asked.append(error)))
    assert len(asked) == 3


def test_a_failed_attempt_takes_back_what_it_dispatched():
    attempts = itertools.count(1)

    def node(state, config):
        attempt = next(attempts)
        config.dispatch(f"from attempt {attempt}")
        if attempt < 3:
            raise ValueError

    def hook(node_id, state, config, call):
        config.dispatch("before")
        call()
        config.dispatch("after")

    assert run(node, hook, retry=AT_ONCE, timeout=LONG).chunks == ["before", "from attempt 3", "after"]


@pytest.mark.parametrize("use", ["option", "hook"])
def test_each_attempt_is_answered_from_where_it_began(use):
    heard = []
    end = fail_once(lambda: None)

    def node(state):
        heard.append(("node", interrupt("b"), interrupt("c")))
        end()

    def ask(node_id, state, config, call):
        heard.append(("hook", interrupt("a")))
        return call()

    hooks = [AT_ONCE.as_hook(), ask] if use == "hook" else [ask]
    graph = make_graph(node, *hooks, retry=AT_ONCE if use == "option" else None, timeout=LONG)
    app = graph.compile(checkpoint_saver=MemorySaver())
    app.invoke({}, CONFIG)
    for answer in "ABC":
        heard.clear()
        app.invoke(GraphResume(answer), CONFIG)
    of_hook, of_node = ("hook", "A"), ("node", "B", "C")
    assert heard == ([of_hook, of_node] * 2 if use == "hook" else [of_hook, of_node, of_node])


@pytest.mark.parametrize("raised", [GraphInterrupt("q"), KeyboardInterrupt(), SystemExit(1)])
def test_a_stop_is_not_retried(raised):
    failing = Failing(raised)
    graph = make_graph(failing, retry=AT_ONCE.replace(retry_on=lambda error: True), timeout=LONG)
    with nullcontext() if isinstance(raised, GraphInterrupt) else pytest.raises(type(raised)):
        graph.compile(checkpoint_saver=MemorySaver()).invoke({}, CONFIG)
    assert failing.calls == 1


async def test_a_cancelled_delay_ends_the_retries():
    failing = Failing(ValueError("one"))
    compiled = make_graph(make_nodes(failing)["later"], retry=RetryPolicy(initial_delay=LONG)).compile()

    task = asyncio.ensure_future(compiled.ainvoke({}))
    while failing.calls == 0:  # noqa: ASYNC110 - turns of the loop, not a wait
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert failing.calls == 1


# --- Timeouts ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def released():
    """What a plain function that is too late waits for; set when the test ends."""
    before = set(threading.enumerate())
    event = threading.Event()
    yield event
    event.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("graphkit-"):
            thread.join(LONG)


def make_late(kind, released):
    """A function of a kind that is too late, after a chunk if it has chunks."""

    async def later(state):
        await asyncio.sleep(LONG)

    async def later_chunks(state):
        yield "chunk"
        await asyncio.sleep(LONG)
        yield "late"

    nodes = make_nodes(lambda state: released.wait(LONG))
    return {**nodes, "later": later, "later_chunks": later_chunks}[kind]


@pytest.mark.parametrize("retry", [None, AT_ONCE.replace(retry_on=TimeoutError)])
@every_kind
def test_an_attempt_that_is_late_fails_and_is_retried_as_any_error_is(kind, retry, released):
    events = []
    with pytest.raises(TimeoutError, match=r"node 'n' took longer than its timeout of 0\.01 s"):
        run(make_late(kind, released), retry=retry, timeout=SHORT, events=events)
    retries = [event.type for event in events if event.type.startswith("retry.")]
    assert retries == ([] if retry is None else ["retry.attempt", "retry.attempt", "retry.exhausted"])


def test_each_attempt_has_the_whole_time(released):
    late = iter([released])

    def node(state):
        for event in late:
            event.wait(LONG)
        return {"done": True}

    assert run(node, retry=AT_ONCE, timeout=0.5).state == {"done": True}


@pytest.mark.parametrize("make_action", [lambda later: later, lambda later: TwoForms(lambda state: {}, later)])
def test_a_late_attempt_is_cancelled_and_may_clean_up(make_action):
    log = []

    async def later(state):
        try:
            await asyncio.sleep(LONG)
        finally:
            log.append("cleaned up")

    with pytest.raises(NodeExecutionError, match="node 'n' took longer than its timeout"):
        asyncio.run(make_graph(make_action(later), timeout=SHORT).compile().ainvoke({}))
    assert log == ["cleaned up"]


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, which only the test lets pass."""
    now = [0.0]
    monkeypatch.setattr("graphkit._plan.calls.monotonic", lambda: now[0])
    return now


def test_what_is_done_with_the_chunks_takes_no_time_of_the_generator(clock):
    compiled = make_graph(make_nodes(lambda state: {"done": True})["chunks"], timeout=LONG).compile()
    for output in compiled.stream({}):
        if isinstance(output, StreamingOutput):
            clock[0] += 10 * LONG
    assert output.state == {"done": True}


def test_the_time_of_a_generator_is_that_of_all_its_chunks(clock):
    def chunks(state):
        for chunk in range(3):
            clock[0] += 25
            yield chunk

    async def later_chunks(state):
        for chunk in range(3):
            await asyncio.sleep(0)
            clock[0] += 25
            yield chunk
        await asyncio.Event().wait()

    for node in (chunks, later_chunks):
        with pytest.raises(TimeoutError, match="of 60 s"):  # 75 seconds: none is left for the end
            run(node, timeout=LONG)


def test_a_generator_stays_on_one_thread_and_in_one_context_and_leaves_no_thread():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("around")
    seen = []

    def node(state, config):
        seen.append((threading.current_thread(), variable.get()))
        variable.set("inside")
        config.dispatch("dispatched")
        yield "chunk"
        seen.append((threading.current_thread(), variable.get()))

    assert run(node, timeout=LONG).chunks == ["chunk", "dispatched"]
    thread = seen[0][0]
    assert seen == [(thread, "around"), (thread, "inside")]
    assert variable.get() == "around"
    thread.join(LONG)
    assert thread is not threading.main_thread()
    assert thread.daemon
    assert not thread.is_alive()


def test_a_late_attempt_records_nothing_more():
    failed, ended, refused = threading.Event(), threading.Event(), []

    def node(state, config):
        config.once("in time", lambda: config.idempotency_key)
        for key in ("late", "in time"):
            try:
                config.once(key, lambda: failed.wait(LONG))
            except GraphRunnerError as error:
                refused.append((error.node_id, str(error)))
        ended.set()

    saver = MemorySaver()
    compiled = make_graph(node, timeout=0.5).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError, match="took longer"):
        compiled.invoke({}, CONFIG)
    failed.set()
    assert ended.wait(LONG)
    recorded = [value for key, value in saver.get_writes(CONFIG).items() if key.startswith("once:")]
    assert len(recorded) == 1
    assert isinstance(recorded[0], str)
    assert refused == [("n", "this attempt of node 'n' is over: nothing more is recorded for it")] * 2


def test_an_attempt_in_time_posts_its_events():
    result = run(process_chain(lambda value: {"done": True}), timeout=LONG)
    assert "chain.complete" in [event.type for event in result.events]


def test_a_late_generator_is_left_alone(released):
    ended = threading.Event()

    def node(state):
        try:
            released.wait(LONG)
            yield "late"
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        run(node, timeout=SHORT)
    assert not ended.is_set()
    released.set()
    assert ended.wait(LONG)


# --- The policy -------------------------------------------------------------------------------------------------------


def is_odd(error):
    return error.args[0] % 2 == 1


@pytest.mark.requirement("behaviour 18")
def test_the_defaults_are_those_of_java():
    policy = RetryPolicy()
    assert (policy.max_attempts, policy.initial_delay, policy.backoff, policy.max_delay) == (3, 0.5, 2.0, 128.0)
    assert (policy.jitter, policy.retry_on) == (True, (Exception,))


@pytest.mark.parametrize(
    ("wrong", "error", "reason"),
    [
        ({"max_attempts": 0}, ValueError, "max_attempts must be at least 1"),
        ({"max_attempts": 2.5}, TypeError, "max_attempts must be an int"),
        ({"initial_delay": -0.1}, ValueError, "initial_delay must be finite and at least 0"),
        ({"max_delay": float("inf")}, ValueError, "max_delay must be finite"),
        ({"backoff": 0.9}, ValueError, "backoff must be finite and at least 1"),
        ({"backoff": "2"}, TypeError, "backoff"),
        ({"retry_on": ()}, ValueError, "retry_on is empty"),
        ({"retry_on": "ValueError"}, TypeError, "not 'V"),
        ({"retry_on": str}, TypeError, "subclasses of Exception"),
        ({"retry_on": (ValueError, KeyboardInterrupt)}, TypeError, "KeyboardInterrupt, which is never retried"),
        ({"retry_on": GraphInterrupt}, TypeError, "GraphInterrupt"),
    ],
)
def test_what_is_refused(wrong, error, reason):
    with pytest.raises(error, match=reason):
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
def test_jitter_adds_up_to_the_delay_and_is_capped(chance, delays, monkeypatch):
    monkeypatch.setattr("random.random", lambda: chance)
    policy = RetryPolicy(initial_delay=2, backoff=3, max_delay=10)
    assert [policy.delay_after(n) for n in (1, 2, 3)] == delays
    assert RetryPolicy(initial_delay=2, jitter=False).delay_after(1) == 2


@pytest.mark.requirement("behaviour 18")
@pytest.mark.parametrize(
    ("retry_on", "error", "expected"),
    [
        (ValueError, ValueError(), True),
        (ValueError, KeyError(), False),
        ((ValueError, KeyError), KeyError(), True),
        ([OSError], TimeoutError(), True),
        ([KeyError, is_odd], ValueError(3), True),
        ([KeyError, is_odd], ValueError(2), False),
    ],
)
def test_which_errors_are_retried(retry_on, error, expected):
    assert RetryPolicy(retry_on=retry_on).retries(error, 1) is expected


def test_a_policy_pickles_and_compares():
    policy = RetryPolicy(max_attempts=7, retry_on=[ValueError, is_odd])
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(policy.replace(jitter=True))
    assert policy != policy.replace(jitter=False)
    assert pickle.loads(pickle.dumps(policy.as_hook())) == policy.as_hook()
    with pytest.raises(AttributeError):
        policy.max_attempts = 5


# --- Java's builder ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 18")
def test_the_builder_takes_times_and_several_errors():
    built = RetryPolicy.builder().retryDelay(timedelta(milliseconds=250)).maxInterval(timedelta(minutes=1))
    expected = RetryPolicy(initial_delay=0.25, max_delay=60, retry_on=(ValueError, KeyError))
    assert built.retryOn(ValueError, KeyError).build() == expected


# --- an action in two forms -------------------------------------------------------------------------------------------


def make_action(failures=0):
    used = []

    def note(form):
        used.append(form)
        if len(used) <= failures:
            raise OSError(form)
        return {"done": True}

    async def acall(state):
        asyncio.get_running_loop()
        return note("async")

    return TwoForms(lambda state: note("sync"), acall), used


@pytest.mark.parametrize("options", [{}, {"timeout": LONG}, {"retry": AT_ONCE}, {"retry": AT_ONCE, "timeout": LONG}])
def test_each_run_uses_its_form(options):
    for how in ("sync", "async"):
        action, used = make_action(failures=len(options.keys() & {"retry"}))
        assert invoke(make_graph(action, **options).compile(), {}, how=how)["done"]
        assert set(used) == {how}


def test_an_asynchronous_hook_awaits_and_a_synchronous_one_calls():
    async def ahook(node_id, state, config, call):
        return await call()

    def hook(node_id, state, config, call):
        return {"done": call()["done"]}

    for wrap, expected in ((ahook, "async"), (hook, "sync")):
        action, used = make_action()
        asyncio.run(make_graph(action, wrap).compile().ainvoke({}))
        assert used == [expected]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_executor_runs_the_synchronous_form(how):
    action, used = make_action()
    with ThreadPoolExecutor(1) as executor:
        graph = connect(StateGraph({}).add_node("n", action, executor=executor), "START>n n>END")
        assert invoke(graph.compile(), {}, how=how)["done"]
    assert used == ["sync"]
