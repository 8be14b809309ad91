"""The operations of a record: what a writer drafts, and how it is encoded.

docs/format.md has the table of ops. A record has one flat array for all its ops: op, key,
arguments, op, key, ... The bytes that an op adds are not in the array but in the data of the
record; the last argument is their length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from savers._delta.values import split_value

SET: Final = 0
"""[SET, key, length]: a new value, including its header, in the next `length` bytes of the data."""
APPEND: Final = 1
"""[APPEND, key, count, length]: `count` more elements."""
SPLICE: Final = 2
"""[SPLICE, key, count, prefix, removed, crc, length]: after `prefix` bytes, new bytes replace
`removed` bytes."""
DEL: Final = 3
"""[DEL, key]: the key is gone."""
PACKED: Final = 4
"""[PACKED, key, kind, count, size, crc, method, length]: a new value of `size` bytes, compressed
to `length` bytes."""
DROP: Final = 5
"""[DROP, key, count, prefix, dropped, crc, length]: after `prefix` bytes, `dropped` bytes are gone;
the new bytes follow at the end."""

WIDTHS: Final = {SET: 3, APPEND: 4, SPLICE: 7, DEL: 2, PACKED: 8, DROP: 7}
"""How many elements of the array an op takes."""
SPLICE_COST: Final = 24
"""About how many bytes a splice takes in addition to its new bytes."""
_FEW_CHANGES: Final = 4


class Operation(Protocol):
    """What changes the value of one key.

    The classes are not frozen: a put makes several, in 160 ns each; frozen dataclasses take 300 ns.
    """

    data: bytes
    """The bytes that the op adds to the data of the record."""

    def encode(self, ops: list[Any], key: int | str) -> None:
        """Append the op to an array."""
        ...


@dataclass(slots=True)
class Append:
    """Append elements to a list; op APPEND."""

    count: int
    """How many elements."""
    data: bytes

    def encode(self, ops: list[Any], key: int | str) -> None:
        ops += (APPEND, key, self.count, len(self.data))


@dataclass(slots=True, kw_only=True)
class Splice:
    """Replace some bytes of a value; op SPLICE."""

    count: int
    """The count of the new value."""
    prefix: int
    """How many bytes stay in front."""
    removed: int
    """How many bytes after these are replaced."""
    crc: int
    """The checksum of the new value."""
    data: bytes

    def encode(self, ops: list[Any], key: int | str) -> None:
        ops += (SPLICE, key, self.count, self.prefix, self.removed, self.crc, len(self.data))


@dataclass(slots=True, kw_only=True)
class Drop:
    """Move a window: drop some bytes of a value and add others at its end; op DROP."""

    count: int
    """The count of the new value."""
    prefix: int
    """How many bytes stay in front."""
    dropped: int
    """How many bytes after these are gone."""
    crc: int
    """The checksum of the new value."""
    data: bytes

    def encode(self, ops: list[Any], key: int | str) -> None:
        ops += (DROP, key, self.count, self.prefix, self.dropped, self.crc, len(self.data))


@dataclass(slots=True, kw_only=True)
class SetCompressed:
    """Set a new value whose bytes are compressed; op PACKED."""

    kind: int
    count: int
    size: int
    """How many bytes the value has when expanded, without its header."""
    crc: int
    """The checksum of these bytes."""
    method: int
    data: bytes
    """The compressed bytes."""

    def encode(self, ops: list[Any], key: int | str) -> None:
        ops += (
            PACKED,
            key,
            self.kind,
            self.count,
            self.size,
            self.crc,
            self.method,
            len(self.data),
        )


@dataclass(slots=True)
class Delete:
    """Delete the key; op DEL."""

    data: bytes = b""

    def encode(self, ops: list[Any], key: int | str) -> None:
        ops += (DEL, key)


DELETE: Final = Delete()

Draft = dict[str, "Operation | bytes"]
"""What changes, by key. Bytes are a new value, packed, with its header: op SET, which is the usual one."""


def is_set(op: Operation | bytes | None) -> bool:
    """Return whether an operation sets a new value, whatever the old one is."""
    return isinstance(op, bytes | SetCompressed)


def get_data(op: Operation | bytes) -> bytes:
    """Return the bytes that an operation adds to the data of the record."""
    return op if isinstance(op, bytes) else op.data


def encode_draft(draft: Mapping[str, Operation | bytes], names: Sequence[str]) -> tuple[list[Any], bytes]:
    """Return a draft as the ops and the data of a record.

    Args:
        draft: what changes.
        names: the keys of the state before the record, in their order.
    """
    ops: list[Any] = []
    data: list[bytes] = []
    # A state has few keys, and fewer of them change: searching for one is faster than building a
    # dict of all keys.
    positions: dict[str, int] | None = None
    if len(draft) > _FEW_CHANGES:
        positions = {name: position for position, name in enumerate(names)}
    for name, op in draft.items():
        key: int | str = name
        if positions is not None:
            key = positions.get(name, name)
        elif name in names:
            key = names.index(name)
        if isinstance(op, bytes):
            ops += (SET, key, len(op))
            data.append(op)
        else:
            op.encode(ops, key)
            data.append(op.data)
    return ops, data[0] if len(data) == 1 else b"".join(data)


def compress(
    packed: bytes,
    method: int,
    shorter: Callable[[memoryview], bytes | None],
    *,
    opaque: bool,
) -> Operation | bytes:
    """Return a packed value as a SetCompressed, or as it is if its bytes do not become shorter.

    Args:
        packed: the value, with its header.
        method: the number of the method in the record.
        shorter: compresses bytes; None if they do not become shorter.
        opaque: whether the value is the bytes of a StateSerializer.
    """
    value, body = split_value(packed, opaque=opaque)
    block = shorter(body)
    if block is None:
        return packed
    return SetCompressed(
        kind=value.kind,
        count=value.count,
        size=value.length,
        crc=value.crc,
        method=method,
        data=block,
    )
