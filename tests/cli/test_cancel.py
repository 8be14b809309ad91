"""cancel and pause, and what the other commands say of a thread that was cancelled."""

import pytest

from graphkit import operations
from savers import FileSystemSaver
from tests.support.command_process import CommandProcess
from tests.support.terminal import assert_shows, graphkit, read_json

INPUT = '{"item": "lamp"}'
FLOW = """
import time
from pathlib import Path
from graphkit import END, START, StateGraph


def wait(state, config):
    (Path(__file__).parent / "began").touch()
    while not config.is_cancelled and not (Path(__file__).parent / "go").exists():
        time.sleep(0.01)
    return {}


graph = StateGraph({}).add_node("wait", wait).add_node("last", lambda state: {})
app = graph.add_edge(START, "wait").add_edge("wait", "last").add_edge("last", END).compile()
"""

CANCELS_ITSELF = """
from graphkit import END, START, StateGraph, operations
from savers import FileSystemSaver


def stop(state, config):
    operations.cancel(FileSystemSaver("runs"), "t", reason="sold out")
    while not config.is_cancelled:
        pass
    return {}


graph = StateGraph({}).add_node("stop", stop).add_node("last", lambda state: {})
app = graph.add_edge(START, "stop").add_edge("stop", "last").add_edge("last", END).compile()
"""


@pytest.fixture
def store(runs, shop):
    """A store with a thread that waits for an answer."""
    assert graphkit("run", runs, "--app", shop, "--thread", "t", "--input", INPUT).code == 0
    return runs


def test_a_thread_that_waits_is_cancelled_at_once(store):
    assert graphkit("cancel", store, "t", "--reason", "sold out").out == "t is cancelled\n"
    assert read_json("cancel", store, "t") == {"thread": "t", "status": "cancelled", "accepted": False}
    assert graphkit("cancel", store, "t").out == "t is cancelled: nothing to stop\n"


def test_every_command_shows_that_a_thread_was_cancelled_and_why(store, shop):
    graphkit("cancel", store, "t", "--reason", "sold out")
    (row,) = read_json("threads", store, "--status", "cancelled")
    shown = read_json("show", store, "t")
    for found in (row, shown):
        assert found["status"] == "cancelled"
        assert found["reason"] == "sold out"
        assert not found["waiting"]
    assert_shows(graphkit("threads", store), 0, "sold out")
    assert_shows(graphkit("show", store, "t"), 0, "sold out")
    newest, *_ = read_json("history", store, "t")
    assert newest["status"] == "cancelled"
    assert read_json("stats", store)["statuses"] == {"cancelled": 1}
    assert read_json("interrupts", store) == []
    assert_shows(graphkit("wait", store, "t", "--until", "interrupted"), 6, "t is cancelled\n")
    assert_shows(graphkit("worker", store, "--app", shop, "--once"), 0, "resumed 0 runs\n")


def test_a_watch_shows_the_reason(store):
    latest = read_json("history", store, "t")[0]["id"]
    graphkit("cancel", store, "t", "--reason", "sold out")
    lines = graphkit("watch", store, "t", "--checkpoint", latest, "--limit", "2").lines
    assert [line.partition(" t ")[2].strip() for line in lines][-1] == "cancelled: sold out"


def test_a_pause_of_a_thread_that_does_not_run(store):
    assert graphkit("pause", store, "t").out == "t is interrupted: nothing to stop\n"


@pytest.mark.parametrize("command", ["cancel", "pause"])
def test_a_run_of_another_process_stops(tmp_path, runs, launcher, command):
    (tmp_path / "flow.py").write_text(FLOW)
    with FileSystemSaver(runs, fsync="never") as saver:
        words = ["run", "runs", "--app", "flow:app", "-t", "t", "--input", "{}", "--json"]
        run = CommandProcess(launcher, *words, cwd=tmp_path)
        with saver.watch(latest=True, interval=0.01) as changes:
            while not (tmp_path / "began").exists():
                changes.get(0.05)
        (row,) = read_json("threads", runs)
        assert row["status"] == "running"
        assert graphkit("verify", runs).code == 0, "it waits for no run"
        done = graphkit(command, runs, "t")
        if command == "pause":
            assert done.out == "t is running: it stops before its next node\n"
            (tmp_path / "go").touch()
        else:
            assert done.out == "t is cancelled\n"
        lines, err, code = run.end()
    assert (err, code) == ("", 0)
    assert f'"status": "{"cancelled" if command == "cancel" else "interrupted"}"' in lines[-1]
    assert operations.cancel(FileSystemSaver(runs), "t") == (command == "pause")


def test_a_terminal_names_the_command_that_continues_a_cancelled_run(write_module):
    write_module("selfish", CANCELS_ITSELF)
    done = graphkit("run", "runs", "--app", "selfish:app", "--thread", "t", terminal=True)
    assert done.lines[-2:] == [
        "t was cancelled: sold out, after 1 step",
        "next: graphkit resume runs t --app selfish:app",
    ]
