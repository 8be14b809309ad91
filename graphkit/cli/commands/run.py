"""Running a graph from the command line: run, resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Annotated, Any, Final

import typer

from graphkit._compiled import CompiledGraph, Input
from graphkit._records.config import RunnableConfig, StreamMode
from graphkit._records.output import ABSENT, GraphResume, InterruptionMetadata, NodeOutput, StreamingOutput
from graphkit.cli.context import CliContext
from graphkit.cli.options import App, Assign, CheckpointId, Directory, Thread
from graphkit.cli.render import Said, Text, View
from graphkit.cli.resolve import checkpoint_of, load_app, saver_of, thread_of
from graphkit.cli.values import UsageError, asking, assignments, brief, counted, from_json, object_from_json, shown

_NAME: Final = 24
"""Characters of a node's name in the live output."""

MaxIterations = Annotated[
    int | None, typer.Option("--max-iterations", min=1, help="How many nodes may run.", show_default=False)
]


def run(
    context: CliContext,
    app: App,
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="The checkpoint directory, made if it is missing; the saver of the graph otherwise.",
            show_default=False,
        ),
    ] = "",
    thread: Annotated[
        str | None,
        typer.Option(
            "--thread", "-t", metavar="THREAD", help="The thread; the default thread otherwise.", show_default=False
        ),
    ] = None,
    given: Annotated[
        str,
        typer.Option(
            "--input", "-i", metavar="JSON", help="What to start with: a JSON object; - reads it from the input."
        ),
    ] = "{}",
    meta: Annotated[
        list[str] | None,
        typer.Option(
            "--meta",
            "-m",
            metavar="KEY=VALUE",
            help="Metadata to store with each checkpoint; repeatable.",
            show_default=False,
        ),
    ] = None,
    max_iterations: MaxIterations = None,
) -> Iterator[View]:
    """Start a run, and show each step as it is done.

    SIGTERM and ^C stop it before the next node, with everything stored; `graphkit resume` goes on.

    Example: graphkit run runs --app shop:app --thread order-17 --input '{"item": "lamp"}'
    """
    graph = load_app(app, directory, create=True)
    values = object_from_json(context.given(given), "--input")
    metadata = assignments(meta or (), "--meta")
    config = RunnableConfig(thread, metadata=metadata, max_iterations=max_iterations)
    return _followed(context, graph, values, config)


def resume(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    app: App,
    checkpoint: CheckpointId = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            "-v",
            metavar="JSON",
            help="The answer to what waits; - reads it from the input.",
            show_default=False,
        ),
    ] = None,
    assign: Assign = None,
    recover: Annotated[
        bool, typer.Option("--recover", help="If the latest checkpoint is damaged, go on from the newest that reads.")
    ] = False,
    max_iterations: MaxIterations = None,
) -> Iterator[View]:
    """Go on with a thread where it stands, or from an older checkpoint; show each step as it is done.

    Goes on after a crash, a failure, and with an answer that `graphkit answer` has stored. The checkpoints there
    are stay as they are.

    Example: graphkit resume runs order-17 --app shop:app --set 'city="Bern"'
    """
    graph = load_app(app, directory)
    saver = saver_of(graph)
    at = RunnableConfig(thread_of(saver, thread), max_iterations=max_iterations)
    update = assignments(assign or ()) or None
    if recover:
        return iter([_recovered(graph, at, (checkpoint, value), update)])
    if checkpoint is not None:
        at = at.with_check_point_id(checkpoint_of(saver, at, checkpoint).id)
    answer = ABSENT if value is None else from_json(context.given(value), "--value")
    return _followed(context, graph, GraphResume(answer, update=update), at)


def _recovered(
    graph: CompiledGraph, at: RunnableConfig, others: tuple[str | None, str | None], update: Mapping[str, Any] | None
) -> View:
    from graphkit.recovery import recover

    if others != (None, None):
        raise UsageError("--recover chooses the checkpoint itself, and answers nothing")
    state = recover(graph, at, modifications=update)
    latest = saver_of(graph).recent(at, limit=1)
    status = latest[0].status if latest else "finished"
    data = {"thread": at.thread, "status": status, "state": None if state is None else dict(state)}
    return Said(f"{shown(at.thread)} went on and is {status}", data)


def _followed(context: CliContext, graph: CompiledGraph, given: Input, config: RunnableConfig) -> Iterator[View]:
    """The views of a run: one per output, and how it ended."""
    last: NodeOutput | None = None
    steps, began = 0, monotonic()
    with context.stopping(lambda: graph.pause(config.thread)):
        for last in outputs(graph, given, config.with_stream_mode(StreamMode.UPDATES)):
            if isinstance(last, InterruptionMetadata):
                break
            steps += not (last.is_start or last.is_end or isinstance(last, StreamingOutput))
            if not last.is_end:
                yield _step(last, steps, monotonic() - began)
    yield _end(config.thread, last, steps)


def outputs(graph: CompiledGraph, given: Input, config: RunnableConfig) -> Iterator[NodeOutput]:
    """What a run hands out, whether its nodes are asynchronous or not."""
    if not graph.topology.asynchronous:
        yield from graph.stream(given, config)
        return
    import asyncio

    async def following(stream: Any) -> NodeOutput | None:
        return await anext(stream, None)

    with asyncio.Runner() as runner:
        stream = graph.astream(given, config)
        while (output := runner.run(following(stream))) is not None:
            yield output


def _step(output: NodeOutput, number: int, seconds: float) -> Text:
    node = shown(output.node)
    if isinstance(output, StreamingOutput):
        return Text(f"     {node:{_NAME}} | {brief(output.chunk, 100)}", {"node": output.node, "chunk": output.chunk})
    updates = output.update or {}
    changed = {key: value for update in updates.values() for key, value in (update or {}).items()}
    told = "  ".join(f"{shown(key)}={brief(value, 40)}" for key, value in changed.items())
    data = {
        "step": number,
        "node": output.node,
        "update": changed,
        "seconds": round(seconds, 3),
        "subgraph": output.is_subgraph,
    }
    return Text(f"{number:4} {node:{_NAME}} {told}".rstrip(), data)


def _end(thread_id: str, last: NodeOutput | None, steps: int) -> Said:
    count = counted(steps, "step")
    if isinstance(last, InterruptionMetadata):
        data = {"thread": thread_id, "status": "interrupted", "interrupts": [_asks(one) for one in last.interrupts]}
        asks = "; ".join(f"{one.when} {shown(one.node_id)}: {asking(one.reason())}" for one in last.interrupts)
        return Said(f"{shown(thread_id)} stopped after {count} and waits {asks}", data)
    state = None if last is None else dict(last.state)
    return Said(
        f"{shown(thread_id)} finished after {count}", {"thread": thread_id, "status": "finished", "state": state}
    )


def _asks(one: InterruptionMetadata) -> dict[str, Any]:
    return {"id": one.id, "node": one.node_id, "when": one.when, "payload": one.payload, "metadata": one.metadata}


COMMANDS: Final = (run, resume)
