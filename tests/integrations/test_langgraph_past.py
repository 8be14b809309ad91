"""Past checkpoints that LangGraph's checkpointer reads by their ids."""

import random
import sqlite3
from contextlib import closing
from functools import partial

import pytest

pytest.importorskip("langgraph")

from langgraph.checkpoint.base import empty_checkpoint

from graphkit.errors import CheckpointCorruptionError
from savers.langgraph import SqliteCheckpointSaver
from tests.integrations.langgraph_stores import DATABASES, parametrize
from tests.support.langgraph_checkpoints import id_of, values_of
from tests.support.statements import StatementCounter

LOGS = ["file", *DATABASES]


def name(checkpoint_id=None):
    return {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": checkpoint_id}}


def put(saver, config, number, checkpoint_id=None, length=150):
    """Put a checkpoint after the one that a config names; return its config.

    A keyframe names the bytes of the text if it is longer than 128.
    """
    checkpoint = empty_checkpoint()
    if checkpoint_id is not None:
        checkpoint["id"] = checkpoint_id
    versions = {"n": f"{number:03}", "text": f"{number // 7:03}"}
    checkpoint |= {
        "channel_values": {"n": number, "text": f"{number // 7:0{length}}"},
        "channel_versions": versions,
        "versions_seen": {"node": {"n": versions["n"]}},
    }
    return saver.put(config, checkpoint, {"source": "loop", "step": number}, versions)


def fill(saver, count, **options):
    """Put a history with pending writes; return the ids of its checkpoints."""
    config = name()
    ids = []
    for number in range(count):
        config = put(saver, config, number, **options)
        ids.append(id_of(config))
        if number % 3:
            saver.put_writes(config, [("n", number)], f"task {number}")
    return ids


def read_again(opener, checkpoint_id):
    """Read a checkpoint with a new saver."""
    saver = opener.open("a")
    try:
        return saver.get_tuple(name(checkpoint_id))
    finally:
        saver._close()


def read_whole(opener):
    """Return the whole history by id, as a new saver lists it."""
    saver = opener.open("a")
    try:
        return {id_of(one.config): one for one in saver.list(name())}
    finally:
        saver._close()


@pytest.mark.parametrize("is_open", [False, True])
@parametrize(*LOGS)
def test_each_checkpoint_of_a_history(opener, is_open):
    ids = fill(opener.open("a"), 60)
    listed = read_whole(opener)
    reader = opener.open("a")
    if is_open:
        assert reader.get_tuple(name()).config == name(ids[-1])
    made = [reader.get_tuple(name(wanted)) for wanted in ids]
    assert made == [listed[wanted] for wanted in ids]
    assert [values_of(one) for one in made] == [{"n": number, "text": f"{number // 7:0150}"} for number in range(60)]
    assert [one.pending_writes for one in made] == [
        [(f"task {number}", "n", number)] if number % 3 else [] for number in range(60)
    ]
    assert reader.get_tuple(name("absent")) is None


@pytest.mark.sweep(1, of="seed", in_turn=True)
@pytest.mark.parametrize("seed", range(3))
@parametrize(*LOGS)
def test_what_another_saver_has_done_since_is_seen(opener, seed, sweep):
    dice = random.Random(seed)
    writer = opener.open("a")
    reader = opener.open("a")
    ids = fill(writer, 30)
    gone = []
    assert reader.get_tuple(name()) is not None
    for number in range(30, 60):
        match dice.randrange(10) if number > 40 else dice.randrange(6):
            case 0 | 1:
                # Writes come before their checkpoint, and others of the one before it in between.
                later = empty_checkpoint()["id"]
                writer.put_writes(name(later), [("n", number)], "early")
                writer.put_writes(name(ids[-1]), [("n", number)], f"between {number}")
                put(writer, name(ids[-1]), number, later)
                ids.append(later)
            case 2 | 3:
                config = put(writer, name(ids[-1]), number)
                ids.append(id_of(config))
            case 4 | 5:
                writer.put_writes(name(ids[-1]), [("n", number)], f"late {number}")
            case 6:
                put(writer, name(ids[3]), number, ids[4])
            case 7:
                writer.put_writes(name(dice.choice(ids)), [("n", number)], f"late {number}")
            case 8:
                gone.append(ids.pop(dice.randrange(len(ids))))
                writer.store.remove(name(), gone[-1:])
            case 9:
                writer.delete_thread("t")
                gone += ids
                ids = fill(writer, 20)
        checked = sweep.count(3, 1)
        check(opener, reader, [*dice.sample(ids, checked), ids[-2]], gone[-checked:])


def check(opener, reader, ids, gone):
    """Check that a saver, and a new one, read each checkpoint as a new one lists it."""
    listed = read_whole(opener)
    for wanted in ids:
        assert reader.get_tuple(name(wanted)) == listed[wanted]
        assert read_again(opener, wanted) == listed[wanted]
    for wanted in gone:
        assert reader.get_tuple(name(wanted)) is None
        assert read_again(opener, wanted) is None


@pytest.mark.parametrize("is_open", [False, True])
def test_damage_is_found_in_each_record_that_leads_to_a_checkpoint(tmp_path, is_open):
    path = tmp_path / "a.db"
    with SqliteCheckpointSaver(path, fsync="never") as saver:
        ids = fill(saver, 40)
        wanted = ids[25]
        expected = saver.get_tuple(name(wanted))
        stored = saver.store.catalogue.shared_log("t", "").history.find(wanted)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        rows = database.execute("SELECT position, frame FROM graphkit_records ORDER BY position").fetchall()
        outcomes = {}
        for position, frame in rows:
            middle = len(frame) // 2
            for damaged in (frame[:middle] + bytes((frame[middle] ^ 1,)) + frame[middle + 1 :], b""):
                set_frame(database, position, damaged)
                outcomes[position, len(damaged)] = read_or_find_damage(path, wanted, is_open)
            set_frame(database, position, frame)
    assert all(outcome in (expected, "damage") for outcome in outcomes.values())
    last = max(stored.offset, *stored.writes.values())
    found = [outcome for (position, _), outcome in outcomes.items() if stored.keyframe_offset <= position <= last]
    assert len(found) > 10
    assert found == ["damage"] * len(found)


def set_frame(database, position, frame):
    database.execute("UPDATE graphkit_records SET frame = ? WHERE position = ?", (frame, position))


def read_or_find_damage(path, wanted, is_open):
    with SqliteCheckpointSaver(path, fsync="never") as saver:
        try:
            if is_open:
                saver.get_tuple(name())
            return saver.get_tuple(name(wanted))
        except CheckpointCorruptionError:
            return "damage"


@parametrize(*DATABASES)
def test_a_past_checkpoint_takes_two_statements(opener, monkeypatch):
    """One sees what is new in the history, and one finds the records since the keyframe."""
    ids = fill(opener.open("a"), 60, length=90)
    reader = opener.open("a")
    assert reader.get_tuple({"configurable": {"thread_id": "other"}}) is None
    counter = StatementCounter(reader.store, monkeypatch)
    for wanted in (ids[7], ids[30], ids[-2]):
        assert counter.count(partial(reader.get_tuple, name(wanted))) == 2
