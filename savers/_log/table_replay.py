"""Reads a log once, forward, with the packed state at each checkpoint.

So the cost of prune, verify and repair is linear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgpack import ExtType, unpackb

from graphkit.errors import CheckpointCorruptionError
from graphkit.values import FrozenDict
from savers import _delta as delta
from savers._log import payloads
from savers._log.frame import CHECKPOINT, KEY, Frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from savers._log.log import AnyLog
    from savers._log.payloads import DecodedRecord
    from savers._log.stored_checkpoint import StoredCheckpoint

_ODD_KEYS: Final = ExtType(0, b"\0")
"""The mark in front of a mapping with keys that a msgpack map cannot hold, such as a str with a
lone surrogate."""


class TableReplay:
    """The packed state at one checkpoint of a log after another."""

    def __init__(self, log: AnyLog, *, lost_offset: int | None = None, skips_metadata: bool = False) -> None:
        """Begin before the first record.

        Args:
            log: the log, open.
            lost_offset: an offset inside the damaged region of the log. A value whose pieces are
                lost is reported to have its bytes there. None: lost pieces are an error.
            skips_metadata: check metadata without decoding them, so that no application type needs
                to be registered.
        """
        self._path = log.path
        self._records = log.frames.records
        self._tables = log.tables
        self._lost_offset = lost_offset
        self._unpack: Any = _check_metadata if skips_metadata else log.unpack
        self.checkpoint: StoredCheckpoint | None = None
        """The checkpoint of the last CHECKPOINT record."""
        self.table: delta.Table | None = None
        """Its packed state. The next step changes it."""
        self.keyframe_offset = 0
        """Where the last keyframe is."""

    def step(self, frame: Frame) -> DecodedRecord:
        """Apply the next CHECKPOINT record, opened.

        Raises:
            CheckpointCorruptionError: the record does not follow from the one before it. The replay
                can continue with the next keyframe.
        """
        path = self._path
        base, table = self.checkpoint, self.table
        self.checkpoint = None
        self.table = None
        is_keyframe = bool(frame.flags & KEY)
        if not is_keyframe:
            base_offset = frame.offset - frame.back
            if base is None or table is None or base.offset != base_offset:
                reason = "the record that it is relative to is lost"
                raise CheckpointCorruptionError(path, frame.offset, reason)
        decoded = payloads.decode_checkpoint(path, frame, base, self._unpack)
        if is_keyframe:
            self.keyframe_offset = frame.offset
        decoded.checkpoint.keyframe_offset = self.keyframe_offset
        if decoded.table is not None:
            table = self._tables.list_entries(decoded, self._decode_entry)
        assert table is not None
        self._tables.apply(table, decoded)
        self.checkpoint = decoded.checkpoint
        self.table = table
        return decoded

    def _decode_entry(self, entry: Any, name: str, seen: dict[int, DecodedRecord]) -> delta.Value:
        try:
            return self._tables.decode_entry(entry, name, self.keyframe_offset, seen)
        except (CheckpointCorruptionError, *delta.MALFORMED):
            if self._lost_offset is None:
                raise
            kind, count, length, crc = entry[0] & ~delta.BLOCK, entry[1], entry[2], entry[3]
            return delta.Value(kind, count, length, crc, [self._lost_offset, max(length, 1)])

    def advance_to(self, target: StoredCheckpoint, frames: Iterator[Frame]) -> delta.Table:
        """Apply records until a checkpoint is reached, and return its packed state.

        Args:
            target: the checkpoint.
            frames: the records that follow the last one applied, not opened.

        Raises:
            CheckpointCorruptionError: the checkpoint cannot be reached.
        """
        while self.checkpoint is None or self.checkpoint.offset < target.offset:
            frame = next(frames, None)
            if frame is None or frame.offset > target.offset:
                reason = "it cannot be rebuilt"
                raise CheckpointCorruptionError(self._path, target.offset, reason)
            if frame.type == CHECKPOINT:
                try:
                    self.step(self._records.open(frame))
                except CheckpointCorruptionError:
                    if self._lost_offset is None or frame.offset == target.offset:
                        raise
        assert self.table is not None
        return self.table


def _check_metadata(packed: bytes) -> FrozenDict:
    """Check that packed metadata are a mapping; return an empty mapping in their place.

    Raises:
        TypeError: they are not a mapping.
        ValueError: they are not msgpack.
    """
    metadata = unpackb(packed, strict_map_key=False, unicode_errors="surrogatepass")
    is_mapping = isinstance(metadata, dict)
    has_odd_keys = isinstance(metadata, list) and metadata[:1] == [_ODD_KEYS]
    if not is_mapping and not has_odd_keys:
        raise TypeError("metadata are not a mapping")
    return FrozenDict()
