"""What verify and repair report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

Progress = Callable[[int, int, str], object]
"""Is called with the bytes done, all bytes, and what was looked at last (a path below the store)."""
FileState = Literal["ok", "torn", "damaged", "newer", "foreign"]


@final
@dataclass(frozen=True, kw_only=True)
class FileReport:
    """What was found in one log."""

    path: str
    """Below the store's directory."""
    state: FileState
    """torn: the last write never finished, the next one sets it aside. newer: it needs a newer graphkit. foreign: it is
    not this thread's log, or no log at all."""
    offset: int = 0
    """Where it begins to be wrong, if it is."""
    reason: str = ""
    """What is wrong there."""
    size: int = 0
    """Bytes."""
    records: int = 0
    """Good records, as far as they follow each other."""
    checkpoints: int = 0
    """Checkpoints in them, without those that were replaced."""


@final
@dataclass(frozen=True, kw_only=True)
class ThreadReport:
    """What was found in one thread's directory."""

    thread_id: str | None
    """None: no readable file tells; name the thread to `repair` it."""
    directory: str
    files: tuple[FileReport, ...]
    unfinished: Literal["", "release", "delete"] = ""
    """What somebody began and did not live to finish; the next writer does."""
    leftovers: tuple[str, ...] = ()
    """Temporary files of a writer that died; harmless, removed by the next one that needs to, and by `repair`."""
    set_aside: tuple[str, ...] = ()
    """What recovery and `repair` have moved out of the way; yours to look at and to remove."""

    @property
    def ok(self) -> bool:
        """Whether all of it can be read."""
        return not self.unfinished and all(file.state == "ok" for file in self.files)


@final
@dataclass(frozen=True, kw_only=True)
class StoreReport:
    """What was found in a store, or in one thread of it."""

    threads: tuple[ThreadReport, ...]
    leftovers: tuple[str, ...] = ()
    """Threads that were being deleted; removed by the next process that makes or deletes one, and by `repair`."""
    size: int = 0
    """Bytes of the logs."""
    marker: FileReport | None = None
    """The store's marker file, if it is damaged; `repair` of the whole store rewrites it, and nothing is lost."""

    @property
    def ok(self) -> bool:
        """Whether all of it can be read, and the marker is as it was written."""
        return self.marker is None and all(thread.ok for thread in self.threads)

    @property
    def problems(self) -> tuple[FileReport, ...]:
        """The files that are not well."""
        logs = tuple(file for thread in self.threads for file in thread.files if file.state != "ok")
        return logs if self.marker is None else (self.marker, *logs)


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
