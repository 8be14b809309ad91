"""graphkit.operations: what each function stores, and that a refusal stores nothing."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from graphkit import RESET, START, Checkpoint, RunnableConfig, interrupt
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    ThreadBusyError,
)
from graphkit.operations import answer, fork, lineage, rollback, submit, update
from savers import MemorySaver
from tests.support.checkpoints import make_interrupt
from tests.support.graphs import CYCLE, LOG, log_node, make_chain

T = RunnableConfig("t")
NEW = RunnableConfig("new")
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def asking(state):
    return {"log": f"answer {interrupt('Really?')}"}


@pytest.fixture
def app(saver):
    return make_chain(LOG, first=log_node("first"), ask=asking, last=log_node("last")).compile(checkpoint_saver=saver)


@pytest.fixture
def waiting(app, saver):
    """A store whose only thread has one pending interrupt."""
    app.invoke({}, T)
    return saver


@pytest.fixture
def stopped(saver):
    """A store whose only thread stopped before its last node."""
    graph = make_chain(LOG, first=log_node("first"), last=log_node("last"))
    graph.compile(checkpoint_saver=saver, interrupt_before=["last"]).invoke({}, T)
    return saver


@pytest.fixture
def two_pending(waiting):
    (stop,) = waiting.interrupts("t")
    config = RunnableConfig("t", stop.checkpoint_id)
    record = waiting.get_writes(config)[f"interrupt:{stop.id}"]
    waiting.put_writes(config, {"interrupt:other": dict(record)})
    return waiting


def contents(saver):
    """All checkpoints, pending writes and tags of both threads."""
    return [
        (config.thread, checkpoint, dict(saver.get_writes(at)), saver.tags_of(at))
        for config in (T, NEW)
        for checkpoint in saver.list(config)
        for at in [config.with_check_point_id(checkpoint.id)]
    ]


@contextmanager
def unchanged(saver):
    before = contents(saver)
    yield
    assert contents(saver) == before


def log_of(state):
    return list(state.state["log"])


# answer


def test_an_answer_is_what_the_resumed_node_gets(app, waiting):
    (pending,) = waiting.interrupts("t")
    assert answer(waiting, "t", "yes") == pending
    assert not waiting.interrupts("t")
    assert log_of(app.get_state(T)) == ["first"]  # nothing has run
    assert app.invoke(None, T)["log"] == ["first", "answer yes", "last"]


@pytest.mark.parametrize(("value", "log"), [({"log": "extra"}, ["first", "extra", "last"]), (None, ["first", "last"])])
def test_a_declared_stop_takes_a_mapping_or_none(stopped, value, log):
    answer(stopped, "t", value)
    assert not stopped.interrupts("t")
    graph = make_chain(LOG, first=log_node("first"), last=log_node("last"))
    app = graph.compile(checkpoint_saver=stopped, interrupt_before=["last"])
    assert app.invoke(None, T)["log"] == log


# update


def test_updates_are_merged_by_the_next_resume_in_their_order(app, waiting):
    config = update(waiting, "t", {"log": RESET})
    assert config.checkpoint_id == waiting.get(T).id
    update(waiting, "t", {"log": "by hand"})
    update(waiting, T, {"log": ["again"]})
    answer(waiting, "t", 1)
    assert app.invoke(None, T)["log"] == ["by hand", "again", "answer 1", "last"]


def test_an_update_may_name_the_latest_checkpoint_only(waiting):
    latest, older = (info.id for info in waiting.history(T)[:2])
    with unchanged(waiting), pytest.raises(CheckpointConflictError, match=f"{older} is not the latest"):
        update(waiting, RunnableConfig("t", older), {"log": "x"})
    update(waiting, RunnableConfig("t", latest), {"log": "x"})
    assert waiting.get_writes(T)["update:0"] == {"log": "x"}


# fork


def test_a_fork_has_the_path_to_its_checkpoint(app, waiting):
    answer(waiting, "t", "yes")
    app.invoke(None, T)
    waiting.add_tags(RunnableConfig("t", waiting.history(T)[-1].id), "begin")
    before = contents(waiting)
    stop = next(info for info in waiting.history(T) if info.node_id == "first")

    forked = fork(waiting, RunnableConfig("t", stop.id), "new", created_at=NOON)

    assert (forked.origin.id, forked.checkpoints, forked.config) == (stop.id, 2, RunnableConfig("new", stop.id))
    assert contents(waiting)[: len(before)] == before

    head, start = waiting.history(NEW)
    assert (head.created_at, head.metadata["source"], head.parent_id) == (NOON, "fork", start.id)
    assert (start.node_id, start.tags) == (START, ("begin",))
    assert len(waiting.interrupts("new")) == 1
    answer(waiting, "new", "no")
    app.invoke(None, NEW)
    assert log_of(app.get_state(NEW)) == ["first", "answer no", "last"]
    assert log_of(app.get_state(T)) == ["first", "answer yes", "last"]


# rollback


def test_a_rollback_appends_a_copy_to_resume_from(app, waiting):
    answer(waiting, "t", "yes")
    app.invoke(None, T)
    history = waiting.history(T)
    stop = next(info for info in history if info.node_id == "first")

    config = rollback(waiting, RunnableConfig("t", stop.id), created_at=NOON)

    assert [info.id for info in waiting.history(T)[1:]] == [info.id for info in history]
    head = waiting.history(T)[0]
    assert (head.id, head.parent_id, head.created_at) == (config.checkpoint_id, stop.id, NOON)
    assert (head.node_id, head.next_node_id, head.metadata["source"]) == ("first", "ask", "fork")
    (pending,) = waiting.interrupts("t")
    assert pending.checkpoint_id == head.id
    answer(waiting, "t", "no")
    assert app.invoke(None, T)["log"] == ["first", "answer no", "last"]


def test_a_rollback_in_a_forked_thread_passes_no_declared_stop(stopped):
    app = make_chain(LOG, first=log_node("first"), last=log_node("last")).compile(
        checkpoint_saver=stopped, interrupt_before=["last"]
    )
    stop = app.get_state(T).checkpoint_id
    app.invoke(None, T)
    fork(stopped, T, NEW)
    rollback(stopped, NEW.with_check_point_id(stop))
    assert app.invoke_final(None, NEW).when == "before"
    assert app.invoke(None, NEW)["log"] == ["first", "last"]


def test_a_copy_does_not_continue_the_old_node_execution(app, waiting):
    """Neither copy has the metadata that would give it the answers and results of the run it comes from."""
    updated = app.update_state(T, {"log": "x"})
    assert {"visit", "keeps"} <= waiting.get(T).metadata.keys()
    fork(waiting, updated, NEW)
    rollback(waiting, updated)
    for config in (T, NEW):
        assert not {"visit", "resumed_at"} & waiting.get(config).metadata.keys()


# What is refused


UNKNOWN = RunnableConfig("t", "unknown")
NESTED = RunnableConfig("t", None, "sub")
REFUSED = [
    ("waiting", lambda saver: fork(saver, "unknown", "new"), CheckpointNotFoundError, "unknown"),
    ("stopped", lambda saver: answer(saver, "t", "yes"), CheckpointSerializationError, "the run stopped before 'last'"),
    ("stopped", lambda saver: answer(saver, "unknown", 2), CheckpointNotFoundError, "unknown"),
    ("two_pending", lambda saver: answer(saver, "t", 1), CheckpointConflictError, "2 interrupts are pending"),
    ("two_pending", lambda saver: answer(saver, "t", 1, interrupt="third"), CheckpointNotFoundError, "'third'.*other"),
    ("waiting", lambda saver: answer(saver, "t", CYCLE), CheckpointSerializationError, "value"),
    ("waiting", lambda saver: update(saver, "t", {"log": CYCLE}), CheckpointSerializationError, "values"),
    ("waiting", lambda saver: update(saver, "t", ["log"]), CheckpointSerializationError, "an update is a mapping"),
    ("waiting", lambda saver: update(saver, "unknown", {"log": "x"}), CheckpointNotFoundError, "unknown"),
    ("waiting", lambda saver: fork(saver, UNKNOWN, "new"), CheckpointNotFoundError, "unknown"),
    ("waiting", lambda saver: fork(saver, NESTED, "new"), CheckpointerConfigurationError, "nested graph"),
    ("waiting", lambda saver: fork(saver, "t", "t"), CheckpointConflictError, "not empty"),
    ("waiting", lambda saver: rollback(saver, UNKNOWN), CheckpointNotFoundError, "unknown"),
    ("waiting", lambda saver: rollback(saver, NESTED), CheckpointerConfigurationError, "nested graph"),
    ("waiting", lambda saver: rollback(saver, T), CheckpointerConfigurationError, "checkpoint_id"),
    ("answered", lambda saver: answer(saver, "t", 2), CheckpointConflictError, "no interrupt is pending"),
]


@pytest.fixture
def answered(waiting):
    answer(waiting, "t", 1)
    return waiting


@pytest.mark.parametrize(("store", "operate", "error", "words"), REFUSED)
def test_what_is_refused_changes_nothing(request, saver, store, operate, error, words):
    request.getfixturevalue(store)
    with unchanged(saver), pytest.raises(error, match=words):
        operate(saver)


# Locks and lineage


@pytest.mark.parametrize(
    "operation",
    [
        lambda saver: answer(saver, "t", 1),
        lambda saver: update(saver, "t", {"log": "x"}),
        lambda saver: fork(saver, "t", "new"),
        lambda saver: rollback(saver, RunnableConfig("t", "c")),
        lambda saver: submit(saver, {}, "new"),
    ],
    ids=["answer", "update", "fork", "rollback", "submit"],
)
def test_a_busy_thread_is_left_alone(operation):
    saver = MemorySaver(lock_timeout=0)
    saver.put(T, Checkpoint(id="c", node_id="n", next_node_id="n", state={}))
    saver.put_writes(T, {"interrupt:i": make_interrupt("n")})
    with ThreadPoolExecutor(1) as pool, saver.run_lock(T), saver.run_lock(NEW), unchanged(saver):
        refused = pool.submit(operation, saver).exception()
    assert isinstance(refused, ThreadBusyError)


def test_the_holder_of_the_lock_may_call_them(waiting):
    with waiting.run_lock(T), waiting.run_lock(NEW):
        update(waiting, "t", {"log": "x"})
        fork(waiting, "t", "new")
        rollback(waiting, RunnableConfig("t", waiting.get(T).id))
        answer(waiting, "t", 1)


def test_lineage_ends_at_what_was_pruned_and_at_a_cycle(saver):
    parents = {"b": "pruned", "c": "b", "d": "b", "e": "d", "f": "g", "g": "f"}
    for own, parent in parents.items():
        saver.put(T, Checkpoint(id=own, parent_id=parent, node_id="n", next_node_id="n", state={}))
    history = saver.history(T)
    assert [info.id for info in lineage(history, "e")] == ["b", "d", "e"]
    assert {info.id for info in lineage(history, "g")} == {"f", "g"}
    assert lineage(history, "unknown") == []
