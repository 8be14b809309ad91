"""The stores of LangGraph's checkpointer."""

from unittest.mock import Mock

import pytest


@pytest.fixture
def opener(request):
    """Opens checkpointers on stores of the kind that the test names; see `langgraph_stores`."""
    from tests.integrations.langgraph_stores import make_opener  # LangGraph may be missing

    return make_opener(request, request.param)


@pytest.fixture
def saver(tmp_path):
    """LangGraph's checkpointer on files."""
    from savers.langgraph import FileSystemCheckpointSaver  # LangGraph may be missing

    with FileSystemCheckpointSaver(tmp_path / "store", fsync="never") as saver:
        yield saver


@pytest.fixture
def make_folder(tmp_path, monkeypatch):
    """Makes folders for benchmarks, which leave the disk and the garbage collector of the tests alone."""
    from benchmarks.peers import bench  # LangGraph may be missing

    monkeypatch.setattr(bench.os, "sync", lambda: None)
    monkeypatch.setattr(bench, "gc", Mock())
    numbers = iter(range(1000))

    def make():
        folder = tmp_path / f"store-{next(numbers)}"
        folder.mkdir()
        return folder

    return make
