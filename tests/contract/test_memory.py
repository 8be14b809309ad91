"""The contract and the state machine on the savers in memory."""

from graphkit.testing import SaverContract
from graphkit.testing.stateful import SaverMachine
from savers import MemorySaver, VersionedMemorySaver
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
