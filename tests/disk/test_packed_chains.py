"""The states that one pass over a chain finds are those that the log reader finds one by one."""

import random
from pathlib import Path

import pytest

from graphkit import Checkpoint, CheckpointCorruptionError, RunnableConfig
from savers import Compression, FileSystemSaver, _delta as delta
from savers._delta import compare
from savers._log.kept_records import KeptRecords
from savers._log.packed_chain import PackedChains, read_body

THREAD = RunnableConfig("t")
BASE = "x" * 500


@pytest.fixture
def short_chains(monkeypatch):
    monkeypatch.setattr("savers._log.log_writer.MIN_KEYFRAME_DISTANCE", 2000)


def put(saver, **state):
    saver.put(THREAD, Checkpoint(node_id="n", next_node_id="m", state=state))


def open_log(saver):
    reader = saver._store.new_writer("t", "")
    assert reader.refresh()
    return reader


def decode(reader, packed):
    state = {}
    for name, value in packed.state.items():
        kind, count, body = read_body(value)
        state[name] = reader.codec.unpack(delta.pack_header(kind, count) + body, name)
    return state


def make_states(randomness):
    """Yield states whose values are set, added, removed, appended to, spliced, and cut at their beginning."""
    state = {"list": [], "text": "", "window": [], "n": 0}
    for number in range(80):
        state = dict(state, n=number)
        change = randomness.randrange(7)
        if change == 0:
            state["list"] = [*state["list"], {"id": number, "text": "y" * 100}]
        elif change == 1:
            state["text"] += "z" * 90
        elif change == 2:
            state["window"] = [*state["window"], f"{number:040}"][-12:]
        elif change == 3:
            state[f"key{randomness.randrange(3)}"] = "é" * randomness.randrange(200)
        elif change == 4:
            state.pop(f"key{randomness.randrange(3)}", None)
        elif change == 5:
            state["text"] = state["text"][:60] + "w" + state["text"][60:]
        else:
            state["large"] = f"{randomness.random():}" * 300
        yield state


@pytest.mark.parametrize("compression", [None, Compression(threshold=200)])
@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("short_chains")
def test_the_states_of_every_chain(seed, is_kept, compression, tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never", compression=compression)
    states = list(make_states(random.Random(seed)))
    for state in states:
        put(saver, **state)
    reader = open_log(saver)
    kept = KeptRecords()
    checkpoints = reader.load_index(kept if is_kept else None).checkpoints
    assert len({stored.keyframe_offset for stored in checkpoints}) > 3
    chains = PackedChains(kept, reader.end)
    found = [decode(reader, chains.read(reader, stored)) for stored in reversed(checkpoints)]
    assert found == states[::-1]


@pytest.mark.usefixtures("short_chains")
def test_the_order_of_reading_does_not_matter(tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never")
    states = list(make_states(random.Random(5)))
    for state in states:
        put(saver, **state)
    reader = open_log(saver)
    pairs = list(zip(reader.load_index().checkpoints, states, strict=True))
    random.Random(1).shuffle(pairs)
    chains = PackedChains(KeptRecords(), reader.end)
    for stored, state in pairs:
        packed = chains.read(reader, stored)
        assert packed is None or decode(reader, packed) == state
    assert chains.read(reader, pairs[0][0]) is not None


def test_the_writes_are_those_of_the_checkpoint(tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never")
    for number in range(5):
        put(saver, n=number)
        saver.put_writes(THREAD, {"a": number, "b": [number]})
        saver.put_writes(THREAD, {"a": -number})
    reader = open_log(saver)
    kept = KeptRecords()
    for stored in reversed(reader.find_recent(3, kept)):
        packed = PackedChains(kept, reader.end).read(reader, stored)
        assert packed is not None
        assert packed.writes == reader.read_packed_writes(stored)


@pytest.mark.parametrize("text", [BASE + "y", "y" + BASE, BASE[:250] + "y" + BASE[:250]])
def test_a_wrong_checksum_of_a_value_is_left_to_the_general_way(text, tmp_path, monkeypatch):
    saver = FileSystemSaver(tmp_path, fsync="never")
    put(saver, text=BASE)
    monkeypatch.setattr(compare, "crc32", lambda _: 1)
    put(saver, text=text)
    reader = open_log(saver)
    for stored in reader.load_index().checkpoints:
        assert PackedChains(KeptRecords(), reader.end).read(reader, stored) is None


@pytest.mark.parametrize("limit", [1, 5, 30, 79, 80, 200])
@pytest.mark.usefixtures("short_chains")
def test_the_last_checkpoints_are_those_of_the_index(limit, tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never")
    for number, state in enumerate(make_states(random.Random(7))):
        put(saver, **state)
        if number % 3:
            saver.put_writes(THREAD, {"w": number})
        if number % 5 == 0:
            saver.add_tags(THREAD, f"tag{number}")
    whole = open_log(saver).load_index().checkpoints[-limit:]
    recent = open_log(saver).find_recent(limit)
    names = [name for name in type(whole[0]).__slots__ if name != "cleared"]
    assert [[getattr(one, name) for name in names] for one in recent] == [
        [getattr(one, name) for name in names] for one in whole
    ]


def damage(path, offset):
    with Path(path).open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes((byte[0] ^ 1,)))


def test_a_damaged_record_is_found_by_the_general_way(tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never")
    for number in range(6):
        put(saver, text=f"{number}" * 300)
    reader = open_log(saver)
    checkpoints = reader.load_index().checkpoints
    damage(reader.path, checkpoints[3].offset + 100)
    chains = PackedChains(KeptRecords(), reader.end)
    assert chains.read(reader, checkpoints[5]) is None


@pytest.mark.parametrize("number", [62, 70, 79])
@pytest.mark.usefixtures("short_chains")
def test_damage_among_the_last_checkpoints_is_an_error(number, tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never")
    for state in make_states(random.Random(7)):
        put(saver, **state)
    offset = open_log(saver).load_index().checkpoints[number].offset
    reader = open_log(saver)
    damage(reader.path, offset + 60)
    with pytest.raises(CheckpointCorruptionError):
        reader.find_recent(20)
