"""Inspects checkpoints: show, diff."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from graphkit._engine.state import strip_subgraph_updates
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.checkpoint_info import public_metadata
from graphkit._saver.langgraph_writes import NOT_INSTALLED, is_langgraph, waiting_interrupts as langgraph_interrupts
from graphkit._saver.writes import (
    ANSWER,
    UPDATE,
    find_failure,
    progress_of,
    time_or_none,
    waiting_interrupts,
)
from graphkit.cli.commands.import_langgraph import load_langgraph
from graphkit.cli.context import CliContext
from graphkit.cli.options import CheckpointId, Directory, MaybeApp, Namespace, Thread
from graphkit.cli.placeholder_types import with_placeholder_types
from graphkit.cli.resolve import (
    find_checkpoint,
    find_config,
    open_store_of,
)
from graphkit.cli.state_paths import Difference, differences, get_at_path
from graphkit.cli.tree import format_tree
from graphkit.cli.values import abbreviate, escape, to_plain
from graphkit.cli.views import Card, Column, Text, View
from graphkit.errors import CheckpointerConfigurationError, CheckpointNotFoundError, MissingDependencyError
from graphkit.operations import lineage

_COLUMNS: Final = (
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
    Column("progress", "progress"),
    Column("waiting", "waiting for", "interrupts"),
    Column("failure", "failed", "failure"),
    Column("recorded", "for the resume", "value"),
)
_INTERNAL_CHANNELS: Final = ("__", "branch:to:", "join:")
"""How the names of LangGraph's own channels begin."""
_MAX_LENGTH: Final = 500
"""Characters of a value that `diff` shows."""


@with_placeholder_types
def show(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    checkpoint: CheckpointId = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            "-k",
            metavar="PATH",
            help="Only this part of the state: a.b[3].",
        ),
    ] = None,
    keys: Annotated[
        bool,
        typer.Option("--keys", help="Only the names of the keys and the types of their values."),
    ] = False,
    ns: Namespace = "",
    app: MaybeApp = None,
) -> View:
    """Show a checkpoint: its properties, its pending interrupts, and its state as a tree.

    The command displays values of your own types by their fields; with --app, which registers the
    types, it restores them.

    Example: graphkit show runs order-17 --key 'messages[0].text'
    """
    saver = open_store_of(directory, app)
    config = find_config(saver, thread, ns=ns, checkpoint=checkpoint)
    loaded = _load(saver, config)
    config = config.with_check_point_id(loaded.id)
    state = _read_state(saver, config, loaded)
    if key is not None:
        value = get_at_path(_require_readable(state), key)
        text = "\n".join(format_tree(value, context.line_width))
        return Text(text, to_plain(value))

    if keys:
        state = {name: type(value).__name__ for name, value in _require_readable(state).items()}
    row = _properties(saver, config, loaded)
    row["state"] = state
    return Card(_COLUMNS, row, tree="state")


def _load(saver: BaseCheckpointSaver, config: RunnableConfig) -> Checkpoint:
    """Load a checkpoint.

    Raises:
        CheckpointNotFoundError: another process removed it in the meantime, or the namespace is
            empty.
    """
    checkpoint = saver.get(config)
    if checkpoint is not None:
        return checkpoint
    if config.checkpoint_id is not None:
        what = f"checkpoint {config.checkpoint_id}"
    elif config.checkpoint_ns:
        what = f"checkpoint in namespace {escape(config.checkpoint_ns)}"
    else:
        what = "checkpoint"
    raise CheckpointNotFoundError(config.thread, what, "see graphkit history")


def _read_state(saver: BaseCheckpointSaver, config: RunnableConfig, checkpoint: Checkpoint) -> Mapping[str, Any] | str:
    """Return the state of a checkpoint as its graph has it; a sentence if it cannot be read here.

    LangGraph's checkpointer stores what LangGraph's serializer made of the values.
    """
    if not is_langgraph(checkpoint.metadata):
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


def _properties(saver: BaseCheckpointSaver, config: RunnableConfig, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what is known of a checkpoint besides its state.

    None of it costs more in a long history.
    """
    writes = saver.get_writes(config)
    if is_langgraph(checkpoint.metadata):
        waiting = langgraph_interrupts(config, writes, checkpoint.created_at)
    else:
        waiting = waiting_interrupts(config, writes)
    return {
        "thread": config.thread,
        "ns": config.checkpoint_ns,
        "id": checkpoint.id,
        "parent": checkpoint.parent_id,
        "node": checkpoint.node_id,
        "next": checkpoint.next_node_id,
        "status": _find_status(saver, config),
        "created": checkpoint.created_at,
        "tags": list(saver.tags_of(config)),
        "metadata": public_metadata(checkpoint.metadata),
        "waiting": [interrupt_row(interrupt) for interrupt in waiting],
        "progress": describe_progress(writes),
        "failure": find_failure(config, writes),
        "recorded": _stored_for_resume(writes),
    }


def _find_status(saver: BaseCheckpointSaver, config: RunnableConfig) -> str | None:
    """Return the status of a thread; None if the config names an older checkpoint."""
    for latest in saver.recent(config.with_check_point_id(None), limit=1):
        if latest.id == config.checkpoint_id:
            return latest.status
    return None


def _stored_for_resume(writes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pending writes that a user stored for the next resume."""
    return {key: value for key, value in writes.items() if key.startswith((ANSWER, UPDATE)) and value is not None}


def describe_progress(writes: Mapping[str, Any]) -> str | None:
    """Return how far each running map and fork is; None if none runs."""
    parts = []
    for progress in progress_of(writes):
        unit = "branches" if progress.node_id is None else f"items of {escape(progress.node_id)}"
        parts.append(f"{progress.done} of {progress.total} {unit} done")
    return ", ".join(parts) or None


def interrupt_row(interrupt: WaitingInterrupt) -> dict[str, Any]:
    """Return a pending interrupt as plain data."""
    return {
        "thread": interrupt.thread_id,
        "ns": interrupt.checkpoint_ns,
        "checkpoint": interrupt.checkpoint_id,
        "id": interrupt.id,
        "node": interrupt.node_id,
        "when": interrupt.when,
        "payload": interrupt.payload,
        "since": time_or_none(interrupt.created_at),
    }


@with_placeholder_types
def diff(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    first: Annotated[
        str | None,
        typer.Argument(
            metavar="FROM",
            help="A checkpoint. Default: the one before the latest.",
            show_default=False,
        ),
    ] = None,
    second: Annotated[
        str | None,
        typer.Argument(metavar="TO", help="A checkpoint. Default: the latest.", show_default=False),
    ] = None,
    ns: Namespace = "",
    app: MaybeApp = None,
) -> Text:
    """Compare two checkpoints.

    The command shows how their states differ, and which nodes finished between them.

    Example: graphkit diff runs order-17 3fa92c1b 77d0e2aa
    """
    saver = open_store_of(directory, app)
    config = find_config(saver, thread, ns=ns)
    after = find_checkpoint(saver, config, second)
    before = find_checkpoint(saver, config, first or after.parent_id)
    old = _load(saver, config.with_check_point_id(before.id))
    new = _load(saver, config.with_check_point_id(after.id))
    old_state = _require_readable(_read_state(saver, config, old))
    found = list(differences(old_state, _require_readable(_read_state(saver, config, new))))
    nodes = _nodes_between(saver.history(config), before.id, after.id)
    data = {
        "from": before.id,
        "to": after.id,
        "nodes": nodes,
        "differences": [
            {
                **difference._asdict(),
                "old": _cut(difference.old),
                "new": _cut(difference.new),
            }
            for difference in found
        ],
    }
    lines: list[str] = []
    for difference in found:
        lines += _format_difference(difference, context.width)
    if not found:
        lines.append("the states are the same")
    if nodes:
        lines.append(f"nodes in between: {' → '.join(map(escape, nodes))}")
    else:
        lines.append("no nodes in between")

    return Text("\n".join(lines), data)


def _nodes_between(history: Sequence[CheckpointInfo], first: str, second: str) -> list[str]:
    """Return the nodes on the path to the second checkpoint that are not on that to the first."""
    before = {info.id for info in lineage(history, first)}
    return [info.node_id for info in lineage(history, second) if info.id not in before]


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MAX_LENGTH:
        return value[:_MAX_LENGTH] + "…"
    return to_plain(value)


def _format_difference(difference: Difference, width: int) -> list[str]:
    name = escape(difference.path)
    old = abbreviate(difference.old, _MAX_LENGTH)
    new = abbreviate(difference.new, _MAX_LENGTH)
    if difference.change == "added":
        return [f"+ {name}: {new}"]
    if difference.change == "removed":
        return [f"- {name}: {old}"]
    header = f"~ {name}:"
    if _has_lines(difference.old, difference.new):
        lines = _compare_lines(difference.old, difference.new)
        return [header, *lines]
    line = f"{header} {old} → {new}"
    if len(line) < width:
        return [line]
    return [header, f"  - {old}", f"  + {new}"]


def _has_lines(old: Any, new: Any) -> bool:
    """Return whether both values are texts, and at least one has several lines."""
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    return "\n" in old or "\n" in new


def _compare_lines(old: str, new: str) -> Iterator[str]:
    from difflib import unified_diff

    old_lines = old.splitlines()
    new_lines = new.splitlines()
    lines = list(unified_diff(old_lines, new_lines, lineterm="", n=1))
    for line in lines[3:]:  # after the two file names and the first position
        mark = line[0]
        content = line[1:]
        if line.startswith("@@"):
            yield "  ..."
        elif content:
            yield f"  {mark} {escape(content)}"
        else:
            yield f"  {mark}".rstrip()


COMMANDS: Final = (show, diff)
