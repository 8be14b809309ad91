"""The states of a history, made from the records of their chains.

This is the one way to a state: of the latest checkpoint, of a past one, of all of them. A state is
first *packed*: the bytes of its values by key, each as the record has them that set it. States of
one chain share the values that did not change, and a value that only grew has its bytes once for all
of them. `StateDecoder` then unpacks values, again once for all states that share them.

A *table* says where the bytes of each value lie in the log, instead of what they are. A writer needs
the last one, to name pieces of it in the next keyframe. Prune, verify and repair need all of them. A
reader of states needs the table of a keyframe only if it names bytes of earlier records.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgpack import ExtType, unpackb

from graphkit.errors import CheckpointCorruptionError, CheckpointerError, CheckpointStorageError
from graphkit.saver_kit import PLAIN, PRIVATE, REMOVED, SET, FrozenDict, FrozenList, MalformedDataError, freeze, kind_of
from savers import _delta as delta
from savers._log import payloads
from savers._log.frame import CHECKPOINT, KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from graphkit.abc import StateSerializer
    from graphkit.saver_kit import Codec
    from savers._log.frame import Frame
    from savers._log.frame_log import AnyFrameLog
    from savers._log.history import Chain, Chains
    from savers._log.payloads import DecodedRecord
    from savers._log.stored_checkpoint import StoredCheckpoint


_ODD_KEYS: Final = ExtType(0, b"\0")
"""The mark in front of a mapping with keys that a msgpack map cannot hold, such as a str with a
lone surrogate."""


class PackedHistory:
    """The packed states of one log: their tables, and the bytes of their values.

    Attributes:
        frames: the log.
        unpack: decodes packed metadata.
    """

    def __init__(self, chains: Chains, frames: AnyFrameLog, unpack: payloads.Unpack) -> None:
        self._chains = chains
        self.frames = frames
        self.unpack = unpack

    @property
    def is_opaque(self) -> bool:
        """Whether states are the bytes of a StateSerializer."""
        return bool(self.frames.identity.is_opaque)

    def read(self, stored: StoredCheckpoint) -> delta.PackedState:
        """Return the packed state of a checkpoint; the caller must not change it.

        The cost is that of the records from its keyframe on, once for all states of a chain if they
        are read one after the other.

        Raises:
            CheckpointCorruptionError: its bytes are damaged.
            CheckpointStorageError: the machine has too little memory for the state.
        """
        path = self.frames.path
        # The chain keeps its replay, so that the next state of the same chain costs only the records between
        # the two. An exception may leave a state half made: then the next caller begins again.
        chain = self._chains.read(stored.keyframe_offset, stored.end)
        number = chain.find_number(stored.offset)
        if number is None:
            raise CheckpointCorruptionError(path, stored.offset, "its keyframe does not lead to it")
        try:
            if chain.replay is None or not chain.replay.reaches(number):
                chain.replay = Replay(self, chain)
            return chain.replay.advance_to(number)
        except BaseException as error:
            chain.replay = None
            if isinstance(error, MemoryError):
                raise explain_no_memory(path) from error
            raise

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

    def apply(self, table: delta.Interpreter[Any], record: payloads.DecodedRecord) -> None:
        """Apply the ops of a record to the table of the record before it.

        Raises:
            CheckpointCorruptionError: the ops are malformed, or a value does not have its checksum.
        """
        try:
            table.apply(record.ops, record.data, record.start)
        except delta.Mismatch:
            reason = "the state's checksum is wrong"
            raise CheckpointCorruptionError(self.frames.path, record.checkpoint.offset, reason) from None
        except delta.MALFORMED as error:
            reason = f"the change is malformed: {error}"
            raise CheckpointCorruptionError(self.frames.path, record.checkpoint.offset, reason) from error

    def build(self, keyframe: DecodedRecord, lost_offset: int | None = None) -> delta.Table:
        """Return the table at a keyframe: that which it lists, with its own ops applied.

        Args:
            keyframe: the record.
            lost_offset: see TableReplay.

        Raises:
            CheckpointCorruptionError: the table is malformed, or an earlier keyframe that it names
                is damaged.
        """
        position = keyframe.checkpoint.offset
        table = delta.Table(opaque=self.is_opaque)
        seen = {position: keyframe}
        try:
            table.names = keyframe.names
            for name, entry in zip(table.names, keyframe.entries, strict=True):
                try:
                    value = self._decode_entry(entry, name, position, seen)
                except (CheckpointCorruptionError, *delta.MALFORMED):
                    if lost_offset is None:
                        raise
                    kind = delta.kind_in_entry(entry)
                    count, length, crc = entry[1:4]
                    value = delta.Value(kind, count, length, crc, [lost_offset, max(length, 1)])
                table.values[name] = value
        except (*delta.MALFORMED, RecursionError) as error:
            reason = f"the keyframe is malformed: {error}"
            raise CheckpointCorruptionError(self.frames.path, position, reason) from error
        # This keyframe is the base of each value of which it lists pieces: all of them, or those that follow the pieces
        # of an earlier base, which a reader then needs, too. `depth` counts these. It is taken before the ops, because
        # an op may make a new value of the same pieces. A value of which it lists no piece keeps its base.
        depths = {name: value.depth for name, value in table.values.items()}
        self.apply(table, keyframe)
        for name, value in table.values.items():
            if value.base is None:
                value.set_base(position, depths.get(name, 0))
        return table

    def _decode_entry(self, entry: Any, name: str, position: int, seen: dict[int, DecodedRecord]) -> delta.Value:
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

    def _find_value_at(self, position: int, name: str, seen: dict[int, DecodedRecord]) -> delta.Value:
        """Return a value as the keyframe at an offset left it."""
        keyframe = seen.get(position)
        if keyframe is None:
            self.frames.bytes.expect_keyframes(position)
            frame = self.frames.records.read(position, self.frames.end)
            if frame.type != CHECKPOINT:
                reason = "a keyframe names it, and it is no checkpoint"
                raise CheckpointCorruptionError(self.frames.path, position, reason)
            keyframe = payloads.decode_checkpoint(self.frames.path, frame, None, self.unpack)
            seen[position] = keyframe
        table = delta.Table(opaque=self.is_opaque)
        table.names = keyframe.names
        entry = keyframe.entries[table.names.index(name)]
        value = self._decode_entry(entry, name, position, seen)
        depth = value.depth
        table.values[name] = value
        table.apply(keyframe.ops, keyframe.data, keyframe.start, only=name)
        value = table.values[name]
        if value.base is None:
            value.set_base(position, depth)
        return value


class TableReplay:
    """The packed state at one checkpoint of a log after another: the cost of reading all is linear."""

    def __init__(self, packed: PackedHistory, *, lost_offset: int | None = None, skips_metadata: bool = False) -> None:
        """Begin before the first record.

        Args:
            packed: those of the log, which is open.
            lost_offset: an offset inside the damaged region of the log. A value whose pieces are
                lost is reported to have its bytes there. None: lost pieces are an error.
            skips_metadata: check metadata without decoding them, so that no application type needs
                to be registered.
        """
        self._path = packed.frames.path
        self._packed = packed
        self._lost_offset = lost_offset
        self._unpack: Any = _check_metadata if skips_metadata else packed.unpack
        self.checkpoint: StoredCheckpoint | None = None
        """The checkpoint of the last CHECKPOINT record."""
        self.table: delta.Table | None = None
        """Its packed state. The next step changes it."""
        self.keyframe_offset = 0
        """Where the last keyframe is."""

    def step(self, frame: Frame) -> payloads.DecodedRecord:
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
            table = self._packed.build(decoded, self._lost_offset)
        else:
            assert table is not None
            self._packed.apply(table, decoded)
        decoded.checkpoint.keyframe_offset = self.keyframe_offset
        self.checkpoint = decoded.checkpoint
        self.table = table
        return decoded

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
                    self.step(self._packed.frames.records.open(frame))
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


def explain_no_memory(path: str) -> CheckpointStorageError:
    """Return the error for a state that does not fit into memory.

    Forged compressed bytes may expand to 4 GiB; so may a state on a machine that is too small for it.
    """
    cause = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)
    return CheckpointStorageError(path, "read a state of", cause)


_MAX_KEPT: Final = 8 << 20
"""The most bytes of values that the states of one chain keep in memory."""


class Replay:
    """The packed states of a chain, made one after the other."""

    def __init__(self, packed: PackedHistory, chain: Chain) -> None:
        self._packed = packed
        self._chain = chain
        self._number = -1
        """The number of the record that was applied last."""
        self._table = delta.PackedTable(opaque=packed.is_opaque)
        """The state there."""
        self._states: list[delta.PackedState] | None = []
        """All states until then; None once they would take too much memory."""

    @property
    def size(self) -> int:
        """About how many bytes of memory the values take in addition to those of the records."""
        return self._table.size

    def reaches(self, number: int) -> bool:
        """Return whether the state at a record can be had without beginning again."""
        return self._states is not None or number >= self._number

    def advance_to(self, number: int) -> delta.PackedState:
        """Return the state at a record.

        Raises:
            CheckpointCorruptionError: a record on the way is malformed, or bytes that it names are
                damaged.
        """
        if self._states is not None and number < self._number:
            return self._states[number]
        records = self._chain.records
        if self._number < 0:
            self._begin(records[0])
        for record in records[self._number + 1 : number + 1]:
            self._step(record)
        return self._table.values

    def _begin(self, keyframe: DecodedRecord) -> None:
        """Make the state at the keyframe."""
        table = self._table
        if not any(keyframe.entries):
            # Its own ops set all values.
            table.names = keyframe.names
            table.values = dict.fromkeys(table.names, b"")
            self._step(keyframe)
            return
        # The bytes of long values are read once, here. A change in the chain adds to them in memory.
        named = self._packed.build(keyframe)
        bodies = self._packed.read_bodies(named.values.values(), keyframe.checkpoint.offset)
        for (name, value), body in zip(named.values.items(), bodies, strict=True):
            table.set_body(name, value, body)
        table.names = named.names
        self._note_step()

    def _step(self, record: DecodedRecord) -> None:
        # Callers have the state before the step, which must not change.
        self._table.values = self._table.values.copy()
        self._packed.apply(self._table, record)
        self._note_step()

    def _note_step(self) -> None:
        self._number += 1
        if self._states is not None:
            self._states.append(self._table.values)
            if self._table.size > _MAX_KEPT:
                self._states = None


class _DecodedValue(NamedTuple):
    """A value of the state that was decoded last."""

    packed: bytes | delta.GrowingValue
    body: bytes
    """The bytes of a list; of another value, nothing."""
    decoded: Any


class StateDecoder:
    """Decodes the packed states of one log.

    It keeps the values of the state that it decoded last. A value that is the same in the next state
    is not decoded again, and of a list that is longer or shorter, only the items that differ.
    """

    def __init__(self, path: str, codec: Codec, serializer: StateSerializer | None) -> None:
        self._path = path
        self._codec = codec
        self.serializer = serializer
        self.forget()

    def make_empty(self) -> StateDecoder:
        """Return a decoder for a caller that reads the states one after another."""
        return StateDecoder(self._path, self._codec, self.serializer)

    def forget(self) -> None:
        """Drop the values that are kept."""
        self._known: dict[str, _DecodedValue] = {}
        self.last: FrozenDict | None = None
        """The state that was decoded last."""
        self.size = 0
        """About how many bytes of memory its lists take."""

    def decode(self, packed: delta.PackedState, offset: int) -> FrozenDict:
        """Return a state.

        Args:
            packed: its packed form.
            offset: the offset of its record, for errors.

        Raises:
            CheckpointCorruptionError: a value is malformed.
            CheckpointSerializationError: a value has a type that is not registered.
        """
        try:
            self.last = self._decode(packed)
        except CheckpointerError:
            raise
        except MemoryError as error:
            raise explain_no_memory(self._path) from error
        except (MalformedDataError, *delta.MALFORMED) as error:
            reason = f"the state is malformed: {error}"
            raise CheckpointCorruptionError(self._path, offset, reason) from error
        return self.last

    def _decode(self, packed: delta.PackedState) -> FrozenDict:
        if self.serializer is not None:
            (value,) = packed.values()
            _, _, body = delta.read_body(value)
            return FrozenDict(freeze(dict(self.serializer.loads(body))))
        state = FrozenDict()
        known: dict[str, _DecodedValue] = {}
        size = 0
        # The same packed object is the same value: states of one chain share those that did not change. Objects of the
        # application are decoded for each state, because a caller may change them.
        for name, value in packed.items():
            read = self._known.get(name)
            if read is None or read.packed is not value:
                read = self._decode_value(name, value, read)
            if kind_of(read.decoded) != PRIVATE:
                known[name] = read
                size += len(read.body)
            dict.__setitem__(state, name, read.decoded)  # A FrozenDict refuses assignments.
        self._known = known
        self.size = size
        return state

    def _decode_value(self, name: str, value: bytes | delta.GrowingValue, known: _DecodedValue | None) -> _DecodedValue:
        unpack = self._codec.unpack
        if not isinstance(value, delta.GrowingValue):
            decoded = unpack(value, name)
            if type(decoded) is not FrozenList:
                return _DecodedValue(value, b"", decoded)
            _, _, body = delta.read_body(value)
            return _DecodedValue(value, body, decoded)
        if value.kind == delta.BIN and value.count == value.length:
            # Nothing is copied: LangGraph's states consist of bytes.
            return _DecodedValue(value, b"", value.join_behind(b""))
        header = delta.pack_header(value.kind, value.count)
        if value.kind != delta.LIST:
            return _DecodedValue(value, b"", unpack(value.join_behind(header), name))
        body = value.join_behind(b"")
        items = None
        if known is not None:
            items = self._share_items(known, value.count, body, name)
        if items is None:
            items = unpack(header + body, name)
        return _DecodedValue(value, body, items)

    def _share_items(self, known: _DecodedValue, count: int, body: bytes, name: str) -> FrozenList | None:
        """Return a list by the items of one that was decoded before; None if neither continues the other.

        Of 3,000 messages, comparing their bytes takes a tenth of the time of unpacking them.
        """
        # The elements of a list are packed one after the other, so that a list begins with another one if its bytes
        # begin with the other's bytes. States are read forward (a listing) or backward (a walk): both are handled.
        old = known.decoded
        # A tuple, a set and others are packed as lists, too, with a mark in front.
        if type(old) is not FrozenList:
            return None
        if count <= len(old) and known.body.startswith(body):
            items = FrozenList(old[:count])
            if old.kind == PLAIN:
                items.kind = PLAIN
            return items
        if count <= len(old) or not body.startswith(known.body):
            return None
        header = delta.pack_header(delta.LIST, count - len(old))
        added = self._codec.unpack(header + body[len(known.body) :], name)
        if type(added) is not FrozenList:
            return None
        grown: FrozenList = old + added
        grown.base = None  # It enters a state, and must not keep the list before it alive.
        return grown

    def decode_next(self, packed: delta.PackedState, offset: int) -> dict[str, int] | None:
        """Decode the state that follows the last one; return what changed, as in `Changes.ops`.

        None if that is not known. The state is `last`. Raises the same errors as `decode`.
        """
        before = self._known
        last = self.last
        self.decode(packed, offset)
        if self.serializer is not None:
            return None
        if last is None:
            return {}
        ops: dict[str, int] = {}
        for name, value in packed.items():
            known = before.get(name)
            if known is not None and known.packed is value:
                continue
            ops[name] = SET
            read = self._known.get(name)
            if known is None or read is None:
                continue
            # A list that begins with the items of the one before it.
            are_lists = type(read.decoded) is FrozenList and type(known.decoded) is FrozenList
            if are_lists and len(read.decoded) > len(known.decoded) and read.body.startswith(known.body):
                ops[name] = len(known.decoded)
        for name in last:
            if name not in packed:
                ops[name] = REMOVED
        return ops
