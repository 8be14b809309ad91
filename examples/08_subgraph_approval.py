"""An approval inside a subgraph: a nested graph checks orders and asks a human about large ones.

Shows: a compiled graph as a node, with its own history; an interrupt inside it that a later process answers
through the outer graph; where an interrupt is pending. The resume repeats no finished node of the subgraph.
Run:   python examples/08_subgraph_approval.py [--runs DIR] [--answer yes|no]
Without an answer, prints `check`, the question, and where the run waits for the answer. With an answer, it
continues inside the subgraph, does not run `check` again, and prints the outcome: `250 for a boat: approved`.
"""

import argparse
from pathlib import Path

from graphkit import END, AgentState, GraphResume, StateGraph, interrupt
from savers import FileSystemSaver


def check(state: AgentState):
    print("check")
    return {"risk": "high" if state["amount"] > 100 else "low"}


def approve(state: AgentState):
    return {"approved": interrupt(f"{state['amount']} for a {state['for']}?") == "yes"}


checking = StateGraph({}).add_node(check).add_node(approve)
checking.set_entry_point("check").set_finish_point("approve")
checking.add_conditional_edges("check", lambda state: state["risk"], {"high": "approve", "low": END})


def close(state: AgentState):
    outcome = "approved" if state.get("approved", True) else "refused"
    return {"outcome": f"{state['amount']} for a {state['for']}: {outcome}"}


graph = StateGraph({}).add_node("checking", checking.compile()).add_node(close)
graph.set_entry_point("checking").add_edge("checking", "close").set_finish_point("close")

parser = argparse.ArgumentParser(description="Order something.")
parser.add_argument("--runs", default="runs")
parser.add_argument("--amount", default=250, type=int)
parser.add_argument("--answer", choices=["yes", "no"])
args = parser.parse_args()
saver = FileSystemSaver(Path(args.runs, "checkpoints"))
app = graph.compile(checkpoint_saver=saver)
order = "order 1"

if not saver.interrupts(order):
    last = app.invoke_final({"amount": args.amount, "for": "boat"}, order)
else:
    last = app.invoke_final(GraphResume(args.answer) if args.answer else GraphResume(), order)
if last.is_end:
    print(last.state["outcome"])
else:
    (waiting,) = saver.interrupts(order)
    print(f"{waiting.payload} It waits in {waiting.checkpoint_ns!r}, at {waiting.node_id!r}.")
