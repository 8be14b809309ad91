"""Stopping a run on request: at the next node boundary, everything saved, from anywhere."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from graphkit import GraphResume, RunnableConfig
from tests.support.graphs import (
    CONFIG,
    LOG,
    FlakyNode,
    both,
    fail_once,
    invoke_final as run,
    log_node,
    make_chain,
    make_graph,
    pending_ids,
)
from tests.support.workers import status


class Pauser:
    """A node that pauses its graph, which is set after it is compiled."""

    def __init__(self, word):
        self.word = word
        self.graph = None
        self.asked = []

    def __call__(self, state):
        if not self.asked:
            self.asked.append(self.graph.pause())
        return {"log": self.word}


@pytest.mark.requirement("H41")
@both
@pytest.mark.parametrize("options", [{}, {"durability": "async"}, {"durability": "exit"}, {"checkpoint_interval": 5}])
def test_it_stops_before_the_next_node_and_goes_on_there(saver, options, how):
    a = Pauser("a")
    graph = a.graph = make_chain(a=a, b=log_node("b")).compile(checkpoint_saver=saver, **options)
    last = run(graph, {}, how=how)

    assert (last.node_id, last.when) == ("b", "before")
    assert last.reason() == "pause"
    assert last.metadata == {"reason": "pause"}
    assert last.state["log"] == ["a"]
    assert a.asked == [1]
    assert status(saver) == "interrupted"
    assert pending_ids(saver) == [last.id]
    assert run(graph, None, how=how).state["log"] == ["a", "b"]


@pytest.mark.requirement("H41")
@pytest.mark.parametrize("has_saver", [True, False])
def test_from_another_thread_or_a_signal_handler(saver, has_saver, monkeypatch):
    inside = threading.Barrier(4, timeout=60)

    def a(state):
        inside.wait()
        inside.wait()
        return {"log": "a"}

    graph = make_chain(a=a, b=log_node("b")).compile(checkpoint_saver=saver if has_saver else None)

    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(graph.invoke_final, {}, RunnableConfig(thread)) for thread in "tuv"]
        inside.wait()
        with monkeypatch.context() as interrupted:
            interrupted.setattr(saver, "get", None)  # a handler may have interrupted it
            assert graph.pause("other") == 0
            assert graph.pause("t") == 1
        assert graph.pause() == 3
        inside.wait()
        assert [run.result(60).metadata for run in runs] == [{"reason": "pause"}] * 3

    assert graph.pause() == 0


@pytest.mark.requirement("H41")
@both
def test_while_it_waits_for_its_lock(saver, monkeypatch, how):
    graph = make_chain(a=log_node("a")).compile(checkpoint_saver=saver)
    asked = []
    run_lock = saver.run_lock
    monkeypatch.setattr(saver, "run_lock", lambda *args: asked.append(graph.pause("t")) or run_lock(*args))
    last = run(graph, {}, how=how)
    assert (asked, last.node_id, last.reason()) == ([1], "a", "pause")


def test_a_run_that_is_about_to_end_ends(saver):
    a = Pauser("a")
    graph = a.graph = make_chain(a=a).compile(checkpoint_saver=saver)
    assert graph.invoke_final({}, CONFIG).is_end


@both
def test_inside_a_subgraph_and_a_fork(saver, how):
    p = Pauser("p")
    q = FlakyNode("q")
    graph = make_graph(LOG, "j>END START>s,b s>j b>j", s=make_chain(p=p, q=q).compile())
    compiled = p.graph = graph.compile(checkpoint_saver=saver)

    assert run(compiled, {}, how=how).metadata == {"reason": "pause"}
    assert q.runs == []
    assert run(compiled, None, how=how).state["log"] == ["p", "q", "b", "j"]
    assert q.runs == ["q"]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("answer", [GraphResume({"log": "x"}), GraphResume(update={"log": "x"})])
def test_a_paused_nested_graph_gets_the_correction(saver, answer, depth):
    p = Pauser("p")
    graph = make_chain(p=p, q=lambda state: {"log": f"after {state['log'][-1]}"})

    for _ in range(depth):
        graph = make_chain(sub=graph.compile(), r=log_node("r"))

    compiled = p.graph = graph.compile(checkpoint_saver=saver)

    assert compiled.invoke_final({}, CONFIG).node == "q"
    assert compiled.invoke(answer, CONFIG)["log"] == ["p", "x", "after x"] + ["r"] * depth


@both
def test_ctrl_c_in_a_node_keeps_what_was_finished(saver, how):
    b = fail_once(log_node("b"), KeyboardInterrupt)
    graph = make_chain(a=log_node("a"), b=b).compile(checkpoint_saver=saver, checkpoint_interval=5)
    with pytest.raises(KeyboardInterrupt):
        run(graph, {}, how=how)
    assert saver.get(CONFIG).node_id == "a"
    assert status(saver) == "stalled"
    assert run(graph, None, how=how).state["log"] == ["a", "b"]
