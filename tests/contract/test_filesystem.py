"""The contract and the state machine on FileSystemSaver."""

from functools import partial

import pytest

from savers import FileSystemSaver, SubjectKeys
from tests.support.logs import limit_keyframe_distance
from tests.support.reopening import KEYS, OnStores, StoreMachine, fewer


class OnFiles(OnStores):
    fsync = "never"

    def new_opener(self):
        return partial(FileSystemSaver, self.new_path(), fsync=self.fsync, cipher=self.cipher)


@pytest.mark.requirement("L1", "L2", "L3", "L5", "L9", "P55", "P56", "P57", "P58", "P22", "P26", "behaviour 15")
class TestFileSystemSaver(OnFiles):
    fsync = "always"


class TestFileSystemSaverThatNeverSyncs(OnFiles):
    pass


@pytest.mark.sweep(20, of="tests")
class TestFileSystemSaverThatSyncsInIntervals(OnFiles):
    fsync = 0.001


@pytest.mark.requirement("P55")
@pytest.mark.sweep(20, of="tests")
class TestFileSystemSaverReopened(OnFiles):
    is_reopened = True


class TestSealedSaver(OnFiles):
    cipher = KEYS


def choose_old(thread_id, metadata):
    return "old"


@pytest.mark.sweep(40, of="tests")
class TestSaverWithOwnKeys(OnFiles):
    """Each history has a key of its own. Whoever opens the store again needs only the keys."""

    cipher = SubjectKeys(KEYS, key_for=choose_old)

    def reopen(self, saver):
        self.openers[saver].keywords["cipher"] = KEYS
        return super().reopen(saver)


class FileSystemMachine(StoreMachine):
    def new_opener(self):
        return partial(FileSystemSaver, self.root / "store", fsync="never")


class DenseKeyframesMachine(FileSystemMachine):
    """Keyframes follow one another after a few records."""

    def make_saver(self):
        self.patch = pytest.MonkeyPatch()
        limit_keyframe_distance(self.patch, 64)
        return super().make_saver()

    def teardown(self):
        super().teardown()
        self.patch.undo()


class ReopeningMachine(FileSystemMachine):
    is_reopened = True


TestFileSystemMachine = fewer(FileSystemMachine, 4)
TestDenseKeyframesMachine = fewer(DenseKeyframesMachine, 4)
TestReopeningMachine = fewer(ReopeningMachine, 8)
