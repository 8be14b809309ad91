"""The concrete methods of BaseCheckpointSaver on a saver that has only the four."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypedDict

import pytest

from graphkit import GraphResume, HasVersions, RunnableConfig, Tag, interrupt
from graphkit.errors import CheckpointConflictError, CheckpointerConfigurationError, GraphRunnerError
from graphkit.testing import SaverContract, made
from graphkit.transfer import copy_threads
from savers import MemorySaver
from tests.support.graphs import make_chain, make_graph
from tests.support.savers import ListingSaver, ListSaver, open_kind


class TestFourMethods(SaverContract):
    """Strikes out nothing: the contract skips what the saver does not declare."""

    def make_saver(self):
        return ListSaver()


class TestFourMethodsAndLists(SaverContract):
    def make_saver(self):
        return ListingSaver()


def test_what_the_four_cannot_answer_is_an_error():
    saver = ListSaver()
    saver.put(None, made({"n": 1}))
    for ask in (saver.threads, saver.size, saver.interrupts, lambda: saver.prune(keep_last=1)):
        with pytest.raises(CheckpointerConfigurationError, match="ListSaver cannot"):
            ask()


class OneHistorySaver(ListSaver, HasVersions):
    """Ignores namespaces: one history for each thread, also as its only version."""

    def key(self, config):
        return RunnableConfig.of(config).thread, ""

    def tag(self, config, version=None):
        return Tag(self.key(config)[0], self.list(config), version)

    def versions_by_thread_id(self, thread=None):
        return [1] if self.list(thread) else []


def test_a_saver_without_namespaces_has_the_root_only():
    saver = OneHistorySaver()
    saver.put("t", made(node_id="a", next_node_id="b"))
    assert saver.namespaces("t") == [""]
    assert saver.version_namespaces("t", 1) == [""]
    assert saver.interrupts("t") == []

    saver.copy("t", "u")
    assert [checkpoint.id for checkpoint in saver.list("u")] == [checkpoint.id for checkpoint in saver.list("t")]
    assert saver.delete("u")


def test_namespaces_with_checkpoints_of_the_same_id_are_found():
    saver = ListSaver()
    for namespace in ("", "a", "a/b"):
        config = RunnableConfig("t", checkpoint_ns=namespace)
        saver.put(config, made(id="1", node_id="a" if not namespace else "b"))
    assert saver.namespaces("t") == ["", "a", "a/b"]


@pytest.mark.parametrize("kind", ["four-methods", "memory", "file", "sqlite"])
def test_the_newest_of_several_checkpoints_with_one_id_is_replaced(kind, tmp_path):
    """The contract leaves it open; `put_writes` of the base class would overwrite another checkpoint."""
    with open_kind(kind, tmp_path) as saver:
        for number in range(3):
            saver.put(None, made({"n": number}, id="1"))
        saver.put(RunnableConfig(checkpoint_id="1"), made({"n": 3}, id="1"))
        assert [checkpoint.state["n"] for checkpoint in saver.list()] == [3, 1, 0]


# Writers at once


class SlowPut(ListSaver):
    """Lets every caller that can get that far read a checkpoint before the first one replaces it."""

    met = None

    def put(self, config, checkpoint):
        if RunnableConfig.of(config).checkpoint_id is not None:
            with suppress(threading.BrokenBarrierError):
                self.met.wait(0.2)
        return super().put(config, checkpoint)


def all_at_once(record, *savers):
    """Call a function with each saver and a number, all at the same time."""
    barrier = threading.Barrier(len(savers))
    for saver in savers:
        saver.met = barrier
    with ThreadPoolExecutor(len(savers)) as pool:
        list(pool.map(record, savers, range(3)))


def test_callers_in_one_process_lose_no_write_and_no_tag_of_each_other():
    saver = SlowPut()
    saver.put(None, made({"n": 1}))
    all_at_once(lambda saver, n: saver.put_writes(None, {f"sync {n}": n}), saver, saver, saver)
    all_at_once(lambda saver, n: asyncio.run(saver.aput_writes(None, {f"async {n}": n})), saver, saver, saver)
    assert sorted(saver.get_writes(None)) == [f"{way} {n}" for way in ("async", "sync") for n in range(3)]
    all_at_once(lambda saver, n: saver.add_tags(None, f"tag {n}"), saver, saver, saver)
    assert sorted(saver.tags_of(None)) == ["tag 0", "tag 1", "tag 2"]
    all_at_once(lambda saver, n: saver.remove_tags(None, f"tag {n}"), saver, saver, saver)
    assert saver.tags_of(None) == ()


def test_two_savers_on_one_store_share_the_lock_by_the_key_of_the_run_lock():
    class OnOneStore(SlowPut):
        def run_lock_key(self, config=None):
            return "store", RunnableConfig.of(config).thread

    first = OnOneStore()
    second = OnOneStore()
    second.histories = first.histories
    second.lock = first.lock
    first.put(None, made({"n": 1}))
    all_at_once(lambda saver, n: saver.put_writes(None, {f"{n}": n}), first, second)
    assert sorted(first.get_writes(None)) == ["0", "1"]


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

EMBEDDED = ["", "in%2Fner", "in%2Fner/deep"]


class Count(TypedDict):
    n: int


def step(state):
    return {"n": state["n"] + 1}


def graph_with_embedded_graphs(saver, action=step):
    """root -> "in/ner" -> "deep": three histories, one inside the other."""
    deep = make_chain(Count, count=action).compile()
    inner = make_chain(Count, deep=deep).compile()
    return make_chain(Count, **{"first": step, "in/ner": inner, "last": step}).compile(checkpoint_saver=saver)


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
    app = graph_with_embedded_graphs(saver, lambda state: {"n": interrupt(state["n"])})
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
    for n, info in zip((2, 1), saver.history(None), strict=True):
        assert (info.metadata, info.tags) == ({"k": n}, ("one", "two"))
        assert saver.get_writes(RunnableConfig(checkpoint_id=info.id)) == {"w": n}


def test_prune_and_copy_are_refused_where_a_fork_may_hide_histories():
    def failing(state):
        raise ValueError

    saver = ListSaver()
    inner = make_chain(Count, a=step, b=failing).compile()
    edges = "START>source source>inner,other inner>END other>END"
    graph = make_graph(Count, edges, source=step, inner=inner, other=dict)
    with pytest.raises(GraphRunnerError):
        graph.compile(checkpoint_saver=saver).invoke({"n": 0}, RunnableConfig("t"))
    before = dict(saver.histories)
    assert ("t", "inner") in before
    with pytest.raises(CheckpointerConfigurationError, match=r"ListSaver cannot prune .* override"):
        saver.prune("t", keep_last=1)
    with pytest.raises(CheckpointerConfigurationError, match=r"ListSaver cannot copy .* override"):
        saver.copy("t", "u")
    with pytest.raises(CheckpointerConfigurationError, match="ListSaver cannot read all of"):
        copy_threads(saver, MemorySaver(), ["t"])
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
