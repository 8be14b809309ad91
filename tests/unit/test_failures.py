"""What a failed run tells: the traceback and the note of its exception, and the failure in the store."""

import asyncio
import traceback
from concurrent.futures import ProcessPoolExecutor

import pytest

from graphkit import END, START, MaxIterationsError, NodeExecutionError, RunnableConfig, StateGraph
from savers import FileSystemSaver, MemorySaver

CONFIG = RunnableConfig("order-1")


def ask_warehouse():
    raise ConnectionError("the warehouse does not answer")


def check(state):
    return {"stock": ask_warehouse()}


def graph_of(node):
    return StateGraph({}).add_node("check", node).set_entry_point("check").set_finish_point("check")


def notes_of(error):
    return " ".join(error.__notes__)


def fail(app, config=CONFIG):
    with pytest.raises(NodeExecutionError) as caught:
        app.invoke({}, config)
    return caught.value


def last_line(error):
    return traceback.extract_tb(error.__traceback__)[-1].line


def test_the_traceback_ends_in_the_line_that_raised():
    error = fail(graph_of(check).compile())

    assert last_line(error) == 'raise ConnectionError("the warehouse does not answer")'
    assert isinstance(error.__cause__, ConnectionError)


def test_so_it_does_in_async_runs_branches_and_maps():
    async def acheck(state):
        ask_warehouse()

    with pytest.raises(NodeExecutionError) as caught:
        asyncio.run(graph_of(acheck).compile().ainvoke({}))
    assert last_line(caught.value).startswith("raise ConnectionError")

    fork = StateGraph({}).add_node("a", check).add_node("b", lambda state: {})
    fork.add_edge(START, "a").add_edge(START, "b").add_edge("a", END).add_edge("b", END)
    assert last_line(fail(fork.compile())).startswith("raise ConnectionError")

    items = StateGraph({}).add_map_node("map", check, lambda state: [1]).set_entry_point("map").set_finish_point("map")
    assert last_line(fail(items.compile())).startswith("raise ConnectionError")


def test_the_note_names_thread_node_step_and_the_way_on():
    app = StateGraph({}).add_sequence([("first", lambda state: {}), check])
    app = app.set_entry_point("first").set_finish_point("check").compile(checkpointer=MemorySaver())

    note = notes_of(fail(app))

    for part in ("'order-1'", "'check'", "step 2", "resume('order-1')"):
        assert part in note


def test_the_node_of_a_nested_graph_is_named_by_its_whole_way_and_once():
    middle = StateGraph({}).add_node("middle", graph_of(check).compile())
    middle.set_entry_point("middle").set_finish_point("middle")
    outer = StateGraph({}).add_node("outer", middle.compile()).set_entry_point("outer").set_finish_point("outer")

    error = fail(outer.compile(checkpointer=MemorySaver()))

    assert len(error.__notes__) == 1
    assert "'outer/middle/check'" in notes_of(error)


def test_without_a_saver_there_is_no_thread_to_resume():
    note = notes_of(fail(graph_of(check).compile()))

    assert "'check'" in note
    assert "resume" not in note


def test_other_errors_of_a_run_have_the_note_too():
    loop = StateGraph({}).add_node("loop", lambda state: {}).add_edge(START, "loop")
    loop.add_conditional_edges("loop", lambda state: "loop", ["loop", END])
    with pytest.raises(MaxIterationsError) as caught:
        loop.compile(checkpointer=MemorySaver(), max_iterations=3).invoke({}, CONFIG)

    assert "resume('order-1')" in notes_of(caught.value)


def test_the_store_keeps_the_cause_and_its_traceback():
    saver = MemorySaver()
    fail(graph_of(check).compile(checkpointer=saver))

    failure = saver.summary(CONFIG).failure

    assert failure["cause"] == {"type": "ConnectionError", "message": "the warehouse does not answer"}
    lines = failure["traceback"].splitlines()
    assert "in check" in lines[0]
    assert lines[-1].strip().startswith(("raise ConnectionError", "^"))


def test_the_traceback_of_another_process_is_kept(tmp_path):
    saver = FileSystemSaver(tmp_path)
    graph = StateGraph({})
    with ProcessPoolExecutor(1) as executor:
        graph.add_node("check", check, executor=executor).set_entry_point("check").set_finish_point("check")
        fail(graph.compile(checkpointer=saver))

    assert "in ask_warehouse" in saver.summary(CONFIG).failure["traceback"]
    saver.close()


def test_a_long_traceback_keeps_its_end():
    def descend(depth):
        if depth == 0:
            ask_warehouse()
        # Long lines, and different ones, so that Python prints each of them.
        return descend(depth - 1) if depth % 2 else descend(depth - 1) + len("x" * 100 + "y" * 100 + "z" * 100)

    saver = MemorySaver()
    fail(graph_of(lambda state: descend(100)).compile(checkpointer=saver))

    recorded = saver.summary(CONFIG).failure["traceback"]
    assert len(recorded) <= 8000
    assert "in ask_warehouse" in recorded
