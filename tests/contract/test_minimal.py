"""The concrete methods of BaseCheckpointSaver on a saver that has only the four."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypedDict

import pytest

from graphkit import END, START, GraphResume, RunnableConfig, StateGraph, interrupt
from graphkit.errors import CheckpointConflictError, CheckpointerConfigurationError, GraphRunnerError
from graphkit.testing import SaverContract, made
from tests.support.savers import ListingSaver, ListSaver


class TestFourMethods(SaverContract):
    """Strikes out nothing: the contract skips what the saver does not declare."""

    def make_saver(self):
        return ListSaver()


class TestFourMethodsAndLists(SaverContract):
    def make_saver(self):
        return ListingSaver()


def test_qualities_follow_from_what_is_overridden():
    assert (ListSaver().lists_threads, ListSaver().lists_namespaces, ListSaver().measures_size) == (False,) * 3
    assert (ListingSaver().lists_threads, ListingSaver().lists_namespaces, ListingSaver().measures_size) == (
        True,
        True,
        False,
    )


def test_what_the_four_cannot_answer_is_an_error():
    saver = ListSaver()
    saver.put(None, made({"n": 1}))
    for ask in (saver.threads, saver.size, saver.interrupts, lambda: saver.prune(keep_last=1)):
        with pytest.raises(CheckpointerConfigurationError, match="ListSaver cannot"):
            ask()


# Writers at once


class SlowPut(ListSaver):
    """Lets every caller that can get that far read a checkpoint before the first one replaces it."""

    def __init__(self, callers):
        super().__init__()
        self.met = threading.Barrier(callers)

    def put(self, config, checkpoint):
        if RunnableConfig.of(config).checkpoint_id is not None:
            with suppress(threading.BrokenBarrierError):
                self.met.wait(0.2)
        return super().put(config, checkpoint)


def all_at_once(saver, record):
    saver.met = threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(record, range(3)))


def test_callers_in_one_process_lose_no_write_of_each_other():
    saver = SlowPut(3)
    saver.put(None, made({"n": 1}))
    all_at_once(saver, lambda n: saver.put_writes(None, {f"sync {n}": n}))
    all_at_once(saver, lambda n: asyncio.run(saver.aput_writes(None, {f"async {n}": n})))
    assert sorted(saver.get_writes(None)) == [f"{way} {n}" for way in ("async", "sync") for n in range(3)]


def test_callers_in_one_process_lose_no_tag_of_each_other():
    saver = SlowPut(3)
    saver.put(None, made({"n": 1}))
    all_at_once(saver, lambda n: saver.add_tags(None, f"tag {n}"))
    assert sorted(saver.tags_of(None)) == ["tag 0", "tag 1", "tag 2"]
    all_at_once(saver, lambda n: saver.remove_tags(None, f"tag {n}"))
    assert saver.tags_of(None) == ()


def test_two_savers_on_one_store_share_the_lock_by_the_key_of_the_run_lock():
    class OnOneStore(SlowPut):
        def run_lock_key(self, config=None):
            return "store", RunnableConfig.of(config).thread

    first = OnOneStore(2)
    second = OnOneStore(2)
    second.histories = first.histories
    second.lock = first.lock
    second.met = first.met
    first.put(None, made({"n": 1}))
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(first.put_writes, None, {"first": 1}),
            pool.submit(second.put_writes, None, {"second": 1}),
        ]
    for put in running:
        put.result()
    assert sorted(first.get_writes(None)) == ["first", "second"]


def test_of_two_copies_into_one_thread_at_once_the_second_is_refused():
    class Meets(ListSaver):
        met = threading.Barrier(2)

        def list(self, config=None):
            found = super().list(config)
            if not found:  # the target is empty: let the other copy see that, too
                with suppress(threading.BrokenBarrierError):
                    self.met.wait(0.2)
            return found

    saver = Meets()
    for thread in ("a", "b"):
        for _ in range(3):
            saver.put(RunnableConfig(thread), made({"thread": thread}))

    def copy(thread):
        try:
            saver.copy(thread, "target")
        except CheckpointConflictError:
            return None
        return thread

    with ThreadPoolExecutor(2) as pool:
        (copied,) = set(pool.map(copy, ["a", "b"])) - {None}
    assert [checkpoint.state["thread"] for checkpoint in saver.list(RunnableConfig("target"))] == [copied] * 3


def test_recording_does_not_wait_for_a_run_and_may_happen_inside_a_put():
    class Marks(ListSaver):
        def put(self, config, checkpoint):
            stored = super().put(config, checkpoint)
            if "marked" not in self.tags_of(stored):
                self.add_tags(stored, "marked")
            return stored

    saver = Marks()
    saver.put(None, made({"n": 1}))
    with saver.run_lock(None), ThreadPoolExecutor(1) as pool:
        pool.submit(saver.put_writes, None, {"w": 1}).result(60)
    assert (saver.get_writes(None), saver.tags_of(None)) == ({"w": 1}, ("marked",))


# Embedded graphs


class Count(TypedDict):
    n: int


def step(state):
    return {"n": state["n"] + 1}


def asking(state):
    return {"n": interrupt(state["n"])}


def graph_with_embedded_graphs(saver, action=step):
    """root -> "in/ner" -> "deep": three histories, one inside the other."""
    deep = StateGraph(Count).add_node("count", action).add_edge(START, "count").add_edge("count", END).compile()
    inner = StateGraph(Count).add_node("deep", deep).add_edge(START, "deep").add_edge("deep", END).compile()
    graph = StateGraph(Count).add_node("first", step).add_node("in/ner", inner).add_node("last", step)
    graph.add_edge(START, "first").add_edge("first", "in/ner").add_edge("in/ner", "last").add_edge("last", END)
    return graph.compile(checkpoint_saver=saver)


EMBEDDED = ["", "in%2Fner", "in%2Fner/deep"]


def everything(saver, thread="t"):
    spaces = [RunnableConfig(thread, checkpoint_ns=namespace) for namespace in EMBEDDED]
    return {
        at.checkpoint_ns: [(checkpoint.id, checkpoint.state, saver.get_writes(at)) for checkpoint in saver.list(at)]
        for at in spaces
    }


def test_the_namespaces_of_embedded_graphs_are_found():
    saver = ListSaver()
    assert list(saver.namespaces("t")) == []
    graph_with_embedded_graphs(saver).invoke({"n": 0}, RunnableConfig("t"))
    assert list(saver.namespaces("t")) == EMBEDDED
    assert list(saver.namespaces("other")) == []
    saver.copy("t", "u")
    assert everything(saver, "u") == everything(saver)
    found = saver.search({}, thread_id="u")
    assert {info.checkpoint_ns for info in found} == set(EMBEDDED)


def test_what_waits_in_an_embedded_graph_is_found_and_survives_a_prune():
    saver = ListSaver()
    app = graph_with_embedded_graphs(saver, asking)
    app.invoke({"n": 0}, RunnableConfig("t"))
    (waiting,) = saver.interrupts("t")
    assert waiting.checkpoint_ns == "in%2Fner/deep"
    assert waiting.payload == 1
    before = everything(saver)
    assert saver.prune("t", keep_last=1) == 1
    assert everything(saver) == before | {"": before[""][:1]}
    assert app.invoke(GraphResume(10), RunnableConfig("t")) == {"n": 11}


def test_prune_goes_through_every_namespace_that_is_found():
    saver = ListSaver()
    app = graph_with_embedded_graphs(saver)
    for _ in range(3):
        app.invoke({"n": 0}, RunnableConfig("t"))
    before = everything(saver)
    assert saver.prune("t", keep_last=2) == sum(len(history) - 2 for history in before.values())
    assert everything(saver) == {namespace: history[:2] for namespace, history in before.items()}


def test_prune_loses_nothing_that_a_saver_keeps_beside_its_checkpoints():
    class KeepsWrites(ListSaver):
        def __init__(self):
            super().__init__()
            self.writes = {}

        def put_writes(self, config, writes):
            self.writes.setdefault(self.get(config).id, {}).update(writes)

        def get_writes(self, config):
            return self.writes.get(self.get(config).id, {})

        def release(self, config=None):
            self.writes.clear()
            return super().release(config)

    saver = KeepsWrites()
    for n in range(3):
        saver.put(None, made({"n": n}, metadata={"k": n}))
        saver.put_writes(None, {"w": n})
        saver.add_tags(None, "one", "two")
    assert saver.prune("$default", keep_last=2) == 1
    assert [(info.metadata, info.tags) for info in saver.history(None)] == [({"k": n}, ("one", "two")) for n in (2, 1)]
    assert [saver.get_writes(RunnableConfig(checkpoint_id=checkpoint.id)) for checkpoint in saver.list(None)] == [
        {"w": 2},
        {"w": 1},
    ]


def test_prune_is_refused_where_a_fork_may_hide_histories():
    def failing(state):
        raise ValueError

    saver = ListSaver()
    inner = StateGraph(Count).add_node("a", step).add_node("b", failing)
    inner.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    graph = StateGraph(Count).add_node("source", step).add_node("inner", inner.compile()).add_node("other", dict)
    graph.add_edge(START, "source").add_edge("source", "inner").add_edge("source", "other")
    graph.add_edge("inner", END).add_edge("other", END)
    with pytest.raises(GraphRunnerError):
        graph.compile(checkpoint_saver=saver).invoke({"n": 0}, RunnableConfig("t"))
    before = dict(saver.histories)
    assert ("t", "inner") in before
    with pytest.raises(CheckpointerConfigurationError, match=r"ListSaver cannot prune .* override"):
        saver.prune("t", keep_last=1)
    assert saver.histories == before


def test_prune_waits_for_a_run():
    saver = ListSaver()
    for n in range(3):
        saver.put(RunnableConfig("t"), made({"n": n}))
    with ThreadPoolExecutor(1) as pool:
        with saver.run_lock(RunnableConfig("t")):
            waiter = pool.submit(saver.prune, "t", keep_last=1)
            with pytest.raises(TimeoutError):
                waiter.result(0.1)
            saver.put(RunnableConfig("t"), made({"n": 3}))
        assert waiter.result(60) == 3
    assert [checkpoint.state["n"] for checkpoint in saver.list(RunnableConfig("t"))] == [3]
