"""A history is opened from the rows of its end, in one pass."""

import random

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError
from savers._log import log
from savers._sql import row_log_reader
from savers._sql.row_log import RowLog

CONFIG = RunnableConfig("t")


def outline(stored):
    return None if stored is None else {name: getattr(stored, name) for name in stored.__slots__}


def describe(opened):
    """What is known of a log after it was opened, and what a caller then reads of it."""
    latest = opened.find_latest()
    early = opened.load_early()
    known = {
        "history": opened.fd,
        "file": opened.fid,
        "end": opened.end,
        "seq": opened.seq,
        "is_scattered": opened.is_scattered,
        "depth": opened.depth,
        "keyframe_end": opened.keyframe_end,
        "last": outline(opened.last_checkpoint),
        "latest": outline(latest),
        "early": {name: outline(waiting) for name, waiting in early.waiting.items()},
        "row": (opened._last_row, opened._keyframe, opened._status),
    }
    if latest is not None:
        known["state"] = opened.load_state(latest)
        known["writes"] = opened.read_writes(latest)
    return known


def open_both_ways(saver, monkeypatch):
    """Open the history twice: at its end, and one row after the other."""
    quick = saver._store.new_log("t", "")
    assert quick.refresh()
    slow = saver._store.new_log("t", "")
    with monkeypatch.context() as patch:
        patch.setattr(RowLog, "_open_last", lambda *_: False)
        assert slow.refresh()
    return quick, slow


def change_at_random(saver, randomness, ids, number):
    """Do something to the history that appends one record or a few."""
    kind = randomness.choice(["put"] * 5 + ["write", "write", "early", "tag", "old write", "replace"])
    if kind == "put" or not ids:
        state = {"n": number, "text": "x" * randomness.randrange(300), f"key {number % 7}": [number]}
        metadata = randomness.choice([{}, {"step": number}])
        checkpoint = Checkpoint(node_id="a", next_node_id="b", state=state, metadata=metadata)
        saver.put(CONFIG, checkpoint)
        ids.append(checkpoint.id)
    elif kind == "write":
        saver.put_writes(CONFIG.with_check_point_id(ids[-1]), {f"w{number}": number})
    elif kind == "early":
        saver.put_writes(CONFIG.with_check_point_id(f"later-{number}"), {"e": number}, early=True)
    elif kind == "tag":
        saver.add_tags(CONFIG.with_check_point_id(ids[-1]), f"tag {number}")
    elif kind == "old write":
        saver.put_writes(CONFIG.with_check_point_id(randomness.choice(ids)), {"late": number})
    else:
        old = Checkpoint(id=randomness.choice(ids), node_id="c", next_node_id="d", state={"replaced": number})
        saver.put(CONFIG.with_check_point_id(old.id), old)


@pytest.mark.parametrize("seed", range(4))
def test_both_ways_of_opening_find_the_same(saver, monkeypatch, seed):
    randomness = random.Random(seed)
    ids = []
    quick_count = 0
    take_rows = RowLog._take_rows
    taken = []
    monkeypatch.setattr(RowLog, "_take_rows", lambda *args: (taken.append(1), take_rows(*args))[1])
    for number in range(90):
        change_at_random(saver, randomness, ids, number)
        taken.clear()
        quick, slow = open_both_ways(saver, monkeypatch)
        quick_count += len(taken) == 1
        assert describe(quick) == describe(slow), number
        # Both go on with what is new.
        if number % 9 == 0:
            change_at_random(saver, randomness, ids, 1000 + number)
            assert quick.refresh()
            assert slow.refresh()
            assert describe(quick) == describe(slow), number
    assert quick_count > 60


def test_a_log_that_was_opened_goes_on(saver, open_saver):
    for number in range(40):
        with open_saver() as fresh:
            fresh.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={"n": number, "all": [*range(number)]}))
    assert [checkpoint.state["n"] for checkpoint in saver.list(CONFIG)] == [*range(39, -1, -1)]
    assert saver.verify().ok


@pytest.fixture
def positions(saver):
    """The positions of the rows of a history of one keyframe and nine changes."""
    for number in range(10):
        saver.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={"n": number}))
    database = saver._database
    rows = database.read(f"SELECT position FROM {database.names.records} ORDER BY position")
    return [position for (position,) in rows]


@pytest.mark.parametrize("number", range(1, 11))
def test_a_damaged_row_is_reported_at_its_position(saver, open_saver, positions, number):
    database = saver._database
    records = database.names.records
    ((frame,),) = database.read(f"SELECT frame FROM {records} WHERE position = ?", (positions[number],))
    changed = frame[:-9] + bytes([frame[-9] ^ 1]) + frame[-8:]
    database.write(f"UPDATE {records} SET frame = ? WHERE position = ?", (changed, positions[number]))
    with open_saver() as fresh, pytest.raises(CheckpointCorruptionError) as caught:
        fresh.get(CONFIG)
    assert caught.value.offset == positions[number]


@pytest.mark.parametrize("number", range(1, 10))
def test_a_missing_row_is_reported_at_its_position(saver, open_saver, positions, number):
    database = saver._database
    database.write(f"DELETE FROM {database.names.records} WHERE position = ?", (positions[number],))
    with open_saver() as fresh, pytest.raises(CheckpointCorruptionError) as caught:
        fresh.get(CONFIG)
    assert caught.value.offset in {positions[number], positions[number + 1]}


def test_a_row_with_two_records_is_refused(saver, open_saver, positions):
    database = saver._database
    records = database.names.records
    read = f"SELECT frame FROM {records} WHERE position = ?"
    ((first,),) = database.read(read, (positions[4],))
    ((second,),) = database.read(read, (positions[5],))
    with database.transaction() as transaction:
        transaction.execute(f"DELETE FROM {records} WHERE position = ?", (positions[5],))
        transaction.execute(f"UPDATE {records} SET frame = ? WHERE position = ?", (first + second, positions[4]))
    with open_saver() as fresh, pytest.raises(CheckpointCorruptionError):
        fresh.get(CONFIG)


def test_a_record_of_a_newer_format_is_refused(saver, open_saver, positions):
    """Also if it stands before the last checkpoint."""
    opened = saver._store.shared_log("t", "")
    frame = log.pack_frame(positions[5], opened.fid, 6, 100, b"")
    database = saver._database
    records = database.names.records
    with database.transaction() as transaction:
        transaction.execute(f"DELETE FROM {records} WHERE position >= ?", (positions[5],))
        values = (opened.fd, positions[5], frame)
        transaction.execute(f"INSERT INTO {records} (history, position, frame) VALUES (?, ?, ?)", values)
    with open_saver() as fresh, pytest.raises(CheckpointFormatError, match="newer graphkit"):
        fresh.get(CONFIG)


def test_a_long_end_is_not_read_twice(saver, open_saver, monkeypatch):
    monkeypatch.setattr(row_log_reader, "MOST_KEPT", 10_000)
    for number in range(6):
        saver.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={"n": number, "text": str(number) * 5_000}))
    with open_saver() as fresh:
        read = fresh._database.read
        executed = []
        monkeypatch.setattr(fresh._database, "read", lambda *args: (executed.append(args[0]), read(*args))[1])
        assert fresh.info(CONFIG) is not None
        assert len(executed) == 1
