"""Graphs on LangGraph's checkpointer do what they do on LangGraph's InMemorySaver: results, histories, pending tasks.

Each story is watch_story once with each saver, and what is seen of it must be the same, ids and times apart.
"""

import asyncio

import pytest
from langgraph._internal import _serde
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.func import entrypoint, task
from langgraph.types import Command, StateUpdate, interrupt

from savers.langgraph import FileSystemCheckpointSaver
from tests.integrations import langgraph_graphs as graphs
from tests.integrations.langgraph_stores import OTHERS, parametrize

CONFIG = {"configurable": {"thread_id": "t"}}


class Runner:
    """Runs a graph as it is watch_story to, and keeps what is seen of it."""

    def __init__(self, saver, mode, durability):
        self.saver, self.mode, self.durability = saver, mode, durability
        self.seen = []

    def compile(self, graph, **options):
        self.graph = graph.compile(checkpointer=self.saver, **options)
        return self

    def run(self, given, config=CONFIG, graph=None):
        graph = graph or self.graph
        if self.mode == "sync":
            return graph.invoke(given, config, durability=self.durability)
        return asyncio.run(graph.ainvoke(given, config, durability=self.durability))

    def look(self, given, config=CONFIG, graph=None):
        try:
            self.seen.append(plain(self.run(given, config, graph)))
        except ValueError as error:
            self.seen.append(repr(error))
        self.state(graph)

    def history(self, graph=None):
        return list((graph or self.graph).get_state_history(CONFIG))

    def state(self, graph=None):
        graph = graph or self.graph
        self.seen.append([snapshot(checkpoint) for checkpoint in self.history(graph)])
        self.seen.append(snapshot(graph.get_state(CONFIG, subgraphs=True)))


def plain(value):
    """A result without the ids of its interrupts."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else getattr(value, "value", value)


def snapshot(one):
    """What is the same in two histories: all but ids and times."""
    if one is None or isinstance(one, dict):
        return one and sorted(one["configurable"])
    metadata = {key: one.metadata.get(key) for key in ("source", "step")}
    tasks = [describe_task(task) for task in one.tasks]
    return plain(one.values), one.next, metadata, tasks, plain(one.interrupts), one.parent_config is None


def describe_task(task):
    asked = plain(task.interrupts)
    return task.name, task.path, task.error, asked, plain(task.result), snapshot(task.state)


def parallel_with_a_failure(run):
    # One after the other: else it is chance which of them is cancelled.
    slowly = {**CONFIG, "max_concurrency": 1}
    run.compile(graphs.parallel([1, 2])).look({"log": ["in"]}, slowly)
    run.look(None, slowly)
    run.look(None, slowly)


def subgraphs_that_ask(run):
    run.compile(graphs.nested()).look({"log": ["in"], "n": 0})
    run.look(Command(resume="yes"))
    run.look({"log": ["again"]})
    run.look(Command(resume="no"))


def breakpoints(run):
    run.compile(graphs.loop(), interrupt_before=["b"], interrupt_after=["b"]).look({"n": 1})
    for _ in range(4):
        run.look(None)


def fork_in_the_middle(run):
    """Fork at the middle of a history; return the config of the checkpoint there, and that of the fork."""
    history = run.history()
    past = history[len(history) // 2].config
    return past, run.graph.update_state(past, {"log": ["forked"], "n": 2}, as_node="a")


def forks_and_replays(run):
    run.compile(graphs.loop()).look({"n": 0})
    past, fork = fork_in_the_middle(run)
    run.state()
    run.look(None, fork)
    run.look(None, past)
    *_, second, _ = run.history()
    run.look(None, second.config)

    for found in run.history():
        run.seen.append(snapshot(run.graph.get_state(found.config)))


def updates(run):
    run.compile(graphs.loop()).graph.update_state(CONFIG, {"log": ["first"], "n": 1}, as_node="b")
    run.state()
    run.look(None)
    run.graph.bulk_update_state(CONFIG, [[_update("a", 5)], [_update("b", 2)]])
    run.look(None)


def _update(node, n):
    return StateUpdate({"log": [f"bulk {n}"], "n": n}, node)


def conversation(run):
    run.compile(graphs.chat())
    for n in range(5):
        run.look(graphs.said(n))


def functional(run):
    @task
    def double(n):
        return n * 2

    @entrypoint(checkpointer=run.saver)
    def flow(n, *, previous=None):
        doubled = [double(i).result() for i in range(n)]
        answer = interrupt("go on?")
        return entrypoint.final(value=[*doubled, answer, previous], save=len(doubled))

    for given in (3, Command(resume="yes"), 4, Command(resume="no")):
        run.look(given, graph=flow)


def deltas(frequency):
    def story(run):
        run.compile(graphs.delta(frequency)).look({"n": 0, "log": ["in"]})
        run.look({"n": 1})
        past = run.history()
        _, fork = fork_in_the_middle(run)
        run.look(None, fork)
        run.seen.append([snapshot(run.graph.get_state(found.config)) for found in past])

    return story


STORIES = [
    *[parallel_with_a_failure, subgraphs_that_ask, breakpoints, forks_and_replays, updates, conversation, functional],
    *[deltas(1), deltas(3), deltas(1000)],
]
WAYS = [("sync", "sync"), ("sync", "exit"), ("async", "sync"), ("async", "async")]
"""How the graph is run, and its durability."""


def watch_story(story, saver, mode, durability):
    run = Runner(saver, mode, durability)
    story(run)
    return run.seen


@pytest.mark.sweep(4, of=("opener", "way"), in_turn=True)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("story", STORIES)
@parametrize("file", "reopened", *OTHERS)
def test_the_same_is_seen_as_in_memory(opener, story, way):
    memory = InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    ours = opener.new()
    assert watch_story(story, ours, *way) == watch_story(story, memory, *way)
    assert opener.kind in {"MemorySaver", "ListingSaver"} or ours.store.verify().ok


# Types of the application


def test_in_strict_mode_the_types_of_the_schema_come_back_and_no_others(tmp_path, monkeypatch):
    saver = FileSystemCheckpointSaver(tmp_path, on_blocked_type="plain")
    plain_graph = graphs.notes().compile(checkpointer=saver)
    plain_graph.invoke({"note": graphs.Note("old")}, CONFIG)
    assert plain_graph.get_state(CONFIG).values == {"note": {"text": "new"}, "more": [{"text": "one"}]}

    monkeypatch.setattr(_serde, "STRICT_MSGPACK_ENABLED", True)
    graph = graphs.notes().compile(checkpointer=saver)

    assert graph.checkpointer is not saver
    assert graph.checkpointer.store is saver.store

    expected = {"note": graphs.Note("new"), "more": [graphs.Note("one")]}

    assert graph.get_state(CONFIG).values == expected
    assert graph.invoke({"note": graphs.Note("old")}, CONFIG)["note"] == graphs.Note("new")
