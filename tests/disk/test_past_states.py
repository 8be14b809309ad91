"""Past states, one by one and by `replay`: the same in any order, and decoded only as far as they changed."""

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointNotFoundError, CheckpointSerializationError
from graphkit.saver_kit import REMOVED, SET
from savers import Compression, FileSystemSaver
from tests.support.logs import keep_no_records
from tests.support.terminal import damage
from tests.support.threads import TYPES, everything, exact

THREAD = RunnableConfig("t")
OPTIONS = {
    "plain": {},
    "sealed": {"cipher": {"k": b"k" * 32}},
    "compressed": {"compression": Compression(threshold=64)},
    "uncompressed": {"compression": None},
}


def open_saver(path, **options):
    return FileSystemSaver(path, fsync="never", types=TYPES, **options)


def name(checkpoint_id):
    return THREAD.replace(checkpoint_id=checkpoint_id)


def fill(saver, randomness, count, state, ids):
    """Put checkpoints whose values grow, shrink, slide, are replaced, go away and come back."""
    for _ in range(count):
        state = dict(state)
        length = randomness.randrange(200)
        entry = randomness.randbytes(length).hex()
        log = [*state.get("log", ()), entry]
        window = [*state.get("window", ()), randomness.random()]
        state["log"] = log
        state["window"] = window[-20:]
        if randomness.random() < 0.1:
            kept = randomness.randrange(len(log) + 1)
            state["log"] = log[:kept]
        if randomness.random() < 0.1:
            state["text"] = "t" * randomness.randrange(3000)
        if randomness.random() < 0.05:
            state.pop("window")
        if randomness.random() < 0.05:
            state["large"] = randomness.randbytes(60_000).hex() * 2
        new = Checkpoint(node_id="n", next_node_id="m", state=state)
        target = THREAD
        if ids and randomness.random() < 0.1:
            place = randomness.randrange(len(ids))
            target = name(ids.pop(place))
        saver.put(target, new)
        ids.append(new.id)
    return state


def put(saver, state):
    saver.put(THREAD, Checkpoint(node_id="a", next_node_id="b", state=state))


@pytest.fixture
def plain(monkeypatch):
    """A function that reads a state with a saver that keeps nothing."""

    def read(saver, checkpoint_id):
        with monkeypatch.context() as patch:
            keep_no_records(patch)
            return saver.get(name(checkpoint_id)).state

    return read


def assert_replay_is_list(saver, config=THREAD):
    listed = [exact(checkpoint) for checkpoint in reversed(saver.list(config))]
    replayed = [*saver.replay(config)]
    assert [exact(checkpoint) for checkpoint in replayed] == listed
    for before, one in pairwise(replayed):
        assert one.changes.base is before.state
        assert apply(before.state, one) == one.state
    return replayed


def apply(before, one):
    """The state that the changes lead to."""
    state = dict(before)
    for key, op in one.changes.ops.items():
        if op == REMOVED:
            del state[key]
        elif op == SET:
            state[key] = one.state[key]
        else:
            state[key] = [*before[key][:op], *one.state[key][op:]]
            assert len(before[key]) == op
    return state


@pytest.mark.sweep(1, of="seed", in_turn=True)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_and_while_the_log_grows(seed, options, tmp_path, plain):
    dice = random.Random(seed)
    ids = []
    writer = open_saver(tmp_path, **options)
    reader = open_saver(tmp_path, **options)
    state = fill(writer, dice, 120, {}, ids)
    for arrange in (reversed, list, lambda ids: dice.sample(ids, len(ids))):
        some = [*arrange(ids)][:60]
        for checkpoint_id in some:
            at = name(checkpoint_id)
            expected = plain(open_saver(tmp_path, **options), checkpoint_id)
            read = reader.get(at)
            assert read.state == expected
            found = writer.get(at).state
            assert list(found.items()) == list(expected.items())
        state = fill(writer, dice, 10, state, ids)
    assert_replay_is_list(reader)


def test_the_states_of_a_listing_share_the_items_of_a_growing_list(tmp_path):
    saver = open_saver(tmp_path)
    for number in range(1, 41):
        put(saver, {"items": [{"id": n, "text": "x" * 50} for n in range(number)], "number": number})
    listed = open_saver(tmp_path).list(THREAD)
    newest = listed[0].state["items"]
    for number, checkpoint in enumerate(listed[:30]):
        items = checkpoint.state["items"]
        assert items == newest[: 40 - number]
        assert items[3] is newest[3]
        assert items.kind == newest.kind


def test_a_list_that_grows_is_decoded_once(tmp_path):
    saver = open_saver(tmp_path)
    for n in range(200):
        put(saver, {"log": [f"message {i} " * 20 for i in range(n)], "n": n})
    replayed = assert_replay_is_list(saver)
    assert [checkpoint.changes.ops["log"] for checkpoint in replayed[1:]] == [*range(199)]
    assert replayed[5].state["log"][0] is replayed[-1].state["log"][0]


def test_versions(tmp_path):
    saver = everything(open_saver(tmp_path))
    saver.release(THREAD)
    put(saver, {"n": 1})
    for namespace in ("", "sub"):
        config = RunnableConfig("t", checkpoint_ns=namespace)
        released = saver.tag(config, 1).checkpoints
        replayed = [*saver.replay(config, version=1)]
        assert [*map(exact, replayed[::-1])] == [*map(exact, released)]
    assert saver.version_namespaces("t") == ["", "sub"]
    assert saver.version_namespaces("t", 1) == ["", "sub"]
    with pytest.raises(CheckpointNotFoundError, match="version 2"):
        list(saver.replay(THREAD, version=2))
    with pytest.raises(CheckpointNotFoundError, match="version 2"):
        saver.version_namespaces("t", 2)
    with pytest.raises(CheckpointNotFoundError):
        saver.version_namespaces("other")


@dataclass
class Unknown:
    n: int


def test_damage_and_unknown_types_are_errors(tmp_path):
    saver = open_saver(tmp_path / "a")
    for n in range(50):
        put(saver, {"log": ["x" * 100] * n})
    saver.close()
    damage(tmp_path / "a", "t", 3000)
    with pytest.raises(CheckpointCorruptionError):
        list(open_saver(tmp_path / "a").replay(THREAD))
    other = open_saver(tmp_path / "b")
    other.register_types(Unknown)
    put(other, {"x": [Unknown(1)]})
    with pytest.raises(CheckpointSerializationError, match="Unknown"):
        list(open_saver(tmp_path / "b").replay(THREAD))
