"""A graph of LangGraph whose state grows with each step."""

import operator
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    items: Annotated[list, operator.add]


def grow(state):
    return {"items": [f"item {len(state['items'])} " * 20]}


def compile_graph(checkpointer, node=grow, rounds=40):
    graph = StateGraph(State)
    graph.add_node("a", node)
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: END if len(state["items"]) >= rounds else "a")
    return graph.compile(checkpointer=checkpointer)
