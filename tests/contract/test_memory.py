from hypothesis import settings

from graphkit.testing import SaverContract
from graphkit.testing.stateful import SaverMachine
from savers import MemorySaver


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


TestMemoryMachine = MemoryMachine.TestCase
# VersionedMemorySaver, which is this one and more, is searched in full.
TestMemoryMachine.settings = settings(max_examples=settings.default.max_examples // 4)
