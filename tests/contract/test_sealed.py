"""The contract of a saver, on a file saver that seals what it stores, and with one more saver for each operation."""

from savers import FileSystemSaver
from tests.contract.test_filesystem import InDirectory
from tests.support.reopening import KEYS


class TestSealedSaver(InDirectory):
    """Saver objects that stay open, two on each store."""

    def make_saver(self):
        return FileSystemSaver(self.new_path(), fsync="never", cipher=KEYS)

    def reopen(self, saver):
        return FileSystemSaver(saver.base_directory, fsync="never", cipher=KEYS)
