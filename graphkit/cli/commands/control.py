"""Controls stored threads without running a node: interrupts, answer, update, fork, rollback, pause, cancel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import can_answer
from graphkit.cli.cells import Row, describe_interrupt, describe_known_error, format_command, interrupt_row, status_of
from graphkit.cli.context import CliContext
from graphkit.cli.options import (
    Answer,
    Assign,
    CheckpointId,
    Directory,
    MaybeApp,
    MaybeThread,
    Namespace,
    Thread,
    argument,
    option,
)
from graphkit.cli.render import NAMESPACE, Card, Column, Message, Table, show
from graphkit.cli.resolve import (
    find_checkpoint,
    find_config,
    find_thread,
    load_app,
    match_ids,
    open_store_of,
    read_threads,
    require_saver,
)
from graphkit.cli.stores import open_store, with_placeholder_types
from graphkit.cli.values import (
    UsageError,
    abbreviate,
    describe_payload,
    escape,
    parse_assignments,
    parse_json_or_text,
    pluralize,
)
from graphkit.errors import CheckpointerError

_COLUMNS: Final = (
    Column("thread", "THREAD", "name"),
    Column("node", "NODE"),
    Column("when", "WHEN"),
    Column("id", "INTERRUPT", "id"),
    Column("since", "SINCE", "age"),
    NAMESPACE,
    Column("deadline", "DEADLINE", "time", is_rare=True),
    Column("payload", "PAYLOAD", "payload"),
)
_UNKNOWN_TIME: Final = datetime.min.replace(tzinfo=UTC)


def interrupts(context: CliContext, directory: Directory, thread: MaybeThread) -> Table:
    """List the pending interrupts: where they wait, since when, and what they ask.

    A run that waits for a timer is not among them; `threads` and `show` say until when it sleeps.

    Example: graphkit interrupts runs
    """
    rows = _read_interrupts(context, directory, thread)
    threads = {row["thread"] for row in rows}
    summary = f"{pluralize(len(rows), 'interrupt')} of {pluralize(len(threads), 'thread')}"
    return Table(_COLUMNS, rows, empty="no pending interrupts", summary=summary)


@with_placeholder_types()
def _read_interrupts(context: CliContext, directory: str, thread: str | None) -> list[Row]:
    """Return the pending interrupts of a thread, or of all threads (None), the newest first."""
    saver = open_store(directory)
    rows = [interrupt_row(each) for each in read_threads(context, saver, thread, saver.interrupts)]
    rows.sort(key=lambda row: row["since"] or _UNKNOWN_TIME, reverse=True)
    return rows


def answer(
    context: CliContext,
    directory: Directory,
    thread: MaybeThread,
    value: Answer,
    text: Annotated[str | None, option("The answer as text, without quotes.", "TEXT")],
    interrupt: Annotated[str | None, option("The interrupt to answer, if several are pending.", "-i", "ID")],
) -> Message:
    """Answer a pending interrupt.

    The command stores the answer and runs nothing; the next resume continues with it. What answers a
    declared stop, before or after a node, is an object to merge into the state. The command refuses an
    answer that comes after the deadline of the interrupt. At a terminal, without --value and --text,
    it shows each pending interrupt and asks.

    Example: graphkit answer runs order-17 --text yes
    """
    if value is None and text is None:
        if not context.can_ask or context.as_json:
            raise UsageError(
                "missing option '--value' or '--text', without which only a terminal asks; see `graphkit answer --help`"
            )
        rows = _read_interrupts(context, directory, thread)
        if interrupt is not None:
            ids = match_ids([row["id"] for row in rows], interrupt)
            rows = [row for row in rows if row["id"] in ids]
        # Who has waited longest comes first.
        return _ask_for_answers(context, rows[::-1])

    if value is not None and text is not None:
        raise UsageError("give --value or --text, not both")
    if thread is None:
        raise UsageError("name the thread: graphkit answer DIR THREAD")
    saver = open_store(directory)
    thread_id = find_thread(saver, thread)
    parsed = text if value is None else context.read_json(value, "--value")
    message = _store_answer(context, saver, thread_id, parsed, interrupt)
    return replace(message, hint=_hint_at_resume(context, thread_id))


def _store_answer(
    context: CliContext, saver: BaseCheckpointSaver, thread_id: str, value: Any, interrupt: str | None
) -> Message:
    from graphkit import operations

    # Held from here on, so that the interrupt is still pending when it is answered.
    with saver.run_lock(RunnableConfig(thread_id)):
        pending = saver.interrupts(thread_id)
        by_id = {interrupt.id: interrupt for interrupt in pending}
        matches = match_ids(by_id, interrupt or "")
        if len(matches) > 1:
            stops = [f"{stop.id} ({describe_interrupt(interrupt_row(stop))})" for stop in pending]
            raise UsageError(f"{len(matches)} interrupts are pending, choose one with --interrupt: {', '.join(stops)}")
        chosen = by_id[matches[0]] if matches else None
        if chosen is not None and not can_answer(chosen.when, value):
            raise UsageError(
                f"the run stopped {chosen.when} {escape(chosen.node_id)}: the answer must be an object to merge into "
                f"the state, or {{}} to continue"
            )
        wanted = chosen.id if chosen else interrupt
        answered = operations.answer(saver, thread_id, value, interrupt=wanted, clock=context.now)

    question = describe_payload(answered.payload or answered.node_id)
    sentence = f'{escape(thread_id)}: answered "{question}" with {abbreviate(value)}'
    return Message(f"{sentence}; the next resume continues with it", interrupt_row(answered) | {"answer": value})


def _hint_at_resume(context: CliContext, thread_id: str) -> str:
    return format_command(context, "resume", thread_id, "--app", "MODULE:OBJECT")


def _ask_for_answers(context: CliContext, rows: Sequence[Row]) -> Message:
    """Show one interrupt after another, and store what the user answers."""
    if not rows:
        return Message("no pending interrupts")
    saver = open_store(context.directory)
    answered: list[str] = []
    try:
        for number, row in enumerate(rows, 1):
            context.write_line(f"{number} of {len(rows)}")
            show(context, Card(_COLUMNS[:-1], row, tree="payload"))
            try:
                if _ask_for_answer(context, saver, row):
                    answered.append(row["thread"])
            except CheckpointerError as error:  # another user has answered it, or a run holds the thread
                context.warn(f"graphkit: {describe_known_error(error)}")
            context.write_line("")
    except (EOFError, KeyboardInterrupt):
        context.write_line("")
    hint = ""
    if answered:
        hint = _hint_at_resume(context, answered[-1])
    return Message(f"answered {len(answered)} of {pluralize(len(rows), 'interrupt')}", hint=hint)


def _ask_for_answer(context: CliContext, saver: BaseCheckpointSaver, row: Row) -> bool:
    """Ask until the answer suits the interrupt, and store it; return False if the user skips it.

    Raises:
        EOFError: the user wants no more questions.
    """
    while True:
        line = context.ask("answer (Enter skips, q quits): ")
        typed = line.strip()
        if not line or typed == "q":
            raise EOFError
        if not typed:
            return False
        try:
            value = parse_json_or_text(typed, "the answer")
            show(context, _store_answer(context, saver, row["thread"], value, row["id"]))
        except UsageError as error:
            context.warn(str(error))
            continue
        return True


def update(
    _context: CliContext,
    directory: Directory,
    thread: Thread,
    assign: Assign,
    as_node: Annotated[str | None, option("Act as if this node had returned the values. Requires --app.", "NODE")],
    goto: Annotated[str | None, option("The next node. Requires --app.", "NODE")],
    checkpoint: CheckpointId,
    ns: Namespace,
    app: MaybeApp,
) -> Message:
    """Correct the state of a thread, or the node at which it continues.

    With --app, the command adds a checkpoint and merges the values through the graph's channels. With
    --as-node, the edge of that node decides the next one.
    Without --app it cannot know the channels: it stores the values as pending writes of the latest
    checkpoint, and the next resume merges them.

    Example: graphkit update runs order-17 --set 'city="Bern"' --goto ship --app shop:app
    """
    from graphkit import operations

    values = parse_assignments(assign)
    if not values and as_node is None and goto is None:
        raise UsageError("nothing to change: give --set key=value, --as-node or --goto")
    if app is None:
        if as_node is not None or goto is not None or checkpoint is not None:
            raise UsageError("--as-node, --goto and --checkpoint require the graph: give --app module:object")
        # For the next resume.
        saver = open_store(directory)
        thread_id = find_thread(saver, thread)
        operations.update(saver, RunnableConfig(thread_id, checkpoint_ns=ns), values)
        keys = ", ".join(map(escape, values))
        sentence = f"stored for {escape(thread_id)}: the next resume merges {keys}"
        return Message(sentence, {"thread": thread_id, "ns": ns, "recorded": values})

    # Through the graph: only it knows how its channels merge, and which node its edge chooses on the new state.
    graph = load_app(app, directory)
    saver = require_saver(graph)
    config = find_config(saver, thread, ns=ns, checkpoint=checkpoint)
    updated = graph.update_state(config, values, as_node, goto=goto)

    following = _describe_next(updated.next_node)
    sentence = f"updated {escape(config.thread)}: it continues with {following}"
    data = {
        "thread": config.thread,
        "ns": ns,
        "checkpoint": updated.checkpoint_id,
        "next": updated.next_node,
        "values": values,
    }
    return Message(sentence, data)


def fork(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    target: Annotated[str, argument("The id of the new thread.", "NEW")],
    checkpoint: CheckpointId,
    app: MaybeApp,
) -> Message:
    """Branch a new thread off a checkpoint.

    The new thread begins with the path to that checkpoint; the other thread stays unchanged.
    Interrupts that were pending at the checkpoint are pending again, without their answers.

    Example: graphkit fork runs order-17 order-17-again --checkpoint 3fa92c1b
    """
    from graphkit import operations

    saver = open_store_of(directory, app)
    config = find_config(saver, thread, checkpoint=checkpoint)
    forked = operations.fork(saver, config, target, created_at=context.now())

    path = pluralize(forked.checkpoints, "checkpoint")
    following = _describe_next(forked.origin.next_node_id)
    sentence = f"{escape(target)} begins with {path} of {escape(config.thread)} and continues with {following}"
    data = {
        "thread": target,
        "from": config.thread,
        "checkpoint": forked.config.checkpoint_id,
        "checkpoints": forked.checkpoints,
    }
    return Message(sentence, data)


def rollback(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    checkpoint: Annotated[str, argument("The checkpoint to go back to; may be shortened.")],
    app: MaybeApp,
) -> Message:
    """Go back to an older checkpoint.

    The command appends a copy of it as the latest checkpoint, and removes nothing. Interrupts that
    were pending at the checkpoint are pending again, without their answers. A resume continues from
    there.

    Example: graphkit rollback runs order-17 3fa92c1b
    """
    from graphkit import operations

    saver = open_store_of(directory, app)
    config = RunnableConfig(find_thread(saver, thread))
    old = find_checkpoint(saver, config, checkpoint)
    config = config.with_check_point_id(old.id)
    copy = operations.rollback(saver, config, created_at=context.now())

    following = _describe_next(old.next_node_id)
    sentence = (
        f"{escape(config.thread)} is back at the checkpoint after {escape(old.node_id)} "
        f"and continues with {following}; nothing was removed"
    )
    data = {
        "thread": config.thread,
        "checkpoint": copy.checkpoint_id,
        "from": old.id,
        "next": old.next_node_id,
    }
    return Message(sentence, data)


def cancel(
    _context: CliContext,
    directory: Directory,
    thread: Thread,
    reason: Annotated[str | None, option("Why; it is stored with the thread.", "TEXT")],
) -> Message:
    """Cancel the run of a thread, whichever process runs it.

    A run that is going on ends before its next node, with everything stored. A thread that waits is
    cancelled at once. No worker takes it any more; `graphkit resume` continues it.

    Example: graphkit cancel runs order-17 --reason 'sold out'
    """
    from graphkit import operations

    return _stop(partial(operations.cancel, reason=reason), directory, thread, done="cancelled", doing="ends")


def pause(_context: CliContext, directory: Directory, thread: Thread) -> Message:
    """Stop the run of a thread before its next node, whichever process runs it.

    Everything is stored. `graphkit resume` continues it.

    Example: graphkit pause runs order-17
    """
    from graphkit import operations

    return _stop(operations.pause, directory, thread, done="interrupted", doing="stops")


def _stop(
    stop: Callable[[BaseCheckpointSaver, str], bool], directory: str, thread: str, *, done: str, doing: str
) -> Message:
    """Ask the run of a thread to stop, and return what became of the request."""
    saver = open_store(directory)
    thread_id = find_thread(saver, thread)
    is_accepted = stop(saver, thread_id)
    status = status_of(saver, thread_id)
    sentence = f"{escape(thread_id)} is {status}"
    if status is None:
        sentence = f"{escape(thread_id)} has ended, and its thread was released or deleted"
    elif not is_accepted:
        sentence += ": nothing to stop"
    elif status != done:
        sentence += f": it {doing} before its next node"
    return Message(sentence, {"thread": thread_id, "status": status, "accepted": is_accepted})


def _describe_next(node_id: str | None) -> str:
    return "what its edge decides" if node_id is None else escape(node_id)
