"""An approval inside a subgraph: a nested graph checks orders and asks a human about large ones.

Shows: a compiled graph as a node, with its own history; an interrupt inside it that a later process answers
through the outer graph; where an interrupt is pending. The resume repeats no finished node of the subgraph.
Run:   python examples/08_subgraph_approval.py [--runs DIR] [--answer yes|no]
Without an answer, prints `check`, the question, and where the run waits for the answer. With an answer, it
continues inside the subgraph, does not run `check` again, and prints the outcome: `250 for a boat: approved`.
"""

import argparse
from pathlib import Path

from graphkit import END, START, GraphResume, RunnableConfig, StateGraph, interrupt
from savers import FileSystemSaver


def check(state):
    print("check")
    return {"risk": "high" if state["amount"] > 100 else "low"}


def approve(state):
    return {"approved": interrupt(f"{state['amount']} for a {state['for']}?") == "yes"}


checking = StateGraph({}).add_node("check", check).add_node("approve", approve).add_edge(START, "check")
checking.add_conditional_edges("check", lambda state: state["risk"], {"high": "approve", "low": END})
checking.add_edge("approve", END)


def close(state):
    outcome = "approved" if state.get("approved", True) else "refused"
    return {"outcome": f"{state['amount']} for a {state['for']}: {outcome}"}


graph = StateGraph({}).add_node("checking", checking.compile()).add_node("close", close)
graph.add_edge(START, "checking").add_edge("checking", "close").add_edge("close", END)

parser = argparse.ArgumentParser(description="Order something.")
parser.add_argument("--runs", default="runs")
parser.add_argument("--amount", default=250, type=int)
parser.add_argument("--answer", choices=["yes", "no"])
args = parser.parse_args()
saver = FileSystemSaver(Path(args.runs, "checkpoints"))
app = graph.compile(checkpoint_saver=saver)
order = RunnableConfig(thread_id="order 1")

if saver.interrupts(order):
    given = GraphResume(args.answer) if args.answer else GraphResume()
else:
    given = {"amount": args.amount, "for": "boat"}
last = app.invoke_final(given, order)
if last.is_end:
    print(last.state["outcome"])
else:
    (waiting,) = saver.interrupts(order)
    print(f"{waiting.payload} It waits in {waiting.checkpoint_ns!r}, at {waiting.node_id!r}.")
