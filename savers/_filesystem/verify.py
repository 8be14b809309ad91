"""Verifies a store: checks every byte and reports what is wrong. Changes nothing.

It takes no lock, except to check a log a second time that seemed torn or damaged.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from graphkit.errors import CheckpointFormatError
from savers._filesystem import layout
from savers._filesystem.log_checker import check_file, find_thread_id, is_log
from savers._filesystem.reports import FileReport, Progress, StoreReport, ThreadReport, Unfinished

if TYPE_CHECKING:
    from collections.abc import Iterator

    from savers._filesystem.store import Store


class ThreadFiles(NamedTuple):
    """The logs of one thread."""

    directory_name: str
    paths: list[str]


def verify(store: Store, thread_id: str | None, progress: Progress | None = None) -> StoreReport:
    """Check one thread, or all threads (None)."""
    threads = list_files(store, thread_id)
    meter = ProgressMeter(store, threads, progress)
    reports = [check_thread(store, files, thread_id, meter) for files in threads]
    leftovers: list[str] = []
    marker = None
    if thread_id is None:
        leftovers = sorted(filter(layout.is_leftover, store.io.listdir(store.root)))
        marker = check_marker(store)
    return StoreReport(
        threads=tuple(filter(_has_content, reports)),
        leftovers=tuple(leftovers),
        size=sum(file.size for report in reports for file in report.files),
        marker=marker,
    )


def _has_content(report: ThreadReport) -> bool:
    return bool(report.files or report.leftovers or report.set_aside)


def check_marker(store: Store) -> FileReport | None:
    """Check the marker file; None if it is good, or missing, which does no harm.

    It may be newer than this saver if another process has updated the store since the saver opened
    it.
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


class ProgressMeter:
    """Reports the progress of an operation on many files to the caller."""

    def __init__(self, store: Store, threads: list[ThreadFiles], progress: Progress | None) -> None:
        self._progress = progress
        self._root = store.root
        self._done = 0
        self._sizes: dict[str, int] = {}
        if progress is not None:
            self._sizes = {path: _size_of(store, path) for files in threads for path in files.paths}
        self._total = sum(self._sizes.values())

    def finish_file(self, path: str) -> None:
        """Report that a file is done."""
        if self._progress is not None:
            self._done += self._sizes.pop(path, 0)
            self._progress(self._done, self._total, os.path.relpath(path, self._root))


def _size_of(store: Store, path: str) -> int:
    status = store.io.stat(path)
    return 0 if status is None else status.st_size


def list_files(store: Store, thread_id: str | None) -> list[ThreadFiles]:
    """Return the logs of one thread, or of all threads (None)."""
    if thread_id is not None:
        names = [layout.locate_thread(thread_id).name]
    else:
        names = sorted(filter(layout.is_thread, store.io.listdir(store.root)))
    return [ThreadFiles(name, _list_logs(store, layout.join(store.root, name))) for name in names]


def _list_logs(store: Store, directory: str) -> list[str]:
    """Return the logs below the directory of a thread, the root's first.

    Something else in place of a directory is included, so that it is reported.
    """
    if not store.io.is_dir(directory):
        return [directory] if store.io.stat(directory) is not None else []
    try:
        names = sorted(store.io.listdir(directory))
    except PermissionError:
        return [directory]
    paths = [layout.join(directory, name) for name in names if is_log(name)]
    for name in filter(layout.is_namespace, names):
        subdirectory = layout.join(directory, name)
        if store.io.is_dir(subdirectory):
            logs = sorted(filter(is_log, store.io.listdir(subdirectory)))
            paths += [layout.join(subdirectory, log_name) for log_name in logs]
        else:
            paths.append(subdirectory)
    return paths


def check_thread(
    store: Store,
    files: ThreadFiles,
    thread_id: str | None,
    meter: ProgressMeter,
) -> ThreadReport:
    """Check all logs of a thread.

    Args:
        store: the store.
        files: the logs.
        thread_id: the thread, if the caller knows it.
        meter: reports the progress.
    """
    directory = layout.join(store.root, files.directory_name)
    if thread_id is None:
        thread_id = find_thread_id(store, files.directory_name, files.paths)
    reports: list[FileReport] = []
    unfinished: Unfinished = ""
    for path in files.paths:
        report, log_ending = check_file(store, path, thread_id)
        if report is not None and report.state in {"torn", "damaged"} and thread_id is not None:
            # A writer may have been in the middle of a write: check again while none can write. A
            # directory that is read-only has no lock files.
            with suppress(OSError), store.write_lock(thread_id):
                report, log_ending = check_file(store, path, thread_id)
        meter.finish_file(path)
        if report is not None:
            reports.append(report)
            unfinished = unfinished or log_ending
    leftovers: list[str] = []
    salvaged: list[str] = []
    if files.paths != [directory]:
        for path in _list_other_files(store, directory):
            is_leftover = os.path.basename(path).startswith(layout.TEMPORARY)
            (leftovers if is_leftover else salvaged).append(path)
    return ThreadReport(
        thread_id=thread_id,
        directory=files.directory_name,
        files=tuple(reports),
        unfinished=unfinished,
        leftovers=tuple(leftovers),
        set_aside=tuple(salvaged),
    )


def _list_other_files(store: Store, directory: str) -> Iterator[str]:
    """Yield the leftovers and salvaged files below a directory, relative to the store's root."""
    if not store.io.is_dir(directory):
        return
    for name in sorted(store.io.listdir(directory)):
        path = layout.join(directory, name)
        if layout.is_namespace(name):
            yield from _list_other_files(store, path)
        elif name.startswith((layout.TEMPORARY, *layout.SALVAGED_PREFIXES)):
            yield os.path.relpath(path, store.root)
