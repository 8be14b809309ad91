"""The reports of verify and rotate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

Progress = Callable[[int, int, str], object]
"""Called with the bytes done, all bytes, and the last log checked (a path below the store, or the
name of a history in a database)."""
FileState = Literal["ok", "torn", "damaged", "newer", "foreign", "sealed"]
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
    wrong."""
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
        """Whether all of it can be read."""
        return not self.unfinished and all(file.state == "ok" for file in self.files)


@final
@dataclass(frozen=True, kw_only=True)
class StoreReport:
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
        """Whether all of it can be read, and the marker is undamaged."""
        return self.marker is None and all(thread.ok for thread in self.threads)

    @property
    def problems(self) -> tuple[FileReport, ...]:
        """The files that have a problem."""
        logs = tuple(file for thread in self.threads for file in thread.files if file.state != "ok")
        return logs if self.marker is None else (self.marker, *logs)


@final
@dataclass(frozen=True, kw_only=True)
class RotationReport:
    """What `rotate` did. All paths are relative to the store's directory."""

    rewritten: tuple[str, ...] = ()
    """The logs that were rewritten; all others had the current key already. In a database, the histories."""
    set_aside: tuple[str, ...] = ()
    """Salvaged files, made by recovery and `repair`. They still hold bytes as they were, sealed
    with earlier keys or plain; the user may inspect and remove them."""
