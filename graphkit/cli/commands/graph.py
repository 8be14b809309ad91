"""Draws graphs: graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import click

from graphkit._diagram import GraphRepresentation
from graphkit._records.config import END, START, RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit.cli import options
from graphkit.cli.apps import load_app, require_saver
from graphkit.cli.command import Command
from graphkit.cli.context import CliContext
from graphkit.cli.options import OneOf
from graphkit.cli.resolve import find_checkpoint, find_thread
from graphkit.cli.stores import open_store
from graphkit.cli.values import UsageError, escape
from graphkit.cli.views import Text
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
    type=OneOf([syntax.value for syntax in GraphRepresentation.Type]),
    default=GraphRepresentation.Type.MERMAID.value,
    help="The syntax of the diagram.",
)
def graph(
    context: CliContext,
    directory: str,
    thread: str | None,
    checkpoint: str | None,
    app: str | None,
    syntax: str,
) -> Text:
    """Draw a graph, with the path that a thread took.

    Without --app, the command draws only the path, from the thread's checkpoints.

    Example: graphkit graph runs order-17 --app shop:app
    """
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
        drawing = _draw_path(path, config.thread, form)
    else:
        if fingerprint is not None and fingerprint != compiled.topology.fingerprint:
            context.warn("graphkit: the graph has changed since this thread was stored")
        drawing = compiled.get_graph(form, config.thread, path=path).content

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


def _draw_path(path: Sequence[str], title: str, form: GraphRepresentation.Type) -> str:
    """Draw a path without its graph.

    Each node is drawn once; an arrow has the numbers of its steps.
    """
    # The ids of nodes may be any text, which neither syntax takes as a name.
    labels = _node_labels(path)
    names: dict[str, str] = {}
    for number, node in enumerate(labels):
        names[node] = node if node in {START, END} else f"n{number}"

    if form is GraphRepresentation.Type.PLANTUML:
        node_line = 'usecase "{label}" as {name}'
        arrow_line = "{source} --> {target} : {steps}"
        header = ["@startuml", f"title {escape(title)}"]
        footer = ["@enduml"]
    else:
        node_line = '\t{name}("{label}")'
        arrow_line = "\t{source} -->|{steps}| {target}"
        header = ["---", f"title: {escape(title)}", "---", "flowchart TD"]
        footer = []

    lines = list(header)
    for node, label in labels.items():
        line = node_line.format(name=names[node], label=label)
        lines.append(line)

    for (source, target), steps in _steps_of_arrows(path).items():
        line = arrow_line.format(
            source=names[source],
            target=names[target],
            steps=" ".join(map(str, steps)),
        )
        lines.append(line)

    lines += footer
    return "\n".join(lines) + "\n"


def _node_labels(path: Sequence[str]) -> dict[str, str]:
    """Return the label of each node, in the order of the path, with the number of its visits."""
    labels: dict[str, str] = {}
    for node, visits in Counter(path).items():
        labels[node] = escape(node).replace('"', "'")
        if visits > 1:
            labels[node] += f" (x{visits})"
    return labels


def _steps_of_arrows(path: Sequence[str]) -> dict[tuple[str, str], list[int]]:
    """Return the numbers of the steps from each node to another."""
    steps: dict[tuple[str, str], list[int]] = {}
    for number, arrow in enumerate(pairwise(path), 1):
        steps.setdefault(arrow, []).append(number)
    return steps
