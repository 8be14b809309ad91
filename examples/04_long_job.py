"""A long job in pieces, with progress: count the primes below a limit.

Shows: one step per piece of work, so that a kill costs one piece; progress read from the stored state.
Run:   python examples/04_long_job.py [--limit N] [--piece N] [--runs DIR]
Prints a line per finished piece, `40%  4204 primes below 40000`, and finally `9592 primes below 100000`.
Kill it (kill -9) and start it again: it prints where it continues, and counts no finished piece again.
"""

import argparse
import signal
from math import isqrt
from pathlib import Path
from typing import TypedDict

from graphkit import END, GraphResume, StateGraph
from savers import FileSystemSaver


class Job(TypedDict):
    below: int
    primes: int
    limit: int
    piece: int


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))


def count(state: Job):
    below = min(state["below"] + state["piece"], state["limit"])
    return {"below": below, "primes": state["primes"] + sum(map(is_prime, range(state["below"], below)))}


def is_done(state: Job):
    return "done" if state["below"] >= state["limit"] else "more"


graph = StateGraph(Job).add_node(count).set_entry_point("count")
graph.add_conditional_edges("count", is_done, {"more": "count", "done": END})

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it quietly; the next start goes on
parser = argparse.ArgumentParser(description="Count primes.")
parser.add_argument("--limit", default=100_000, type=int)
parser.add_argument("--piece", default=5_000, type=int)
parser.add_argument("--runs", default="runs")
args = parser.parse_args()
app = graph.compile(checkpoint_saver=FileSystemSaver(Path(args.runs, "checkpoints")), max_iterations=1_000_000)
thread = f"primes below {args.limit}"

given: Job | GraphResume = {"below": 0, "primes": 0, "limit": args.limit, "piece": args.piece}
if stored := app.state_of(thread):
    print(f"going on at {stored.state['below']}", flush=True)
    given = GraphResume()
for step in app.stream(given, thread):
    if step.node == "count":
        below, primes = step.state["below"], step.state["primes"]
        print(f"{100 * below // args.limit:3}%  {primes} primes below {below}", flush=True)
print(f"{app.get_state(thread).state['primes']} primes below {args.limit}")
