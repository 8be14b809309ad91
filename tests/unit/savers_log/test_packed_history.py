"""Any state of a log, packed and decoded, over bytes in memory."""

import random

import pytest

from graphkit.errors import CheckpointCorruptionError
from graphkit.saver_kit import Codec
from savers import Compression, _delta as delta
from savers._cipher import KeyRing
from savers._compression import parse_compression
from savers._delta import operations
from savers._delta.values import cut
from savers._log import history, packed_history
from tests.unit.savers_log.conftest import new_log, open_again, put

BASE = "x" * 500


def make_states(dice, count=80):
    """Yield states whose values are set, added, removed, appended to, spliced, and cut at their beginning."""
    state = {"list": [], "text": "", "window": [], "n": 0}

    for number in range(count):
        state = dict(state, n=number)
        change = dice.randrange(7)
        if change == 0:
            state["list"] = [*state["list"], {"id": number, "text": "y" * 100}]
        elif change == 1:
            state["text"] += "z" * 90
        elif change == 2:
            state["window"] = [*state["window"], f"{number:040}"][-12:]
        elif change == 3:
            state[f"key{dice.randrange(3)}"] = "é" * dice.randrange(200)
        elif change == 4:
            state.pop(f"key{dice.randrange(3)}", None)
        elif change == 5:
            state["text"] = state["text"][:60] + "w" + state["text"][60:]
        else:
            state["large"] = f"{dice.random():}" * 300
        yield state


OPTIONS = {
    "plain": dict,
    "compressed": lambda: {"compression": parse_compression(Compression(threshold=200))},
    "sealed": lambda: {"key_ring": KeyRing({"key": bytes(32)})},
}


@pytest.fixture(params=OPTIONS)
def filled(request):
    """A log, open again, and the states that were put."""
    if request.param == "sealed":
        pytest.importorskip("cryptography")
    log = new_log(**OPTIONS[request.param]())
    states = [*make_states(random.Random(request.param))]
    for state in states:
        put(log, **state)
    return open_again(log), states


def unpack(packed):
    """A state from the bytes of its values, without a StateDecoder."""
    state = {}
    for name, value in packed.items():
        kind, count, body = delta.read_body(value)
        state[name] = Codec().unpack(delta.pack_header(kind, count) + body, name)
    return state


@pytest.mark.parametrize("order", ["forward", "backward", "any"])
@pytest.mark.parametrize("limit", [None, 0], ids=["kept", "nothing kept"])
def test_every_state_in_any_order(filled, order, limit, monkeypatch):
    log, states = filled
    if limit is not None:
        monkeypatch.setattr(history, "MAX_LENGTH", limit)
        monkeypatch.setattr(packed_history, "_MAX_KEPT", limit)
    pairs = [*zip(log.history.load_index().checkpoints, states, strict=True)]
    assert len({stored.keyframe_offset for stored, _ in pairs}) > 3
    if order == "backward":
        pairs.reverse()
    if order == "any":
        random.Random(1).shuffle(pairs)
    for stored, state in pairs:
        packed = log.packed.read(stored)
        assert unpack(packed) == state
        assert list(packed) == list(log.load_state(stored)) == list(state)
        assert log.load_state(stored) == state


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
            reader.packed.read(second)
        assert unpack(reader.packed.read(first)) == {"text": BASE}


def test_nothing_is_cut_from_an_empty_value():
    assert cut([], 0, 3) == []
