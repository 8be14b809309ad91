"""The contract with wrappers around savers, and what an audit log then says of the store."""

from contextlib import closing

import pytest

from graphkit import HasVersions
from graphkit.testing import SaverContract
from graphkit.testing.fakes import ScriptedSaver
from savers import (
    AccessControlledSaver,
    AuditedSaver,
    AuditLog,
    MemorySaver,
    SaverWrapper,
    SubjectKeys,
    VersionedMemorySaver,
)
from tests.contract import test_filesystem, test_memory, test_postgres, test_sqlite
from tests.support.reopening import KEYS


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


def allow_all(principal, operation, thread_id, checkpoint_ns):
    return True


class Guarded:
    """Wraps what another class of tests opens, with a policy that allows everything."""

    def make_saver(self):
        return AccessControlledSaver(super().make_saver(), allow_all)

    def reopen(self, saver):
        return AccessControlledSaver(super().reopen(saver.delegate), allow_all)

    def plant(self, saver, config, checkpoint):
        return super().plant(saver.delegate, config, checkpoint)

    def peek(self, saver, config):
        return super().peek(saver.delegate, config)


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
        self.savers.append(AuditedSaver(super().make_saver(), self.make_log()))
        return self.savers[-1]

    def reopen(self, saver):
        return AuditedSaver(super().reopen(saver.delegate), saver.log)

    def plant(self, saver, config, checkpoint):
        self.is_tampered = True
        return super().plant(saver.delegate, config, checkpoint)

    def peek(self, saver, config):
        return super().peek(saver.delegate, config)


@pytest.mark.requirement("P71")
class TestGuardedTwice(SaverContract):
    def make_saver(self):
        saver = AccessControlledSaver(AccessControlledSaver(VersionedMemorySaver(), allow_all), allow_all)
        assert isinstance(saver, HasVersions)
        return saver


class TestAuditedVersionedMemory(Audited, test_memory.TestVersionedMemorySaver):
    pass


@pytest.mark.requirement("P71", "P72", "P73")
class TestStacked(Audited, Guarded, test_filesystem.TestSaverWithOwnKeys):
    """All wrappers, and a key for each history."""


@pytest.mark.sweep(20, of="tests")
class TestStackedOnMemory(Audited, Guarded, test_memory.TestMemorySaver):
    pass


@pytest.mark.sweep(20, of="tests")
class TestStackedOnSqlite(Audited, Guarded, test_sqlite.TestSealedSqliteSaver):
    cipher = SubjectKeys(KEYS, key_for=test_filesystem.choose_old)


@pytest.mark.sweep(15, of="tests")
class TestStackedOnPostgres(Audited, Guarded, test_postgres.TestSealedPostgresSaver):
    cipher = SubjectKeys(KEYS, key_for=test_filesystem.choose_old)
