import pytest

from graphkit import HasVersions
from graphkit.testing import SaverContract
from graphkit.testing.fakes import ScriptedSaver
from savers import MemorySaver, SaverWrapper, VersionedMemorySaver


class TestSaverWrapper(SaverContract):
    def make_saver(self):
        return SaverWrapper(MemorySaver())


@pytest.mark.requirement("L16")
class TestSaverWrapperWithVersions(SaverContract):
    def make_saver(self):
        saver = SaverWrapper(SaverWrapper(VersionedMemorySaver()))
        assert isinstance(saver, HasVersions)
        return saver


@pytest.mark.requirement("P81")
class TestScriptedSaver(SaverContract):
    def make_saver(self):
        return ScriptedSaver(VersionedMemorySaver())
