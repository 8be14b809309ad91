"""Review a folder of text files: read and measure each, ask a human about doubtful ones, write a report.

Shows: a loop with a checkpoint after every step; `interrupt()`, which asks a human; recovery after a kill.
Run:   python examples/01_document_review.py [--documents DIR] [--runs DIR] [--thread ID] [--answers yes|no|ask]
Prints a line per stored step (`measure bread.txt`), then the report. Kill it at any moment (kill -9) and start it
again: it continues after the last stored step, or repeats the pending question. --thread names a review and its
folder. Each node appends a line to work.log there, just before its checkpoint is stored.
"""

import argparse
import operator
import re
import signal
import sys
from pathlib import Path
from typing import Annotated, TypedDict

from graphkit import START, GraphResume, InterruptionMetadata, RunnableConfig, StateGraph, interrupt
from savers import FileSystemSaver


class Review(TypedDict):
    target: Path
    todo: list[Path]
    document: str
    text: str
    problems: list[str]
    results: Annotated[list[str], operator.add]


Update = dict[str, object]


def read(state: Review) -> Update:
    path, *todo = state["todo"]
    return {"document": path.name, "todo": todo, "text": path.read_text(encoding="utf-8")}


def measure(state: Review) -> Update:
    longest = max(len(sentence.split()) for sentence in re.split(r"[.!?:]\s|\n\n", state["text"]))
    loud = sum(word.isupper() and len(word) > 3 for word in state["text"].split())
    found = {f"a sentence of {longest} words": longest > 40, f"{loud} words in capitals": loud > 3}
    found["no date"] = not re.search(r"\d{4}-\d\d-\d\d|\d \w+ \d{4}", state["text"])
    return {"problems": [problem for problem, is_so in found.items() if is_so]}


def judge(state: Review) -> Update:
    problems = ", ".join(state["problems"])
    verdict = "accepted" if not problems or interrupt(f"{state['document']}: {problems}") else "rejected"
    return {"results": [f"{verdict:8}  {state['document']}  {problems}".rstrip()]}


def report(state: Review) -> Update:
    new = state["target"] / "report.new"
    new.write_text("".join(f"{line}\n" for line in state["results"]), encoding="utf-8")
    new.replace(new.with_suffix(".txt"))  # atomic: a reader never sees half a report
    return {"document": "report.txt"}


def log(node: str, state: Review, _config: RunnableConfig, update: Update) -> Update:
    with (state["target"] / "work.log").open("a", encoding="utf-8") as file:
        file.write(f"{node} {({**state, **update})['document']}\n")
    return update


graph = StateGraph(Review).add_sequence([read, measure, judge]).add_node(report).set_finish_point("report")
graph.add_after_call_node_hook(log)
for point in (START, "judge"):
    graph.add_conditional_edges(point, lambda state: "read" if state["todo"] else "report", ["read", "report"])

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it quietly; the next start goes on
parser = argparse.ArgumentParser(description="Review a folder of text files.")
for name, default in {"documents": Path(__file__).parent / "documents", "runs": "runs", "thread": "review"}.items():
    parser.add_argument(f"--{name}", default=default)
parser.add_argument("--answers", default="ask", choices=["yes", "no", "ask"])
args = parser.parse_args()
app = graph.compile(checkpoint_saver=FileSystemSaver(Path(args.runs, "checkpoints")), max_iterations=1_000_000)
(target := Path(args.runs, args.thread)).mkdir(parents=True, exist_ok=True)
start: Update = {"target": target, "todo": sorted(Path(args.documents).glob("*.txt")), "results": []}
given: Update | GraphResume | None = GraphResume() if app.state_of(args.thread) else start
while given is not None:
    steps, given = app.stream(given, args.thread), None
    for step in steps:
        if isinstance(step, InterruptionMetadata):
            print(f"{step.payload}. Accept it? (y/n)", flush=True)
            answer = sys.stdin.readline() if args.answers == "ask" else args.answers
            given = GraphResume(answer.startswith("y")) if answer else None  # end of input: the interrupt stays pending
        elif step.is_end:
            print((target / "report.txt").read_text(encoding="utf-8"), end="")
        elif not step.is_start:
            print(step.node, step.state["document"], flush=True)
