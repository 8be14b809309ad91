"""LangGraph's checkpointer on an AccessControlledSaver and an AuditedSaver."""

import asyncio
import operator
from datetime import timedelta
from typing import Annotated, TypedDict

import pytest
from langgraph.graph import END
from langgraph.types import Command, interrupt

from graphkit import RunnableConfig
from graphkit.errors import AccessDeniedError
from savers import AccessControlledSaver, AuditedSaver, AuditLog, FileSystemSaver, MemorySaver, acting_as, policies
from savers.langgraph import CheckpointSaver
from tests.integrations import langgraph_graphs as graphs
from tests.support.langgraph_checkpoints import thread_of

pytestmark = pytest.mark.requirement("P71", "P72")


class State(TypedDict):
    items: Annotated[list, operator.add]


def grow(state):
    return {"items": [f"item {len(state['items'])} " * 20]}


def compile_graph(checkpointer, node=grow, rounds=40):
    """A graph whose state grows with each step."""
    graph = graphs.chain(State, a=node)
    graph.add_conditional_edges("a", lambda state: END if len(state["items"]) >= rounds else "a")
    return graph.compile(checkpointer=checkpointer)


def config(thread, principal=None):
    names = {"thread_id": thread}
    if principal is not None:
        names["principal"] = principal
    return {"configurable": names, "recursion_limit": 200}


def test_the_principal_is_never_stored(make_saver):
    saver = make_saver("a")
    own = config("t", "ann-id")
    checkpointer = CheckpointSaver(AccessControlledSaver(saver, policies.prefix({"ann-id": "t"})))
    app = compile_graph(checkpointer, rounds=2)
    app.invoke({"items": []}, own)

    for found in checkpointer.list(own):
        assert "ann-id" not in repr(found.metadata)
        assert found.config["configurable"]["principal"] == "ann-id"
    assert "ann-id" not in repr(saver.history("t"))

    updated = app.update_state(app.get_state(own).config, {"items": ["x"]})
    assert app.get_state(updated).values["items"][-1] == "x"


def test_it_asks_under_the_names_of_the_contract(make_saver):
    saver = make_saver("a")
    asked = []

    def policy(*question):
        asked.append(question)
        return True

    def take():
        found = {operation for _, operation, _, _ in asked}
        assert {principal for principal, *_ in asked} == {"ann"}
        asked.clear()
        return found

    checkpointer = CheckpointSaver(AccessControlledSaver(saver, policy))
    has_log = not isinstance(saver, MemorySaver)
    with acting_as("ann"):
        compile_graph(checkpointer, rounds=2).invoke({"items": []}, config("t"))
        found = take()
        assert found == {"get", "put", "put_writes"} or not has_log
        assert len([*checkpointer.list(config("t"))]) == 4
        found = take()
        assert found == {"list", "namespaces"} or not has_log
        checkpointer.copy_thread("t", "u")
        assert {"copy", "put"} <= take()
        checkpointer.delete_thread("u")
        assert "delete" in take()


@pytest.mark.parametrize("is_async", [False, True])
def test_what_the_policy_refuses(make_saver, is_async):
    saver = make_saver("a")
    checkpointer = CheckpointSaver(AccessControlledSaver(saver, policies.owner()))

    def ask(state):
        return {"items": [interrupt("secret?")]}

    app = compile_graph(checkpointer, ask, rounds=1)

    def run(given, settings):
        return asyncio.run(app.ainvoke(given, settings)) if is_async else app.invoke(given, settings)

    assert run({"items": []}, config("ann's", "ann"))["__interrupt__"][0].value == "secret?"
    with acting_as("bob"):
        run({"items": []}, config("bob's"))
        for call in (
            lambda: run(Command(resume="mine"), config("ann's")),
            lambda: app.get_state(config("ann's")),
            lambda: [*checkpointer.list(config("ann's"))],
            lambda: checkpointer.delete_thread("ann's"),
            lambda: checkpointer.copy_thread("ann's", "b2"),
            lambda: checkpointer.prune(["ann's"]),
        ):
            with pytest.raises(AccessDeniedError):
                call()
        for limit in (None, 1):
            assert {thread_of(found.config) for found in checkpointer.list(None, limit=limit)} == {"bob's"}
        assert run(Command(resume="mine"), config("ann's", "ann"))["items"] == ["mine"]
    with pytest.raises(AccessDeniedError):
        run({"items": []}, config("new"))
    assert sorted(saver.threads()) == ["ann's", "bob's"]


@pytest.mark.filterwarnings("ignore:refusals are not recorded")
def test_a_listing_is_recorded_as_one_inside_of_an_access_wrapper(tmp_path):
    with FileSystemSaver(tmp_path / "store", fsync="never") as saver, AuditLog(tmp_path / "log") as log:
        checkpointer = CheckpointSaver(AccessControlledSaver(AuditedSaver(saver, log), lambda *_: True))
        compile_graph(checkpointer, rounds=1).invoke({"items": []}, config("t"))
        before = len(log.records())
        assert len([*checkpointer.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}})]) == 3
        assert {record.operation for record in log.records()[before:]} == {"list"}


def test_a_sweep_acts_for_the_one_who_made_the_checkpointer(make_saver):
    saver = make_saver("a")
    if isinstance(saver, MemorySaver):
        pytest.skip("it keeps no time of the last write")
    guarded = AccessControlledSaver(saver, policies.prefix({"ann": "ann", "bob": "bob"}))
    for name in ("ann", "bob"):
        compile_graph(CheckpointSaver(guarded), rounds=1).invoke({"items": []}, config(name, name))
    with acting_as("ann"):
        checkpointer = CheckpointSaver(guarded, ttl=timedelta(microseconds=1))
        checkpointer.sweep_ttl()
    checkpointer._sweeper.stop()
    assert saver.threads() == ["bob"]


# On an AuditedSaver


@pytest.fixture(params=[None, b"k" * 16])
def log(request, tmp_path):
    with AuditLog(tmp_path / "log", digest_key=request.param) as log:
        yield log


@pytest.mark.sweep(3, of=("make_saver", "log", "make_policy"), in_turn=True)
@pytest.mark.parametrize("make_policy", [None, lambda: policies.prefix({"ann": ""}), policies.owner])
def test_it_keeps_its_deltas_and_each_put_is_recorded(make_saver, log, make_policy):
    bare = make_saver("bare")
    audited = make_saver("audited")
    guarded = audited
    if make_policy is not None:
        guarded = AccessControlledSaver(audited, make_policy())
    for saver in (bare, AuditedSaver(guarded, log)):
        result = compile_graph(CheckpointSaver(saver)).invoke({"items": []}, config("t", "ann"))
        assert len(result["items"]) == 40
    if bare.measures_size:
        # An owner in each checkpoint takes some bytes.
        assert audited.size("t") < bare.size("t") * 1.2
    records = log.records(operation="put", principal="ann", thread_id="t")
    recorded = {record.checkpoint_id for record in records}
    assert recorded.issuperset(info.id for info in audited.history("t"))
    for record in records:
        assert record.result == "ok"
        assert record.digest
    assert log.verify(audited).problems == ()


@pytest.mark.sweep(1, of=("is_async", "log"), in_turn=True)
@pytest.mark.parametrize("is_async", [False, True])
def test_writes_and_deletes_are_recorded_and_a_forged_answer_is_found(make_saver, log, is_async):
    saver = make_saver("a")
    checkpointer = CheckpointSaver(AuditedSaver(saver, log))
    app = compile_graph(checkpointer, lambda _: {"items": [interrupt("pay?")]}, rounds=1)

    def run(given):
        if is_async:
            return asyncio.run(app.ainvoke(given, config("t", "ann")))
        return app.invoke(given, config("t", "ann"))

    assert run({"items": []})["__interrupt__"]
    assert run(Command(resume="yes"))["items"] == ["yes"]
    graphs.parallel().compile(checkpointer=checkpointer).invoke({"log": []}, config("u", "ann"))
    checkpointer.copy_thread("u", "copy")
    checkpointer.delete_thread("u")
    checkpointer.prune(["copy"], strategy="keep_latest")
    assert log.verify(saver).problems == ()
    assert [record.result for record in log.records(operation="delete")] == ["ok"]
    assert "yes" not in "".join(log.export())
    latest = saver.list(RunnableConfig("t"))[0]
    saver.put_writes(RunnableConfig("t", checkpoint_id=latest.id), {"forged": "yes"})
    assert not log.verify(saver).ok
