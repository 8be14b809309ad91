"""Moves threads between stores: export, import."""

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
from graphkit._transfer.lines import LineReader
from graphkit.cli.context import CliContext, Progress
from graphkit.cli.options import Directory, DryRun, MaybeApp
from graphkit.cli.resolve import SECONDS_UNTIL_SYNC, find_thread, join_some, load_app, open_store
from graphkit.cli.values import UsageError, escape, pluralize
from graphkit.cli.views import Message
from graphkit.errors import CheckpointFormatError, CheckpointStorageError

_STANDARD_STREAM: Final = "-"
_THREAD_LINE: Final = '{"thread": '
"""The beginning of the line that starts a thread in a readable file."""
_END_KEY: Final = '"end":'
"""Near the beginning of the line that ends a thread, in both forms."""


def export(
    context: CliContext,
    directory: Directory,
    threads: Annotated[
        list[str] | None,
        typer.Argument(metavar="THREAD", help="Only these threads.", show_default=False),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write; - is standard output.",
            show_default=False,
        ),
    ] = _STANDARD_STREAM,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Write the log files unchanged instead of readable lines."),
    ] = False,
    versions: Annotated[bool, typer.Option(help="Whether to include released histories.")] = True,
    plaintext: Annotated[
        bool,
        typer.Option("--plaintext", help="Write readable lines although the store is sealed."),
    ] = False,
    dry_run: DryRun = False,
    app: MaybeApp = None,
) -> Message | None:
    """Write threads to a single file: readable JSON lines that keep every type, or the raw logs.

    States that contain types of your own require --app or --raw. The raw logs of a sealed directory
    stay sealed; readable lines of a sealed store require --plaintext.

    Example: graphkit export runs order-17 --output order-17.jsonl
    """
    saver = open_store(directory)
    types = types_of(app)
    saver.register_types(*types)
    chosen = [find_thread(saver, thread, released=versions) for thread in threads or ()] or None
    if dry_run:
        return _dry_export(chosen or saver.threads(released=versions), output)
    with context.progress("exporting", is_wanted=output != _STANDARD_STREAM) as progress:
        from graphkit.transfer import export_threads

        lines = export_threads(
            saver,
            chosen,
            format="logs" if raw else "lines",
            types=types,
            versions=versions,
            plaintext=plaintext,
            progress=progress,
        )
        if output == _STANDARD_STREAM:
            _write_to_stream(context, lines)
            return None
        count = _write_to_file(Path(output), lines)

    return Message(
        f"exported {pluralize(count, 'thread')} to {escape(output)}",
        {"threads": count, "file": output},
    )


def _dry_export(threads: Sequence[str], output: str) -> Message:
    target = "standard output" if output == _STANDARD_STREAM else escape(output)
    return Message(
        f"would export {pluralize(len(threads), 'thread')} to {target}: {join_some(threads)}",
        {"threads": list(threads), "file": output, "dry_run": True},
    )


def types_of(app: str | None) -> tuple[type, ...]:
    """Return the application types of the graph of --app."""
    return () if app is None else tuple(load_app(app).topology.schema.types)


def _write_to_stream(context: CliContext, lines: Iterable[str]) -> None:
    context.use_utf8()
    for line in lines:
        context.out.write(line)


def _write_to_file(path: Path, lines: Iterable[str]) -> int:
    """Write lines to a file; return the number of threads.

    The file gets its name only when it is complete.

    Raises:
        CheckpointStorageError: the file cannot be written. No file is left behind.
    """
    partial = path.with_name(f"{path.name}.part")
    count = 0
    try:
        with partial.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(line)
                if _END_KEY in line[:16]:
                    count += 1
            file.flush()
            os.fsync(file.fileno())  # the user may delete the threads next
        partial.replace(path)
    except OSError as error:
        raise CheckpointStorageError(str(path), "write", error) from error
    finally:
        partial.unlink(missing_ok=True)

    return count


def import_(
    context: CliContext,
    directory: Directory,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A file that `export` wrote, in either form; - is standard input.",
        ),
    ],
    rename: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NEW",
            help="The id of the imported thread; only for a file with one thread.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    app: MaybeApp = None,
) -> Message:
    """Read threads from a file into a store.

    The command creates the store if it is missing, reads each thread back and compares it. An
    interrupted import continues where it stopped when you run it again.

    Example: graphkit import elsewhere order-17.jsonl --as order-18
    """
    with (
        _open_input(context, file) as file_lines,
        context.progress("importing") as progress,
    ):
        header = next(file_lines, "")
        form = LineReader([header]).read_head(None)
        if rename is not None and form == "logs":
            raise UsageError("--as requires a file of readable lines: a raw log contains the id of its thread")
        lines: Iterator[str] = chain((header,), file_lines)
        if dry_run:
            return _dry_import(lines)
        if rename is not None:
            lines = _check_single(lines)
        saver = open_store(directory, create=True, fsync=SECONDS_UNTIL_SYNC)
        return _import_threads(saver, lines, rename, types_of(app), progress)


def _import_threads(
    saver: BaseCheckpointSaver,
    lines: Iterable[str],
    rename: str | None,
    types: tuple[type, ...],
    progress: Progress,
) -> Message:
    from graphkit.transfer import import_threads

    new_name = str if rename is None else lambda _: rename
    done = import_threads(saver, lines, types=types, rename=new_name, progress=progress)
    checkpoints = pluralize(done.checkpoints, "checkpoint")
    sentence = f"imported {checkpoints} of {pluralize(len(done.threads), 'thread')}, verified"
    if done.skipped:
        sentence += f"; skipped {done.skipped} that were already there"
    data = {
        "threads": list(done.threads),
        "checkpoints": done.checkpoints,
        "skipped": done.skipped,
    }
    return Message(sentence, data)


@contextmanager
def _open_input(context: CliContext, file: str) -> Iterator[Iterator[str]]:
    """Open a file, or standard input, and yield its lines.

    Raises:
        CheckpointStorageError: the file cannot be opened.
        CheckpointFormatError: it is not UTF-8.
    """
    try:
        if file == _STANDARD_STREAM:
            context.use_utf8()
            yield iter(context.input)
            return
        try:
            opened: TextIO = Path(file).open(encoding="utf-8")  # noqa: SIM115 - closed below
        except OSError as error:
            raise CheckpointStorageError(file, "read", error) from error
        with opened:
            yield iter(opened)
    except UnicodeDecodeError as error:
        raise CheckpointFormatError("the file", "not an export file of graphkit: it is not UTF-8") from error


def _dry_import(lines: Iterable[str]) -> Message:
    threads = [str(json.loads(line)["thread"]) for line in lines if line.startswith(_THREAD_LINE)]
    return Message(
        f"would import {pluralize(len(threads), 'thread')}: {join_some(threads)}",
        {"threads": threads, "dry_run": True},
    )


def _check_single(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a file.

    Raises:
        UsageError: it has more than one thread.
    """
    count = 0
    for line in lines:
        if line.startswith(_THREAD_LINE):
            count += 1
        if count > 1:
            raise UsageError("--as requires a file with one thread; this one has several")
        yield line


COMMANDS: Final = (export, import_)
