"""What the tests of several processes share: a store, and the program of a test's module, which uses it meanwhile."""

import pytest

from savers import FileSystemSaver, SqliteSaver
from tests.support.command_process import program_starter
from tests.support.sweeps import in_turn


@pytest.fixture(params=in_turn(["file", "sqlite"], "kind"))
def kind(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "store")


@pytest.fixture
def saver(kind, path):
    with {"file": FileSystemSaver, "sqlite": SqliteSaver}[kind](path, fsync="never") as saver:
        yield saver


@pytest.fixture
def start(request, launcher, kind, path):
    """Starts PROGRAM, waits until it prints READY, if the module has that, and kills the processes that are left."""
    module = request.module
    with program_starter(launcher, module.PROGRAM, kind, path, ready=getattr(module, "READY", None)) as start:
        yield start
