"""Requirements of hive and go-agents-orchestration about stores and runs as a whole, which no other test has."""

from functools import partial

import pytest

from graphkit import (
    END,
    START,
    BaseCheckpointSaver,
    Channels,
    Checkpoint,
    GraphResume,
    RunnableConfig,
    StateGraph,
    Tag,
    interrupt,
)
from graphkit.codec import Codec
from graphkit.errors import GraphRunnerError, NodeExecutionError
from graphkit.saver_kit import copy_thread
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


@pytest.mark.requirement("H52")
def test_excluded_keys_are_in_no_byte_of_the_store(tmp_path):
    """`api_key`, `credentials`, `access_token`: nodes have them, the disk does not."""
    secrets = ("api_key", "credentials", "access_token")
    seen = []
    graph = make_chain(
        {key: Channels.transient() for key in secrets},
        use=lambda state: seen.append([state[key] for key in secrets]),
        ask=lambda state: {"answer": interrupt("?")},
    )
    saver = FileSystemSaver(tmp_path)
    last = graph.compile(checkpoint_saver=saver).invoke_final(
        {"api_key": "PRIVATE-1", "credentials": {"user": "PRIVATE-2"}, "access_token": b"PRIVATE-3", "n": 1}, CONFIG
    )
    assert seen == [["PRIVATE-1", {"user": "PRIVATE-2"}, b"PRIVATE-3"]]
    assert dict(last.state) == {"n": 1}
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [content for content in files if b"PRIVATE" in content]


@pytest.mark.requirement("H54")
def test_a_checkpoint_takes_what_changed(tmp_path):
    """In hive, 50 kB to 5 MB each, whatever changed."""
    saver = FileSystemSaver(tmp_path, fsync="never")
    graph = counting(100)
    graph.compile(checkpoint_saver=saver).invoke({"n": 0, "text": str([*range(20_000)])}, CONFIG)
    sizes = [info.size for info in saver.history(CONFIG)]
    assert sizes[-1] > 10_000
    assert max(sizes[:-1]) < 1_000


class BlobSaver(BaseCheckpointSaver):
    """A saver of four methods on a mapping of names to bytes, which is what an object store is."""

    def __init__(self, blobs):
        self.blobs, self.codec = blobs, Codec()

    def list(self, config=None):
        packed = self.blobs.get(f"{RunnableConfig.of(config).thread}/history")
        rows = [] if packed is None else self.codec.unpack(packed)
        return [Checkpoint(**{**row, "metadata": dict(row["metadata"])}) for row in rows]

    def get(self, config=None):
        wanted = RunnableConfig.of(config).checkpoint_id
        return next((checkpoint for checkpoint in self.list(config) if wanted in (None, checkpoint.id)), None)

    def put(self, config, checkpoint):
        at, history = RunnableConfig.of(config), self.list(config)
        if at.checkpoint_id is None:
            history.insert(0, checkpoint)
        else:
            history = [checkpoint if each.id == at.checkpoint_id else each for each in history]
        fields = ("id", "node_id", "next_node_id", "parent_id", "created_at", "metadata", "state")
        rows = [{name: getattr(each, name) for name in fields} for each in history]
        self.blobs[f"{at.thread}/history"] = self.codec.pack(rows)
        return at.replace(checkpoint_id=checkpoint.id)

    def release(self, config=None):
        tag = Tag(RunnableConfig.of(config).thread, tuple(self.list(config)))
        self.blobs.pop(f"{tag.thread_id}/history", None)
        return tag


@pytest.mark.requirement("H49")
def test_an_object_store_is_a_saver_of_four_methods_and_old_threads_move_there(tmp_path):
    """A run goes on from the blobs in another object; a finished thread is archived by `copy_thread`."""
    blobs = {}
    graph = make_chain({}, ask=lambda state: {"answer": interrupt("?")})

    assert graph.compile(checkpoint_saver=BlobSaver(blobs)).invoke_final({}, CONFIG).payload == "?"

    app = graph.compile(checkpoint_saver=BlobSaver(blobs))
    assert app.invoke(GraphResume("yes"), CONFIG)["answer"] == "yes"

    files = FileSystemSaver(tmp_path)
    counting(3).compile(checkpoint_saver=files).invoke({"n": 0}, RunnableConfig("old"))
    copy_thread(files, "old", BlobSaver(blobs), "archive-of-old")
    files.delete("old")
    archived = BlobSaver(blobs).list(RunnableConfig("archive-of-old"))
    assert [each.state["n"] for each in archived] == [3, 2, 1, 0]


# --- one run as a whole -----------------------------------------------------------------------------------------------


chain = partial(make_chain, {})


@pytest.mark.requirement("G22")
def test_a_resume_at_the_end_gives_the_final_state_though_an_edge_leads_on(tmp_path):
    """In go-agents, an exit point with an outgoing edge ran on past the end."""
    runs = []
    graph = StateGraph({}).add_node("a", lambda state: runs.append("a")).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: END if len(runs) == 1 else "a", ["a", END])
    app = graph.compile(checkpoint_saver=FileSystemSaver(tmp_path))
    app.invoke({"x": 1}, CONFIG)

    for _ in range(2):
        assert app.resume("t")["x"] == 1

    assert runs == ["a"]


@pytest.mark.requirement("G23", "H32")
def test_a_resume_goes_where_the_edge_led_when_it_was_taken(tmp_path):
    """The chosen next node is stored; an edge that would choose another one now is not asked again."""
    choices, runs = iter(["left", "right"]), []

    def left(state):
        runs.append("left")
        if len(runs) == 1:
            raise ValueError("once")

    graph = StateGraph({}).add_node("a", lambda state: None).add_node("left", left)
    graph.add_node("right", lambda state: runs.append("right")).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: next(choices), ["left", "right"])
    app = graph.add_edge("left", END).add_edge("right", END).compile(checkpoint_saver=FileSystemSaver(tmp_path))
    with pytest.raises(NodeExecutionError):
        app.invoke({}, CONFIG)
    app.resume("t")
    assert runs == ["left", "left"]


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
