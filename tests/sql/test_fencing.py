"""A run that was paused for longer than its lease changes nothing after another one has taken over."""

import os
import pickle
import signal

import pytest

from graphkit import END, RunnableConfig
from graphkit._records.context import CURRENT_NODE_CONTEXT, NodeContext
from graphkit.errors import CheckpointStorageError, ThreadBusyError
from graphkit.testing import made
from tests.sql import flow
from tests.support.contents import read_all
from tests.support.databases import LostError, encode_text
from tests.support.workers import PATIENCE

CONFIG = RunnableConfig("t")
STEPS = ["first", "inner", "left", "right", "last"]


@pytest.mark.sweep(2)  # the first and the last: a branch, and a node of a nested graph
@pytest.mark.parametrize("gate", ["left", "first", "last", "inner"])
def test_a_stopped_run_is_taken_over_and_fenced_off(start_flow, open_postgres_saver, gate):
    process = start_flow("run", "t", gate, lease=1.0)
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGSTOP)
    saver = open_postgres_saver(lock_timeout=PATIENCE)
    app = flow.make_graph().compile(checkpoint_saver=saver)
    state = app.invoke(None, CONFIG)
    assert sorted(state["log"]) == sorted(STEPS)
    before = read_all(saver)
    process.send_signal(signal.SIGCONT)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ThreadBusyError\n"
    assert read_all(saver) == before
    assert saver.get(CONFIG).next_node_id == END


def test_a_branch_in_another_process_is_fenced_off_with_its_run(start_flow, open_postgres_saver, tmp_path):
    """The process of the run stays paused; its worker goes on, and finds that the thread was taken over."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = start_flow("run on workers", "t", "right", str(pipe), lease=1.0)
    _, worker = process.stdout.readline().split()
    for pid in (process.pid, int(worker)):
        os.kill(pid, signal.SIGSTOP)
    saver = open_postgres_saver(lock_timeout=PATIENCE)
    app = flow.make_graph_on_workers().compile(checkpoint_saver=saver)
    state = app.invoke(None, CONFIG)
    assert sorted(state["log"]) == ["left", "right"]
    before = read_all(saver)
    os.kill(int(worker), signal.SIGCONT)
    pipe.write_bytes(b"")
    assert process.stdout.readline() == "worker ThreadBusyError\n"
    assert read_all(saver) == before
    process.send_signal(signal.SIGCONT)
    assert process.stdout.readline() == "ThreadBusyError\n"
    assert read_all(saver) == before


def test_an_opened_saver_writes_for_the_runs_that_the_caller_holds(open_postgres_saver):
    saver = open_postgres_saver()
    other = RunnableConfig("other")
    for config in (CONFIG, other):
        saver.put(config, made({"n": 0}))
    with saver.run_lock(other):
        outside = pickle.loads(pickle.dumps(saver.opener()))
        with saver.run_lock(CONFIG):
            lent = pickle.loads(pickle.dumps(_open_as_node(saver, CONFIG)))
            with lent() as opened:
                opened.put_writes(CONFIG, {"once:x": 1})
                assert saver.get_writes(CONFIG) == {"once:x": 1}
                # Of another run.
                opened.put_writes(other, {"once:x": 1})
    before = read_all(saver)
    with lent() as opened:
        # The run has ended.
        with pytest.raises(ThreadBusyError, match="took over"):
            opened.put_writes(CONFIG, {"once:x": 2})
        assert read_all(saver) == before
        with opened.run_lock(CONFIG):
            opened.put_writes(CONFIG, {"once:x": 3})
        opened.put_writes(CONFIG, {"once:y": 4})
    with outside() as opened:
        opened.put_writes(CONFIG, {"once:z": 5})
    assert saver.get_writes(CONFIG) == {"once:x": 3, "once:y": 4, "once:z": 5}


def _open_as_node(saver, config):
    """Return the opener that a node of a run gets."""
    token = CURRENT_NODE_CONTEXT.set(NodeContext("node", (), frozenset({saver.run_lock_key(config)})))
    try:
        return saver.opener()
    finally:
        CURRENT_NODE_CONTEXT.reset(token)


CHANGES = {
    "put": lambda saver: saver.put(CONFIG, made({"n": 2})),
    "put into a namespace": lambda saver: saver.put(RunnableConfig("t", checkpoint_ns="new"), made({"n": 2})),
    "put_writes": lambda saver: saver.put_writes(CONFIG, {"once:x": 1}),
    "add_tags": lambda saver: saver.add_tags(CONFIG, "x"),
    "release": lambda saver: saver.release(CONFIG),
    "delete": lambda saver: saver.delete("t"),
    "prune": lambda saver: saver.prune("t", keep_last=1),
    "remove": lambda saver: saver.remove(CONFIG, [saver.history(CONFIG)[-1].id]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nothing_is_changed_by_a_run_whose_lock_was_taken(open_postgres_saver, change):
    saver = open_postgres_saver()
    for number in range(3):
        saver.put(CONFIG, made({"n": number}))
    with saver.run_lock(CONFIG):
        before = read_all(saver)
        database = saver._database
        # As a run that takes over after the lease.
        taken = database.write(
            f"UPDATE {database.names.run_locks} SET token = token + 1000000 WHERE thread = ?", (encode_text("t"),)
        )
        assert taken == 1
        with pytest.raises(ThreadBusyError, match="took over while this process was paused"):
            change(saver)
        assert read_all(open_postgres_saver()) == before


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_lock_that_cannot_be_released_is_reported(open_postgres_saver, monkeypatch, caplog, is_gone):
    """The run itself is over, and has succeeded; what others wait for is said once."""
    saver = open_postgres_saver(lease=0.5)
    locks = saver._database.run_locks

    def refuse(*_):
        if is_gone:
            raise CheckpointStorageError("the schema", "connect to", "connection refused")
        raise LostError("server closed the connection")

    with caplog.at_level("WARNING", logger="graphkit"):
        with saver.run_lock(CONFIG):
            monkeypatch.setattr(locks, "_open_session", refuse)
        (record,) = [record for record in caplog.records if "not released" in record.message]
        for part in ("'t'", "0.5 seconds", "refused" if is_gone else "closed the connection"):
            assert part in record.message
    monkeypatch.undo()
    # The advisory lock is still there, as if the server had not noticed; the lease ends.
    with open_postgres_saver(lock_timeout=PATIENCE).run_lock(CONFIG):
        pass
