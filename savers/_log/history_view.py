"""Histories as they are at one moment, for callers that read some of their checkpoints later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from savers._log.kept_records import KeptRecords
from savers._log.packed_chain import PackedChains

if TYPE_CHECKING:
    from graphkit.values import FrozenDict
    from savers._log.log_reader import LogReader
    from savers._log.packed_chain import PackedCheckpoint
    from savers._log.stored_checkpoint import StoredCheckpoint

_FEWEST_READ: Final = 16
"""The fewest checkpoints that are read from the end of a log at first."""
_GROWTH: Final = 4
"""Each time, this many times more are read."""
_MOST_KEPT: Final = 1 << 20
"""The longest log of which a listing keeps all records until their states are read."""

Visit = Callable[["StoredCheckpoint"], bool]
"""Takes a checkpoint; returns whether the next one is wanted too."""
Reader = TypeVar("Reader", bound="LogReader")


class ReadCheckpoint(NamedTuple):
    """What belongs to a checkpoint and was read later than its record."""

    state: FrozenDict
    writes: Mapping[str, Any]


class HistoryView(Protocol):
    """The checkpoints of one history at one moment."""

    thread_id: str
    namespace: str
    is_only: bool
    """Whether the thread certainly has no other namespace that belongs to this one."""

    def walk_back(self, visit: Visit, expected: int | None) -> None:
        """Visit the checkpoints, newest first, until `visit` returns False.

        Args:
            visit: the function to call.
            expected: about how many visits there will be; None if all checkpoints are wanted.
        """

    def read(self, stored: StoredCheckpoint) -> ReadCheckpoint | None:
        """Return the state and the pending writes of a checkpoint; None if the log has changed."""

    def forget(self) -> None:
        """Drop what the view keeps in memory of the log's bytes."""


class SharedLog(ABC, Generic[Reader]):
    """A log that its saver keeps open, and that other callers use too.

    Attributes:
        thread_id: the thread of the log.
        namespace: its namespace.
    """

    def __init__(self, thread_id: str, namespace: str) -> None:
        self.thread_id = thread_id
        self.namespace = namespace

    @abstractmethod
    def _open(self) -> Reader:
        """Return the log; its caller holds its mutex."""

    @abstractmethod
    def _refresh(self, reader: Reader) -> bool:
        """Bring the log up to date; return whether it has a live history."""

    @abstractmethod
    def _account(self, reader: Reader) -> None:
        """Account for what the log caches."""


class SharedLogView(SharedLog[Reader]):
    """A view of a log that its saver keeps open.

    The view remembers how long the log was. After any change, `read` returns None, and the caller
    finds the checkpoint by its id.
    """

    def __init__(self, thread_id: str, namespace: str) -> None:
        super().__init__(thread_id, namespace)
        self.is_only = False
        self._fid = 0
        self._end = 0
        self._packed: PackedChains | None = None

    def walk_back(self, visit: Visit, expected: int | None) -> None:
        """See HistoryView. Reads no further back than the visits go."""
        reader = self._open()
        with reader.mutex:
            if not self._refresh(reader):
                return
            self._fid = reader.fid
            self._end = reader.end
            kept = KeptRecords()
            self._packed = PackedChains(kept, reader.end)
            if expected is None:
                # More would take more memory than it saves time.
                reader.load_index(kept if reader.end <= _MOST_KEPT else None)
            walk_back_in(reader, visit, expected or 0, kept)
            self._account(reader)

    def read(self, stored: StoredCheckpoint) -> ReadCheckpoint | None:
        """See HistoryView."""
        reader = self._open()
        with reader.mutex:
            if not self._is_as_it_was(reader):
                return None
            found = ReadCheckpoint(reader.load_state(stored), reader.read_writes(stored))
            self._account(reader)
            return found

    def read_packed(self, stored: StoredCheckpoint) -> PackedCheckpoint | None:
        """Return the packed state and writes of a checkpoint; None if `read` has to find out."""
        if self._packed is None:
            return None
        reader = self._open()
        with reader.mutex:
            return self._packed.read(reader, stored) if self._is_as_it_was(reader) else None

    def _is_as_it_was(self, reader: Reader) -> bool:
        """Return whether the log is as it was when the view was made."""
        return self._refresh(reader) and reader.fid == self._fid and reader.end == self._end

    def forget(self) -> None:
        """Drop the packed states; the saver keeps the log."""
        self._packed = None


class Ancestor(NamedTuple):
    """A checkpoint on the way from another one to the first of a history."""

    stored: StoredCheckpoint
    fid: int
    """The id of the log in which it was found; 0 if the history is not in a log."""


class AncestorReader(Protocol):
    """Reads checkpoints of one history without decoding whole states, where that is possible."""

    def find(self, id: str | None) -> Ancestor | None:
        """Return the checkpoint with an id, or the latest; None if there is none."""

    def read(self, ancestor: Ancestor, is_wanted: Callable[[str], bool]) -> ReadCheckpoint | None:
        """Return the values of some keys of its state, and its pending writes.

        None if the log was rewritten since it was found.
        """


class SharedLogAncestors(SharedLog[Reader]):
    """Reads checkpoints of a log that its saver keeps open; an AncestorReader."""

    def __init__(self, thread_id: str, namespace: str) -> None:
        super().__init__(thread_id, namespace)
        self._recent: dict[str, StoredCheckpoint] = {}
        """The last checkpoints of the log by their ids, if they were read."""
        self._place = 0, 0
        """The log and where it ended then."""

    def find(self, id: str | None) -> Ancestor | None:
        """See AncestorReader."""
        reader = self._open()
        with reader.mutex:
            if not self._refresh(reader):
                return None
            stored = None
            if id is not None and reader.index is None:
                stored = self._find_recent(reader, id)
            if stored is None:
                stored = reader.find(id)
            return None if stored is None else Ancestor(stored, reader.fid)

    def _find_recent(self, reader: Reader, id: str) -> StoredCheckpoint | None:
        """Return one of the last checkpoints of the log; None if it was not among those that were read.

        Most walks begin near the end and go from one checkpoint to the one before it. Searching for
        each takes ten times as long as reading some of the last ones together.
        """
        place = reader.fid, reader.end
        if place != self._place:
            self._recent = {stored.id: stored for stored in reader.recent_now()}
            self._place = place
        recent = self._recent
        if id not in recent and recent and next(iter(recent.values())).parent == id:
            self._recent = recent = {stored.id: stored for stored in reader.find_recent(_GROWTH * len(recent))}
        return recent.get(id)

    def read(self, ancestor: Ancestor, is_wanted: Callable[[str], bool]) -> ReadCheckpoint | None:
        """See AncestorReader."""
        reader = self._open()
        stored = ancestor.stored
        with reader.mutex:
            if not self._refresh(reader) or reader.fid != ancestor.fid:
                return None
            writes = reader.read_writes(stored) if stored.writes else {}
            found = ReadCheckpoint(reader.load_values(stored, is_wanted), writes)
            self._account(reader)
            return found


def walk_back_in(reader: LogReader, visit: Visit, expected: int, kept: KeptRecords | None = None) -> None:
    """Visit the checkpoints of an open log, newest first, until `visit` returns False.

    Reads no further back than the visits go. The caller holds the mutex of the log.

    Args:
        reader: the log.
        visit: the function to call.
        expected: about how many visits there will be.
        kept: what is decoded besides checkpoints may be added to it.
    """
    visited = 0
    wanted = max(expected, _FEWEST_READ)
    while True:
        checkpoints = reader.find_recent(wanted, kept)
        for stored in reversed(checkpoints[: len(checkpoints) - visited]):
            if not visit(stored):
                return
        visited = len(checkpoints)
        if visited < wanted:
            return
        wanted *= _GROWTH
