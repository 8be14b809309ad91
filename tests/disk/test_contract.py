"""The file saver keeps the contract of savers, whenever it waits for the disk."""

import itertools

import pytest

from graphkit.testing import SaverContract
from savers import FileSystemSaver


class FileSaverContract(SaverContract):
    options = {}

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.stores = (tmp_path / f"store{number}" for number in itertools.count())
        self.opened = []
        yield
        for saver in self.opened:
            saver.close()

    def make_saver(self):
        return self._open(next(self.stores))

    def reopen(self, saver):
        return self._open(saver.base_directory)

    def _open(self, path):
        self.opened.append(FileSystemSaver(path, **self.options))
        return self.opened[-1]

    def plant(self, saver, config, checkpoint):
        self.open_again(saver).put(config, checkpoint)
        return True

    def peek(self, saver, config):
        return [checkpoint.state for checkpoint in self.open_again(saver).list(config)]


class TestFast(FileSaverContract):
    options = {"fsync": "never"}


@pytest.mark.sweep(20, of="tests")
class TestDurable(FileSaverContract):
    """As TestFileSystemSaver of tests/contract, whose savers have the same mode by default."""

    options = {"fsync": "always"}


class TestInIntervals(FileSaverContract):
    options = {"fsync": 0.001}
