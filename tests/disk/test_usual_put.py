"""Puts of every kind of change, whether the run has recorded what changed or not."""

import random

import pytest

from graphkit import REMOVE, Channels, RunnableConfig
from graphkit.saver_kit import FrozenDict, freeze
from savers import FileSystemSaver
from tests.support.checkpoints import apply_update, make_following

CONFIG = RunnableConfig("t")
CHANNELS = {"items": Channels.appender_with_duplicate()}


def updates(dice, count):
    """Updates of a state: mostly a few short values; some large, nested, removed, added or unchanged.

    Bytes grow, move like a window, change in the middle, or are replaced, also by another type.
    """
    blob = b""
    yield {"n": 0, "text": "", "items": [], "blob": blob}
    for number in range(1, count):
        added = dice.randbytes(dice.choice([0, 3, 200, 9000]))
        middle = len(blob) // 2
        kinds = [
            {"n": number},
            {"n": number, "text": "x" * dice.randrange(90)},
            {"items": [number] * dice.randrange(4)},
            {"items": ["y" * dice.choice([5, 900, 70_000])], "n": -number},
            {"text": dice.randbytes(dice.choice([10, 4095, 4096, 9000])).hex()},
            {f"key{dice.randrange(3)}": {"deep": [number]}},
            {f"key{dice.randrange(3)}": REMOVE},
            {"n": {1, 2, number}},
            {},
            {"blob": blob + added, "n": number},
            {"blob": blob[len(added) :] + added},
            {"blob": blob[:middle] + b"middle" + blob[middle + 1 :]},
            {"blob": added},
            {"blob": dice.choice([None, "text", [1]])},
        ]
        update = dice.choices(kinds, [30, 10, 20, 3, 3, 2, 2, 2, 1, 20, 8, 4, 3, 2])[0]
        if update.get("blob").__class__ is bytes:
            blob = update["blob"]
        yield update


def checkpoints(seed, count):
    dice = random.Random(seed)
    state = FrozenDict()
    parent = None
    for number, update in enumerate(updates(dice, count)):
        possible = {key: value for key, value in update.items() if key in state or value is not REMOVE}
        new, changes = apply_update(state, possible, CHANNELS)
        metadata = freeze({"run": "r", "step": number // 2, "source": dice.choice(["loop", "loop", "input"])})
        checkpoint = make_following(
            number,
            new,
            changes if number % 17 else None,
            id=f"{number:032x}" if number % 5 else f"c{number}",
            node_id=dice.choice("ab"),
            next_node_id=dice.choice(["a", "b", None]),
            parent_id=parent if number % 11 else None,
            metadata=metadata,
        )
        yield checkpoint
        state = new
        parent = checkpoint.id


@pytest.mark.parametrize("compression", ["zlib", None])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_known_of_a_change_makes_no_difference_to_a_reader(seed, compression, tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never", compression=compression)
    puts = [*checkpoints(seed, 250)]
    for number, checkpoint in enumerate(puts):
        if number % 4 == 0:
            # Early writes of this checkpoint, of one that comes later, or of one that never comes.
            present_and_later = puts[number : number + 3 : 2]
            ids = [owner.id for owner in present_and_later]
            ids.append(f"never{number}")
            turn = number // 4
            owner_id = ids[turn % len(ids)]
            owner = RunnableConfig("t", checkpoint_id=owner_id)
            saver.put_writes(owner, {f"w{number}": number}, early=True)
        saver.put(CONFIG, checkpoint)
        if number == 100:
            saver.list(CONFIG)  # loads the index, which every put then keeps up to date
        if number % 9 == 0:
            assert saver.get(CONFIG).state == checkpoint.state
    assert saver.verify().ok
    expected = [(checkpoint.id, checkpoint.state) for checkpoint in puts]
    for reader in (saver, FileSystemSaver(tmp_path)):
        found = [(checkpoint.id, checkpoint.state) for checkpoint in reader.list(CONFIG)]
        assert found[::-1] == expected
    saver.close()
