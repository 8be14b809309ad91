"""The contract of a saver, on a file saver that seals what it stores, and with one more saver for each operation."""

import pickle
import subprocess
import sys
from functools import partial

from savers import FileSystemSaver
from tests.contract.test_filesystem import InDirectory

KEYS = {"current": bytes(range(32)), "old": bytes(32)}


class TestSealedSaver(InDirectory):
    """Saver objects that stay open, two on each store."""

    def make_saver(self):
        return FileSystemSaver(self.new_path(), fsync="never", cipher=KEYS)

    def reopen(self, saver):
        return FileSystemSaver(saver.base_directory, fsync="never", cipher=KEYS)

    def plant(self, saver, config, checkpoint):
        elsewhere("saver.put(*argument)", saver, (config, checkpoint))
        return True

    def peek(self, saver, config):
        return elsewhere("[dict(one.state) for one in saver.list(argument)]", saver, config)


def elsewhere(expression, saver, argument):
    """Evaluate in another process; what it returns must be of builtin types."""
    code = (
        "import pickle, sys; opener, argument = pickle.load(sys.stdin.buffer); "
        f"saver = opener(); pickle.dump({expression}, sys.stdout.buffer)"
    )
    opener = partial(FileSystemSaver, saver.base_directory, cipher=KEYS)
    given = pickle.dumps((opener, argument))
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=True, timeout=60)
    return pickle.loads(done.stdout)
