"""How far a running fork or map is: from the pending writes of the checkpoint, as the command line shows it."""

import json

import pytest

from graphkit import END, START, StateGraph
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import CONFIG, LOG, Killed, connect, make_graph
from tests.support.terminal import graphkit


def die(state):
    raise Killed


def process_item(item):
    if item == 3:
        raise Killed
    return {"log": item}


def make_map(action=process_item):
    graph = StateGraph(LOG).add_map_node("m", action, lambda state: range(5), max_concurrency=1)
    return graph.add_edge(START, "m").add_edge("m", END)


def make_fork():
    return make_graph(LOG, "START>a a>END START>b1 b1>b2 b2>END", a=lambda state: None, b1=lambda state: None, b2=die)


def make_map_in_a_branch():
    graph = StateGraph(LOG).add_node("a", lambda state: None)
    graph.add_map_node("m", process_item, lambda state: range(5), max_concurrency=1)
    return connect(graph, "START>a,m a>END m>END")


@pytest.mark.parametrize(
    ("make", "progress"),
    [
        (make_map, "3/5 items of m done"),
        (make_fork, "1/2 branches done"),
        (make_map_in_a_branch, "1/2 branches done, 3/5 items of m done"),
    ],
)
def test_the_command_line_shows_how_much_is_done(make, progress, tmp_path):
    with FileSystemSaver(tmp_path) as saver, pytest.raises(Killed):
        make().compile(checkpoint_saver=saver).invoke({}, CONFIG)
    (row,) = json.loads(graphkit("threads", tmp_path, "--json").out)
    assert row["progress"] == progress
    assert progress in graphkit("show", tmp_path, "t").out
    assert progress in graphkit("watch", tmp_path, "t", "--limit", "2").out


def test_a_finished_map_shows_no_progress(tmp_path):
    with FileSystemSaver(tmp_path) as saver:
        make_map(lambda item: {"log": item}).compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert "items of m" not in graphkit("show", tmp_path, "t").out


def test_a_watch_reports_finished_items(tmp_path):
    for saver in (FileSystemSaver(tmp_path), MemorySaver()):
        with saver.watch("t", interval=0.05) as changes:
            with pytest.raises(Killed):
                make_map().compile(checkpoint_saver=saver).invoke({}, CONFIG)
            kinds = [changes.get(60).kind for _ in range(2)]
        assert kinds == ["checkpoint", "progress"]
