"""FileSystemCheckpointSaver as a store: processes, kill -9, threads, hostile ids, growth, and graphkit's own view of it."""

import itertools
import os
from unittest import mock

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from graphkit import CheckpointConflictError, GraphRunnerError, StateGraph
from savers.langgraph import CheckpointSaver, FileSystemCheckpointSaver
from tests.integrations import langgraph_graphs as graphs
from tests.support.langgraph_checkpoints import again, put, thread, values_of
from tests.support.savers import ListingSaver

CONFIG = {"configurable": {"thread_id": "t"}}


# Processes

LOOP = """
import sys
from savers.langgraph import FileSystemCheckpointSaver
from tests.integrations import langgraph_graphs as graphs
saver = FileSystemCheckpointSaver(sys.argv[1])
app = graphs.loop(int(sys.argv[3])).compile(checkpointer=saver)
config = {"configurable": {"thread_id": "t"}, "recursion_limit": 100000}
for mode, data in app.stream({"n": 0}, config, stream_mode=["updates", "checkpoints"], durability=sys.argv[2]):
    if mode == "updates":
        print(*data, flush=True)
"""


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_after_kill_9_the_graph_goes_on_where_it_was(durability, tmp_path, launcher):
    saver = FileSystemCheckpointSaver(tmp_path)
    printed = 0
    with launcher.start("-c", LOOP, tmp_path, durability, "100000") as process:
        for _ in process.stdout:
            printed += 1
            stored = saver.get_tuple(CONFIG)
            if stored is not None and values_of(stored).get("n", 0) > 20:
                process.kill()

    state = graphs.loop(100_000).compile(checkpointer=saver).get_state(CONFIG)
    log = state.values["log"]
    assert log == log_of(len(log))
    if durability == "sync":
        assert len(log) >= printed - 1
    turns = state.values["n"] + 2
    final = graphs.loop(turns).compile(checkpointer=saver).invoke(None, CONFIG)
    assert final["log"] == log_of(2 * turns)
    assert saver.store.verify().ok


def log_of(steps):
    """What the two nodes of the loop have logged after some steps."""
    return [f"{'ab'[i % 2]}{i // 2 + i % 2}" for i in range(steps)]


APPEND = """
import sys
from langgraph.checkpoint.base import empty_checkpoint
from savers.langgraph import FileSystemCheckpointSaver
from tests.support.langgraph_checkpoints import put, thread
saver = FileSystemCheckpointSaver(sys.argv[1], fsync="never")
for n in range(60):
    early = empty_checkpoint()["id"]
    if n % 3 == 0:
        saver.put_writes(thread(checkpoint_id=early), [("n", n)], "task")
    latest = saver.get_tuple(thread())
    config = put(saver, latest and latest.config, {"who": sys.argv[2]}, id=early, n=n)
    if n % 3 == 1:
        saver.put_writes(config, [("n", n)], "task")
"""


def test_two_processes_on_one_thread_lose_nothing(saver, launcher):
    processes = [launcher.start("-c", APPEND, saver.store.base_directory, who) for who in "xy"]
    for process in processes:
        with process:
            assert process.wait(60) == 0

    for who in "xy":
        own = [*saver.list(CONFIG, filter={"who": who})]
        assert len(own) == 60
        for n, found in enumerate(reversed(own)):
            assert values_of(found) == {"n": n}
            assert found.pending_writes == ([("task", "n", n)] if n % 3 < 2 else [])
    assert saver.store.verify().ok


# Reading


def put_versions(saver, config, values, versions, new=None):
    """Put a checkpoint whose channels have these versions; return what is read of it."""
    checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": versions}
    return saver.get_tuple(saver.put(config, checkpoint, {}, new or {}))


def test_a_channel_is_found_by_its_version_wherever_it_was_stored(saver):
    big = ["x" * 100] * 10
    versions = {"big": "1.5"}
    first = put_versions(saver, thread(), {"big": big}, versions, new=versions).config
    for n in range(3):
        put(saver, n=n)
    for config in (first, thread()):  # from its parent; from a history that somebody has gone on with
        found = put_versions(saver, config, {}, versions)
        assert values_of(found) == {"big": big}
    found = put_versions(saver, first, {"big": "given"}, {"big": "9.5"})
    assert values_of(found) == {"big": "given"}
    versions = {"big": "2.5", "empty": "1"}
    found = put_versions(saver, first, {}, versions, new={"big": "2.5"})
    assert values_of(found) == {}
    assert found.checkpoint["channel_versions"] == versions


VALUES = [
    None, True, 0, -1, 2**63, 1.5, "", "x" * 1000, "\u00e4\U0001f600" * 100, b"", b"\x00\xff" * 100, bytearray(b"a" * 100), [], [1],
    list(range(1000)), {}, {"a": {"b": [1, {"c": None}]}}, {str(n): n for n in range(100)}, {1: 2}, {1, 2}, frozenset({3}),
]  # fmt: skip


class Rot:
    """Another ciphertext each time, as with any cipher that is one."""

    def encrypt(self, plaintext):
        salt = os.urandom(1)
        return "rot", salt + bytes((byte + salt[0]) % 256 for byte in plaintext)

    def decrypt(self, ciphername, ciphertext):
        assert ciphername == "rot"
        return bytes((byte - ciphertext[0]) % 256 for byte in ciphertext[1:])


@pytest.mark.parametrize("encrypted", [False, True])
def test_every_kind_of_value_comes_back_after_others(saver, encrypted):
    if encrypted:
        saver.serde = EncryptedSerializer(Rot(), saver.serde)
    expected = []
    config = None
    for pair in [*itertools.product(VALUES, VALUES)][::5]:
        for value in pair:
            config = put(saver, config, value=value, same="same")
            expected.append(value)
    found = [values_of(saved)["value"] for saved in again(saver, serde=saver.serde).list(CONFIG)]
    found.reverse()
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 5000, "\u00e4\U0001f600", "CON", "a\nb", 7])
def test_hostile_ids_of_threads_and_namespaces_come_back(saver, name, tmp_path):
    text = str(name)
    stored = put(saver, thread(name, text), a=name)
    saver.put_writes(stored, [(text, name)], text, text)
    found = again(saver).get_tuple(stored)
    assert values_of(found) == {"a": name}
    assert found.pending_writes == [(text, text, name)]

    (listed,) = saver.list(None)
    assert listed.config["configurable"]["checkpoint_ns"] == text

    saver.delete_thread(name)
    assert list(saver.list(None)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


# Removing


def test_a_death_while_checkpoints_are_removed_leaves_a_thread_that_is_incomplete():
    store = ListingSaver()  # it has no `remove`: what is kept is put back after a release
    saver = CheckpointSaver(store)
    first = put(saver, thread(), {"run_id": "r"}, a=1)
    put(saver, first, {"run_id": "s"}, a=2)
    begins_and_dies = mock.patch.object(store, "put", wraps=store.put, side_effect=[mock.DEFAULT, KeyboardInterrupt])
    with begins_and_dies, pytest.raises(KeyboardInterrupt):
        saver.delete_for_runs(["r"])

    (left,) = store.history(CONFIG)
    assert left.status == "incomplete"


def test_what_cannot_be_is_refused(saver):
    put(saver, a=1)
    put(saver, thread("other"), a=1)
    with pytest.raises(CheckpointConflictError):
        saver.copy_thread("t", "other")
    with pytest.raises(KeyError):
        saver.get_tuple({"configurable": {}})


# Beside graphkit


def test_graphkit_lists_what_langgraph_ran(saver):
    graphs.loop(1).compile(checkpointer=saver).invoke({"n": 0}, {**CONFIG, "metadata": {"user": "ada"}})
    history = saver.store.history(CONFIG)
    steps = [(info.node_id, info.next_node_id, info.metadata["step"]) for info in reversed(history)]
    assert steps == [
        ("__START__", "langgraph:__start__", -1),
        ("__START__", "langgraph:a", 0),
        ("a", "langgraph:b", 1),
        ("b", "__END__", 2),
    ]

    newest, parent, step_0, _ = history
    assert (newest.status, parent.status) == ("finished", "")

    (found,) = saver.store.search({"user": "ada", "step": 0})
    assert found.id == step_0.id
    assert newest.parent_id == parent.id
    assert saver.get_tuple(CONFIG).checkpoint["ts"][:19] == newest.created_at.isoformat()[:19]


def test_the_steps_of_a_fork_and_of_sends_are_named(saver):
    def find_steps(name):
        return [(info.node_id, info.next_node_id) for info in saver.store.history(thread(name))[:3]]

    graphs.parallel().compile(checkpointer=saver).invoke({"log": []}, thread("fork"))
    assert find_steps("fork") == [
        ("meet", "__END__"),
        ("a, b, c, d", "langgraph:meet"),
        ("start", "langgraph:a, b, c, d"),
    ]

    stops = graphs.mapped().compile(checkpointer=saver, interrupt_before=["one"])
    for given in ({"log": []}, None):
        stops.invoke(given, thread("sends"))
    assert find_steps("sends") == [("all", "__END__"), ("one", "langgraph:all"), ("split", "langgraph:one")]


def make_own(saver):
    """A graph of graphkit with a node that both have."""
    graph = StateGraph(graphs.Log).add_node("a", lambda _: {"n": 1}).add_edge("__START__", "a").add_edge("a", "__END__")
    return graph.compile(checkpoint_saver=saver.store)


def test_no_graph_of_graphkits_takes_a_thread_of_langgraphs_for_its_own(saver):
    config = put(saver, n=1)
    with pytest.raises(GraphRunnerError):
        make_own(saver).invoke(None, CONFIG)
    (left,) = saver.list(CONFIG)
    assert left.config == config


def test_a_thread_of_graphkits_is_refused_and_not_listed(saver):
    make_own(saver).invoke({"n": 0}, CONFIG)
    before = saver.store.size("t")
    for use in (
        lambda: saver.get_tuple(CONFIG),
        lambda: put(saver, a=1),
        lambda: saver.get_delta_channel_history(config=CONFIG, channels=["n"]),
    ):
        with pytest.raises(CheckpointConflictError):
            use()
    assert list(saver.list(None)) == []
    assert saver.store.size("t") == before
