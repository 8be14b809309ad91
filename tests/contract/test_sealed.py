"""The contract of a saver, on a file saver that seals what it stores, with one key and with keys for subjects."""

from savers import FileSystemSaver, SubjectKeys
from tests.contract.test_filesystem import InDirectory
from tests.support.reopening import KEYS


class TestSealedSaver(InDirectory):
    """Saver objects that stay open, two on each store."""

    def make_saver(self):
        return FileSystemSaver(self.new_path(), fsync="never", cipher=KEYS)

    def reopen(self, saver):
        return FileSystemSaver(saver.base_directory, fsync="never", cipher=KEYS)


def choose_old(thread_id, metadata):
    return "old"


class TestSaverWithOwnKeys(InDirectory):
    """Each history has a key of its own."""

    def make_saver(self):
        return FileSystemSaver(self.new_path(), fsync="never", cipher=SubjectKeys(KEYS, key_for=choose_old))

    def reopen(self, saver):
        return FileSystemSaver(saver.base_directory, fsync="never", cipher=KEYS)
