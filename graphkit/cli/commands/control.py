"""Steering what is stored, without running a node: interrupts, answer, update, fork, rollback."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from graphkit._engine.cursor import CONTINUED_EXECUTION, RESUMED_AT, WRITES_TAKEN_FROM
from graphkit._records.checkpoint import Checkpoint, generate_id
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import ANSWER, INTERRUPT, next_update_key, well_formed_writes
from graphkit._values.frozen import freeze
from graphkit.cli.commands.inspect import asked
from graphkit.cli.context import CliContext
from graphkit.cli.options import Assign, CheckpointId, Directory, MaybeApp, MaybeThread, Namespace, Thread
from graphkit.cli.placeholder_types import looks_without_types
from graphkit.cli.render import Column, Said, Table
from graphkit.cli.resolve import checkpoint_of, line_of, load_app, open_store, saver_of, thread_of
from graphkit.cli.values import UsageError, asking, assignments, brief, counted, from_json, shown
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
)

_INTERRUPTS: Final = (
    Column("thread", "THREAD", "name"),
    Column("node", "NODE"),
    Column("when", "WHEN"),
    Column("payload", "PAYLOAD", "asks"),
    Column("id", "INTERRUPT", "id"),
    Column("since", "SINCE", "age"),
)
_UNKNOWN_TIME: Final = datetime.min.replace(tzinfo=UTC)


@looks_without_types
def interrupts(context: CliContext, directory: Directory, thread: MaybeThread = None) -> Table:
    """List what waits for a human: where, since when, and what is asked.

    Example: graphkit interrupts runs
    """
    saver = open_store(directory)
    rows: list[dict[str, Any]] = []
    damaged: list[CheckpointerError] = []
    for thread_id in saver.threads() if thread is None else [thread_of(saver, thread)]:
        try:
            rows += map(asked, saver.interrupts(thread_id))
        except CheckpointSerializationError:
            raise
        except CheckpointerError as error:
            damaged.append(error)
    for one in damaged:
        context.warn(f"graphkit: {one}")
    rows.sort(key=lambda row: row["since"] or _UNKNOWN_TIME)
    return Table(_INTERRUPTS, rows, "nothing waits")


def answer(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    value: Annotated[
        str,
        typer.Option(
            "--value",
            "-v",
            metavar="JSON",
            help="The answer: any JSON for interrupt(), an object to merge at a declared stop; - reads the input.",
        ),
    ],
    interrupt: Annotated[
        str | None,
        typer.Option("--interrupt", "-i", metavar="ID", help="Which question, if several wait.", show_default=False),
    ] = None,
) -> Said:
    """Answer a waiting run. Nothing is run: the answer is stored, and whoever resumes the thread goes on with it.

    Example: graphkit answer runs order-17 --value '"yes"'
    """
    saver = open_store(directory)
    thread_id = thread_of(saver, thread)
    given = from_json(context.given(value), "--value")
    with saver.run_lock(RunnableConfig(thread_id)):
        stop = _stop_of(saver, thread_id, interrupt)
        if stop.when != "inside" and not isinstance(given, Mapping):
            where = f"{stop.when} {shown(stop.node_id)}"
            raise UsageError(
                f"the run stopped {where}: --value must be an object to merge into the state, or {{}} to go on"
            )
        at = RunnableConfig(thread_id, stop.checkpoint_id, stop.checkpoint_ns)
        saver.put_writes(at, {ANSWER + stop.id: freeze(given)})
    question = asking(stop.payload or stop.node_id)
    sentence = f"answered {question} of {shown(thread_id)} with {brief(given)}; a resume goes on with it"
    return Said(sentence, {**asked(stop), "answer": given})


def _stop_of(saver: BaseCheckpointSaver, thread_id: str, typed: str | None) -> WaitingInterrupt:
    """The question that is meant; asked for under the run lock, so that it still waits."""
    waiting = saver.interrupts(thread_id)
    if not waiting:
        raise CheckpointConflictError(thread_id, "nothing waits for an answer there")
    found = [stop for stop in waiting if typed is None or stop.id.endswith(typed) or stop.id.startswith(typed)]
    if len(found) == 1:
        return found[0]
    ids = ", ".join(f"{stop.id} ({shown(stop.node_id)}: {asking(stop.payload)})" for stop in waiting)
    if not found:
        raise CheckpointNotFoundError(thread_id, f"question {shown(typed or '')}", f"these wait: {ids}")
    raise UsageError(f"{len(found)} questions wait, choose one with --interrupt: {ids}")


def update(
    context: CliContext,  # noqa: ARG001 - as all commands
    directory: Directory,
    thread: Thread,
    assign: Assign = None,
    as_node: Annotated[
        str | None,
        typer.Option(
            "--as-node",
            metavar="NODE",
            help="As if this node had returned the values; its edge decides what is next. Wants --app.",
            show_default=False,
        ),
    ] = None,
    goto: Annotated[
        str | None,
        typer.Option("--goto", metavar="NODE", help="What is next, outright. Wants --app.", show_default=False),
    ] = None,
    checkpoint: CheckpointId = None,
    ns: Namespace = "",
    app: MaybeApp = None,
) -> Said:
    """Correct the state of a thread, or where it goes on.

    With --app a checkpoint is added, with the values merged through the graph's channels. Without it, nobody here
    knows the channels: the values are stored beside the latest checkpoint, and the next resume merges them.

    Example: graphkit update runs order-17 --set 'city="Bern"' --goto ship --app shop:app
    """
    values = assignments(assign or ())
    if not values and as_node is None and goto is None:
        raise UsageError("nothing to change: give --set key=value, --as-node or --goto")
    if app is not None:
        return _updated(app, directory, (thread, ns, checkpoint), values, as_node, goto)
    if as_node is not None or goto is not None or checkpoint is not None:
        raise UsageError("--as-node, --goto and --checkpoint want the graph: give --app module:object")
    saver = open_store(directory)
    thread_id = thread_of(saver, thread)
    _record_update(saver, RunnableConfig(thread_id, checkpoint_ns=ns), values)
    keys = ", ".join(map(shown, values))
    return Said(
        f"stored for {shown(thread_id)}: the next resume merges {keys}",
        {"thread": thread_id, "ns": ns, "recorded": values},
    )


def _record_update(saver: BaseCheckpointSaver, at: RunnableConfig, values: Mapping[str, Any]) -> None:
    """Record what a resume's `update=` would."""
    with saver.run_lock(at):
        latest = saver.get(at)
        if latest is None:
            raise CheckpointNotFoundError(at.thread, hint="see graphkit threads")
        here = at.with_check_point_id(latest.id)
        saver.put_writes(here, {next_update_key(saver.get_writes(here)): freeze(dict(values))})


def _updated(
    app: str,
    directory: str,
    where: tuple[str, str, str | None],
    values: dict[str, Any],
    as_node: str | None,
    goto: str | None,
) -> Said:
    graph = load_app(app, directory)
    saver, (thread, ns, checkpoint) = saver_of(graph), where
    at = RunnableConfig(thread_of(saver, thread), checkpoint_ns=ns)
    if checkpoint is not None:
        at = at.with_check_point_id(checkpoint_of(saver, at, checkpoint).id)
    made = graph.update_state(at, values, as_node, goto=goto)
    data = {"thread": at.thread, "ns": ns, "checkpoint": made.checkpoint_id, "next": made.next_node, "values": values}
    return Said(f"updated {shown(at.thread)}: it goes on with {shown(made.next_node or 'what its edge decides')}", data)


def fork(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    target: Annotated[str, typer.Argument(metavar="NEW", help="The id of the new thread.")],
    checkpoint: CheckpointId = None,
    app: MaybeApp = None,
) -> Said:
    """Branch a new thread off a checkpoint of another, which stays as it is: it begins with the path to it.

    What waited at that checkpoint waits again, unanswered.

    Example: graphkit fork runs order-17 order-17-again --checkpoint 3fa92c1b
    """
    saver = open_store(directory) if app is None else saver_of(load_app(app, directory))
    at, new = RunnableConfig(thread_of(saver, thread)), RunnableConfig(target)
    head = checkpoint_of(saver, at, checkpoint)
    line = line_of(saver.history(at), head.id)
    with saver.run_lock(new):
        if saver.namespaces(new):
            raise CheckpointConflictError(target, "not empty; choose another id for the new thread")
        for info in line[:-1]:
            _put_again(saver, at.with_check_point_id(info.id), new, info.tags)
        here = _put_head(saver, at.with_check_point_id(head.id), new, created_at=context.now(), keep_id=True)
    path = f"{counted(len(line), 'checkpoint')} of {shown(at.thread)}"
    sentence = f"{shown(target)} begins with {path} and goes on with {_next(head)}"
    return Said(
        sentence, {"thread": target, "from": at.thread, "checkpoint": here.checkpoint_id, "checkpoints": len(line)}
    )


def rollback(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint to go back to; may be shortened.")
    ],
    app: MaybeApp = None,
) -> Said:
    """Go back to an older checkpoint: it becomes the latest again, as a new one. Nothing is removed.

    What waited at that checkpoint waits again, unanswered. A resume goes on from there.

    Example: graphkit rollback runs order-17 3fa92c1b
    """
    saver = open_store(directory) if app is None else saver_of(load_app(app, directory))
    at = RunnableConfig(thread_of(saver, thread))
    with saver.run_lock(at):
        old = checkpoint_of(saver, at, checkpoint)
        here = _put_head(saver, at.with_check_point_id(old.id), at, created_at=context.now(), keep_id=False)
    sentence = (
        f"{shown(at.thread)} is back after {shown(old.node_id)} and goes on with {_next(old)}; nothing was removed"
    )
    return Said(
        sentence, {"thread": at.thread, "checkpoint": here.checkpoint_id, "from": old.id, "next": old.next_node_id}
    )


def _next(info: CheckpointInfo) -> str:
    return shown(info.next_node_id or "what its edge decides")


def _put_again(saver: BaseCheckpointSaver, at: RunnableConfig, new: RunnableConfig, tags: tuple[str, ...]) -> None:
    found = _found(saver, at)
    here = saver.put(new, found)
    if tags:
        saver.add_tags(here, *tags)


def _put_head(
    saver: BaseCheckpointSaver, at: RunnableConfig, new: RunnableConfig, *, created_at: datetime, keep_id: bool
) -> RunnableConfig:
    """Append a copy of a checkpoint as the head to resume from, with a creation time of its own.

    The node that comes next starts anew, as after a resume from a past checkpoint.
    """
    found = _found(saver, at)
    metadata = {
        key: value
        for key, value in found.metadata.items()
        if key not in {CONTINUED_EXECUTION, WRITES_TAKEN_FROM, RESUMED_AT}
    }
    builder = Checkpoint.builder(found).metadata({**metadata, "source": "fork"}).createdAt(created_at)
    if not keep_id:
        builder = builder.id(generate_id()).parentId(found.id)
    here = saver.put(new, builder.build())
    writes = well_formed_writes(saver.get_writes(at), at.thread)
    waits = {key: stop for key, stop in writes.items() if key.startswith(INTERRUPT)}
    if waits:
        saver.put_writes(here, waits)
    return here


def _found(saver: BaseCheckpointSaver, at: RunnableConfig) -> Checkpoint:
    found = saver.get(at)
    if found is None:
        raise CheckpointNotFoundError(at.thread, f"checkpoint {at.checkpoint_id}", "it was removed just now")
    return found


COMMANDS: Final = (interrupts, answer, update, fork, rollback)
