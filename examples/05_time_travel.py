"""Time travel: list every past state, go back to one, change it, and keep both histories.

Shows: get_state_history, a fork with update_state (as_node, goto), runs from a past checkpoint, parents.
Run:   python examples/05_time_travel.py [--runs DIR]
Prints the history of a trip, newest first, then the history after a change in the middle, then every line
of the history from its end to its start.
"""

import argparse
import operator
from pathlib import Path
from typing import Annotated, TypedDict

from graphkit import END, GraphResume, StateGraph
from savers import FileSystemSaver


class Trip(TypedDict):
    money: int
    by: str
    log: Annotated[list[str], operator.add]


def leave(state: Trip):
    return {"log": [f"leave with {state['money']}"]}


def travel(state: Trip):
    price = {"train": 40, "plane": 90}[state["by"]]
    return {"money": state["money"] - price, "log": [f"{state['by']} for {price}"]}


def stay(state: Trip):
    return {"log": ["hotel" if state["money"] >= 50 else "tent"]}


graph = StateGraph(Trip).add_sequence([leave, travel, stay]).set_entry_point("leave").set_finish_point("stay")

parser = argparse.ArgumentParser(description="Travel back in time.")
parser.add_argument("--runs", default="runs")
saver = FileSystemSaver(Path(parser.parse_args().runs, "trips"))
app = graph.compile(checkpoint_saver=saver)
trip = "trip"  # the id of the thread
saver.delete(trip)  # so that each start of this example prints the same


def show(title: str):
    print(title)
    for snapshot in app.get_state_history(trip):
        print(f"  {snapshot.node:9} -> {snapshot.next:9} {snapshot.values}")


app.invoke({"money": 120, "by": "plane"}, trip)
show("The trip, newest first:")

# Go back to the checkpoint before the ticket was bought. The changed state is a new checkpoint; the old ones stay.
before = next(snapshot for snapshot in app.get_state_history(trip) if snapshot.next == "travel")
fork = app.update_state(before.config, {"by": "train"})
app.invoke(GraphResume(), fork)
show("After going back and taking the train:")

# `goto` makes any node the next one; `as_node` treats a node as done.
after = app.update_state(before.config, {"money": 10, "log": ["robbed"]}, goto="stay")
print("robbed:", app.invoke(GraphResume(), after)["log"])
lift = app.update_state(before.config, {"log": ["a friend's car"]}, as_node="travel")
print("as if travel had returned:", app.invoke(GraphResume(), lift)["log"])

# No checkpoint was rewritten: every line of the history can be followed from its end to its start.
history = {snapshot.checkpoint_id: snapshot for snapshot in app.get_state_history(trip)}
for end in reversed([snapshot for snapshot in history.values() if snapshot.next == END]):
    line = [end]
    while line[-1].parent_id:
        line.append(history[line[-1].parent_id])
    print(" <- ".join(snapshot.node.strip("_") for snapshot in line), end.state["log"][1:])
