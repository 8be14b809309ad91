"""The driver: the run lock, closing, releasing, snapshots."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from graphkit import END, START, InterruptionMetadata, NodeOutput, RunnableConfig, StateSnapshot, StreamMode
from graphkit.errors import GraphRunnerError
from savers import MemorySaver, VersionedMemorySaver
from tests.support.graphs import CONFIG, both, invoke, log_node, make_chain, nodes_of, outputs, pending_ids


@pytest.fixture
def saver():
    return MemorySaver(lock_timeout=0)


def test_nothing_runs_before_the_first_item_is_asked_for(saver):
    compiled = make_chain(a=log_node("a")).compile(checkpoint_saver=saver)
    compiled.stream({}, CONFIG)
    compiled.stream({}, CONFIG).close()
    assert saver.threads() == ()
    assert compiled.invoke({}, CONFIG)["log"] == ["a"]


@both
def test_at_the_last_item_all_is_stored_and_the_thread_is_free(saver, how):
    compiled = make_chain(a=log_node("a"), b=log_node("b")).compile(checkpoint_saver=saver, interrupt_before=["b"])

    def go_on(output):
        if isinstance(output, InterruptionMetadata):
            assert pending_ids(saver) == [output.id]
            compiled.update_state(CONFIG, {"log": "body"})
            assert compiled.invoke(None, CONFIG)["log"] == ["a", "body", "b"]

    outputs(compiled, {}, how=how, on_output=go_on)
    (end,) = outputs(compiled, None, how=how, on_output=lambda output: compiled.invoke({}, CONFIG))
    assert end.is_end


@pytest.mark.parametrize("kind", ["sync", "sync in async", "async"])
def test_a_node_cannot_run_its_own_thread(saver, kind):
    async def again_later(state):
        return await compiled.ainvoke({}, CONFIG)

    node = again_later if kind == "async" else lambda state: compiled.invoke({}, CONFIG)
    compiled = make_chain(a=node).compile(checkpoint_saver=saver)
    with pytest.raises(GraphRunnerError, match="own thread"):
        invoke(compiled, {}, how="sync" if kind == "sync" else "async")
    assert len(saver.list(CONFIG)) == 1


def test_a_node_may_run_another_thread_or_namespace_but_through_it_not_its_own_thread(saver):
    inner = make_chain(a=log_node("inner")).compile(checkpoint_saver=saver)

    def node(state):
        configs = [RunnableConfig("other"), CONFIG.replace(checkpoint_ns="n")]
        assert [inner.invoke({}, config)["log"] for config in configs] == [["inner"], ["inner"]]
        back.invoke({}, configs[0])

    compiled = make_chain(a=node).compile(checkpoint_saver=saver)
    back = make_chain(a=lambda state: compiled.invoke({}, CONFIG)).compile(checkpoint_saver=saver)

    with pytest.raises(GraphRunnerError, match="own thread"):
        compiled.invoke({}, CONFIG)


def test_without_a_saver_a_node_may_run_what_it_likes():
    def node(state):
        return {"log": 0} if state["depth"] == 0 else compiled.invoke({"depth": state["depth"] - 1})

    compiled = make_chain(a=node).compile()
    assert compiled.invoke({"depth": 2})["log"] == [0]


def test_a_run_may_be_carried_on_in_another_thread(saver):
    compiled = make_chain(a=log_node("a"), b=log_node("b")).compile(checkpoint_saver=saver)
    stream = compiled.stream({}, CONFIG)
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, stream).result(60)
    assert nodes_of(rest) == ["a", "b", END]
    compiled.invoke({}, CONFIG)


@pytest.mark.requirement("L16", "P26")
def test_many_threads_at_once(saver):
    compiled = make_chain(a=lambda s: {"log": s["me"]}, b=lambda s: {"log": s["me"]}).compile(checkpoint_saver=saver)
    with ThreadPoolExecutor(20) as pool:
        states = list(pool.map(lambda i: compiled.invoke({"me": i}, RunnableConfig(str(i))), range(20)))
    assert [state["log"] for state in states] == [[i, i] for i in range(20)]


# --- release_thread ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("L11")
def test_the_thread_is_released_before_the_end_is_handed_out():
    saver = VersionedMemorySaver(lock_timeout=0)
    compiled = make_chain(a=log_node("a"), b=log_node("b")).compile(
        checkpoint_saver=saver, release_thread=True, interrupt_before=["b"]
    )
    compiled.invoke({}, CONFIG)
    assert saver.versions_by_thread_id("t") == range(1, 1)  # not at a stop

    for output in compiled.stream(None, CONFIG):
        assert (saver.get(CONFIG) is None) == output.is_end
    assert [checkpoint.node_id for checkpoint in saver.tag(CONFIG).checkpoints] == ["b", "a", START]
    assert compiled.invoke({}, CONFIG)["log"] == ["a"]  # starts again


# --- snapshots --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 10")
@pytest.mark.parametrize("how", ["method", "config"])
def test_snapshots_are_handed_out_for_checkpoints(saver, how):
    compiled = make_chain(a=log_node("a")).compile(checkpoint_saver=saver)

    if how == "method":
        outputs = list(compiled.stream_snapshots({}, CONFIG))
    else:
        outputs = list(compiled.stream({}, RunnableConfig("t", stream_mode=StreamMode.SNAPSHOTS)))

    assert list(map(type, outputs)) == [StateSnapshot, StateSnapshot, NodeOutput]

    _, a, _ = outputs

    assert (a.node, a.next, a.values, a.interrupts) == ("a", END, {"log": ["a"]}, ())
    assert a.checkpoint_id == saver.get(CONFIG).id
    assert a.config == RunnableConfig("t", a.checkpoint_id, next_node=END, stream_mode=StreamMode.SNAPSHOTS)
