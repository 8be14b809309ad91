"""`replay`: the same checkpoints as `list`, and each state decoded only as far as it changed."""

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointNotFoundError, CheckpointSerializationError
from graphkit.saver_kit import REMOVED, SET
from savers import Compression, FileSystemSaver
from tests.support.terminal import damage
from tests.support.threads import TYPES, everything, exact

T = RunnableConfig("t")
OPTIONS = {
    "plain": {},
    "sealed": {"cipher": {"k": b"k" * 32}},
    "compressed": {"compression": Compression(threshold=64)},
    "uncompressed": {"compression": None},
}


def made(path, name="plain", **more):
    return FileSystemSaver(path, fsync="never", types=TYPES, **OPTIONS[name], **more)


def put(saver, state, id=None, config=T):
    return saver.put(config, Checkpoint(node_id="a", next_node_id="b", state=state, id=id, metadata={"k": len(state)}))


def assert_replay_is_list(saver, config=T):
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


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("seed", range(6))
def test_random_histories_with_long_values(tmp_path, name, seed):
    dice = random.Random(seed)
    saver = made(tmp_path, name)
    state = {}
    for _ in range(120):
        key = dice.choice("abcd")
        old = state.get(key)
        state = dict(state)
        choice = dice.randrange(7)
        if choice < 3 and isinstance(old, list):
            count = dice.randrange(3)
            state[key] = old + ["x" * dice.randrange(300) for _ in range(count)]
        elif choice == 3 and isinstance(old, list):
            dropped = dice.randrange(3)
            state[key] = old[dropped:]
        elif choice == 4 and old is not None:
            del state[key]
        elif choice == 5:
            length = dice.randrange(500)
            state[key] = dice.randbytes(length)
        else:
            count = dice.randrange(40)
            state[key] = [dice.random() for _ in range(count)]
        put(saver, state)
    assert_replay_is_list(saver)


def test_a_list_that_grows_is_decoded_once(tmp_path):
    saver = made(tmp_path)
    for n in range(200):
        put(saver, {"log": [f"message {i} " * 20 for i in range(n)], "n": n})
    replayed = assert_replay_is_list(saver)
    assert [checkpoint.changes.ops["log"] for checkpoint in replayed[1:]] == [*range(199)]
    assert replayed[5].state["log"][0] is replayed[-1].state["log"][0]


def test_versions(tmp_path):
    saver = everything(made(tmp_path))
    saver.release(T)
    put(saver, {"n": 1})
    for namespace in ("", "sub"):
        config = RunnableConfig("t", checkpoint_ns=namespace)
        released = saver.tag(config, 1).checkpoints
        replayed = [*saver.replay(config, version=1)]
        assert [*map(exact, replayed[::-1])] == [*map(exact, released)]
    assert saver.version_namespaces("t") == ["", "sub"]
    assert saver.version_namespaces("t", 1) == ["", "sub"]
    with pytest.raises(CheckpointNotFoundError, match="version 2"):
        list(saver.replay(T, version=2))
    with pytest.raises(CheckpointNotFoundError, match="version 2"):
        saver.version_namespaces("t", 2)
    with pytest.raises(CheckpointNotFoundError):
        saver.version_namespaces("other")


@dataclass
class Unknown:
    n: int


def test_damage_and_unknown_types_are_errors(tmp_path):
    saver = made(tmp_path / "a")
    for n in range(50):
        put(saver, {"log": ["x" * 100] * n})
    saver.close()
    damage(tmp_path / "a", "t", 3000)
    with pytest.raises(CheckpointCorruptionError):
        list(made(tmp_path / "a").replay(T))
    other = made(tmp_path / "b")
    other.register_types(Unknown)
    put(other, {"x": [Unknown(1)]})
    with pytest.raises(CheckpointSerializationError, match="Unknown"):
        list(made(tmp_path / "b").replay(T))
