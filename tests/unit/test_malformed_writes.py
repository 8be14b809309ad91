"""Stores of earlier versions may hold pending writes that no reader can use: they cost a warning and nothing else."""

import logging
from datetime import UTC, datetime

import pytest

from graphkit import Checkpoint, GraphResume, RunnableConfig, interrupt
from graphkit.errors import CheckpointSerializationError
from graphkit.recovery import recover
from graphkit.transfer import export_threads, import_threads
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import make_chain, pending_ids, pending_payloads
from tests.support.sweeps import ALL
from tests.support.terminal import graphkit as command

pytestmark = pytest.mark.sweep(ALL)

T = RunnableConfig("t")
NOW = datetime(2026, 1, 2, tzinfo=UTC)
GOOD = {"node_id": "a", "when": "inside", "payload": "why?", "metadata": {}, "created_at": NOW}
MALFORMED = {
    "interrupt:text": "why?",
    "interrupt:empty": {},
    "interrupt:when": {**GOOD, "when": "never"},
    "inner:number": 5,
    "update:0": "text",
    "items:m": 7,
    "task:m": "text",
    "failure": "text",
}


@pytest.fixture
def open_door(monkeypatch):
    """Lets `put_writes` store anything, as earlier versions did."""
    with monkeypatch.context() as patch:
        for module in ("graphkit._saver.base", "savers._log.log_saver", "savers._memory"):
            patch.setattr(f"{module}.check_writes", lambda writes: None)
        yield patch


@pytest.fixture
def old(saver, open_door):
    """A store with malformed writes beside the latest checkpoint of a thread."""
    saver.put(T, Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))
    saver.put_writes(T, {"interrupt:good": GOOD, **MALFORMED, "once:x": 1})
    open_door.undo()
    return saver


def warned_of(caplog):
    return {key for key in MALFORMED if any(f"'{key}'" in record.getMessage() for record in caplog.records)}


def test_what_waits_is_read_and_the_rest_is_named(old, caplog):
    with caplog.at_level(logging.WARNING, "graphkit"):
        assert pending_ids(old) == ["good"]
    assert {"interrupt:text", "interrupt:empty", "interrupt:when"} <= warned_of(caplog)


def test_a_summary_can_be_made(old, caplog):
    with caplog.at_level(logging.WARNING, "graphkit"):
        found = old.summary(T)
    assert found.latest.status == "interrupted"
    assert found.failure is None
    assert "failure" in warned_of(caplog)


def test_namespaces_watch_and_history_can_be_read(old):
    assert list(old.namespaces("t")) == [""]
    assert [info.status for info in old.history(T)] == ["interrupted"]
    with old.watch("t", latest=True) as changes:
        assert changes.get(0).kind == "checkpoint"
    assert old.wait_for_resume("t", timeout=0) is False, "the good one still waits"


def test_progress_counts_what_it_can(open_door, tmp_path):
    saver = FileSystemSaver(tmp_path / "store", fsync="never")
    saver.put(T, Checkpoint(node_id="a", next_node_id="b", state={}))
    saver.put_writes(T, {"items:m": [1, 2], "task:m.0": {"node": "n"}, "task:m.1": "text"})
    assert "1/2 items of n done" in command("show", tmp_path / "store", "t").out


def test_it_can_be_pruned_and_copied(old):
    old.put(T, Checkpoint(node_id="b", next_node_id="c", state={"n": 2}))
    old.put(T, Checkpoint(node_id="c", next_node_id="d", state={"n": 3}))
    assert old.prune("t", keep_last=1, keep_interrupted=True) == 1
    assert [checkpoint.state["n"] for checkpoint in old.list(T)] == [3, 1]
    assert old.get_writes(T.with_check_point_id(old.list(T)[1].id))["interrupt:good"]["payload"] == "why?"
    old.copy("t", "u")
    assert [checkpoint.state["n"] for checkpoint in old.list(RunnableConfig("u"))] == [3, 1]


def test_it_can_be_exported_and_imported(open_door):
    source, target = MemorySaver(), MemorySaver()
    source.put(T, Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))
    source.put_writes(T, {"interrupt:good": GOOD, **MALFORMED})
    open_door.undo()
    import_threads(target, [*export_threads(source)])
    assert set(target.get_writes(T)) == {"interrupt:good", "failure"}


def asking():
    return make_chain({}, a=lambda state: {"answer": interrupt("why?")}, b=lambda state: None)


@pytest.fixture
def waiting(saver, open_door):
    """A graph whose thread waits for an answer, with malformed writes beside the interrupt."""
    app = asking().compile(checkpoint_saver=saver)
    app.invoke({}, T)
    saver.put_writes(T, MALFORMED)
    open_door.undo()
    return app


def test_a_run_goes_on(waiting):
    assert waiting.invoke(GraphResume("because"), T)["answer"] == "because"


def test_an_update_and_a_recovery_go_on(waiting, saver):
    waiting.update_state(T, {"n": 1})
    assert pending_payloads(saver) == ["why?"]
    recover(waiting, "t")
    assert waiting.invoke(GraphResume("because"), T) == {"n": 1, "answer": "because"}


@pytest.mark.parametrize("words", [("threads",), ("show", "t"), ("interrupts",), ("history", "t"), ("stats",)])
def test_the_command_line_shows_the_thread(words, open_door, tmp_path):
    saver = FileSystemSaver(tmp_path / "store", fsync="never")
    saver.put(T, Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))
    saver.put_writes(T, MALFORMED)
    open_door.undo()
    done = command(words[0], tmp_path / "store", *words[1:])
    assert (done.code, "Traceback" in done.err) == (0, False), done.err


def test_the_error_at_the_door_names_what_is_expected(saver):
    saver.put(T, Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))
    with pytest.raises(CheckpointSerializationError) as caught:
        saver.put_writes(T, {"interrupt:i": {"node_id": "a"}})
    assert str(caught.value) == (
        "interrupt:i (dict): an interrupt is a mapping with node_id, when, payload, created_at; it has no 'when'"
    )


@pytest.mark.parametrize("words", [("threads",), ("show", "t"), ("interrupts",)])
def test_the_command_line_shows_what_has_no_time_and_no_reason(words, tmp_path):
    with FileSystemSaver(tmp_path / "store", fsync="never") as saver:
        for thread in ("t", "u"):
            saver.put(RunnableConfig(thread), Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))
        saver.put_writes(T, {"interrupt:i": GOOD, "interrupt:j": {**GOOD, "created_at": 1}})
        saver.put_writes(RunnableConfig("u"), {"failure": {}})

    done = command(words[0], tmp_path / "store", *words[1:])

    assert done.code == 0
    assert done.err == ""
    assert "why?" in done.out


def test_keys_like_those_of_langgraph_may_have_any_value():
    saver = MemorySaver()
    saver.put(T, Checkpoint(node_id="a", next_node_id="b", state={}))
    saver.put_writes(T, {"write:-3:task": 5, "write:-1:other": {"no": "record"}})
    assert saver.interrupts() == []
    assert saver.summary(T).failure is None
