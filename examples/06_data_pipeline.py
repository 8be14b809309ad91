"""A data pipeline that fails in stage 3 the first time: ingest, preprocess, analyze, report.

Shows: a run that fails and is resumed by a later process; finished stages are not run again; the status in between;
an observer; why it failed, read from the store.
Run:   python examples/06_data_pipeline.py [--runs DIR]      (twice)
Prints the stages as they run and, the first time, `failed: node 'analyze' failed: ConnectionError: ...`. The second
time it prints that it goes on with `analyze`, runs the two stages that are left, and prints the report.
"""

import argparse
import statistics
import sys
from pathlib import Path

from graphkit import END, START, GraphResume, RunnableConfig, StateGraph
from graphkit.errors import NodeExecutionError
from savers import FileSystemSaver

parser = argparse.ArgumentParser(description="Measure a day.")
parser.add_argument("--runs", default="runs")
runs = Path(parser.parse_args().runs)


def ingest(state):
    return {"lines": ["08:00;17.5", "09:00;18.0", "10:00;", "11:00;21.5", "12:00;23.0"]}


def preprocess(state):
    pairs = [line.split(";") for line in state["lines"]]
    return {"degrees": {time: float(value) for time, value in pairs if value}}


def analyze(state):
    service = runs / "service-is-up"
    if not service.exists():  # the first time the service is down; it will be up the next time
        service.touch()
        raise ConnectionError("the service does not answer")
    degrees = state["degrees"].values()
    return {"mean": statistics.mean(degrees), "highest": max(degrees)}


def report(state):
    return {"report": f"{len(state['degrees'])} values, {state['mean']:.1f} on average, {state['highest']} at most"}


def watch(event):
    if event.type == "node.start":
        print(f"stage {event.data['step']}: {event.node_id}")


graph = StateGraph({}).add_edge(START, "ingest").add_edge("report", END)
for stage in (ingest, preprocess, analyze, report):
    graph.add_node(stage.__name__, stage)
graph.add_edge("ingest", "preprocess").add_edge("preprocess", "analyze").add_edge("analyze", "report")

saver = FileSystemSaver(runs / "checkpoints")
app = graph.compile(checkpoint_saver=saver, observers=[watch])
config = RunnableConfig(thread_id="pipeline")

latest = next(iter(saver.history(config)), None)
if latest is not None:
    print(f"{latest.status}: going on with {latest.next_node_id}")
try:
    final = app.invoke({} if latest is None else GraphResume(), config)
except NodeExecutionError as error:
    sys.exit(f"failed: {error}")
print(final["report"])
