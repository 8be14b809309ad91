"""One call with what surrounds it: the order of hooks, retries and timeouts, for every kind of function. Behaviour 18."""

import asyncio
import contextvars
import functools
import inspect
import itertools
import multiprocessing
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor
from queue import Empty, SimpleQueue

import pytest

from graphkit import Command, GraphInterrupt, interrupt
from graphkit._engine import calls
from graphkit._engine.calls import compose_call
from graphkit._plan.retry import RetryPolicy
from graphkit._plan.topology import Call
from graphkit._records.context import CURRENT_NODE_CONTEXT, NodeContext
from graphkit.errors import GraphRunnerError

AT_ONCE = RetryPolicy(initial_delay=0)
LONG = 60
"""Seconds that no test waits."""
SHORT = 0.01


class Journal:
    """Keeps what a visit records and tells."""

    def __init__(self):
        self.kept = {}
        self.told = []

    def idempotency_key(self, visit):
        return f"place of {visit.node_id}"

    def find_result(self, visit, key):
        return key in self.kept, self.kept.get(key)

    def record_result(self, visit, key, value):
        self.kept[key] = value
        return value

    def post_event(self, visit, type, data):
        self.told.append(type)


@pytest.fixture
def visit():
    visit = NodeContext("n", (), frozenset(), journal=Journal())
    token = CURRENT_NODE_CONTEXT.set(visit)
    yield visit
    CURRENT_NODE_CONTEXT.reset(token)


# Functions of each kind that say they ran, and hooks of each kind that say when.


def functions(log):
    def plain(state, config):
        log.append("node")
        return {"got": [state, config]}

    async def later(state, config):
        log.append("node")
        return {"got": [state, config]}

    def chunks(state, config):
        log.append("node")
        yield "chunk"
        return {"got": [state, config]}

    async def later_chunks(state, config):
        log.append("node")
        yield "chunk"
        yield Command(update={"got": [state, config]})

    return {"plain": plain, "later": later, "chunks": chunks, "later_chunks": later_chunks}


def hooks(log, name):
    def plain(node_id, state, config, call):
        log.append(f"{name}({node_id}, {state}, {config})")
        result = call()
        log.append(f"/{name}")
        return result

    async def later(node_id, state, config, call):
        log.append(f"{name}({node_id}, {state}, {config})")
        result = await call()
        log.append(f"/{name}")
        return result

    def chunks(node_id, state, config, call):
        log.append(f"{name}({node_id}, {state}, {config})")
        result = yield from call()
        log.append(f"/{name}")
        return result

    async def later_chunks(node_id, state, config, call):
        log.append(f"{name}({node_id}, {state}, {config})")
        async for chunk in call():
            yield chunk
        log.append(f"/{name}")

    return {"plain": plain, "later": later, "chunks": chunks, "later_chunks": later_chunks}


KINDS = ["plain", "later", "chunks", "later_chunks"]


def kind_of(result):
    if inspect.isasyncgen(result):
        return "later_chunks"
    if inspect.isgenerator(result):
        return "chunks"
    return "later" if inspect.isawaitable(result) else "plain"


async def settled(result):
    """What came of a call: its chunks, and its update."""
    if inspect.isasyncgen(result):
        chunks = [chunk async for chunk in result]
        is_last = chunks and isinstance(chunks[-1], Command)
        return (chunks[:-1], chunks[-1].update) if is_last else (chunks, None)
    if inspect.isgenerator(result):
        chunks = []
        while True:
            try:
                chunks.append(next(result))
            except StopIteration as end:
                return chunks, end.value
    return [], await result if inspect.isawaitable(result) else result


def run(call, state="s", config="c"):
    return asyncio.run(settled_call(call, state, config))


async def settled_call(call, state="s", config="c"):
    assert call.takes_config
    result = call.function(state, config)
    promised = {(False, False): "plain", (True, False): "later", (False, True): "chunks", (True, True): "later_chunks"}
    assert kind_of(result) == promised[call.is_async, call.is_generator]
    return await settled(result)


def is_generator(kind):
    return "chunks" in kind


def is_async(kind):
    return "later" in kind


# --- Composing --------------------------------------------------------------------------------------------------------


def test_with_nothing_to_add_it_is_the_call_itself():
    call = Call(lambda state: None)
    assert compose_call(call, "n", (), None, None) is call


def can_go_through(hook, *inside):
    """Whether a hook as written above can: a generator needs chunks inside, of a sort it can go through."""
    if hook == "chunks":
        return any(map(is_generator, inside)) and not any(map(is_async, inside))
    return hook != "later_chunks" or any(map(is_generator, inside))


NESTS = [
    (outer, inner, kind)
    for outer, inner, kind in itertools.product(KINDS, KINDS, KINDS)
    if can_go_through(inner, kind) and can_go_through(outer, inner, kind)
]


@pytest.mark.sweep(1, of=("retry", "timeout"), in_turn=True)
@pytest.mark.parametrize(("outer", "inner", "kind"), NESTS)
@pytest.mark.parametrize(("retry", "timeout"), [(None, None), (AT_ONCE, None), (None, LONG), (AT_ONCE, LONG)])
def test_hooks_of_every_kind_around_functions_of_every_kind(outer, inner, kind, retry, timeout):  # behaviour 18
    log = []
    wraps = [Call(hooks(log, "outer")[outer]), Call(hooks(log, "inner")[inner])]
    call = compose_call(Call(functions(log)[kind]), "n", wraps, retry, timeout)
    assert call.is_async == any(map(is_async, [outer, inner, kind]))
    assert call.is_generator == any(map(is_generator, [outer, inner, kind]))
    chunks, update = run(call)
    assert update == {"got": ["s", "c"]}
    assert chunks == (["chunk"] if is_generator(kind) else [])
    assert log[0] == "outer(n, s, c)"  # the first is outermost
    assert [one for one in log if "/" not in one] == ["outer(n, s, c)", "inner(n, s, c)", "node"]


def test_an_update_passes_all_hooks_from_the_inside_out():
    def adding(word):
        return Call(lambda node_id, state, config, call: {"log": [*call()["log"], word]})

    call = compose_call(Call(lambda state: {"log": ["node"]}), "n", [adding("outer"), adding("inner")], AT_ONCE)
    assert run(call) == ([], {"log": ["node", "inner", "outer"]})


def test_a_function_is_called_with_the_config_only_if_it_takes_it():
    hook = Call(lambda node_id, state, config, call: call())
    assert run(compose_call(Call(lambda state: state), "n", [hook])) == ([], "s")
    assert run(compose_call(Call(lambda state, config: config), "n", [hook])) == ([], "c")


@pytest.mark.parametrize("hook_kind", ["plain", "later"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("around", ["plain", "later"])
def test_a_hook_may_answer_instead(hook_kind, kind, around):
    log = []

    def plain(node_id, state, config, call):
        return {"cached": True}

    async def later(node_id, state, config, call):
        return {"cached": True}

    wraps = [Call(hooks(log, "around")[around]), Call({"plain": plain, "later": later}[hook_kind])]
    call = compose_call(Call(functions(log)[kind]), "n", wraps, AT_ONCE, LONG)
    assert run(call) == ([], {"cached": True})
    assert "node" not in log


def test_a_hook_may_answer_nothing_where_chunks_were_foreseen():
    async def hook(node_id, state, config, call):
        return None

    async def all_of(call):
        return [chunk async for chunk in call.function("s", "c")]

    assert asyncio.run(all_of(compose_call(Call(functions([])["chunks"]), "n", [Call(hook)]))) == []


def test_a_hook_may_hand_out_chunks_where_the_function_has_none():
    def hook(node_id, state, config, call):
        yield "begun"
        return call()

    async def later_hook(node_id, state, config, call):
        yield "begun"
        yield Command(update=await call())

    for one in (hook, later_hook):
        call = compose_call(Call(functions([])["plain"]), "n", [Call(one)], AT_ONCE, LONG)
        assert run(call) == (["begun"], {"got": ["s", "c"]})


def test_a_hook_may_change_chunks():
    def numbered(node_id, state, config, call):
        chunks = call()
        for number in itertools.count():
            try:
                yield f"{number}: {next(chunks)}"
            except StopIteration as end:
                return {**end.value, "chunks": number}

    async def upper(node_id, state, config, call):
        async for chunk in await call():
            yield chunk.upper() if isinstance(chunk, str) else chunk

    chunks = functions([])["chunks"]
    assert run(compose_call(Call(chunks), "n", [Call(numbered)])) == (["0: chunk"], {"got": ["s", "c"], "chunks": 1})
    wraps = [Call(upper), Call(numbered)]
    assert run(compose_call(Call(chunks), "n", wraps, AT_ONCE, LONG))[0] == ["0: CHUNK"]


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

    chunks = functions([])["chunks"]
    assert run(compose_call(Call(chunks), "n", [Call(lambda n, s, c, call: iter("ab"))])) == (["a", "b"], None)
    later = functions([])["later_chunks"]
    assert run(compose_call(Call(later), "n", [Call(lambda n, s, c, call: Letters())])) == (["a", "b"], None)
    assert run(compose_call(Call(later), "n", [Call(lambda n, s, c, call: iter("ab"))])) == (["a", "b"], None)


def test_a_command_of_a_plain_generator_stays_one_where_it_is_asynchronous():
    def chunks(state):
        yield "chunk"
        return Command("there", {"x": 1})

    async def hook(node_id, state, config, call):
        return await call()

    async def all_of(call):
        return [chunk async for chunk in call.function("s", "c")]

    call = compose_call(Call(chunks), "n", [Call(hook)])
    assert asyncio.run(all_of(call)) == ["chunk", Command("there", {"x": 1})]


def test_nothing_runs_on_the_event_loop_that_may_block_it():
    threads = {}

    def node(state):
        threads["node"] = threading.get_ident()
        yield CURRENT_NODE_CONTEXT.get().node_id
        threads["next"] = threading.get_ident()

    def inner(node_id, state, config, call):
        threads["inner"] = threading.get_ident()
        return call()

    async def outer(node_id, state, config, call):
        threads["outer"] = threading.get_ident()
        return await call()

    async def in_a_visit(call):
        CURRENT_NODE_CONTEXT.set(NodeContext("n", (), frozenset()))
        return await settled_call(call)

    assert asyncio.run(in_a_visit(compose_call(Call(node), "n", [Call(outer), Call(inner)]))) == (["n"], None)
    assert threads["outer"] == threading.get_ident()
    assert threading.get_ident() not in {threads["node"], threads["next"], threads["inner"]}


RAISED = [ValueError("no"), StopIteration(3), GraphInterrupt("q"), KeyboardInterrupt()]


@pytest.mark.parametrize("raised", RAISED)
def test_what_is_raised_on_the_thread_of_an_attempt_comes_through(raised):
    with pytest.raises(type(raised)) as seen:
        compose_call(Call(raising(raised)), "n", [], None, LONG).function("s", "c")
    assert seen.value is raised


@pytest.mark.parametrize("raised", RAISED)
def test_what_is_raised_on_a_thread_comes_through(raised):
    # No coroutine can raise a StopIteration, as Python has it; but nobody waits for ever.
    expected = RuntimeError if isinstance(raised, StopIteration) else type(raised)

    async def hook(node_id, state, config, call):
        with pytest.raises(expected) as seen:
            await call()
        return seen.value

    error = run(compose_call(Call(raising(raised)), "n", [Call(hook)]))[1]
    assert raised in {error, error.__cause__}


def test_a_cancellation_waits_for_a_thread():
    started, free, log = threading.Event(), threading.Event(), []

    def node(state):
        started.set()
        assert free.wait(LONG)
        log.append("node ended")

    async def hook(node_id, state, config, call):
        return await call()

    async def cancel():
        task = asyncio.ensure_future(compose_call(Call(node), "n", [Call(hook)]).function("s", "c"))
        await asyncio.to_thread(started.wait, LONG)
        for _ in range(2):  # once is as good as twice
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        free.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        log.append("cancelled")

    asyncio.run(cancel())
    assert log == ["node ended", "cancelled"]


@pytest.mark.parametrize("timeout", [None, LONG])
@pytest.mark.parametrize("kind", ["plain", "later", "chunks"])
def test_a_stream_that_is_closed_closes_everything_inside(kind, timeout):
    log = []

    def node(state):
        try:
            yield 1
        finally:
            log.append("closed")

    def hook(node_id, state, config, call):
        yield from call()

    wraps = {"plain": [], "chunks": [Call(hook)], "later": [Call(hooks(log, "outer")["later"])]}[kind]
    call = compose_call(Call(node), "n", wraps, AT_ONCE, timeout)

    async def close():
        stream = call.function("s", "c")
        if call.is_async:
            assert await anext(stream) == 1
            await stream.aclose()
        else:
            assert next(stream) == 1
            stream.close()
        assert log[-1] == "closed"

    asyncio.run(close())


@pytest.mark.parametrize("timeout", [None, LONG])
def test_an_asynchronous_stream_that_is_closed_closes_everything_inside(timeout):
    log = []

    async def node(state):
        try:
            yield 1
        finally:
            log.append("closed")

    async def close():
        call = compose_call(Call(node), "n", [Call(hooks(log, "outer")["plain"])], AT_ONCE, timeout)
        stream = call.function("s", "c")
        assert await anext(stream) == 1
        await stream.aclose()
        assert log[-1] == "closed"

    asyncio.run(close())


def test_what_is_thrown_into_a_stream_closes_everything_inside():
    log = []

    def node(state):
        try:
            yield 1
        finally:
            log.append("closed")

    async def throw():
        stream = compose_call(Call(node), "n", [Call(hooks(log, "outer")["later"])]).function("s", "c")
        assert await anext(stream) == 1
        with pytest.raises(KeyError, match="mine") as held:  # noqa: F841 - holds the frames that hold the generator
            await stream.athrow(KeyError("mine"))
        assert log[-1] == "closed"

    asyncio.run(throw())


# --- Retries ----------------------------------------------------------------------------------------------------------


def flaky(kind, failures, log):
    """A function of a kind that fails so many times, with the visit's attempt in the log."""

    def body():
        visit = CURRENT_NODE_CONTEXT.get()
        log.append(visit.attempt if visit else None)
        if len(log) <= failures:
            raise ValueError(f"failure {len(log)}")
        return {"ran": len(log)}

    def plain(state):
        return body()

    async def later(state):
        return body()

    def chunks(state):
        yield "chunk"
        return body()

    async def later_chunks(state):
        yield "chunk"
        yield Command(update=body())

    return Call({"plain": plain, "later": later, "chunks": chunks, "later_chunks": later_chunks}[kind])


@pytest.mark.parametrize("timeout", [None, LONG])
@pytest.mark.parametrize("kind", KINDS)
def test_what_failed_is_run_again_inside_the_hooks(kind, timeout, visit):  # behaviour 18, G26
    attempts, log = [], []
    hook = Call(hooks(log, "hook")["plain"])
    chunks, update = run(compose_call(flaky(kind, 2, attempts), "n", [hook], AT_ONCE, timeout))
    assert (attempts, update) == ([1, 2, 3], {"ran": 3})
    assert visit.attempt == 3  # H35: the engine tells a clean step by this
    assert chunks == (["chunk"] * 3 if is_generator(kind) else [])
    assert log == ["hook(n, s, c)", "/hook"]
    assert visit.journal.told == ["retry.attempt", "retry.attempt"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_visit_it_is_run_again_too(kind):
    attempts = []
    assert run(compose_call(flaky(kind, 2, attempts), "n", [], AT_ONCE, LONG))[1] == {"ran": 3}
    assert attempts == [None, None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_failure_comes_out(kind, visit):
    with pytest.raises(ValueError, match="failure 3"):
        run(compose_call(flaky(kind, 9, []), "n", [], AT_ONCE, LONG))
    assert visit.journal.told == ["retry.attempt", "retry.attempt", "retry.exhausted"]


def test_a_policy_as_a_hook_retries_the_hooks_inside_it(visit):  # behaviour 18
    attempts, log = [], []
    wraps = [Call(hooks(log, "outer")["plain"]), Call(AT_ONCE.as_hook()), Call(hooks(log, "inner")["plain"])]
    assert run(compose_call(flaky("plain", 1, attempts), "n", wraps))[1] == {"ran": 2}
    assert attempts == [1, 2]
    assert log == ["outer(n, s, c)", "inner(n, s, c)", "inner(n, s, c)", "/inner", "/outer"]


def test_a_policy_inside_a_policy_counts_all_attempts(visit):
    attempts = []
    twice = RetryPolicy(initial_delay=0, max_attempts=2)
    run(compose_call(flaky("plain", 3, attempts), "n", [Call(twice.as_hook())], twice))
    assert attempts == [1, 2, 3, 4]


def test_a_hook_may_call_again_by_itself(visit):
    attempts = []

    def stubborn(node_id, state, config, call):
        while True:
            try:
                return call()
            except ValueError:
                visit.outputs.append("sorry")

    assert run(compose_call(flaky("plain", 2, attempts), "n", [Call(stubborn)]))[1] == {"ran": 3}
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize("timeout", [None, LONG])
def test_a_failed_attempt_takes_back_what_it_dispatched(visit, timeout):
    def node(state):
        now = CURRENT_NODE_CONTEXT.get()
        now.outputs.append(f"from attempt {now.attempt}")
        if now.attempt < 3:
            raise ValueError

    def hook(node_id, state, config, call):
        visit.outputs.append("from the hook")
        call()
        visit.outputs.append("after")

    run(compose_call(Call(node), "n", [Call(hook)], AT_ONCE, timeout))
    assert visit.outputs == ["from the hook", "from attempt 3", "after"]


@pytest.mark.parametrize("timeout", [None, LONG])
@pytest.mark.parametrize("policy_is_outside", [False, True])
def test_each_attempt_is_answered_from_where_it_began(timeout, policy_is_outside):
    failed, heard = [], []

    def node(state):
        heard.append(("node", interrupt("b"), interrupt("c")))
        if not failed:
            failed.append(1)
            raise ValueError

    def asking(node_id, state, config, call):
        heard.append(("hook", interrupt("a")))
        return call()

    visit = NodeContext("n", ("A", "B", "C"), frozenset())
    token = CURRENT_NODE_CONTEXT.set(visit)
    try:
        wraps = [Call(AT_ONCE.as_hook()), Call(asking)] if policy_is_outside else [Call(asking)]
        run(compose_call(Call(node), "n", wraps, None if policy_is_outside else AT_ONCE, timeout))
    finally:
        CURRENT_NODE_CONTEXT.reset(token)
    asked, told = ("hook", "A"), ("node", "B", "C")
    assert heard == ([asked, told, asked, told] if policy_is_outside else [asked, told, told])
    assert visit.interrupt_calls == 3


@pytest.mark.parametrize("timeout", [None, LONG])
@pytest.mark.parametrize("raised", [GraphInterrupt("q"), KeyboardInterrupt(), SystemExit(1)])
def test_a_stop_is_not_retried(visit, raised, timeout):
    runs = []

    def node(state):
        runs.append(1)
        raise raised

    with pytest.raises(type(raised)) as seen:
        compose_call(Call(node), "n", [], RetryPolicy(), timeout).function("s", "c")
    assert seen.value is raised
    assert (len(runs), visit.journal.told) == (1, [])


def test_a_question_is_counted_in_an_attempt_with_a_timeout(visit):
    with pytest.raises(GraphInterrupt):
        compose_call(Call(lambda state: interrupt("q")), "n", [], AT_ONCE, LONG).function("s", "c")
    assert visit.interrupt_calls == 1


def test_calls_do_not_know_of_each_other(visit):
    attempts = []
    call = compose_call(flaky("plain", 1, attempts), "n", [], AT_ONCE)
    run(call)
    CURRENT_NODE_CONTEXT.set(NodeContext("n", (), frozenset()))
    run(call)
    assert attempts == [1, 2, 1]


# --- Timeouts ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def late():
    """What makes a plain function late; it ends with the test."""
    before = set(threading.enumerate())
    free = threading.Event()
    yield free
    free.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("graphkit-"):
            thread.join(LONG)


def slow(kind, free):
    """A function of a kind that is late, after a chunk if it has chunks."""

    def plain(state):
        free.wait(LONG)

    async def later(state):
        await asyncio.sleep(LONG)

    def chunks(state):
        yield "chunk"
        free.wait(LONG)
        yield "late"

    async def later_chunks(state):
        yield "chunk"
        await asyncio.sleep(LONG)
        yield "late"

    return Call({"plain": plain, "later": later, "chunks": chunks, "later_chunks": later_chunks}[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_that_is_late_fails(kind, late):
    with pytest.raises(TimeoutError, match=r"node 'n' took longer than its timeout of 0\.01 s"):
        run(compose_call(slow(kind, late), "n", [], None, SHORT))


@pytest.mark.parametrize("kind", KINDS)
def test_lateness_is_retried_as_any_error_is(kind, late, visit):
    with pytest.raises(TimeoutError, match="node 'n'"):
        run(compose_call(slow(kind, late), "n", [], AT_ONCE.replace(retry_on=TimeoutError), SHORT))
    assert visit.attempt == 3
    assert visit.journal.told == ["retry.attempt", "retry.attempt", "retry.exhausted"]


def test_each_attempt_has_the_whole_time(monkeypatch):
    allowed = []

    class FirstIsLate(SimpleQueue):
        def get(self, timeout=None):
            if timeout is not None:
                allowed.append(timeout)
                if len(allowed) == 1:
                    raise Empty
            return super().get(timeout=timeout)

    monkeypatch.setattr(calls, "SimpleQueue", FirstIsLate)
    assert run(compose_call(Call(lambda state: {"done": True}), "n", [], AT_ONCE, LONG)) == ([], {"done": True})
    assert allowed == [LONG, LONG]


def test_a_late_attempt_is_cancelled_and_may_tidy_up():
    log = []

    async def node(state):
        try:
            await asyncio.sleep(LONG)
        finally:
            log.append("tidied")

    with pytest.raises(TimeoutError, match="node 'n'"):
        run(compose_call(Call(node), "n", [], None, SHORT))
    assert log == ["tidied"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_may_raise_a_timeout_of_its_own(kind):
    own = TimeoutError("mine")
    calls = {
        "plain": raising(own),
        "later": later_raising(own),
        "chunks": chunks_raising(own),
        "later_chunks": later_chunks_raising(own),
    }
    with pytest.raises(TimeoutError) as raised:
        run(compose_call(Call(calls[kind]), "n", [], None, LONG))
    assert raised.value is own


def raising(error):
    def node(state):
        raise error

    return node


def later_raising(error):
    async def node(state):
        raise error

    return node


def chunks_raising(error):
    def node(state):
        yield 1
        raise error

    return node


def later_chunks_raising(error):
    async def node(state):
        yield 1
        raise error

    return node


def test_an_awaitable_that_could_not_be_foreseen_is_late_and_retried_too(late):
    slow_one = slow("later", late).function
    call = compose_call(Call(functools.partial(lambda f, state: f(state), slow_one)), "n", [], AT_ONCE, SHORT)
    assert not call.is_async

    async def awaited():
        return await call.function("s", "c")

    with pytest.raises(TimeoutError, match="node 'n'"):
        asyncio.run(awaited())


def test_what_is_done_with_the_chunks_takes_no_time_of_the_generator(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(calls, "monotonic", lambda: now[0])
    stream = compose_call(Call(functions([])["chunks"]), "n", [], None, LONG).function("s", "c")
    assert next(stream) == "chunk"
    now[0] += 10 * LONG
    with pytest.raises(StopIteration):
        next(stream)


def test_the_time_of_a_generator_is_that_of_all_its_chunks(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(calls, "monotonic", lambda: now[0])

    def node(state):
        for chunk in range(3):
            now[0] += 25
            yield chunk

    stream = compose_call(Call(node), "n", [], None, LONG).function("s", "c")
    assert [next(stream), next(stream), next(stream)] == [0, 1, 2]  # 75 seconds: none is left for the end
    with pytest.raises(TimeoutError, match="of 60 s"):
        next(stream)


def test_the_time_of_an_asynchronous_generator_is_that_of_all_its_chunks_too(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(calls, "monotonic", lambda: now[0])

    async def node(state):
        for chunk in range(4):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            now[0] += 25
            yield chunk

    async def some():
        stream = compose_call(Call(node), "n", [], None, LONG).function("s", "c")
        seen = [await anext(stream), await anext(stream), await anext(stream)]
        now[0] += 10 * LONG
        with pytest.raises(TimeoutError, match="of 60 s"):
            await anext(stream)
        return seen

    assert asyncio.run(some()) == [0, 1, 2]


def test_a_generator_stays_on_one_thread_and_in_one_context():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("around")
    seen = []

    def node(state):
        seen.append((threading.get_ident(), variable.get()))
        variable.set("inside")
        yield
        seen.append((threading.get_ident(), variable.get()))

    run(compose_call(Call(node), "n", [], None, LONG))
    (first, before), (second, after) = seen
    assert (first == second, before, after, variable.get()) == (True, "around", "inside", "around")
    assert first != threading.get_ident()


def test_a_late_attempt_records_and_dispatches_nothing_more(visit, monkeypatch):
    recorded, given_up, went_on, heard = threading.Event(), threading.Event(), threading.Event(), []

    class Late(SimpleQueue):
        def get(self, timeout=None):
            if timeout is None:
                return super().get()
            assert recorded.wait(LONG)
            raise Empty

    monkeypatch.setattr(calls, "SimpleQueue", Late)

    def node(state):
        mine = CURRENT_NODE_CONTEXT.get()
        mine.journal.record_result(mine, "in time", 1)
        mine.post_event("custom", {})
        mine.outputs.append("never seen")
        recorded.set()
        given_up.wait(LONG)
        mine.outputs.append("late")
        mine.post_event("late", {})
        for late in (
            lambda: mine.journal.record_result(mine, "late", 2),
            lambda: mine.journal.find_result(mine, "in time"),
        ):
            try:
                late()
            except GraphRunnerError as error:
                heard.append((error.node_id, str(error)))
        went_on.set()

    with pytest.raises(TimeoutError):
        compose_call(Call(node), "n", [], None, SHORT).function("s", "c")
    given_up.set()
    assert went_on.wait(LONG)
    assert visit.journal.kept == {"in time": 1}
    assert (visit.journal.told, visit.outputs) == (["custom"], [])
    assert heard == [("n", "this attempt of node 'n' is over: nothing more is recorded for it")] * 2


def test_an_attempt_in_time_records_and_dispatches(visit):
    def node(state):
        mine = CURRENT_NODE_CONTEXT.get()
        mine.outputs.append("one")
        yield mine.journal.record_result(mine, "key", 1)
        mine.outputs.append("two")
        yield mine.journal.find_result(mine, "key")
        yield mine.journal.idempotency_key(mine)

    stream = compose_call(Call(node), "n", [], None, LONG).function("s", "c")
    assert (next(stream), visit.outputs) == (1, ["one"])
    assert (next(stream), visit.outputs) == ((True, 1), ["one", "two"])
    assert next(stream) == "place of n"
    stream.close()


def test_a_late_generator_is_left_alone(late):
    ended = threading.Event()

    def node(state):
        try:
            late.wait(LONG)
            yield "late"
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        run(compose_call(Call(node), "n", [], None, SHORT))
    assert not ended.is_set()
    late.set()
    assert ended.wait(LONG)  # its thread ends with it


def test_no_thread_is_left_behind():
    before = set(threading.enumerate())
    call = compose_call(Call(lambda state: threading.current_thread()), "n", [], None, LONG)
    thread = call.function("s", "c")
    thread.join(LONG)
    assert thread.daemon
    assert set(threading.enumerate()) <= before


# --- In another process -----------------------------------------------------------------------------------------------


def fails_first(state, config, calls=itertools.count(1)):  # noqa: B008 - counts in the process it runs in
    if next(calls) < 3:
        raise ValueError
    return {"got": [state, config], "visit": CURRENT_NODE_CONTEXT.get()}


def outermost(node_id, state, config, call):
    return {**call(), "by": node_id}


def test_a_composed_call_travels_to_another_process():  # behaviour 18
    call = compose_call(Call(fails_first), "n", [Call(outermost)], AT_ONCE, LONG)
    assert pickle.loads(pickle.dumps(call)).takes_config
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        result = pool.submit(call.function, {"x": 1}, "c").result(LONG)
    assert result == {"got": [{"x": 1}, "c"], "visit": None, "by": "n"}
