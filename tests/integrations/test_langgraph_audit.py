"""LangGraph's checkpointer on an AuditedSaver."""

import asyncio

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from graphkit import RunnableConfig
from savers import AccessControlledSaver, AuditedSaver, AuditLog, policies
from savers.langgraph import CheckpointSaver
from tests.support.growing_graph import State, compile_graph, grow

pytestmark = pytest.mark.requirement("P72")


def config(thread, principal="ann"):
    return {"configurable": {"thread_id": thread, "principal": principal}, "recursion_limit": 200}


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
        app = compile_graph(CheckpointSaver(saver))
        result = app.invoke({"items": []}, config("t"))
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
def test_an_answer_is_recorded_and_a_forged_one_is_found(make_saver, log, is_async):
    saver = make_saver("a")
    app = compile_graph(CheckpointSaver(AuditedSaver(saver, log)), lambda _: {"items": [interrupt("pay?")]}, rounds=1)

    def run(given):
        if is_async:
            return asyncio.run(app.ainvoke(given, config("t")))
        return app.invoke(given, config("t"))

    assert run({"items": []})["__interrupt__"]
    assert run(Command(resume="yes"))["items"] == ["yes"]
    assert log.verify(saver).problems == ()
    assert "yes" not in "".join(log.export())
    latest = saver.list(RunnableConfig("t"))[0]
    saver.put_writes(RunnableConfig("t", checkpoint_id=latest.id), {"forged": "yes"})
    assert not log.verify(saver).ok


def test_branches_that_write_at_once_and_deletes_are_recorded(make_saver, log):
    saver = make_saver("a")
    graph = StateGraph(State)
    for name in "bcde":
        graph.add_node(name, grow)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    checkpointer = CheckpointSaver(AuditedSaver(saver, log))
    app = graph.compile(checkpointer=checkpointer)
    for thread in ("t", "u"):
        app.invoke({"items": []}, config(thread))
    checkpointer.copy_thread("t", "copy")
    checkpointer.delete_thread("u")
    checkpointer.prune(["t"], strategy="keep_latest")
    assert log.verify(saver).problems == ()
    assert [record.result for record in log.records(operation="delete")] == ["ok"]
