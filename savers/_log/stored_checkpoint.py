"""What a reader of a log keeps of each checkpoint, and of the writes that came before their checkpoint."""

from __future__ import annotations

from copy import copy
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from graphkit import Checkpoint
from graphkit.saver_kit import FrozenDict, private_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from graphkit.saver_kit import Changes

EarlyDistances = tuple[int, int]
"""How far before a CHECKPOINT record the first early write of its checkpoint begins, and the first
one of a checkpoint still to come; 0 if there is none."""

KEPT_SUCCESSORS: Final = 16
"""A rewrite drops early writes before the last so many CHECKPOINT records: their checkpoint did not
come, and will not."""
_NIL: Final = b"\xc0"
"""None, packed."""
_NO_WRITES: Final[dict[str, int]] = {}
"""Shared by all checkpoints without pending writes, and never changed."""
_NO_KEYS: Final[frozenset[str]] = frozenset()
_NO_METADATA: Final = FrozenDict()


def outline_writes(writes: Mapping[str, int], cleared: frozenset[str]) -> Mapping[str, object]:
    """Return the keys of pending writes, each with None if its value is None.

    The values are not read; other objects stand for those that are not None.

    Args:
        writes: the `writes` of a checkpoint.
        cleared: its `cleared`.
    """
    if cleared:
        return {**writes, **dict.fromkeys(cleared)}
    return writes


class StoredCheckpoint:
    """A checkpoint of a log without its state: what its record says, and what later records add."""

    __slots__ = (
        "cleared", "created", "id", "keyframe_offset", "metadata", "next", "node", "offset", "parent", "size",
        "tags", "target", "writes",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        node: str,
        next: str | None,
        created: int,
        parent: str | None,
        metadata: FrozenDict,
        target: str | None = None,
        offset: int = 0,
        size: int = 0,
        keyframe_offset: int = 0,
    ) -> None:
        # By position where a log is scanned: keywords cost 0.3 us of the 4 us for a record.
        self.offset = offset
        """Where its record begins."""
        self.size = size
        """The length of its record."""
        self.keyframe_offset = keyframe_offset
        """Where its keyframe is."""
        self.id = id
        self.node = node
        self.next = next
        self.created = created
        """Microseconds since 1970."""
        self.parent = parent
        self.metadata = metadata
        self.target = target
        """The id of the earlier checkpoint that its record replaces; None if it replaces none."""
        self.writes: dict[str, int] = _NO_WRITES
        """The key of each pending write, with the offset of the WRITE record that holds its
        value."""
        self.cleared: frozenset[str] = _NO_KEYS
        """The keys of pending writes whose value is None: what was recorded under them no longer
        holds."""
        self.tags: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """Where its record ends."""
        return self.offset + self.size

    def is_copy_of(self, other: StoredCheckpoint) -> bool:
        """Return whether a rewrite may have made this one of the other; the states are not compared."""
        return _get_fields(self) == _get_fields(other)

    def add_writes(self, values: Mapping[str, bytes], offset: int) -> None:
        """Note the packed values that the WRITE record at an offset adds to the pending writes."""
        self.writes = {**self.writes, **dict.fromkeys(values, offset)}
        cleared = {key for key, packed in values.items() if packed == _NIL}
        if cleared or self.cleared:
            self.cleared = self.cleared.difference(values).union(cleared)

    def change_tags(self, add: Sequence[str], remove: Sequence[str]) -> None:
        """Add tags, each once, and remove others, as a MARK record says."""
        self.tags = tuple(tag for tag in dict.fromkeys((*self.tags, *add)) if tag not in remove)

    def take_over(self, replaced: StoredCheckpoint) -> None:
        """Take over the pending writes and tags of the checkpoint that this one replaces.

        Early writes of its own stand behind those: of a checkpoint that replaces one with another id.
        """
        own = self.writes
        own_cleared = self.cleared
        self.writes = replaced.writes
        if own:
            self.writes = {**replaced.writes, **own}
        self.cleared = replaced.cleared.difference(own).union(own_cleared)
        self.tags = replaced.tags

    def make_checkpoint(
        self,
        state: FrozenDict | None = None,
        changes: Changes | None = None,
        load: Callable[[], FrozenDict] | None = None,
    ) -> Checkpoint:
        """Return the Checkpoint, with its state or a function that loads it; see `Checkpoint.from_stored`."""
        return Checkpoint.from_stored(
            id=self.id,
            node_id=self.node,
            next_node_id=self.next,
            parent_id=self.parent,
            created_us=self.created,
            metadata=private_copy(self.metadata),
            state=state,
            changes=changes,
            load=load,
        )


_get_fields: Final[Callable[[StoredCheckpoint], tuple[Any, ...]]] = attrgetter(
    "id", "node", "next", "created", "parent"
)


class EarlyWrites:
    """The early writes that wait for their checkpoint, by its id.

    LangGraph records the writes of a step without waiting for the checkpoint from which the step
    runs. They stand in the log as WRITE records that name a checkpoint still to come. The record of
    the checkpoint says how far back they begin, so that a reader of the end of the log finds them.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, StoredCheckpoint] = {}

    def __iter__(self) -> Iterator[StoredCheckpoint]:
        return iter(self._waiting.values())

    def add(self, id: str, values: Mapping[str, bytes], offset: int) -> None:
        """Note the packed values of the WRITE record at an offset."""
        waiting = self._waiting.get(id)
        if waiting is None:
            # What is known of a checkpoint still to come: its id, and where its first write is.
            waiting = StoredCheckpoint(id, "", None, 0, None, _NO_METADATA, offset=offset)
            self._waiting[id] = waiting
        waiting.add_writes(values, offset)

    def copy(self) -> EarlyWrites:
        """Return the same writes, which do not change with these."""
        copied = EarlyWrites()
        copied._waiting = {waiting.id: copy(waiting) for waiting in self}
        return copied

    def find(self, id: str) -> StoredCheckpoint | None:
        """Return what waits for a checkpoint; its `offset` is that of its first WRITE record."""
        return self._waiting.get(id)

    def give_to(self, checkpoint: StoredCheckpoint) -> None:
        """Give a checkpoint that has come its writes, if any wait for it."""
        waiting = self._waiting.pop(checkpoint.id, None)
        if waiting is not None:
            checkpoint.writes = waiting.writes
            checkpoint.cleared = waiting.cleared

    def drop(self, id: str) -> None:
        """Forget what waits for a checkpoint."""
        self._waiting.pop(id, None)

    def select_recent(self, checkpoints: Iterable[StoredCheckpoint]) -> list[StoredCheckpoint]:
        """Return what a rewrite keeps: what may still get its checkpoint.

        Args:
            checkpoints: the checkpoints of the log.
        """
        offsets = sorted(checkpoint.offset for checkpoint in checkpoints)
        start = 0
        if len(offsets) >= KEPT_SUCCESSORS:
            start = offsets[-KEPT_SUCCESSORS]
        return [waiting for waiting in self if waiting.offset > start]

    def measure(self, id: str, offset: int) -> EarlyDistances | None:
        """Return the distances for the record of a checkpoint at an offset; None if both are 0."""
        if not self._waiting:
            return None
        own_distance = other_distance = 0
        for waiting in self:
            distance = offset - waiting.offset
            if waiting.id == id:
                own_distance = distance
            else:
                other_distance = max(other_distance, distance)
        return own_distance, other_distance


class Index:
    """All checkpoints of a log in the order of the history, oldest first."""

    def __init__(self, checkpoints: Iterable[StoredCheckpoint] = ()) -> None:
        self.checkpoints = list(checkpoints)
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

    def add(self, checkpoint: StoredCheckpoint) -> bool:
        """Add the checkpoint of the next record; in place of its target, it takes over its pending writes and tags.

        Returns:
            Whether it was added; False if no checkpoint has the id of its target.
        """
        target = checkpoint.target
        if target is None:
            self.checkpoints.append(checkpoint)
            return True
        position = self._find_position(target)
        if position is None:
            return False
        checkpoint.take_over(self.checkpoints[position])
        self.checkpoints[position] = checkpoint
        if target == checkpoint.id:
            return True
        # The checkpoint at the position, the newest with its id, has another id now.
        positions = self._positions
        if len(positions) < self._numbered:
            # Several have one id: an older one may be the newest with the old id now.
            self._positions = {}
            self._numbered = 0
        else:
            del positions[target]
            positions[checkpoint.id] = max(position, positions.get(checkpoint.id, 0))
        return True
