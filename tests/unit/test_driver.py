"""The driver: the run lock, closing, releasing, snapshots."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from graphkit import END, START, InterruptionMetadata, NodeOutput, RunnableConfig, StateSnapshot, StreamMode
from graphkit.errors import GraphRunnerError, NodeExecutionError, ThreadBusyError
from savers import MemorySaver, VersionedMemorySaver
from tests.support.graphs import CONFIG, log_node, make_chain, nodes_of, pending_ids, stored_nodes
from tests.support.sweeps import ALL

pytestmark = pytest.mark.sweep(ALL)


@pytest.fixture
def saver():
    return MemorySaver(lock_timeout=0)


def test_nothing_runs_before_the_first_item_is_asked_for(saver):
    compiled = make_chain(a=log_node("a")).compile(checkpoint_saver=saver)
    compiled.stream({}, CONFIG)
    compiled.stream({}, CONFIG).close()
    assert saver.threads() == ()
    assert compiled.invoke({}, CONFIG)["log"] == ["a"]


def test_an_error_thrown_into_a_stream_comes_back_and_saves(saver):
    compiled = make_chain(a=log_node("a"), b=log_node("b")).compile(checkpoint_saver=saver, checkpoint_interval=10)
    stream = compiled.stream({}, CONFIG)
    assert [next(stream).node, next(stream).node] == [START, "a"]
    with pytest.raises(KeyError):
        stream.throw(KeyError("mine"))
    assert saver.get(CONFIG).next_node_id == "b"


def test_a_second_run_of_a_thread_is_refused_and_others_are_not(saver):
    compiled = make_chain(a=log_node("a")).compile(checkpoint_saver=saver)
    stream = compiled.stream({}, CONFIG)
    next(stream)
    with pytest.raises(ThreadBusyError) as busy:
        compiled.invoke({}, CONFIG)
    assert busy.value.thread_id == "t"
    compiled.invoke({}, RunnableConfig("other"))
    assert len(saver.list(CONFIG)) == 1
    stream.close()
    compiled.invoke({}, CONFIG)


def test_at_the_last_item_all_is_stored_and_the_thread_is_free(saver):
    compiled = make_chain(a=log_node("a"), b=log_node("b")).compile(checkpoint_saver=saver, interrupt_before=["b"])

    for output in compiled.stream({}, CONFIG):
        if isinstance(output, InterruptionMetadata):
            assert pending_ids(saver) == [output.id]
            compiled.update_state(CONFIG, {"log": "body"})
            assert compiled.invoke(None, CONFIG)["log"] == ["a", "body", "b"]

    for output in compiled.stream(None, CONFIG):
        assert output.is_end
        compiled.invoke({}, CONFIG)


def test_a_node_cannot_run_its_own_thread(saver):
    def again(state):
        compiled.invoke({}, CONFIG)

    compiled = make_chain(a=again).compile(checkpoint_saver=saver)
    with pytest.raises(GraphRunnerError, match="own thread"):
        compiled.invoke({}, CONFIG)
    assert len(saver.list(CONFIG)) == 1


def test_a_node_cannot_run_its_own_thread_through_another_run(saver):
    def start_other(state):
        other.invoke({}, RunnableConfig("other"))

    def start_first(state):
        compiled.invoke({}, CONFIG)

    compiled = make_chain(a=start_other).compile(checkpoint_saver=saver)
    other = make_chain(a=start_first).compile(checkpoint_saver=saver)
    with pytest.raises(GraphRunnerError, match="own thread"):
        compiled.invoke({}, CONFIG)


def test_a_node_may_run_another_thread_or_namespace(saver):
    inner = make_chain(a=log_node("inner")).compile(checkpoint_saver=saver)

    def start(state):
        return {
            "log": [
                *inner.invoke({}, RunnableConfig("other"))["log"],
                *inner.invoke({}, CONFIG.replace(checkpoint_ns="n"))["log"],
            ]
        }

    assert make_chain(a=start).compile(checkpoint_saver=saver).invoke({}, CONFIG)["log"] == ["inner", "inner"]


def test_without_a_saver_a_node_may_run_what_it_likes():
    compiled = make_chain(
        a=lambda s: {"log": s["depth"]} if s["depth"] == 0 else compiled.invoke({"depth": s["depth"] - 1})
    )
    compiled = compiled.compile()
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


def test_a_failed_run_releases_nothing():
    saver = VersionedMemorySaver(lock_timeout=0)
    with pytest.raises(NodeExecutionError):
        make_chain(a=lambda s: 1).compile(checkpoint_saver=saver, release_thread=True).invoke({}, CONFIG)
    assert len(saver.list(CONFIG)) == 1


def test_a_node_may_release_its_own_thread(saver):
    compiled = make_chain(a=lambda s: {"log": len(saver.release(CONFIG).checkpoints)}).compile(checkpoint_saver=saver)
    assert compiled.invoke({}, CONFIG)["log"] == [1]
    assert stored_nodes(saver) == ["a"]


def test_without_a_saver_there_is_nothing_to_release():
    assert make_chain(a=log_node("a")).compile(release_thread=True).invoke({})["log"] == ["a"]


# --- snapshots --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 10")
@pytest.mark.parametrize("how", ["method", "config"])
def test_snapshots_are_handed_out_for_checkpoints(saver, how):
    compiled = make_chain(a=log_node("a")).compile(checkpoint_saver=saver)
    if how == "method":
        outputs = list(compiled.stream_snapshots({}, CONFIG))
    else:
        outputs = list(compiled.stream({}, RunnableConfig("t", stream_mode=StreamMode.SNAPSHOTS)))
    start, a, end = outputs
    assert isinstance(start, StateSnapshot)
    assert a.node == "a"
    assert a.next == END
    assert a.values == {"log": ["a"]}
    assert a.checkpoint_id == saver.get(CONFIG).id
    assert a.config == RunnableConfig("t", a.checkpoint_id, next_node=END, stream_mode=StreamMode.SNAPSHOTS)
    assert tuple(a.interrupts) == ()
    assert type(end) is NodeOutput
