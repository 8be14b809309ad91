"""Verifies a store: checks every byte and reports what is wrong. Changes nothing.

It takes no lock, except to check a log a second time that seemed torn or damaged.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from graphkit.abc import VerifyReport
from graphkit.errors import CheckpointFormatError
from graphkit.saver_kit import FileReport, FileState, Progress, ThreadReport, Unfinished
from savers._filesystem import layout
from savers._filesystem.catalog import find_id, find_namespace, list_others
from savers._filesystem.log_bytes import FileLogBytes
from savers._log.frame import HEADER_SIZE, RELEASE, IncompleteLog, is_newer
from savers._log.frame_log import ThreadIdentity, check_owner
from savers._log.log import Log
from savers._log.log_checker import FINDINGS, LogChecker

if TYPE_CHECKING:
    from savers._filesystem.store import FileLog, Store


class ThreadFiles(NamedTuple):
    """The directory of a thread, and its logs, whether they can be read or not."""

    path: str
    logs: list[str]
    """The paths of the logs, the root's first. Something else in place of a directory is among them."""


def verify(store: Store, thread_id: str | None, progress: Progress | None = None) -> VerifyReport:
    """Check one thread, or all threads (None)."""
    threads = list_files(store, thread_id)
    meter = ProgressMeter(store, threads, progress)
    reports: list[ThreadReport] = []
    size = 0
    for files in threads:
        report = check_thread(store, files, thread_id, meter)
        size += sum(file.size for file in report.files)
        if report.files or report.leftovers or report.set_aside:
            reports.append(report)
    if thread_id is not None:
        return VerifyReport(threads=tuple(reports), leftovers=(), size=size, marker=None)
    leftovers = sorted(filter(layout.is_leftover, store.io.listdir(store.root)))
    return VerifyReport(threads=tuple(reports), leftovers=tuple(leftovers), size=size, marker=check_marker(store))


def check_marker(store: Store) -> FileReport | None:
    """Check the marker file; None if it is good, or missing, which does no harm.

    It may be newer than this saver if another process has updated the store since the saver opened
    it.
    """
    try:
        marker = store.marker.read()
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
            for files in threads:
                for path in files.logs:
                    status = store.io.stat(path)
                    if status is not None:
                        self._sizes[path] = status.st_size
        self._total = sum(self._sizes.values())

    def finish_file(self, path: str) -> None:
        """Report that a file is done."""
        if self._progress is not None:
            self._done += self._sizes.pop(path, 0)
            self._progress(self._done, self._total, os.path.relpath(path, self._root))


def list_files(store: Store, thread_id: str | None) -> list[ThreadFiles]:
    """Return the logs of one thread, or of all threads (None)."""
    if thread_id is not None:
        paths = [store.locate(thread_id).path]
    else:
        names = sorted(filter(layout.is_thread, store.io.listdir(store.root)))
        paths = [layout.join(store.root, name) for name in names]
    return [ThreadFiles(path, _list_logs(store, path)) for path in paths]


def _list_logs(store: Store, directory: str) -> list[str]:
    """Return the logs of a thread, and what stands in place of a directory: a report names it."""
    io = store.io
    if not io.is_dir(directory):
        return [] if io.stat(directory) is None else [directory]
    try:
        entries = sorted(io.entries(directory))
    except PermissionError:
        return [directory]
    paths = [layout.join(directory, name) for name, _ in entries if layout.is_log(name)]
    for name, is_directory in entries:
        if not layout.is_namespace(name):
            continue
        path = layout.join(directory, name)
        if is_directory:
            paths += [layout.join(path, log) for log in sorted(filter(layout.is_log, io.listdir(path)))]
        else:
            paths.append(path)
    return paths


def check_thread(store: Store, files: ThreadFiles, thread_id: str | None, meter: ProgressMeter) -> ThreadReport:
    """Check all logs of a thread.

    Args:
        store: the store.
        files: the logs.
        thread_id: the thread, if the caller knows it.
        meter: reports the progress.
    """
    if thread_id is None:
        thread_id = find_id(store, files.path, files.logs, "thread")
    reports: list[FileReport] = []
    unfinished: Unfinished = ""
    for path in files.logs:
        report, log_ending = check_file(store, path, thread_id)
        if report is not None and report.state in {"torn", "damaged"} and thread_id is not None:
            # A writer may have been in the middle of a write: check again while none can write. A
            # directory that is read-only has no lock files.
            with suppress(OSError), store.write_lock(store.locate(thread_id)):
                report, log_ending = check_file(store, path, thread_id)
        meter.finish_file(path)
        if report is not None:
            reports.append(report)
            unfinished = unfinished or log_ending
    leftovers: list[str] = []
    salvaged: list[str] = []
    if files.logs != [files.path]:
        leftovers = list_others(store, files.path, (layout.TEMPORARY,))
        salvaged = list_others(store, files.path, layout.SALVAGED_PREFIXES)
    return ThreadReport(
        thread_id=thread_id,
        directory=os.path.basename(files.path),
        files=tuple(reports),
        unfinished=unfinished,
        leftovers=tuple(leftovers),
        set_aside=tuple(salvaged),
    )


# One log


class ExaminedIdentity(ThreadIdentity):
    """The identity of a log that may be damaged: how the store was opened does not matter."""

    def check_meta(self, path: str, meta: Any) -> str | None:
        key_id = check_owner(path, meta, self.owner)
        self.is_opaque = bool(meta.get("opaque"))
        return key_id


def new_examined_log(store: Store, path: str, thread_id: str | None, namespace: str | None) -> FileLog:
    """Return a log to examine, not yet opened; closed by the caller."""
    owner = (thread_id or "", namespace or "")
    identity = ExaminedIdentity(owner, layout.locate_thread(owner[0]).digest, store.key_ring, is_opaque=False)
    return Log(FileLogBytes(store.io, path), identity, store.codec)


def open_unchecked(log: FileLog) -> int:
    """Open a log without checking any of its content; return its size.

    Raises:
        FileNotFoundError: it is gone.
    """
    medium = log.frames.bytes
    if not medium.open():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), medium.path)
    log.frames.end = medium.size
    return medium.size


def check_file(store: Store, path: str, thread_id: str | None) -> tuple[FileReport | None, Unfinished]:
    """Check one log.

    Returns:
        The report, or None if the file is gone; and the operation that the end of the log shows as
        begun, if it is live; also if a write that did not finish follows.
    """
    namespace = find_namespace(store, os.path.dirname(path))
    examined = new_examined_log(store, path, thread_id, namespace)
    checker = LogChecker(examined)
    is_released = layout.parse_version(os.path.basename(path)) is not None
    state: FileState = "ok"
    size = 0
    offset = 0
    reason = ""
    try:
        size = open_unchecked(examined)
        checker.check(size)
        # Writers may extend a log with zeros.
        is_whole = examined.frames.records.is_zero(checker.good_end, size)
        if is_released and (not is_whole or checker.closed_by is None):
            state = "damaged"
            offset = checker.good_end
            reason = "the end of the released history is missing"
        elif not is_whole:
            state = "torn"
            offset = checker.good_end
            reason = "the last write did not finish"
    except FileNotFoundError:
        return None, ""
    except IncompleteLog:
        state = "damaged" if is_released else "torn"
        reason = "the creation of the log did not finish"
    except FINDINGS as error:
        state, offset, reason = checker.explain(error)
        if state == "foreign" and is_newer(examined.frames.bytes.read_at(0, HEADER_SIZE)):
            state = "newer"
    except OSError as error:
        status = store.io.stat(path)
        is_file = status is None or stat.S_ISREG(status.st_mode)
        state = "damaged" if is_file else "foreign"
        reason = f"it cannot be read: {error.strerror or error}"
    finally:
        examined.close()
    report = checker.make_report(os.path.relpath(path, store.root), size, state, offset, reason)
    is_live = os.path.basename(path) == layout.LOG
    unfinished: Unfinished = ""
    if is_live and state in {"ok", "torn"} and checker.closed_by is not None:
        unfinished = name_ending(checker.closed_by.type)
    return report, unfinished


def name_ending(type: int) -> Unfinished:
    """Return the operation that a record of this type, RELEASE or TOMBSTONE, ends."""
    return "release" if type == RELEASE else "delete"
