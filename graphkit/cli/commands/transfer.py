"""Moves threads between stores: copy, export, import, and the imports and the export of LangGraph's threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from graphkit._saver.incomplete import check_target, refuse_incomplete
from graphkit._transfer.copying import check_stores
from graphkit._transfer.importing import LineReader, check_threads, sync_directory
from graphkit.cli.cells import count_checkpoints
from graphkit.cli.context import CliContext
from graphkit.cli.options import Directory, DryRun, MaybeApp, Output, argument, complete_thread, option
from graphkit.cli.render import Message
from graphkit.cli.resolve import find_chosen, find_thread, join_some, load_app
from graphkit.cli.stores import (
    POSTGRES,
    SQLITE,
    hide_passwords,
    is_new_directory,
    load_langgraph,
    open_store,
    open_target,
    strip_kind,
)
from graphkit.cli.values import UsageError, escape, pluralize
from graphkit.errors import CheckpointerError, CheckpointFormatError, CheckpointStorageError

_Versions: TypeAlias = Annotated[bool, option("Also released histories.", "--versions/--no-versions", default=True)]

# copy


def copy(
    context: CliContext,
    directory: Directory,
    threads: Annotated[
        tuple[str, ...],
        argument("A thread and its copy; with --to: only these.", "THREAD NEW", shell_complete=complete_thread),
    ],
    to: Annotated[str | None, option("Copy to this store, created if it is missing.", "STORE")],
    versions: _Versions,
    plaintext: Annotated[bool, option("With --to: do not seal the copy, although the store is sealed.")],
    dry_run: DryRun,
    app: MaybeApp,
) -> Message:
    """Copy threads to another store, or a thread's active history into a new thread.

    With --to, the command copies everything that belongs to the threads, with their ids, reads it
    back and compares it. An interrupted copy continues where it stopped when you run it again, and
    later runs copy what is new. It never changes a thread that differs. States that contain types of
    your own require --app.

    Without --to, it copies the active history of one thread, including its ids, within the store.

    Example: graphkit copy runs --to backup
    """
    if to is None:
        if plaintext or not versions or app is not None:
            raise UsageError("--plaintext, --no-versions and --app are for a copy to another store: name it with --to")
        return _copy_within(directory, threads, dry_run=dry_run)
    from graphkit.transfer import copy_threads

    types = _types_of(app)  # first: its module may register the kind of either store
    source = open_store(directory)
    source.register_types(*types)
    chosen = find_chosen(source, threads, released=versions)
    place = hide_passwords(to)
    if dry_run:
        found = chosen or source.threads(released=versions)
        if not is_new_directory(to):  # nor is anything else created before the first thread is stored
            target = open_store(to, create=True, is_sealed=not plaintext)
            check_stores(source, target, found, versions=versions, plaintext=plaintext)
        return _describe_dry_run("copy", found, f" to {escape(place)}", to=place)

    target = open_store(to, create=True, is_sealed=not plaintext, for_copies=True)
    target.register_types(*types)
    with context.progress("copying") as progress:
        done = copy_threads(source, target, chosen, versions=versions, plaintext=plaintext, progress=progress)

    copied = _describe(done.checkpoints, done.versions)
    count = pluralize(len(done.threads), "thread")
    text = f"copied {copied} of {count} to {escape(place)}, verified"
    if done.skipped_checkpoints or done.skipped_versions:
        skipped = _describe(done.skipped_checkpoints, done.skipped_versions)
        text += f"; skipped {skipped} that were already there"
    return Message(text, {"to": place, **done._asdict()})


def _copy_within(directory: str, threads: Sequence[str], *, dry_run: bool) -> Message:
    if len(threads) != 2:  # noqa: PLR2004
        raise UsageError("name the thread and the id of its copy, or another store with --to")
    thread, target = threads
    saver = open_store(directory)
    source = find_thread(saver, thread)
    count = count_checkpoints(saver, source)
    what = f"{pluralize(count, 'checkpoint')} of {escape(source)} to {escape(target)}"
    data = {
        "thread": target,
        "from": source,
        "checkpoints": count,
        "dry_run": dry_run,
    }
    if dry_run:
        refuse_incomplete(saver, source)
        check_target(saver, target)
        return Message(f"would copy {what}", data)
    saver.copy(source, target)
    return Message(f"copied {what}", data)


def _describe(checkpoints: int, versions: int) -> str:
    text = pluralize(checkpoints, "checkpoint")
    if versions:
        text += f" and {pluralize(versions, 'version')}"
    return text


def _describe_dry_run(verb: str, threads: Sequence[str], place: str = "", **data: Any) -> Message:
    """Return the message about what a command would do with threads, and where."""
    sentence = f"would {verb} {pluralize(len(threads), 'thread')}{place}: {join_some(threads)}"
    return Message(sentence, {"threads": list(threads), **data, "dry_run": True})


# export and import

_STANDARD_STREAM: Final = "-"
_END_KEY: Final = '"end":'
"""Near the beginning of the line that ends a thread, in both forms."""


def export(
    context: CliContext,
    directory: Directory,
    threads: Annotated[tuple[str, ...], argument("Only these threads.", "[THREAD]...")],
    output: Output,
    raw: Annotated[bool, option("Write the log files unchanged instead of readable lines.")],
    versions: _Versions,
    plaintext: Annotated[bool, option("Write readable lines although the store is sealed.")],
    dry_run: DryRun,
    app: MaybeApp,
) -> Message | None:
    """Write threads to a single file: readable JSON lines that keep every type, or the raw logs.

    States that contain types of your own require --app or --raw. The raw logs of a sealed directory
    stay sealed; readable lines of a sealed store require --plaintext.

    Example: graphkit export runs order-17 --output order-17.jsonl
    """
    from graphkit.transfer import export_threads

    types = _types_of(app)
    saver = open_store(directory)
    saver.register_types(*types)
    chosen = find_chosen(saver, threads, released=versions)
    is_new_file = output != _STANDARD_STREAM and not Path(output).exists()
    failures: list[CheckpointerError] = []

    def note_failure(error: CheckpointerError) -> None:
        if is_new_file:
            failures.append(error)
            return
        if output != _STANDARD_STREAM:
            context.warn(
                f"{escape(output)} stays as it was, because it may have a thread that failed: export to another"
            )
        raise error

    with context.progress("exporting", is_wanted=output != _STANDARD_STREAM) as progress:
        lines = export_threads(
            saver,
            chosen,
            format="logs" if raw else "lines",
            types=types,
            versions=versions,
            plaintext=plaintext,
            progress=progress,
            on_failure=note_failure,
        )
        if dry_run:
            next(lines)  # what the export refuses altogether, it refuses before its first line
            place = "standard output" if output == _STANDARD_STREAM else escape(output)
            return _describe_dry_run("export", chosen or saver.threads(released=versions), f" to {place}", file=output)
        exported = write_output(context, output, lines, ("thread", "threads"), _END_KEY)
    for error in failures:
        raise error
    return exported


def _types_of(app: str | None) -> tuple[type, ...]:
    """Return the application types of the graph of --app."""
    if app is None:
        return ()
    return tuple(load_app(app).topology.schema.types)


def write_output(
    context: CliContext, output: str, lines: Iterable[str], noun: tuple[str, str], key: str = ""
) -> Message | None:
    """Write lines to a file, and return what was exported; or to standard output, which has no room for that.

    Args:
        context: has the standard output.
        output: what the user typed.
        lines: the lines.
        noun: what is exported, as one and as several, which is also the key of its number in JSON.
        key: a key of JSON with which the lines begin that count; "" counts all.
    """
    if output == _STANDARD_STREAM:
        context.use_utf8()
        context.out.writelines(lines)
        return None
    count = _write_to_file(Path(output), lines, key)
    return Message(f"exported {pluralize(count, *noun)} to {escape(output)}", {noun[1]: count, "file": output})


def _write_to_file(path: Path, lines: Iterable[str], key: str) -> int:
    """Write lines to a file; return how many of them begin with a key of JSON.

    The file gets its name only when it is complete.

    Raises:
        UsageError: the path has no name.
        CheckpointStorageError: the file cannot be written. No file is left behind.
    """
    if not path.name:
        raise UsageError("--output needs the name of a file; - is standard output")
    if path.exists() and not path.is_file():  # a rename would replace a device
        raise CheckpointStorageError(str(path), "write", "it is not a file")
    # In the same directory: a rename to another file system would be a copy, which can fail in the middle. With the
    # number of the process, and only if there is no such file: it may be one of the user.
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        file = partial.open("x", encoding="utf-8", newline="\n")
    except OSError as error:
        raise CheckpointStorageError(str(path), "write", error) from error
    count = 0
    try:
        with file:
            for line in lines:
                file.write(line)
                count += key in line[:16]
            file.flush()
            os.fsync(file.fileno())  # the user may delete the threads next
        partial.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise CheckpointStorageError(str(path), "write", error) from error
    finally:
        partial.unlink(missing_ok=True)

    return count


def import_(
    context: CliContext,
    directory: Directory,
    file: Annotated[str, argument("A file that `export` wrote, in either form; - is standard input.")],
    dry_run: DryRun,
    app: MaybeApp,
) -> Message:
    """Read threads from a file into a store.

    The command creates the store if it is missing, reads each thread back and compares it. An
    interrupted import continues where it stopped when you run it again.

    Example: graphkit import elsewhere order-17.jsonl
    """
    from graphkit.transfer import import_threads

    with _open_input(context, file) as file_lines, context.progress("importing") as progress:
        # Nothing is created for a file that is none of graphkit's, so that its first line is read before the store is
        # opened, and put back.
        header = next(file_lines, "")
        LineReader([header]).read_head(None)
        lines = chain((header,), file_lines)
        if dry_run:
            source = LineReader(lines)
            return _describe_dry_run("import", check_threads(source, source.read_head(None)))
        types = _types_of(app)
        saver = open_store(directory, create=True, for_copies=True)
        done = import_threads(saver, lines, types=types, progress=progress)

    checkpoints = pluralize(done.checkpoints, "checkpoint")
    sentence = f"imported {checkpoints} of {pluralize(len(done.threads), 'thread')}, verified"
    if done.skipped:
        sentence += f"; skipped {done.skipped} that were already there"
    return Message(sentence, done._asdict())


@contextmanager
def _open_input(context: CliContext, file: str) -> Iterator[Iterator[str]]:
    """Open a file, or standard input, and yield its lines.

    Raises:
        OSError: the file cannot be opened.
        CheckpointFormatError: it is not UTF-8.
    """
    try:
        if file == _STANDARD_STREAM:
            context.use_utf8()
            yield context.input
            return
        with Path(file).open(encoding="utf-8") as opened:
            yield opened
    except UnicodeDecodeError as error:
        raise CheckpointFormatError("the file", "not an export file of graphkit: it is not UTF-8") from error


_Target: TypeAlias = Annotated[str, argument("The store, created if it is missing; also in the same database.", "DIR")]
_MAX_PROBLEMS: Final = 5
"""Problems that the message lists; JSON has all of them."""


def import_langgraph_sqlite(
    context: CliContext,
    file: Annotated[str, argument("The database of a SqliteSaver; the command only reads its tables.")],
    directory: _Target,
) -> Message:
    """Copy LangGraph's threads from a SQLite file, with checkpoints, writes, metadata and ids.

    The command reads everything back and compares it. An interrupted import continues where it
    stopped when you run it again.

    DIR may name the same file: `sqlite:checkpoints.sqlite`. The tables have other names, and those
    of LangGraph stay.

    Example: graphkit import langgraph-sqlite checkpoints.sqlite runs
    """
    return _import(context, load_langgraph().import_langgraph_sqlite, strip_kind(file, SQLITE), directory)


def import_langgraph_postgres(
    context: CliContext,
    dsn: Annotated[str, argument("The database of a PostgresSaver; the command only reads its tables.")],
    directory: _Target,
) -> Message:
    """Copy LangGraph's threads from PostgreSQL, as they are at this moment.

    Otherwise the command works like import-langgraph-sqlite.

    Example: graphkit import langgraph-postgres postgresql://localhost/agents runs
    """
    return _import(context, load_langgraph().import_langgraph_postgres, strip_kind(dsn, POSTGRES), directory)


def _import(context: CliContext, import_: Callable[..., Any], database: str, directory: str) -> Message:
    target, keys = open_target(directory)
    with context.progress("importing") as progress:
        report = import_(database, target, progress=progress, **keys)
    return _describe_report(report, "imported", directory)


def _describe_report(report: Any, verb: str, place: str) -> Message:
    """Return the message about an ImportReport or an ExportReport, whose fields are the keys of the JSON.

    Args:
        report: what was done.
        verb: "imported" or "exported".
        place: where the threads are now.
    """
    sentence = f"{verb} {pluralize(report.checkpoints, 'checkpoint')} to {escape(hide_passwords(place))}"
    if report.skipped:
        sentence += f", skipped {report.skipped} that were already there"
    sentence += f"; {pluralize(report.threads, 'thread')}"
    left_out: Sequence[str] = getattr(report, "left_out", ())
    if left_out:
        own = pluralize(len(left_out), "thread")
        sentence += f", left out {own} with runs of graphkit: {join_some(left_out)}"
    if report.ok:
        sentence += ", verified"
    else:
        problems = "\n".join(report.problems[:_MAX_PROBLEMS])
        sentence += f". {pluralize(len(report.problems), 'problem')}:\n{problems}"
    return Message(sentence, vars(report), 0 if report.ok else 1)


def export_langgraph_sqlite(
    context: CliContext,
    directory: Directory,
    database: Annotated[str, argument("The database of a SqliteSaver, created if it is missing.")],
    threads: Annotated[tuple[str, ...], option("Only this thread; repeatable.", "--thread")],
    plaintext: Annotated[bool, option("Write to the database although the store is sealed.")],
) -> Message:
    """Copy LangGraph's threads to a SQLite file, with checkpoints, writes, metadata and ids.

    The command reads everything back and compares it. It never replaces a checkpoint of the
    database. An interrupted export continues where it stopped when you run it again. LangGraph's
    database cannot be sealed: an export of a sealed store requires --plaintext.

    Example: graphkit export-langgraph-sqlite runs checkpoints.sqlite --thread order-17
    """
    saver = open_store(directory)
    chosen = find_chosen(saver, threads)
    langgraph = load_langgraph()
    with context.progress("exporting") as progress:
        report = langgraph.export_langgraph_sqlite(
            saver, strip_kind(database, SQLITE), threads=chosen, progress=progress, plaintext=plaintext
        )
    return _describe_report(report, "exported", database)
