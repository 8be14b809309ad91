"""The contract on SqliteSaver."""

import pytest

from graphkit.testing.contract import SaverContract
from savers._sql.sqlite_saver import SqliteSaver


class InFile(SaverContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.root = tmp_path
        self.opened = []
        yield
        for saver in self.opened:
            saver.close()

    def open_file(self, path):
        saver = SqliteSaver(path, fsync="never")
        self.opened.append(saver)
        return saver


class TestSqliteSaver(InFile):
    """Saver objects that stay open, two on each file."""

    def make_saver(self):
        return self.open_file(self.root / f"store {len(self.opened)}.db")

    def reopen(self, saver):
        return self.open_file(saver.db_file)
