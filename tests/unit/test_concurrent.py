"""Strands side by side, on random graphs."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings, strategies as st

from graphkit import END, START, Channels, GraphResume, InterruptionMetadata, StateGraph, interrupt
from graphkit._engine.concurrent import run_concurrently
from graphkit._engine.requests import Start, Task, Wait, Withdraw
from graphkit.errors import NodeExecutionError
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import CONFIG, Boom
from tests.support.savers import ListSaver
from tests.support.sweeps import examples


def test_interrupted_again_it_waits_no_longer():
    def strand():
        yield Task()

    steps = run_concurrently([strand(), strand()])
    assert isinstance(next(steps), Start)
    assert isinstance(steps.send(0), Start)
    assert isinstance(steps.send(1), Wait)
    assert isinstance(steps.throw(KeyboardInterrupt("once")), Withdraw)
    assert isinstance(steps.send(None), Wait)
    with pytest.raises(KeyboardInterrupt, match="twice"):
        steps.throw(KeyboardInterrupt("twice"))


# --- random graphs against an interpreter that shares nothing with the engine -----------------------------------------

LEAF = st.just("node")
SEQUENCES = st.recursive(
    st.lists(LEAF, min_size=1, max_size=3),
    lambda inner: st.lists(LEAF | st.lists(inner, min_size=2, max_size=3), min_size=1, max_size=3),
    max_leaves=8,
)
"""What comes one after the other: a node, or a fork, which is a list of what runs side by side."""


def named(sequence, names):
    """The same with names: a node is its name; a fork is (source, branches, join)."""
    return [
        next(names) if part == "node" else (next(names), [named(each, names) for each in part], next(names))
        for part in sequence
    ]


def expected(sequence, seen):
    """What the nodes log: their name, and how many words they saw."""
    log = []
    for part in sequence:
        if isinstance(part, str):
            log.append((part, seen + len(log)))
            continue
        source, branches, join = part
        log.append((source, seen + len(log)))
        base = seen + len(log)
        for branch in branches:
            log += expected(branch, base)
        log.append((join, seen + len(log)))
    return log


def wired(graph, sequence, source, node):
    """Add a sequence after a place; returns its last place."""
    for part in sequence:
        first = part if isinstance(part, str) else part[0]
        graph.add_node(first, node(first)).add_edge(source, first)
        source = first
        if not isinstance(part, str):
            _, branches, join = part
            graph.add_node(join, node(join))
            for branch in branches:
                graph.add_edge(wired(graph, branch, source, node), join)
            source = join
    return source


class DiagramModel:
    """Nodes that fail and ask a number of times, and record when they finish."""

    def __init__(self, failures, questions):
        self.failures, self.questions = dict(failures), questions
        self.finished = []

    def node(self, name):
        def run(state):
            seen = len(state["log"])
            answers = [interrupt((name, n)) for n in range(self.questions.get(name, 0))]

            assert answers == [(name, n) for n in range(len(answers))]

            if self.failures.get(name, 0) > 0:
                self.failures[name] -= 1
                raise Boom(name)
            self.finished.append(name)
            return {"log": [(name, seen)]}

        return run


def run_through(run, choose):
    """Run, and resume after every failure and stop, until the end; answers all, or one, of what waits."""
    given = {}
    while True:
        try:
            last = run(given)
        except NodeExecutionError:
            given = None
            continue
        if not isinstance(last, InterruptionMetadata):
            return last
        waiting = {stop.id: tuple(stop.payload) for stop in last.interrupts}
        given = GraphResume(waiting if choose() else dict([next(iter(waiting.items()))]))


@settings(max_examples=examples(150))
@given(
    st.data(),
    SEQUENCES,
    st.sampled_from(["memory", "four methods", "file"]),
    st.sampled_from(["sync", "async", "exit"]),
    st.booleans(),
    st.sampled_from([1, 3]),
)
def test_a_disturbed_run_ends_as_an_undisturbed_one(
    tmp_path_factory, data, sequence, kind, durability, is_async, interval
):
    names = (f"n{n}" for n in itertools.count())
    sequence = named(sequence, names)
    log = expected(sequence, 0)
    chosen = st.dictionaries(st.sampled_from([name for name, _ in log]), st.integers(1, 2), max_size=3)
    scene = DiagramModel(data.draw(chosen, "failures"), data.draw(chosen, "questions"))
    graph = StateGraph({"log": Channels.appender_with_duplicate()})
    graph.add_edge(wired(graph, sequence, START, scene.node), END)
    if kind == "memory":
        saver = MemorySaver()
    elif kind == "four methods":
        saver = ListSaver()
    else:
        saver = FileSystemSaver(tmp_path_factory.mktemp("store"), fsync="never")
    compiled = graph.compile(checkpoint_saver=saver, durability=durability, checkpoint_interval=interval)

    def run(given):
        if is_async:
            return asyncio.run(compiled.ainvoke_final(given, CONFIG))
        return compiled.invoke_final(given, CONFIG)

    final = run_through(run, lambda: data.draw(st.booleans(), "answer all"))

    assert [tuple(word) for word in final.state["log"]] == log

    assert saver.get(CONFIG).next_node_id == END
    if durability == "exit":
        return

    once = {name for name, _ in log}
    if interval > 1:
        forks = [part for part in sequence if not isinstance(part, str)]
        branches = [branch for _, branches, _ in forks for branch in branches]
        once = {name for branch in branches for name, _ in expected(branch, 0)}
    for name in once:
        assert scene.finished.count(name) == 1
