"""Serves the runs of a directory: worker."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from graphkit._records.output import InterruptionMetadata, NodeOutput, StreamingOutput
from graphkit.cli.commands.run import describe_stops
from graphkit.cli.context import CliContext
from graphkit.cli.options import App, Directory, Interval
from graphkit.cli.render import show
from graphkit.cli.resolve import load_app
from graphkit.cli.values import escape, pluralize
from graphkit.cli.views import Message, Text


def worker(
    context: CliContext,
    directory: Directory,
    app: App,
    failed: Annotated[
        bool,
        typer.Option("--failed", help="Also resume failed runs, with growing pauses."),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Exit when there is currently nothing to do.")] = False,
    interval: Interval = 1.0,
) -> Message:
    """Serve the runs of a directory.

    A worker resumes threads that were answered, and threads whose process died.

    Start as many workers as you need; only one of them at a time runs a thread. A worker ignores
    the threads of other graphs. The directory may be missing or empty. SIGTERM and Ctrl-C stop a
    worker before the next node, with everything stored; another worker continues at once.

    Example: graphkit worker runs --app shop:app
    """
    from graphkit.worker import Worker

    def report(thread: str, output: NodeOutput) -> None:
        if not (output.is_start or isinstance(output, StreamingOutput)):
            show(context, _output_view(context, thread, output))

    graph = load_app(app, directory, create=True)
    serving = Worker(graph, failed=failed, on_output=report, interval=interval)
    with context.stop_on_signal(serving.stop):
        context.warn("serving; Ctrl-C or SIGTERM stops before the next node")
        count = serving.run(once=once)
    return Message(f"resumed {pluralize(count, 'run')}", {"runs": count})


def _output_view(context: CliContext, thread: str, output: NodeOutput) -> Text:
    interrupts = output.interrupts if isinstance(output, InterruptionMetadata) else ()
    if isinstance(output, InterruptionMetadata) and interrupts:
        text = f"waits {describe_stops(output)}"
    elif output.is_end:
        text = "finished"
    else:
        text = escape(output.node)

    when = context.now()
    data = {
        "time": when,
        "thread": thread,
        "node": output.node,
        "subgraph": output.is_subgraph,
        "interrupts": [
            {
                "id": one.id,
                "node": one.node_id,
                "when": one.when,
                "reason": one.reason(),
            }
            for one in interrupts
        ],
    }
    return Text(f"{context.to_local_time(when):%H:%M:%S}  {escape(thread):24} {text}", data)


COMMANDS: Final = (worker,)
