"""What a log reader keeps of each checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from graphkit import Checkpoint
from graphkit.values import private_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphkit.values import FrozenDict

_NIL: Final = b"\xc0"
"""None, packed."""
NO_WRITES: Final[dict[str, int]] = {}
"""Shared by all checkpoints without pending writes, and never changed."""
NO_KEYS: Final[frozenset[str]] = frozenset()


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
        "cleared", "created", "id", "is_replacement", "keyframe_offset", "metadata", "next", "node",
        "offset", "parent", "size", "tags", "writes",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        node: str,
        next: str | None,
        created: int,
        parent: str | None,
        metadata: FrozenDict,
        is_replacement: bool = False,
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
        self.is_replacement = is_replacement
        """Whether its record replaces an earlier checkpoint."""
        self.writes: dict[str, int] = NO_WRITES
        """The key of each pending write, with the offset of the WRITE record that holds its
        value."""
        self.cleared: frozenset[str] = NO_KEYS
        """The keys of pending writes whose value is None: what was recorded under them no longer
        holds."""
        self.tags: tuple[str, ...] = ()

    def add_writes(self, values: Mapping[str, bytes], offset: int) -> None:
        """Note the packed values that the WRITE record at an offset adds to the pending writes."""
        self.writes = {**self.writes, **dict.fromkeys(values, offset)}
        cleared = {key for key, packed in values.items() if packed == _NIL}
        if cleared or self.cleared:
            self.cleared = self.cleared.difference(values).union(cleared)

    def copy_record(self) -> StoredCheckpoint:
        """Return what the record says, without what later records have added."""
        return StoredCheckpoint(
            self.id,
            self.node,
            self.next,
            self.created,
            self.parent,
            self.metadata,
            self.is_replacement,
            self.offset,
            self.size,
            self.keyframe_offset,
        )

    def take_over_writes(self, replaced: StoredCheckpoint) -> None:
        """Take over the pending writes and tags of the checkpoint that this one replaces."""
        own = self.writes
        own_cleared = self.cleared
        self.writes = replaced.writes
        self.cleared = replaced.cleared
        self.tags = replaced.tags
        if own:
            # Early writes of a checkpoint that replaces one with another id.
            self.writes = {**replaced.writes, **own}
            self.cleared = replaced.cleared.difference(own).union(own_cleared)

    def take_over_early(self, waiting: StoredCheckpoint) -> None:
        """Take over the writes that were recorded before this checkpoint."""
        self.writes = waiting.writes
        self.cleared = waiting.cleared

    def make_checkpoint(
        self, state: FrozenDict | None = None, load: Callable[[], FrozenDict] | None = None
    ) -> Checkpoint:
        """Return the Checkpoint, with its state or a function that loads it."""
        return Checkpoint.from_stored(
            id=self.id,
            node_id=self.node,
            next_node_id=self.next,
            parent_id=self.parent,
            created_us=self.created,
            metadata=private_copy(self.metadata),
            state=state,
            load=load,
        )
