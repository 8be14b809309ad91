"""Options of a wrong type are refused before anything is stored, removed or run."""

from datetime import datetime
from pathlib import Path

import pytest

from graphkit import (
    Channel,
    CheckpointerConfigurationError,
    CheckpointSerializationError,
    CompileConfig,
    GraphStateError,
    RetryPolicy,
    RunnableConfig,
    StateGraph,
    interrupt,
    operations,
    schedules,
)
from graphkit.retention import RetentionPolicy
from graphkit.testing import made
from graphkit.transfer import copy_threads, export_threads
from graphkit.when import any_of
from graphkit.worker import Worker
from savers import (
    AccessControlledSaver,
    AuditedSaver,
    AuditLog,
    MemorySaver,
    SaverWrapper,
    SubjectKeys,
    ValidatingSaver,
)
from tests.support.graphs import make_chain


async def answer_later(*_):
    """Stand for a function that only `await` would call."""
    return True


@pytest.mark.parametrize(
    ("take", "words"),
    [
        (lambda: Channel(reducer=answer_later), "reducer must be a plain function"),
        (lambda: Channel(default=answer_later), "default must be a plain function"),
        (lambda: any_of(answer_later), "asynchronous"),
        (lambda: RetryPolicy(retry_on=answer_later), "asynchronous"),
        (lambda: RetentionPolicy(max_bytes=1, on_limit=answer_later), "asynchronous"),
        (lambda: AuditedSaver(MemorySaver(), answer_later), r"log .* must be a plain function"),
        (lambda: SubjectKeys({"k": b"k" * 32}, key_for=answer_later), "key_for must be a plain function"),
    ],
)
def test_an_async_function_that_nothing_would_await_is_refused(take, words):
    with pytest.raises((TypeError, CheckpointerConfigurationError), match=words):
        take()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checkpoint_when", answer_later),
        ("migrations", [answer_later]),
        ("migrations", "rename"),
        ("migrations", 3),
        ("interrupt_before", 3),
        ("interrupt_after", None),
        ("observers", 3),
        ("graph_id", 5),
        ("retry", 3),
        ("checkpoint_interval", float("nan")),
        ("checkpoint_interval", -1),
        ("checkpoint_interval", "1"),
        ("max_iterations", 0),
    ],
)
def test_a_graph_refuses_options_that_would_be_ignored(name, value):
    with pytest.raises((TypeError, ValueError), match=name.removesuffix("s")):
        CompileConfig(**{name: value})


def test_the_targets_of_a_condition_are_a_list_or_a_mapping():
    with pytest.raises(GraphStateError, match="the mappings of 'a' must be a list of node ids, or a mapping, not 3"):
        StateGraph({}).add_conditional_edges("a", lambda _: "b", 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("concurrency", float("nan")), ("concurrency", True), ("on_output", 5), ("on_output", answer_later), ("retry", 3)],
)
def test_a_worker_refuses_options_before_it_takes_a_run(name, value):
    saver = MemorySaver()
    app = make_chain({}, a=lambda _: {}).compile(checkpoint_saver=saver)
    with pytest.raises((TypeError, ValueError), match=name):
        Worker(saver, app, **{name: value})


@pytest.mark.parametrize("given", [None, "postgresql://me:secret@host/runs", MemorySaver])
@pytest.mark.parametrize(
    "wrap",
    [
        SaverWrapper,
        ValidatingSaver,
        lambda given: AccessControlledSaver(given, lambda *_: True),
        lambda given: AuditedSaver(given, print),
    ],
)
def test_a_wrapper_takes_only_a_saver_and_does_not_show_what_else_it_was_given(wrap, given):
    with pytest.raises(CheckpointerConfigurationError, match="wraps a saver") as caught:
        wrap(given)
    assert "secret" not in str(caught.value)


def test_an_error_about_a_wrong_object_does_not_show_what_is_in_it():
    with pytest.raises(CheckpointerConfigurationError) as caught:
        SubjectKeys({}, key_for={"k": b"secret" * 6})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["sign_every", "max_bytes"])
@pytest.mark.parametrize("value", [0, 1.5, float("nan"), True, "1"])
def test_the_limits_of_an_audit_log_are_whole_numbers(tmp_path, name, value):
    with pytest.raises(CheckpointerConfigurationError, match=name):
        AuditLog(tmp_path, **{name: value})


@pytest.mark.parametrize(
    "store",
    [
        lambda saver: operations.update(saver, "t", {1: 2}),
        lambda saver: operations.submit(saver, {1: 2}, "new"),
        lambda saver: schedules.add(saver, "n", "* * * * *", {1: 2}),
    ],
)
def test_an_update_that_no_graph_could_merge_is_not_stored(store):
    saver = MemorySaver()
    saver.put("t", made({}))
    with pytest.raises(CheckpointSerializationError, match="keys are strings"):
        store(saver)
    assert list(saver.threads()) == ["t"]
    assert not saver.get_writes(RunnableConfig("t", saver.get("t").id))


@pytest.mark.parametrize("graph_id", ["", 5])
def test_a_schedule_is_not_stored_for_a_graph_that_no_worker_can_have(graph_id):
    saver = MemorySaver()
    with pytest.raises(CheckpointerConfigurationError, match="graph_id"):
        schedules.add(saver, "n", "* * * * *", {}, graph_id=graph_id)
    assert not saver.threads()


def test_nothing_is_erased_if_the_metadata_or_the_other_stores_are_of_a_wrong_type():
    saver = MemorySaver()
    saver.put("t", made({}, metadata={"user": "ann"}))
    for metadata, stores, words in (({"user": "ann"}, Path("store"), "iterable"), ("ann", (), "must be a mapping")):
        with pytest.raises(TypeError, match=words):
            operations.erase_where(saver, metadata, stores=stores)
    assert list(saver.threads()) == ["t"]


def test_one_id_is_not_copied_or_exported_as_its_letters():
    saver = MemorySaver()
    for thread in "ab":
        saver.put(thread, made({}))
    for take in (lambda: copy_threads(saver, MemorySaver(), "ab"), lambda: next(export_threads(saver, "ab"))):
        with pytest.raises(TypeError, match=r"pass \['ab'\]"):
            take()


def test_an_export_takes_each_thread_once_from_any_iterable():
    saver = MemorySaver()
    saver.put("t", made({}))
    assert list(export_threads(saver, iter("tt"))) == list(export_threads(saver, ["t"]))


def test_an_export_in_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="format must be one of 'lines', 'logs'"):
        next(export_threads(MemorySaver(), format="log"))


def test_a_copy_with_a_local_time_leaves_out_a_deadline_that_has_passed():
    saver = MemorySaver()
    app = make_chain({}, ask=lambda _: {"answer": interrupt(deadline=60)}).compile(checkpoint_saver=saver)
    app.invoke({}, "t")
    local = datetime(2100, 1, 1)  # noqa: DTZ001
    operations.fork(saver, "t", "fork", created_at=local)
    operations.rollback(saver, RunnableConfig("t", saver.get("t").id), created_at=local)

    for thread in ("t", "fork"):
        (waiting,) = saver.interrupts(thread)
        assert waiting.deadline is None
