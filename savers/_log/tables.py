"""Reads the tables of keyframes, and the bytes of the values that they name.

A table is the packed state of one checkpoint: where the bytes of each value lie in the log. A writer
needs the last one, to name pieces of it in the next keyframe. Prune, verify and repair need all of
them. A reader of states needs the table of a keyframe only if it names bytes of earlier records.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Final

from graphkit.errors import CheckpointCorruptionError, CheckpointStorageError
from savers import _delta as delta
from savers._log import payloads
from savers._log.frame import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from savers._log.frame_log import AnyFrameLog

_PAIR: Final = 2
"""A keyframe lists a name and an entry for each value."""


class TableReader:
    """Reads tables of one log.

    Attributes:
        frames: the log.
    """

    def __init__(self, frames: AnyFrameLog, unpack: payloads.Unpack) -> None:
        self.frames = frames
        self._unpack = unpack

    @property
    def is_opaque(self) -> bool:
        """Whether states are the bytes of a StateSerializer."""
        return bool(self.frames.identity.is_opaque)

    # The bytes of values

    def read_bodies(self, values: Iterable[delta.Value], offset: int) -> list[bytes]:
        """Return the bytes of some values of a packed state, without their headers.

        Args:
            values: the values.
            offset: the offset of the checkpoint to which they belong, for errors.

        Raises:
            CheckpointCorruptionError: the bytes do not have the checksum of the value, or name
                pieces that cannot be.
            CheckpointStorageError: the machine has too little memory for the values.
        """
        path = self.frames.path
        try:
            return delta.read_bodies(values, self._read_ranges, self.frames.bytes.read_window)
        except MemoryError as error:
            raise explain_no_memory(path) from error
        except delta.Mismatch:
            raise CheckpointCorruptionError(path, offset, "the state's checksum is wrong") from None
        except delta.MALFORMED as error:
            raise CheckpointCorruptionError(path, offset, f"the state is malformed: {error}") from error

    def read_pieces(self, value: delta.Value, pieces: list[int]) -> bytes:
        """Return the bytes of some pieces of a value, unchecked.

        Raises:
            delta.Mismatch: they name bytes that cannot be.
        """
        return delta.read_pieces(value, pieces, self._read_ranges)

    def _read_ranges(self, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        end = self.frames.end
        if any(start < 0 or stop < start or stop > end for start, stop in ranges):
            raise delta.Mismatch
        return self.frames.records.read_ranges(ranges)

    # Tables

    def apply(self, table: delta.Table, record: payloads.DecodedRecord) -> None:
        """Apply the ops of a record to the table of the record before it.

        Raises:
            CheckpointCorruptionError: the ops are malformed.
        """
        try:
            table.apply(record.ops, record.data, record.start)
        except delta.MALFORMED as error:
            reason = f"the change is malformed: {error}"
            raise CheckpointCorruptionError(self.frames.path, record.checkpoint.offset, reason) from error

    def build(self, keyframe: payloads.DecodedRecord) -> delta.Table:
        """Return the table at a keyframe: that which it lists, with its own ops applied.

        Raises:
            CheckpointCorruptionError: the table is malformed, or an earlier keyframe that it names
                is damaged.
        """
        position = keyframe.checkpoint.offset
        table = self.list_entries(keyframe, lambda entry, name, seen: self.decode_entry(entry, name, position, seen))
        depths = {name: value.depth for name, value in table.values.items()}
        self.apply(table, keyframe)
        for name, value in table.values.items():
            if value.base is None:
                value.set_base(position, depths.get(name, 0))
        return table

    def list_entries(
        self,
        keyframe: payloads.DecodedRecord,
        decode: Callable[[Any, str, dict[int, payloads.DecodedRecord]], delta.Value],
    ) -> delta.Table:
        """Return the table that a keyframe lists, before its own ops.

        Args:
            keyframe: the record.
            decode: returns the value of an entry, given its name and the keyframes that were read
                so far, by offset.

        Raises:
            CheckpointCorruptionError: as for `build`.
        """
        position = keyframe.checkpoint.offset
        listed = keyframe.table or ()
        table = delta.Table(opaque=self.is_opaque)
        seen: dict[int, payloads.DecodedRecord] = {position: keyframe}
        try:
            table.names = list(listed[::_PAIR])
            for name, entry in zip(table.names, listed[1::_PAIR], strict=True):
                table.values[name] = decode(entry, name, seen)
        except (*delta.MALFORMED, RecursionError) as error:
            reason = f"the keyframe is malformed: {error}"
            raise CheckpointCorruptionError(self.frames.path, position, reason) from error
        return table

    def decode_entry(
        self, entry: Any, name: str, position: int, seen: dict[int, payloads.DecodedRecord]
    ) -> delta.Value:
        """Return the value that an entry of a keyframe's table describes.

        Args:
            entry: the entry; None if an op of the keyframe sets the key.
            name: the key.
            position: the offset of the keyframe.
            seen: keyframes that were decoded already, by their offsets; earlier ones are added.
        """
        if entry is None:
            return delta.Value(delta.OPAQUE, 0, 0, 0, [])
        return delta.decode_entry(entry, position, lambda base: self._find_value_at(base, name, seen))

    def _find_value_at(self, position: int, name: str, seen: dict[int, payloads.DecodedRecord]) -> delta.Value:
        """Return a value as the keyframe at an offset left it."""
        keyframe = seen.get(position)
        if keyframe is None:
            seen[position] = keyframe = self._read_keyframe(position)
        listed = keyframe.table or ()
        table = delta.Table(opaque=self.is_opaque)
        table.names = list(listed[::_PAIR])
        number = table.names.index(name)
        entry = listed[_PAIR * number + 1]
        value = self.decode_entry(entry, name, position, seen)
        depth = value.depth
        table.values[name] = value
        table.apply_to_key(name, keyframe.ops, keyframe.data, keyframe.start)
        value = table.values[name]
        if value.base is None:
            value.set_base(position, depth)
        return value

    def _read_keyframe(self, position: int) -> payloads.DecodedRecord:
        self.frames.bytes.expect_keyframes(position)
        frame = self.frames.records.read(position, self.frames.end)
        if frame.type != CHECKPOINT:
            reason = "a keyframe names it, and it is no checkpoint"
            raise CheckpointCorruptionError(self.frames.path, position, reason)
        return payloads.decode_checkpoint(self.frames.path, frame, None, self._unpack)


def explain_no_memory(path: str) -> CheckpointStorageError:
    """Return the error for a state that does not fit into memory.

    Forged compressed bytes may expand to 4 GiB; so may a state on a machine that is too small for it.
    """
    cause = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)
    return CheckpointStorageError(path, "read a state of", cause)
