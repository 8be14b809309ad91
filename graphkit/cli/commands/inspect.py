"""Reading one checkpoint: show, diff, graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final

import typer

from graphkit._diagram.render import GraphRepresentation
from graphkit._engine.subgraph_updates import strip_subgraph_updates
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import END, START, RunnableConfig
from graphkit._records.output import CheckpointInfo, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.checkpoint_info import public_metadata
from graphkit._saver.writes import (
    ANSWER,
    UPDATE,
    derive_status,
    find_failure,
    progress_of,
    time_or_none,
    waiting_interrupts,
)
from graphkit.cli.context import CliContext
from graphkit.cli.options import CheckpointId, Directory, MaybeApp, Namespace, Thread
from graphkit.cli.placeholder_types import looks_without_types
from graphkit.cli.render import Card, Column, Text, View, tree
from graphkit.cli.resolve import checkpoint_of, line_of, load_app, open_store, saver_of, thread_of
from graphkit.cli.values import LONGEST, UsageError, at_path, brief, differences, plain, shown
from graphkit.errors import CheckpointNotFoundError

_SHOW: Final = (
    Column("thread", "thread", "name"),
    Column("ns", "namespace"),
    Column("id", "checkpoint", "id"),
    Column("parent", "parent", "id"),
    Column("node", "node"),
    Column("next", "next"),
    Column("status", "status", "status"),
    Column("created", "created", "time"),
    Column("tags", "tags", "list"),
    Column("metadata", "metadata", "value"),
    Column("progress", "so far"),
    Column("waiting", "waiting for", "stops"),
    Column("failure", "failed", "failure"),
    Column("recorded", "recorded for the resume", "value"),
)

_RECORDED: Final = (ANSWER, UPDATE)


def store_of(directory: str, app: str | None) -> BaseCheckpointSaver:
    """The store of a command that may be told the graph: which knows its state's types, and perhaps the store."""
    return open_store(directory) if app is None else saver_of(load_app(app, directory))


@looks_without_types
def show(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    checkpoint: CheckpointId = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="PATH", help="Only this part of the state: a.b[3].")
    ] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Only the names of the keys, with the types of their values.")
    ] = False,
    ns: Namespace = "",
    app: MaybeApp = None,
) -> View:
    """Show a checkpoint: its facts, what waits there, and its state as a tree.

    Values of your own types are shown by their fields; with --app, which registers the types, as they are.

    Example: graphkit show runs order-17 --key 'messages[0].text'
    """
    saver = store_of(directory, app)
    at = RunnableConfig(thread_of(saver, thread), checkpoint_ns=ns)
    if checkpoint is not None:
        at = at.with_check_point_id(checkpoint_of(saver, at, checkpoint).id)
    found = _got(saver, at)
    state = strip_subgraph_updates(found.state)
    if key is not None:
        value = at_path(state, key)
        return Text("\n".join(tree(value, context.width if context.is_pretty else None)), plain(value))
    facts = _facts(saver, at.with_check_point_id(found.id), found)
    if keys:
        return Card(_SHOW, {**facts, "state": {name: type(value).__name__ for name, value in state.items()}}, "state")
    return Card(_SHOW, {**facts, "state": state}, "state")


def _got(saver: BaseCheckpointSaver, at: RunnableConfig) -> Checkpoint:
    found = saver.get(at)
    if found is None:  # somebody pruned it in the meantime, or the namespace is empty
        raise CheckpointNotFoundError(at.thread, f"checkpoint {at.checkpoint_id or 'here'}", "see graphkit history")
    return found


def _facts(saver: BaseCheckpointSaver, at: RunnableConfig, found: Checkpoint) -> dict[str, Any]:
    """What is known of a checkpoint beside its state. Asks for nothing that a long history would make slow."""
    writes = saver.get_writes(at)
    stops = [asked(stop) for stop in waiting_interrupts(at, writes)]
    recorded = {name: value for name, value in writes.items() if name.startswith(_RECORDED) and value is not None}
    return {
        "thread": at.thread, "ns": at.checkpoint_ns, "id": found.id, "parent": found.parent_id,
        "node": found.node_id, "next": found.next_node_id, "status": derive_status(found.next_node_id, writes),
        "created": found.created_at, "tags": list(saver.tags_of(at)),
        "metadata": public_metadata(found.metadata), "waiting": stops, "progress": progress_told(writes),
        "failure": find_failure(at, writes), "recorded": recorded,
    }  # fmt: skip


def progress_told(writes: Mapping[str, Any]) -> str | None:
    """How many items or branches are done of each map and fork that runs; None if none does."""
    told = [
        f"{one.done} of {one.total} {'branches' if one.node_id is None else 'items of ' + shown(one.node_id)} done"
        for one in progress_of(writes)
    ]
    return ", ".join(told) or None


def asked(stop: WaitingInterrupt) -> dict[str, Any]:
    """A waiting interrupt as plain data."""
    return {
        "thread": stop.thread_id, "ns": stop.checkpoint_ns, "checkpoint": stop.checkpoint_id, "id": stop.id,
        "node": stop.node_id, "when": stop.when, "payload": stop.payload, "since": time_or_none(stop.created_at),
    }  # fmt: skip


@looks_without_types
def diff(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    first: Annotated[
        str | None,
        typer.Argument(metavar="FROM", help="A checkpoint; the one before the latest otherwise.", show_default=False),
    ] = None,
    second: Annotated[
        str | None, typer.Argument(metavar="TO", help="A checkpoint; the latest otherwise.", show_default=False)
    ] = None,
    ns: Namespace = "",
    app: MaybeApp = None,
) -> Text:
    """Tell what differs between two checkpoints: in their states, and which nodes finished between them.

    Example: graphkit diff runs order-17 3fa92c1b 77d0e2aa
    """
    saver = store_of(directory, app)
    at = RunnableConfig(thread_of(saver, thread), checkpoint_ns=ns)
    after = checkpoint_of(saver, at, second)
    before = checkpoint_of(saver, at, first or after.parent_id)
    old, new = (_got(saver, at.with_check_point_id(one.id)) for one in (before, after))
    found = list(differences(strip_subgraph_updates(old.state), strip_subgraph_updates(new.state)))
    nodes = _between(saver.history(at), before.id, after.id)
    data = {
        "from": before.id, "to": after.id, "nodes": nodes,
        "differences": [{**one._asdict(), "old": _cut(one.old), "new": _cut(one.new)} for one in found],
    }  # fmt: skip
    lines = [line for one in found for line in _told(one.path, one.change, one.old, one.new, context)]
    path = f"nodes in between: {' → '.join(map(shown, nodes))}" if nodes else "no nodes in between"
    return Text("\n".join([*(lines or ["the states are the same"]), path]), data)


def _between(history: Sequence[CheckpointInfo], first: str, second: str) -> list[str]:
    """The nodes that finished on the way to the second that are not on the way to the first."""
    before = {info.id for info in line_of(history, first)}
    return [info.node_id for info in line_of(history, second) if info.id not in before]


def _cut(value: Any) -> Any:
    return value[:LONGEST] + "…" if isinstance(value, str) and len(value) > LONGEST else plain(value)


def _told(path: str, change: str, old: Any, new: Any, context: CliContext) -> list[str]:
    if change != "changed":
        sign, value = ("+", new) if change == "added" else ("-", old)
        return [f"{sign} {shown(path)}: {brief(value, LONGEST)}"]
    if isinstance(old, str) and isinstance(new, str) and ("\n" in old or "\n" in new):
        return [f"~ {shown(path)}:", *_line_by_line(old, new)]
    short = [brief(value, LONGEST) for value in (old, new)]
    if sum(map(len, short)) + len(path) + 8 <= context.width:
        return [f"~ {shown(path)}: {short[0]} → {short[1]}"]
    return [f"~ {shown(path)}:", f"  - {short[0]}", f"  + {short[1]}"]


def _line_by_line(old: str, new: str) -> list[str]:
    from difflib import unified_diff

    lines = unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=1)
    marked = ["..." if line.startswith("@@") else f"{line[0]} {shown(line[1:]) if line[1:] else ''}" for line in lines]
    return [f"  {line}".rstrip() for line in marked[3:]]


def graph(
    context: CliContext,
    directory: Directory,
    thread: Annotated[
        str | None, typer.Argument(metavar="THREAD", help="Whose path to draw.", show_default=False)
    ] = None,
    checkpoint: CheckpointId = None,
    app: MaybeApp = None,
    type: Annotated[
        GraphRepresentation.Type, typer.Option("--format", help="The syntax of the drawing.")
    ] = GraphRepresentation.Type.MERMAID,
) -> Text:
    """Draw a graph, with the path that a thread took. Without --app the path alone, as its checkpoints tell it.

    Example: graphkit graph runs order-17 --app shop:app
    """
    if thread is None:
        if app is None:
            raise UsageError("name a thread, or the graph with --app")
        drawing = load_app(app).get_graph(type).content
        return Text(drawing, {"drawing": drawing, "path": []})
    compiled = None if app is None else load_app(app, directory)
    saver = open_store(directory) if compiled is None else saver_of(compiled)
    at = RunnableConfig(thread_of(saver, thread))
    latest = checkpoint_of(saver, at, checkpoint)
    line = line_of(saver.history(at), latest.id)
    path = _path(line)
    stored = latest.metadata.get("graph")
    if compiled is None:
        drawing = _chain(path, at.thread, type)
    else:
        if stored is not None and stored != compiled.topology.fingerprint:
            context.warn("graphkit: the graph has changed since this thread was stored")
        drawing = compiled.get_graph(type, at.thread, path=path).content
    return Text(drawing, {"thread": at.thread, "fingerprint": stored, "path": path, "drawing": drawing})


def _path(line: Sequence[CheckpointInfo]) -> list[str]:
    """The places that a line of checkpoints passed; what an update stored stands where the one before it stood."""
    path = [info.node_id for info in line if info.metadata.get("source") not in {"update", "fork", "answer"}]
    return [*path, END] if line[-1].next_node_id == END else path


def _chain(path: Sequence[str], title: str, type: GraphRepresentation.Type) -> str:
    names = {node: node if node in {START, END} else f"n{number}" for number, node in enumerate(dict.fromkeys(path))}
    steps: dict[tuple[str, str], list[int]] = {}
    for number, pair in enumerate(pairwise(path), 1):
        steps.setdefault(pair, []).append(number)
    visits = Counter(path)
    labels = {
        node: shown(node).replace('"', "'") + (f" (x{visits[node]})" if visits[node] > 1 else "") for node in names
    }
    arrows = [(names[a], names[b], " ".join(map(str, at))) for (a, b), at in steps.items()]
    if type is GraphRepresentation.Type.PLANTUML:
        boxes = [f'usecase "{labels[node]}" as {name}' for node, name in names.items()]
        body = [*boxes, *(f"{a} --> {b} : {text}" for a, b, text in arrows)]
        return "\n".join(["@startuml", f"title {shown(title)}", *body, "@enduml"]) + "\n"
    boxes = [f'\t{name}("{labels[node]}")' for node, name in names.items()]
    body = [*boxes, *(f"\t{a} -->|{text}| {b}" for a, b, text in arrows)]
    return "\n".join(["---", f"title: {shown(title)}", "---", "flowchart TD", *body]) + "\n"


COMMANDS: Final = (show, diff, graph)
