"""Savers for tests of the engine: memory, files, and an independent one of the contract's four methods."""

import pytest

from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import CONFIG, outputs
from tests.support.savers import ListSaver

IN_TURN = pytest.mark.cell(1, of=("saver", "go"), in_turn=True)
"""The default run takes one of the six cells of a test that is neither about savers nor about sync and async."""


@pytest.fixture(params=[pytest.param(kind, marks=IN_TURN) for kind in ("memory", "four-methods", "file")])
def saver(request, tmp_path):
    if request.param == "file":
        return FileSystemSaver(tmp_path / "store", fsync="never", lock_timeout=0)
    return MemorySaver() if request.param == "memory" else ListSaver()


@pytest.fixture
def list_saver():
    return ListSaver()


@pytest.fixture(params=[pytest.param(kind, marks=IN_TURN) for kind in ("sync", "async")])
def go(request):
    """Runs a graph, in both ways; gives what it hands out."""

    def run(graph, given, config=CONFIG, **options):
        return outputs(graph, given, config, how=run.kind, **options)

    run.kind = request.param
    return run
