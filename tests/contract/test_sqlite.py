"""The contract and the state machine on SqliteSaver."""

from functools import partial

import pytest

from savers import SqliteSaver
from tests.support.reopening import KEYS, OnStores, StoreMachine, fewer
from tests.support.sweeps import examples


class TestSqliteSaver(OnStores):
    def new_opener(self):
        return partial(SqliteSaver, self.new_path(), fsync="never", cipher=self.cipher)


@pytest.mark.sweep(40, of="tests")
class TestSealedSqliteSaver(TestSqliteSaver):
    cipher = KEYS


@pytest.mark.sweep(20, of="tests")
class TestSqliteSaverReopened(TestSqliteSaver):
    is_reopened = True


@pytest.mark.sweep(20, of="tests")
class TestSealedSqliteSaverReopened(TestSqliteSaver):
    is_reopened = True
    cipher = KEYS


class SqliteMachine(StoreMachine):
    def new_opener(self):
        return partial(SqliteSaver, self.root / "store.db", fsync="never")


class ReopeningMachine(SqliteMachine):
    is_reopened = True


TestSqliteMachine = fewer(SqliteMachine, 4, 50)
TestReopeningMachine = fewer(ReopeningMachine, 8, max(20, examples(50)))
