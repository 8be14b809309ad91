"""A process that runs or serves a graph on PostgreSQL; a node may wait for a line on its standard input."""

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from graphkit import RunnableConfig, interrupt
from graphkit.errors import CheckpointerError, NodeExecutionError
from graphkit.worker import Worker
from savers import PostgresSaver
from tests.support import graphs
from tests.support.client import tell
from tests.support.graphs import LOG


def step(name, gate=None):
    """A node that appends its name, and waits if it is the gate; `once` records its effect."""

    def node(state, config):
        if name == gate:
            tell("waiting")
            sys.stdin.readline()
        return {"log": config.once("effect", lambda: name)}

    return node


def make_graph(gate=None):
    """A node, a nested graph, a fork of two branches and a last node."""
    make_step = partial(step, gate=gate)
    inner = graphs.make_graph(LOG, "START>inner inner>END", make_step)
    edges = "START>first first>nested nested>left,right left>last right>last last>END"
    return graphs.make_graph(LOG, edges, make_step, nested=inner.compile())


def step_on_worker(name, pipe, state, config):
    """A branch in another process; the effect of the gate waits, and is recorded after that."""

    def act():
        if pipe is not None:
            tell(f"waiting {os.getpid()}")
            # Blocks until the test opens it, too.
            Path(pipe).read_bytes()
        return name

    outcome = "recorded"
    try:
        return {"log": config.once("effect", act)}
    except CheckpointerError as error:
        outcome = type(error).__name__
        raise
    finally:
        if pipe is not None:
            tell(f"worker {outcome}")


def make_graph_on_workers(gate=None, pipe=None):
    """Two branches; the gate waits until the pipe is opened."""

    def make_branch(name):
        return partial(step_on_worker, name, pipe if name == gate else None)

    return graphs.make_graph(LOG, "START>left,right left>END right>END", make_branch)


def make_served_graph(folder, gate=None):
    """A draft, a question and its publication, each noted in a file."""

    def note(text):
        with Path(folder, "work").open("ab", buffering=0) as file:
            file.write(f"{text}\n".encode())

    def draft(state, config):
        note(f"{config.thread} draft")
        return {"log": "draft"}

    def review(state):
        return {"log": interrupt("ok?")}

    def publish(state, config):
        if config.thread == gate:
            tell("waiting")
            sys.stdin.readline()
        note(f"{config.thread} publish {os.getpid()}")
        return {"log": "publish"}

    return graphs.make_chain(LOG, draft=draft, review=review, publish=publish)


def invoke(app, thread_id):
    """Run a graph to its end, and tell how it ended."""
    try:
        app.invoke({}, RunnableConfig(thread_id))
        tell("finished")
    except (CheckpointerError, NodeExecutionError) as error:
        while error.__cause__ is not None:
            error = error.__cause__
        tell(type(error).__name__)


def run(saver, thread_id, gate):
    invoke(make_graph(gate).compile(checkpoint_saver=saver), thread_id)


def run_on_workers(saver, thread_id, gate, pipe):
    graph = make_graph_on_workers(gate, pipe)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        invoke(graph.compile(checkpoint_saver=saver, executor=executor), thread_id)


def serve(saver, folder, gate):
    tell("serving")
    Worker(saver, make_served_graph(folder, gate).compile(), interval=0.05).run()


def main():
    what, connection_string, options, *arguments = json.loads(sys.argv[1])
    with PostgresSaver(connection_string, **options) as saver:
        {"run": run, "run on workers": run_on_workers, "serve": serve}[what](saver, *arguments)


if __name__ == "__main__":
    main()
