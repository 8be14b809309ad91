"""A LangGraph application on graphkit's files: it writes a report section by section and asks for approval.

Shows: FileSystemCheckpointSaver in place of LangGraph's own savers; a killed run that continues with the next
section; an interrupt that a later process answers; the history as the graphkit command reads it.
Run:   python examples/langgraph_review.py [--runs DIR] [--answer yes|no] [--kill-after N]
Needs: pip install 'graphkit-durable[langgraph]'
Prints each section as it is written, then the question; with an answer, the outcome. With --kill-after 2 it kills
itself after two sections; started again, it prints only the others. Then `graphkit history runs report` lists
every step.
"""

import argparse
import operator
import os
import signal
from typing import Annotated, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from savers.langgraph import FileSystemCheckpointSaver

SECTIONS = ["summary", "figures", "risks", "advice"]


class Report(TypedDict):
    topic: str
    sections: Annotated[list[str], operator.add]
    outcome: str


parser = argparse.ArgumentParser(description="Write a report, and have it approved.")
parser.add_argument("--runs", default="runs")
parser.add_argument("--answer", choices=["yes", "no"])
parser.add_argument("--kill-after", type=int, default=len(SECTIONS) + 1)
args = parser.parse_args()


def write(state: Report):
    if len(state["sections"]) == args.kill_after:
        os.kill(os.getpid(), signal.SIGKILL)
    name = SECTIONS[len(state["sections"])]
    print(f"writing: {name}", flush=True)
    return {"sections": [f"{name} of {state['topic']}"]}


def review(state: Report):
    answer = interrupt(f"approve {len(state['sections'])} sections on {state['topic']}?")
    return {"outcome": "approved" if answer == "yes" else "refused"}


graph = StateGraph(Report)
graph.add_node("write", write)
graph.add_node("review", review)
graph.add_edge(START, "write")
graph.add_conditional_edges("write", lambda s: "write" if len(s["sections"]) < len(SECTIONS) else "review")
graph.add_edge("review", END)

saver = FileSystemCheckpointSaver(args.runs)
app = graph.compile(checkpointer=saver)
config: RunnableConfig = {"configurable": {"thread_id": "report"}}

state = app.get_state(config)
given: Report | Command[str] | None = None
if state.interrupts and args.answer:
    given = Command(resume=args.answer)
elif not state.interrupts and not state.next:
    given = {"topic": "the mill", "sections": [], "outcome": ""}
result = app.invoke(given, config, durability="sync")
for question in result.get("__interrupt__", ()):
    print(question.value)
if result["outcome"]:
    print(f"the report is {result['outcome']}")
