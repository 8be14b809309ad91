import abc
import inspect
import pickle
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from graphkit import HasVersions
from graphkit.abc import BaseCheckpointSaver
from graphkit.testing.contract import SaverContract
from graphkit.testing.stateful import SaverMachine
from savers import FileSystemSaver


class InDirectory(SaverContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.root = tmp_path
        self.stores = 0

    def new_path(self):
        self.stores += 1
        return self.root / f"store {self.stores}"

    def plant(self, saver, config, checkpoint):
        elsewhere("saver.put(*argument)", saver, (config, checkpoint))
        return True

    def peek(self, saver, config):
        return elsewhere("[dict(one.state) for one in saver.list(argument)]", saver, config)


class TestFileSystemSaver(InDirectory):
    """Saver objects that stay open, two on each store."""

    def make_saver(self):
        return FileSystemSaver(self.new_path())

    def reopen(self, saver):
        return FileSystemSaver(saver.base_directory)


class TestFileSystemSaverThatNeverSyncs(InDirectory):
    fsync = "never"

    def make_saver(self):
        return FileSystemSaver(self.new_path(), fsync=self.fsync)

    def reopen(self, saver):
        return FileSystemSaver(saver.base_directory, fsync=self.fsync)


@pytest.mark.sweep(20, of="tests")
class TestFileSystemSaverThatSyncsInIntervals(TestFileSystemSaverThatNeverSyncs):
    fsync = 0.001


@pytest.mark.sweep(20, of="tests")
class TestFileSystemSaverReopened(InDirectory):
    """Every single operation on a saver object of its own, which takes twice as long."""

    def make_saver(self):
        return Reopening(self.new_path())

    def reopen(self, saver):
        return Reopening(saver.base_directory)


def elsewhere(expression, saver, argument):
    """Evaluate in another process; what it returns must be of builtin types."""
    code = (
        "import pickle, sys; from savers import FileSystemSaver; path, argument = pickle.load(sys.stdin.buffer); "
        f"saver = FileSystemSaver(path); pickle.dump({expression}, sys.stdout.buffer)"
    )
    given = pickle.dumps((str(saver.base_directory), argument))
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=True, timeout=60)
    return pickle.loads(done.stdout)


def reopened(name):
    def call(self, *args, **kwargs):
        with self.opened() as saver:
            return getattr(saver, name)(*args, **kwargs)

    async def async_call(self, *args, **kwargs):
        with self.opened() as saver:
            return await getattr(saver, name)(*args, **kwargs)

    return async_call if inspect.iscoroutinefunction(getattr(FileSystemSaver, name)) else call


class Reopening(BaseCheckpointSaver, HasVersions):
    isolates_values = refuses_unstorable_values = waits_for_runs = True

    def __init__(self, base_directory, fsync="never"):
        self.base_directory = base_directory
        self.fsync = fsync
        self.types = ()

    def opened(self):
        return FileSystemSaver(self.base_directory, types=self.types, fsync=self.fsync)

    def register_types(self, *types):
        self.types = types

    run_lock = BaseCheckpointSaver.run_lock

    @contextmanager
    def _run_lock(self, config, timeout):
        with self.opened() as saver, saver.run_lock(config, timeout):
            yield


for base in (BaseCheckpointSaver, HasVersions):
    for name, _ in inspect.getmembers(base, inspect.isfunction):
        if not name.startswith("_") and name not in vars(Reopening):
            setattr(Reopening, name, reopened(name))
abc.update_abstractmethods(Reopening)


class FileSystemMachine(SaverMachine):
    """Two objects that stay open for as long as the machine lets them."""

    def make_saver(self):
        self.root = Path(tempfile.mkdtemp())
        return FileSystemSaver(self.root / "store", fsync="never")

    def reopen(self, saver):
        return FileSystemSaver(saver.base_directory, fsync="never")

    def open_again(self, index):
        self.savers[index].close()
        super().open_again(index)

    def teardown(self):
        for saver in self.savers:
            saver.close()
        shutil.rmtree(self.root)


class ReopeningMachine(SaverMachine):
    def make_saver(self):
        self.root = Path(tempfile.mkdtemp())
        return Reopening(self.root / "store")

    def teardown(self):
        shutil.rmtree(self.root)


def fewer(machine, part):
    """Files are slow, and reopening them at every step is slower."""
    machine.TestCase.settings = settings(max_examples=settings.default.max_examples // part)
    return machine.TestCase


TestFileSystemMachine = fewer(FileSystemMachine, 2)
TestReopeningMachine = fewer(ReopeningMachine, 8)
