"""The contract with AuditedSaver around each saver, and what the audit log then says of the store."""

from contextlib import closing

import pytest

from savers import AuditedSaver, AuditLog, SubjectKeys
from tests.contract.test_access import Guarded
from tests.contract.test_filesystem import (
    TestFileSystemSaverThatNeverSyncs as OnFiles,
    TestSaverWithOwnKeys as OnSealedFiles,
    choose_old,
)
from tests.contract.test_memory import TestMemorySaver as OnMemory, TestVersionedMemorySaver as OnVersionedMemory
from tests.contract.test_postgres import TestSealedPostgresSaver as OnSealedPostgres
from tests.contract.test_sqlite import TestSealedSqliteSaver as OnSealedSqlite
from tests.support.reopening import KEYS


class Audited:
    """Wraps what another class of tests opens. Afterwards, each store is what its log says."""

    @pytest.fixture(autouse=True)
    def _audit_logs(self, tmp_path_factory):
        self.make_log = lambda: AuditLog(tmp_path_factory.mktemp("audit"))
        self.savers = []
        self.is_tampered = False
        yield
        for saver in self.savers:
            # The fixture of its server may have closed it already: it has opened itself again.
            with closing(saver), closing(saver.log) as log:
                assert log.verify(None if self.is_tampered else saver).problems == ()
        self.savers.clear()  # pytest keeps this object, and with it their files open

    def make_saver(self):
        saver = AuditedSaver(super().make_saver(), self.make_log())
        self.savers.append(saver)
        return saver

    def reopen(self, saver):
        return AuditedSaver(super().reopen(saver.delegate), saver.log)

    def plant(self, saver, config, checkpoint):
        self.is_tampered = True
        return super().plant(saver.delegate, config, checkpoint)

    def peek(self, saver, config):
        return super().peek(saver.delegate, config)


class TestVersionedMemory(Audited, OnVersionedMemory):
    pass


@pytest.mark.sweep(30, of="tests")
class TestFiles(Audited, OnFiles):
    pass


@pytest.mark.requirement("P71", "P72", "P73")
class TestStacked(Audited, Guarded, OnSealedFiles):
    """All wrappers, and a key for each history."""


@pytest.mark.sweep(20, of="tests")
class TestStackedOnMemory(Audited, Guarded, OnMemory):
    pass


@pytest.mark.sweep(20, of="tests")
class TestStackedOnSqlite(Audited, Guarded, OnSealedSqlite):
    cipher = SubjectKeys(KEYS, key_for=choose_old)


@pytest.mark.sweep(15, of="tests")
class TestStackedOnPostgres(Audited, Guarded, OnSealedPostgres):
    cipher = SubjectKeys(KEYS, key_for=choose_old)


# pytest would collect them here, too
del OnFiles, OnMemory, OnSealedFiles, OnSealedPostgres, OnSealedSqlite, OnVersionedMemory
