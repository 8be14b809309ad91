"""What graphkit's listings say of LangGraph's threads: their status, what they ask, and their state."""

import json
import operator
from typing import Annotated, TypedDict
from unittest import mock

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from graphkit import CheckpointConflictError, RunnableConfig, operations
from graphkit.transfer import copy_threads
from savers import MemorySaver
from savers.langgraph import CheckpointSaver, FileSystemCheckpointSaver
from tests.integrations.langgraph_graphs import chain
from tests.integrations.test_langgraph_store import Rot
from tests.support.langgraph import run_without_langgraph
from tests.support.langgraph_checkpoints import put, thread, thread_of
from tests.support.terminal import graphkit, read_json
from tests.support.threads import assert_same
from tests.support.workers import status_everywhere

T = RunnableConfig("t")
CONFIG = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    log: Annotated[list, operator.add]


def graph_of(**nodes):
    """A graph whose nodes all follow START, and END all of them; each logs what its function returns."""
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node if not callable(node) else lambda state, node=node: {"log": [node()]})
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph


@pytest.fixture
def saver(make_saver):
    return CheckpointSaver(make_saver("store"))


def status(saver):
    """Return the status of the thread, which no older checkpoint has."""
    assert {info.status for info in saver.store.history(T)[1:]} <= {""}
    return status_everywhere(saver.store)


def asked(saver):
    return [(interrupt.node_id, interrupt.when, interrupt.payload) for interrupt in saver.store.interrupts("t")]


@pytest.mark.sweep(1, of="durability", in_turn=True)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_thread_that_waits_for_a_human(saver, durability):
    app = graph_of(ask=lambda: interrupt({"question": "ok?"})).compile(checkpointer=saver)
    app.invoke({"log": []}, CONFIG, durability=durability)
    store = saver.store
    assert status(saver) == "interrupted"
    assert asked(saver) == [("ask", "inside", {"question": "ok?"})]
    assert store.wait_for_resume("t", 0) is False

    (found,) = store.interrupts()
    (known,) = app.get_state(CONFIG).interrupts
    assert (found.id, found.thread_id, found.checkpoint_ns) == (known.id, "t", "")
    assert store.summary(T).waiting == (found,)

    for change in (operations.answer, operations.update):
        with pytest.raises(CheckpointConflictError, match="it belongs to langgraph; answer it there"):
            change(store, "t", {})

    for change in (operations.cancel, operations.pause):
        with pytest.raises(CheckpointConflictError, match="it belongs to langgraph; answer it there"):
            change(store, "t")
    app.invoke(Command(resume="yes"), CONFIG, durability=durability)
    assert (status(saver), asked(saver)) == ("finished", [])
    assert store.wait_for_resume("t", 0) is True


def test_of_several_tasks_those_that_have_not_finished_wait(saver):
    app = graph_of(a=lambda: interrupt("a?"), b=lambda: interrupt("b?"), c=lambda: "c").compile(checkpointer=saver)
    app.invoke({"log": []}, CONFIG)
    assert sorted(asked(saver)) == [("a", "inside", "a?"), ("b", "inside", "b?")]
    ids = {interrupt.payload: interrupt.id for interrupt in saver.store.interrupts("t")}
    app.invoke(Command(resume={ids["a?"]: "yes"}), CONFIG)
    assert (status(saver), asked(saver)) == ("interrupted", [("b", "inside", "b?")])


def test_a_nested_graph_and_a_send_ask_once(saver):
    nested = graph_of(deep=lambda: interrupt("deep?")).compile()
    graph = graph_of(sub=nested).add_node("sent", lambda _: {"log": [interrupt("sent?")]})
    graph.add_conditional_edges(START, lambda state: [Send("sent", state)], ["sent"])
    graph.compile(checkpointer=saver).invoke({"log": []}, CONFIG)
    assert sorted(asked(saver)) == [("Send 0", "inside", "sent?"), ("sub", "inside", "deep?")]
    assert status(saver) == "interrupted"


def test_a_task_that_runs_and_fails_and_asks_is_seen_and_watched(saver):
    failures = ["no 'van'"]
    statuses = []

    def work():
        statuses.append(status(saver))
        if failures:
            raise ValueError(failures.pop())
        return interrupt("ok?")

    app = graph_of(work=work).compile(checkpointer=saver)
    with saver.store.watch("t", interval=0.01) as watch:

        def wait_for(kind):
            while (change := watch.get(60.0)).kind != kind:
                pass
            return change

        with pytest.raises(ValueError, match="van"):
            app.invoke({"log": []}, CONFIG, durability="sync")
        assert [*statuses, status(saver)] == ["running", "failed"]
        failure = {"node_id": "work", "type": "ValueError", "message": "no 'van'", "at": None}
        assert saver.store.summary(T).failure == failure
        change = wait_for("failure")
        assert (change.checkpoint.status, change.value["message"]) == ("failed", "no 'van'")
        app.invoke(None, CONFIG, durability="sync")
        change = wait_for("interrupt")
        assert change.checkpoint.status == "interrupted"
        assert (change.value["node_id"], change.value["payload"]) == ("work", "ok?")
        assert change.id == saver.store.interrupts("t")[0].id


# At the command line


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "runs"
    with FileSystemCheckpointSaver(path) as saver:
        graph = graph_of(ask=lambda: interrupt({"question": "ok?"}))
        graph.compile(checkpointer=saver).invoke({"log": ["begun"]}, CONFIG)
    return path


def test_the_commands_show_it(runs):
    (row,) = read_json("interrupts", runs)
    assert (row["thread"], row["node"], row["payload"]) == ("t", "ask", {"question": "ok?"})
    assert read_json("stats", runs)["waiting"] == 1

    (row,) = read_json("threads", runs, "--status", "interrupted")
    assert row["waiting"] == {"question": "ok?"}
    assert read_json("history", runs, "t")[0]["status"] == "interrupted"

    shown = read_json("show", runs, "t")
    assert (shown["status"], shown["state"]) == ("interrupted", {"log": ["begun"]})
    assert graphkit("show", runs, "t").out.endswith("log:\n  [0]: begun\n")
    assert graphkit("show", runs, "t", "--key", "log[0]").out == "begun\n"
    assert graphkit("answer", runs, "t", "--value", "1").code == 16

    with FileSystemCheckpointSaver(runs) as saver:
        graph_of(ask=lambda: interrupt("ok?")).compile(checkpointer=saver).invoke(Command(resume="yes"), CONFIG)

    (difference,) = read_json("diff", runs, "t")["differences"]

    assert (difference["path"], difference["new"]) == ("log[1]", "yes")


def test_without_langgraph_sentences_stand_for_what_only_it_can_read(runs):
    sentence = "pip install 'graphkit-durable[langgraph]' makes it readable here"
    (row,) = json.loads(run_without_langgraph("interrupts", runs, "--json").stdout)
    assert (row["node"], row["payload"]) == ("ask", sentence)
    shown = run_without_langgraph("show", runs, "t").stdout
    assert shown.endswith(f"LangGraph's serializer wrote the state: {sentence}\n")
    assert "status       interrupted" in shown
    done = run_without_langgraph("show", runs, "t", "--key", "log")
    assert done.returncode == 18
    assert sentence in done.stderr


def test_what_langgraph_has_encrypted_is_not_shown_as_bytes(tmp_path):
    with FileSystemCheckpointSaver(tmp_path / "runs", serde=EncryptedSerializer(Rot())) as saver:
        graph_of(ask=lambda: interrupt("secret")).compile(checkpointer=saver).invoke({"log": []}, CONFIG)
    (row,) = read_json("interrupts", tmp_path / "runs")
    assert row["payload"] == "not readable here: LangGraph's serializer wrote it as msgpack+rot"
    assert "is encrypted by LangGraph's serializer" in graphkit("show", tmp_path / "runs", "t").out


CONSTRUCTOR = b'{"lc": 1, "type": "constructor", "id": ["a"]}'


@pytest.mark.parametrize("stored", [("json", b"{"), ("msgpack", b"\xc1"), ("msgpack", b"\x05"), ("json", CONSTRUCTOR)])
def test_a_malformed_interrupt_hides_no_other_thread(tmp_path, stored):
    class Malforming(JsonPlusSerializer):
        def dumps_typed(self, obj):
            return stored if obj == "malformed" else super().dumps_typed(obj)

    with FileSystemCheckpointSaver(tmp_path, serde=Malforming()) as saver:
        for name, asked in (("one", "malformed"), ("two", [])):
            saver.put_writes(put(saver, thread(name)), [("__interrupt__", asked)], "task")
        assert sorted(saver.store.threads()) == ["one", "two"]
        assert [waiting.thread_id for waiting in saver.store.interrupts()] == ["one"]

    assert [row["thread"] for row in read_json("threads", tmp_path)] == ["one", "two"]


# Half a copy


class Count(TypedDict):
    n: int


def make_graph(saver, effects):
    def count(state):
        effects.append("count")
        return {"n": state["n"] + 1}

    inner = chain(Count, count=count).compile(checkpointer=True)
    graph = chain(Count, inner=inner, ask=lambda _: {"n": interrupt("go on?")})
    return graph.compile(checkpointer=CheckpointSaver(saver))


@pytest.mark.sweep(2, of="puts", in_turn=True)
@pytest.mark.parametrize("puts", [1, 3, 4])
def test_langgraph_leaves_half_a_copy_alone_and_goes_on_with_the_whole(make_saver, puts):
    source, target = MemorySaver(), make_saver("target")
    make_graph(source, []).invoke({"n": 1}, CONFIG)
    effects = []
    graph = make_graph(target, effects)
    graph.invoke({"n": 5}, {"configurable": {"thread_id": "other"}})
    effects.clear()
    effects_of_puts = [*[mock.DEFAULT] * puts, OSError]
    with mock.patch.object(target, "put", wraps=target.put, side_effect=effects_of_puts), pytest.raises(OSError):
        copy_threads(source, target, ["t"])
    assert target.history(T)[0].status == "incomplete"
    for attempt in (
        lambda: graph.invoke(None, CONFIG),
        lambda: graph.invoke(Command(resume=7), CONFIG),
        lambda: graph.invoke({"n": 1}, CONFIG),
        lambda: graph.get_state(CONFIG),
        lambda: graph.update_state(CONFIG, {"n": 3}),
    ):
        with pytest.raises(CheckpointConflictError, match="it is incomplete"):
            attempt()
    assert effects == []
    assert "other" in {thread_of(found.config) for found in graph.checkpointer.list(None)}
    copy_threads(source, target, ["t"])
    assert_same(source, target)
    assert graph.invoke(Command(resume=7), CONFIG) == {"n": 7}
