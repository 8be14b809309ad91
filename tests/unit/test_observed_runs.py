"""The events of real runs, and that observers cannot change a run."""

import subprocess
import sys
import threading

import pytest

from graphkit import END, START, GraphResume, NodeExecutionError, RunnableConfig, StateGraph, interrupt
from graphkit.compat.go_agents import CheckpointConfig, GraphConfig, branch_on, key_exists, process_chain
from graphkit.observers import EVENTS, Metrics
from graphkit.recovery import recover
from graphkit.registry import register_checkpoint_store
from savers import MemorySaver

AT = RunnableConfig("t")


def failing_once():
    failures = [ValueError("no")]

    def node(state):
        if failures:
            raise failures.pop()
        return {"b": True}

    return node


def pipeline(b, **options):
    graph = StateGraph({}).add_node("a", process_chain(lambda state: {"a": True})).add_node("b", b)
    branch = branch_on((key_exists("a"), "b"), otherwise=END)
    graph.add_edge(START, "a").add_conditional_edges("a", branch, branch.mappings).add_edge("b", END)
    return graph.compile(**options)


def seen(observer):
    """The events of a run that fails in b, and of its recovery."""
    app = pipeline(failing_once(), checkpoint_saver=MemorySaver(), observers=[observer])
    with pytest.raises(NodeExecutionError):
        app.invoke({}, AT)
    assert dict(recover(app, "t")) == {"a": True, "b": True}


@pytest.mark.requirement("G26", "G33")
def test_every_event_of_a_run_is_in_the_table():
    got = []
    seen(got.append)
    assert {event.type for event in got} <= set(EVENTS)
    assert {"node.state", "state.merge", "edge.evaluate", "edge.transition"} <= {event.type for event in got}
    unusual = {event.type for event in got if event.level != EVENTS[event.type].level}
    assert unusual <= {"node.complete"}


@pytest.mark.requirement("G26")
def test_an_observer_that_blocks_holds_up_no_node():
    go, got = threading.Event(), []

    def observer(event):
        go.wait(60)
        got.append(event.type)

    def release(state):
        assert got == [], "the observer is still in its first event"
        go.set()

    pipeline(release, observers=observer).invoke({})
    assert got[-1] == "graph.complete"


@pytest.mark.requirement("G38")
def test_metrics_of_real_runs():
    metrics = Metrics()
    seen(metrics)
    figures = metrics.as_dict()
    seconds, rate = figures.pop("seconds"), figures.pop("checkpoints_per_second")
    assert figures == {
        "runs": 2, "nodes": 3, "checkpoints": 3, "failures": 1, "resumes": 1, "interrupts": 0, "retries": 0,
        "resume_success": 1.0,
    }  # fmt: skip
    assert rate == 3 / seconds


@pytest.mark.requirement("G38")
def test_metrics_of_a_stop():
    metrics = Metrics()
    app = pipeline(lambda state: {"b": interrupt("?")}, checkpoint_saver=MemorySaver(), observers=metrics)
    app.invoke({}, AT)
    app.invoke(GraphResume(7), AT)
    assert (metrics.interrupts, metrics.resumes, metrics.resume_success, metrics.failures) == (1, 1, 1.0, 0)


@pytest.mark.requirement("G20", "G10", "G12")
def test_a_graph_made_of_a_configuration():
    saver, text = MemorySaver(), '{"name": "g", "observer": "noop", "checkpoint": {"store": "test-run", "interval": 1}}'
    register_checkpoint_store("test-run", saver)
    app = pipeline(failing_once(), **GraphConfig.from_json(text).compile_options())
    with pytest.raises(NodeExecutionError):
        app.invoke({}, AT)
    assert [checkpoint.node_id for checkpoint in saver.list(AT)] == ["a", START], "kept after a failure"
    assert recover(app, "t")["b"]
    assert not saver.threads(), "gone after success: preserve is false"
    off = GraphConfig("g", observer=None, checkpoint=CheckpointConfig(store="nowhere")).compile_options()
    assert pipeline(lambda state: {"b": 1}, **off).invoke({})["b"] == 1


PIPELINE = """
import sys
from graphkit import END, START, StateGraph
from graphkit.compat.go_agents import GraphConfig

directory, call = sys.argv[1:]
config = GraphConfig("pipeline", observer=None, checkpoint={
    "store": "disk", "path": f"{directory}/store", "interval": 1, "preserve": True,
})
stages = ["ingest", "preprocess", "analyze", "report"]
graph = StateGraph({})
for stage, following in zip(stages, [*stages[1:], END]):
    def work(state, stage=stage):
        print(stage)
        if stage == "analyze" and call == "first":
            sys.exit("the power went")
        return {stage: len(state)}
    graph.add_node(stage, work).add_edge(stage, following)
app = graph.add_edge(START, "ingest").compile(**config.compile_options())
thread = {"configurable": {"thread_id": "run-1"}}
state = app.invoke({"rows": 3}, thread) if call == "first" else app.resume("run-1")
print(dict(state), len(app.get_state_history(thread)))
"""


@pytest.mark.requirement("G34", "G35")
def test_the_data_pipeline_goes_on_in_another_process(tmp_path):
    def process(call):
        command = [sys.executable, "-W", "error", "-c", PIPELINE, str(tmp_path), call]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    first, second = process("first"), process("second")
    assert (first.returncode, first.stdout.split()) == (1, ["ingest", "preprocess", "analyze"]), first.stderr
    assert second.stdout.splitlines() == [
        "analyze", "report", "{'rows': 3, 'ingest': 1, 'preprocess': 2, 'analyze': 3, 'report': 4} 5",
    ], second.stderr  # fmt: skip
