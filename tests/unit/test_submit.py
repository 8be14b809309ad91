"""Submitted runs: what `submit` stores and refuses, and that a run begins once, wherever."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Annotated, TypedDict

import pytest

from graphkit import (
    END,
    RESET,
    START,
    Channels,
    Checkpoint,
    GraphResume,
    RunnableConfig,
    StateGraph,
    interrupt,
    operations,
)
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    GraphRunnerError,
    ThreadBusyError,
)
from graphkit.operations import submit
from graphkit.saver_kit import freeze
from graphkit.worker import Worker
from savers import FileSystemSaver, MemorySaver, VersionedMemorySaver
from tests.support.graphs import LOG, ConcurrentCalls, leave_with_status, log_node, make_chain
from tests.support.savers import contents, saver_fixture
from tests.support.workers import PATIENCE, log_of, serving, status_everywhere as status


class Closed(TypedDict, total=False):
    log: list
    secret: Annotated[str, Channels.transient()]


DEFAULTED = {**LOG, "seen": Channels.appender(lambda: ["default"])}
T = RunnableConfig("t")
LATER = timedelta(days=1)


saver = saver_fixture(lock_timeout=0)


@pytest.fixture
def store(tmp_path):
    """A store whose writers wait for each other: two threads may share a lock file, by the hash of their ids."""
    with FileSystemSaver(tmp_path / "runs", fsync="never") as saver:
        yield saver


def now():
    return datetime.now(UTC)


@pytest.fixture
def app(saver):
    return make_app(saver)


def make_app(saver, schema=LOG, **options):
    return make_chain(schema, a=log_node("a"), b=log_node("b")).compile(checkpoint_saver=saver, **options)


# What is stored


@pytest.mark.requirement("W2")
def test_a_submitted_run_is_queued_until_it_begins(app, saver):
    assert app.submit({"log": "in"}, T) == T
    assert status(saver) == "queued"

    (checkpoint,) = saver.list(T)
    assert (checkpoint.node_id, checkpoint.next_node_id) == (START, START)
    assert (checkpoint.parent_id, dict(checkpoint.state)) == (None, {})
    assert app.invoke(None, T)["log"] == ["in", "a", "b"]
    assert status(saver) == "finished"
    infos = saver.history(T)
    assert [info.metadata["source"] for info in infos] == ["loop", "loop", "input", "submit"]
    assert [info.stopped for info in infos] == ["", "", "", "queued"]
    assert "graphkit:submit" not in infos[0].metadata


def test_a_run_that_was_submitted_is_that_of_invoke(saver):
    app = make_app(saver, DEFAULTED)
    given = {"log": RESET, "x": 1}
    metadata = {"who": "me", "run_id": "mine"}
    invoked, submitted = (RunnableConfig(thread, metadata=metadata) for thread in ("invoked", "submitted"))
    app.invoke(given, invoked)
    app.submit(given, submitted)
    assert "run_id" not in saver.get(submitted).metadata
    app.invoke(None, RunnableConfig("submitted"))

    for config in (invoked, submitted):
        latest = saver.get(config)
        assert dict(latest.state) == {"seen": ["default"], "log": ["a", "b"], "x": 1}
        assert latest.metadata.items() >= {"who": "me", "step": 2}.items()
        assert latest.metadata["run_id"] != "mine"


def test_a_config_may_name_the_checkpoint_to_start_from(app, saver):
    app.invoke({"log": "one"}, T)
    *_, first = saver.list(T)
    app.submit({"log": "two"}, RunnableConfig("t", first.id))
    app.invoke(None, T)
    assert log_of(saver) == ["one", "two", "a", "b"]
    with pytest.raises(CheckpointNotFoundError):
        app.submit({}, RunnableConfig("t", "missing"))


# Before and after it begins


def test_a_resume_before_its_time_changes_nothing(app, saver):
    app.invoke({"log": "one"}, T)
    app.submit({"log": "two"}, T, at=now() + LATER)
    before = contents(saver)

    for mode in ("values", "snapshots"):
        (output,) = app.stream(None, T, stream_mode=mode)
        assert (output.node, output.is_interrupted) == (START, False)
        assert output.state["log"] == ["one", "a", "b"]

    assert asyncio.run(app.ainvoke(None, T))["log"] == ["one", "a", "b"]
    assert contents(saver) == before
    assert status(saver) == "queued"


def test_a_resume_before_its_time_may_bring_an_update(app, saver):
    app.submit({"log": "in", "x": 1}, T, at=now() + LATER)
    app.invoke(GraphResume(update={"x": 2}), T)
    assert status(saver) == "queued"
    with pytest.raises(GraphRunnerError, match="nothing waits"):
        app.invoke(GraphResume("yes"), T)

    make_due(saver)
    app.invoke(None, T)
    assert log_of(saver) == ["in", "a", "b"]
    assert saver.get(T).state["x"] == 2


def make_due(saver):
    """Let the submitted run of a thread be due now."""
    queued = saver.get(T)
    due = {**queued.metadata["graphkit:submit"], "at": now()}
    metadata = freeze({**queued.metadata, "graphkit:submit": due})
    saver.put(RunnableConfig("t", queued.id), queued.with_metadata(metadata))


def test_declared_stops_hold_for_a_submitted_run(saver):
    app = make_app(saver, interrupt_before=["a"])
    app.submit({"log": "in"}, T)
    app.invoke(None, T)
    assert [stop.when for stop in saver.interrupts("t")] == ["before"]


def test_updates_of_a_queued_thread_come_after_its_input(app, saver):
    app.submit({"log": "in", "x": 1}, T)
    operations.update(saver, T, {"x": 2, "log": "more"})
    assert status(saver) == "queued"
    assert app.invoke(None, T)["log"] == ["in", "more", "a", "b"]
    assert saver.get(T).state["x"] == 2


def test_update_state_changes_the_state_before_the_input(saver):
    app = make_app(saver, DEFAULTED)
    app.submit({"log": "in"}, T)
    app.update_state(T, {"log": "before"})
    assert status(saver) == "queued"
    state = app.invoke(None, T)
    assert (state["log"], state["seen"]) == (["before", "in", "a", "b"], ["default"])


def test_a_fork_of_a_queued_thread_is_queued(store):
    app = make_app(store)
    app.submit({"log": "in"}, T, at=now() + LATER, key="k")
    operations.fork(store, "t", "copy")
    assert status(store, "copy") == "queued"
    assert app.submit({}, RunnableConfig("copy"), key="k") == RunnableConfig("copy")
    assert app.invoke(None, RunnableConfig("copy")).get("log", []) == []


def test_a_run_with_durability_exit_is_not_queued_while_it_runs(saver):
    seen = []
    app = make_chain(LOG, a=lambda state: seen.append(status(saver))).compile(checkpoint_saver=saver, durability="exit")
    app.submit({}, T)
    app.invoke(None, T)
    assert seen == ["running"]


def test_a_run_that_cannot_begin_has_failed(saver):
    def choose(state):
        if state["log"] == ["in"]:
            raise ValueError("no luck")
        return "a"

    graph = StateGraph(LOG).add_node("a", log_node("a")).add_conditional_edges(START, choose, {"a": "a"})
    app = graph.add_edge("a", END).compile(checkpoint_saver=saver)
    app.submit({"log": "in"}, T)
    with pytest.raises(GraphRunnerError, match="no luck"):
        app.invoke(None, T)
    assert status(saver) == "failed"
    assert "no luck" in saver.summary(T).failure["message"]
    operations.update(saver, T, {"log": "more"})
    assert app.invoke(None, T)["log"] == ["in", "more", "a"]
    assert saver.get(T).metadata["clean"] is False


def test_an_input_that_does_not_fit_the_graph_is_recorded_when_it_begins(saver):
    def only_numbers(old, new):
        return old + int(new)

    app = make_chain({"n": Channels.base(only_numbers, lambda: 0)}, a=lambda state: {}).compile(checkpoint_saver=saver)
    submit(saver, {"n": "three"}, "t")
    with pytest.raises(GraphRunnerError, match="the input cannot be merged"):
        app.invoke(None, T)
    assert status(saver) == "failed"


def test_what_is_new_needs_no_migration_and_what_is_stored_is_migrated_once(saver):
    def migrate(state):
        return {**state, "log": [*state["log"], "migrated"]}

    app = make_app(saver, migrations=[migrate])
    app.submit({"log": "in"}, T)
    assert app.get_state(T).state.get("log", []) == []
    final = app.invoke(None, T)
    assert final["log"] == ["in", "a", "b"]
    app.submit({"log": "again"}, T)
    final = app.invoke(None, T)
    assert final["log"] == ["in", "a", "b", "again", "a", "b"]


# What is refused


@pytest.mark.parametrize("given", [{"x": object()}, {"log": {1: [object()]}}, "text", None, [1]])
def test_what_cannot_be_stored_is_refused_and_leaves_no_thread(given, store):
    with pytest.raises(CheckpointSerializationError):
        submit(store, given, "t")
    assert store.threads() == []
    assert store.summary(T) is None


def test_what_the_graph_cannot_begin_with_is_refused(saver):
    app = make_app(saver, Closed)
    for given in (None, 5, "text", {"lgo": "typo"}, {"secret": 1}):
        with pytest.raises(GraphRunnerError):
            app.submit(given, T)
    assert saver.summary(T) is None
    with pytest.raises(CheckpointerConfigurationError):
        make_app(None).submit({}, T)
    with pytest.raises(CheckpointerConfigurationError):
        submit(saver, {}, RunnableConfig("t", checkpoint_ns="sub"))


def test_arguments_are_checked_before_anything_is_stored(saver):
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - on purpose
    times = ({"at": naive}, {"at": "2026-01-01"}, {"at": timedelta(days=1)})
    for options in (*times, {"key": ""}, {"key": 5}, {"graph_id": ["a"]}):
        with pytest.raises(ValueError, match="must"):
            submit(saver, {}, "t", **options)
    assert saver.summary(T) is None


@pytest.mark.parametrize("wanted", ["queued", "stalled", "interrupted", "answered"])
def test_a_thread_with_a_run_that_has_not_ended_is_busy(saver, wanted):
    leave_with_status(saver, wanted)
    before = contents(saver)
    for options in ({}, {"key": "k"}):
        with pytest.raises(ThreadBusyError, match=f"its run is {wanted}"):
            submit(saver, {}, "t", **options)
    assert contents(saver) == before


def test_a_thread_is_busy_for_its_own_nodes(saver):
    """They hold its run lock, so that only its status refuses."""

    def node(state):
        with pytest.raises(ThreadBusyError, match="its run is running"):
            submit(saver, {}, "t")

    make_chain(LOG, a=node).compile(checkpoint_saver=saver).invoke({}, T)


def test_a_failed_thread_takes_a_new_run(saver):
    leave_with_status(saver, "failed")
    submit(saver, {}, "t")
    assert status(saver) == "queued"


# Keys


@pytest.mark.requirement("W3")
def test_the_same_key_submits_once(app, saver):
    first = app.submit({"log": "one"}, key="order-17")
    before = contents(saver, first.thread)

    assert app.submit({"log": "two"}, key="order-17") == first
    assert contents(saver, first.thread) == before

    app.invoke(None, first)
    assert app.submit({"log": "two"}, key="order-17") == first
    assert log_of(saver, first.thread) == ["one", "a", "b"]
    assert app.submit({}, key="order-18") != first
    assert app.submit({}).thread != submit(saver, {}).thread, "without a key, each makes a thread"


def test_the_key_of_a_given_thread_holds_for_that_thread(app, saver):
    for _ in range(2):
        assert app.submit({"log": "one"}, T, key="k") == T
    app.invoke(None, T)
    assert app.submit({"log": "one"}, T, key="k") == T
    assert status(saver) == "finished"

    app.submit({"log": "two"}, T, key="other")
    app.submit({"log": "one"}, RunnableConfig("u"), key="k")
    assert [status(saver), status(saver, "u")] == ["queued", "queued"]


def test_an_incomplete_thread_is_not_the_run_of_its_key(saver):
    incomplete = Checkpoint(node_id="a", next_node_id="b", state={}, metadata={"graphkit:incomplete": {}})
    saver.put(submit(MemorySaver(), {}, key="k"), incomplete)
    with pytest.raises(CheckpointConflictError, match="incomplete"):
        submit(saver, {}, key="k")


def test_a_key_outlives_a_prune_and_a_release():
    saver = VersionedMemorySaver()
    app = make_app(saver)
    first = app.submit({}, key="k")
    app.invoke(None, first)
    saver.prune(first.thread, keep_last=1)
    assert app.submit({}, key="k") == first
    saver.release(first)
    assert app.submit({}, key="k") == first
    assert not saver.threads()


# The worker


@pytest.mark.requirement("W5")
def test_no_more_runs_at_once_than_allowed(store):
    calls = ConcurrentCalls(2)
    app = make_chain(LOG, a=calls, b=calls).compile(checkpoint_saver=store)
    threads = [f"t{number}" for number in range(20)]
    for thread in threads:
        app.submit({}, RunnableConfig(thread))
    assert Worker(store, app, concurrency=2).run(once=True) == 20
    assert calls.most == 2
    for thread in threads:
        assert status(store, thread) == "finished"
    with pytest.raises(ValueError, match="concurrency"):
        Worker(store, app, concurrency=0)


@pytest.mark.requirement("W5")
def test_stopping_drains_all_runs(store):
    begun, go_on = threading.Barrier(3), threading.Event()

    def work(state):
        begun.wait(PATIENCE)
        assert go_on.wait(PATIENCE)
        return {"log": "a"}

    app = make_chain(LOG, a=work, b=log_node("b")).compile(checkpoint_saver=store)
    for thread in ("x", "y", "z"):
        app.submit({}, thread)
    worker = Worker(store, app, concurrency=2)
    with serving(worker) as (served,):
        begun.wait(PATIENCE)
        worker.stop()
        go_on.set()
    assert served.result() == 2
    assert sorted(status(store, thread) for thread in ("x", "y", "z")) == ["answered", "answered", "queued"]


def test_a_worker_needs_a_saver_and_a_graph(store):
    app = make_chain(LOG, a=log_node("a")).compile(checkpoint_saver=store)
    for arguments in ((store, {}), (app, app), (app, store)):
        with pytest.raises(CheckpointerConfigurationError, match=r"Worker\(saver, graph\)"):
            Worker(*arguments)


# Graphs of a worker


def test_a_run_goes_to_the_graph_that_it_was_submitted_to(store):
    def answering(word):
        graph = make_chain(LOG, ask=lambda state: {"log": f"{word} {interrupt('ok?')}"})
        return graph.compile(checkpoint_saver=store, graph_id=word)

    # They look alike: the same nodes and edges.
    graphs = {"one": answering("one"), "two": answering("two")}
    graphs["two"].submit({}, T)
    submit(store, {}, "u", graph_id="one")
    submit(store, {}, "none")
    submit(store, {}, "missing", graph_id="three")
    submit(store, {}, RunnableConfig("odd", metadata={"graphkit:graph_id": ["one"]}))
    assert Worker(store, graphs).run(once=True) == 2

    for thread in ("t", "u"):
        operations.answer(store, thread, "yes")
    assert Worker(store, graphs).run(once=True) == 2
    assert (log_of(store), log_of(store, "u")) == (["two yes"], ["one yes"])
    assert [status(store, thread) for thread in ("none", "missing", "odd")] == ["queued"] * 3
    assert Worker(store, graphs["one"]).run(once=True) == 1
    assert status(store, "none") == "interrupted"


# Async twins


async def test_operations_for_async_code():
    saver = MemorySaver()
    app = make_chain(LOG, ask=lambda state: {"log": interrupt("ok?")}).compile(checkpoint_saver=saver)

    assert await operations.asubmit(saver, {}, "t", key="k") == T
    assert await app.asubmit({}, T, key="k") == T
    await app.ainvoke(None, T)
    stopped = T.with_check_point_id(saver.get(T).id)

    await operations.aanswer(saver, "t", "yes")
    await operations.aupdate(saver, "t", {"log": "more"})
    await operations.afork(saver, "t", "copy")
    await app.ainvoke(None, T)
    await operations.arollback(saver, stopped)

    assert [status(saver), status(saver, "copy")] == ["interrupted", "interrupted"]
    assert sorted(saver.list(T)[1].state["log"]) == ["more", "yes"]
