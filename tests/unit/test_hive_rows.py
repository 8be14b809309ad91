"""Rows of hive's list that no other test names: what its on-disk layout got wrong, or promised."""

from graphkit import END, START, Channels, RunnableConfig, StateGraph, interrupt
from savers import FileSystemSaver

CONFIG = RunnableConfig("t")


def counting(steps):
    graph = StateGraph({}).add_node("count", lambda state: {"n": state["n"] + 1}).add_edge(START, "count")
    return graph.add_conditional_edges("count", lambda state: END if state["n"] >= steps else "count", ["count", END])


def test_the_latest_of_1500_is_the_last_one_written(tmp_path):
    """H22: there, file names sorted as text put step 1000 before step 999."""
    saver = FileSystemSaver(tmp_path, fsync="never")
    counting(1500).compile(checkpoint_saver=saver, max_iterations=2000).invoke({"n": 0}, CONFIG)
    again = FileSystemSaver(tmp_path)
    assert again.get(CONFIG).state == {"n": 1500}
    assert [one.metadata["step"] for one in again.history(CONFIG)] == [*range(1500, -1, -1)]


def test_the_root_is_the_users_and_the_input_is_kept(tmp_path):
    """H23: where a store is, its user says; what a run was given is its first checkpoint."""
    saver = FileSystemSaver(tmp_path / "of" / "mine")
    goal = RunnableConfig("t", metadata={"goal": "g-1"})
    counting(3).compile(checkpoint_saver=saver).invoke({"n": 0, "question": "why?"}, goal)
    first = FileSystemSaver(tmp_path / "of" / "mine").list(CONFIG)[-1]
    assert first.state == {"n": 0, "question": "why?"}
    assert first.metadata["goal"] == "g-1"
    assert [path.name for path in tmp_path.iterdir()] == ["of"]


def test_excluded_keys_are_in_no_byte_of_the_store(tmp_path):
    """H52: `api_key`, `credentials`, `access_token`: nodes have them, the disk does not."""
    secrets = ("api_key", "credentials", "access_token")
    seen = []
    graph = StateGraph({key: Channels.transient() for key in secrets})
    graph.add_node("use", lambda state: seen.append([state[key] for key in secrets]))
    graph.add_node("ask", lambda state: {"answer": interrupt("?")})
    graph.add_edge(START, "use").add_edge("use", "ask").add_edge("ask", END)
    saver = FileSystemSaver(tmp_path)
    last = graph.compile(checkpoint_saver=saver).invoke_final(
        {"api_key": "PRIVATE-1", "credentials": {"user": "PRIVATE-2"}, "access_token": b"PRIVATE-3", "n": 1}, CONFIG
    )
    assert seen == [["PRIVATE-1", {"user": "PRIVATE-2"}, b"PRIVATE-3"]]
    assert dict(last.state) == {"n": 1}
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [content for content in files if b"PRIVATE" in content]


def test_a_checkpoint_takes_what_changed(tmp_path):
    """H54: there, 50 kB to 5 MB each, whatever changed."""
    saver = FileSystemSaver(tmp_path, fsync="never")
    graph = counting(100)
    graph.compile(checkpoint_saver=saver).invoke({"n": 0, "text": str([*range(20_000)])}, CONFIG)
    sizes = [info.size for info in saver.history(CONFIG)]
    assert sizes[-1] > 10_000
    assert max(sizes[:-1]) < 1_000
