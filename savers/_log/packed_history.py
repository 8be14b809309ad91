"""The states of a history, made from the records of their chains.

This is the one way to a state: of the latest checkpoint, of a past one, of all of them. A state is
first *packed*: the bytes of its values by key, each as the record has them that set it. States of
one chain share the values that did not change, and a value that only grew has its bytes once for all
of them. `StateDecoder` then unpacks values, again once for all states that share them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from graphkit.codec import MalformedDataError
from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from graphkit.values import PLAIN, PRIVATE, REMOVED, SET, FrozenDict, FrozenList, freeze, kind_of
from savers import _delta as delta
from savers._compression import expand
from savers._log.tables import explain_no_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphkit.abc import StateSerializer
    from graphkit.codec import Codec
    from savers._log.chains import Chain, Chains
    from savers._log.payloads import DecodedRecord
    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers._log.tables import TableReader

_MAX_KEPT: Final = 8 << 20
"""The most bytes of values that the states of one chain keep in memory."""


class GrowingValue:
    """A packed value whose bytes are the first ones of a longer value.

    A list that grows at each step has its bytes once for all states of a chain: the values share one
    `_GrowingBytes`, and each knows how many of them are its own. Only the longest of them may grow.
    """

    __slots__ = ("_bytes", "count", "crc", "kind", "length")

    def __init__(self, kind: int, count: int, length: int, crc: int, all_bytes: _GrowingBytes) -> None:
        self.kind = kind
        self.count = count
        self.length = length
        """The bytes without the header."""
        self.crc = crc
        """The checksum of these bytes."""
        self._bytes = all_bytes

    def grow(self, count: int, added: bytes, crc: int) -> GrowingValue:
        """Return the value with bytes added at the end. No other value may have grown from this one."""
        self._bytes.add(added)
        return GrowingValue(self.kind, count, self.length + len(added), crc, self._bytes)

    def join_behind(self, header: bytes) -> bytes:
        """Return the bytes of the value behind a header."""
        joined = self._bytes.join()
        if not header and self.length == len(joined):
            return joined
        return b"".join((header, memoryview(joined)[: self.length]))


class _GrowingBytes:
    """Bytes to which others are added, joined when they are first wanted."""

    __slots__ = ("_parts",)

    def __init__(self, first: bytes) -> None:
        self._parts = [first]

    def add(self, part: bytes) -> None:
        self._parts.append(part)

    def join(self) -> bytes:
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]


PackedState = dict[str, "bytes | GrowingValue"]
"""The values of a state by key: packed, with their headers."""


def read_body(value: bytes | GrowingValue) -> tuple[int, int, bytes]:
    """Return the kind, the count and the bytes of a packed value, without its header.

    Raises:
        IndexError, struct.error: its header is malformed.
    """
    if isinstance(value, GrowingValue):
        return value.kind, value.count, value.join_behind(b"")
    kind, count, skip = delta.find_header(value, opaque=False)
    return kind, count, value[skip:]


class PackedHistory:
    """The packed states of one log."""

    def __init__(self, chains: Chains, tables: TableReader) -> None:
        self._chains = chains
        self._tables = tables

    def read(self, stored: StoredCheckpoint) -> PackedState:
        """Return the packed state of a checkpoint; the caller must not change it.

        The cost is that of the records from its keyframe on, once for all states of a chain if they
        are read one after the other.

        Raises:
            CheckpointCorruptionError: its bytes are damaged.
            CheckpointStorageError: the machine has too little memory for the state.
        """
        path = self._tables.frames.path
        # The chain keeps its replay, so that the next state of the same chain costs only the records between
        # the two. An exception may leave a state half made: then the next caller begins again.
        chain = self._chains.read(stored.keyframe_offset, stored.end)
        number = chain.find_number(stored.offset)
        if number is None:
            raise CheckpointCorruptionError(path, stored.offset, "its keyframe does not lead to it")
        try:
            if chain.replay is None or not chain.replay.reaches(number):
                chain.replay = Replay(self._tables, chain)
            return chain.replay.advance_to(number)
        except BaseException as error:
            chain.replay = None
            if isinstance(error, MemoryError):
                raise explain_no_memory(path) from error
            raise


class PackedTable(delta.Interpreter["bytes | GrowingValue"]):
    """The packed state of one checkpoint as the bytes of its values."""

    __slots__ = ("size",)

    def __init__(self, *, opaque: bool) -> None:
        super().__init__(opaque=opaque)
        self.size = 0
        """About how many bytes of memory the values have taken in addition to those of the records."""

    def _set(self, data: bytes, begin: int, end: int, position: int) -> bytes | GrowingValue:  # noqa: ARG002 - for tables of pieces
        if self.opaque:
            return _start_growing(delta.OPAQUE, 0, data[begin:end])
        return data[begin:end]

    def _append(self, old: bytes | GrowingValue, count: int, added: bytes, position: int) -> GrowingValue:  # noqa: ARG002
        growing = _as_growing(old)
        return growing.grow(growing.count + count, added, crc32(added, growing.crc))

    def _replace(
        self,
        op: int,
        old: bytes | GrowingValue,
        arguments: Sequence[int],
        added: bytes,
        position: int,  # noqa: ARG002
    ) -> GrowingValue:
        count, prefix, gone, crc = arguments
        if op == delta.SPLICE and not gone:
            growing = _as_growing(old)
            if growing.length == prefix:
                if crc32(added, growing.crc) != crc:
                    raise delta.Mismatch
                return growing.grow(count, added, crc)
        kind, _, body = read_body(old)
        rest = body[prefix + gone :]
        parts = (body[:prefix], added, rest) if op == delta.SPLICE else (body[:prefix], rest, added)
        return self._check(kind, count, crc, b"".join(parts))

    def _expand(self, arguments: Sequence[int], packed: bytes, position: int) -> GrowingValue:  # noqa: ARG002
        kind, count, size, crc, method = arguments
        delta.check_size(size)
        return self._check(kind, count, crc, expand(method, packed, size))

    def _check(self, kind: int, count: int, crc: int, body: bytes) -> GrowingValue:
        if crc32(body) != crc:
            raise delta.Mismatch
        self.size += len(body)
        return GrowingValue(kind, count, len(body), crc, _GrowingBytes(body))


def _start_growing(kind: int, count: int, body: bytes) -> GrowingValue:
    return GrowingValue(kind, count, len(body), crc32(body), _GrowingBytes(body))


def _as_growing(value: bytes | GrowingValue) -> GrowingValue:
    if isinstance(value, GrowingValue):
        return value
    return _start_growing(*read_body(value))


class Replay:
    """The packed states of a chain, made one after the other."""

    def __init__(self, tables: TableReader, chain: Chain) -> None:
        self._tables = tables
        self._chain = chain
        self._number = -1
        """The number of the record that was applied last."""
        self._table = PackedTable(opaque=tables.is_opaque)
        """The state there."""
        self._states: list[PackedState] | None = []
        """All states until then; None once they would take too much memory."""

    @property
    def size(self) -> int:
        """About how many bytes of memory the values take in addition to those of the records."""
        return self._table.size

    def reaches(self, number: int) -> bool:
        """Return whether the state at a record can be had without beginning again."""
        return self._states is not None or number >= self._number

    def advance_to(self, number: int) -> PackedState:
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
        # The bytes of long values are read once, here. A change in the chain adds to them in memory. A short value gets
        # the form that a SET gives it, which takes less memory; an opaque one has no header to be put before it.
        named = self._tables.build(keyframe)
        bodies = self._tables.read_bodies(named.values.values(), keyframe.checkpoint.offset)
        for (name, value), body in zip(named.values.items(), bodies, strict=True):
            if value.kind != delta.OPAQUE and value.length <= delta.INLINE_LENGTH:
                table.values[name] = delta.pack_header(value.kind, value.count) + body
            else:
                table.values[name] = GrowingValue(value.kind, value.count, value.length, value.crc, _GrowingBytes(body))
                table.size += value.length
        table.names = named.names
        self._note_step()

    def _step(self, record: DecodedRecord) -> None:
        # Callers have the state before the step, which must not change.
        self._table.values = self._table.values.copy()
        self._tables.apply(self._table, record)
        self._note_step()

    def _note_step(self) -> None:
        self._number += 1
        if self._states is not None:
            self._states.append(self._table.values)
            if self._table.size > _MAX_KEPT:
                self._states = None


class _DecodedValue(NamedTuple):
    """A value of the state that was decoded last."""

    packed: bytes | GrowingValue
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
        self._serializer = serializer
        self._known: dict[str, _DecodedValue] = {}
        self._names: list[str] = []
        """The keys of the state that was decoded last."""
        self.last: FrozenDict | None = None
        """The state that was decoded last."""
        self.size = 0
        """About how many bytes of memory its lists take."""

    def forget(self) -> None:
        """Drop the values that are kept."""
        self._known = {}
        self._names = []
        self.last = None
        self.size = 0

    def decode(self, packed: PackedState, offset: int) -> FrozenDict:
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

    def _decode(self, packed: PackedState) -> FrozenDict:
        if self._serializer is not None:
            (value,) = packed.values()
            _, _, body = read_body(value)
            return FrozenDict(freeze(dict(self._serializer.loads(body))))
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
        self._names = list(packed)
        self.size = size
        return state

    def _decode_value(self, name: str, value: bytes | GrowingValue, known: _DecodedValue | None) -> _DecodedValue:
        unpack = self._codec.unpack
        if not isinstance(value, GrowingValue):
            decoded = unpack(value, name)
            if type(decoded) is not FrozenList:
                return _DecodedValue(value, b"", decoded)
            _, _, body = read_body(value)
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

    def decode_next(self, packed: PackedState, offset: int) -> dict[str, int] | None:
        """Decode the state that follows the last one; return what changed, as in `Changes.ops`.

        None if that is not known. The state is `last`. Raises the same errors as `decode`.
        """
        before = self._known
        names = self._names
        is_first = self.last is None
        self.decode(packed, offset)
        if self._serializer is not None:
            return None
        if is_first:
            return {}
        ops: dict[str, int] = {}
        for name, value in packed.items():
            known = before.get(name)
            if known is not None and known.packed is value:
                continue
            ops[name] = SET
            if known is not None and self._has_grown(known, name):
                ops[name] = len(known.decoded)
        for name in names:
            if name not in packed:
                ops[name] = REMOVED
        return ops

    def _has_grown(self, known: _DecodedValue, name: str) -> bool:
        """Return whether a list of the last state begins with the items of the one before it."""
        read = self._known.get(name)
        if read is None or type(read.decoded) is not FrozenList or type(known.decoded) is not FrozenList:
            return False
        return len(read.decoded) > len(known.decoded) and read.body.startswith(known.body)
