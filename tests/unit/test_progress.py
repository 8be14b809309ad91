"""How far a running fork or map is: from what is recorded beside the checkpoint, in the library and on the command line."""

import json

import pytest

from graphkit import END, START, Channels, RunnableConfig, StateGraph
from graphkit._saver.writes import ForkProgress, progress_of
from savers import FileSystemSaver, MemorySaver
from tests.support.terminal import graphkit

CONFIG = RunnableConfig("t")
LOG = {"log": Channels.appender_with_duplicate()}


class Killed(BaseException):
    """The process is gone."""


def dies(_state):
    raise Killed


def mapping(action):
    graph = StateGraph(LOG).add_map_node("m", action, lambda state: range(5), max_concurrency=1)
    return graph.add_edge(START, "m").add_edge("m", END)


def item(n):
    if n == 3:
        raise Killed
    return {"log": n}


def forking():
    graph = StateGraph(LOG).add_node("a", lambda state: None).add_node("b1", lambda state: None).add_node("b2", dies)
    graph.add_edge(START, "a").add_edge(START, "b1").add_edge("b1", "b2").add_edge("a", END).add_edge("b2", END)
    return graph


@pytest.mark.parametrize("make", [MemorySaver, None])
@pytest.mark.parametrize(
    ("graph", "progress"),
    [(mapping(item), [ForkProgress("m", 3, 5)]), (forking(), [ForkProgress(None, 1, 2)])],
    ids=["map", "fork"],
)
def test_how_many_are_done_of_what_runs(graph, progress, make, tmp_path):
    saver = FileSystemSaver(tmp_path) if make is None else make()
    with pytest.raises(Killed):
        graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert progress_of(saver.get_writes(CONFIG)) == progress


def test_nothing_runs_after_it_and_before_it():
    saver = MemorySaver()
    mapping(lambda n: {"log": n}).compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert progress_of(saver.get_writes(CONFIG)) == []
    assert progress_of({}) == []


def test_a_map_in_a_branch_is_told_beside_the_fork():
    graph = StateGraph(LOG).add_node("a", lambda state: None)
    graph.add_map_node("m", item, lambda state: range(5), max_concurrency=1)
    graph.add_edge(START, "a").add_edge(START, "m").add_edge("a", END).add_edge("m", END)
    saver = MemorySaver()
    with pytest.raises(Killed):
        graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert progress_of(saver.get_writes(CONFIG)) == [ForkProgress(None, 1, 2), ForkProgress("m", 3, 5)]


def test_the_command_line_tells_it(tmp_path):
    saver = FileSystemSaver(tmp_path)
    with pytest.raises(Killed):
        mapping(item).compile(checkpoint_saver=saver).invoke({}, CONFIG)
    saver.close()
    listed = graphkit("threads", tmp_path, "--json")
    assert [row["waiting"] for row in json.loads(listed.out)] == ["3/5 items of m done"]
    assert "3/5 items of m" in graphkit("show", tmp_path, "t").out
    assert "3/5 items of m done" in graphkit("watch", tmp_path, "t", "--limit", "2").out


def test_a_watch_tells_that_items_are_done(tmp_path):
    for saver in (FileSystemSaver(tmp_path), MemorySaver()):
        with saver.watch("t", interval=0.05) as changes:
            with pytest.raises(Killed):
                mapping(item).compile(checkpoint_saver=saver).invoke({}, CONFIG)
            kinds = [changes.get(60).kind for _ in range(2)]
        assert kinds == ["checkpoint", "progress"]
