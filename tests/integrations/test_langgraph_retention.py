"""Retention of LangGraph's threads: keep-last with DeltaChannels, threads that nobody writes to, and `ttl=`."""

import asyncio
import os
import threading
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest
from langgraph.types import Command

from graphkit import Checkpoint, CheckpointerConfigurationError, CheckpointInfo, CheckpointStorageError, RunnableConfig
from graphkit.retention import RetentionPolicy
from graphkit.saver_kit import Retention
from graphkit.worker import Worker
from savers import FileSystemSaver
from savers.langgraph import FileSystemCheckpointSaver, histories
from savers.langgraph.opening import PeriodicSweep
from tests.integrations import langgraph_graphs as graphs
from tests.integrations.langgraph_stores import OTHERS, parametrize
from tests.support.fresh_process import fresh_process
from tests.support.graphs import LOG, make_chain
from tests.support.langgraph import find_log
from tests.support.langgraph_checkpoints import thread

THREAD = {"configurable": {"thread_id": "t"}}


# Keep-last, with DeltaChannels


def run_delta(saver, frequency=4):
    """A thread with a list that is stored whole at every fourth update, and a fork in its past."""
    app = graphs.delta(frequency, turns=12).compile(checkpointer=saver)
    app.invoke({"log": ["in"], "n": 0}, THREAD)
    past = list(app.get_state_history(THREAD))[7]
    app.update_state(past.config, {"log": ["fork"], "n": 11}, as_node="b")
    app.invoke(None, THREAD)
    return app


def read_states(app):
    return {found.config["configurable"]["checkpoint_id"]: found.values for found in app.get_state_history(THREAD)}


@pytest.mark.parametrize("frequency", [1, 4, 7, 1000])
def test_keep_last_1_keeps_what_keep_latest_keeps_which_reads_the_states(saver, frequency):
    app = run_delta(saver, frequency)
    log = app.get_state(THREAD).values["log"]
    saver.copy_thread("t", "u")
    saver.prune(["u"])
    saver.store.prune("t", keep_last=1)
    of_t, of_u = (saver.store.history(name) for name in ("t", "u"))
    assert [info.id for info in of_t] == [info.id for info in of_u]

    for config in (THREAD, thread("u")):
        assert app.get_state(config).values["log"] == log
        assert app.invoke({"n": 12}, config)["log"] == [*log, "a12", "b13"]


def test_parents_in_a_circle_or_missing_end_the_search():
    def info(id_, parent, counters):
        metadata = {"counters_since_delta_snapshot": counters}
        return CheckpointInfo("t", "", id_, parent, "n", None, datetime.now(UTC), 0, "finished", (), metadata)

    retention = Retention(keep_last=1)
    x = {"x": [1, 1]}
    xy = {"x": [1, 1], "y": [1, 1]}
    c = info("c", "b", xy)
    b = info("b", "a", x)
    a = info("a", "c", xy)
    lost = info("lost", "gone", x)
    assert retention.select_removable([c, b, a, lost]) == [lost]
    malformed = info("b", "a", 7)
    first = info("a", None, {})
    assert retention.select_removable([malformed, first]) == [first]


# Policies

DAY = timedelta(days=1)


@parametrize("file", *OTHERS)
def test_a_policy_keeps_what_its_rules_keep_and_what_these_need(opener):
    saver = opener.new()
    app = run_delta(saver)
    before = read_states(app)
    newest, second, *_, golden, _, _ = before
    saver.store.add_tags(RunnableConfig("t", golden), "golden")
    policy = RetentionPolicy(keep_last=2, keep_tags=["golden"])
    would = policy.apply(saver, dry_run=True)
    report = policy.apply(saver)
    assert report.removed > 0
    assert report.removed == would.removed

    after = read_states(app)
    for name in (newest, second, golden):
        assert after[name] == before[name]
    assert len(after) == len(before) - report.removed
    assert policy.apply(saver).removed == 0

    app.update_state(THREAD, {"log": ["more"], "n": 12}, as_node="b")
    assert app.get_state(THREAD).values["log"] == [*after[newest]["log"], "more"]


@parametrize("file", *OTHERS)
def test_a_policy_keeps_a_question_in_a_subgraph_and_chooses_by_status(opener):
    saver = opener.new()
    app = graphs.nested().compile(checkpointer=saver)
    app.invoke({"log": []}, THREAD)
    graphs.loop().compile(checkpointer=saver).invoke({"log": [], "n": 0}, thread("done"))
    assert RetentionPolicy(keep_last=1, statuses=["finished"]).apply(saver).pruned == ("done",)
    assert RetentionPolicy(keep_last=1).apply(saver).pruned == ("t",)
    assert app.invoke(Command(resume="yes"), THREAD)["log"][-1] == "asked yes"


def test_a_worker_applies_its_policy_to_the_threads_of_langgraph_that_run(saver):
    own = make_chain(LOG, a=lambda state: None).compile(checkpoint_saver=saver.store)
    app = graphs.delta(4, turns=40).compile(checkpointer=saver)
    for _ in app.stream({"log": ["in"], "n": 0}, {**THREAD, "recursion_limit": 200}):
        Worker(saver.store, own, policy=RetentionPolicy(keep_last=1)).run(once=True)
    assert len(app.get_state(THREAD).values["log"]) == 81
    assert len(read_states(app)) < 8
    assert saver.store.verify().ok


# ttl=


def age(store, name, days):
    """Set the time at which every file of a thread was last written."""
    time = (datetime.now(UTC) - days * DAY).timestamp()
    for path in find_log(store.base_directory, name).parent.rglob("*"):
        os.utime(path, (time, time))


def fill(directory):
    """Threads of LangGraph, one of which waits at an interrupt in a subgraph, and a run of graphkit's own."""
    saver = FileSystemCheckpointSaver(directory, fsync="never")
    loop = graphs.loop().compile(checkpointer=saver)
    for name in ("recent", "old", "older"):
        loop.invoke({"log": [], "n": 0}, thread(name))

    graphs.nested().compile(checkpointer=saver).invoke({"log": []}, thread("waiting"))
    own = Checkpoint(node_id="a", next_node_id="b", state={"n": 1})
    saver.store.put("own", own)
    for name, days in {"old": 2, "older": 9, "waiting": 2, "own": 9}.items():
        age(saver.store, name, days)
    saver.store.close()
    return saver


def without_background_thread():
    """Leave the sweeps to the test."""
    return mock.patch.object(PeriodicSweep, "start")


def test_threads_without_a_write_for_the_ttl_are_deleted(tmp_path):
    fill(tmp_path)
    with without_background_thread(), FileSystemCheckpointSaver(tmp_path, ttl=5 * DAY) as saver:
        assert saver.sweep_ttl() == 1
        assert saver.store.threads() == ["old", "own", "recent", "waiting"]
        assert saver.sweep_ttl() == 0
        assert saver.get_tuple(thread("older")) is None
        assert saver.store.verify().ok

    with without_background_thread(), FileSystemCheckpointSaver(tmp_path, ttl=DAY) as saver:
        assert asyncio.run(saver.asweep_ttl()) == 2  # a thread that waits counts, a run of graphkit's own stays
        assert saver.store.threads() == ["own", "recent"]


def test_without_ttl_nothing_is_deleted(tmp_path):
    before = set(threading.enumerate())
    saver = fill(tmp_path)
    assert saver.sweep_ttl() == 0
    assert len(saver.store.threads()) == 5
    assert "graphkit-ttl" not in {thread.name for thread in set(threading.enumerate()) - before}


def test_a_sweep_in_the_background_logs_an_error_and_tries_again_in_the_next_round(tmp_path, monkeypatch, caplog):
    fill(tmp_path)
    monkeypatch.setattr(histories, "_MAX_INTERVAL", timedelta(milliseconds=1))
    deleted = threading.Event()
    failures = [CheckpointStorageError("log", "delete", PermissionError(13, "Permission denied"))]
    delete_idle = FileSystemSaver.delete_idle

    def fail_once(saver, thread=None, **options):
        if thread == "old" and failures:
            raise failures.pop()
        found = delete_idle(saver, thread, **options)
        if thread == "old" and not options.get("dry_run"):
            deleted.set()
        return found

    monkeypatch.setattr(FileSystemSaver, "delete_idle", fail_once)
    with FileSystemCheckpointSaver(tmp_path, ttl=DAY) as saver:
        assert deleted.wait(60)
        assert saver.store.threads() == ["own", "recent"]
        background = saver._sweeper._thread
        assert background.daemon
    assert not background.is_alive()
    assert "cannot delete old; all others are done" in caplog.text


def test_a_program_ends_although_it_closes_nothing(tmp_path):
    fresh_process(
        "from datetime import timedelta; from savers.langgraph import FileSystemCheckpointSaver\n"
        f"saver = FileSystemCheckpointSaver({str(tmp_path)!r}, ttl=timedelta(days=1))"
    )


@pytest.mark.parametrize("ttl", [30, 2.5, "30d", timedelta(0), timedelta(days=-1), True])
def test_a_ttl_that_is_no_time_is_refused_before_anything_is_made(tmp_path, ttl):
    with pytest.raises(CheckpointerConfigurationError, match=r"timedelta\(days=30\)"):
        FileSystemCheckpointSaver(tmp_path / "new", ttl=ttl)
    assert not (tmp_path / "new").exists()
