"""Strands side by side: what the round asks its driver for, and, on random graphs, what comes of it."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings, strategies as st

from graphkit import END, START, Channels, Checkpoint, GraphResume, InterruptionMetadata, StateGraph, interrupt
from graphkit._engine.concurrent import run_concurrently
from graphkit._engine.requests import Emit, Load, Record, Save, Start, Stop, Task, Wait, Withdraw
from graphkit.errors import NodeExecutionError
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import CONFIG, Boom
from tests.support.savers import ListSaver
from tests.support.sweeps import examples


class Work(Task):
    """A task by name."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name


class Desk:
    """Answers a round: tasks end in the order, and with the outcome, that a test says; notes what it was asked."""

    def __init__(self, *ends, **outcomes):
        self.ends = list(ends)
        self.outcomes = outcomes
        self.tickets = {}
        self.asked = []
        self.emits = []

    def run(self, strands):
        steps = run_concurrently(strands)
        answer = error = None
        try:
            while True:
                request = steps.send(answer) if error is None else steps.throw(error)
                answer, error = self.answer(request)
        except StopIteration:
            return self.asked

    def answer(self, request):
        if isinstance(request, Start):
            self.tickets[len(self.tickets)] = request.task.name
            self.asked.append(f"start {request.task.name}")
            return len(self.tickets) - 1, None
        if isinstance(request, Wait):
            return self.wait(request)
        if isinstance(request, Withdraw):
            self.asked.append("withdraw " + " ".join(self.tickets[each] for each in sorted(request.tickets)))
            return None, None
        if isinstance(request, Emit):
            outcome = self.outcomes.get(request.output)
            self.asked.append(f"emit {request.output}")
            return None, outcome
        self.asked.append(
            f"record {' '.join(request.writes)}" if isinstance(request, Record) else type(request).__name__
        )
        return None, None

    def wait(self, request):
        end = self.ends.pop(0)
        if isinstance(end, BaseException):
            return None, end
        names = end.split()
        waited = {self.tickets[each]: each for each in request.tickets}
        outcomes = [self.outcomes.get(name, name) for name in names]
        return [
            (waited[name], None, one) if isinstance(one, BaseException) else (waited[name], one, None)
            for name, one in zip(names, outcomes, strict=True)
        ], None


def record(name):
    return Record("saver", CONFIG, {name: 1})


def strand(*names, then=()):
    for name in names:
        yield Work(name)
        yield record(name)
    yield from then


def test_what_ends_at_once_is_recorded_together():
    names = [f"n{n}" for n in range(100)]
    asked = Desk(" ".join(names)).run([strand(name) for name in names])
    assert asked[100:] == ["record " + " ".join(names)]


def test_records_of_different_places_are_kept_apart():
    def other():
        yield Work("b")
        yield Record("another saver", CONFIG, {"b": 1})

    assert Desk("a b").run([strand("a"), other()])[2:] == ["record a", "record b"]


def test_a_strand_is_not_left_in_the_middle_of_storing():
    stored = []

    def saves(name):
        yield Work(name)
        if not stored:
            yield Load("saver", CONFIG)
            yield Save("saver", CONFIG, Checkpoint(node_id="n", next_node_id=None, state={}))
            stored.append(name)
        yield record(name)

    asked = Desk("a b").run([saves("a"), saves("b")])
    assert asked[2:] == ["Load", "Save", "record a b"]


def test_the_first_failure_in_order_is_raised_and_no_stop():
    first, second = Boom("a"), Boom("b")
    for ends in itertools.permutations("abc"):
        with pytest.raises(Boom) as failed:
            Desk(*ends, a=Stop(), b=first, c=second).run([strand("a"), strand("b"), strand("c")])
        assert failed.value is first


def test_a_failure_inside_is_not_hidden_by_the_stop_of_its_neighbour():
    def outer():
        yield from run_concurrently([strand("x"), strand("y", "y2")])

    inside, outside = Boom("x"), Boom("a")
    desk = Desk("a", "x y", a=outside, x=inside)
    with pytest.raises(Boom) as failed:
        desk.run([outer(), strand("a")])
    assert failed.value is inside  # the first in order


def test_interrupted_while_it_waits():
    desk = Desk("a", KeyboardInterrupt(), "b", "c a2")
    with pytest.raises(KeyboardInterrupt):
        desk.run([strand("a", "a2"), strand("b", "b2"), strand("c", "c2")])
    assert desk.asked[3:] == ["record a", "start a2", "withdraw b c a2", "record b", "withdraw c a2", "record c a2"]


def test_interrupted_again_it_waits_no_longer():
    desk = Desk(KeyboardInterrupt("once"), KeyboardInterrupt("twice"))
    with pytest.raises(KeyboardInterrupt, match="twice"):
        desk.run([strand("a"), strand("b")])
    assert desk.asked == ["start a", "start b", "withdraw a b"]


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
    saver = {"memory": MemorySaver, "four methods": ListSaver}.get(
        kind, lambda: FileSystemSaver(tmp_path_factory.mktemp("store"), fsync="never")
    )()
    compiled = graph.compile(checkpoint_saver=saver, durability=durability, checkpoint_interval=interval)

    def run(given):
        if is_async:
            return asyncio.run(compiled.ainvoke_final(given, CONFIG))
        return compiled.invoke_final(given, CONFIG)

    final = run_through(run, lambda: data.draw(st.booleans(), "answer all"))
    assert [tuple(word) for word in final.state["log"]] == log
    within = {
        name for part in sequence if not isinstance(part, str) for branch in part[1] for name, _ in expected(branch, 0)
    }
    counts = {name: scene.finished.count(name) for name, _ in log}
    if interval == 1 and durability != "exit":
        assert set(counts.values()) == {1}
    assert all(counts[name] == 1 for name in within) or durability == "exit"
    assert saver.get(CONFIG).next_node_id == END
