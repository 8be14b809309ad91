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
from collections import Counter
from collections.abc import Collection
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from graphkit.abc import RepairReport
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointKeyError,
    CheckpointSerializationError,
    CheckpointStorageError,
    ThreadBusyError,
)
from graphkit.saver_kit import FileRepair, FileReport, LostCheckpoint, Progress, Unfinished, generate_id
from savers import _delta as delta
from savers._cipher import get_key_name
from savers._filesystem import layout, lifecycle, rewrite
from savers._filesystem.catalog import find_id, find_namespace, list_others, read_meta
from savers._filesystem.correction import CorrectedIO, find_corrections
from savers._filesystem.io import FileRange, opened
from savers._filesystem.verify import (
    ProgressMeter,
    ThreadFiles,
    check_file,
    check_marker,
    list_files,
    name_ending,
    new_examined_log,
    open_unchecked,
)
from savers._log import payloads
from savers._log.frame import (
    CHECKPOINT,
    EARLY,
    FRAME_SIZE,
    HEADER_SIZE,
    MARK,
    RELEASE,
    SEALED,
    SEALED_TYPES,
    TOMBSTONE,
    WRITE,
    Frame,
    Header,
    IncompleteLog,
    check_known,
    parse_extent,
    read_header,
)
from savers._log.packed_history import TableReplay
from savers._log.records import Records
from savers._log.sealing import read_key_id
from savers._log.stored_checkpoint import EarlyWrites, Index

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from savers._filesystem.io import FileIO
    from savers._filesystem.store import FileLog, Store
    from savers._log.stored_checkpoint import StoredCheckpoint


HEAD_SIZE: Final = 1 << 14
"""How many bytes of a file are read for its header."""
NOWHERE: Final = 0
"""An offset that no bytes of a value have, because the header of the file is there."""


def identify_log(store: Store, damaged: FileLog, size: int) -> int:
    """Find out the file id, and whether states are opaque; return the generation.

    If the header cannot be read, the file id is the one that most records have, and the generation
    is 0.
    """
    frames = damaged.frames
    medium = frames.bytes
    head = medium.read_at(0, min(size, HEAD_SIZE))
    header = None
    with suppress(IncompleteLog, CheckpointerError):
        header = read_header(damaged.path, head)
    if header is None:
        fids = Counter[int]()
        for frame in Records(medium, None).search(0, size):
            extent = parse_extent(medium.read_at(frame.offset, FRAME_SIZE), frame.offset)
            assert extent is not None
            fids[extent.fid] += 1
        # Good records with another id are those of another log, whose bytes stand in a value.
        fid = max(fids, key=lambda each: fids[each], default=0)
        header = Header(fid, 0, 0, frames.identity.digest)
    # Its records can be searched from here on, and the search may have to find the key.
    frames.adopt(header, None)
    meta = read_meta(store, damaged.path)
    if meta:
        frames.identity.is_opaque = bool(meta.get("opaque"))
        key_id = meta.get("sealed")
    else:
        key_id = None
        # Of a log that is sealed, all records of these types are, so the first one tells.
        found = (frame for frame in frames.records.search(HEADER_SIZE, size) if frame.type in SEALED_TYPES)
        first = next(found, None)
        if first is not None and first.flags & SEALED:
            key_id = read_key_id(first.payload)
    if key_id is not None:
        frames.adopt(header, str(key_id))
    return header.generation


@dataclass(slots=True)
class _CheckedValue:
    """A value, and whether its pieces are in good records."""

    value: delta.Value
    checked: int
    """How many entries of its list of pieces were checked."""
    is_sound: bool


class Salvage:
    """What can be rebuilt from a damaged log."""

    def __init__(self, damaged: FileLog) -> None:
        self._log = damaged
        self._path = damaged.path
        self.index = Index()
        """The checkpoints that can be rebuilt."""
        self.early = EarlyWrites()
        """The early writes whose checkpoint is not there: it is still to come, or lost."""
        self.lost: list[LostCheckpoint] = []
        self.ending: tuple[int, int] | None = None
        """The type and the version of the record that ends the log, if it has one."""
        self._gaps = [(NOWHERE, HEADER_SIZE)]
        """The ranges of the file that are not in good records."""
        self._checked_values: dict[str, _CheckedValue] = {}

    def search(self, size: int) -> None:
        """Find the good records and interpret them as a reader would."""
        replay = TableReplay(self._log.packed, lost_offset=NOWHERE)
        records = self._log.frames.records
        end = HEADER_SIZE
        seq = -1
        for frame in records.search(0, size):
            # The numbers of the records rise by one. So a gap shows how many records it had, and two
            # good records with nothing between them show that none is missing.
            if frame.seq <= seq:
                continue
            missing = frame.seq - seq - 1
            if frame.offset > end or missing:
                self._add_gap(end, frame.offset, missing)
            check_known(self._path, frame)
            self._take_record(replay, frame)
            seq = frame.seq
            end = frame.end
        if end < size:
            self._add_gap(end, size, None)

    def _add_gap(self, start: int, end: int, count: int | None) -> None:
        """Record a gap between good records; `count` is None for a gap at the end of the log."""
        self._gaps.append((start, end))
        if count is None:
            reason = f"the last {end - start} bytes are damaged"
        else:
            noun = "record" if count == 1 else "records"
            reason = f"{end - start} bytes of {count} {noun} are damaged"
        self.lost.append(LostCheckpoint(offset=start, checkpoint_id=None, reason=reason, records=count))

    def _take_record(self, replay: TableReplay, frame: Frame) -> None:
        try:
            frame = self._log.frames.records.open(frame)
            if frame.type == CHECKPOINT:
                self._take_checkpoint(replay, frame)
            elif frame.type in {RELEASE, TOMBSTONE}:
                version = payloads.decode_ending(self._path, frame)
                self.ending = (frame.type, version)
            elif frame.type == WRITE:
                checkpoint_id, values = payloads.decode_writes(self._path, frame)
                if frame.flags & EARLY:
                    self.early.add(checkpoint_id, values, frame.offset)
                    return
                checkpoint = self._find_kept(frame, checkpoint_id)
                if checkpoint is not None:
                    checkpoint.add_writes(values, frame.offset)
            elif frame.type == MARK:
                checkpoint_id, added, removed = payloads.decode_tags(self._path, frame)
                checkpoint = self._find_kept(frame, checkpoint_id)
                if checkpoint is not None:
                    checkpoint.change_tags(added, removed)
        except CheckpointCorruptionError as error:
            # Its checksums are right, and its content is not: a faulty or hostile writer made it.
            self._add_lost(frame.offset, None, error.reason)

    def _find_kept(self, frame: Frame, checkpoint_id: str) -> StoredCheckpoint | None:
        """Return the checkpoint of a pending write or a tag; record the loss if it is lost."""
        checkpoint = self.index.find(checkpoint_id)
        if checkpoint is None:
            self._add_lost(frame.offset, checkpoint_id, "its checkpoint is lost")
        return checkpoint

    def note_dropped(self, kept: Collection[StoredCheckpoint]) -> None:
        """Record the loss of the early writes that are not kept."""
        for waiting in self.early:
            if waiting not in kept:
                self._add_lost(waiting.offset, waiting.id, "its checkpoint did not come, or is lost")

    def _add_lost(self, offset: int, checkpoint_id: str | None, reason: str) -> None:
        self.lost.append(LostCheckpoint(offset=offset, checkpoint_id=checkpoint_id, reason=reason))

    def _take_checkpoint(self, replay: TableReplay, frame: Frame) -> None:
        try:
            record = replay.step(frame)
        except CheckpointCorruptionError as error:
            # A change needs the state before it, back to the keyframe. If one of the records between
            # them is damaged, all changes up to the next keyframe end here.
            self._note_lost_checkpoint(frame, error.reason)
            return
        checkpoint = record.checkpoint
        self.early.give_to(checkpoint)
        if not self._is_sound(replay):
            self._add_lost(frame.offset, checkpoint.id, "bytes of its values are damaged")
            return
        if not self.index.add(checkpoint):
            # The checkpoint that it replaced is lost, so it is added instead.
            checkpoint.target = None
            self.index.add(checkpoint)

    def _note_lost_checkpoint(self, frame: Frame, reason: str) -> None:
        """Record the loss of a checkpoint, and of the early writes that waited for it."""
        try:
            payload = payloads.unpack_payload(self._path, frame)
            checkpoint_id = payloads.id_text(payload[0])
        except (CheckpointCorruptionError, TypeError, IndexError, KeyError):
            self._add_lost(frame.offset, None, reason)
            return
        self._add_lost(frame.offset, checkpoint_id, reason)
        waiting = self.early.find(checkpoint_id)
        if waiting is not None:
            self.early.drop(waiting.id)
            self._add_lost(waiting.offset, waiting.id, "its checkpoint is lost")

    def _is_sound(self, replay: TableReplay) -> bool:
        """Return whether all bytes of the state are in good records and match their checksums."""
        assert replay.table is not None
        # Of a history with n checkpoints, a list that grows has up to n pieces in each of them. To check
        # every piece of every checkpoint would take n * n steps, so what was checked is remembered.
        is_sound = True
        for name, value in replay.table.values.items():
            checked = self._checked_values.get(name)
            if checked is None or checked.value is not value:
                checked = _CheckedValue(value, len(value.pieces), self._is_sound_value(replay, value))
                self._checked_values[name] = checked
            elif checked.is_sound:
                # The value has only grown: its first pieces are known, and so is its checksum.
                new_pieces = value.pieces[checked.checked :]
                checked.is_sound = self._are_in_records(new_pieces)
                checked.checked = len(value.pieces)
            is_sound = is_sound and checked.is_sound
        return is_sound

    def _is_sound_value(self, replay: TableReplay, value: delta.Value) -> bool:
        """Return whether the bytes of a value are in good records and match its checksum."""
        if value.block is not None:
            start, length, _, _ = value.block
            if not self._is_in_records(start, length):
                return False
        if not self._are_in_records(value.pieces):
            return False
        assert replay.checkpoint is not None
        try:
            (body,) = self._log.packed.read_bodies([value], replay.checkpoint.offset)
            return delta.has_canonical_header(value, body)
        except (CheckpointCorruptionError, *delta.MALFORMED):
            return False

    def _are_in_records(self, pieces: list[int]) -> bool:
        """Return whether pieces are in good records; pieces of a block (below zero) are skipped."""
        for i in range(0, len(pieces), 2):
            start = pieces[i]
            if start >= 0 and not self._is_in_records(start, pieces[i + 1]):
                return False
        return True

    def _is_in_records(self, start: int, length: int) -> bool:
        """Return whether a range of the file is in good records."""
        # Only the gaps before the record at hand are known. The others do not matter: a record can name
        # only bytes before its end.
        end = start + length
        return all(start >= gap_end or end <= gap_start for gap_start, gap_end in self._gaps)


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
        self, store: Store, *, hold_run_lock: Callable[[str], AbstractContextManager[object]], dry_run: bool
    ) -> None:
        """Prepare a repair.

        Args:
            store: the store.
            hold_run_lock: takes the run lock of a thread.
            dry_run: only find out what a repair would do. Takes no run lock.
        """
        self._store = store
        self._hold_run_lock = hold_run_lock
        self._dry_run = dry_run
        # What the report lists.
        self._repairs: list[FileRepair] = []
        self._finished: list[str] = []
        self._removed: list[str] = []

    def repair(self, thread_id: str | None, progress: Progress | None = None) -> RepairReport:
        """Repair one thread, or all threads (None).

        Raises:
            CheckpointStorageError: the file system refused.
            ThreadBusyError: a run holds a thread. In both cases, all other threads are repaired.
        """
        store = self._store
        threads = list_files(store, thread_id)
        meter = ProgressMeter(store, threads, progress)
        marker = None
        if thread_id is None:
            if self._dry_run:
                removed = [name for name in store.io.listdir(store.root) if layout.is_leftover(name)]
            else:
                removed = store.leftovers.sweep()
            self._removed += sorted(removed)
            marker = self._repair_marker(threads)
        # A thread that cannot be repaired does not keep the others from it: its error is raised when all
        # are done. A thread with a run is the lesser problem, for the caller can try again.
        busy: ThreadBusyError | None = None
        failure: CheckpointerError | OSError | None = None
        for files in threads:
            try:
                self._repair_thread(files, thread_id)
            except ThreadBusyError as error:
                busy = error
            except (CheckpointerError, OSError) as error:
                failure = failure or error
            for path in files.logs:
                meter.finish_file(path)
        if failure is not None:
            raise failure
        if busy is not None:
            raise busy
        return RepairReport(
            files=tuple(self._repairs),
            dry_run=self._dry_run,
            finished=tuple(self._finished),
            removed=tuple(self._removed),
            marker=marker,
        )

    def _repair_marker(self, threads: list[ThreadFiles]) -> FileReport | None:
        """Rewrite a damaged marker; return what was wrong with it.

        The store gets another id, to which nothing refers.
        """
        report = check_marker(self._store)
        if report is None or report.state != "damaged":
            return None
        if not self._dry_run:
            # The store is sealed if one of its logs is.
            paths = (path for files in threads for path in files.logs)
            key_ids = (read_meta(self._store, path).get("sealed") for path in paths)
            sealed = next((get_key_name(key_id) for key_id in key_ids if isinstance(key_id, str)), None)
            self._store.marker.write(generate_id(), sealed)
        return report

    def _repair_thread(self, files: ThreadFiles, thread_id: str | None) -> None:
        store = self._store
        if thread_id is None:
            thread_id = find_id(store, files.path, files.logs, "thread")
        if not store.io.is_dir(files.path):
            for path in files.logs:
                report, _ = check_file(store, path, thread_id)
                if report is not None:
                    self._repairs.append(FileRepair(before=report, thread_id=thread_id, refused=report.reason))
            return
        if thread_id is not None:
            self._repair_known_thread(files, thread_id)
            return
        # Neither the name of the directory nor a readable log has the id. Incomplete logs can be removed, for which
        # the thread need not be known.
        with ExitStack() as stack:
            if not self._dry_run:
                # One of them is the lock of the thread, and without its id it is not known which.
                for lock in store.all_write_locks():
                    stack.enter_context(lock)
            reason = "its thread id cannot be read: name the thread to repair it"
            for path in files.logs:
                report, _ = check_file(store, path, None)
                if report is not None:
                    self._repairs.append(self._repair_unidentified(path, report, None, reason))

    def _repair_known_thread(self, files: ThreadFiles, thread_id: str) -> None:
        store = self._store
        thread = store.locate(thread_id)
        endings: list[Unfinished] = []
        with ExitStack() as stack:
            if self._dry_run:
                # Only writers are excluded, and only where the lock files can be made.
                with suppress(OSError):
                    stack.enter_context(store.write_lock(thread))
            else:
                # The run lock first, as everywhere: a run that holds it takes the write lock for each put.
                stack.enter_context(self._hold_run_lock(thread_id))
                stack.enter_context(store.write_lock(thread))
            for path in files.logs:
                report, ending = check_file(store, path, thread_id)
                if report is not None and report.state not in {"ok", "erased"}:
                    repair = self._repair_file(path, thread_id, report)
                    self._repairs.append(repair)
                    if repair.refused:
                        continue
                    ending = ending or repair.unfinished
                endings.append(ending)
            for name in list_others(store, files.path, (layout.TEMPORARY,)):
                path = layout.join(store.root, name)
                if store.io.is_dir(path):
                    continue
                if not self._dry_run:
                    store.io.unlink(path)
                self._removed.append(name)
            if any(endings):
                self._finished.append(thread_id)
                if not self._dry_run:
                    lifecycle.finish_begun_in_thread(store, thread)

    def _repair_unidentified(self, path: str, report: FileReport, thread_id: str | None, reason: str) -> FileRepair:
        """Remove a log if it is incomplete, and salvage its bytes first, unless they are zero; refuse any other."""
        # Nothing in an incomplete log was acknowledged.
        if report.state != "torn" or report.offset or report.records:
            return FileRepair(before=report, thread_id=thread_id, refused=reason)
        io = self._store.io
        salvaged = ""
        with opened(io, path) as fd:
            size = io.fstat(fd).st_size
            content = FileRange(io=io, fd=fd, start=0, end=size)
            if size > HEAD_SIZE or not content.is_zero():
                salvaged = self._set_aside(content, path, f"{layout.TORN}0-0")
        if not self._dry_run:
            io.unlink(path)
            io.fsync_dir(os.path.dirname(path))
        return FileRepair(before=report, set_aside=salvaged)

    def _set_aside(self, content: FileRange, path: str, name: str) -> str:
        """Copy bytes of a log to a salvaged file; return where it is. A dry run only finds out its name."""
        directory = os.path.dirname(path)
        if self._dry_run:
            full_name = content.choose_name(directory, name)
        else:
            full_name = content.salvage(directory, name)
            self._store.io.fsync_dir(directory)
        return self._locate_salvaged(path, full_name)

    def _locate_salvaged(self, path: str, name: str) -> str:
        """Return the path of a salvaged file beside a log, relative to the store; "" for no file."""
        if not name:
            return ""
        return os.path.relpath(layout.join(os.path.dirname(path), name), self._store.root)

    def _repair_file(self, path: str, thread_id: str, report: FileReport) -> FileRepair:
        """Repair one log that has a problem. The caller holds the locks."""
        store = self._store
        # No damage: a newer graphkit or the missing key reads it, or it is no log of this thread.
        if report.state in {"newer", "foreign", "sealed"}:
            return FileRepair(before=report, thread_id=thread_id, refused=report.reason)
        namespace = find_namespace(store, os.path.dirname(path))
        if namespace is None:
            reason = "its namespace cannot be read"
            return self._repair_unidentified(path, report, thread_id, reason)
        with closing(new_examined_log(store, path, thread_id, namespace)) as damaged:
            try:
                if report.state == "torn" and report.offset:
                    return self._cut_off(damaged, report)
                return self._rebuild(damaged, report)
            except _REFUSALS as error:
                return FileRepair(before=report, thread_id=thread_id, refused=str(error))

    def _cut_off(self, torn: FileLog, report: FileReport) -> FileRepair:
        """Salvage and cut off the bytes of an unfinished write, as the next writer would."""
        store = self._store
        if self._dry_run:
            size = open_unchecked(torn)
            generation = identify_log(store, torn, size)
            name = f"{layout.TORN}{generation}-{report.offset}"
            tail = FileRange(io=store.io, fd=torn.frames.bytes.fd, start=report.offset, end=size)
            salvaged = self._set_aside(tail, torn.path, name)
        else:
            # The next writer would do this, so it is done by the same code.
            with closing(store.new_log(torn.thread_id, torn.namespace)) as log:
                log.refresh()
                salvaged = self._locate_salvaged(torn.path, log.frames.prepare_end())
        return FileRepair(before=report, thread_id=torn.thread_id, kept=report.checkpoints, set_aside=salvaged)

    def _rebuild(self, damaged: FileLog, report: FileReport) -> FileRepair:
        """Rewrite a damaged log with what can be rebuilt."""
        store = self._store
        # First what identifies the records. Then the single wrong bits, so that all that follows reads
        # the right ones. Then what can be rebuilt of the rest.
        size = open_unchecked(damaged)
        frames = damaged.frames
        medium = frames.bytes
        version = layout.parse_version(os.path.basename(damaged.path))
        generation = identify_log(store, damaged, size)
        corrections = find_corrections(frames.records, size)
        if corrections:
            # All that reads the log from here on, the records and the bytes of the values, reads through it.
            medium.io = cast("FileIO", CorrectedIO(store.io, corrections))
        salvage = Salvage(damaged)
        salvage.search(size)
        checkpoints = salvage.index.checkpoints
        early = salvage.early.select_recent(checkpoints)
        salvage.note_dropped(early)
        ending = salvage.ending
        unfinished: Unfinished = ""
        if version is not None:
            # The name says that the history is released, whether the record that ends it is left or not.
            ending = (RELEASE, version)
        elif not checkpoints and not early:
            ending = None
        elif ending is not None:
            unfinished = name_ending(ending[0])
        # The copy has the bytes as they are in the file, without the corrections. It is on the disk, with its name,
        # before the old log loses its own.
        salvaged = ""
        if size:
            content = FileRange(io=store.io, fd=medium.fd, start=0, end=size)
            salvaged = self._set_aside(content, damaged.path, f"{layout.DAMAGED}{generation}-{frames.fid:08x}")
        if not self._dry_run:
            rewrite.keep(store, damaged, checkpoints, early=early, lost_offset=NOWHERE, ending=ending)
        return FileRepair(
            before=report,
            thread_id=damaged.thread_id,
            kept=len(checkpoints),
            lost=tuple(salvage.lost),
            set_aside=salvaged,
            unfinished=unfinished,
            corrected=tuple(sorted(corrections)),
        )
