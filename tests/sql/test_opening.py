"""A history is opened from the rows of its end, in one statement."""

import random

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError
from tests.support.logs import flip, pack_frame

CONFIG = RunnableConfig("t")


def outline(stored):
    return None if stored is None else {name: getattr(stored, name) for name in stored.__slots__}


def describe(opened):
    """What is known of a log after it was opened, and what a caller then reads of it."""
    frames = opened.frames
    history = opened.history
    medium = frames.bytes
    latest = history.find_latest()
    early = history.scan.load_early()
    known = {
        "history": medium.history,
        "file": frames.fid,
        "end": frames.end,
        "seq": frames.seq,
        "is_scattered": frames.is_scattered,
        "depth": history.scan.depth,
        "keyframe_end": history.scan.keyframe_end,
        "last": outline(history.last),
        "latest": outline(latest),
        "early": {waiting.id: outline(waiting) for waiting in early},
        "row": medium.inserter.head,
    }
    if latest is not None:
        known["state"] = opened.load_state(latest)
        known["writes"] = opened.read_writes(latest)
    return known


def open_again(saver):
    log = saver._store.new_log("t", "")
    assert log.refresh()
    return log


def read_all(saver):
    """Open the history, and read all records from the first one on."""
    log = open_again(saver)
    log.history.load_all(log.frames.end)
    return log


def change_at_random(saver, dice, ids, number):
    """Do something to the history that appends one record or a few."""
    kinds = ["put"] * 5 + ["write", "write", "early", "tag", "old write", "replace"]
    kind = dice.choice(kinds)
    at = CONFIG.with_check_point_id
    match kind if ids else "put":
        case "put":
            text = "x" * dice.randrange(300)
            state = {"n": number, "text": text, f"key {number % 7}": [number]}
            metadata = dice.choice([{}, {"step": number}])
            checkpoint = Checkpoint(node_id="a", next_node_id="b", state=state, metadata=metadata)
            saver.put(CONFIG, checkpoint)
            ids.append(checkpoint.id)
        case "write":
            saver.put_writes(at(ids[-1]), {f"w{number}": number})
        case "early":
            saver.put_writes(at(f"later-{number}"), {"e": number}, early=True)
        case "tag":
            saver.add_tags(at(ids[-1]), f"tag {number}")
        case "old write":
            old_id = dice.choice(ids)
            saver.put_writes(at(old_id), {"late": number})
        case "replace":
            old = Checkpoint(id=dice.choice(ids), node_id="c", next_node_id="d", state={"replaced": number})
            saver.put(at(old.id), old)


@pytest.mark.sweep(1, of="seed", in_turn=True)
@pytest.mark.parametrize("seed", range(4))
def test_a_history_that_is_opened_at_its_end_is_what_its_writer_knows_and_what_all_records_hold(saver, seed):
    randomness = random.Random(seed)
    ids = []
    for number in range(90):
        change_at_random(saver, randomness, ids, number)
        opened = open_again(saver)
        known = describe(opened)
        assert known == describe(saver._store.shared_log("t", "")), number
        assert known == describe(read_all(saver)), number
        # It goes on with what is new.
        if number % 9 == 0:
            change_at_random(saver, randomness, ids, 1000 + number)
            assert opened.refresh()
            assert describe(opened) == describe(open_again(saver)), number


@pytest.fixture
def positions(saver):
    """The positions of the rows of a history of one keyframe and nine changes."""
    for number in range(10):
        saver.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={"n": number}))
    database = saver._database
    rows = database.read(f"SELECT position FROM {database.names.records} ORDER BY position")
    return [position for (position,) in rows]


@pytest.mark.sweep(3, of="number")
@pytest.mark.parametrize("number", range(1, 11))
def test_a_damaged_row_is_reported_at_its_position(saver, open_saver, positions, number):
    database = saver._database
    records = database.names.records
    position = positions[number]
    rows = database.read(f"SELECT frame FROM {records} WHERE position = ?", (position,))
    ((frame,),) = rows
    damaged = flip(frame, -9)
    database.write(f"UPDATE {records} SET frame = ? WHERE position = ?", (damaged, position))
    with open_saver() as fresh, pytest.raises(CheckpointCorruptionError) as caught:
        fresh.get(CONFIG)
    assert caught.value.offset == position


def test_a_record_of_a_newer_format_is_refused(saver, open_saver, positions):
    """Also if it stands before the last checkpoint."""
    log = open_again(saver)
    position = positions[5]
    frame = pack_frame(position, log.frames.fid, 6, 100, b"")
    database = saver._database
    records = database.names.records
    with database.transaction() as transaction:
        transaction.execute(f"DELETE FROM {records} WHERE position >= ?", (position,))
        values = (log.frames.bytes.history, position, frame)
        transaction.execute(f"INSERT INTO {records} (history, position, frame) VALUES (?, ?, ?)", values)
    with open_saver() as fresh, pytest.raises(CheckpointFormatError, match="newer graphkit"):
        fresh.get(CONFIG)
