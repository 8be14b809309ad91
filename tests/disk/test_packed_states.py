"""The states of a short log: what one pass over its bytes does not prove is left to the general way."""

from pathlib import Path

import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver, _delta as delta
from savers._delta import compare
from savers._log.packed_states import StateDecoder, replay_states

THREAD = RunnableConfig("t")
BASE = "x" * 500


def replay(saver):
    writer = saver._shared_writer(THREAD)
    writer.refresh()
    return replay_states(Path(writer.path).read_bytes(), writer.load_index().checkpoints), writer


def put(saver, **state):
    saver.put(THREAD, Checkpoint(node_id="n", next_node_id="m", state=state))


def test_the_states_are_those_of_the_saver(tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never")
    states = [{"text": BASE}, {"text": BASE + "y", "n": 1}, {"text": "z" + BASE}, {"n": [1, {"a": 2}]}]
    window = [f"{number:030}" for number in range(60)]
    states += [{"n": window[first : first + 40]} for first in (0, 1, 5, 20)]
    for state in states:
        put(saver, **state)
    packed, writer = replay(saver)
    assert [StateDecoder(writer.codec).decode(values) for values in packed.values()] == states


@pytest.mark.parametrize("text", [BASE + "y", "y" + BASE, BASE[:250] + "y" + BASE[:250]])
def test_a_wrong_checksum_of_a_value(text, tmp_path, monkeypatch):
    saver = FileSystemSaver(tmp_path, fsync="never")
    put(saver, text=BASE)
    monkeypatch.setattr(compare, "crc32", lambda _: 1)
    put(saver, text=text)
    assert replay(saver)[0] == {}


@pytest.mark.parametrize("position", range(4))
def test_a_keyframe_that_lists_another_value(position, tmp_path, monkeypatch):
    saver = FileSystemSaver(tmp_path, fsync="never")
    put(saver, text=BASE)
    writer = saver._shared_writer(THREAD)

    def encode_wrong(*args):
        entry = right(*args)
        entry[position] += 1
        return entry

    right = delta.encode_entry
    with monkeypatch.context() as patch:
        patch.setattr(delta, "encode_entry", encode_wrong)
        patch.setattr("savers._log.log_writer.MIN_KEYFRAME_DISTANCE", -1)
        patch.setattr("savers._log.log_writer.RECORD_COST", 1 << 20)
        put(saver, text=BASE, other=1)
        put(saver, text=BASE, other=2)
    assert writer.load_index()
    assert replay(saver)[0] == {}
