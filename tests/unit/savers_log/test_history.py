"""The checkpoints of a log, from its end, by their ids, and as an index, over bytes in memory."""

import random
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from graphkit import Checkpoint
from graphkit.errors import CheckpointCorruptionError
from savers._cipher import KeyRing
from savers._log import writer
from savers._log.frame import CHECKPOINT, HEADER_SIZE, pack_frame
from savers.log import StoredCheckpoint
from tests.support.interruptions import find_places, interrupt
from tests.unit.savers_log.conftest import new_log, open_again, put

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NODES = ["a", "b", "c", None]
METADATA = [
    {}, {"step": 1}, {"step": 2, "who": "x"}, {"when": EPOCH}, {"list": [1, {"a": 2}]}, {"big": 1 << 70}, {"s": "\ud800"},
    {"step": 3, "b": b"\x01", "none": None, "float": 0.5, "true": True}, {"parents": {}}, {"parents": {"a": {}}, "s": 1},
]  # fmt: skip
FIELDS = [name for name in StoredCheckpoint.__slots__ if name != "target"]


def outline(checkpoints):
    return [[getattr(stored, name) for name in FIELDS] for stored in checkpoints]


def fill(log, seed, count=80, *, replaces=False):
    """Put checkpoints of every shape, with pending writes and tags; return their ids."""
    dice = random.Random(seed)
    ids = []
    now = EPOCH

    for number in range(count):
        now += timedelta(microseconds=dice.randrange(-1000, 5000))
        new = Checkpoint(
            id=dice.choice([None, None, None, None, f"id {seed} {number}"]),
            node_id=dice.choice(NODES[:-1]),
            next_node_id=dice.choice(NODES),
            parent_id=dice.choice([None, "elsewhere", *ids[-1:] * 6]),
            created_at=now,
            metadata=dice.choice([*METADATA, {"step": number}, {"step": number}]),
            state={"n": number, "items": list(range(number))},
        )
        target = None
        if replaces and ids and dice.random() < 0.1:
            place = dice.randrange(len(ids))
            target = ids[place]
            ids[place] = new.id
        else:
            ids.append(new.id)
        if dice.random() < 0.2:
            log.writer.put_early(dice.choice([new.id, f"never {number}"]), {"early": b"\x01"})
        log.writer.put(new, target)
        about = log.history.find(dice.choice(ids) if replaces else new.id)
        if dice.random() < 0.4:
            log.writer.put_writes(about, {"k": dice.choice([b"\xc0", b"\x01"]), f"k{number}": b"\x02"})
        if dice.random() < 0.2:
            log.writer.put_tags(about, [f"tag {number}", "x"], dice.choice([["x"], []]))
    return ids


@pytest.fixture(params=[False, True], ids=["in order", "with replacements"])
def replaces(request):
    return request.param


@pytest.mark.parametrize("seed", range(5))
def test_a_reader_finds_what_the_writer_knows(log, seed, replaces):
    ids = fill(log, seed, replaces=replaces)
    index = log.history.load_index().checkpoints
    assert [stored.id for stored in index] == ids
    known = outline(index)
    assert outline(open_again(log).history.find(each) for each in ids[::7]) == known[::7]
    assert outline(open_again(log).history.find_recent(30)) == known[-30:]
    assert outline(open_again(log).history.walk_back()) == known[::-1]
    assert outline(open_again(log).history.load_index().checkpoints) == known


def test_a_writer_goes_on_with_what_another_has_written(log):
    """Else a history to which each process adds one checkpoint would never have a second keyframe."""
    for number in range(60):
        put(log, n=number, items=[*range(number)])
        log = open_again(log)
        assert log.history.scan.depth == number % (writer.USUAL_DEPTH + 1)


# Early writes


@pytest.mark.parametrize("knows_all", [False, True])
def test_a_chain_that_is_read_later_does_not_change_what_is_known(log, knows_all):
    put(log, id="a")
    log.writer.put_early("b", {"w": b"\x01"})
    reader = open_again(log)
    if knows_all:
        reader.history.load_index()
    put(reader, id="b")
    reader.writer.put_writes(reader.history.find("b"), {"w": b"\x02"})
    put(reader, id="c")
    reader.writer.put_writes(reader.history.find("b"), {"w": b"\x03"})
    for _ in range(2):
        for letter in "abc":
            reader.load_state(reader.history.find(letter))
        assert reader.history.chains.read_writes(reader.history.find("b")) == {"w": b"\x03"}


def read_all(log):
    """What a reader finds of every checkpoint."""
    assert log.refresh()
    found = log.history.load_index().checkpoints
    states = [log.load_state(stored) for stored in found]
    return outline(found), states, log.history.scan.depth, [log.history.chains.read_writes(stored) for stored in found]


READS = {
    "the index": read_all,
    "the last ones": lambda log: [log.load_state(stored) for stored in log.history.find_recent(4)],
    "one by its id": lambda log: log.load_state(log.history.find("first")),
    "a value to compare": lambda log: put(log, long="x" * 5000 + "yz"),
}


@pytest.mark.parametrize("is_sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("name", READS)
def test_a_read_that_is_interrupted_at_any_line_costs_nothing(name, is_sealed, sweep):
    if is_sealed:
        pytest.importorskip("cryptography")
    read = READS[name]

    def prepare():
        log = new_log(key_ring=KeyRing({"key": bytes(32)}) if is_sealed else None)
        put(log, id="first", long="x" * 5000)
        reader = open_again(log)
        fill(log, 2, 5)
        put(log, long="x" * 5000 + "y")
        assert reader.refresh()
        return reader

    places = find_places(partial(read, prepare()))
    for place in sweep.some(places, 60):
        reader = prepare()
        interrupt(partial(read, reader), place)
        assert read_all(reader) == read_all(open_again(reader)), f"interrupted at {place}"


def append_raw(log, payload, **fields):
    frames = log.frames
    fields = {"flags": 0, "back": 0, "key": 0, **fields}
    frames.bytes.data += pack_frame(frames.end, frames.fid, frames.seq, CHECKPOINT, payload, **fields)


def last_frame(log):
    return [*log.frames.records.scan(HEADER_SIZE, log.frames.end, 0)][-1]


def test_a_record_that_names_another_keyframe_is_refused(log):
    for number in range(20):
        put(log, n=number)
    good = last_frame(log)
    first = log.history.load_index().checkpoints[0].offset
    end = log.frames.end
    append_raw(log, good.payload, flags=good.flags, back=end - good.offset, key=end - first)
    with pytest.raises(CheckpointCorruptionError, match="keyframe"):
        log.refresh()
    with pytest.raises(CheckpointCorruptionError):
        open_again(log)


def test_a_lost_replacement_is_refused(log):
    first = put(log, n=0)
    second = put(log, n=1)
    put(log, first, n=2)
    reader = open_again(log)
    assert [stored.id for stored in reader.history.load_index().checkpoints][1] == second

    frames = log.frames
    end = frames.end
    *_, last = frames.records.scan(HEADER_SIZE, end, 0)
    distance = end - last.offset
    frames.bytes.data += pack_frame(
        end, frames.fid, frames.seq, CHECKPOINT, last.payload, last.flags, distance, distance + last.key
    )
    with pytest.raises(CheckpointCorruptionError, match="replaces a checkpoint that is not there"):
        reader.refresh()
    assert not reader.is_open
