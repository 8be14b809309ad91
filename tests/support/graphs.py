"""What tests of runs share: graphs and nodes, sync and async runs, and what is read of them."""

import asyncio
import functools
import operator
import threading

import pytest

from graphkit import (
    END,
    START,
    Channels,
    NodeExecutionError,
    RunnableConfig,
    StateGraph,
    StreamingOutput,
    interrupt,
    operations,
)

CONFIG = RunnableConfig("t")
LOG = {"log": Channels.appender_with_duplicate()}
COUNTED = {**LOG, "n": Channels.base(operator.add, lambda: 0)}

CYCLE = []
"""A value that contains itself, which nothing can store."""
CYCLE.append(CYCLE)

both = pytest.mark.parametrize("how", ["sync", "async"])


class Boom(Exception):
    """What a failing node raises."""


class Killed(BaseException):
    """The process is gone: nothing else is stored by it."""


def log_node(word, **update):
    """Make a node that logs a word, with further updates."""
    return lambda state: {"log": word, **update}


def asking(payload, **terms):
    """Make a node that asks a human, and logs the answer."""
    return lambda state: {"log": interrupt(payload, **terms)}


class FlakyNode:
    """Lists its runs, raises `Boom` while `fails` is set, and otherwise logs its name."""

    def __init__(self, name, runs=None, *, fails=False, begun=None, after=None):
        self.name = name
        self.runs = [] if runs is None else runs
        self.fails = fails
        self.begun = begun
        """An event that is set when the node begins."""
        self.after = after
        """An event that the node waits for when it has begun."""

    def __call__(self, state):
        self.runs.append(self.name)
        if self.begun is not None:
            self.begun.set()
        if self.after is not None:
            assert self.after.wait(60)
        if self.fails:
            raise Boom(self.name)
        return {"log": self.name}


class ConcurrentCalls:
    """A function that counts how many of its calls run at the same time; they wait for each other in groups."""

    def __init__(self, together):
        self.barrier = threading.Barrier(together)
        self.lock = threading.Lock()
        self.running = 0
        self.most = 0

    def __call__(self, item):
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.barrier.wait(60)
        with self.lock:
            self.running -= 1
        return item


def make_chain(schema=LOG, /, **nodes):
    """Make a graph of nodes, one after the other."""
    graph = StateGraph(schema)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for source, target in zip([START, *nodes], [*nodes, END], strict=True):
        graph.add_edge(source, target)
    return graph


def make_chain_of(schema, update, /, *names, **nodes):
    """Make a chain; nodes that are only named log their name, with further updates."""
    all_names = dict.fromkeys((*names, *nodes))
    return make_chain(schema, **{name: nodes.get(name, log_node(name, **update)) for name in all_names})


def make_map(action, items, schema=LOG, **options):
    """Make a graph of one map node `m` over items, or over those that a function finds."""
    find_items = items if callable(items) else lambda state: items
    return connect(StateGraph(schema).add_map_node("m", action, find_items, **options), "START>m m>END")


def parse_edges(text):
    """Return the pairs of edges like "START>a a>b,c b>d"."""
    places = {"START": START, "END": END}
    pairs = []
    for part in text.split():
        source, _, targets = part.partition(">")
        pairs += [(places.get(source, source), places.get(target, target)) for target in targets.split(",")]
    return pairs


def connect(graph, edges):
    """Add edges like "START>a a>b,c b>d" to a graph, and return it."""
    for source, target in parse_edges(edges):
        graph.add_edge(source, target)
    return graph


def make_graph(schema, edges, make_node=log_node, **nodes):
    """Make a graph of edges like "START>a a>b,c b>d"; `make_node` makes the nodes that are only named."""
    graph = StateGraph(schema)
    names = dict.fromkeys(name for pair in parse_edges(edges) for name in pair if name not in {START, END})
    for name in names:
        graph.add_node(name, nodes[name] if name in nodes else make_node(name))
    return connect(graph, edges)


def outputs(graph, given, config=CONFIG, *, how="sync", on_output=None, **options):
    """Run a graph, and return what it emits; `on_output` is called with each output when it comes."""
    collected = []

    def take(output):
        collected.append(output)
        if on_output is not None:
            on_output(output)

    if how == "sync":
        for output in graph.stream(given, config, **options):
            take(output)
        return collected

    async def collect():
        async for output in graph.astream(given, config, **options):
            take(output)

    asyncio.run(collect())
    return collected


def invoke(graph, given, config=CONFIG, *, how="sync"):
    """Run a graph, and return its state at the end."""
    if how == "sync":
        return graph.invoke(given, config)
    return asyncio.run(graph.ainvoke(given, config))


def invoke_final(graph, given, config=CONFIG, *, how="sync"):
    """Run a graph, and return its last output."""
    if how == "sync":
        return graph.invoke_final(given, config)
    return asyncio.run(graph.ainvoke_final(given, config))


def stored(saver, config=CONFIG):
    """Return (node, next node) of the stored checkpoints, oldest first."""
    return [(checkpoint.node_id, checkpoint.next_node_id) for checkpoint in reversed(saver.list(config))]


def fail_once(function, error=ValueError):
    """Make a function, such as a node, that raises an error the first time, and then calls another one."""
    errors = [error]

    @functools.wraps(function)
    def run(*arguments):
        if errors:
            raise errors.pop()
        return function(*arguments)

    return run


def logged(outputs):
    """Return the log in the state of the last output."""
    return list(outputs[-1].state["log"])


def nodes_of(outputs):
    """Return the nodes of outputs, in their order."""
    return [output.node for output in outputs]


def is_chunk(output):
    return isinstance(output, StreamingOutput)


def close(stream):
    return stream.aclose() if hasattr(stream, "aclose") else stream.close()


def close_at(graph, is_last, given=None, config=CONFIG, *, how="sync", act=close):
    """Stream until an output is the last one to take, and close the stream, or act on it in another way.

    A run starts where `given` is None and the thread has no checkpoint.
    """
    if given is None and graph.last_state_of(config) is None:
        given = {}
    if how == "sync":
        stream = graph.stream(given, config)
        for output in stream:
            if is_last(output):
                return act(stream)
        raise AssertionError("never came")

    async def main():
        stream = graph.astream(given, config)
        async for output in stream:
            if is_last(output):
                return await act(stream)
        raise AssertionError("never came")

    return asyncio.run(main())


def leave_with_status(saver, status):
    """Leave thread "t" queued, stalled, failed, interrupted or answered; return the graph, which asks a question."""

    def ask(state):
        interrupt("ok?")
        return {"log": "asked"}

    node = fail_once(log_node("asked")) if status == "failed" else ask
    app = make_chain(a=log_node("a"), ask=node).compile(checkpoint_saver=saver)
    if status == "queued":
        app.submit({}, CONFIG)
    elif status == "stalled":
        close_at(app, is_node(START))
    elif status == "failed":
        with pytest.raises(NodeExecutionError):
            app.invoke({}, CONFIG)
    else:
        app.invoke({}, CONFIG)
        if status == "answered":
            operations.answer(saver, "t", "yes")
    return app


def is_node(node_id):
    return lambda output: output.node == node_id


def stored_nodes(saver, config=CONFIG):
    """Return the nodes of the stored checkpoints, the newest first."""
    return [checkpoint.node_id for checkpoint in saver.list(config)]


def at_checkpoint(checkpoint, config=CONFIG):
    return config.replace(checkpoint_id=checkpoint.id)


def pending_ids(saver, thread="t"):
    return [stop.id for stop in saver.interrupts(thread)]


def pending_payloads(saver, thread="t"):
    return [stop.payload for stop in saver.interrupts(thread)]


def payloads_of(stop):
    return [each.payload for each in stop.interrupts]


def ids_of(stop):
    """Return the ids of the interrupts of a stop, or of a snapshot, by their payloads."""
    return {each.payload: each.id for each in stop.interrupts}
