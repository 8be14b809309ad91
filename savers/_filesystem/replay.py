"""Going through a log once, knowing the packed state at each checkpoint: how prune, verify and repair stay linear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgpack import ExtType, unpackb

from graphkit.errors import CheckpointCorruptionError
from graphkit.values import FrozenDict
from savers import _delta as delta
from savers._filesystem import log, payloads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from savers._filesystem.log import Frame
    from savers._filesystem.log_reader import LogReader
    from savers._filesystem.payloads import DecodedRecord, StoredCheckpoint

_PAIR: Final = 2
_ODD_KEYS: Final = ExtType(0, b"\0")
"""The mark in front of a mapping of which msgpack cannot hold every key: one of them may have a lone surrogate."""


class Replay:
    """The packed state, from checkpoint record to checkpoint record."""

    def __init__(self, history: LogReader, *, lost_offset: int | None = None, skips_metadata: bool = False) -> None:
        """Begin before the first record.

        Args:
            history: the log, open.
            lost_offset: an offset inside the damaged region of a log. A value whose pieces are lost is reported to
                have its bytes there. None: lost pieces are an error.
            skips_metadata: check metadata without decoding them, so that no application type needs to be registered.
        """
        self._history, self._lost_at = history, lost_offset
        self._unpack: Any = _unseen if skips_metadata else history._codec.unpack  # noqa: SLF001 - of the same package
        self.checkpoint: StoredCheckpoint | None = None
        """The last checkpoint record."""
        self.table: delta.Table | None = None
        """Its packed state. Changes as the walk goes on."""
        self.keyframe_offset = 0
        """Where the last keyframe is."""

    def step(self, frame: Frame) -> DecodedRecord:
        """Take the next CHECKPOINT record.

        Raises:
            CheckpointCorruptionError: it does not follow from the record before it. The next keyframe may be taken.
        """
        path = self._history.path
        base, table = self.checkpoint, self.table
        self.checkpoint = self.table = None
        if not frame.flags & log.KEY and (base is None or table is None or frame.offset - frame.back != base.offset):
            raise CheckpointCorruptionError(path, frame.offset, "the record that it is relative to is lost")
        decoded = payloads.decode_checkpoint(path, frame, base, self._unpack)
        if frame.flags & log.KEY:
            self.keyframe_offset = frame.offset
        decoded.checkpoint.keyframe_offset = self.keyframe_offset
        if decoded.table is not None:
            table = self._listed(decoded, decoded.table)
        assert table is not None
        self._history._apply_change(table, decoded)  # noqa: SLF001 - of the same package
        self.checkpoint, self.table = decoded.checkpoint, table
        return decoded

    def _listed(self, decoded: DecodedRecord, listed: Any) -> delta.Table:
        history, position = self._history, decoded.checkpoint.offset
        table = delta.Table(opaque=history._serializer is not None)  # noqa: SLF001 - of the same package
        seen: dict[int, DecodedRecord] = {position: decoded}
        try:
            table.names = list(listed[::_PAIR])
            for name, entry in zip(table.names, listed[1::_PAIR], strict=True):
                table.values[name] = self._value(name, entry, position, seen)
        except (*delta.MALFORMED, RecursionError) as error:
            raise CheckpointCorruptionError(history.path, position, f"the keyframe makes no sense: {error}") from error
        return table

    def _value(self, name: str, entry: Any, position: int, seen: dict[int, DecodedRecord]) -> delta.Value:
        if entry is None:
            return delta.Value(delta.OPAQUE, 0, 0, 0, [])
        try:
            return delta.decode_entry(entry, position, lambda at: self._history._find_value_at(at, name, seen))  # noqa: SLF001
        except (CheckpointCorruptionError, *delta.MALFORMED):
            if self._lost_at is None:
                raise
            return delta.Value(entry[0] & ~delta.BLOCK, entry[1], entry[2], entry[3], [self._lost_at, max(entry[2], 1)])

    def advance_to(self, entry: StoredCheckpoint, frames: Iterator[Frame]) -> delta.Table:
        """Go on to a checkpoint.

        Raises:
            CheckpointCorruptionError: it is not reached.
        """
        while self.checkpoint is None or self.checkpoint.offset < entry.offset:
            frame = next(frames, None)
            if frame is None or frame.offset > entry.offset:
                raise CheckpointCorruptionError(self._history.path, entry.offset, "it cannot be rebuilt")
            if frame.type == log.CHECKPOINT:
                try:
                    self.step(frame)
                except CheckpointCorruptionError:
                    if self._lost_at is None or frame.offset == entry.offset:
                        raise
        assert self.table is not None
        return self.table


def _unseen(packed: bytes) -> FrozenDict:
    """Stands for metadata that are only looked at for whether they can be read."""
    found = unpackb(packed, strict_map_key=False, unicode_errors="surrogatepass")
    if not isinstance(found, dict) and not (isinstance(found, list) and found[:1] == [_ODD_KEYS]):
        raise TypeError("metadata are no mapping")
    return FrozenDict()
