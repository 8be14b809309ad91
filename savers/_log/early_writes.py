"""Early writes: pending writes that are recorded before their checkpoint.

LangGraph records the writes of a step without waiting for the checkpoint from which the step runs.
They stand in the log as WRITE records that name a checkpoint still to come. The record of the
checkpoint says how far back they begin, so that a reader of the end of the log finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from graphkit.values import FrozenDict
from savers._log.stored_checkpoint import StoredCheckpoint

EarlyDistances = tuple[int, int]
"""How far before a CHECKPOINT record the first early write of its checkpoint begins, and the first
one of a checkpoint still to come; 0 if there is none."""

KEPT_SUCCESSORS: Final = 16
"""A rewrite drops early writes before the last so many CHECKPOINT records: their checkpoint did not
come, and will not."""
_NO_METADATA: Final = FrozenDict()


class EarlyWrites:
    """The early writes that wait for their checkpoint, by its id."""

    def __init__(self) -> None:
        self.waiting: dict[str, StoredCheckpoint] = {}
        """What waits, by the id of its checkpoint."""

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def __iter__(self) -> Iterator[StoredCheckpoint]:
        return iter(self.waiting.values())

    def add(self, id: str, values: Mapping[str, bytes], offset: int) -> None:
        """Note the packed values of the WRITE record at an offset."""
        waiting = self.waiting.get(id)
        if waiting is None:
            # What is known of a checkpoint still to come: its id, and where its first write is.
            waiting = StoredCheckpoint(
                id=id,
                node="",
                next=None,
                created=0,
                parent=None,
                metadata=_NO_METADATA,
                offset=offset,
            )
            self.waiting[id] = waiting
        waiting.add_writes(values, offset)

    def find(self, id: str) -> StoredCheckpoint | None:
        """Return what waits for a checkpoint; its `offset` is that of its first WRITE record."""
        return self.waiting.get(id)

    def give_to(self, checkpoint: StoredCheckpoint) -> None:
        """Give a checkpoint that has come its writes, if any wait for it."""
        waiting = self.waiting.pop(checkpoint.id, None)
        if waiting is not None:
            checkpoint.take_over_early(waiting)

    def drop(self, id: str) -> None:
        """Forget what waits for a checkpoint."""
        self.waiting.pop(id, None)

    def select_recent(self, checkpoints: Iterable[StoredCheckpoint]) -> list[StoredCheckpoint]:
        """Return what a rewrite keeps: what may still get its checkpoint.

        Args:
            checkpoints: the checkpoints of the log.
        """
        offsets = sorted(checkpoint.offset for checkpoint in checkpoints)
        start = offsets[-KEPT_SUCCESSORS] if len(offsets) >= KEPT_SUCCESSORS else 0
        return [waiting for waiting in self.waiting.values() if waiting.offset > start]

    def measure(self, id: str, offset: int) -> EarlyDistances | None:
        """Return the distances for the record of a checkpoint at an offset; None if both are 0."""
        if not self.waiting:
            return None
        own = self.waiting.get(id)
        others = [waiting.offset for waiting in self.waiting.values() if waiting is not own]
        own_distance = 0 if own is None else offset - own.offset
        other_distance = offset - min(others) if others else 0
        return own_distance, other_distance
