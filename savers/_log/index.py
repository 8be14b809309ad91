"""The index of a log: its checkpoints in the order of the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from savers._log.stored_checkpoint import StoredCheckpoint


class Index:
    """All checkpoints of a log in the order of the history, oldest first."""

    def __init__(self) -> None:
        self.checkpoints: list[StoredCheckpoint] = []
        self._positions: dict[str, int] = {}
        """By id, those of the first `_numbered` checkpoints. Few callers look for an id."""
        self._numbered = 0

    def _find_position(self, id: str) -> int | None:
        checkpoints = self.checkpoints
        count = len(checkpoints)
        if self._numbered < count:
            added = checkpoints[self._numbered :]
            self._positions.update(zip([stored.id for stored in added], range(self._numbered, count), strict=True))
            self._numbered = count
        return self._positions.get(id)

    def find(self, id: str) -> StoredCheckpoint | None:
        """Return the checkpoint with an id; the newest if there are several."""
        position = self._find_position(id)
        return None if position is None else self.checkpoints[position]

    def append(self, checkpoint: StoredCheckpoint) -> None:
        """Add the checkpoint of the next record, which replaces no other."""
        self.checkpoints.append(checkpoint)

    def extend(self, checkpoints: Sequence[StoredCheckpoint]) -> None:
        """Add the checkpoints of the next records, which replace no others."""
        self.checkpoints += checkpoints

    def add(self, checkpoint: StoredCheckpoint, target: str | None) -> bool:
        """Add the checkpoint of the next record.

        Args:
            checkpoint: the checkpoint; in place of another, it takes over that one's pending writes
                and tags.
            target: the id of the checkpoint to replace; None appends.

        Returns:
            Whether it was added; False if no checkpoint has the id of the target.
        """
        if target is None:
            self.append(checkpoint)
            return True
        position = self._find_position(target)
        if position is None:
            return False
        checkpoint.take_over_writes(self.checkpoints[position])
        self.checkpoints[position] = checkpoint
        if target != checkpoint.id:
            self._renumber(position, target, checkpoint.id)
        return True

    def _renumber(self, position: int, old_id: str, new_id: str) -> None:
        """Note that the checkpoint at a position, the newest with its id, has another id now."""
        if len(self._positions) < self._numbered:
            # Several have one id: an older one may be the newest with the old id now.
            self._positions = {}
            self._numbered = 0
            return
        del self._positions[old_id]
        self._positions[new_id] = max(position, self._positions.get(new_id, 0))
