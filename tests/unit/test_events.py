"""What observers receive, in order, for each kind of graph; and that no observer changes a run."""

from functools import partial

import pytest

from graphkit import END, START, GraphResume, NodeExecutionError, StateGraph, interrupt, operations
from savers import MemorySaver
from tests.support import graphs
from tests.support.graphs import CONFIG, LOG, both, close_at, connect, fail_once, invoke, is_node, log_node, make_graph

pytestmark = pytest.mark.sweep(1, of="how", in_turn=True)

chain = partial(graphs.make_chain_of, LOG, {})
SAVED_START = ["checkpoint.save __START__", "graph.start a"]


def node(name):
    return [f"node.start {name}", f"node.complete {name}"]


class Recorder:
    """An observer that keeps its events."""

    def __init__(self):
        self.events = []

    def __call__(self, event):
        self.events.append(event)

    def take(self, *, verbose=False):
        taken, self.events = self.events, []
        return [f"{each.type} {each.node_id}" for each in taken if verbose or each.level > "verbose"]

    def data_of(self, type_):
        return [dict(event.data) for event in self.events if event.type == type_]


@pytest.fixture
def recorder():
    return Recorder()


@pytest.mark.requirement("G26")
@both
def test_a_run_from_start_to_end(how, recorder):
    saver = MemorySaver()
    graph = chain("a").compile(checkpoint_saver=saver, observers=[recorder])
    invoke(graph, {"log": "i"}, how=how)

    assert recorder.data_of("graph.start")[0]["run_id"] == saver.get(CONFIG).metadata["run_id"]
    assert recorder.data_of("node.state") == [{"input": {"log": ["i"]}}, {"output": {"log": ["i", "a"]}}]
    assert recorder.data_of("edge.transition")[0]["target"] == END
    assert recorder.data_of("state.merge")[0]["keys"] == ["log"]

    types = "node.start node.state state.merge node.state node.complete edge.transition checkpoint.save"
    step = [f"{each} a" for each in types.split()]

    assert recorder.take(verbose=True) == ["state.create __START__", *SAVED_START, *step, "graph.complete __END__"]

    graph.update_state(CONFIG, {"log": "u"})
    invoke(graph, {}, how=how)

    assert recorder.take()[:4] == ["checkpoint.save a", "checkpoint.load a", *SAVED_START]


@pytest.mark.requirement("G25")
@both
def test_a_crash_and_a_resume(how, recorder):
    saver = MemorySaver()
    b = fail_once(log_node("b"), ValueError("no"))
    graph = chain("a", b=b).compile(checkpoint_saver=saver, observers=[recorder])
    with pytest.raises(NodeExecutionError):
        invoke(graph, {}, how=how)
    completed, failed = recorder.events[-2:]

    assert (completed.level, completed.data["error"], completed.data["reason"]) == ("warning", True, "no")
    assert failed.level == "error"
    assert "no" in failed.data["error"]
    assert recorder.take() == [*SAVED_START, *node("a"), "checkpoint.save a", *node("b"), "graph.fail b"]

    invoke(graph, None, how=how)
    load, resume = recorder.events[:2]

    assert load.checkpoint_id == saver.list(CONFIG)[1].id
    assert resume.data["checkpoint_node"] == "a"
    assert resume.data["resume_node"] == "b"
    assert {event.thread_id for event in recorder.events} == {"t"}

    again = ["checkpoint.load a", "checkpoint.resume b", "graph.start b"]

    assert recorder.take() == [*again, *node("b"), "checkpoint.save b", "graph.complete __END__"]


@pytest.mark.requirement("G26")
@both
def test_a_conditional_edge_and_a_loop(how, recorder):
    def count(state):
        return len(state["log"])

    graph = make_graph(LOG, "START>a").add_conditional_edges("a", count, {1: "a", 2: END})
    app = graph.compile(observers=[recorder])
    invoke(app, {}, how=how)

    edges = recorder.data_of("edge.evaluate")
    assert [data["result"] for data in edges] == ["1", "2"]
    assert [data["target"] for data in edges] == ["a", END]
    (cycle,) = recorder.data_of("cycle.detected")
    assert cycle["visit_count"] == 2
    rounds = [*node("a"), "cycle.detected a", *node("a")]
    assert recorder.take() == ["graph.start a", *rounds, "graph.complete __END__"]


@both
def test_a_question_and_its_answer(how, recorder):
    graph = chain(a=lambda state: {"log": interrupt("?")}).compile(checkpoint_saver=MemorySaver(), observers=[recorder])
    invoke(graph, {}, how=how)
    assert recorder.take() == [*SAVED_START, "node.start a", "interrupt.raised a"]
    invoke(graph, GraphResume("x"), how=how)
    resumed = ["checkpoint.load __START__", "checkpoint.resume a", "interrupt.answered a", "graph.start a"]
    assert recorder.take() == [*resumed, *node("a"), "checkpoint.save a", "graph.complete __END__"]


@pytest.mark.parametrize("answer", ["x", None])
def test_a_run_posts_an_answer_that_was_stored_before_it_once(answer, recorder):
    saver, failing = MemorySaver(), fail_once(log_node("done"))

    def ask(state):
        interrupt("?")
        return failing(state)

    graph = chain(a=ask).compile(checkpoint_saver=saver, observers=[recorder])
    invoke(graph, {})
    operations.answer(saver, CONFIG, answer)
    recorder.take()
    with pytest.raises(NodeExecutionError):
        invoke(graph, None)
    assert recorder.take().count("interrupt.answered a") == 1
    invoke(graph, None)
    assert "interrupt.answered a" not in recorder.take()


@pytest.mark.requirement("G26")
@both
def test_a_fork(how, recorder):
    graph = make_graph(LOG, "START>b,c b>j c>j j>END")
    app = graph.compile(checkpoint_saver=MemorySaver(), observers=[recorder])
    invoke(app, {}, how=how)
    fork = "__PARALLEL__(__START__)"
    branch = f"parallel.branch {fork}"
    events = recorder.take()
    inside = events[3:9]

    assert events[:3] == ["checkpoint.save __START__", f"graph.start {fork}", f"parallel.start {fork}"]
    assert sorted(inside) == sorted([*node("b"), *node("c"), branch, branch])
    assert inside.index("node.start b") < inside.index("node.complete b")

    joined = [f"parallel.complete {fork}", f"checkpoint.save {fork}"]

    assert events[9:] == [*joined, *node("j"), "checkpoint.save j", "graph.complete __END__"]


@both
def test_a_subgraph(how, recorder):
    graph = chain(s=chain("a").compile())
    invoke(graph.compile(checkpoint_saver=MemorySaver(), preserve=False, observers=[recorder]), {}, how=how)
    inside = [*SAVED_START, *node("a"), "checkpoint.save a", "graph.complete __END__"]
    start, complete = node("s")
    before = ["checkpoint.save __START__", "graph.start s", start]
    after = [complete, "checkpoint.save s", "checkpoint.delete None", "graph.complete __END__"]
    assert recorder.take() == [*before, *inside, *after]


@both
def test_a_map_and_a_generator(how, recorder):
    def chunks(state):
        yield "x"
        return {"log": "g"}

    graph = StateGraph(LOG).add_map_node("m", lambda n: {"log": n}, lambda state: range(2)).add_node("g", chunks)
    app = connect(graph, "START>m m>g g>END").compile(observers=[recorder])
    invoke(app, {}, how=how)
    items = ["parallel.start m", "parallel.branch m", "parallel.branch m", "parallel.complete m"]
    start, complete = node("m")
    assert recorder.take() == ["graph.start m", start, *items, complete, *node("g"), "graph.complete __END__"]


def test_a_closed_stream_is_no_failure(recorder):
    close_at(chain("a", "b").compile(checkpoint_saver=MemorySaver(), observers=[recorder]), is_node("a"))
    assert recorder.take()[-1] == "checkpoint.save a"


# --- observers cannot change a run ------------------------------------------------------------------------------------


@pytest.mark.requirement("G26")
@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
@both
def test_one_that_raises(error, how, caplog, recorder):
    def raises(event):
        raise error("observer")

    graph = chain("a", "b").compile(checkpoint_saver=MemorySaver(), observers=[raises, recorder])
    assert invoke(graph, {}, how=how)["log"] == ["a", "b"]
    assert recorder.take()[-1] == "graph.complete __END__"
    assert "failed at" in caplog.text


def test_an_observer_that_changes_its_event_and_reads_the_thread():
    saver, seen = MemorySaver(), []

    def spoils(event):
        if event.type == "checkpoint.save":
            seen.append(saver.get(CONFIG.replace(checkpoint_id=event.checkpoint_id)).node_id)
        if event.type == "node.state":
            event.data["input"]["log"].append("spoilt")

    assert chain("a").compile(checkpoint_saver=saver, observers=[spoils]).invoke({}, CONFIG)["log"] == ["a"]
    assert seen == [START, "a"], "it is stored already"
