"""Draws graphs: graph."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import click

from graphkit._diagram import GraphRepresentation, draw
from graphkit._plan.topology import GraphDefinition
from graphkit._records.config import END, RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit.cli import options
from graphkit.cli.command import Command
from graphkit.cli.context import CliContext
from graphkit.cli.render import Text
from graphkit.cli.resolve import find_checkpoint, find_thread, load_app, require_saver
from graphkit.cli.stores import open_store
from graphkit.cli.values import UsageError
from graphkit.operations import lineage

_SOURCES_WITHOUT_NODE: Final = frozenset({"update", "fork", "answer"})
"""Values of the metadata's `source` of checkpoints at the node of the checkpoint before."""


@click.command("graph", cls=Command)
@options.directory
@click.argument("thread", metavar="[THREAD]", required=False, help="The thread whose path to draw.")
@options.checkpoint_id
@options.maybe_app
@click.option(
    "--format",
    "syntax",
    type=click.Choice([syntax.value for syntax in GraphRepresentation.Type]),
    help="The syntax of the diagram. Default: text at a terminal, otherwise mermaid.",
)
def graph(
    context: CliContext,
    directory: str,
    thread: str | None,
    checkpoint: str | None,
    app: str | None,
    syntax: str | None,
) -> Text:
    """Draw a graph, with the path that a thread took and the node at which it continues.

    Without --app, the command draws only the path, from the thread's checkpoints.

    Example: graphkit graph runs order-17 --app shop:app
    """
    form = GraphRepresentation.Type.TEXT if context.is_pretty else GraphRepresentation.Type.MERMAID
    if syntax is not None:
        form = GraphRepresentation.Type(syntax)
    if thread is None:
        if app is None:
            raise UsageError("name a thread, or the graph with --app")
        drawing = load_app(app).get_graph(form).content
        return Text(drawing, {"drawing": drawing, "path": []})

    compiled = None if app is None else load_app(app, directory)
    saver = open_store(directory) if compiled is None else require_saver(compiled)
    config = RunnableConfig(find_thread(saver, thread))
    latest = find_checkpoint(saver, config, checkpoint)
    path = _path(lineage(saver.history(config), latest.id))
    fingerprint = latest.metadata.get("graph")
    if compiled is None:
        drawing = _draw_path(path, config.thread, form, latest.next_node_id)
    else:
        if fingerprint is not None and fingerprint != compiled.topology.fingerprint:
            context.warn("graphkit: the graph has changed since this thread was stored")
        topology = compiled.topology
        drawing = draw(topology, form, config.thread, path=path, current=latest.next_node_id).content

    return Text(
        drawing,
        {
            "thread": config.thread,
            "fingerprint": fingerprint,
            "path": path,
            "drawing": drawing,
        },
    )


def _path(checkpoints: Sequence[CheckpointInfo]) -> list[str]:
    """Return the nodes that finished, oldest first, and END if the last checkpoint leads there."""
    path = [info.node_id for info in checkpoints if info.metadata.get("source") not in _SOURCES_WITHOUT_NODE]
    if checkpoints[-1].next_node_id == END:
        path.append(END)
    return path


def _draw_path(path: Sequence[str], title: str, form: GraphRepresentation.Type, current: str | None) -> str:
    """Draw the graph that consists of a path."""
    # Without nodes: the diagram adds those that edges lead to, as in a graph that is not finished.
    definition = GraphDefinition()
    nodes = list(path)
    if form is GraphRepresentation.Type.TEXT and current not in {None, path[-1]}:  # where the run continues
        nodes.append(str(current))
    for source, target in pairwise(nodes):
        targets = definition.edges.setdefault(source, [])
        assert isinstance(targets, list)
        if target not in targets:
            targets.append(target)
    return draw(definition, form, title, path=path, current=current).content
