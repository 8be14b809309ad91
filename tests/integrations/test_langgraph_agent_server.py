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


async def run():
    async with checkpointer() as saver:
        await graphs.loop().compile(checkpointer=saver).ainvoke({"log": [], "n": 0}, THREAD)
        return saver


def test_a_server_finds_it_by_its_dotted_path():
    """As langgraph-api 0.16 does: in the dictionary of the module."""
    assert import_module("savers.langgraph").__dict__["checkpointer"] is checkpointer


def test_it_opens_the_directory_of_the_variable_and_closes_it(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    monkeypatch.setenv("GRAPHKIT_DIR", str(runs))
    saver = asyncio.run(run())
    assert isinstance(saver, FileSystemCheckpointSaver)
    assert saver.store.base_directory == str(runs)
    for link in Path("/proc/self/fd").iterdir():
        assert tmp_path not in link.resolve().parents
    assert len(FileSystemCheckpointSaver(runs).store.history(THREAD)) > 5


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"GRAPHKIT_DIR is not set.*langgraph\.json"),
        ("", r"GRAPHKIT_DIR is not set.*langgraph\.json"),
        ("file", r"GRAPHKIT_DIR=.*file' cannot be used.*is a file"),
        ("memory:x", r"GRAPHKIT_DIR='memory:x'.*needs a directory"),
    ],
)
def test_what_is_no_directory_is_refused_by_the_name_of_the_variable(tmp_path, monkeypatch, value, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("content")
    monkeypatch.delenv("GRAPHKIT_DIR", raising=False)
    if value is not None:
        monkeypatch.setenv("GRAPHKIT_DIR", value)
    with pytest.raises(CheckpointerConfigurationError, match=message):
        asyncio.run(run())
    assert [path.read_text() for path in tmp_path.iterdir()] == ["content"]


def test_the_servers_word_for_deleting_is_understood_too(saver):
    """langgraph-api 0.16 calls `aprune(ids, strategy="delete_all")`."""
    for name in "ab":
        put(saver, thread(name), n=1)
    asyncio.run(saver.aprune(["a"], strategy="delete_all"))
    assert saver.store.threads() == ["b"]
    with pytest.raises(ValueError, match="everything"):
        saver.prune(["b"], strategy="everything")
    assert saver.store.threads() == ["b"]
