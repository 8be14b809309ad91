"""What of the file of a log is known to be on the disk."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from savers._filesystem.io import boot_number
from savers._log.frame import META
from savers._log.log_bytes import Durability

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from savers._log.frame import Frame

_CHECKED_END: Final = 8 << 10
"""Bytes at the end of a log whose records are always checked when it is opened."""


class FileDurability(Durability):
    """What of the file of a log is known to be on the disk.

    Closing the file forgets up to where it was synced. It does not forget that a sync failed, because no
    later sync of that file can be trusted: that holds until another file has taken its place.

    The caller holds the mutex of the log, except that `sync_bytes` looks without it, and notes a failed
    sync without it: a sync must not keep others from appending.

    Attributes:
        is_suspect: a sync failed: the bytes may not be on the disk, whatever a later sync returns.
        sync_mutex: held by the caller that syncs the file.
        is_name_synced: whether the names that lead to the file are known to be on the disk.
    """

    def __init__(self, *, is_synced_before_use: bool) -> None:
        """Begin with nothing known.

        Args:
            is_synced_before_use: whether the whole file is brought to the disk before it takes its place,
                so that each record vouches for it.
        """
        self.boot = boot_number()
        self._is_synced_before_use = is_synced_before_use
        self.sync_mutex = threading.Lock()
        self.is_suspect = False
        self._unacknowledged: tuple[int, int] | None = None
        """After a failed sync: where the records begin and end that no put has acknowledged."""
        self.forget_synced()

    # Up to where the file is on the disk

    def forget_synced(self) -> None:
        """Note that the file was closed: another one may be at its path by now."""
        self._synced = 0
        """Up to here the file is known to be on the disk."""
        self.is_name_synced = False

    def is_synced(self, end: int) -> bool:
        """Return whether the bytes before an offset are on the disk, and the names that lead to them."""
        return self._synced >= end and self.is_name_synced

    def note_synced(self, end: int) -> None:
        """Note that the bytes before an offset are on the disk."""
        self._synced = max(self._synced, end)

    def note_names_synced(self) -> None:
        """Note that the names that lead to the file are on the disk."""
        self.is_name_synced = True

    def count_unsynced(self, offset: int) -> int:
        if self._is_synced_before_use:
            return 0
        return offset - self._synced

    def note_frames(self, frames: Sequence[Frame]) -> None:
        synced = self._synced
        for frame in frames:
            synced = max(synced, frame.vouched)
        self._synced = synced
        last = frames[-1]
        if self._is_of_another_boot(last):
            self._synced = last.end

    def _is_of_another_boot(self, frame: Frame) -> bool:
        """Return whether a record was written in another boot: this one can only have read it from the disk."""
        return 0 not in {frame.boot, self.boot} and frame.boot != self.boot

    def has_whole_end(self, frames: Iterator[Frame]) -> bool:
        last = frame = next(frames)
        # A power loss may take a record for which no later record vouches, and leave later ones. So
        # each record is looked at, back to the first offset that one of them vouches for.
        limit = 0
        if last.boot == self.boot != 0:
            # Nothing is lost within one boot. These are checked in case the file comes from another
            # machine whose boot has the same number.
            limit = last.end - _CHECKED_END
        self.note_synced(frame.vouched)
        while frame.offset > max(self._synced, limit) and frame.type != META:
            before = next(frames, None)
            if before is None:
                return False
            frame = before
            self.note_synced(frame.vouched)
        if self._is_of_another_boot(last):
            self._synced = last.end
        return True

    # After a failed sync

    def note_failed_sync(self) -> None:
        """Note that bytes of the file may not reach the disk: nothing is stored in it until it is rewritten."""
        self.is_suspect = True

    def note_unacknowledged(self, start: int, end: int) -> None:
        """Note where the records begin and end whose put fails with the sync."""
        self._unacknowledged = start, end

    def find_acknowledged_end(self, end: int) -> int:
        """Return where the log ends without the records at its end that no put has acknowledged."""
        if self._unacknowledged is None:
            return end
        start, unacknowledged_end = self._unacknowledged
        if unacknowledged_end != end:
            # Another writer has appended since: its records stand on those that failed.
            return end
        return start

    def note_taken_back(self) -> None:
        """Note that the unacknowledged records are cut off. The disk may hold them, so the rest stays suspect."""
        self._unacknowledged = None

    def note_replaced(self) -> None:
        """Note that another file takes the place of this one, in blocks of the disk that have not failed."""
        self.is_suspect = False
        self._unacknowledged = None
