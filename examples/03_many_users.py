"""Many concurrent users: one graph, one store, and a thread for each user.

Shows: isolation by thread id (any string), concurrent runs, queries over all threads, deleting one user.
Run:   python examples/03_many_users.py [--runs DIR] [--users N]
Prints the baskets of three users, then a summary of the store. Each further start adds to every basket.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from graphkit import AgentState, Channels, StateGraph
from savers import FileSystemSaver

PRICES = {"apples": 3, "bread": 4, "cheese": 9, "dates": 6, "eggs": 5}


class Basket(AgentState):
    SCHEMA = {"items": Channels.appender_with_duplicate()}


def add(state: Basket):
    return {"items": state["wish"]}


def total(state: Basket):
    return {"total": sum(PRICES[item] for item in state["items"])}


graph = StateGraph(Basket).add_sequence([add, total]).set_entry_point("add").set_finish_point("total")

parser = argparse.ArgumentParser(description="Fill the baskets of many users at once.")
parser.add_argument("--runs", default="runs")
parser.add_argument("--users", default=50, type=int)
args = parser.parse_args()
saver = FileSystemSaver(Path(args.runs, "baskets"))
app = graph.compile(checkpoint_saver=saver)


def shop(number):
    """Start three runs, one after another, while runs of other users are in progress."""
    user = f"users/{number}@example.org"
    for step in range(3):
        app.invoke({"wish": list(PRICES)[(number + step * step) % len(PRICES)]}, user)
    return app.get_state(user).state


with ThreadPoolExecutor(8) as pool:
    baskets = list(pool.map(shop, range(args.users)))
for number, basket in enumerate(baskets[:3]):
    print(f"user {number}: {', '.join(basket['items'])} = {basket['total']}")

threads = saver.threads()
finished = sum(saver.history(thread)[0].status == "finished" for thread in threads)
print(f"{len(threads)} threads, {finished} finished")
saver.delete("users/0@example.org")
print(f"user 0 deleted: {len(saver.threads())} threads")
