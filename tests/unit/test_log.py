"""Logs over bytes in memory: two logs of the same bytes, how they are read, and when a keyframe comes."""

import itertools

import pytest

from graphkit import Checkpoint
from graphkit.errors import CheckpointCorruptionError
from graphkit.saver_kit import Codec
from savers._log import records, writer
from savers._log.frame import CHECKPOINT, HEADER_SIZE, KEY
from savers.log import Log, MemoryLogBytes, ThreadIdentity, digest_thread


@pytest.fixture
def log():
    """The log of thread "t", which nothing is known of yet."""
    identity = ThreadIdentity(("t", ""), digest_thread("t"), None, is_opaque=False)
    return Log(MemoryLogBytes(), identity, Codec(), None, None)


def open_again(log):
    """Return another log over the same bytes, open."""
    other = log.make_copy(MemoryLogBytes(data=log.frames.bytes.data))
    assert other.refresh()
    return other


def put(log, **state):
    log.writer.put(Checkpoint(node_id="n", next_node_id="m", state=state), None)


def test_a_writer_goes_on_with_what_another_has_written(log):
    """Else a history to which each process adds one checkpoint would never have a second keyframe."""
    for number in range(60):
        put(log, n=number, items=[*range(number)])
        log = open_again(log)
        assert log.history.scan.depth == number % (writer.USUAL_DEPTH + 1)


@pytest.mark.parametrize("window", [64, 200, 1 << 12])
def test_all_records_are_found_however_little_is_read_at_once(log, window, monkeypatch):
    for name, size in {"FIRST_WINDOW": window, "WINDOW": 2 * window, "_SEARCH_SIZE": window, "_PROBE": window}.items():
        monkeypatch.setattr(records, name, size)
    for number in range(40):
        put(log, text="x" * (0, 30, 700)[number % 3])
    found = log.frames.records
    end = log.frames.end

    frames = [*found.scan(HEADER_SIZE, end, 0)]

    assert len(frames) > 40
    assert [found.read(frame.offset, end) for frame in frames] == frames
    assert found.read_run(frames[7].offset, frames[20].end) == frames[7:21]
    assert [*records.BackwardReader(found, end)] == frames[::-1]
    assert [*found.search(frames[5].offset + 1, end)] == frames[6:]

    log.frames.bytes.data[frames[6].offset + 30] ^= 4
    with pytest.raises(CheckpointCorruptionError):
        list(found.scan(HEADER_SIZE, end, 0))
    assert [*found.search(HEADER_SIZE, end)] == [*frames[:6], *frames[7:]]


def list_checkpoints(log):
    frames = log.frames.records.scan(HEADER_SIZE, log.frames.end, 0)
    return [frame for frame in frames if frame.type == CHECKPOINT]


def list_keyframes(log):
    return [number for number, frame in enumerate(list_checkpoints(log)) if frame.flags & KEY]


def test_in_a_small_log_a_keyframe_comes_after_sixteen_changes(log):
    for number in range(60):
        put(log, n=number, text="x" * 100)
    assert len(log.frames.bytes.data) < writer.SMALL_LOG
    assert list_keyframes(log) == [0, 17, 34, 51]


def test_in_a_longer_log_a_whole_keyframe_comes_when_the_changes_have_eight_times_its_bytes(log):
    put(log, text="x" * writer.SMALL_LOG)
    others = {f"key {number}": "y" * 30 for number in range(20)}
    for number in range(500):
        put(log, **others, n=number)

    numbers = list_keyframes(log)

    assert len(numbers) > 4

    frames = list_checkpoints(log)
    for before, after in itertools.pairwise(numbers[2:]):
        changes = frames[after].offset - frames[before].end
        length = frames[before].end - frames[before].offset
        assert writer.KEYFRAME_SHARE * length <= changes < (writer.KEYFRAME_SHARE + 1) * length


def test_a_long_keyframe_is_not_repeated_for_short_changes(log):
    big = {f"key {number}": "y" * 60 for number in range(2000)}
    for number in range(60):
        put(log, **big, n=number)
    assert list_keyframes(log) == [0]
