"""Copies threads, within a store or to another one: copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from graphkit._saver.base import BaseCheckpointSaver
from graphkit.cli.commands.maintain import count_checkpoints
from graphkit.cli.commands.transfer import types_of
from graphkit.cli.context import CliContext
from graphkit.cli.options import Directory, DryRun, MaybeApp, complete_thread
from graphkit.cli.resolve import SECONDS_UNTIL_SYNC, find_thread, join_some, open_store
from graphkit.cli.store_names import hide_passwords
from graphkit.cli.values import UsageError, escape, pluralize
from graphkit.cli.views import Message

_NAMES_WITHIN_STORE: Final = 2
"""The thread, and the id of its copy."""


def copy(
    context: CliContext,
    directory: Directory,
    threads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="THREAD NEW",
            help="The thread, and the id of its copy. With --to: only these threads; default: all.",
            autocompletion=complete_thread,
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="STORE",
            help="Copy to this store, created if it is missing: a directory, or kind:argument.",
            show_default=False,
        ),
    ] = None,
    versions: Annotated[bool, typer.Option(help="With --to: whether to copy released histories.")] = True,
    plaintext: Annotated[
        bool,
        typer.Option("--plaintext", help="With --to: do not seal the copy, although the store is sealed."),
    ] = False,
    dry_run: DryRun = False,
    app: MaybeApp = None,
) -> Message:
    """Copy threads to another store, or a thread's active history into a new thread.

    With --to, the command copies everything that belongs to the threads, with their ids, reads it
    back and compares it. An interrupted copy continues where it stopped when you run it again, and
    later runs copy what is new. It never changes a thread that differs. States that contain types of
    your own require --app.

    Without --to, it copies the active history of one thread, including its ids, within the store.

    Example: graphkit copy runs --to backup
    """
    names = threads or []
    if to is not None:
        return _copy_to(context, directory, names, to, versions=versions, plaintext=plaintext, dry_run=dry_run, app=app)
    if plaintext or not versions or app is not None:
        raise UsageError("--plaintext, --no-versions and --app are for a copy to another store: name it with --to")
    default = context.environment.get("GRAPHKIT_DIR")
    if default and len(names) < _NAMES_WITHIN_STORE:
        names = [directory, *names]
        directory = default
    if len(names) != _NAMES_WITHIN_STORE:
        raise UsageError("name the thread and the id of its copy, or another store with --to")
    return _copy_within(directory, *names, dry_run=dry_run)


def _copy_within(directory: str, thread: str, target: str, *, dry_run: bool) -> Message:
    saver = open_store(directory)
    source = find_thread(saver, thread)
    count = count_checkpoints(saver, source)
    checkpoints = pluralize(count, "checkpoint")
    what = f"{checkpoints} of {escape(source)} to {escape(target)}"
    data = {
        "thread": target,
        "from": source,
        "checkpoints": count,
        "dry_run": dry_run,
    }
    if not dry_run:
        saver.copy(source, target)
        return Message(f"copied {what}", data)
    if saver.namespaces(target):
        return Message(f"would refuse to copy {what}, which is not empty", data)
    return Message(f"would copy {what}", data)


def _copy_to(
    context: CliContext,
    directory: str,
    names: Sequence[str],
    to: str,
    *,
    versions: bool,
    plaintext: bool,
    dry_run: bool,
    app: str | None,
) -> Message:
    from graphkit.transfer import copy_threads

    source = open_store(directory)
    types = types_of(app)
    source.register_types(*types)
    chosen = [find_thread(source, name, released=versions) for name in names] or None
    if dry_run:
        return _dry_copy(source, chosen, to, versions=versions)
    target = open_store(to, create=True, is_sealed=not plaintext, fsync=SECONDS_UNTIL_SYNC)
    target.register_types(*types)
    with context.progress("copying") as progress:
        done = copy_threads(source, target, chosen, versions=versions, plaintext=plaintext, progress=progress)
    copied = _describe(done.checkpoints, done.versions)
    text = f"copied {copied} of {pluralize(len(done.threads), 'thread')} to {escape(hide_passwords(to))}, verified"
    if done.skipped_checkpoints or done.skipped_versions:
        skipped = _describe(done.skipped_checkpoints, done.skipped_versions)
        text += f"; skipped {skipped} that were already there"
    data: dict[str, Any] = {
        "to": hide_passwords(to),
        "threads": list(done.threads),
        "skipped_threads": list(done.skipped_threads),
        "checkpoints": done.checkpoints,
        "skipped_checkpoints": done.skipped_checkpoints,
        "versions": done.versions,
        "skipped_versions": done.skipped_versions,
    }
    return Message(text, data)


def _describe(checkpoints: int, versions: int) -> str:
    text = pluralize(checkpoints, "checkpoint")
    if versions:
        text += f" and {pluralize(versions, 'version')}"
    return text


def _dry_copy(source: BaseCheckpointSaver, chosen: Sequence[str] | None, to: str, *, versions: bool) -> Message:
    threads = source.threads(released=versions) if chosen is None else chosen
    return Message(
        f"would copy {pluralize(len(threads), 'thread')} to {escape(hide_passwords(to))}: {join_some(threads)}",
        {"to": hide_passwords(to), "threads": list(threads), "dry_run": True},
    )


COMMANDS: Final = (copy,)
