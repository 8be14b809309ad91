"""The contract and the state machine on SqliteSaver."""

import shutil
import tempfile
from pathlib import Path

import pytest

from graphkit.testing import SaverContract
from graphkit.testing.stateful import SaverMachine
from savers import SqliteSaver
from tests.support.reopening import KEYS, Elsewhere, close_used, fewer, reopen_each_time
from tests.support.sweeps import examples


class InFile(Elsewhere, SaverContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.root = tmp_path
        self.opened = []
        self.stores = 0
        yield
        for saver in self.opened:
            saver.close()
        close_used()

    def new_path(self):
        self.stores += 1
        return self.root / f"store {self.stores}.db"

    cipher = None

    def open_file(self, path):
        saver = SqliteSaver(path, fsync="never", cipher=self.cipher)
        self.opened.append(saver)
        return saver


class TestSqliteSaver(InFile):
    """Saver objects that stay open, two on each file."""

    def make_saver(self):
        return self.open_file(self.new_path())

    def reopen(self, saver):
        return self.open_file(saver.db_file)


class TestSealedSqliteSaver(TestSqliteSaver):
    """The same, sealed."""

    cipher = KEYS


@pytest.mark.sweep(20, of="tests")
class TestSqliteSaverReopened(InFile):
    """Every single operation on a saver object of its own, which takes three times as long."""

    def make_saver(self):
        return reopen_each_time(SqliteSaver, self.new_path(), fsync="never", cipher=self.cipher)

    def reopen(self, saver):
        return type(saver)(saver.open_saver)


@pytest.mark.sweep(20, of="tests")
class TestSealedSqliteSaverReopened(TestSqliteSaverReopened):
    """The same, sealed."""

    cipher = KEYS


class SqliteMachine(SaverMachine):
    """Two objects that stay open for as long as the machine lets them."""

    def make_saver(self):
        self.root = Path(tempfile.mkdtemp())
        return SqliteSaver(self.root / "store.db", fsync="never")

    def reopen(self, saver):
        return SqliteSaver(saver.db_file, fsync="never")

    def open_again(self, index):
        self.savers[index].close()
        super().open_again(index)

    def teardown(self):
        for saver in self.savers:
            assert saver.verify().ok
            saver.close()
        shutil.rmtree(self.root)


class ReopeningMachine(SaverMachine):
    def make_saver(self):
        self.root = Path(tempfile.mkdtemp())
        return reopen_each_time(SqliteSaver, self.root / "store.db", fsync="never")

    def reopen(self, saver):
        return type(saver)(saver.open_saver)

    def teardown(self):
        assert self.savers[0].verify().ok
        close_used()
        shutil.rmtree(self.root)


TestSqliteMachine = fewer(SqliteMachine, 4, 50)
TestReopeningMachine = fewer(ReopeningMachine, 8, max(20, examples(50)))
