"""What pending writes show: how far a running fork or map is; and of any failure, cancel or interrupt, no error."""

import json
from datetime import UTC, datetime

import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import CONFIG, LOG, Killed, connect, make_graph, make_map
from tests.support.sweeps import ALL
from tests.support.terminal import graphkit


def process_item(item):
    if item == 3:
        raise Killed
    return {"log": item}


def make_items(action=process_item):
    return make_map(action, range(5), max_concurrency=1)


def die(state):
    raise Killed


FORK = make_graph(LOG, "START>a a>END START>b1 b1>b2 b2>END", b2=die)
MAP_IN_A_BRANCH = connect(make_items().add_node("a", lambda state: None), "START>a a>END")


@pytest.mark.parametrize(
    ("graph", "progress"),
    [
        (make_items(), "3/5 items of m done"),
        (FORK, "1/2 branches done"),
        (MAP_IN_A_BRANCH, "1/2 branches done, 3/5 items of m done"),
    ],
)
def test_the_command_line_shows_how_much_is_done(graph, progress, tmp_path):
    with FileSystemSaver(tmp_path) as saver, pytest.raises(Killed):
        graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)
    (row,) = json.loads(graphkit("threads", tmp_path, "--json").out)
    assert row["progress"] == progress
    assert progress in graphkit("show", tmp_path, "t").out
    assert progress in graphkit("watch", tmp_path, "t", "--limit", "2").out


def test_a_finished_map_shows_no_progress(tmp_path):
    with FileSystemSaver(tmp_path) as saver:
        make_items(lambda item: {"log": item}).compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert "items of m" not in graphkit("show", tmp_path, "t").out


def test_a_watch_reports_finished_items(tmp_path):
    for saver in (FileSystemSaver(tmp_path), MemorySaver()):
        with saver.watch("t", interval=0.05) as changes:
            with pytest.raises(Killed):
                make_items().compile(checkpoint_saver=saver).invoke({}, CONFIG)
            kinds = [changes.get(60).kind for _ in range(2)]
        assert kinds == ["checkpoint", "progress"]


NOW = datetime(2026, 1, 2, tzinfo=UTC)
GOOD = {"node_id": "a", "when": "inside", "payload": "why?", "metadata": {}, "created_at": NOW}


@pytest.mark.parametrize("words", [("threads",), ("show", "t"), ("interrupts",)])
def test_the_command_line_shows_what_has_no_time_and_no_reason(words, tmp_path):
    with FileSystemSaver(tmp_path / "store", fsync="never") as saver:
        for thread in ("t", "u"):
            saver.put(RunnableConfig(thread), Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))
        saver.put_writes(CONFIG, {"interrupt:i": GOOD, "interrupt:j": {**GOOD, "created_at": 1}})
        saver.put_writes(RunnableConfig("u"), {"failure": {}})

    done = graphkit(words[0], tmp_path / "store", *words[1:])

    assert done.code == 0
    assert done.err == ""
    assert "why?" in done.out


@pytest.mark.sweep(ALL)
def test_what_is_no_failure_and_no_cancel_is_none_in_a_summary(saver):
    saver.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={}))
    # Keys like those of LangGraph.
    saver.put_writes(CONFIG, {"write:-1:t": {"no": "record"}, "write:-3:t": 5, "write:-3:u": [5] * 6})
    saver.put_writes(CONFIG, {"write:-1:v": [None] * 6, "write:-1:w": ["~__pregel_pull, a", "w", -1, "c", "t", "text"]})

    assert saver.interrupts("t") == []
    assert saver.summary(CONFIG).failure is None
    saver.put_writes(CONFIG, {"failure": "text", "cancelled": "text"})
    summary = saver.summary(CONFIG)

    assert (summary.failure, summary.cancellation) == (None, None)
