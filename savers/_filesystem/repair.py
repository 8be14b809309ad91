"""Making a damaged store readable again, with every checkpoint that can still be rebuilt.

Theory of operation. Records prove themselves one by one, so the good ones of a damaged log are found by searching for
the sync marker, even without the file's header. They are followed as a reader would follow them; a checkpoint can be
rebuilt if the changes from its keyframe to it are all there, and all bytes of its values lie in good records. Those are
written to a new log, which takes the old one's place by one rename, after the whole of the old one was copied to a file
of its own and brought to the disk. So nothing is destroyed, and a death at any instant leaves the old log or the new.
A dry run goes the same way up to the first write, so it reports what the repair would.
The header and the description are not needed: the directory's name proves whose log it is.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, Literal, cast

from graphkit.abc import generate_id
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointSerializationError,
    CheckpointStorageError,
    ThreadBusyError,
)
from savers._filesystem import layout, log, rewrite
from savers._filesystem.correction import CorrectedIO, find_corrections
from savers._filesystem.log_checker import Examined, check_file, examined, namespace_of, owner_of
from savers._filesystem.log_writer import aside_name, put_aside
from savers._filesystem.reports import FileRepair, FileReport, Progress, RepairReport
from savers._filesystem.salvage import HEAD, NOWHERE, Salvage, identify
from savers._filesystem.verify import Meter, check_marker, files_of, threads_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from savers._filesystem.io import FileIO
    from savers._filesystem.store import Store

_REFUSALS: Final = (
    CheckpointCorruptionError,
    CheckpointFormatError,
    CheckpointSerializationError,
    CheckpointStorageError,
)
"""Why a log cannot be repaired; the report says so, and the others are repaired."""


def repair(
    store: Store,
    thread_id: str | None,
    exclusive: Callable[[str], AbstractContextManager[object]],
    finish: Callable[[str], None],
    progress: Progress | None = None,
    *,
    dry_run: bool = False,
) -> RepairReport:
    """Repair one thread, or all (None).

    Args:
        store: where they are.
        thread_id: the thread.
        exclusive: takes a thread's run lock.
        finish: finishes a release or a delete that somebody began; under the locks.
        progress: see verify.
        dry_run: only find out what would be done; takes no run lock.

    Raises:
        CheckpointStorageError: the file system refused.
        ThreadBusyError: a run holds a thread. In both cases, all other threads are repaired.
    """
    names = [layout.locate_thread(thread_id).name] if thread_id is not None else threads_of(store)
    tasks = [(name, files_of(store, layout.join(store.root, name))) for name in names]
    meter = Meter(store, [path for _, files in tasks for path in files], progress)
    repairs: list[FileRepair] = []
    finished: list[str] = []
    removed = _sweep(store, dry_run=dry_run) if thread_id is None else []
    marker = _repair_marker(store, dry_run=dry_run) if thread_id is None else None
    busy: ThreadBusyError | None = None
    failures: list[CheckpointerError | OSError] = []
    for name, files in tasks:
        try:
            done = _repair_thread(store, thread_id, name, files, exclusive, finish, dry_run=dry_run)
        except ThreadBusyError as error:
            busy = error
        except (CheckpointerError, OSError) as error:
            failures.append(error)
        else:
            repairs += done.files
            finished += done.finished
            removed += done.removed
        for path in files:
            meter.passed(path)
    for failure in [*failures, *([] if busy is None else [busy])]:
        raise failure  # The others are repaired.
    return RepairReport(
        files=tuple(repairs), dry_run=dry_run, finished=tuple(finished), removed=tuple(removed), marker=marker
    )


def _repair_marker(store: Store, *, dry_run: bool) -> FileReport | None:
    """Rewrite a damaged marker; what was wrong with it. The store gets another id, which nothing refers to."""
    report = check_marker(store)
    if report is None or report.state != "damaged":
        return None
    if not dry_run:
        store.write_marker(generate_id())
    return report


@contextmanager
def _locks(
    store: Store, owner: str, exclusive: Callable[[str], AbstractContextManager[object]], *, dry_run: bool
) -> Iterator[None]:
    """Keep runs and writers out of a thread; for a dry run only writers, and only where locks can be made."""
    with ExitStack() as stack:
        if not dry_run:
            stack.enter_context(exclusive(owner))
            stack.enter_context(store.write_lock(owner))
        else:
            with suppress(OSError):
                stack.enter_context(store.write_lock(owner))
        yield


def _sweep(store: Store, *, dry_run: bool) -> list[str]:
    """Remove the threads that were being deleted; their names."""
    if dry_run:
        return sorted(filter(layout.is_leftover, store.io.listdir(store.root)))
    return sorted(store.sweep())


def _repair_thread(
    store: Store,
    thread_id: str | None,
    name: str,
    files: list[str],
    exclusive: Callable[[str], AbstractContextManager[object]],
    finish: Callable[[str], None],
    *,
    dry_run: bool,
) -> RepairReport:
    directory = layout.join(store.root, name)
    owner = thread_id if thread_id is not None else owner_of(store, name, files)
    if not store.io.is_dir(directory):
        return RepairReport(files=_refused(store, files, owner))
    if owner is None:
        return _repair_unknown(store, files, dry_run=dry_run)
    with _locks(store, owner, exclusive, dry_run=dry_run):
        repairs = [one for path in files if (one := _repair_file(store, path, owner, dry_run=dry_run)) is not None]
        removed = _remove_leftovers(store, directory, dry_run=dry_run)
        is_unfinished = any(one.unfinished for one in repairs)
        is_unfinished = is_unfinished or any(check_file(store, path, owner)[1] for path in files)
        if is_unfinished and not dry_run:
            finish(owner)
    return RepairReport(files=tuple(repairs), finished=(owner,) if is_unfinished else (), removed=tuple(removed))


def _repair_unknown(store: Store, files: list[str], *, dry_run: bool) -> RepairReport:
    """Repair a thread that nobody can name: its id is not in its directory's name, and no log can be read.

    A log whose creation never finished holds nothing that was acknowledged, so its thread need not be known.
    """
    with ExitStack() as stack:
        if not dry_run:
            for lock in store.all_write_locks():  # one of them is the thread's
                stack.enter_context(lock)
        reports = [(path, check_file(store, path, None)[0]) for path in files]
        reason = "whose it is cannot be read: name the thread"
        repairs = [
            _repair_unnamed(store, path, report, None, reason, dry_run=dry_run)
            for path, report in reports
            if report is not None
        ]
    return RepairReport(files=tuple(repairs))


def _repair_unnamed(
    store: Store, path: str, report: FileReport, owner: str | None, reason: str, *, dry_run: bool
) -> FileRepair:
    if _is_incomplete(report):
        return _set_aside_incomplete(store, path, report, dry_run=dry_run)
    return FileRepair(before=report, thread_id=owner, refused=reason)


def _is_incomplete(report: FileReport) -> bool:
    """Whether it is a log whose creation never finished: nothing in it was acknowledged."""
    return report.state == "torn" and not report.offset and not report.records


def _set_aside_incomplete(store: Store, path: str, report: FileReport, *, dry_run: bool) -> FileRepair:
    """Remove a log whose creation never finished; what it holds is set aside, as the next writer would."""
    directory, aside = os.path.dirname(path), ""
    name = f"{layout.TORN}0-0"
    fd = store.io.open(path)
    try:
        size = store.io.fstat(fd).st_size
        holds_something = size > HEAD or store.io.read_at(fd, 0, size).strip(b"\0")
        if holds_something and dry_run:
            aside = aside_name(store.io, fd, 0, size, directory, name)
        elif holds_something:
            aside = put_aside(store.io, fd, 0, size, directory, name)
            store.io.fsync_dir(directory)
    finally:
        store.io.close(fd)
    if not dry_run:
        store.io.unlink(path)
        store.io.fsync_dir(directory)
    return FileRepair(before=report, set_aside=layout.join(os.path.dirname(report.path), aside) if aside else "")


def _refused(store: Store, files: list[str], owner: str | None) -> tuple[FileRepair, ...]:
    reports = [report for path in files if (report := check_file(store, path, owner)[0]) is not None]
    return tuple(FileRepair(before=report, thread_id=owner, refused=report.reason) for report in reports)


def _remove_leftovers(store: Store, directory: str, *, dry_run: bool) -> list[str]:
    removed = []
    for name in sorted(store.io.listdir(directory)):
        path = layout.join(directory, name)
        if store.io.is_dir(path):
            removed += _remove_leftovers(store, path, dry_run=dry_run) if layout.is_namespace(name) else []
        elif name.startswith(layout.TEMPORARY):
            if not dry_run:
                store.io.unlink(path)
            removed.append(os.path.relpath(path, store.root))
    return removed


def _repair_file(store: Store, path: str, owner: str, *, dry_run: bool) -> FileRepair | None:
    """Repair one log under its locks; None if there was nothing to do."""
    report, _ = check_file(store, path, owner)
    if report is None or report.state == "ok":
        return None
    if report.state in {"newer", "foreign"}:
        return FileRepair(before=report, thread_id=owner, refused=report.reason)
    namespace = namespace_of(store, os.path.dirname(path))
    if namespace is None:
        reason = "which namespace it is cannot be read"
        return _repair_unnamed(store, path, report, owner, reason, dry_run=dry_run)
    history = examined(store, path, owner, namespace)
    try:
        if report.state == "torn" and report.offset:
            return _cut_off(store, history, report, owner, namespace, dry_run=dry_run)
        return _salvage(store, history, report, dry_run=dry_run)
    except _REFUSALS as error:
        return FileRepair(before=report, thread_id=owner, refused=str(error))
    finally:
        history.close()


def _cut_off(
    store: Store, history: Examined, report: FileReport, owner: str, namespace: str, *, dry_run: bool
) -> FileRepair:
    """Set a torn tail aside as the next writer would."""
    directory = os.path.dirname(history.path)
    if dry_run:
        history.examine()
        generation = identify(store, history, history.end)
        name = f"{layout.TORN}{generation}-{report.offset}"
        aside = aside_name(history.io, history.fd, report.offset, history.end, directory, name)
    else:
        before = set(store.io.listdir(directory))
        live = store.new_writer(owner, namespace)
        try:
            live.refresh_to_write()
        finally:
            live.close()
        new = sorted(set(store.io.listdir(directory)) - before)
        aside = new[0] if new else ""
    place = layout.join(os.path.dirname(report.path), aside) if aside else ""
    return FileRepair(before=report, thread_id=owner, kept=report.checkpoints, set_aside=place)


def _salvage(store: Store, history: Examined, report: FileReport, *, dry_run: bool) -> FileRepair:
    """Write a damaged log anew with what can be rebuilt."""
    history.examine()
    size = history.end
    directory = os.path.dirname(history.path)
    generation = identify(store, history, size)
    version = layout.parse_version(os.path.basename(history.path))
    corrections = find_corrections(history.file, size)
    if corrections:
        history.io = cast("FileIO", CorrectedIO(store.io, corrections))
    found = Salvage(history)
    found.search(size)
    entries = found.index.checkpoints
    name = f"{layout.DAMAGED}{generation}-{history.fid:08x}"
    aside = aside_name(store.io, history.fd, 0, size, directory, name) if size else ""
    unfinished = _unfinished(found.ending) if version is None and entries else ""
    if not dry_run:
        if size:
            aside = put_aside(store.io, history.fd, 0, size, directory, name)
            store.io.fsync_dir(directory)
        if entries or version is not None:
            ending = (log.RELEASE, version) if version is not None else found.ending
            rewrite.keep(store, history, entries, lost_offset=NOWHERE, ending=ending)
        else:
            history.io.unlink(history.path)
            history.io.fsync_dir(directory)
    return FileRepair(
        before=report,
        thread_id=history.thread_id,
        kept=len(entries),
        lost=tuple(found.lost),
        set_aside=layout.join(os.path.dirname(report.path), aside) if aside else "",
        unfinished=unfinished,
        corrected=tuple(sorted(corrections)),
    )


def _unfinished(ending: tuple[int, int] | None) -> Literal["", "release", "delete"]:
    """What a log that ends so says was begun."""
    if ending is None:
        return ""
    return "release" if ending[0] == log.RELEASE else "delete"
