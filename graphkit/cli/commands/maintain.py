"""Looking after a store: compact, prune, copy, delete, release."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import SupportsCompact
from graphkit._saver.retention import Retention
from graphkit.cli.commands.threads import age
from graphkit.cli.commands.verify import has_files, missing_capability
from graphkit.cli.context import CliContext
from graphkit.cli.options import Directory, DryRun, MaybeThread, Thread
from graphkit.cli.render import Said, human_bytes
from graphkit.cli.resolve import open_store, thread_of
from graphkit.cli.values import UsageError, counted, shown
from graphkit.errors import CheckpointNotFoundError


def compact(context: CliContext, directory: Directory, thread: MaybeThread = None, dry_run: DryRun = False) -> Said:
    """Free the bytes of what nobody can reach any more, because it was replaced.

    Example: graphkit compact runs
    """
    saver = open_store(directory)
    only = None if thread is None else thread_of(saver, thread)
    if not isinstance(saver, SupportsCompact):
        raise missing_capability(saver, "compact")
    if dry_run:
        size = saver.size(only)
        return Said(f"would rewrite what can be shortened among {human_bytes(size)}", {"size": size})
    with context.progress("compacting") as progress:
        freed = saver.compact(only, progress=progress)
    return Said(f"freed {human_bytes(freed)}", {"freed": freed})


def prune(
    context: CliContext,
    directory: Directory,
    thread: MaybeThread = None,
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", min=1, help="Keep so many of each history.", show_default=False)
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Remove only what is older: 12h, 30d.", show_default=False),
    ] = None,
    keep_tag: Annotated[
        list[str] | None, typer.Option("--keep-tag", help="Keep what has this tag; repeatable.", show_default=False)
    ] = None,
    interrupted: Annotated[bool, typer.Option("--interrupted", help="Remove what waits for a human too.")] = False,
    dry_run: DryRun = False,
) -> Said:
    """Remove old checkpoints. The latest of a history never goes.

    Example: graphkit prune runs --keep-last 10 --older-than 30d --keep-tag golden
    """
    if keep_last is None and older_than is None:
        raise UsageError("say what to prune: --keep-last, --older-than or both")
    saver = open_store(directory)
    before = None if older_than is None else context.now() - age(older_than)
    options: dict[str, Any] = {
        "keep_last": keep_last,
        "older_than": before,
        "keep_tags": tuple(keep_tag or ()),
        "keep_interrupted": not interrupted,
    }
    among = saver.threads() if thread is None else [thread_of(saver, thread)]
    count = 0
    with context.progress("pruning") as progress:
        for done, thread_id in enumerate(among, 1):
            count += _going(saver, thread_id, options) if dry_run else saver.prune(thread_id, **options)
            progress(done, len(among), thread_id)
    verb = "would remove" if dry_run else "removed"
    return Said(
        f"{verb} {counted(count, 'checkpoint')} of {counted(len(among), 'thread')}",
        {"removed": count, "threads": len(among), "dry_run": dry_run},
    )


def _going(saver: BaseCheckpointSaver, thread_id: str, options: dict[str, Any]) -> int:
    retention = Retention(**options)
    spaces = [RunnableConfig(thread_id, checkpoint_ns=ns) for ns in saver.namespaces(thread_id)]
    return sum(len(retention.select_removable(saver.history(at))) for at in spaces)


def _count(saver: BaseCheckpointSaver, thread_id: str) -> int:
    found = saver.summary(RunnableConfig(thread_id))
    return 0 if found is None else found.checkpoints


def copy(
    context: CliContext,  # noqa: ARG001 - as all commands
    directory: Directory,
    thread: Thread,
    target: Annotated[str, typer.Argument(metavar="NEW", help="The id of the copy.")],
    dry_run: DryRun = False,
) -> Said:
    """Copy a thread's active history into a new one, ids and all.

    Example: graphkit copy runs order-17 order-17-backup
    """
    saver = open_store(directory)
    source = thread_of(saver, thread)
    count = _count(saver, source)
    data = {"thread": target, "from": source, "checkpoints": count, "dry_run": dry_run}
    if dry_run:
        free = "is free" if not saver.namespaces(target) else "is taken, so it would be refused"
        return Said(
            f"would copy {counted(count, 'checkpoint')} of {shown(source)} to {shown(target)}, which {free}", data
        )
    saver.copy(source, target)
    return Said(f"copied {counted(count, 'checkpoint')} of {shown(source)} to {shown(target)}", data)


def delete(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
) -> Said:
    """Remove a thread with all its versions. Asks first; where nobody can be asked, --yes says so.

    What repair has set aside goes too. The id must be typed whole.

    Example: graphkit delete runs order-17 --yes
    """
    saver = open_store(directory)
    thread_id = _whole(saver, thread)
    size = saver.size(thread_id)
    data = {"thread": thread_id, "size": size, "dry_run": dry_run}
    if dry_run:
        return Said(f"would delete {shown(thread_id)}, {human_bytes(size)}", data)
    if not yes and not _agreed(context, f"delete {shown(thread_id)}, {human_bytes(size)}, for good?"):
        return Said("nothing was deleted", {**data, "deleted": False}, 1)
    saver.delete(thread_id)
    return Said(f"deleted {shown(thread_id)}, {human_bytes(size)}", {**data, "deleted": True})


def _whole(saver: BaseCheckpointSaver, typed: str) -> str:
    try:
        found = thread_of(saver, typed, released=True)
    except CheckpointNotFoundError:
        if has_files(saver, typed):  # no log, but what a repair has set aside
            return typed
        raise
    if typed not in {found, shown(found)}:
        raise UsageError(f"what is removed must be typed whole: {shown(found)}")
    return found


def _agreed(context: CliContext, question: str) -> bool:
    if not context.is_terminal or not context.input.isatty():
        raise UsageError("nobody can be asked here: give --yes")
    context.err.write(f"{question} [y/N] ")
    context.err.flush()
    return context.input.readline().strip().lower() in {"y", "yes"}


def release(
    context: CliContext,  # noqa: ARG001 - as all commands
    directory: Directory,
    thread: Thread,
    dry_run: DryRun = False,
) -> Said:
    """End the active history of a thread. A directory keeps it as a version; the thread begins anew.

    Example: graphkit release runs order-17
    """
    saver = open_store(directory)
    thread_id = thread_of(saver, thread)
    count = _count(saver, thread_id)
    data = {"thread": thread_id, "checkpoints": count, "dry_run": dry_run}
    if dry_run:
        return Said(f"would release {counted(count, 'checkpoint')} of {shown(thread_id)}", data)
    tag = saver.release(RunnableConfig(thread_id))
    kept = f"as version {tag.version}" if tag.version is not None else "and kept nowhere: this saver has no versions"
    return Said(
        f"released {counted(len(tag.checkpoints), 'checkpoint')} of {shown(thread_id)} {kept}",
        {**data, "version": tag.version},
    )


COMMANDS: Final = (compact, prune, copy, delete, release)
