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
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast, final

from graphkit.abc import generate_id
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointSerializationError,
    CheckpointStorageError,
    ThreadBusyError,
)
from savers import _delta as delta
from savers._filesystem import layout, log, payloads, rewrite
from savers._filesystem.correction import CorrectedIO, find_corrections
from savers._filesystem.log_reader import Index
from savers._filesystem.log_writer import aside_name, put_aside
from savers._filesystem.replay import Replay
from savers._filesystem.verify import (
    Examined,
    FileReport,
    Meter,
    Progress,
    check_file,
    check_marker,
    description,
    examined,
    files_of,
    namespace_of,
    owner_of,
    threads_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from savers._filesystem.io import FileIO
    from savers._filesystem.payloads import StoredCheckpoint
    from savers._filesystem.store import Store

_REFUSALS: Final = (
    CheckpointCorruptionError,
    CheckpointFormatError,
    CheckpointSerializationError,
    CheckpointStorageError,
)
"""Why a log cannot be repaired; the report says so, and the others are repaired."""
_PAIR: Final = 2
_HEAD: Final = 1 << 14
_NOWHERE: Final = 0
"""A position that no value's bytes have: that of the file's header."""


@final
@dataclass(frozen=True, kw_only=True)
class Lost:
    """Something that could not be rebuilt."""

    offset: int
    """Where it stood in the log, which is set aside."""
    checkpoint_id: str | None
    """The checkpoint that is lost or, for a value or a tag beside one, that it belonged to; None: nobody can tell."""
    reason: str
    records: int | None = 1
    """How many records are lost here; None: the damage reaches to the end of the log, and nobody can tell."""


@final
@dataclass(frozen=True, kw_only=True)
class FileRepair:
    """What was done to one log, or would be."""

    before: FileReport
    thread_id: str | None = None
    """Whose log it is; None: no readable file tells."""
    kept: int = 0
    """Checkpoints."""
    lost: tuple[Lost, ...] = ()
    set_aside: str = ""
    """Where the old bytes are now, below the store's directory."""
    refused: str = ""
    """Why nothing was done."""
    unfinished: Literal["", "release", "delete"] = ""
    """What the log says was begun and not finished; the repair finishes it."""
    corrected: tuple[int, ...] = ()
    """The positions of bytes in which one bit was wrong and is right in the new log; nothing is lost by these."""

    @property
    def is_total_loss(self) -> bool:
        """Whether the log was damaged and not one checkpoint of it could be kept."""
        return self.before.state == "damaged" and not self.kept and not self.refused


@final
@dataclass(frozen=True, kw_only=True)
class RepairReport:
    """What `repair` did, or would do. Files that were well are not listed."""

    files: tuple[FileRepair, ...]
    dry_run: bool = False
    """Whether nothing was changed: all the rest says what a repair would do."""
    finished: tuple[str, ...] = ()
    """Threads whose release or delete was finished."""
    removed: tuple[str, ...] = ()
    """Leftovers that were removed."""
    marker: FileReport | None = None
    """The store's marker file, if it was damaged and is rewritten."""

    @property
    def changed(self) -> bool:
        """Whether anything was done."""
        is_repaired = any(not file.refused for file in self.files)
        return bool(self.finished or self.removed or self.marker or is_repaired)

    @property
    def ok(self) -> bool:
        """Whether all of it can be read now, whatever was lost; see `total_losses`."""
        return not any(file.refused for file in self.files)

    @property
    def total_losses(self) -> tuple[FileRepair, ...]:
        """The damaged logs of which nothing could be kept: restore them from a backup."""
        return tuple(file for file in self.files if file.is_total_loss)

    @property
    def lost(self) -> tuple[Lost, ...]:
        """All that could not be rebuilt."""
        return tuple(lost for file in self.files for lost in file.lost)


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
        holds_something = size > _HEAD or store.io.read_at(fd, 0, size).strip(b"\0")
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
        generation = _identify(store, history, history.end)
        name = f"{layout.TORN}{generation}-{report.offset}"
        aside = aside_name(history.io, history.fd, report.offset, history.end, directory, name)
    else:
        before = set(store.io.listdir(directory))
        live = store.fresh(owner, namespace)
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
    generation = _identify(store, history, size)
    version = layout.parse_version(os.path.basename(history.path))
    corrections = find_corrections(history.io, history.fd, history.fid, size)
    if corrections:
        history.io = cast("FileIO", CorrectedIO(store.io, corrections))
    found = _Salvage(history)
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
            rewrite.keep(store, history, entries, lost_offset=_NOWHERE, ending=ending)
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


def _identify(store: Store, history: Examined, size: int) -> int:
    """Find the file's id, by its header or by its records, and whether its states are opaque; its generation."""
    header = None
    with suppress(log.IncompleteLog, CheckpointerError):
        header = log.read_header(history.path, history.io.read_at(history.fd, 0, min(size, _HEAD)))
    if header is None:
        fids = Counter[int]()
        for frame in log.good_frames(history.io, history.fd, None, 0, size):
            extent = log.extent_of(history.io.read_at(history.fd, frame.offset, log.FRAME_SIZE), frame.offset)
            assert extent is not None
            fids[extent.fid] += 1
        fid = fids.most_common(1)[0][0] if fids else 0
        header = log.Header(fid, 0, 0, layout.locate_thread(history.thread_id).digest)
    history.header = header
    history.fid = header.fid
    history.version = header.major
    meta = description(store, history.path)
    if meta:
        history.take_meta(meta)
    return header.generation


class _Salvage:
    """What can be rebuilt from a damaged log."""

    def __init__(self, history: Examined) -> None:
        self.history = history
        self.index = Index()
        self.lost: list[Lost] = []
        self.ending: tuple[int, int] | None = None
        self._gaps = [(_NOWHERE, log.HEADER_SIZE)]
        self._sound: dict[str, tuple[object, int, bool]] = {}

    def search(self, size: int) -> None:
        """Find the good records, and follow them."""
        history = self.history
        walk = Replay(history, lost_offset=_NOWHERE)
        end, seq = log.HEADER_SIZE, -1
        for frame in log.good_frames(history.io, history.fd, history.fid, 0, size):
            if frame.seq <= seq:
                continue
            if frame.offset > end or frame.seq != seq + 1:
                self._missing(end, frame.offset, frame.seq - seq - 1)
            log.check_known(history.path, frame)
            self._take(walk, frame)
            end, seq = frame.end, frame.seq
        if end < size:
            self._missing(end, size, None)

    def _missing(self, start: int, end: int, count: int | None) -> None:
        """Note a gap between good records; `count` is None at the end of the log."""
        self._gaps.append((start, end))
        if count is None:
            reason = f"the last {end - start} bytes are damaged"
        else:
            records = "1 record" if count == 1 else f"{count} records"
            reason = f"{end - start} bytes of {records} are damaged"
        self.lost.append(Lost(offset=start, checkpoint_id=None, reason=reason, records=count))

    def _take(self, walk: Replay, frame: log.Frame) -> None:
        path = self.history.path
        try:
            if frame.type == log.CHECKPOINT:
                self._checkpoint(walk, frame)
            elif frame.type in {log.RELEASE, log.TOMBSTONE}:
                self.ending = (frame.type, payloads.decode_ending(path, frame))
            elif frame.type == log.WRITE:
                owner, values = payloads.decode_writes(path, frame)
                if (entry := self._kept(frame, owner)) is not None:
                    entry.add_writes(values, frame.offset)
            elif frame.type == log.MARK:
                owner, add, remove = payloads.decode_tags(path, frame)
                if (entry := self._kept(frame, owner)) is not None:
                    entry.tags = payloads.merge_tags(entry.tags, add, remove)
        except CheckpointCorruptionError as error:
            self._lose(frame.offset, None, error.reason)

    def _kept(self, frame: log.Frame, id: str) -> StoredCheckpoint | None:
        entry = self.index.find(id)
        if entry is None:
            self._lose(frame.offset, id, "what was recorded beside it is lost with it")
        return entry

    def _lose(self, offset: int, checkpoint_id: str | None, reason: str) -> None:
        self.lost.append(Lost(offset=offset, checkpoint_id=checkpoint_id, reason=reason))

    def _checkpoint(self, walk: Replay, frame: log.Frame) -> None:
        try:
            decoded = walk.step(frame)
        except CheckpointCorruptionError as error:
            self._lose(frame.offset, self._id_in(frame), error.reason)
            return
        target = decoded.target
        if not self._is_sound(walk):
            self._lose(frame.offset, decoded.checkpoint.id, "bytes of its values are damaged")
            return
        if target is not None and self.index.find(target) is None:
            target = None  # What it replaced is lost: it stands for itself.
        self.index.add(decoded.checkpoint, target)

    def _id_in(self, frame: log.Frame) -> str | None:
        try:
            return payloads.id_text(payloads.unpack_payload(self.history.path, frame)[0])
        except (CheckpointCorruptionError, TypeError, IndexError, KeyError):
            return None

    def _is_sound(self, walk: Replay) -> bool:
        """Whether all bytes of the state lie in good records, and are what those say."""
        assert walk.table is not None
        sound = True
        for name, value in walk.table.values.items():
            known, size, good = self._sound.get(name, (None, 0, True))
            if known is not value:
                size, good = 0, value.block is None or self._is_whole(*value.block[:2])
            # A value that has only grown has its first pieces from before.
            pieces = value.pieces[size:]
            good = good and all(
                pieces[i] < 0 or self._is_whole(pieces[i], pieces[i + 1]) for i in range(0, len(pieces), _PAIR)
            )
            good = good and (known is value or self._is_as_told(walk, value))
            self._sound[name] = value, len(value.pieces), good
            sound = sound and good
        return sound

    def _is_as_told(self, walk: Replay, value: delta.Value) -> bool:
        """Whether the bytes of a value are what the record says of them, whose own checksum is right."""
        assert walk.checkpoint is not None
        try:
            (body,) = self.history.read_bodies([value], walk.checkpoint)
            return delta.is_one(value, body)
        except (CheckpointCorruptionError, *delta.MALFORMED):
            return False

    def _is_whole(self, start: int, length: int) -> bool:
        return all(start >= end or start + length <= first for first, end in self._gaps)
