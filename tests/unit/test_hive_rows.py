"""Requirements of hive and go-agents-orchestration about stores and runs as a whole, which no other test has."""

from functools import partial

import pytest

from graphkit import END, START, Checkpoint, RunnableConfig, StateGraph
from graphkit.errors import GraphRunnerError
from savers import FileSystemSaver
from tests.support.graphs import CONFIG, make_chain


def counting(steps):
    graph = StateGraph({}).add_node("count", lambda state: {"n": state["n"] + 1}).add_edge(START, "count")
    return graph.add_conditional_edges("count", lambda state: END if state["n"] >= steps else "count", ["count", END])


@pytest.mark.requirement("H22")
def test_the_latest_of_1500_is_the_last_one_written(tmp_path):
    """In hive, file names sorted as text put step 1000 before step 999."""
    saver = FileSystemSaver(tmp_path, fsync="never")
    counting(1500).compile(checkpoint_saver=saver, max_iterations=2000).invoke({"n": 0}, CONFIG)
    again = FileSystemSaver(tmp_path)
    assert again.get(CONFIG).state == {"n": 1500}
    assert [info.metadata["step"] for info in again.history(CONFIG)] == [*range(1500, -1, -1)]


@pytest.mark.requirement("H23")
def test_the_root_is_the_users_and_the_input_is_kept(tmp_path):
    """Where a store is, its user says; what a run was given is its first checkpoint."""
    saver = FileSystemSaver(tmp_path / "of" / "mine")
    goal = RunnableConfig("t", metadata={"goal": "g-1"})
    counting(3).compile(checkpoint_saver=saver).invoke({"n": 0, "question": "why?"}, goal)
    first = FileSystemSaver(tmp_path / "of" / "mine").list(CONFIG)[-1]
    assert first.state == {"n": 0, "question": "why?"}
    assert first.metadata["goal"] == "g-1"
    assert [path.name for path in tmp_path.iterdir()] == ["of"]


# --- one run as a whole -----------------------------------------------------------------------------------------------


chain = partial(make_chain, {})


def test_a_thread_of_another_engine_is_left_alone(tmp_path):
    saver = FileSystemSaver(tmp_path)
    theirs = Checkpoint(node_id="x", next_node_id="a", state={}, metadata={"graphkit:made_by": "langgraph"})
    saver.put(CONFIG, theirs)
    app = chain(a=lambda state: None).compile(checkpoint_saver=saver)

    for call in (lambda: app.invoke({}, CONFIG), lambda: app.resume("t"), lambda: app.update_state(CONFIG, {"x": 1})):
        with pytest.raises(GraphRunnerError, match="belongs to langgraph"):
            call()

    (kept,) = saver.list(CONFIG)

    assert kept.id == theirs.id
