"""A data pipeline whose third stage fails the first time: ingest, preprocess, analyze, report.

Shows: a failed run that a later process resumes without repeating finished stages; the status of a thread
between the two runs, read from the store; an observer.
Run:   python examples/06_data_pipeline.py [--runs DIR]      (twice)
Prints each stage as it starts. The first time it then prints `failed: node 'analyze' failed:
ConnectionError: ...`. The second time it says that it continues with `analyze`, runs the remaining two
stages, and prints the report.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import TypedDict

from graphkit import Event, GraphResume, StateGraph
from graphkit.errors import NodeExecutionError
from savers import FileSystemSaver

parser = argparse.ArgumentParser(description="Measure a day.")
parser.add_argument("--runs", default="runs")
runs = Path(parser.parse_args().runs)


class Day(TypedDict):
    lines: list[str]
    degrees: dict[str, float]
    mean: float
    highest: float
    report: str


def ingest(state: Day) -> dict[str, list[str]]:
    return {"lines": ["08:00;17.5", "09:00;18.0", "10:00;", "11:00;21.5", "12:00;23.0"]}


def preprocess(state: Day) -> dict[str, dict[str, float]]:
    pairs = [line.split(";") for line in state["lines"]]
    return {"degrees": {time: float(value) for time, value in pairs if value}}


def analyze(state: Day) -> dict[str, float]:
    service = runs / "service-is-up"
    if not service.exists():  # the service is down the first time and up the next time
        service.touch()
        raise ConnectionError("the service does not answer")
    degrees = state["degrees"].values()
    return {"mean": statistics.mean(degrees), "highest": max(degrees)}


def report(state: Day) -> dict[str, str]:
    return {"report": f"{len(state['degrees'])} values, {state['mean']:.1f} on average, {state['highest']} at most"}


def watch(event: Event) -> None:
    if event.type == "node.start":
        print(f"stage {event.data['step']}: {event.node_id}")


graph = StateGraph(Day).add_sequence([ingest, preprocess, analyze, report])
graph.set_entry_point("ingest").set_finish_point("report")

saver = FileSystemSaver(runs / "checkpoints")
app = graph.compile(checkpoint_saver=saver, observers=[watch])

latest = next(iter(saver.history("pipeline")), None)
if latest is not None:
    print(f"{latest.status}: going on with {latest.next_node_id}")
try:
    final = app.invoke({} if latest is None else GraphResume(), "pipeline")
except NodeExecutionError as error:
    sys.exit(f"failed: {error}")
print(final["report"])
