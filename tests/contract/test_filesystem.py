"""The contract and the state machine on FileSystemSaver."""

import shutil
import tempfile
from pathlib import Path

import pytest

from graphkit.testing import SaverContract
from graphkit.testing.stateful import SaverMachine
from savers import FileSystemSaver
from tests.support.logs import limit_keyframe_distance
from tests.support.reopening import Elsewhere, close_used, fewer, reopen_each_time


class InDirectory(Elsewhere, SaverContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.root = tmp_path
        self.stores = 0
        yield
        close_used()

    def new_path(self):
        self.stores += 1
        return self.root / f"store {self.stores}"


@pytest.mark.requirement("L1", "L2", "L3", "L5", "L9", "P55", "P56", "P57", "P58", "P22", "P26", "behaviour 15")
class TestFileSystemSaver(InDirectory):
    """Saver objects that stay open, two on each store."""

    def make_saver(self):
        return FileSystemSaver(self.new_path())

    def reopen(self, saver):
        return FileSystemSaver(saver.base_directory)


class TestFileSystemSaverThatNeverSyncs(InDirectory):
    fsync = "never"

    def make_saver(self):
        return FileSystemSaver(self.new_path(), fsync=self.fsync)

    def reopen(self, saver):
        return FileSystemSaver(saver.base_directory, fsync=self.fsync)


@pytest.mark.sweep(20, of="tests")
class TestFileSystemSaverThatSyncsInIntervals(TestFileSystemSaverThatNeverSyncs):
    fsync = 0.001


@pytest.mark.requirement("P55")
@pytest.mark.sweep(20, of="tests")
class TestFileSystemSaverReopened(InDirectory):
    """Every single operation on a saver object of its own, which takes twice as long."""

    def make_saver(self):
        return reopen_each_time(FileSystemSaver, self.new_path(), fsync="never")

    def reopen(self, saver):
        return type(saver)(saver.open_saver)


class FileSystemMachine(SaverMachine):
    """Two objects that stay open for as long as the machine lets them."""

    def make_saver(self):
        self.root = Path(tempfile.mkdtemp())
        return FileSystemSaver(self.root / "store", fsync="never")

    def reopen(self, saver):
        return FileSystemSaver(saver.base_directory, fsync="never")

    def open_again(self, index):
        self.savers[index].close()
        super().open_again(index)

    def teardown(self):
        for saver in self.savers:
            saver.close()
        shutil.rmtree(self.root)


class DenseKeyframesMachine(FileSystemMachine):
    """Keyframes follow one another after a few records."""

    def make_saver(self):
        self.patch = pytest.MonkeyPatch()
        limit_keyframe_distance(self.patch, 64)
        return super().make_saver()

    def teardown(self):
        super().teardown()
        self.patch.undo()


class ReopeningMachine(SaverMachine):
    def make_saver(self):
        self.root = Path(tempfile.mkdtemp())
        return reopen_each_time(FileSystemSaver, self.root / "store", fsync="never")

    def teardown(self):
        close_used()
        shutil.rmtree(self.root)


TestFileSystemMachine = fewer(FileSystemMachine, 4)
TestDenseKeyframesMachine = fewer(DenseKeyframesMachine, 4)
TestReopeningMachine = fewer(ReopeningMachine, 8)
