"""Graphs on FileSystemCheckpointSaver do what they do on LangGraph's InMemorySaver: results, histories, pending tasks.

Each story is watch_story once with each saver, and what is seen of it must be the same, ids and times apart.
"""

import asyncio
import copy
import dataclasses
import operator
from datetime import UTC, datetime
from typing import Annotated, TypedDict
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph._internal import _serde
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, StateUpdate, interrupt

from graphkit import CheckpointSerializationError
from savers.langgraph import FileSystemCheckpointSaver
from tests.integrations import langgraph_graphs as graphs

CONFIG = {"configurable": {"thread_id": "t"}}


class Reopened(FileSystemCheckpointSaver):
    """A saver that is opened anew for everything that it is asked."""


def _reopening(name):
    def method(self, *args, **kwargs):
        fresh = FileSystemCheckpointSaver(self.store.base_directory, serde=self.serde, fsync="never")
        return getattr(fresh, name)(*args, **kwargs)

    return method


for _name in ("put", "put_writes", "get_tuple", "list", "get_delta_channel_history"):
    setattr(Reopened, _name, _reopening(_name))


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
        self.seen.append([snapshot(one) for one in self.history(graph)])
        self.seen.append(snapshot(graph.get_state(CONFIG, subgraphs=True)))


def plain(value):
    """A result without the ids of its interrupts."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else getattr(value, "value", value)


def snapshot(one):
    """What is the same in two histories: all but ids and times."""
    if one is None or isinstance(one, dict):
        return one and sorted(one["configurable"])
    metadata = {key: one.metadata.get(key) for key in ("source", "step")}
    tasks = [
        (task.name, task.path, task.error, plain(task.interrupts), plain(task.result), snapshot(task.state))
        for task in one.tasks
    ]
    return plain(one.values), one.next, metadata, tasks, plain(one.interrupts), one.parent_config is None


def loop(run):
    run.compile(graphs.loop()).look({"n": 0})
    run.look({"n": 1})
    run.look(None)


def parallel_with_a_failure(run):
    # One after the other: else it is chance which of them is cancelled.
    slowly = {**CONFIG, "max_concurrency": 1}
    run.compile(graphs.parallel([1, 2])).look({"log": ["in"]}, slowly)
    run.look(None, slowly)
    run.look(None, slowly)


def mapped(run):
    run.compile(graphs.mapped()).look({"log": []})


def subgraphs_that_ask(run):
    run.compile(graphs.nested()).look({"log": ["in"], "n": 0})
    run.look(Command(resume="yes"))
    run.look({"log": ["again"]})
    run.look(Command(resume="no"))


def three_questions(run):
    run.compile(graphs.three_questions()).look({"answers": []})
    for answer in "abc":
        run.look(Command(resume=answer))


def breakpoints(run):
    run.compile(graphs.loop(), interrupt_before=["b"], interrupt_after=["b"]).look({"n": 1})
    for _ in range(4):
        run.look(None)


def forks_and_replays(run):
    run.compile(graphs.loop()).look({"n": 0})
    history = run.history()
    past = history[len(history) // 2].config
    fork = run.graph.update_state(past, {"log": ["forked"], "n": 2}, as_node="a")
    run.state()
    run.look(None, fork)
    run.look(None, past)
    run.look(None, run.history()[-2].config)
    for one in run.history():
        run.seen.append(snapshot(run.graph.get_state(one.config)))


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


def messages_and_dates(run):
    def many(_):
        return {
            "log": [
                AIMessage("x", id="1"),
                datetime(2026, 1, 1, tzinfo=UTC),
                UUID(int=7),
                b"\x00\xff",
                {"a": (1, None)},
                {1, 2},
                1.5,
            ]
        }

    graph = StateGraph(graphs.Log)
    graph.add_node("many", many)
    graph.add_edge(START, "many")
    run.compile(graph).look({"log": [HumanMessage("y", id="2"), "\u00e4\U0001f600"]})
    run.look({"log": ["more"]})


STORIES = [
    loop, parallel_with_a_failure, mapped, subgraphs_that_ask, three_questions, breakpoints, forks_and_replays, updates,
    conversation, functional, messages_and_dates,
]  # fmt: skip


def watch_story(story, saver, mode, durability):
    run = Runner(saver, mode, durability)
    story(run)
    return run.seen


@pytest.mark.sweep(2, of="durability", in_turn=True)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("story", STORIES)
def test_the_same_is_seen_as_in_memory(story, mode, durability, tmp_path):
    expected = watch_story(
        story, InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None)), mode, durability
    )
    ours = FileSystemCheckpointSaver(tmp_path, fsync="never")
    assert watch_story(story, ours, mode, durability) == expected
    assert ours.store.verify().ok


@pytest.mark.sweep(1, of="durability", in_turn=True)
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("story", STORIES)
def test_the_same_is_seen_if_the_store_is_opened_again_for_each_call(story, durability, tmp_path):
    expected = watch_story(story, InMemorySaver(), "sync", durability)
    assert watch_story(story, Reopened(tmp_path, fsync="never"), "sync", durability) == expected


def test_the_comparison_can_fail(tmp_path):
    class Newest(FileSystemCheckpointSaver):
        def get_tuple(self, config):
            return super().get_tuple(CONFIG)

    expected = watch_story(forks_and_replays, InMemorySaver(), "sync", "sync")
    assert watch_story(forks_and_replays, Newest(tmp_path, fsync="never"), "sync", "sync") != expected


# Types that are not LangGraph's own


@dataclasses.dataclass
class Note:
    text: str


class Notes(TypedDict):
    note: Note
    more: Annotated[list[Note], operator.add]


def notes():
    graph = StateGraph(Notes)
    graph.add_node("write", lambda state: {"note": Note("new"), "more": [Note("one")]})
    graph.add_edge(START, "write")
    return graph


def test_in_strict_mode_the_types_of_the_schema_come_back_and_no_others(tmp_path, monkeypatch):
    saver = FileSystemCheckpointSaver(tmp_path, on_blocked_type="plain")
    plain_graph = notes().compile(checkpointer=saver)
    plain_graph.invoke({"note": Note("old")}, CONFIG)
    assert plain_graph.get_state(CONFIG).values == {"note": {"text": "new"}, "more": [{"text": "one"}]}
    monkeypatch.setattr(_serde, "STRICT_MSGPACK_ENABLED", True)
    graph = notes().compile(checkpointer=saver)
    assert graph.checkpointer is not saver
    assert graph.checkpointer.store is saver.store
    assert graph.get_state(CONFIG).values == {"note": Note("new"), "more": [Note("one")]}
    assert graph.invoke({"note": Note("old")}, CONFIG) == {"note": Note("new"), "more": [Note("one")] * 2}


def test_an_allowlist_and_a_copy_share_the_store(tmp_path):
    saver = FileSystemCheckpointSaver(tmp_path)
    notes().compile(checkpointer=saver).invoke({"note": Note("old")}, CONFIG)
    allowing = saver.with_allowlist([(Note.__module__, "Note")])
    assert notes().compile(checkpointer=allowing).get_state(CONFIG).values["note"] == Note("new")
    assert copy.copy(allowing).get_tuple(CONFIG) == allowing.get_tuple(CONFIG)


def test_a_value_that_cannot_be_stored_is_named_and_nothing_is_changed(tmp_path):
    graph = StateGraph(graphs.Log)
    graph.add_node("bad", lambda _: {"log": [lambda: None]})
    graph.add_edge(START, "bad")
    app = graph.compile(checkpointer=FileSystemCheckpointSaver(tmp_path))
    with pytest.raises(CheckpointSerializationError) as caught:
        app.invoke({"n": 1}, CONFIG, durability="sync")
    assert caught.value.path == "log[0]"
    assert app.get_state(CONFIG).next == ("bad",)
    assert app.checkpointer.store.verify().ok


# Delta channels


def deltas(frequency):
    def story(run):
        run.compile(graphs.delta(frequency)).look({"n": 0, "log": ["in"]})
        run.look({"n": 1})
        past = run.history()
        fork = run.graph.update_state(past[len(past) // 2].config, {"log": ["forked"], "n": 2}, as_node="a")
        run.look(None, fork)
        run.seen.append([snapshot(run.graph.get_state(one.config)) for one in past])

    return story


@pytest.mark.sweep(1, of="durability", in_turn=True)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("frequency", [1, 3, 1000])
def test_delta_channels_are_read_as_from_memory(frequency, durability, tmp_path):
    story = deltas(frequency)
    expected = watch_story(story, InMemorySaver(), "sync", durability)
    assert watch_story(story, FileSystemCheckpointSaver(tmp_path, fsync="never"), "sync", durability) == expected
    assert (
        watch_story(story, FileSystemCheckpointSaver(tmp_path / "async", fsync="never"), "async", durability)
        == expected
    )
    assert watch_story(story, Reopened(tmp_path / "anew", fsync="never"), "sync", durability) == expected


@pytest.mark.parametrize("frequency", [1, 3, 1000])
def test_what_is_left_of_a_thread_with_delta_channels_can_still_be_read(frequency, tmp_path):
    saver = FileSystemCheckpointSaver(tmp_path, fsync="never")
    app = graphs.delta(frequency, turns=6).compile(checkpointer=saver)
    values = app.invoke({"n": 0, "log": ["in"]}, CONFIG, durability="sync")
    saver.copy_thread("t", "copy")
    before = len(list(saver.list(CONFIG)))
    saver.prune(["t"])
    for thread in ("t", "copy"):
        assert app.get_state({"configurable": {"thread_id": thread}}).values == values
    left = len(list(saver.list(CONFIG)))
    assert left == {1: 1, 3: 2, 1000: before}[frequency]
    assert app.invoke({"n": 6}, CONFIG)["log"] == [*values["log"], "a6", "b7"]
