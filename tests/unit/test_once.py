"""`config.once` and `aonce`: a side effect is recorded at once and repeated by no crash, retry or question."""

import asyncio
import threading

import pytest

from graphkit import END, GraphResume, RetryPolicy, interrupt
from graphkit.errors import CheckpointSerializationError, GraphRunnerError, NodeExecutionError
from graphkit.testing.fakes import ScriptedSaver
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import CONFIG, LOG, Killed, at_checkpoint, both, fail_once, invoke, make_chain, make_graph

pytestmark = pytest.mark.sweep(1, of=("saver", "how"), in_turn=True)


class Effect:
    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        return self.count

    async def later(self):
        await asyncio.sleep(0)
        return self()


class Charge:
    """A node with one effect, which then goes on as `then` says."""

    def __init__(self, then=None):
        self.effect = Effect()
        self.then = then or (lambda: None)
        self.keys = []

    def __call__(self, state, config):
        self.keys.append(config.idempotency_key)
        done = config.once("charge", self.effect)
        said = self.then()
        return {"log": [done] if said is None else [done, said]}


stored_somehow = pytest.mark.parametrize(
    "options",
    [
        {},
        {"durability": "async"},
        {"durability": "exit"},
        {"checkpoint_interval": 3},
        {"checkpoint_when": lambda node_id, state: False},
    ],
    ids=["sync", "async", "exit", "interval", "when"],
)


@pytest.mark.requirement("P82")
@stored_somehow
@both
def test_a_death_does_not_repeat_it(options, how):
    store = MemorySaver()
    dying = ScriptedSaver(store)

    def die():
        for method in ("put", "put_writes"):
            dying.fail(method, Killed(), times=None)
        raise Killed

    charge = Charge(die)
    graph = make_chain(a=lambda state: {"log": "a"}, b=charge)
    with pytest.raises(Killed):
        invoke(graph.compile(checkpoint_saver=dying, **options), {}, how=how)
    charge.then = lambda: None
    assert invoke(graph.compile(checkpoint_saver=store, **options), None, how=how)["log"] == ["a", 1]
    assert len(set(charge.keys)) == 1


@both
def test_a_death_in_a_subgraph_does_not_repeat_it(saver, how):
    charge = Charge(fail_once(lambda: None, Killed))
    graph = make_chain(s=make_chain(t=make_chain(p=charge).compile()).compile()).compile(checkpoint_saver=saver)
    with pytest.raises(Killed):
        invoke(graph, {}, how=how)
    assert invoke(graph, None, how=how)["log"] == [1]
    assert len(set(charge.keys)) == 1


@stored_somehow
@both
def test_a_question_does_not_repeat_it(saver, options, how):
    charge = Charge(lambda: interrupt("ok?"))
    graph = make_chain(a=lambda state: {"log": "a"}, b=charge).compile(checkpoint_saver=saver, **options)
    for given in ({}, None):
        invoke(graph, given, how=how)
    assert invoke(graph, GraphResume("ok"), how=how)["log"] == ["a", 1, "ok"]
    assert len(charge.keys) == 3
    assert len(set(charge.keys)) == 1


@both
def test_a_retry_does_not_repeat_it_and_after_a_resume_attempts_are_counted_from_one_again(saver, how):
    attempts = []

    def fail_thrice(state, config):
        attempts.append((config.attempt, config.idempotency_key, config.once("k", lambda: len(attempts))))
        if len(attempts) < 4:
            raise ValueError

    retry = RetryPolicy(max_attempts=3, initial_delay=0, jitter=False)
    app = make_chain(a=fail_thrice).compile(checkpoint_saver=saver, retry=retry)
    with pytest.raises(NodeExecutionError):
        invoke(app, {}, how=how)
    invoke(app, None, how=how)
    numbers, keys, effects = zip(*attempts, strict=True)
    assert numbers == (1, 2, 3, 1)
    assert len(set(keys)) == 1
    assert effects == (0, 0, 0, 0)


@both
def test_its_scope_is_one_visit(saver, how):
    charge = Charge()
    graph = make_graph(LOG, "START>a", a=charge)
    graph.add_conditional_edges("a", lambda state: "a" if len(state["log"]) < 3 else END)
    compiled = graph.compile(checkpoint_saver=saver, checkpoint_interval=2)
    assert invoke(compiled, {}, how=how)["log"] == [1, 2, 3]
    assert invoke(compiled, {"log": []}, how=how)["log"] == [1, 2, 3, 4]
    assert len(set(charge.keys)) == 4


def test_a_resume_from_the_past_is_a_visit_of_its_own(saver):
    charge = Charge()
    graph = make_chain(a=charge).compile(checkpoint_saver=saver)
    graph.invoke({}, CONFIG)
    before = graph.get_state_history(CONFIG)[-1]
    assert graph.invoke(None, before.config)["log"] == [2]
    assert len(set(charge.keys)) == 2


def test_an_update_while_it_waits_keeps_it_and_another_next_node_does_not(saver):
    charge = Charge(lambda: interrupt("ok?"))
    graph = make_chain(a=charge).compile(checkpoint_saver=saver)
    graph.invoke({}, CONFIG)
    graph.update_state(CONFIG, {"log": "u"})
    assert graph.invoke(GraphResume("ok"), CONFIG)["log"] == ["u", 1, "ok"]
    assert len(set(charge.keys)) == 1

    graph.invoke({}, CONFIG)
    graph.update_state(CONFIG, {}, goto="a")
    graph.invoke(None, CONFIG)
    assert charge.effect.count == 3


@pytest.mark.parametrize("result", [None, False, (1, [2]), {"a": {1, 2}}])
def test_any_result_that_can_be_stored(saver, result):
    effect = Effect()
    log = fail_once(lambda got: {"log": [got]})
    graph = make_chain(a=lambda state, config: log(config.once("k", lambda: effect() and result)))
    app = graph.compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError):
        app.invoke({}, CONFIG)

    assert app.invoke(None, CONFIG)["log"] == [result]
    assert effect.count == 1


def test_a_result_that_cannot_be_stored(tmp_path):
    graph = make_chain(a=lambda state, config: config.once("k", object))
    app = graph.compile(checkpoint_saver=FileSystemSaver(tmp_path))

    with pytest.raises(CheckpointSerializationError, match="once"):
        app.invoke({}, CONFIG)
    loop = []
    loop.append(loop)
    graph = make_chain(a=lambda state, config: config.once("k", lambda: loop))
    app = graph.compile(checkpoint_saver=MemorySaver())
    with pytest.raises(NodeExecutionError, match="cannot be stored"):
        app.invoke({}, CONFIG)


def test_a_result_cannot_be_changed_afterwards(saver):
    mine = [1]
    graph = make_chain(a=lambda state, config: {"log": config.once("k", lambda: mine)}).compile(checkpoint_saver=saver)
    graph.invoke({}, CONFIG)
    mine.append(2)

    writes = saver.get_writes(at_checkpoint(saver.list(CONFIG)[-1]))
    assert [*writes.values()] == [[1]]

    graph = make_chain(a=lambda state, config: config.once("k", lambda: [1]).append(2))

    with pytest.raises(NodeExecutionError, match="read-only"):
        graph.compile().invoke({})


def test_an_effect_that_fails_is_not_recorded(saver):
    effect = fail_once(lambda: "done")
    graph = make_chain(a=lambda state, config: {"log": config.once("k", effect)}).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError):
        graph.invoke({}, CONFIG)
    assert graph.invoke(None, CONFIG)["log"] == ["done"]


def test_a_record_that_fails_fails_the_node(list_saver):
    effect = Effect()
    saver = ScriptedSaver(list_saver).fail("put_writes", OSError("full"))
    graph = make_chain(a=lambda state, config: {"log": config.once("k", effect)}).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError, match="full"):
        graph.invoke({}, CONFIG)
    assert graph.invoke(None, CONFIG)["log"] == [2]


def test_asynchronously(saver):
    effect = Effect()
    log = fail_once(lambda done: {"log": done})

    async def node(state, config):
        return log(await config.aonce("k", effect.later))

    graph = make_chain(a=node).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError):
        invoke(graph, {}, how="async")
    assert invoke(graph, None, how="async")["log"] == [1]


async def test_a_cancelled_run_waits_for_the_record_of_an_effect():
    started, free = threading.Event(), threading.Event()
    saver = ScriptedSaver(MemorySaver()).on("put_writes", started.set).on("put_writes", lambda: free.wait(10))

    async def node(state, config):
        await config.aonce("k", Effect().later)

    task = asyncio.ensure_future(make_chain(a=node).compile(checkpoint_saver=saver).ainvoke({}, CONFIG))
    await asyncio.to_thread(started.wait, 10)
    task.cancel()
    assert await asyncio.wait([task], timeout=0.1) == (set(), {task})

    free.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [*saver.get_writes(CONFIG)] == ["once::k"]


@pytest.mark.parametrize("key", [7, b"k", None, object()])
def test_a_key_that_is_no_text_is_refused_before_the_effect(saver, key):
    effect = Effect()
    app = make_chain(a=lambda state, config: config.once(key, effect)).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError, match="the key of once must be a str"):
        app.invoke({}, CONFIG)
    assert effect.count == 0


def test_without_a_saver_and_outside_a_node():
    charge = Charge()
    app = make_chain(a=charge, b=charge).compile()
    final = app.invoke({})
    assert final["log"] == [1, 2]
    with pytest.raises(GraphRunnerError):
        _ = CONFIG.attempt
    with pytest.raises(GraphRunnerError, match="inside a node"):
        CONFIG.once("k", charge.effect)
    with pytest.raises(GraphRunnerError, match="inside a node"):
        asyncio.run(CONFIG.aonce("k", charge.effect.later))
