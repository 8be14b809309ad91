"""Savers for tests of the engine: memory, files, and an independent one of the contract's four methods."""

import pytest

from graphkit.testing import ManualClock
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import CONFIG, outputs
from tests.support.savers import ListSaver
from tests.support.sweeps import in_turn
from tests.support.times import NOON

# The default run takes one of the six cells of a test that is neither about savers nor about sync and async.


@pytest.fixture(params=in_turn(["memory", "four-methods", "file"], "saver", "go"))
def saver(request, tmp_path):
    if request.param == "file":
        return FileSystemSaver(tmp_path / "store", fsync="never", lock_timeout=0)
    return MemorySaver() if request.param == "memory" else ListSaver()


@pytest.fixture
def clock():
    return ManualClock(NOON)


@pytest.fixture
def list_saver():
    return ListSaver()


@pytest.fixture(params=in_turn(["sync", "async"], "saver", "go"))
def go(request):
    """Runs a graph, in both ways; gives what it hands out."""

    def run(graph, given, config=CONFIG, **options):
        return outputs(graph, given, config, how=run.kind, **options)

    run.kind = request.param
    return run
