"""A directory whose every id and time is known, and a module of graphs to run."""

import sys

import pytest

from graphkit import END, START, RunnableConfig
from savers import FileSystemSaver
from tests.support.terminal import SHOP, STOP, checkpoint, graphkit, minutes_ago


@pytest.fixture
def runs(tmp_path):
    """The place of a store that is not there yet."""
    return tmp_path / "runs"


@pytest.fixture
def store(runs):
    """Three threads: one waits, one is finished, one died on its way."""
    saver = FileSystemSaver(runs, fsync="never")
    first = {"source": "input", "step": 0}

    waits = RunnableConfig("order-17")
    saver.put(waits, checkpoint(1, START, "reserve", {"item": "lamp"}, user="anna", **first))
    reserved = {"item": "lamp", "log": ["reserved"]}
    here = saver.put(waits, checkpoint(2, "reserve", "approve", reserved, 1, user="anna", step=1))
    question = {**STOP, "created_at": minutes_ago(58)}
    saver.put_writes(here, {"interrupt:q-1": question})

    ended = RunnableConfig("order-18")
    saver.put(ended, checkpoint(11, START, "pack", {"item": "cup", "n": 1}, user="bert", **first))
    packed = {"item": "cup", "n": 2, "by": {"who": "bert"}}
    here = saver.put(ended, checkpoint(13, "pack", END, packed, 11, user="bert", step=1))
    saver.add_tags(here, "golden")

    died = RunnableConfig("import-a")
    saver.put(died, checkpoint(21, START, "read", {"path": "a.csv"}, **first))
    saver.close()
    return runs


@pytest.fixture
def saver(store):
    with FileSystemSaver(store, fsync="never") as saver:
        yield saver


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Writes modules to the current directory, from which commands import them; the test forgets them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    written = []

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        sys.modules.pop(name, None)
        written.append(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.fixture
def shop(write_module):
    """A module `shop` in the current directory."""
    write_module("shop", SHOP)
    return "shop:app"


@pytest.fixture
def waiting(runs, shop):
    """A run that waits inside `approve`, made by a real graph."""
    done = graphkit("run", runs, "--app", shop, "--thread", "order-17", "--input", '{"item": "lamp"}')
    assert done.code == 0
    return runs
