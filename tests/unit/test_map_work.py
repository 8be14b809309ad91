"""Maps for real work: progress as items finish, failures that are collected, answers one by one."""

import asyncio
import operator
from typing import Annotated, TypedDict

import pytest

from graphkit import (
    GraphResume,
    GraphStateError,
    MapFailure,
    MapProgress,
    NodeExecutionError,
    RetryPolicy,
    StateGraph,
    interrupt,
)
from savers import FileSystemSaver, MemorySaver, SqliteSaver


class Batch(TypedDict):
    documents: list[str]
    read: Annotated[list[str], operator.add]
    failed: list[MapFailure]


DOCUMENTS = ["a", "b", "c", "d"]


def graph_of(action, **options):
    graph = StateGraph(Batch).add_map_node("read", action, "documents", **options)
    return graph.set_entry_point("read").set_finish_point("read")


def collecting(action, **options):
    return graph_of(action, on_error="collect", failures="failed", **options)


def read(document):
    if document in ("b", "d"):
        raise OSError(f"no {document}")
    return {"read": [document]}


def test_each_finished_item_is_reported_to_the_stream():
    app = graph_of(lambda document: {"read": [document]}, label=lambda document: f"document {document}").compile()

    items = list(app.stream({"documents": DOCUMENTS}, stream_mode="custom"))

    assert all(isinstance(item, MapProgress) for item in items)
    assert sorted(item.index for item in items) == [0, 1, 2, 3]
    assert [item.done for item in items] == [1, 2, 3, 4]
    assert {(item.node_id, item.total) for item in items} == {("read", 4)}
    assert {item.index: item.label for item in items}[2] == "document c"


def test_progress_arrives_while_other_items_run():
    async def main():
        seen = asyncio.Event()

        async def wait_for_the_first(document):
            if document != "a":
                await asyncio.wait_for(seen.wait(), 20)

        async for item in (
            graph_of(wait_for_the_first).compile().astream({"documents": DOCUMENTS}, stream_mode="custom")
        ):
            if item.index == 0:
                seen.set()
        assert seen.is_set()

    asyncio.run(main())


def test_observers_get_index_total_and_label():
    events = []
    app = graph_of(read, label=str.upper).compile(observers=events.append)
    app.invoke({"documents": ["a"]})

    (event,) = [event for event in events if event.type == "parallel.branch"]
    assert (event.data["index"], event.data["total"], event.data["label"]) == (0, 1, "A")


@pytest.mark.parametrize("make", [lambda path: MemorySaver(), FileSystemSaver, lambda path: SqliteSaver(path / "db")])
def test_failures_are_handed_over_and_the_others_finish(tmp_path, make):
    saver = make(tmp_path)
    state = collecting(read).compile(checkpointer=saver).invoke({"documents": DOCUMENTS}, "t")

    assert state["read"] == ["a", "c"]
    assert state["failed"] == [MapFailure(1, "b", "OSError: no b"), MapFailure(3, "d", "OSError: no d")]
    assert saver.get("t").state["failed"] == state["failed"]


def test_a_store_that_was_opened_again_knows_the_failures(tmp_path):
    with FileSystemSaver(tmp_path) as saver:
        collecting(read).compile(checkpointer=saver).invoke({"documents": ["b"]}, "t")
    with FileSystemSaver(tmp_path) as saver:
        assert saver.get("t").state["failed"] == [MapFailure(0, "b", "OSError: no b")]


def test_without_failures_the_list_is_empty():
    assert collecting(read).compile().invoke({"documents": ["a"]})["failed"] == []


def test_retries_come_before_a_failure_is_collected():
    attempts = []

    def flaky(document):
        attempts.append(document)
        raise OSError("busy")

    policy = RetryPolicy(max_attempts=3, initial_delay=0)
    state = collecting(flaky, retry=policy).compile().invoke({"documents": ["a"]})

    assert (len(attempts), len(state["failed"])) == (3, 1)


def test_a_collected_failure_does_not_run_again_after_a_stop():
    ran = []

    def action(document):
        ran.append(document)
        if document == "a":
            interrupt("go on?")
        return read(document)

    app = collecting(action).compile(checkpointer=MemorySaver())
    app.invoke({"documents": DOCUMENTS}, "t")
    state = app.invoke(GraphResume(True), "t")

    assert sorted(ran) == ["a", "a", "b", "c", "d"]
    assert [failure.index for failure in state["failed"]] == [1, 3]


def test_by_default_a_failure_ends_the_run():
    with pytest.raises(NodeExecutionError, match="no b"):
        graph_of(read).compile().invoke({"documents": DOCUMENTS})


@pytest.mark.parametrize(
    "options",
    [{"on_error": "collect"}, {"failures": "failed"}, {"on_error": "ignore"}, {"on_error": "collect", "failures": ""}],
)
def test_options_that_do_not_fit_together_are_refused(options):
    with pytest.raises(GraphStateError, match="read"):
        graph_of(read, **options)


def test_a_failing_label_fails_the_node():
    with pytest.raises(NodeExecutionError, match="label"):
        graph_of(lambda document: {}, label=lambda document: 1 / 0).compile().invoke({"documents": ["a"]})


def test_an_item_that_waits_does_not_run_again_while_others_are_answered():
    ran = []

    def action(document):
        ran.append(document)
        return {"read": [f"{document}: {interrupt(document)}"]}

    app = graph_of(action).compile(checkpointer=MemorySaver())
    waiting = app.invoke({"documents": ["a", "b", "c"]}, "t").interrupts
    ids = {interrupt.payload: interrupt.id for interrupt in waiting}
    assert sorted(ran) == ["a", "b", "c"]

    state = app.invoke(GraphResume({ids["a"]: "yes", ids["c"]: "no"}), "t")
    assert sorted(ran[3:]) == ["a", "c"]
    assert [interrupt.payload for interrupt in state.interrupts] == ["b"]

    state = app.invoke(GraphResume("maybe"), "t")
    assert ran[5:] == ["b"]
    assert state["read"] == ["a: yes", "b: maybe", "c: no"]


def test_a_resume_without_an_answer_asks_again():
    ran = []

    def action(document):
        ran.append(document)
        interrupt(document)

    app = graph_of(action).compile(checkpointer=MemorySaver())
    app.invoke({"documents": ["a", "b"]}, "t")
    app.invoke(None, "t")

    assert sorted(ran) == ["a", "a", "b", "b"]
