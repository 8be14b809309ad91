"""Runs graphs: run, submit, resume, worker; and the schedules, by which workers submit runs."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import click

from graphkit._records.config import RunnableConfig, StreamMode
from graphkit._records.context import ABSENT
from graphkit._records.output import GraphResume, InterruptionMetadata, NodeOutput, StreamingOutput
from graphkit._saver.writes import Submission
from graphkit._wording import suggest
from graphkit.cli.cells import Row, describe_cancellation, describe_stop, format_command, format_event, status_of
from graphkit.cli.context import CliContext
from graphkit.cli.options import (
    Answer,
    App,
    Assign,
    CheckpointId,
    Directory,
    Interval,
    RunInput,
    Thread,
    argument,
    option,
)
from graphkit.cli.render import Column, Message, Table, Text, View, cut, show
from graphkit.cli.resolve import find_config, join_some, load_app, require_saver
from graphkit.cli.stores import open_store, with_placeholder_types
from graphkit.cli.values import UsageError, abbreviate, escape, parse_assignments, pluralize
from graphkit.errors import CheckpointNotFoundError, GraphKitError

if TYPE_CHECKING:
    from graphkit._compiled import CompiledGraph, Input
    from graphkit.schedules import Schedule

_NODE_WIDTH: Final = 24
"""Columns for a node's name in the live output."""

_MaxIterations: TypeAlias = Annotated[int | None, option("The maximum number of nodes to run.", type=click.IntRange(1))]


def run(
    context: CliContext,
    directory: Directory,
    app: App,
    thread: Annotated[str | None, option("The thread. Default: the default thread.", "-t", "THREAD")],
    given: RunInput,
    meta: Annotated[tuple[str, ...], option("Metadata to store with each checkpoint; repeatable.", "-m", "KEY=VALUE")],
    max_iterations: _MaxIterations,
) -> Iterator[View]:
    """Start a run, and print each step as it finishes.

    The directory is created if it is missing. SIGTERM and Ctrl-C stop the run before the next node, with
    everything stored. `graphkit resume` continues it.

    Example: graphkit run runs --app shop:app --thread order-17 --input '{"item": "lamp"}'
    """
    # Before the store is made: a mistake leaves none behind.
    values = context.read_run_input(given)
    metadata = parse_assignments(meta, "--meta")
    graph = load_app(app, directory, create=True)
    config = RunnableConfig(thread, metadata=metadata, max_iterations=max_iterations)
    return _follow(context, graph, values, config, app)


def submit(
    context: CliContext,
    directory: Directory,
    app: App,
    thread: Annotated[str | None, option("The thread. Default: a new one.", "-t", "THREAD")],
    given: RunInput,
    meta: Annotated[tuple[str, ...], option("Metadata to store with the run; repeatable.", "-m", "KEY=VALUE")],
    at: Annotated[str | None, option("Begin no earlier: 2026-12-01T08:00, local time unless it names a zone.", "TIME")],
    key: Annotated[str | None, option("Submit once: another submit of this key to the thread changes nothing.", "KEY")],
) -> Message:
    """Store a run for a worker to begin, and exit.

    `graphkit worker` begins it, or `graphkit resume`. A thread with a run that has not ended is
    refused.

    Example: graphkit submit runs --app shop:app --thread order-17 --input '{"item": "lamp"}'
    """
    values = context.read_run_input(given)
    metadata = parse_assignments(meta, "--meta")
    begin = None if at is None else context.parse_time(at)
    graph = load_app(app, directory, create=True)
    submitted = graph.submit(values, RunnableConfig(thread, metadata=metadata), at=begin, key=key)

    # What the thread is by now: a run with its key may have been submitted before, for another time. It may have
    # ended, and its graph may preserve no threads.
    data: dict[str, Any] = {"thread": submitted.thread, "status": None, "at": None, "key": key}
    sentence = f"{escape(submitted.thread)} has ended"
    for latest in require_saver(graph).recent(submitted, limit=1):
        data["status"] = latest.status
        sentence = f"{escape(submitted.thread)} is {latest.status}"
        stored = Submission.find(latest.next_node_id, latest.metadata)
        if stored is not None and stored.at is not None:
            data["at"] = stored.at
            local = context.to_local_time(stored.at)
            sentence += f", and begins at {local:%Y-%m-%d %H:%M %Z}"
    return Message(sentence, data)


def resume(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    app: App,
    checkpoint: CheckpointId,
    value: Answer,
    assign: Assign,
    recover: Annotated[bool, option("If the latest checkpoint is damaged, continue from the newest readable one.")],
    max_iterations: _MaxIterations,
) -> Iterator[View]:
    """Resume a thread, and print each step as it finishes.

    The thread continues from its latest checkpoint or an older one.

    Use it after a crash, after a failure, and after `graphkit answer` stored an answer. Stored
    checkpoints stay unchanged.

    Example: graphkit resume runs order-17 --app shop:app --set 'city="Bern"'
    """
    if recover and (checkpoint is not None or value is not None):
        raise UsageError("--recover chooses the checkpoint and answers nothing: omit --checkpoint and --value")
    graph = load_app(app, directory)
    saver = require_saver(graph)
    config = find_config(saver, thread, checkpoint=checkpoint)
    config = config.replace(max_iterations=max_iterations)
    update = parse_assignments(assign) or None
    if recover:
        from graphkit import recovery

        state = recovery.recover(graph, config, modifications=update)
        status = status_of(saver, config.thread) or "finished"
        data = {"thread": config.thread, "status": status, "state": state}
        return iter([Message(f"{escape(config.thread)} was resumed and is {status}", data)])

    answer: Any = ABSENT
    if value is not None:
        answer = context.read_json(value, "--value")
    return _follow(context, graph, GraphResume(answer, update=update), config, app)


def _follow(
    context: CliContext, graph: CompiledGraph, given: Input, config: RunnableConfig, app: str
) -> Iterator[View]:
    """Run a graph; yield a view for each output, and one for how the run ended."""
    from graphkit._to_thread import iterate

    last: NodeOutput | None = None
    steps = 0
    start = monotonic()
    config = config.with_stream_mode(StreamMode.UPDATES)

    with context.stop_on_signal(lambda: graph.pause(config.thread)) as stop_again:
        run = graph.astream if graph.topology.asynchronous else graph.stream
        for last in iterate(run(given, config)):
            stop_again()
            if isinstance(last, InterruptionMetadata):
                break
            if last.is_end:
                continue
            is_step = not last.is_start and not isinstance(last, StreamingOutput)
            if is_step:
                steps += 1
            yield _step_view(context, last, steps, monotonic() - start)

    if isinstance(last, InterruptionMetadata):
        yield _stop_view(context, config.thread, last, steps, app)
    elif last is not None and not last.is_end:
        status = status_of(require_saver(graph), config.thread)
        data: dict[str, Any] = {"thread": config.thread, "status": status}
        hint = format_command(context, "worker", "--app", app)
        yield Message(f"{escape(config.thread)} is {status}: its time has not come", data, hint=hint)
    else:
        state = None if last is None else dict(last.state)
        data = {"thread": config.thread, "status": "finished", "state": state}
        yield Message(f"{escape(config.thread)} finished after {pluralize(steps, 'step')}", data)


def _step_view(context: CliContext, output: NodeOutput, number: int, seconds: float) -> Text:
    node = escape(output.node).ljust(_NODE_WIDTH)
    if isinstance(output, StreamingOutput):
        chunk = abbreviate(output.chunk, 100)
        data = {"node": output.node, "chunk": output.chunk}
        return Text(cut(f"     {node} | {chunk}", context.line_width), data)

    # A fork has an update for each of its branches.
    changed: dict[str, Any] = {}
    for update in (output.update or {}).values():
        changed.update(update or {})
    parts = [f"{escape(key)}={abbreviate(value, 40)}" for key, value in changed.items()]
    line = f"{number:4} {node} {'  '.join(parts)}"
    data = {
        "step": number,
        "node": output.node,
        "update": changed,
        "seconds": round(seconds, 3),
        "subgraph": output.is_subgraph,
    }
    return Text(cut(line.rstrip(), context.line_width), data)


def _stop_view(context: CliContext, thread_id: str, last: InterruptionMetadata, steps: int, app: str) -> Message:
    """Return how a run stopped; the hint is the command that continues it."""
    name = escape(thread_id)
    count = pluralize(steps, "step")
    resume = ["resume", thread_id, "--app", app]
    if last.is_cancelled:
        data = {"thread": thread_id, "status": "cancelled", "reason": last.reason()}
        sentence = f"{name} was {describe_cancellation(last.metadata)}, after {count}"
        return Message(sentence, data, hint=format_command(context, *resume))

    waiting = [interrupt.when for interrupt in last.interrupts if interrupt.due is None]
    if not waiting:  # until its time comes, a resume would stop again
        command = ["worker", "--app", app]
    elif "inside" not in waiting:
        command = resume
    elif not context.directory:  # `answer` has no --app, whose graph has the saver
        command = [*resume, "--value", "..."]
    elif len(waiting) > 1:  # asks for one after another
        command = ["answer", thread_id]
    else:
        command = ["answer", thread_id, "--text", "..."]
    data = {
        "thread": thread_id,
        "status": "interrupted" if last.due is None else "sleeping",  # what waits for a human comes first
        "interrupts": [_interrupt_row(stop) for stop in last.interrupts],
    }
    sentence = f"{name} stopped after {count} and waits {_describe_interrupts(context, last)}"
    return Message(sentence, data, hint=format_command(context, *command))


def _interrupt_row(stop: InterruptionMetadata) -> Row:
    return {
        "id": stop.id,
        "node": stop.node_id,
        "when": stop.when,
        "reason": stop.reason(),
        "payload": stop.payload,
        "metadata": stop.metadata,
        "due": stop.due,
        "deadline": None if stop.waiting is None else stop.waiting.deadline,
    }


def _describe_interrupts(context: CliContext, output: InterruptionMetadata) -> str:
    return "; ".join(_describe_interrupt(context, stop) for stop in output.interrupts)


def _describe_interrupt(context: CliContext, stop: InterruptionMetadata) -> str:
    if stop.due is not None:
        return f"in {escape(stop.node_id)} until {context.describe_time(stop.due)}"
    described = describe_stop(stop.when, stop.node_id, stop.reason())
    if stop.waiting is not None and stop.waiting.deadline is not None:
        described += f" (until {context.describe_time(stop.waiting.deadline)})"
    return described


# worker


def worker(
    context: CliContext,
    directory: Directory,
    app: App,
    failed: Annotated[bool, option("Also resume failed runs, with growing pauses.")],
    once: Annotated[bool, option("Exit when there is currently nothing to do.")],
    concurrency: Annotated[int, option("How many threads to run at once.", "N", type=click.IntRange(1), default=1)],
    policy: Annotated[str | None, option("Apply the retention policy of this YAML or JSON file meanwhile.", "FILE")],
    interval: Interval,
) -> Message:
    """Serve the runs of a directory.

    A worker begins runs that were submitted, and resumes threads that were answered, whose timer or
    deadline has passed, or whose process died.

    Start as many workers as you need; only one of them at a time runs a thread. A worker ignores
    the threads of other graphs. The directory may be missing or empty. SIGTERM and Ctrl-C stop a
    worker before the next node of each of its runs, with everything stored; another worker
    continues at once. With --policy, one of the workers removes what the rules of the file do not
    keep, from all threads of the directory.

    Example: graphkit worker runs --app shop:app
    """
    from graphkit.retention import RetentionPolicy
    from graphkit.worker import Worker

    def report(thread: str, output: NodeOutput) -> None:
        if output.is_start or isinstance(output, StreamingOutput):
            return
        interrupts: list[Row] = []
        text = "finished" if output.is_end else escape(output.node)
        if isinstance(output, InterruptionMetadata) and output.is_cancelled:
            text = describe_cancellation(output.metadata)
        elif isinstance(output, InterruptionMetadata):
            interrupts = [_interrupt_row(stop) for stop in output.interrupts]
            text = f"waits {_describe_interrupts(context, output)}"
        when = context.now()
        data = {
            "time": when,
            "thread": thread,
            "node": output.node,
            "subgraph": output.is_subgraph,
            "interrupts": interrupts,
        }
        line = format_event(context, when, escape(thread), text)
        show(context, Text(cut(line, context.line_width), data))

    rules = None if policy is None else RetentionPolicy.from_file(policy)
    graph = load_app(app, directory, create=True)
    serving = Worker(
        require_saver(graph),
        graph,
        concurrency=concurrency,
        failed=failed,
        on_output=report,
        interval=interval,
        policy=rules,
    )
    with context.stop_on_signal(serving.stop):
        context.warn("serving; Ctrl-C or SIGTERM stops before the next node")
        count = serving.run(once=once)
    return Message(f"resumed {pluralize(count, 'run')}", {"runs": count})


# schedules

_COLUMNS: Final = (
    Column("name", "NAME", "name"),
    Column("cron", "CRON", "whole"),
    Column("timezone", "ZONE"),
    Column("graph_id", "GRAPH"),
    Column("next_due", "NEXT", "age"),
    Column("last_due", "LAST", "age"),
    Column("input", "INPUT"),
)
_Name: TypeAlias = Annotated[str, argument("The name of the schedule.")]


class _UnknownScheduleError(GraphKitError):
    exit_code = CheckpointNotFoundError.exit_code


def schedule_add(
    context: CliContext,
    directory: Directory,
    name: _Name,
    cron: Annotated[str, argument("Five fields: minute, hour, day, month, weekday.")],
    given: RunInput,
    timezone: Annotated[str | None, option("The zone of CRON, such as Europe/Zurich. Default: UTC.", "ZONE")],
    graph_id: Annotated[str | None, option("The graph, for workers that serve several.", "ID")],
) -> Message:
    """Submit a run at each time of a cron expression.

    The workers of the store submit the runs. A schedule of the same name is replaced; the same
    definition again changes nothing.

    Example: graphkit schedule add runs report "0 9 * * 1-5" --input '{"kind": "daily"}'
    """
    from graphkit._engine.schedules import Schedule, check_schedule, store_schedule

    values = context.read_run_input(given)
    now = context.now()
    new = Schedule(name=name, cron=cron, input=values, graph_id=graph_id, timezone=timezone, created_at=now)
    checked = check_schedule(new)
    added = store_schedule(open_store(directory, create=True), checked)
    row = _make_row(context, added)
    due = context.to_local_time(row["next_due"])
    return Message(f"{escape(name)} is due next at {due:%Y-%m-%d %H:%M %Z}", row)


@with_placeholder_types()
def schedule_list(context: CliContext, directory: Directory) -> Table:
    """List the schedules of a store, with their next and last times.

    Example: graphkit schedule list runs
    """
    from graphkit import schedules

    rows = [_make_row(context, schedule) for schedule in schedules.find_all(open_store(directory))]
    return Table(_COLUMNS, rows, empty="no schedules", summary=pluralize(len(rows), "schedule"))


def schedule_remove(_context: CliContext, directory: Directory, name: _Name) -> Message:
    """Remove a schedule. Runs that it submitted stay.

    Example: graphkit schedule remove runs report
    """
    from graphkit import schedules
    from graphkit._engine.schedules import find_name

    saver = open_store(directory)
    if not schedules.remove(saver, name):
        known = [each for each in map(find_name, sorted(saver.threads())) if each is not None]
        hint = "; the store has none"
        if known:
            hint = suggest(name, known, show=escape) or f"; there are {join_some(known)}"
        raise _UnknownScheduleError(f"there is no schedule {escape(name)}{hint}")
    return Message(f"removed {escape(name)}", {"removed": name})


def _make_row(context: CliContext, schedule: Schedule) -> Row:
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone or "UTC",
        "graph_id": schedule.graph_id,
        "next_due": schedule.next_due(context.now()),
        "last_due": schedule.last_due,
        "created_at": schedule.created_at,
        "input": schedule.input,
    }
