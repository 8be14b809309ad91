"""What the tests of several processes share: a store, and the program of a test's module, which uses it meanwhile."""

import pytest

from savers import FileSystemSaver, SqliteSaver
from tests.support.command_process import program_starter
from tests.support.sweeps import in_turn

PRELUDE = """
import sys
from graphkit import *
from graphkit import operations
from savers import FileSystemSaver, SqliteSaver

kind, path, what = sys.argv[1:4]
saver = {"file": FileSystemSaver, "sqlite": SqliteSaver}[kind](path, fsync="never")
"""


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
def app(request, saver, path):
    """The graph of PROGRAM in this process."""
    program = request.module.PROGRAM
    nodes = program[program.index("\ndef ") : program.index("app = ")]
    namespace = {"path": path, "what": ""}
    exec(f"import sys\nfrom graphkit import *\n{nodes}", namespace)
    return namespace["graph"].compile(checkpoint_saver=saver)


@pytest.fixture
def start(request, launcher, kind, path):
    """Starts PROGRAM, waits until it prints READY, if the module has that, and kills the processes that are left."""
    module = request.module
    with program_starter(launcher, PRELUDE + module.PROGRAM, kind, path, ready=getattr(module, "READY", None)) as start:
        yield start
