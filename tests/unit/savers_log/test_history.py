"""Reads of a log that are interrupted, and records that do not follow, over bytes in memory."""

from functools import partial

import pytest

from graphkit.errors import CheckpointCorruptionError
from savers._cipher import KeyRing
from savers._delta import operations
from savers._log import writer
from savers._log.frame import CHECKPOINT, HEADER_SIZE, pack_frame
from savers.log import StoredCheckpoint
from tests.support.interruptions import find_places, interrupt
from tests.unit.savers_log.conftest import new_log, open_again, put

FIELDS = [name for name in StoredCheckpoint.__slots__ if name != "target"]
BASE = "x" * 500


def outline(checkpoints):
    return [[getattr(stored, name) for name in FIELDS] for stored in checkpoints]


def fill(log):
    """Put checkpoints with early writes, pending writes and tags."""
    for number in range(5):
        name = f"c{number}"
        log.writer.put_early(name, {"early": b"\x01"})
        put(log, id=name, n=number, items=[*range(number)])
        about = log.history.find(name)
        log.writer.put_writes(about, {"k": b"\x02"})
        log.writer.put_tags(about, ["x"], [])


def test_a_writer_goes_on_with_what_another_has_written(log):
    """Else a history to which each process adds one checkpoint would never have a second keyframe."""
    for number in range(60):
        put(log, n=number, items=[*range(number)])
        log = open_again(log)
        assert log.history.scan.depth == number % (writer.USUAL_DEPTH + 1)


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
        fill(log)
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


@pytest.mark.parametrize("text", [BASE + "y", "y" + BASE, BASE[:250] + "y" + BASE[:250]])
def test_a_wrong_checksum_of_a_value_is_damage(log, text, monkeypatch):
    put(log, text=BASE)
    log.writer.load_table()
    with monkeypatch.context() as patch:
        patch.setattr(operations, "crc32", lambda *_: 1)
        put(log, text=text)
    reader = open_again(log)
    first, second = reader.history.load_index().checkpoints

    for _ in range(2):
        with pytest.raises(CheckpointCorruptionError, match="checksum"):
            reader.load_state(second)
        assert reader.load_state(first) == {"text": BASE}
