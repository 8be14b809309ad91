"""The reports of repair; those of verify and rotate are the same for every log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from savers._log.reports import FileReport, FileState, Progress, RotationReport, StoreReport, ThreadReport, Unfinished

__all__ = [
    "FileRepair",
    "FileReport",
    "FileState",
    "Lost",
    "Progress",
    "RepairReport",
    "RotationReport",
    "StoreReport",
    "ThreadReport",
    "Unfinished",
]


@final
@dataclass(frozen=True, kw_only=True)
class Lost:
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
    lost: tuple[Lost, ...] = ()
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
    def lost(self) -> tuple[Lost, ...]:
        """Everything that repair could not rebuild."""
        return tuple(lost for file in self.files for lost in file.lost)
