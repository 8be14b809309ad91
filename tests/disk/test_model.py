"""Random lives of a thread, under two savers that take turns, against a model that is a list."""

import random
from time import time_ns

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.saver_kit import generate_id
from graphkit.testing import same
from graphkit.values import FrozenDict, freeze
from tests.support.checkpoints import apply_update
from tests.support.logs import MIN_KEYFRAME_DISTANCE, limit_keyframe_distance

CONFIG = RunnableConfig("t")


class Life:
    def __init__(self, dice, opener):
        self.dice = dice
        self.opener = opener
        self.savers = [opener(), opener()]
        self.history = []
        self.writes = {}
        self.versions = []

    @property
    def saver(self):
        return self.dice.choice(self.savers)

    def value(self, old):
        dice = self.dice
        if isinstance(old, list) and dice.random() < 0.6:
            return old + ["i" * dice.randrange(200) for _ in range(dice.randrange(3))]
        if isinstance(old, dict) and dice.random() < 0.6:
            return {**old, dice.choice("xyz"): dice.randrange(9)}
        return dice.choice(
            [[], {}, [1] * dice.randrange(30), {"x": (1, 2)}, "t" * dice.randrange(300), dice.randrange(10**6), {1, 2}, None,
             b"z" * dice.randrange(100), True, 1, 1.0, -0.0]
        )  # fmt: skip

    def checkpoint(self):
        dice = self.dice
        parent = None
        state = freeze({})
        if self.history and dice.random() < 0.9:
            parent = dice.choice(self.history[-1:] * 8 + self.history)
            state = parent.state
        if parent and dice.random() < 0.5:
            state = self.saver.get(CONFIG.replace(checkpoint_id=parent.id)).state
        keys = dice.sample("abcdefgh", dice.randrange(4))
        new, changes = apply_update(state, {key: self.value(state.get(key)) for key in keys})
        if dice.random() < 0.3:
            changes = None
        if dice.random() < 0.1:
            order = dice.sample(list(new), dice.randrange(len(new) + 1))
            new = FrozenDict({key: new[key] for key in order})
            changes = None
        metadata = {key: dice.randrange(5) for key in dice.sample("pqrs", dice.randrange(4))}
        return Checkpoint.from_stored(
            id=generate_id(),
            node_id=dice.choice("AB"),
            next_node_id=dice.choice(["A", "B", "C", None]),
            parent_id=parent.id if parent and dice.random() < 0.5 else None,
            created_us=time_ns() // 1000,
            metadata=freeze(metadata),
            state=new,
            changes=changes,
        )

    def put(self):
        made = self.checkpoint()
        if self.history and self.dice.random() < 0.1:
            place = self.dice.randrange(len(self.history))
            replaced = self.history[place]
            self.saver.put(CONFIG.replace(checkpoint_id=replaced.id), made)
            self.history[place] = made
            if replaced.id in self.writes:
                self.writes[made.id] = self.writes.pop(replaced.id)
        else:
            self.saver.put(CONFIG, made)
            self.history.append(made)

    def write(self):
        if self.history:
            target = self.dice.choice(self.history).id
            values = {self.dice.choice("uvw"): self.dice.randrange(9)}
            self.saver.put_writes(CONFIG.replace(checkpoint_id=target), values)
            self.writes.setdefault(target, {}).update(values)

    def prune(self):
        keep = self.dice.randrange(1, 20)
        assert self.saver.prune("t", keep_last=keep) == max(0, len(self.history) - keep)
        self.history = self.history[-keep:]

    def release(self):
        tag = self.saver.release(CONFIG)
        if self.history:
            self.versions.append(self.history)
        assert tag.version == (len(self.versions) if self.history else None)
        self.history = []
        self.writes = {}

    def reopen(self):
        self.savers[self.dice.randrange(2)] = self.opener()

    def check(self, saver, *, all_of_it):
        latest = saver.get(CONFIG)
        assert (latest and latest.id) == (self.history[-1].id if self.history else None)
        if latest:
            self.alike(saver, latest, self.history[-1])
        if all_of_it:
            listed = saver.list(CONFIG)
            assert [one.id for one in listed] == [one.id for one in reversed(self.history)]
            for found, expected in zip(listed, reversed(self.history), strict=True):
                self.alike(saver, found, expected)

    def alike(self, saver, found, expected):
        same(found.state, expected.state)
        assert list(found.state) == list(expected.state)
        assert (repr(found), found.parent_id, found.created_at) == (
            repr(expected),
            expected.parent_id,
            expected.created_at,
        )
        same(found.metadata, expected.metadata)
        assert list(found.metadata) == list(expected.metadata)
        assert saver.get_writes(CONFIG.replace(checkpoint_id=found.id)) == self.writes.get(found.id, {})

    def live(self, steps):
        deeds = {self.put: 75, self.write: 5, self.prune: 3, self.release: 1, self.reopen: 5}
        for deed in self.dice.choices([*deeds], deeds.values(), k=steps):
            deed()
            self.check(self.saver, all_of_it=self.dice.random() < 0.1)
        last = self.opener()
        self.check(last, all_of_it=True)
        for number, version in enumerate(self.versions, 1):
            expected = [checkpoint.state for checkpoint in reversed(version)]
            kept = last.tag(CONFIG, number).checkpoints
            assert [checkpoint.state for checkpoint in kept] == expected


# Keyframes from very often to as the saver has it.
@pytest.mark.parametrize("floor", [64, 400, 3000, MIN_KEYFRAME_DISTANCE])
@pytest.mark.parametrize("seed", range(5))
def test_a_life_goes_as_the_model_says(seed, floor, opener, monkeypatch):
    limit_keyframe_distance(monkeypatch, floor)
    Life(random.Random(seed * 10_000 + floor), opener).live(120)
