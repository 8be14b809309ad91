"""`savers.langgraph.checkpointer`, as LangGraph's Agent Server opens it."""

import asyncio
from importlib import import_module
from pathlib import Path

import pytest

from graphkit import CheckpointerConfigurationError
from savers.langgraph import FileSystemCheckpointSaver, checkpointer
from tests.integrations import langgraph_graphs as graphs
from tests.support.langgraph_checkpoints import put, thread

THREAD = {"configurable": {"thread_id": "t"}}


def load(path):
    """Load what langgraph.json names, as langgraph-api 0.16 does: from the dictionary of the module."""
    module, name = path.rsplit(".", 1)
    return import_module(module).__dict__[name]


async def run():
    async with checkpointer() as saver:
        await graphs.loop().compile(checkpointer=saver).ainvoke({"log": [], "n": 0}, THREAD)
        return saver, [info.id for info in saver.store.history(THREAD)]


def test_a_server_finds_it_by_its_dotted_path():
    assert load("savers.langgraph.checkpointer") is checkpointer


def test_it_opens_the_directory_of_the_variable_and_closes_it(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    monkeypatch.setenv("GRAPHKIT_DIR", str(runs))
    saver, ids = asyncio.run(run())
    assert isinstance(saver, FileSystemCheckpointSaver)
    assert saver.store.base_directory == str(runs)
    for link in Path("/proc/self/fd").iterdir():
        assert tmp_path not in link.resolve().parents
    again = FileSystemCheckpointSaver(runs)
    stored = [info.id for info in again.store.history(THREAD)]
    assert stored == ids
    assert len(ids) > 5


@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_variable_is_named(value, monkeypatch):
    monkeypatch.delenv("GRAPHKIT_DIR", raising=False)
    if value is not None:
        monkeypatch.setenv("GRAPHKIT_DIR", value)
    with pytest.raises(CheckpointerConfigurationError, match=r"GRAPHKIT_DIR is not set.*langgraph\.json"):
        asyncio.run(run())


def test_a_file_in_place_of_the_directory_is_refused_by_the_name_of_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("content")
    monkeypatch.setenv("GRAPHKIT_DIR", str(tmp_path / "file"))
    with pytest.raises(CheckpointerConfigurationError, match=r"GRAPHKIT_DIR=.*file' cannot be used.*is a file"):
        asyncio.run(run())
    assert (tmp_path / "file").read_text() == "content"


def test_another_kind_of_store_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAPHKIT_DIR", "memory:x")
    with pytest.raises(CheckpointerConfigurationError, match=r"GRAPHKIT_DIR='memory:x'.*needs a directory"):
        asyncio.run(run())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("strategy", ["delete", "delete_all"])
def test_the_servers_word_for_deleting_is_understood_too(saver, strategy):
    """langgraph-api 0.16 calls `aprune(ids, strategy="delete_all")`."""
    for name in "ab":
        put(saver, thread(name), n=1)
    asyncio.run(saver.aprune(["a"], strategy=strategy))
    assert saver.store.threads() == ["b"]
    with pytest.raises(ValueError, match="everything"):
        saver.prune(["b"], strategy="everything")
    assert saver.store.threads() == ["b"]
