"""Going through a log once, knowing the packed state at each checkpoint: how prune, verify and repair stay linear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgpack import ExtType, unpackb

from graphkit._values.frozen import FrozenDict
from graphkit.errors import CheckpointCorruptionError
from savers import _delta as delta
from savers._filesystem import log, payloads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from savers._filesystem.log import Frame
    from savers._filesystem.log_reader import LogReader
    from savers._filesystem.payloads import Decoded, StoredCheckpoint

_PAIR: Final = 2
_ODD_KEYS: Final = ExtType(0, b"\0")
"""The mark in front of a mapping of which msgpack cannot hold every key: one of them may have a lone surrogate."""


class Replay:
    """The packed state, from checkpoint record to checkpoint record."""

    def __init__(self, history: LogReader, *, lost_at: int | None = None, blind: bool = False) -> None:
        """Begin before the first record.

        Args:
            history: the log, open.
            lost_at: a position within the damage of a log that is; a value whose pieces nobody knows any more is said
                to have its bytes there. None: it is an error.
            blind: metadata are looked at and not made, so that no type needs to be registered.
        """
        self._history, self._lost_at = history, lost_at
        self._unpack: Any = _unseen if blind else history._codec.unpack  # noqa: SLF001 - of the same package
        self.entry: StoredCheckpoint | None = None
        """The last checkpoint record."""
        self.table: delta.Table | None = None
        """Its packed state. Changes as the walk goes on."""
        self.key = 0
        """Where the last keyframe is."""

    def step(self, frame: Frame) -> Decoded:
        """Take the next CHECKPOINT record.

        Raises:
            CheckpointCorruptionError: it does not follow from the record before it. The next keyframe may be taken.
        """
        path = self._history.path
        base, table = self.entry, self.table
        self.entry = self.table = None
        if not frame.flags & log.KEY and (base is None or table is None or frame.offset - frame.back != base.offset):
            raise CheckpointCorruptionError(path, frame.offset, "the record that it is relative to is lost")
        decoded = payloads.decode_checkpoint(path, frame, base, self._unpack)
        self.key = decoded.entry.key = frame.offset if frame.flags & log.KEY else self.key
        if decoded.table is not None:
            table = self._listed(decoded, decoded.table)
        assert table is not None
        self._history._apply(table, decoded)  # noqa: SLF001 - of the same package
        self.entry, self.table = decoded.entry, table
        return decoded

    def _listed(self, decoded: Decoded, listed: Any) -> delta.Table:
        history, position = self._history, decoded.entry.offset
        table = delta.Table(opaque=history._serializer is not None)  # noqa: SLF001 - of the same package
        seen: dict[int, Decoded] = {position: decoded}
        try:
            table.names = list(listed[::_PAIR])
            for name, entry in zip(table.names, listed[1::_PAIR], strict=True):
                table.values[name] = self._value(name, entry, position, seen)
        except (*delta.MALFORMED, RecursionError) as error:
            raise CheckpointCorruptionError(history.path, position, f"the keyframe makes no sense: {error}") from error
        return table

    def _value(self, name: str, entry: Any, position: int, seen: dict[int, Decoded]) -> delta.Value:
        if entry is None:
            return delta.Value(delta.OPAQUE, 0, 0, 0, [])
        try:
            return delta.value_of(entry, position, lambda at: self._history._earlier(at, name, seen))  # noqa: SLF001
        except (CheckpointCorruptionError, *delta.MALFORMED):
            if self._lost_at is None:
                raise
            return delta.Value(entry[0] & ~delta.BLOCK, entry[1], entry[2], entry[3], [self._lost_at, max(entry[2], 1)])

    def to(self, entry: StoredCheckpoint, frames: Iterator[Frame]) -> delta.Table:
        """Go on to a checkpoint.

        Raises:
            CheckpointCorruptionError: it is not reached.
        """
        while self.entry is None or self.entry.offset < entry.offset:
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


def frames_of(history: LogReader, start: int, end: int) -> Iterator[Frame]:
    """The good records of an open log between two positions, whatever is between them."""
    return log.good_frames(history.io, history.fd, history.fid, start, end)


def _unseen(packed: bytes) -> FrozenDict:
    """Stands for metadata that are only looked at for whether they can be read."""
    found = unpackb(packed, strict_map_key=False, unicode_errors="surrogatepass")
    if not isinstance(found, dict) and not (isinstance(found, list) and found[:1] == [_ODD_KEYS]):
        raise TypeError("metadata are no mapping")
    return FrozenDict()
