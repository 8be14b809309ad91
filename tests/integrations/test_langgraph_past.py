"""Past checkpoints that LangGraph's checkpointer reads by their ids, from one pass over their records."""

import random
import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("langgraph")

from langgraph.checkpoint.base import empty_checkpoint

from graphkit.errors import CheckpointCorruptionError
from savers._log import past_checkpoint
from savers.langgraph import SqliteCheckpointSaver
from savers.langgraph.history_decoder import HistoryDecoder
from tests.integrations.langgraph_stores import DATABASES, parametrize

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
        ids.append(config["configurable"]["checkpoint_id"])
        if number % 3:
            saver.put_writes(config, [("n", number)], f"task {number}")
    return ids


def read_in_the_general_way(saver, checkpoint_id):
    histories = saver._histories
    histories.read_past = lambda _: None
    try:
        return saver.get_tuple(name(checkpoint_id))
    finally:
        del histories.read_past


def read_anew(opener, checkpoint_id):
    """Read a checkpoint with a new saver."""
    saver = opener.open("a")
    try:
        return saver.get_tuple(name(checkpoint_id))
    finally:
        saver._close()


@pytest.fixture
def decoded(monkeypatch):
    """What was decoded without the general way."""
    found = []
    decode = HistoryDecoder.decode
    monkeypatch.setattr(HistoryDecoder, "decode", lambda *args: found.append(decode(*args)) or found[-1])
    return found


@pytest.mark.parametrize("is_open", [False, True])
@parametrize(*LOGS)
def test_each_checkpoint_of_a_history(opener, decoded, is_open):
    ids = fill(opener.open("a"), 60)
    reader = opener.open("a")
    if is_open:
        assert reader.get_tuple(name()).config == name(ids[-1])
    made = [reader.get_tuple(name(wanted)) for wanted in ids[:-1]]
    # The scan of a log that was searched often enough finds one of them.
    assert len(decoded) >= 58
    assert None not in decoded
    assert made == [read_in_the_general_way(reader, wanted) for wanted in ids[:-1]]
    assert [one.checkpoint["channel_values"]["n"] for one in made] == [*range(59)]
    assert [bool(one.pending_writes) for one in made] == [bool(number % 3) for number in range(59)]
    assert reader.get_tuple(name(ids[-1])) == read_in_the_general_way(reader, ids[-1])
    assert reader.get_tuple(name("absent")) is None


@pytest.mark.sweep(1, of="seed", in_turn=True)
@pytest.mark.parametrize("seed", range(3))
@parametrize(*LOGS)
def test_what_another_saver_has_done_since_is_seen(opener, seed):
    dice = random.Random(seed)
    writer, reader = opener.open("a"), opener.open("a")
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
                ids.append(config["configurable"]["checkpoint_id"])
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
        check(opener, reader, [*dice.sample(ids, 3), ids[-2]], gone[-3:])


def check(opener, reader, ids, gone):
    """Check that a saver, and a new one, read what the general way reads."""
    general = opener.open("a")
    for wanted in ids:
        expected = read_in_the_general_way(general, wanted)
        assert expected is not None
        assert reader.get_tuple(name(wanted)) == expected
        assert read_anew(opener, wanted) == expected
    for wanted in gone:
        assert reader.get_tuple(name(wanted)) is None
        assert read_anew(opener, wanted) is None
    general._close()


@pytest.mark.parametrize("is_open", [False, True])
def test_damage_is_found_in_each_record_that_leads_to_a_checkpoint(tmp_path, is_open):
    path = tmp_path / "a.db"
    with SqliteCheckpointSaver(path, fsync="never") as saver:
        ids = fill(saver, 40)
        wanted = ids[25]
        expected = saver.get_tuple(name(wanted))
        stored = saver.store._store.shared_log("t", "").find(wanted)
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
def test_a_past_checkpoint_of_an_open_history_takes_one_statement(opener, monkeypatch):
    ids = fill(opener.open("a"), 60, length=90)
    reader = opener.open("a")
    statements = []
    database = reader.store._database
    read = database.read
    monkeypatch.setattr(database, "read", lambda sql, *rest: statements.append(sql) or read(sql, *rest))
    # The first one asks for the namespaces of the thread, too.
    assert reader.get_tuple(name(ids[7])) is not None
    assert len(statements) <= 3
    statements.clear()
    assert reader.get_tuple(name(ids[30])) is not None
    assert len(statements) == 1
    assert reader.get_tuple(name()) is not None
    statements.clear()
    assert reader.get_tuple(name(ids[20])) is not None
    assert len(statements) == 1


@parametrize("file")
def test_a_log_whose_index_is_known_is_not_searched(opener, monkeypatch):
    ids = fill(opener.open("a"), 60)
    reader = opener.open("a")
    reader.store.history(name())
    monkeypatch.setattr(past_checkpoint, "_read_place", lambda *_: pytest.fail("it was searched for"))
    for wanted in ids:
        assert reader.get_tuple(name(wanted)) == read_in_the_general_way(reader, wanted)
