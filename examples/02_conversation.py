"""A conversation with an assistant that remembers earlier messages, even after a restart.

Shows: MessagesState; one run per message on one thread; a state that a later process finds again.
The assistant follows a few rules and needs no network. Replace it with a model.
Run:   python examples/02_conversation.py [--runs DIR] [--thread ID]
Reads one message per line and prints an answer to each, until the input ends. Type `my name is Ada`, stop
the program, start it again and ask `what is my name?`: it prints `Your name is Ada.`
"""

import argparse
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from graphkit import Channel, MessagesState, StateGraph
from savers import FileSystemSaver


class Conversation(MessagesState):
    SCHEMA = {**MessagesState.SCHEMA, "facts": Channel(lambda old, new: {**old, **new}, dict)}


def message(sender, text):
    return {"from": sender, "at": datetime.now(UTC), "text": text}  # the time distinguishes two equal texts


def listen(state: Conversation):
    return {"facts": dict(re.findall(r"my (\w+) is (\w+)", state["messages"][-1]["text"]))}


def answer(state: Conversation):
    asked = re.match(r"what is my (\w+)", state["messages"][-1]["text"], re.IGNORECASE)
    if asked and asked[1] in state["facts"]:
        text = f"Your {asked[1]} is {state['facts'][asked[1]]}."
    elif asked:
        text = f"You have not told me your {asked[1]}."
    else:
        told = ", ".join(f"{thing} {value}" for thing, value in state["facts"].items())
        text = f"Message {len(state['messages']) // 2 + 1}. I know of you: {told or 'nothing yet'}."
    return {"messages": message("assistant", text)}


graph = StateGraph(Conversation).add_sequence([listen, answer])
graph.set_entry_point("listen").set_finish_point("answer")

parser = argparse.ArgumentParser(description="Talk to an assistant that remembers.")
parser.add_argument("--runs", default="runs")
parser.add_argument("--thread", default="conversation")
args = parser.parse_args()
app = graph.compile(checkpoint_saver=FileSystemSaver(Path(args.runs, "checkpoints")))

if earlier := app.state_of(args.thread):
    print(f"We have spoken before: {len(earlier.state['messages'])} messages.", flush=True)
for line in sys.stdin:
    if text := line.strip():
        state = app.invoke({"messages": message("user", text)}, args.thread)
        print(state["messages"][-1]["text"], flush=True)
