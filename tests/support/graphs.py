"""What tests of runs build and look at: chains of nodes, runs in both ways, what is stored of them."""

import asyncio
import operator

import pytest

from graphkit import END, START, Channels, RunnableConfig, StateGraph

CONFIG = RunnableConfig("t")
LOG = {"log": Channels.appender_with_duplicate()}
COUNTED = {**LOG, "n": Channels.base(operator.add, lambda: 0)}

both = pytest.mark.parametrize("how", ["sync", "async"])


class Killed(BaseException):
    """The process is gone: nothing else is stored by it."""


def says(word, **update):
    """A node that logs a word, and updates what else is given."""
    return lambda state: {"log": word, **update}


def make_chain(schema=LOG, /, **nodes):
    """A graph of nodes, one after the other."""
    graph = StateGraph(schema)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for source, target in zip([START, *nodes], [*nodes, END], strict=True):
        graph.add_edge(source, target)
    return graph


def make_chain_of(schema, update, /, *names, **nodes):
    """The same; nodes that are only named log their name, and update what is given."""
    return make_chain(
        schema, **{name: nodes.get(name, says(name, **update)) for name in dict.fromkeys((*names, *nodes))}
    )


def outputs(graph, given, config=CONFIG, *, how="sync"):
    """Run a graph; all that it hands out."""
    if how == "sync":
        return list(graph.stream(given, config))

    async def collected():
        return [output async for output in graph.astream(given, config)]

    return asyncio.run(collected())


def stored(saver, config=CONFIG):
    """(node, next) of what is stored, oldest first."""
    return [(one.node_id, one.next_node_id) for one in reversed(saver.list(config))]
