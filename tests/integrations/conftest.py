"""The stores of LangGraph's checkpointer."""

from contextlib import ExitStack
from unittest.mock import Mock

import pytest

from tests.support.savers import open_kind


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
def open_entries(tmp_path):
    """Opens stores or caches of LangGraph's on one directory, by their class, and closes them all at the end."""
    with ExitStack() as stack:
        yield lambda cls, **options: stack.enter_context(cls(tmp_path / "data", **{"fsync": "never", **options}))


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


@pytest.fixture(params=["file", "sqlite", "postgres", "memory"])
def make_saver(request, tmp_path):
    """Opens savers of one kind on new stores, by a name, and closes them in the end."""
    server = request.getfixturevalue("server") if request.param == "postgres" else None
    with ExitStack() as stack:

        def make(name):
            directory = tmp_path / name
            directory.mkdir()
            return stack.enter_context(open_kind(request.param, directory, server=server))

        yield make
