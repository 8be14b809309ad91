from graphkit.testing import SaverContract
from graphkit.testing.stateful import SaverMachine
from savers import VersionedMemorySaver
from tests.support.reopening import fewer


class TestVersionedMemorySaver(SaverContract):
    def make_saver(self):
        return VersionedMemorySaver()


class VersionedMemoryMachine(SaverMachine):
    def make_saver(self):
        return VersionedMemorySaver()


TestVersionedMemoryMachine = fewer(VersionedMemoryMachine, 2)
