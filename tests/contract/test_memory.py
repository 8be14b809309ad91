"""The contract and the state machine on the savers in memory, and what else they promise."""

from datetime import datetime, timedelta

import pytest

from graphkit.testing import SaverContract, made
from graphkit.testing.stateful import SaverMachine
from savers import MemorySaver, VersionedMemorySaver
from tests.support.graphs import CONFIG, log_node, make_chain
from tests.support.reopening import fewer


class TestMemorySaver(SaverContract):
    def make_saver(self):
        return MemorySaver()

    def plant(self, saver, config, checkpoint):
        # There is no other way into an object than the object: another saver's history is moved in.
        other = MemorySaver()
        other.put(config, checkpoint)
        entries = other._threads[config.thread].live[config.checkpoint_ns].checkpoints
        saver._threads[config.thread].live[config.checkpoint_ns].append(entries[0])
        return True

    def peek(self, saver, config):
        history = saver._threads[config.thread].live[config.checkpoint_ns]
        return [stored.checkpoint.state for stored in reversed(history.checkpoints)]


class MemoryMachine(SaverMachine):
    def make_saver(self):
        return MemorySaver()


class TestVersionedMemorySaver(SaverContract):
    def make_saver(self):
        return VersionedMemorySaver()


class VersionedMemoryMachine(SaverMachine):
    def make_saver(self):
        return VersionedMemorySaver()


# VersionedMemorySaver is MemorySaver and more.
TestMemoryMachine = fewer(MemoryMachine, 4)
TestVersionedMemoryMachine = fewer(VersionedMemoryMachine, 2)


def test_a_stored_checkpoint_does_not_hold_its_parents_state():
    saver = MemorySaver()
    make_chain(a=log_node("a"), b=log_node("b")).compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert [stored.checkpoint.changes for stored in saver._threads["t"].live[""].checkpoints] == [None] * 3


def test_a_plain_checkpoint_is_handed_out_as_it_is():
    saver = MemorySaver()
    checkpoint = made({"list": [1]})
    saver.put(None, checkpoint)
    assert saver.get().state is checkpoint.state
    assert saver.list()[0] is saver.get()


def test_the_size_counts_versions():
    saver = VersionedMemorySaver()
    saver.put(None, made({"text": "x" * 1000}))
    live = saver.size()
    saver.release()
    assert saver.size() == saver.size("$default") == live > 1000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keep_tags", "release"),  # would be seven tags of one letter each
        ("keep_tags", [1]),
        ("keep_last", True),
        ("keep_last", 1.5),
        ("older_than", datetime(2030, 1, 1)),  # noqa: DTZ001
        ("older_than", timedelta(days=30)),
    ],
)
def test_prune_refuses_options_of_another_type_and_removes_nothing(name, value):
    saver = MemorySaver()
    saver.put("t", made({}))
    saver.put("t", made({}))
    with pytest.raises(ValueError, match=name):
        saver.prune("t", **{"keep_last": 1, name: value})
    assert len(saver.list("t")) == 2
