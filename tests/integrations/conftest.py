"""The stores of LangGraph's checkpointer."""

from contextlib import ExitStack
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


@pytest.fixture(params=["files", "sqlite", "postgres", "memory"])
def make_saver(request, tmp_path):
    """Opens savers of one kind on new stores, by a name, and closes them in the end."""
    from savers import FileSystemSaver, MemorySaver, PostgresSaver, SqliteSaver

    with ExitStack() as stack:

        def make(name):
            match request.param:
                case "files":
                    saver = FileSystemSaver(tmp_path / name, fsync="never")
                case "sqlite":
                    saver = SqliteSaver(tmp_path / f"{name}.db", fsync="never")
                case "postgres":
                    server = request.getfixturevalue("server")
                    saver = PostgresSaver(server.connection_string, schema=f"{name} {tmp_path.name}")
                case _:
                    saver = MemorySaver()
            return stack.enter_context(saver)

        yield make
