"""Inspects checkpoints: show, diff; and draws the path to one: graph."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Annotated, Any, Final, NamedTuple

import click

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import END, RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import load_checkpoint
from graphkit._saver.langgraph_writes import NOT_INSTALLED, is_langgraph
from graphkit._saver.status import find_next_time, public_metadata
from graphkit._saver.writes import (
    ANSWER,
    UPDATE,
    find_cancellation,
    find_failure,
    subgraph_interrupts,
    time_or_none,
    waiting_interrupts,
)
from graphkit._values.frozen import to_plain
from graphkit.cli.cells import Row, describe_progress, describe_sleep, interrupt_row, is_after_node
from graphkit.cli.context import CliContext
from graphkit.cli.options import CheckpointId, Directory, MaybeApp, Namespace, Thread, argument, option
from graphkit.cli.render import Card, Column, Message, Text, View, format_tree
from graphkit.cli.resolve import find_checkpoint, find_config, find_thread, load_app, open_store_of, require_saver
from graphkit.cli.stores import load_langgraph, open_store, with_placeholder_types
from graphkit.cli.values import UsageError, abbreviate, escape, pluralize
from graphkit.errors import CheckpointerConfigurationError, MissingDependencyError

_COLUMNS: Final = (
    Column("thread", "thread", "name"),
    Column("ns", "namespace"),
    Column("id", "checkpoint", "id"),
    Column("parent", "parent", "id"),
    Column("node", "node"),
    Column("next", "next"),
    Column("status", "status", "whole"),
    Column("created", "created", "time"),
    Column("tags", "tags", "list"),
    Column("metadata", "metadata", "tree"),
    Column("progress", "progress"),
    Column("waiting", "waiting for", "interrupts"),
    Column("cancelled", "cancelled", "time"),
    Column("reason", "reason"),
    Column("failure", "failed", "failure"),
    Column("recorded", "for the resume", "tree"),
    Column("traceback", "traceback", "lines"),
)
_INTERNAL_CHANNELS: Final = ("__", "branch:to:", "join:")
"""How the names of LangGraph's own channels begin."""
_MAX_LENGTH: Final = 500
"""Characters of a value that `diff` shows."""


@with_placeholder_types()
def show(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    checkpoint: CheckpointId,
    key: Annotated[str | None, option("Only this part of the state: a.b[3].", "-k", "PATH")],
    keys: Annotated[bool, option("Only the names of the keys and the types of their values.")],
    ns: Namespace,
    app: MaybeApp,
) -> View:
    """Show a checkpoint: its properties, its pending interrupts, and its state as a tree.

    The command displays values of your own types by their fields; with --app, which registers the
    types, it restores them.

    Example: graphkit show runs order-17 --key 'messages[0].text'
    """
    saver = open_store_of(directory, app)
    config = find_config(saver, thread, ns=ns, checkpoint=checkpoint)
    loaded = load_checkpoint(saver, config, "see graphkit history")
    # The id, from here on: another process may store a newer checkpoint at any time.
    config = config.with_check_point_id(loaded.id)
    state = _read_state(saver, config, loaded)
    if key is not None:
        value = get_at_path(_require_readable(state), key)
        lines = format_tree(value, context.line_width)
        return Text("\n".join(lines), to_plain(value))

    row = _properties(context, saver, config, loaded)
    row["state"] = state
    if keys:
        values = _require_readable(state)
        row["state"] = {name: type(value).__name__ for name, value in values.items()}
    return Card(_COLUMNS, row, tree="state")


def _read_state(saver: BaseCheckpointSaver, config: RunnableConfig, checkpoint: Checkpoint) -> Mapping[str, Any] | str:
    """Return the state of a checkpoint as its graph has it; a sentence if it cannot be read here.

    LangGraph's checkpointer stores what LangGraph's serializer made of the values.
    """
    if not is_langgraph(checkpoint.metadata):
        from graphkit._engine.state import strip_subgraph_updates

        return strip_subgraph_updates(checkpoint.state)

    names = {"thread_id": config.thread, "checkpoint_ns": config.checkpoint_ns, "checkpoint_id": checkpoint.id}
    try:
        reader = load_langgraph().CheckpointSaver(saver, on_blocked_type="plain")
        found = reader.get_tuple({"configurable": names})
    except MissingDependencyError:
        return f"LangGraph's serializer wrote the state: {NOT_INSTALLED}"
    except NotImplementedError:
        return "the state is encrypted by LangGraph's serializer, whose key graphkit does not have"
    values = {} if found is None else found.checkpoint["channel_values"]
    # The other channels say which nodes come next.
    return {name: value for name, value in values.items() if not name.startswith(_INTERNAL_CHANNELS)}


def _require_readable(state: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """Return a state that `_read_state` could read.

    Raises:
        CheckpointerConfigurationError: it could not.
    """
    if isinstance(state, str):
        raise CheckpointerConfigurationError(state)
    return state


def _properties(context: CliContext, saver: BaseCheckpointSaver, config: RunnableConfig, checkpoint: Checkpoint) -> Row:
    """Return what is known of a checkpoint besides its state.

    None of it costs more in a long history.
    """
    writes = saver.get_writes(config)
    waiting = waiting_interrupts(config, writes, checkpoint.created_at)
    nested = subgraph_interrupts(writes)
    if nested:
        waiting += [each for each in saver.interrupts(config.thread) if each.id in nested]
    cancellation = find_cancellation(writes) or {}
    failure = dict(find_failure(writes) or {})
    traceback = failure.pop("traceback", None)
    status = None  # that of the thread, for its latest checkpoint
    for latest in saver.recent(config.with_check_point_id(None), limit=1):
        if latest.id == config.checkpoint_id:
            status = latest.status
    progress = describe_progress(writes)
    if status == "sleeping":
        progress = "; ".join(filter(None, [describe_sleep(context, find_next_time(saver, config)), progress]))
    return {
        "thread": config.thread,
        "ns": config.checkpoint_ns,
        "id": checkpoint.id,
        "parent": checkpoint.parent_id,
        "node": checkpoint.node_id,
        "next": checkpoint.next_node_id,
        "status": status,
        "created": checkpoint.created_at,
        "tags": list(saver.tags_of(config)),
        "metadata": public_metadata(checkpoint.metadata),
        "waiting": [interrupt_row(interrupt) for interrupt in waiting],
        "progress": progress,
        "cancelled": time_or_none(cancellation.get("at")),
        "reason": cancellation.get("reason"),
        "failure": failure or None,
        "traceback": traceback,
        "recorded": {
            key: value for key, value in writes.items() if key.startswith((ANSWER, UPDATE)) and value is not None
        },
    }


@with_placeholder_types()
def diff(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    first: Annotated[str | None, argument("A checkpoint. Default: the one before the latest.", "[FROM]")],
    second: Annotated[str | None, argument("A checkpoint. Default: the latest.", "[TO]")],
    ns: Namespace,
    app: MaybeApp,
) -> Message:
    """Compare two checkpoints.

    The command shows how their states differ, and which nodes finished between them.

    Example: graphkit diff runs order-17 3fa92c1b 77d0e2aa
    """
    from graphkit.operations import lineage

    saver = open_store_of(directory, app)
    config = find_config(saver, thread, ns=ns)
    after = find_checkpoint(saver, config, second)
    if first is None and after.parent_id is None:
        raise UsageError(f"checkpoint {escape(after.id)} has no parent; name the one to compare it with")
    before = find_checkpoint(saver, config, first or after.parent_id)
    old_state = _load_state(saver, config.with_check_point_id(before.id))
    new_state = _load_state(saver, config.with_check_point_id(after.id))
    found = list(differences(old_state, new_state))
    # The nodes on the path to the second checkpoint that are not on that to the first.
    history = saver.history(config)
    passed = {info.id for info in lineage(history, before.id)}
    path = lineage(history, after.id)
    nodes = [info.node_id for info in path if info.id not in passed and is_after_node(info)]

    data = {
        "from": before.id,
        "to": after.id,
        "nodes": nodes,
        "differences": [each._replace(old=_cut(each.old), new=_cut(each.new)) for each in found],
    }

    lines: list[str] = []
    for difference in found:
        lines += _format_difference(difference, context.width)
    if not found:
        lines.append("the states are the same")
    path_between = " → ".join(map(escape, nodes))
    lines.append(f"nodes in between: {path_between}" if nodes else "no nodes in between")
    return Message("\n".join(lines), data)


def _load_state(saver: BaseCheckpointSaver, config: RunnableConfig) -> Mapping[str, Any]:
    checkpoint = load_checkpoint(saver, config, "see graphkit history")
    return _require_readable(_read_state(saver, config, checkpoint))


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MAX_LENGTH:
        return value[:_MAX_LENGTH] + "…"
    return to_plain(value)


def _format_difference(difference: Difference, width: int) -> Iterator[str]:
    from difflib import unified_diff

    name = escape(difference.path)
    old = abbreviate(difference.old, _MAX_LENGTH)
    new = abbreviate(difference.new, _MAX_LENGTH)
    if difference.change == "added":
        yield f"+ {name}: {new}"
        return
    if difference.change == "removed":
        yield f"- {name}: {old}"
        return

    values = (difference.old, difference.new)
    are_texts = all(isinstance(value, str) for value in values)
    if not are_texts or not any("\n" in value for value in values):
        line = f"~ {name}: {old} → {new}"
        if len(line) < width:
            yield line
        else:
            yield from (f"~ {name}:", f"  - {old}", f"  + {new}")
        return

    yield f"~ {name}:"
    old_lines, new_lines = (value.splitlines() for value in values)
    lines = list(unified_diff(old_lines, new_lines, lineterm="", n=1))
    for line in lines[3:]:  # after the two file names and the first position
        if line.startswith("@@"):
            yield "  ..."
            continue
        text = escape(line[1:]) if line[1:] else ""  # `escape` shows an empty text as two quotes
        yield f"  {line[0]} {text}".rstrip()


# graph

_SYNTAXES: Final = click.Choice(("mermaid", "plantuml", "text"))


def graph(
    context: CliContext,
    directory: Directory,
    thread: Annotated[str | None, argument("The thread whose path to draw.")],
    checkpoint: CheckpointId,
    app: MaybeApp,
    syntax: Annotated[str | None, option("Default: text at a terminal, else mermaid.", "--format", type=_SYNTAXES)],
) -> Text:
    """Draw a graph, with the path that a thread took and the node at which it continues.

    Without --app, the command draws only the path, from the thread's checkpoints.

    Example: graphkit graph runs order-17 --app shop:app
    """
    from graphkit._diagram import draw
    from graphkit._plan.topology import GraphDefinition, Topology
    from graphkit.operations import lineage

    form = syntax or ("text" if context.is_pretty else "mermaid")
    if thread is None:
        if app is None:
            raise UsageError("name a thread, or the graph with --app")
        drawing = load_app(app).get_graph(form).content
        return Text(drawing, {"drawing": drawing, "path": []})

    compiled = None if app is None else load_app(app, directory)
    saver = open_store(directory) if compiled is None else require_saver(compiled)
    config = RunnableConfig(find_thread(saver, thread))
    latest = find_checkpoint(saver, config, checkpoint)
    path = [info.node_id for info in lineage(saver.history(config), latest.id) if is_after_node(info)]
    if latest.next_node_id == END:
        path.append(END)
    fingerprint = latest.metadata.get("graph")
    drawn: GraphDefinition | Topology
    if compiled is None:
        nodes = list(path)
        if form == "text" and latest.next_node_id not in (None, *path[-1:]):  # where the run continues
            nodes.append(str(latest.next_node_id))
        edges: dict[str, Any] = {}
        for source, target in dict.fromkeys(pairwise(nodes)):
            edges.setdefault(source, []).append(target)
        # Without nodes: the diagram adds those that edges lead to, as in a graph that is not finished.
        drawn = GraphDefinition(edges=edges)
    else:
        drawn = compiled.topology
        if fingerprint is not None and fingerprint != drawn.fingerprint:
            context.warn("graphkit: the graph has changed since this thread was stored")
    drawing = draw(drawn, form, config.thread, path=path, current=latest.next_node_id).content
    return Text(drawing, {"thread": config.thread, "fingerprint": fingerprint, "path": path, "drawing": drawing})


# Parts of a state

_NAME: Final = r"[^.\[\]]+"
_STEP: Final = re.compile(rf"\.?({_NAME})|\[(-?\d+|'[^']*'|\"[^\"]*\")\]")
_ABSENT: Final = object()


def get_at_path(state: Mapping[str, Any], path: str) -> Any:
    """Return the part of a state at a path such as `messages[3].text` or `a['odd.key']`.

    Raises:
        UsageError: the path is malformed, or there is nothing at it.
    """
    if path in state:
        return state[path]
    value: Any = state
    parent = ""
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            rest = path[position:]
            raise UsageError(f"cannot parse the key {path!r} from {rest!r} on; write a.b[3]")
        position = match.end()
        step = match[0]
        key: Any = match[1]
        if key is None:
            index = match[2]
            key = index[1:-1] if index[0] in "'\"" else int(index)
        is_record = isinstance(value, tuple) and isinstance(key, str)
        has_items = isinstance(value, (Mapping, Sequence)) and not is_record
        try:
            value = value[key] if has_items else getattr(value, str(key))
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            # The message ends with what there is instead.
            if isinstance(value, Mapping):
                keys = ", ".join(escape(str(key)) for key in value)
                found = f"has {keys or 'no keys'}"
            elif isinstance(value, Sequence):
                found = f"has {pluralize(len(value), 'item')}"
            else:
                found = f"is {abbreviate(value)}"
            name = parent or "the state"
            raise UsageError(f"there is no {parent + step}; {name} {found}") from error
        parent += step
    return value


class Difference(NamedTuple):
    """A part in which two states differ."""

    path: str
    change: str
    """"added", "removed" or "changed"."""
    old: Any
    new: Any


def differences(old: Any, new: Any, path: str = "") -> Iterator[Difference]:
    """Yield the parts in which two values differ, types included; O(both).

    They come in the order of the old value.
    """
    if old is _ABSENT:
        yield Difference(path=path, change="added", old=None, new=new)
    elif new is _ABSENT:
        yield Difference(path=path, change="removed", old=old, new=None)
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            step = str(key)
            if not re.fullmatch(_NAME, step):
                child_path = f"{path}[{step!r}]"
            elif path:
                child_path = f"{path}.{step}"
            else:
                child_path = step
            yield from differences(old.get(key, _ABSENT), new.get(key, _ABSENT), child_path)
    elif isinstance(old, list) and isinstance(new, list):
        pairs = zip_longest(old, new, fillvalue=_ABSENT)
        for index, (first, second) in enumerate(pairs):
            child_path = f"{path}[{index}]"
            yield from differences(first, second, child_path)
    elif not _is_same(old, new):
        yield Difference(path=path, change="changed", old=old, new=new)


def _is_same(old: Any, new: Any) -> bool:
    """Return whether two values are equal and of one type: True is not 1, but nan is nan."""
    # By `repr`, too: nan is not equal to itself, and a value of the application may not define `==`.
    return type(old) is type(new) and (old == new or repr(old) == repr(new))
