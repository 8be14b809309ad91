"""The reports of verify, repair, rotate and retention policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

FileState = Literal["ok", "torn", "damaged", "newer", "foreign", "sealed", "erased"]
Unfinished = Literal["", "release", "delete"]
"""An operation that a process began and did not finish."""


@final
@dataclass(frozen=True, kw_only=True)
class FileReport:
    """What verify found in one log."""

    path: str
    """Relative to the store's directory. In a database, the number of the history, with its namespace and
    its version."""
    state: FileState
    """torn: the last write did not finish; the next write moves its bytes away. newer: the log
    needs a newer graphkit. foreign: it is the log of another thread, or not a log. sealed: all
    checksums are right, but what was sealed cannot be checked, because a key is missing or
    wrong. erased: all checksums are right, and the key was destroyed, so that nothing else is left
    to check."""
    offset: int = 0
    """Where the problem begins, if there is one."""
    reason: str = ""
    """What the problem is."""
    size: int = 0
    """Bytes."""
    records: int = 0
    """Good records, counted up to the first problem."""
    checkpoints: int = 0
    """Checkpoints in these records, without those that were replaced."""


@final
@dataclass(frozen=True, kw_only=True)
class ThreadReport:
    """What verify found in the directory of one thread."""

    thread_id: str | None
    """None if no readable file has the id; to `repair` the thread, name it."""
    directory: str
    files: tuple[FileReport, ...]
    unfinished: Unfinished = ""
    """An operation that a process began and did not finish; the next writer finishes it."""
    leftovers: tuple[str, ...] = ()
    """Temporary files of a writer that died. They are harmless; the next rewrite and `repair`
    remove them."""
    set_aside: tuple[str, ...] = ()
    """Salvaged files, made by recovery and `repair`; the user may inspect and remove them."""

    @property
    def ok(self) -> bool:
        """Whether all of it can be read that was not erased."""
        return not self.unfinished and all(file.state in {"ok", "erased"} for file in self.files)


@final
@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What verify found in a store, or in one thread of it."""

    threads: tuple[ThreadReport, ...]
    leftovers: tuple[str, ...] = ()
    """Threads whose deletion did not finish. The next process that makes or deletes a thread
    removes them, and so does `repair`."""
    size: int = 0
    """Bytes of the logs."""
    marker: FileReport | None = None
    """The store's marker file, if it is damaged. `repair` of the whole store rewrites it without
    loss."""

    @property
    def ok(self) -> bool:
        """Whether all of it can be read that was not erased, and the marker is undamaged."""
        return self.marker is None and all(thread.ok for thread in self.threads)

    @property
    def problems(self) -> tuple[FileReport, ...]:
        """The files that have a problem."""
        files = [file for thread in self.threads for file in thread.files]
        logs = tuple(file for file in files if file.state not in {"ok", "erased"})
        return logs if self.marker is None else (self.marker, *logs)

    @property
    def erased(self) -> tuple[FileReport, ...]:
        """The files that nobody can read any more, because their keys were destroyed. That is no problem."""
        return tuple(file for thread in self.threads for file in thread.files if file.state == "erased")


@final
@dataclass(frozen=True, kw_only=True)
class LostCheckpoint:
    """Something that repair could not rebuild."""

    offset: int
    """Its offset in the old log, of which the salvaged file is a copy."""
    checkpoint_id: str | None
    """The lost checkpoint or, for a pending write or a tag, its checkpoint; None if unknown."""
    reason: str
    records: int | None = 1
    """How many records are lost here; None if unknown, because the damage reaches to the end of
    the log."""


@final
@dataclass(frozen=True, kw_only=True)
class FileRepair:
    """What repair did to one log, or would do."""

    before: FileReport
    thread_id: str | None = None
    """The thread of the log; None if no readable file has its id."""
    kept: int = 0
    """Checkpoints."""
    lost: tuple[LostCheckpoint, ...] = ()
    set_aside: str = ""
    """The path of the salvaged file with the old bytes, relative to the store's directory."""
    refused: str = ""
    """Why repair did nothing."""
    unfinished: Unfinished = ""
    """An operation that the log shows as begun and not finished; repair finishes it."""
    corrected: tuple[int, ...] = ()
    """The offsets of bytes with one flipped bit, which the new log has corrected. They cost no
    data."""

    @property
    def is_total_loss(self) -> bool:
        """Whether the log was damaged and repair could keep none of its checkpoints."""
        return self.before.state == "damaged" and not self.kept and not self.refused


@final
@dataclass(frozen=True, kw_only=True)
class RepairReport:
    """What `repair` did, or would do. It omits files without problems."""

    files: tuple[FileRepair, ...]
    dry_run: bool = False
    """Whether nothing was changed: the rest says what a repair would do."""
    finished: tuple[str, ...] = ()
    """Threads whose release or delete repair finished."""
    removed: tuple[str, ...] = ()
    """Leftovers that repair removed."""
    marker: FileReport | None = None
    """The store's marker file, if it was damaged; repair rewrites it."""

    @property
    def changed(self) -> bool:
        """Whether repair changed anything."""
        is_repaired = any(not file.refused for file in self.files)
        return bool(self.finished or self.removed or self.marker or is_repaired)

    @property
    def ok(self) -> bool:
        """Whether everything can be read now, even if something was lost; see `total_losses`."""
        return not any(file.refused for file in self.files)

    @property
    def total_losses(self) -> tuple[FileRepair, ...]:
        """The damaged logs of which repair could keep nothing: restore them from a backup."""
        return tuple(file for file in self.files if file.is_total_loss)

    @property
    def lost(self) -> tuple[LostCheckpoint, ...]:
        """Everything that repair could not rebuild."""
        return tuple(lost for file in self.files for lost in file.lost)


@final
@dataclass(frozen=True, kw_only=True)
class RotationReport:
    """What `rotate` did. All paths are relative to the store's directory."""

    rewritten: tuple[str, ...] = ()
    """The logs that were rewritten; all others had the current key already. In a database, the histories."""
    set_aside: tuple[str, ...] = ()
    """Salvaged files, made by recovery and `repair`. They still hold bytes as they were, sealed
    with earlier keys or plain; the user may inspect and remove them."""
    erased: tuple[str, ...] = ()
    """The logs whose keys were destroyed. They stay as they are."""


class OverLimit(NamedTuple):
    """A thread, or a store, that takes more bytes than a policy allows."""

    thread_id: str | None
    """None: the whole store, with the threads that the policy does not choose."""
    size: int
    """Bytes."""
    limit: int
    """Bytes."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionReport:
    """What a retention policy did with a store, or would do."""

    threads: int = 0
    """How many threads the policy chose."""
    removed: int = 0
    """How many checkpoints were removed, or would be."""
    pruned: tuple[str, ...] = ()
    """The threads that lost checkpoints, or would."""
    busy: tuple[str, ...] = ()
    """The threads that a run held, on a saver whose `prune` takes the run lock. Nothing of them was changed."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """The error of each thread that could not be read, pruned or measured; the others are done."""
    over_limit: tuple[OverLimit, ...] = ()
    """What takes more bytes than its limit after the removals, whether or not `on_limit` was called now."""
    dry_run: bool = False
    """Whether nothing was changed."""

    @property
    def ok(self) -> bool:
        """Whether no thread failed."""
        return not self.failed
