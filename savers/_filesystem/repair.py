"""Repairs a damaged store: makes it readable again, with every checkpoint that can be rebuilt.

Theory of operation. Each record proves itself. Therefore repair finds the good records of a damaged
log by searching for the sync marker, even if the file's header is lost, and interprets them as a
reader would. A checkpoint can be rebuilt if all changes from its keyframe on are there, and all
bytes of its values are in good records. Repair writes these checkpoints to a new log, which
replaces the old one with one rename. Before that, it copies the whole of the old log to a salvaged
file and brings the copy to the disk. So it destroys nothing, and if the process dies at any moment,
either the old or the new log is there. A dry run does the same up to the first write, so it reports
what a repair would do. The header and the META records are not needed: the name of the directory
proves which thread the log belongs to.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, cast

from graphkit.abc import generate_id
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointKeyError,
    CheckpointSerializationError,
    CheckpointStorageError,
    ThreadBusyError,
)
from savers._filesystem import layout, rewrite
from savers._filesystem.correction import CorrectedIO, find_corrections
from savers._filesystem.log_checker import (
    check_file,
    find_namespace,
    find_thread_id,
    new_examined_log,
    open_unchecked,
    read_meta,
)
from savers._filesystem.reports import FileRepair, FileReport, Progress, RepairReport, Unfinished
from savers._filesystem.salvage import HEAD_SIZE, NOWHERE, Salvage, identify_log
from savers._filesystem.salvaged_files import FileRange
from savers._filesystem.verify import ProgressMeter, ThreadFiles, check_marker, list_files
from savers._log.frame import RELEASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from savers._filesystem.io import FileIO
    from savers._filesystem.store import FileLog, Store

_REFUSALS: Final = (
    CheckpointCorruptionError,
    CheckpointFormatError,
    CheckpointKeyError,
    CheckpointSerializationError,
    CheckpointStorageError,
)
"""Errors that keep one log from being repaired. The report has the reason; repair continues with
the others."""


class Repairer:
    """Repairs the threads of a store."""

    def __init__(
        self,
        store: Store,
        *,
        hold_run_lock: Callable[[str], AbstractContextManager[object]],
        finish: Callable[[str], None],
        dry_run: bool,
    ) -> None:
        """Prepare a repair.

        Args:
            store: the store.
            hold_run_lock: takes the run lock of a thread.
            finish: finishes a release or a delete of a thread that a process began; called while
                the locks are held.
            dry_run: only find out what a repair would do. Takes no run lock.
        """
        self._store = store
        self._hold_run_lock = hold_run_lock
        self._finish = finish
        self._dry_run = dry_run

    def repair(self, thread_id: str | None, progress: Progress | None = None) -> RepairReport:
        """Repair one thread, or all threads (None).

        Raises:
            CheckpointStorageError: the file system refused.
            ThreadBusyError: a run holds a thread. In both cases, all other threads are repaired.
        """
        threads = list_files(self._store, thread_id)
        meter = ProgressMeter(self._store, threads, progress)
        repairs: list[FileRepair] = []
        finished: list[str] = []
        removed: list[str] = []
        marker = None
        if thread_id is None:
            removed = self._remove_deleted_threads()
            marker = self._repair_marker()
        busy: ThreadBusyError | None = None
        failure: CheckpointerError | OSError | None = None
        for files in threads:
            try:
                report = self._repair_thread(files, thread_id)
            except ThreadBusyError as error:
                busy = error
            except (CheckpointerError, OSError) as error:
                failure = failure or error
            else:
                repairs += report.files
                finished += report.finished
                removed += report.removed
            for path in files.paths:
                meter.finish_file(path)
        if failure is not None:
            raise failure
        if busy is not None:
            raise busy
        return RepairReport(
            files=tuple(repairs),
            dry_run=self._dry_run,
            finished=tuple(finished),
            removed=tuple(removed),
            marker=marker,
        )

    def _remove_deleted_threads(self) -> list[str]:
        """Remove the threads whose deletion did not finish; return their names."""
        if self._dry_run:
            return sorted(filter(layout.is_leftover, self._store.io.listdir(self._store.root)))
        return sorted(self._store.leftovers.sweep())

    def _repair_marker(self) -> FileReport | None:
        """Rewrite a damaged marker; return what was wrong with it.

        The store gets another id, to which nothing refers.
        """
        report = check_marker(self._store)
        if report is None or report.state != "damaged":
            return None
        if not self._dry_run:
            self._store.write_marker(generate_id(), self._find_seal())
        return report

    def _find_seal(self) -> str | None:
        """Return the key id of a sealed log of the store; None if all logs are plain."""
        for files in list_files(self._store, None):
            for path in files.paths:
                sealed = read_meta(self._store, path).get("sealed")
                if isinstance(sealed, str):
                    return sealed
        return None

    @contextmanager
    def _hold_locks(self, thread_id: str) -> Iterator[None]:
        """Exclude runs and writers of a thread.

        A dry run excludes only writers, and only where the lock files can be made.
        """
        with ExitStack() as stack:
            if self._dry_run:
                with suppress(OSError):
                    stack.enter_context(self._store.write_lock(thread_id))
            else:
                stack.enter_context(self._hold_run_lock(thread_id))
                stack.enter_context(self._store.write_lock(thread_id))
            yield

    def _repair_thread(self, files: ThreadFiles, thread_id: str | None) -> RepairReport:
        store = self._store
        directory = layout.join(store.root, files.directory_name)
        if thread_id is None:
            thread_id = find_thread_id(store, files.directory_name, files.paths)
        if not store.io.is_dir(directory):
            return RepairReport(files=self._refuse_all(files.paths, thread_id))
        if thread_id is None:
            return self._repair_unknown_thread(files.paths)
        repairs: list[FileRepair] = []
        is_unfinished = False
        with self._hold_locks(thread_id):
            for path in files.paths:
                repair = self._repair_file(path, thread_id)
                if repair is not None:
                    repairs.append(repair)
                    is_unfinished = is_unfinished or bool(repair.unfinished)
            removed = self._remove_leftovers(directory)
            if not is_unfinished:
                is_unfinished = any(check_file(store, path, thread_id)[1] for path in files.paths)
            if is_unfinished and not self._dry_run:
                self._finish(thread_id)
        return RepairReport(
            files=tuple(repairs),
            finished=(thread_id,) if is_unfinished else (),
            removed=tuple(removed),
        )

    def _repair_unknown_thread(self, paths: list[str]) -> RepairReport:
        """Repair a thread whose id is not in the name of its directory, nor in a readable log.

        This can only remove incomplete logs: nothing in them was acknowledged, so the thread need
        not be known.
        """
        repairs: list[FileRepair] = []
        with ExitStack() as stack:
            if not self._dry_run:
                # One of them is the lock of the thread.
                for lock in self._store.all_write_locks():
                    stack.enter_context(lock)
            reason = "its thread id cannot be read: name the thread to repair it"
            for path in paths:
                report, _ = check_file(self._store, path, None)
                if report is not None:
                    repairs.append(self._repair_unidentified(path, report, None, reason))
        return RepairReport(files=tuple(repairs))

    def _repair_unidentified(
        self,
        path: str,
        report: FileReport,
        thread_id: str | None,
        reason: str,
    ) -> FileRepair:
        """Remove a log if it is incomplete; refuse any other for a reason."""
        if _is_incomplete(report):
            return self._remove_incomplete(path, report)
        return FileRepair(before=report, thread_id=thread_id, refused=reason)

    def _remove_incomplete(self, path: str, report: FileReport) -> FileRepair:
        """Remove an incomplete log; salvage its bytes first, unless they are zero."""
        io = self._store.io
        directory = os.path.dirname(path)
        name = f"{layout.TORN}0-0"
        salvaged = ""
        fd = io.open(path)
        try:
            size = io.fstat(fd).st_size
            content = FileRange(io=io, fd=fd, start=0, end=size)
            has_content = size > HEAD_SIZE or not content.is_zero()
            if has_content and self._dry_run:
                salvaged = content.choose_name(directory, name)
            elif has_content:
                salvaged = content.salvage(directory, name)
                io.fsync_dir(directory)
        finally:
            io.close(fd)
        if not self._dry_run:
            io.unlink(path)
            io.fsync_dir(directory)
        return FileRepair(before=report, set_aside=_join_salvaged(report, salvaged))

    def _refuse_all(self, paths: list[str], thread_id: str | None) -> tuple[FileRepair, ...]:
        repairs: list[FileRepair] = []
        for path in paths:
            report, _ = check_file(self._store, path, thread_id)
            if report is not None:
                repairs.append(
                    FileRepair(before=report, thread_id=thread_id, refused=report.reason),
                )
        return tuple(repairs)

    def _remove_leftovers(self, directory: str) -> list[str]:
        """Remove the temporary files below a directory; return their paths."""
        io = self._store.io
        removed: list[str] = []
        for name in sorted(io.listdir(directory)):
            path = layout.join(directory, name)
            if io.is_dir(path):
                if layout.is_namespace(name):
                    removed += self._remove_leftovers(path)
            elif name.startswith(layout.TEMPORARY):
                if not self._dry_run:
                    io.unlink(path)
                removed.append(os.path.relpath(path, self._store.root))
        return removed

    def _repair_file(self, path: str, thread_id: str) -> FileRepair | None:
        """Repair one log; None if it has no problem. The caller holds the locks."""
        store = self._store
        report, _ = check_file(store, path, thread_id)
        if report is None or report.state == "ok":
            return None
        if report.state in {"newer", "foreign", "sealed"}:
            return FileRepair(before=report, thread_id=thread_id, refused=report.reason)
        namespace = find_namespace(store, os.path.dirname(path))
        if namespace is None:
            reason = "its namespace cannot be read"
            return self._repair_unidentified(path, report, thread_id, reason)
        damaged = new_examined_log(store, path, thread_id, namespace)
        try:
            if report.state == "torn" and report.offset:
                return self._cut_off(damaged, report)
            return self._rebuild(damaged, report)
        except _REFUSALS as error:
            return FileRepair(before=report, thread_id=thread_id, refused=str(error))
        finally:
            damaged.close()

    def _cut_off(self, torn: FileLog, report: FileReport) -> FileRepair:
        """Salvage and cut off the bytes of an unfinished write, as the next writer would."""
        store = self._store
        directory = os.path.dirname(torn.path)
        if self._dry_run:
            size = open_unchecked(torn)
            generation = identify_log(store, torn, size)
            name = f"{layout.TORN}{generation}-{report.offset}"
            tail = FileRange(io=store.io, fd=torn.frames.bytes.fd, start=report.offset, end=size)
            salvaged = tail.choose_name(directory, name)
        else:
            names_before = set(store.io.listdir(directory))
            log = store.new_log(torn.thread_id, torn.namespace)
            try:
                log.refresh_to_write()
            finally:
                log.close()
            new_names = sorted(set(store.io.listdir(directory)) - names_before)
            salvaged = new_names[0] if new_names else ""
        return FileRepair(
            before=report,
            thread_id=torn.thread_id,
            kept=report.checkpoints,
            set_aside=_join_salvaged(report, salvaged),
        )

    def _rebuild(self, damaged: FileLog, report: FileReport) -> FileRepair:
        """Rewrite a damaged log with what can be rebuilt."""
        store = self._store
        size = open_unchecked(damaged)
        frames = damaged.frames
        directory = os.path.dirname(damaged.path)
        generation = identify_log(store, damaged, size)
        version = layout.parse_version(os.path.basename(damaged.path))
        corrections = find_corrections(frames.records, size)
        if corrections:
            frames.bytes.io = cast("FileIO", CorrectedIO(store.io, corrections))
        salvage = Salvage(damaged)
        salvage.search(size)
        checkpoints = salvage.index.checkpoints
        # The copy has the bytes as they are in the file, without the corrections.
        content = FileRange(io=store.io, fd=frames.bytes.fd, start=0, end=size)
        name = f"{layout.DAMAGED}{generation}-{frames.fid:08x}"
        salvaged = content.choose_name(directory, name) if size else ""
        unfinished: Unfinished = ""
        if version is None and checkpoints:
            unfinished = _find_unfinished(salvage.ending)
        early = salvage.early.select_recent(checkpoints)
        salvage.note_dropped(early)
        if not self._dry_run:
            if size:
                salvaged = content.salvage(directory, name)
                store.io.fsync_dir(directory)
            if checkpoints or early or version is not None:
                ending = (RELEASE, version) if version is not None else salvage.ending
                rewrite.keep(
                    store,
                    damaged,
                    checkpoints,
                    early=early,
                    lost_offset=NOWHERE,
                    ending=ending,
                )
            else:
                store.io.unlink(damaged.path)
                store.io.fsync_dir(directory)
        return FileRepair(
            before=report,
            thread_id=damaged.thread_id,
            kept=len(checkpoints),
            lost=tuple(salvage.lost),
            set_aside=_join_salvaged(report, salvaged),
            unfinished=unfinished,
            corrected=tuple(sorted(corrections)),
        )


def _is_incomplete(report: FileReport) -> bool:
    """Return whether a log is incomplete: nothing in it was acknowledged."""
    return report.state == "torn" and not report.offset and not report.records


def _join_salvaged(report: FileReport, name: str) -> str:
    """Return the path of a salvaged file beside a log, relative to the store; "" for no file."""
    return layout.join(os.path.dirname(report.path), name) if name else ""


def _find_unfinished(ending: tuple[int, int] | None) -> Unfinished:
    """Return the operation that a log's last record shows as begun."""
    if ending is None:
        return ""
    record_type, _ = ending
    return "release" if record_type == RELEASE else "delete"
