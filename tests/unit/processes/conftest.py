"""What the tests of several processes share: a store, and the program of a test's module, which uses it meanwhile."""

import uuid

import pytest

from savers import FileSystemSaver, PostgresSaver, SqliteSaver
from tests.support.command_process import program_starter
from tests.support.sweeps import in_turn

PRELUDE = """
import sys
from graphkit import *
from graphkit import operations
from savers import FileSystemSaver, PostgresSaver, SqliteSaver

kind, path, schema, what, *arguments = sys.argv[1:]
if kind == "postgres":
    saver = PostgresSaver(path, schema=schema)
else:
    saver = {"file": FileSystemSaver, "sqlite": SqliteSaver}[kind](path, fsync="never")

"""


@pytest.fixture(params=in_turn(["file", "sqlite"], "kind"))
def kind(request):
    return request.param


@pytest.fixture
def place(request, kind, tmp_path):
    """The path or the connection string of the store, and its schema."""
    if kind != "postgres":
        yield str(tmp_path / "store"), ""
        return
    server = request.getfixturevalue("server")
    schema = f"test {uuid.uuid4().hex}"
    yield server.connection_string, schema
    server.drop_schema(schema)


@pytest.fixture
def path(place):
    return place[0]


@pytest.fixture
def saver(kind, place):
    path, schema = place
    options = {"schema": schema} if schema else {"fsync": "never"}
    with {"file": FileSystemSaver, "sqlite": SqliteSaver, "postgres": PostgresSaver}[kind](path, **options) as saver:
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
def start(request, launcher, kind, place):
    """Starts PROGRAM, waits until it prints READY, if the module has that, and kills the processes that are left."""
    module = request.module
    ready = getattr(module, "READY", None)
    with program_starter(launcher, PRELUDE + module.PROGRAM, kind, *place, ready=ready) as start:
        yield start
