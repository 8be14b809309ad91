"""The contract with AccessControlledSaver around each saver, with a policy that allows everything."""

import pytest

from graphkit import HasVersions
from graphkit.testing import SaverContract
from savers import AccessControlledSaver, VersionedMemorySaver
from tests.contract.test_filesystem import TestFileSystemSaverThatNeverSyncs as OnFiles
from tests.contract.test_memory import TestMemorySaver as OnMemory
from tests.contract.test_postgres import TestPostgresSaver as OnPostgres
from tests.contract.test_sqlite import TestSqliteSaver as OnSqlite


def allow_all(principal, operation, thread_id, checkpoint_ns):
    return True


class Guarded:
    """Wraps what another class of tests opens."""

    def make_saver(self):
        return AccessControlledSaver(super().make_saver(), allow_all)

    def reopen(self, saver):
        return AccessControlledSaver(super().reopen(saver.delegate), allow_all)

    def plant(self, saver, config, checkpoint):
        return super().plant(saver.delegate, config, checkpoint)

    def peek(self, saver, config):
        return super().peek(saver.delegate, config)


@pytest.mark.sweep(30, of="tests")
class TestMemory(Guarded, OnMemory):
    pass


@pytest.mark.requirement("P71")
class TestVersionedMemory(SaverContract):
    def make_saver(self):
        saver = AccessControlledSaver(AccessControlledSaver(VersionedMemorySaver(), allow_all), allow_all)
        assert isinstance(saver, HasVersions)
        return saver


@pytest.mark.sweep(30, of="tests")
class TestFiles(Guarded, OnFiles):
    pass


@pytest.mark.sweep(30, of="tests")
class TestSqlite(Guarded, OnSqlite):
    pass


@pytest.mark.sweep(20, of="tests")
class TestPostgres(Guarded, OnPostgres):
    pass


del OnFiles, OnMemory, OnPostgres, OnSqlite  # pytest would collect them here, too
