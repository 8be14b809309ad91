"""CompiledGraph: looking at threads, the warning of a run without a thread id, and its small things."""

import asyncio
import warnings

import pytest

from graphkit import END, START, CompileConfig, DefaultThreadWarning, GraphResume, RunnableConfig
from graphkit.errors import CheckpointerConfigurationError, CheckpointNotFoundError
from savers import FileSystemSaver, MemorySaver, SaverWrapper, VersionedMemorySaver
from tests.support.graphs import LOG, make_chain, nodes_of

CONFIG = RunnableConfig("t", metadata={"k": 1})


@pytest.fixture
def graph():
    return make_chain(LOG, a=lambda s: {"log": "a"}, b=lambda s: {"log": "b"})


@pytest.mark.requirement("P31", "behaviour 11")
def test_an_unknown_thread(graph, saver):
    compiled = graph.compile(checkpoint_saver=saver)
    assert compiled.state_of(CONFIG) is compiled.last_state_of(CONFIG) is None
    assert list(compiled.get_state_history(CONFIG)) == []
    with pytest.raises(CheckpointNotFoundError):
        compiled.get_state(CONFIG)
    with pytest.raises(CheckpointNotFoundError, match="nope"):
        compiled.get_state(RunnableConfig("t", "nope"))


@pytest.mark.requirement("P4")
@pytest.mark.parametrize("options", [{}, {"checkpoint_saver": MemorySaver(), "checkpoint_interval": 0}])
def test_without_a_saver(graph, options):
    compiled = graph.compile(**options)
    looks = (compiled.state_of, compiled.get_state, compiled.get_state_history, compiled.last_state_of)
    for look in (*looks, lambda config: compiled.update_state(config, {})):
        with pytest.raises(CheckpointerConfigurationError):
            look(CONFIG)


@pytest.mark.requirement("P15")
def test_history_is_newest_first_and_each_snapshot_addresses_itself(graph, saver):
    compiled = graph.compile(checkpoint_saver=saver)
    compiled.invoke({}, CONFIG)
    history = compiled.get_state_history(CONFIG)

    assert [(snapshot.node, snapshot.next) for snapshot in history] == [("b", END), ("a", "b"), (START, "a")]
    assert compiled.last_state_of(history[-1].config).checkpoint_id == history[0].checkpoint_id
    for snapshot, checkpoint in zip(history, saver.list(CONFIG), strict=True):
        assert snapshot.config == CONFIG.replace(checkpoint_id=checkpoint.id, next_node=checkpoint.next_node_id)
        assert compiled.get_state(snapshot.config).checkpoint_id == checkpoint.id
        assert (snapshot.parent_id, snapshot.created_at) == (checkpoint.parent_id, checkpoint.created_at)
        assert snapshot.metadata["k"] == 1


@pytest.mark.requirement("P15")
def test_every_method_takes_langgraphs_config(graph, saver):
    compiled = graph.compile(checkpoint_saver=saver, interrupt_before=["b"])
    config = {"configurable": {"thread_id": "t", "user": "ann"}}
    compiled.invoke({}, config)

    assert compiled.get_state(config).metadata["user"] == "ann"

    new = compiled.update_state(config, {"log": "u"})
    assert compiled.get_state({"configurable": {"thread_id": "t", "checkpoint_id": new.checkpoint_id}}).next == "b"
    assert list(compiled.stream(None, config))[-1].is_end
    first = compiled.get_state_history(config)[-1].checkpoint_id

    assert compiled.resume({"configurable": {"thread_id": "t", "checkpoint_id": first}}) == {"log": ["a"]}


def test_a_compiled_graph_does_not_change_with_its_builder(graph):
    compiled = graph.compile(CompileConfig(max_iterations=1))
    compiled.set_max_iterations(9)
    graph.add_node("c", lambda s: None).add_edge("b", "c").add_edge("c", END)
    assert nodes_of(compiled.stream({})) == [START, "a", "b", END]
    assert graph.compile().topology.fingerprint != compiled.topology.fingerprint


@pytest.mark.parametrize("answer", [{"decision": "yes"}, 1, True])
def test_an_answer_is_no_checkpoint_to_resume_from(graph, answer):
    compiled = graph.compile(checkpoint_saver=MemorySaver(), interrupt_before=["b"])
    compiled.invoke({}, CONFIG)
    with pytest.raises(TypeError, match="GraphResume"):
        compiled.resume("t", answer)


# A run without a thread id on a durable saver says, once for each saver, whose state it takes


@pytest.fixture
def store(tmp_path):
    return FileSystemSaver(tmp_path)


RUNS = {
    "invoke": lambda app: app.invoke({}),
    "stream": lambda app: list(app.stream({}, {"configurable": {}})),
    "ainvoke": lambda app: asyncio.run(app.ainvoke({})),
    "resume": lambda app: app.invoke(GraphResume(update={"n": 2})),
}


@pytest.mark.requirement("P13")
@pytest.mark.parametrize("run", RUNS)
def test_a_run_without_a_thread_id_on_a_durable_saver_warns_once(graph, store, run):
    app = graph.compile(checkpoint_saver=store)
    app.invoke({}, RunnableConfig("$default"))
    with pytest.warns(DefaultThreadWarning, match=r"no thread id.*'\$default'.*thread_id") as caught:
        RUNS[run](app)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RUNS[run](app)
        RUNS[run](graph.compile(checkpoint_saver=store))


def test_the_warning_blames_the_line_that_runs_the_graph(graph, store):
    with pytest.warns(DefaultThreadWarning) as caught:
        graph.compile(checkpoint_saver=store).invoke({})
    assert caught[0].filename == __file__


def test_a_wrapper_is_as_durable_as_what_it_wraps(graph, store):
    with pytest.warns(DefaultThreadWarning):
        graph.compile(checkpoint_saver=SaverWrapper(store)).invoke({})
    assert not SaverWrapper(MemorySaver()).is_durable


@pytest.mark.parametrize("store", [MemorySaver(), VersionedMemorySaver(), None])
def test_a_saver_that_forgets_everything_does_not_warn(graph, store):
    graph.compile(checkpoint_saver=store).invoke({})


def test_a_thread_id_and_looking_and_correcting_do_not_warn(graph, store):
    app = graph.compile(checkpoint_saver=store)
    app.invoke({}, RunnableConfig("$default"))
    app.update_state(None, {"n": 3})
    assert app.get_state().state["n"] == 3


def test_the_warning_as_an_error_is_raised_before_anything_runs(graph, store):
    app = graph.compile(checkpoint_saver=store)
    with pytest.raises(DefaultThreadWarning):
        app.invoke({})
    assert not store.list()
