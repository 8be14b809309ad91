"""Threads out of a store and into another: export, import."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Final, TextIO

import typer

from graphkit._saver.base import BaseCheckpointSaver
from graphkit.cli.context import CliContext
from graphkit.cli.options import Directory, DryRun, MaybeApp
from graphkit.cli.render import Said
from graphkit.cli.resolve import load_app, open_store, some, thread_of
from graphkit.cli.values import UsageError, counted, shown
from graphkit.errors import CheckpointFormatError, CheckpointStorageError

OutputFile = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - is the output.", show_default=False)
]


def export(
    context: CliContext,
    directory: Directory,
    threads: Annotated[
        list[str] | None, typer.Argument(metavar="THREAD", help="Only these threads.", show_default=False)
    ] = None,
    output: OutputFile = "-",
    raw: Annotated[bool, typer.Option("--raw", help="The log files as they are, instead of readable lines.")] = False,
    versions: Annotated[bool, typer.Option(help="Whether to take released histories too.")] = True,
    dry_run: DryRun = False,
    app: MaybeApp = None,
) -> Said | None:
    """Write threads to a single file: readable JSON lines that keep every type, or the raw logs.

    States that hold types of your own need --app, or --raw.

    Example: graphkit export runs order-17 --output order-17.jsonl
    """
    saver, types = open_store(directory), _types(app)
    saver.register_types(*types)
    chosen = [thread_of(saver, one, released=versions) for one in threads] if threads else None
    if dry_run:
        return _would_export(chosen or saver.threads(released=versions), output)
    with context.progress("exporting", is_wanted=output != "-") as progress:
        if raw:
            from graphkit.rawlogs import export_logs

            lines = export_logs(saver, chosen, progress=progress)
        else:
            from graphkit.transfer import export_threads

            lines = export_threads(saver, chosen, types=types, versions=versions, progress=progress)
        return _write(context, lines, output)


def _would_export(threads: Sequence[str], output: str) -> Said:
    place = "the output" if output == "-" else shown(output)
    data = {"threads": list(threads), "file": output, "dry_run": True}
    return Said(f"would export {counted(len(threads), 'thread')} to {place}: {some(threads)}", data)


def _types(app: str | None) -> tuple[type, ...]:
    return () if app is None else tuple(load_app(app).topology.schema.types)


def _write(context: CliContext, lines: Iterable[str], output: str) -> Said | None:
    """Write the lines; a file appears when all of it is there."""
    if output == "-":
        context.pass_files()
        for line in lines:
            context.out.write(line)
        return None
    path = Path(output)
    beside = path.with_name(f"{path.name}.part")
    count = size = 0
    try:
        with beside.open("w", encoding="utf-8") as file:
            for line in lines:
                size += file.write(line)
                count += '"end":' in line[:16]
            file.flush()
            os.fsync(file.fileno())  # what was exported may be deleted next
        beside.replace(path)
    except OSError as error:
        raise CheckpointStorageError(output, "write", error) from error
    finally:
        beside.unlink(missing_ok=True)
    return Said(f"exported {counted(count, 'thread')} to {shown(output)}", {"threads": count, "file": output})


def import_(
    context: CliContext,
    directory: Directory,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `export` wrote, of either form; - is the input.")],
    rename: Annotated[
        str | None,
        typer.Option("--as", metavar="NEW", help="The id of the thread here; for a file of one.", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    app: MaybeApp = None,
) -> Said:
    """Read threads from a file into a store, which is made if it is missing; each is read back and compared.

    Cut short, it goes on where it was when it is done again.

    Example: graphkit import elsewhere order-17.jsonl --as order-18
    """
    with _opened(context, file) as found, context.progress("importing") as progress:
        head = next(found, "")
        is_raw = _form(head) == "logs"
        if rename is not None and is_raw:
            raise UsageError("--as wants a file of readable lines: a log knows whose it is")
        lines = chain((head,), found)
        if dry_run:
            return _would(lines)
        saver = open_store(directory, create=True)
        if not is_raw:
            return _imported(saver, _single(lines) if rename is not None else lines, rename, app, progress)
        from graphkit.rawlogs import import_logs

        done = import_logs(saver, lines, progress=progress)
    return Said(f"imported the logs of {counted(len(done), 'thread')}, verified", {"threads": list(done)})


def _imported(
    saver: BaseCheckpointSaver, lines: Iterable[str], rename: str | None, app: str | None, progress: object
) -> Said:
    from graphkit.transfer import import_threads

    done = import_threads(
        saver, lines, types=_types(app), rename=lambda one: rename or one, progress=progress  # type: ignore[arg-type]
    )  # fmt: skip
    there = f", {done.skipped} were there already" if done.skipped else ""
    amount = f"{counted(done.checkpoints, 'checkpoint')} of {counted(len(done.threads), 'thread')}"
    sentence = f"imported {amount}, read back and the same{there}"
    return Said(sentence, {"threads": list(done.threads), "checkpoints": done.checkpoints, "skipped": done.skipped})


@contextmanager
def _opened(context: CliContext, file: str) -> Iterator[Iterator[str]]:
    try:
        if file == "-":
            context.pass_files()
            yield iter(context.input)
            return
        try:
            opened: TextIO = Path(file).open(encoding="utf-8")  # noqa: SIM115 - closed below
        except OSError as error:
            raise CheckpointStorageError(file, "read", error) from error
        with opened:
            yield iter(opened)
    except UnicodeDecodeError as error:
        raise CheckpointFormatError("the file", "this is no export of graphkit's: it is not UTF-8") from error


def _form(head: str) -> str:
    try:
        data = json.loads(head)
    except (ValueError, RecursionError):
        data = None
    form = data.get("graphkit") if isinstance(data, dict) else None
    if form not in {"threads", "logs"}:
        raise CheckpointFormatError("the file", "this is no export of graphkit's")
    return str(form)


def _threads_in(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith('{"thread": '):
            yield str(json.loads(line)["thread"])


def _would(lines: Iterable[str]) -> Said:
    threads = list(_threads_in(lines))
    return Said(
        f"would import {counted(len(threads), 'thread')}: {some(threads)}", {"threads": threads, "dry_run": True}
    )


def _single(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a file that may have one thread only."""
    count = 0
    for line in lines:
        count += line.startswith('{"thread": ')
        if count > 1:
            raise UsageError("--as wants a file of one thread, and this has several")
        yield line


COMMANDS: Final = (export, import_)
