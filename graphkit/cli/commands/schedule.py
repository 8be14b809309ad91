"""Schedules, which workers submit runs by: schedule add, list, remove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from graphkit import schedules
from graphkit._engine.schedules import find_name
from graphkit._wording import suggest
from graphkit.cli import options
from graphkit.cli.cells import Row
from graphkit.cli.command import Command
from graphkit.cli.context import CliContext
from graphkit.cli.render import Column, Message, Table
from graphkit.cli.resolve import join_some
from graphkit.cli.stores import open_store, with_placeholder_types
from graphkit.cli.values import escape, parse_json_object, pluralize
from graphkit.errors import CheckpointNotFoundError, GraphKitError
from graphkit.schedules import Schedule

_COLUMNS: Final = (
    Column("name", "NAME", "name"),
    Column("cron", "CRON", "whole"),
    Column("timezone", "ZONE"),
    Column("graph_id", "GRAPH"),
    Column("next_due", "NEXT", "age"),
    Column("last_due", "LAST", "age"),
    Column("input", "INPUT", "value"),
)
_name = click.argument("name", metavar="NAME", help="The name of the schedule.")


class _UnknownScheduleError(GraphKitError):
    exit_code = CheckpointNotFoundError.exit_code

    def __init__(self, name: str, known: Sequence[str]) -> None:
        hint = suggest(name, known, show=escape)
        if not hint:
            hint = f"; there are {join_some(known)}" if known else "; the store has none"
        super().__init__(f"there is no schedule {escape(name)}{hint}")


@click.command("schedule-add", cls=Command)
@options.directory
@_name
@click.argument("cron", metavar="CRON", help="Five fields: minute, hour, day, month, weekday.")
@options.run_input
@click.option("--timezone", metavar="ZONE", help="The zone of CRON, such as Europe/Zurich. Default: UTC.")
@click.option("--graph-id", metavar="ID", help="The graph, for workers that serve several.")
def schedule_add(
    context: CliContext,
    directory: str,
    name: str,
    cron: str,
    given: str,
    timezone: str | None,
    graph_id: str | None,
) -> Message:
    """Submit a run at each time of a cron expression.

    The workers of the store submit the runs. A schedule of the same name is replaced; the same
    definition again changes nothing.

    Example: graphkit schedule add runs report "0 9 * * 1-5" --input '{"kind": "daily"}'
    """
    values = parse_json_object(context.read_value(given), "--input")
    saver = open_store(directory, create=True)
    added = schedules.add(saver, name, cron, values, graph_id=graph_id, timezone=timezone, created_at=context.now())
    row = _make_row(context, added)
    due = context.to_local_time(row["next_due"])
    return Message(f"{escape(name)} is due next at {due:%Y-%m-%d %H:%M %Z}", row)


@click.command("schedule-list", cls=Command)
@options.directory
@with_placeholder_types
def schedule_list(context: CliContext, directory: str) -> Table:
    """List the schedules of a store, with their next and last times.

    Example: graphkit schedule list runs
    """
    rows = [_make_row(context, schedule) for schedule in schedules.find_all(open_store(directory))]
    return Table(_COLUMNS, rows, empty="no schedules", summary=pluralize(len(rows), "schedule"))


@click.command("schedule-remove", cls=Command)
@options.directory
@_name
def schedule_remove(context: CliContext, directory: str, name: str) -> Message:  # noqa: ARG001 - of every command
    """Remove a schedule. Runs that it submitted stay.

    Example: graphkit schedule remove runs report
    """
    saver = open_store(directory)
    if not schedules.remove(saver, name):
        names = map(find_name, sorted(saver.threads()))
        raise _UnknownScheduleError(name, [known for known in names if known is not None])
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
