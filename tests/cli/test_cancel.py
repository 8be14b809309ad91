"""cancel and pause, and what the other commands say of a thread that was cancelled."""

import pytest

from graphkit import START
from savers import FileSystemSaver
from tests.support.terminal import assert_shows, checkpoint, graphkit, read_json

INPUT = '{"item": "lamp"}'
CANCELS_ITSELF = """
from graphkit import operations
from savers import FileSystemSaver
from tests.support.graphs import make_chain


def stop(state, config):
    operations.cancel(FileSystemSaver("runs"), "t", reason="sold out")
    while not config.is_cancelled:
        pass


app = make_chain({}, stop=stop, last=lambda state: {}).compile()
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


@pytest.mark.parametrize(
    ("command", "out"),
    [
        ("pause", "t is running: it stops before its next node\n"),
        ("cancel", "t is running: it ends before its next node\n"),
    ],
)
def test_a_run_that_another_process_executes_is_asked_to_stop(runs, command, out):
    with FileSystemSaver(runs) as saver, saver.run_lock("t"):
        saver.put("t", checkpoint(1, START, "a", {}))
        (row,) = read_json("threads", runs)
        assert row["status"] == "running"
        assert graphkit("verify", runs).code == 0, "it waits for no run"
        assert graphkit(command, runs, "t").out == out


def test_a_terminal_names_the_command_that_continues_a_cancelled_run(write_module):
    write_module("selfish", CANCELS_ITSELF)
    done = graphkit("run", "runs", "--app", "selfish:app", "--thread", "t", terminal=True)
    assert done.lines[-2:] == [
        "t was cancelled: sold out, after 1 step",
        "next: graphkit resume runs t --app selfish:app",
    ]
