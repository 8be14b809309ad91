"""Looking at every byte of a store, and telling what is wrong with it. Repairs nothing; locks only to look twice.

Theory of operation. A log is read once, a window at a time. Each record proves itself by its checksums, its place and
its number; its content is then followed as a reader would: states change as the records say, a keyframe must name what
the records before it led to, and a checkpoint that is replaced must be there. So no flipped byte is called well, and
what is called well can be read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from graphkit.errors import CheckpointFormatError
from savers._filesystem import layout
from savers._filesystem.log_checker import check_file, is_log, owner_of
from savers._filesystem.reports import FileReport, Progress, StoreReport, ThreadReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from savers._filesystem.store import Store


def verify(store: Store, thread_id: str | None, progress: Progress | None = None) -> StoreReport:
    """Look at one thread, or at all (None)."""
    names = [layout.locate_thread(thread_id).name] if thread_id is not None else threads_of(store)
    tasks = [(name, files_of(store, layout.join(store.root, name))) for name in names]
    meter = Meter(store, [path for _, files in tasks for path in files], progress)
    reports = [check_thread(store, name, files, thread_id, meter) for name, files in tasks]
    leftovers = [] if thread_id is not None else sorted(filter(layout.is_leftover, store.io.listdir(store.root)))
    return StoreReport(
        threads=tuple(report for report in reports if report.files or report.leftovers or report.set_aside),
        leftovers=tuple(leftovers),
        size=sum(file.size for report in reports for file in report.files),
        marker=check_marker(store) if thread_id is None else None,
    )


def check_marker(store: Store) -> FileReport | None:
    """Look at the marker file; None if it is well, or missing, which costs nothing.

    It may be newer than this saver if another process has updated the store since the saver opened it.
    """
    try:
        marker = store.read_marker()
    except CheckpointFormatError as error:
        return FileReport(path=layout.MARKER, state="newer", reason=error.reason)
    except OSError as error:
        return FileReport(path=layout.MARKER, state="damaged", reason=f"it cannot be read: {error}")
    if marker is None or not marker.problem:
        return None
    return FileReport(path=layout.MARKER, state="damaged", reason=marker.problem)


class Meter:
    """Tells how far a long work has come."""

    def __init__(self, store: Store, paths: list[str], progress: Progress | None) -> None:
        self._progress, self._root, self._done = progress, store.root, 0
        self._sizes = {path: _size(store, path) for path in paths} if progress is not None else {}
        self._total = sum(self._sizes.values())

    def passed(self, path: str) -> None:
        """A file is done."""
        if self._progress is not None:
            self._done += self._sizes.pop(path, 0)
            self._progress(self._done, self._total, os.path.relpath(path, self._root))


def _size(store: Store, path: str) -> int:
    found = store.io.stat(path)
    return 0 if found is None else found.st_size


def threads_of(store: Store) -> list[str]:
    """The names of all threads' directories."""
    return sorted(filter(layout.is_thread, store.io.listdir(store.root)))


def files_of(store: Store, directory: str) -> list[str]:
    """The logs below a thread's directory: the root's first, then those of the namespaces.

    With what stands in place of a directory, so that it is reported.
    """
    if not store.io.is_dir(directory):
        return [directory] if store.io.stat(directory) is not None else []
    try:
        inside = sorted(store.io.listdir(directory))
    except PermissionError:
        return [directory]
    found = [layout.join(directory, name) for name in inside if is_log(name)]
    for name in inside:
        if layout.is_namespace(name):
            below = layout.join(directory, name)
            if not store.io.is_dir(below):
                found.append(below)
                continue
            found += [layout.join(below, one) for one in sorted(store.io.listdir(below)) if is_log(one)]
    return found


def check_thread(store: Store, name: str, files: list[str], thread_id: str | None, meter: Meter) -> ThreadReport:
    """Look at all files of a thread's directory."""
    directory = layout.join(store.root, name)
    owner = thread_id if thread_id is not None else owner_of(store, name, files)
    reports, unfinished = [], ""
    for path in files:
        report, ends = check_file(store, path, owner)
        if report is not None and report.state in {"torn", "damaged"} and owner is not None:
            # It may have been about to be written just now: nobody writes while we look again.
            with suppress(OSError), store.write_lock(owner):  # A directory that may not be written to has no locks.
                report, ends = check_file(store, path, owner)
        meter.passed(path)
        if report is not None:
            reports.append(report)
            unfinished = unfinished or ends
    others = list(_others(store, directory)) if files != [directory] else []
    return ThreadReport(
        thread_id=owner,
        directory=name,
        files=tuple(reports),
        unfinished=unfinished,  # type: ignore[arg-type]
        leftovers=tuple(path for path in others if os.path.basename(path).startswith(layout.TEMPORARY)),
        set_aside=tuple(path for path in others if os.path.basename(path).startswith(layout.SALVAGED_PREFIXES)),
    )


def _others(store: Store, directory: str) -> Iterator[str]:
    if not store.io.is_dir(directory):
        return
    for name in sorted(store.io.listdir(directory)):
        path = layout.join(directory, name)
        if layout.is_namespace(name):
            yield from _others(store, path)
        elif name.startswith((layout.TEMPORARY, *layout.SALVAGED_PREFIXES)):
            yield os.path.relpath(path, store.root)
