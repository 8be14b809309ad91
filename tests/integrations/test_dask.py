"""Dask: the branches of a fork on the processes of a real cluster, one of which dies in the middle."""

import os
import signal

import pytest
from distributed import Client, LocalCluster

from graphkit import END, START, Channels, GraphResume, RunnableConfig, StateGraph, interrupt
from tests.support.savers import saver_fixture

# Its threads and sockets are collected late, and it warns of its own busy ports and of forks; none of that is ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Port .* is already in use:UserWarning"),
]
CONFIG = RunnableConfig("t")
SCHEMA = {"log": Channels.appender_with_duplicate()}


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as one,
    ):
        yield one


saver = saver_fixture(("file", "sqlite", "postgres"))


@pytest.fixture
def executor(client):
    return client.get_executor(pure=False)


def branch(name, *, dies=False, asks=False):
    def node(state, config):
        folder = state["folder"]
        result = config.once("effect", lambda: _effect(folder, name))
        if dies and _is_first(f"{folder}/died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"log": [result, interrupt(name)] if asks else result}

    return node


def _effect(folder, name):
    with open(f"{folder}/{name}", "a") as file:  # noqa: PTH123
        file.write("x")
    return f"{name} {os.getpid()}"


def _is_first(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def fork_of(nodes):
    graph = StateGraph(SCHEMA)
    for name, node in nodes.items():
        graph.add_node(name, node).add_edge(START, name).add_edge(name, END)
    return graph


def effects(folder, names):
    return [(folder / name).read_text() for name in names]


def test_a_worker_that_dies_costs_nothing_that_was_recorded(executor, saver, tmp_path):
    """The cluster runs its branch again, elsewhere; once finds what the dead one had recorded."""
    names = ["a", "b", "c", "d"]
    nodes = {name: branch(name) for name in names}
    nodes["b"] = branch("b", dies=True)
    graph = fork_of(nodes).compile(checkpoint_saver=saver, executor=executor)
    final = graph.invoke({"folder": str(tmp_path)}, CONFIG)
    assert (tmp_path / "died").exists()

    words = [word.split() for word in final["log"]]
    logged, processes = zip(*words, strict=True)

    assert [*logged] == names
    assert str(os.getpid()) not in processes
    assert effects(tmp_path, names) == ["x"] * 4
    assert saver.get(CONFIG).next_node_id == END


def test_a_question_asked_on_a_worker(executor, saver, tmp_path):
    nodes = {"a": branch("a"), "b": branch("b", asks=True)}
    graph = fork_of(nodes).compile(checkpoint_saver=saver, executor=executor)
    assert graph.invoke_final({"folder": str(tmp_path)}, CONFIG).payload == "b"
    assert graph.invoke(GraphResume("yes"), CONFIG)["log"][-1] == "yes"
    assert effects(tmp_path, ["a", "b"]) == ["x", "x"]
