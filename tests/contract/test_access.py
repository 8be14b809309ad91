"""The contract with AccessControlledSaver around a saver, with a policy that allows everything.

The stacks of `test_audit.py` have it around the others.
"""

import pytest

from graphkit import HasVersions
from graphkit.testing import SaverContract
from savers import AccessControlledSaver, VersionedMemorySaver
from tests.contract.test_filesystem import TestFileSystemSaverThatNeverSyncs as OnFiles


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


@pytest.mark.requirement("P71")
class TestVersionedMemory(SaverContract):
    def make_saver(self):
        saver = AccessControlledSaver(AccessControlledSaver(VersionedMemorySaver(), allow_all), allow_all)
        assert isinstance(saver, HasVersions)
        return saver


@pytest.mark.sweep(30, of="tests")
class TestFiles(Guarded, OnFiles):
    pass


del OnFiles  # pytest would collect it here, too
