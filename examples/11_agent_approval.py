"""An agent that plans a journey, and asks a human before it books.

Shows: tools; two calls at once; a call that waits for approval; no call is repeated after a kill.
The model follows a few rules and needs no network. Replace it with `openai:gpt-4o-mini`.
Run:   python examples/11_agent_approval.py [--runs DIR] [--answer yes|no|REASON] [--seats N]
Prints each tool call as it is executed, and the booking that waits. Run it again with `--answer yes`, or with
`--answer yes --seats 2`, or with a reason to refuse: it prints the model's last message. A call that finished
is never executed again: kill it (kill -9), start it again, and look at `calls.log`.
"""

import argparse
import json
import time
from pathlib import Path

from graphkit import GraphResume
from graphkit.agents import AgentBuilder, tool
from savers import FileSystemSaver

parser = argparse.ArgumentParser(description="Plan a journey.")
parser.add_argument("--runs", default="runs")
parser.add_argument("--answer")
parser.add_argument("--seats", type=int)
parser.add_argument("--pause", default=0.0, type=float, help="seconds that a tool takes")
args = parser.parse_args()
runs = Path(args.runs)
runs.mkdir(parents=True, exist_ok=True)


def log(call):
    time.sleep(args.pause)
    print(f"{call}\n", end="", flush=True)  # one write, because the calls run in parallel
    with (runs / "calls.log").open("a", encoding="utf-8") as file:
        file.write(f"{call}\n")


@tool
def find_trains(city: str) -> list[str]:
    """Find the trains to a city."""
    log(f"find_trains {city}")
    return [f"07:15 to {city}", f"09:40 to {city}"]


@tool
def forecast(city: str) -> str:
    """Tell tomorrow's weather."""
    log(f"forecast {city}")
    return "sunny"


@tool(requires_approval=True)
def book(train: str, seats: int = 1) -> str:
    """Book seats."""
    log(f"book {train} x{seats}")
    return f"booked {seats} x {train}"


def follow_rules(messages):
    """Answer as a model would: first look, then book, then report."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    planned = {0: {"find_trains": {"city": "Porto"}, "forecast": {"city": "Porto"}}, 2: {"book": {"train": "09:40"}}}
    if len(results) not in planned:
        return f"Weather: {results[1]}. {results[2]}"
    calls = [{"name": name, "arguments": json.dumps(given)} for name, given in planned[len(results)].items()]
    return {"role": "assistant", "tool_calls": [{"id": c["name"], "type": "function", "function": c} for c in calls]}


builder = AgentBuilder().with_chat(follow_rules).with_tools(find_trains, forecast, book)
agent = builder.with_checkpointer(FileSystemSaver(runs / "checkpoints")).build()

given: str | GraphResume | None = None if agent.get_state_history("journey") else "Book me a train to Porto."
if args.answer and agent.get_state("journey").interrupts:
    changed = {"arguments": {"train": "09:40", "seats": args.seats}} if args.seats else {}
    given = GraphResume({"approved": args.answer == "yes", "reason": args.answer, **changed})
state = agent.run(given, "journey")
for waiting in agent.get_state("journey").interrupts:
    print(f"waits for approval: {waiting.payload['tool']} {json.dumps(waiting.payload['arguments'])}")
if not agent.get_state("journey").interrupts:
    print(state["messages"][-1]["content"])
