"""What LangGraph's checkpointer sends to a database when it puts, and what it must not miss then."""

import sqlite3
from contextlib import closing
from functools import partial

import pytest

pytest.importorskip("langgraph")

from graphkit.errors import CheckpointCorruptionError
from savers.langgraph import FileSystemCheckpointSaver, SqliteCheckpointSaver
from tests.integrations.langgraph_stores import DATABASES, parametrize
from tests.support.langgraph_checkpoints import id_of, put, thread
from tests.support.logs import flip
from tests.support.statements import StatementCounter

MOST_NUMBERS = 8
"""An index has so many values of a number; those that follow have one term, which says that there are others."""
ABSENT = "ffffffff-ffff-6fff-bfff-ffffffffffff"


def put_many(saver, count, ids=None):
    """Put checkpoints one after another; return their configs."""
    configs = [thread()]
    for number, checkpoint_id in enumerate(ids or [None] * count):
        configs.append(put(saver, configs[-1], id=checkpoint_id, n=number))
    return configs[1:]


def seen(saver):
    return [
        (id_of(found.config), found.checkpoint["channel_values"], found.parent_config, found.pending_writes)
        for found in saver.list(thread())
    ]


@parametrize("postgres")
def test_a_put_and_early_writes_are_one_round_trip(opener, monkeypatch):
    saver = opener.new()
    assert saver.get_tuple(thread()) is None
    counter = StatementCounter(saver.store, monkeypatch)

    def count(call, *arguments, **values):
        return counter.count(partial(call, *arguments, **values))

    # That there is no history is known.
    assert count(put, saver, thread(), n=1) == 1
    config = put_many(saver, 3)[-1]
    assert count(put, saver, config, n=7) == 1
    config = saver.get_tuple(thread()).config
    assert count(put, saver, config, n=8, m=1) == 1
    latest = id_of(saver.get_tuple(thread()).config)
    for checkpoint_id in (ABSENT, latest):
        own = thread(checkpoint_id=checkpoint_id)
        assert count(saver.put_writes, own, [("n", 1)], "task") == 1


def test_a_usual_put_on_sqlite_is_one_statement(tmp_path, monkeypatch):
    """However many steps there are: their numbers need no more terms."""
    saver = SqliteCheckpointSaver(tmp_path / "test.db", fsync="never")
    config = thread()
    first_counted = MOST_NUMBERS + 2
    for step in range(first_counted):
        config = put(saver, config, {"source": "loop", "step": step}, n=step)
    counter = StatementCounter(saver.store, monkeypatch)
    for step in range(first_counted, 40):
        config = put(saver, config, {"source": "loop", "step": step}, n=step)
    # A keyframe changes the row of its history, too: one comes after 16 changes of such a state.
    insert_record = saver.store._store.statements.insert_record
    inserts = counter.statements.count(insert_record)
    keyframes = counter.statements.count("BEGIN")
    assert keyframes <= 2
    assert inserts + keyframes == 40 - first_counted
    assert len(counter.statements) == inserts + 2 * keyframes
    for step in (0, MOST_NUMBERS - 1, MOST_NUMBERS, 39):
        (found,) = saver.list(None, filter={"step": step})
        assert found.metadata["step"] == step


@pytest.mark.parametrize("values", [{"n": 99}, {"n": 99, "new": 1}])
@parametrize(*DATABASES)
def test_an_old_id_is_replaced_although_the_writer_does_not_know_it(opener, tmp_path, values):
    """The writer has read the end of the history, and does not ask for the id before it puts."""
    saver = opener.new()
    files = FileSystemCheckpointSaver(tmp_path / "files", fsync="never")
    configs = put_many(saver, 30)
    old = configs[3]
    newest = configs[-1]
    ids = [id_of(config) for config in configs]
    put_many(files, 30, ids)
    writer = opener.reopen(saver)
    for each in (writer, files):
        assert each.get_tuple(thread()).config == newest
        put(each, newest, id=id_of(old), **values)
        put(each, old, id=ABSENT, **values)
    assert seen(writer) == seen(files)
    assert len(seen(writer)) == 31
    assert writer.store.verify().ok


@parametrize(*DATABASES)
def test_writes_of_an_old_checkpoint_are_not_taken_for_early_ones(opener):
    saver = opener.new()
    configs = put_many(saver, 30)
    old = configs[3]
    saver.put_writes(old, [("n", "first")], "task")
    saver.store.catalogue.logs.close()
    assert saver.get_tuple(thread()) is not None
    saver.put_writes(old, [("n", "second")], "task")
    saver.put_writes(old, [("n", "other")], "other task")
    found = saver.get_tuple(old)
    other, first = found.pending_writes
    assert other == ("other task", "n", "other")
    assert first == ("task", "n", "first")
    history = saver.store.catalogue.shared_log("t", "").history
    for early in history.scan.load_early():
        assert early.id != id_of(old)


@pytest.mark.parametrize("is_open", [False, True])
def test_damage_is_found_in_each_record_that_leads_to_a_past_checkpoint(tmp_path, is_open):
    path = tmp_path / "test.db"
    with SqliteCheckpointSaver(path, fsync="never") as saver:
        configs = put_many(saver, 40)
        wanted = configs[25]
        saver.put_writes(wanted, [("n", 1)], "task")
        put(saver, configs[-1], n=40)
        expected = saver.get_tuple(wanted)
        stored = saver.store.catalogue.shared_log("t", "").history.find(id_of(wanted))

    def read():
        with SqliteCheckpointSaver(path, fsync="never") as reader:
            try:
                if is_open:
                    reader.get_tuple(thread())
                return reader.get_tuple(wanted)
            except CheckpointCorruptionError:
                return "damage"

    needed = []
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        update = "UPDATE graphkit_records SET frame = ? WHERE position = ?"
        for position, frame in database.execute("SELECT position, frame FROM graphkit_records").fetchall():
            for damaged in (flip(frame, len(frame) // 2), b""):
                database.execute(update, (damaged, position))
                found = read()
                assert found in (expected, "damage")
                if stored.keyframe_offset <= position <= stored.offset or position in stored.writes.values():
                    needed.append(found)
            database.execute(update, (frame, position))
    assert len(needed) > 10
    assert needed == ["damage"] * len(needed)
