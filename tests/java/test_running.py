"""langgraph4j's runs, interrupts, resumes and histories, re-stated."""

import pytest

from graphkit import END, START, Channels, CompileConfig, GraphResume, InterruptionMetadata, RunnableConfig, StateGraph
from graphkit.errors import CheckpointNotFoundError, GraphRunnerException, MaxIterationsError
from savers import MemorySaver, VersionedMemorySaver

CONFIG = RunnableConfig.builder().threadId("t").build()


def graph(*names, runs=None):
    built = StateGraph({"log": Channels.appenderWithDuplicate()})
    for name in names:
        built.addNode(name, lambda s, name=name: (runs is not None and runs.append(name)) or {"log": name})
    for source, target in zip([START, *names], [*names, END], strict=True):
        built.addEdge(source, target)
    return built


def compiled(built, saver, **options):
    return built.compile(CompileConfig(checkpoint_saver=saver, **options))


def nodes(stream):
    return [output.node for output in stream if not isinstance(output, InterruptionMetadata)]


@pytest.fixture
def saver():
    return MemorySaver()


# --- 5: the config ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 5")
def test_metadata_can_be_added_to_a_config_that_has_some():  # UnsupportedOperation there
    first = RunnableConfig.builder().addMetadata("a", 1).build()
    assert RunnableConfig.builder(first).addMetadata("b", 2).build().metadata == {"a": 1, "b": 2}


# --- 6: execution -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 6")
def test_a_second_input_continues_from_the_finished_state(saver):
    app = compiled(graph("A"), saver)
    app.invoke({"x": 1}, CONFIG)
    app.invoke({"x": 2}, CONFIG)
    assert app.getState(CONFIG).state == {"log": ["A", "A"], "x": 2}
    assert len(app.getStateHistory(CONFIG)) == 4


def test_an_input_with_a_checkpoint_id_works(saver):  # NoSuchElement at the second put there
    app = compiled(graph("A", "B"), saver)
    app.invoke({}, CONFIG)
    app.invoke({"x": 1}, app.getStateHistory(CONFIG)[-1].config)
    assert len(app.getStateHistory(CONFIG)) == 6


@pytest.mark.requirement("behaviour 6")
def test_the_limit_counts_nodes(saver):  # deviation: there, turns (k + 3); and END came before the error
    app = compiled(graph("A", "B", "C"), saver)
    app.setMaxIterations(3)
    assert nodes(app.stream({}, CONFIG))[-1] == END
    app.setMaxIterations(2)
    seen = []
    with pytest.raises(MaxIterationsError):
        seen.extend(output.node for output in app.stream({}, RunnableConfig("u")))
    for wrong in (0, -1):
        with pytest.raises(ValueError):
            app.setMaxIterations(wrong)


@pytest.mark.requirement("behaviour 6")
def test_a_failed_run_keeps_what_it_stored_and_a_resume_runs_the_node_again(saver):
    fails = [True]

    def b(state):
        if fails:
            raise OSError("once")

    built = StateGraph({}).addNode("A", lambda s: None).addNode("B", b)
    app = compiled(built.addEdge(START, "A").addEdge("A", "B").addEdge("B", END), saver)
    with pytest.raises(GraphRunnerException):
        app.invoke({}, CONFIG)
    assert len(saver.list(CONFIG)) == 2
    fails.clear()
    assert nodes(app.stream(None, CONFIG)) == ["B", END]


# --- 7: what is stored ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 7")
def test_a_linear_graph_stores_one_checkpoint_per_node_and_one_for_the_start(saver):
    app = compiled(graph("A", "B"), saver)
    app.invoke({}, CONFIG)
    assert [(checkpoint.getNodeId(), checkpoint.getNextNodeId()) for checkpoint in saver.list(CONFIG)] == [
        ("B", END),
        ("A", "B"),
        (START, "A"),
    ]


# --- 8: interrupts ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 8")
def test_before_the_entry_node(saver):
    app = compiled(graph("A"), saver, interrupt_before=["A"])
    assert nodes(app.stream({}, CONFIG)) == [START]
    assert nodes(app.stream(None, CONFIG)) == ["A", END]


@pytest.mark.requirement("behaviour 8")
def test_after_a_node_that_leads_to_the_end(saver):  # never stopped there
    app = compiled(graph("A"), saver, interrupt_after=["A"])
    assert app.invokeFinal({}, CONFIG).nodeId() == "A"
    assert nodes(app.stream(None, CONFIG)) == [END]


@pytest.mark.requirement("behaviour 8")
@pytest.mark.parametrize("option", ["interrupt_before", "interrupt_after"])
def test_on_a_self_loop(saver, option):  # after: never stopped there
    built = (
        StateGraph({"log": Channels.appender_with_duplicate()}).addNode("A", lambda s: {"log": "A"}).addEdge(START, "A")
    )
    app = compiled(
        built.addConditionalEdges("A", lambda s: "A" if len(s["log"]) < 3 else END), saver, **{option: ["A"]}
    )
    app.invoke({}, CONFIG)
    assert nodes(app.stream(None, CONFIG)) == ["A"]


@pytest.mark.requirement("G16")
def test_no_saver_is_needed_to_stop():
    assert nodes(graph("A", "B").compile(interrupt_before=["B"]).stream({})) == [START, "A"]


@pytest.mark.requirement("L14", "behaviour 8")
def test_before_the_edge(saver):
    app = compiled(graph("A"), saver, interrupt_after=["A"], interrupt_before_edge=True)
    app.invoke({}, CONFIG)
    assert app.getState(CONFIG).getNextNodeId() is None  # "__INTERRUPTED__" there
    assert nodes(app.stream(GraphResume(), CONFIG)) == [END]


# --- 9: resuming ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("L14", "behaviour 9")
def test_a_resume_of_a_finished_thread_gives_the_end_only(saver):
    app = compiled(graph("A"), saver)
    app.invoke({}, CONFIG)
    assert nodes(app.stream(None, CONFIG)) == [END]
    assert len(app.getStateHistory(CONFIG)) == 2


@pytest.mark.requirement("behaviour 9")
def test_a_resume_of_a_past_checkpoint_goes_on_top(saver):
    runs = []
    app = compiled(graph("A", "B", "C", runs=runs), saver)
    app.invoke({}, CONFIG)
    history = app.getStateHistory(CONFIG)
    app.invoke(None, history[2].config)
    assert [snapshot.getCheckpointId() for snapshot in app.getStateHistory(CONFIG)[2:]] == [
        checkpoint.getCheckpointId() for checkpoint in history
    ]
    assert runs == ["A", "B", "C", "B", "C"]


@pytest.mark.requirement("L14")
def test_a_resume_value_is_merged(saver):
    app = compiled(graph("A", "B"), saver, interrupt_before=["B"])
    app.invoke({}, CONFIG)
    assert app.invoke(GraphResume({"log": "human"}), CONFIG)["log"] == ["A", "human", "B"]


# --- 10: outputs ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("L11")
def test_release_at_the_end_only():
    versions = VersionedMemorySaver()
    app = compiled(graph("A", "B"), versions, interrupt_before=["B"], release_thread=True)
    app.invoke({}, CONFIG)
    assert list(versions.versionsByThreadId("t")) == []
    app.invoke(None, CONFIG)
    assert list(versions.versionsByThreadId("t")) == [1]
    assert list(app.getStateHistory(CONFIG)) == []


# --- 11: looking and correcting ---------------------------------------------------------------------------------------


@pytest.mark.requirement("L12", "behaviour 11")
def test_looking(saver):
    app = compiled(graph("A"), saver)
    assert list(app.getStateHistory(CONFIG)) == []
    assert app.stateOf(CONFIG) is None
    with pytest.raises(CheckpointNotFoundError):
        app.getState(CONFIG)
    app.invoke({}, CONFIG)
    newest = app.getStateHistory(CONFIG)[0]
    assert newest.config == CONFIG.replace(checkpoint_id=newest.checkpointId(), next_node=END)
    assert app.lastStateOf(CONFIG).checkpointId() == newest.checkpointId()


@pytest.mark.requirement("L13")
def test_an_update_of_a_past_checkpoint_does_not_replace_it(saver):  # deviation: replaced in place there
    app = compiled(graph("A", "B"), saver)
    app.invoke({}, CONFIG)
    past = app.getStateHistory(CONFIG)[1]
    config = app.updateState(past.config, {"x": 1})
    assert app.getState(past.config).state == past.state
    assert app.getState(config).state["x"] == 1
    assert len(app.getStateHistory(CONFIG)) == 4


@pytest.mark.requirement("behaviour 11")
def test_as_node_decides_where_a_resume_goes(saver):  # ignored there (#309)
    app = compiled(graph("A", "B", "C"), saver, interrupt_before=["B"])
    app.invoke({}, CONFIG)
    assert app.updateState(CONFIG, {}, "B").nextNode() == "C"
    assert nodes(app.stream(None, CONFIG)) == ["C", END]
