"""Parallel research: search three libraries in parallel, read all finds in parallel, then write the answer.

Shows: a fork and its join; a map over items that are known only at run time; reducers that merge in the order
of the edges; chunks from a generator; a diagram of the graph with the path that a run took.
Run:   python examples/07_parallel_research.py [QUESTION] [--draw]
Prints the finds, then the answer word by word, and with --draw the graph in Mermaid.
"""

import argparse

from graphkit import START, AgentState, Channels, StateGraph, StreamingOutput

SHELVES = {
    "history": ["The first bicycle of 1817 had no pedals", "Paris had a rail to Rouen in 1843"],
    "physics": ["A rolling bicycle is stable on its own", "Steel conducts heat"],
    "travel": ["By bicycle along the Danube", "A bicycle tour needs spare tubes", "Night trains of Europe"],
}


class Research(AgentState):
    SCHEMA = {"finds": Channels.appender(), "notes": Channels.appender_with_duplicate()}


def search(shelf: str):
    def node(state: Research):
        return {"finds": [f"{shelf}: {title}" for title in SHELVES[shelf] if state["question"] in title.lower()]}

    return node


def read(find: str):
    """Read one find, in parallel with the others; the notes keep the order of the finds."""
    shelf, title = find.split(": ")
    return {"notes": f"{title} ({shelf})"}


def answer(state: Research):
    text = "; ".join(state["notes"]) or "nothing found"
    yield from text.split()
    return {"answer": text}


graph = StateGraph(Research).add_map_node("read", read, "finds").add_node(answer)
for shelf in SHELVES:
    graph.add_node(shelf, search(shelf)).add_edge(START, shelf).add_edge(shelf, "read")
graph.add_edge("read", "answer").set_finish_point("answer")
app = graph.compile()

parser = argparse.ArgumentParser(description="Look something up.")
parser.add_argument("question", nargs="?", default="bicycle")
parser.add_argument("--draw", action="store_true")
args = parser.parse_args()

path = []
for output in app.stream({"question": args.question}):
    if isinstance(output, StreamingOutput):
        print(output.chunk, end=" ", flush=True)
        continue
    path.append(output.node)
    if output.node == "__PARALLEL__(__START__)":
        print("\n".join(output.state["finds"]))
print()
if args.draw:
    print(app.get_graph(title="Research", path=path).content)
