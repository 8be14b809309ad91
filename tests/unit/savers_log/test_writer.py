"""What a writer appends, and that it appends all of it or nothing, over bytes in memory."""

import itertools

import pytest

from graphkit import Checkpoint
from graphkit.errors import CheckpointCorruptionError, CheckpointSerializationError
from graphkit.saver_kit import FrozenDict, freeze
from savers._log import writer
from savers._log.frame import CHECKPOINT, HEADER_SIZE, KEY
from savers.log import MemoryLogBytes
from tests.unit.savers_log.conftest import new_log, open_again, put


def frames_of(log):
    return [*log.frames.records.scan(HEADER_SIZE, len(log.frames.bytes.data), 0)]


def states_of(log):
    reader = open_again(log)
    return [reader.load_state(stored) for stored in reader.history.load_index().checkpoints]


# Keyframes


def keyframes(log):
    records = [frame for frame in frames_of(log) if frame.type == CHECKPOINT]
    return [number for number, frame in enumerate(records) if frame.flags & KEY]


def test_in_a_small_log_a_keyframe_comes_after_sixteen_changes(log):
    for number in range(60):
        put(log, n=number, text="x" * 100)
    assert len(log.frames.bytes.data) < writer.SMALL_LOG
    assert keyframes(log) == [0, 17, 34, 51]


def test_in_a_longer_log_a_whole_keyframe_comes_when_the_changes_have_eight_times_its_bytes(log):
    put(log, text="x" * writer.SMALL_LOG)
    others = {f"key {number}": "y" * 30 for number in range(20)}

    for number in range(500):
        put(log, **others, n=number)

    numbers = keyframes(log)

    assert len(numbers) > 4

    frames = [frame for frame in frames_of(log) if frame.type == CHECKPOINT]
    for before, after in itertools.pairwise(numbers[2:]):
        changes = frames[after].offset - frames[before].end
        length = frames[before].end - frames[before].offset
        assert writer.KEYFRAME_SHARE * length <= changes < (writer.KEYFRAME_SHARE + 1) * length


def test_a_long_keyframe_is_not_repeated_for_short_changes(log):
    big = {f"key {number}": "y" * 60 for number in range(2000)}
    for number in range(60):
        put(log, **big, n=number)
    assert keyframes(log) == [0]


# All or nothing


@pytest.fixture
def short(monkeypatch):
    """A log whose states go to DATA records where they are longer than its records."""
    monkeypatch.setattr(MemoryLogBytes, "max_payload", 5000)
    monkeypatch.setattr(writer, "_SPILL_LENGTH", 64)
    return new_log()


UNSTORABLE = {
    "a value": {"state": {"n": object()}},
    "a key": {"state": {1: 2}},
    "a node": {"node_id": 7},
    "a next node": {"next_node_id": 7},
    "a parent": {"parent_id": 7},
    "an id": {"id": 7},
    "a long id": {"id": "i" * 6000},
    "long metadata": {"metadata": {"k": "x" * 6000}},
    "a time": {"created_us": 1 << 62},
}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("what", UNSTORABLE)
def test_what_cannot_be_stored_is_refused_and_changes_nothing(short, what, is_first):
    if not is_first:
        put(short, n=0)
    before = bytes(short.frames.bytes.data)
    fields = {
        "id": "c", "node_id": "n", "next_node_id": "m", "parent_id": None, "created_us": 0, "metadata": FrozenDict(),
        **UNSTORABLE[what],
    }  # fmt: skip
    fields["metadata"] = freeze(dict(fields["metadata"]))
    state = FrozenDict()
    for name, value in fields.pop("state", {"n": 1}).items():
        dict.__setitem__(state, name, value)
    with pytest.raises(CheckpointSerializationError):
        short.writer.put(Checkpoint.from_stored(state=state, **fields), None)
    assert short.frames.bytes.data == before
    short.discard()
    short.refresh()
    put(short, n=1)
    assert states_of(short)[-1] == {"n": 1}


def test_a_value_of_the_last_state_that_is_damaged_stops_the_put(log):
    put(log, text="x" * 9000)
    reader = open_again(log)
    place = log.frames.bytes.data.index(b"xxxx")
    log.frames.bytes.data[place] ^= 1
    with pytest.raises(CheckpointCorruptionError):
        put(reader, text="x" * 9000 + "y")
    log.frames.bytes.data[place] ^= 1
    reader.discard()
    assert reader.refresh()

    put(reader, text="x" * 9000 + "y")
    assert states_of(log)[-1] == {"text": "x" * 9000 + "y"}
