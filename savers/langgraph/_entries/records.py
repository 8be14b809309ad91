"""The changes in the records of LangGraph's store and cache. docs/format.md specifies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple
from zlib import crc32

import ormsgpack

from graphkit.errors import CheckpointCorruptionError, CheckpointSerializationError
from savers._log.frame import FRAME_SIZE

Namespace = tuple[str, ...]

_PUT: Final = 0
_CLEAR: Final = 3
_LENGTH: Final = 9
"""The position of the length in a PUT."""
KEPT_CONTENT: Final = 4096
"""A longer content is not kept in memory, but read from the file each time."""
_BATCH_SIZE: Final = 1 << 18
"""About how many bytes of contents a record of a rewritten log has."""
_ENTRY_OVERHEAD: Final = 64
"""About how many bytes a PUT takes beside its names and its content."""


class Put(NamedTuple):
    """An entry has this content now: what a writer stores."""

    namespace: Namespace
    key: str
    created: int
    """Microseconds since 1970, as all times."""
    updated: int
    expires: int | None
    ttl: float | None
    """By how many minutes a read postpones the expiry."""
    about: Any
    """The store: path and dimensions of each vector, or None. The cache: the type of the value."""
    value: bytes
    vectors: bytes = b""
    """The store: the bytes of the vectors. The content of the entry is the value, and then these."""


_get_fields: Final = attrgetter(*Put._fields[:-2])
"""Returns what an Entry has in common with a Put."""


class Entry:
    """An entry as a reader keeps it: what a Put says of it, and where the content is."""

    __slots__ = (*Put._fields[:-2], "value_length", "length", "crc", "content", "offset", "order")

    def __init__(self, fields: Sequence[Any], offset: int, content: bytes) -> None:
        """Take the fields of a change.

        Args:
            fields: a PUT as it is stored.
            offset: where the content begins in the file.
            content: the content. A long one is not kept.
        """
        # One assignment, because it is most of what opening a log takes: 0.4 us for each entry.
        (
            _, namespace, self.key, self.created, self.updated, self.expires, self.ttl, self.about,
            self.value_length, self.length, self.crc,
        ) = fields  # fmt: skip
        self.namespace: Namespace = tuple(namespace)
        self.offset = offset
        self.content = content if len(content) <= KEPT_CONTENT else None
        """None if it must be read from the file."""
        self.order = 0
        """A number that is greater than that of each entry that was stored earlier."""

    @property
    def size(self) -> int:
        """About how many bytes the entry takes in a rewritten log."""
        return int(self.length + len(self.key) + sum(map(len, self.namespace)) + _ENTRY_OVERHEAD)

    def has_expired(self, now: int) -> bool:
        """Return whether the entry has expired.

        Args:
            now: microseconds since 1970.
        """
        return self.expires is not None and self.expires <= now


class Delete(NamedTuple):
    """An entry is removed."""

    namespace: Namespace
    key: str


class Touch(NamedTuple):
    """An entry expires at another time."""

    namespace: Namespace
    key: str
    expires: int


class Clear(NamedTuple):
    """All entries of a namespace are removed; None: all entries."""

    namespace: Namespace | None


EntryChange = Put | Delete | Touch | Clear
"""What a writer stores."""
ReadChange = Entry | Delete | Touch | Clear
"""What a reader finds."""
_OTHERS: Final[Mapping[int, Callable[..., Delete | Touch | Clear]]] = {1: Delete, 2: Touch, _CLEAR: Clear}
_KINDS: Final = {type_: kind for kind, type_ in _OTHERS.items()}


def make_batches(entries: Iterable[Entry], read_content: Callable[[Entry], bytes]) -> Iterator[list[EntryChange]]:
    """Yield the changes that store entries again, in batches for one record each."""
    batch: list[EntryChange] = []
    size = 0
    for entry in entries:
        content = read_content(entry)
        value, vectors = content[: entry.value_length], content[entry.value_length :]
        batch.append(Put._make((*_get_fields(entry), value, vectors)))
        size += entry.size
        if size >= _BATCH_SIZE:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def pack_changes(changes: Sequence[EntryChange]) -> bytes:
    """Return the payload of a record.

    Raises:
        CheckpointSerializationError: a key or a label cannot be stored.
    """
    rows: list[Any] = []
    contents: list[bytes] = []
    for change in changes:
        if isinstance(change, Put):
            *fields, value, vectors = change
            content = value + vectors
            rows.append((_PUT, *fields, len(value), len(content), crc32(content)))
            contents.append(content)
        else:
            rows.append((_KINDS[type(change)], *change))
    rows.append(b"".join(contents))
    try:
        return ormsgpack.packb(rows)
    except TypeError as error:
        for change in changes:
            _check_names(change)
        raise CheckpointSerializationError("", "record", str(error)) from error


def _check_names(change: EntryChange) -> None:
    """Refuse a namespace or a key that is not text that UTF-8 can hold."""
    for name in _list_names(change):
        try:
            ormsgpack.packb(name)
        except TypeError as error:
            where = f"the key {name!r} of {change.namespace!r}"
            raise CheckpointSerializationError(where, type(name).__name__, str(error)) from error


def _list_names(change: EntryChange | ReadChange) -> list[Any]:
    """Return the labels of the namespace, and the key, if there is one."""
    labels = change.namespace or ()
    return [*labels] if isinstance(change, Clear) else [*labels, change.key]


def unpack_changes(path: str, offset: int, payload: bytes) -> list[ReadChange]:
    """Return the changes of a record.

    Args:
        path: the log, for errors.
        offset: where the record begins.
        payload: its payload.

    Raises:
        CheckpointCorruptionError: the payload does not hold changes, although its checksum is right.
    """
    try:
        return _unpack_changes(payload, offset + FRAME_SIZE)
    except (ValueError, TypeError, LookupError) as error:
        raise CheckpointCorruptionError(path, offset, f"the record is malformed: {error}") from error


def _unpack_changes(payload: bytes, offset: int) -> list[ReadChange]:
    *rows, data = ormsgpack.unpackb(payload)
    data_offset = offset + len(payload) - len(data)
    position = 0
    changes: list[ReadChange] = []
    for row in rows:
        if row[0] == _PUT:
            length = row[_LENGTH]
            content = data[position : position + length]
            changes.append(Entry(row, data_offset + position, content))
            position += length
        else:
            changes.append(_read_other(*row))
    if not isinstance(data, bytes) or position != len(data):
        raise ValueError("its changes do not name the data that it holds")
    for change in changes:
        for name in _list_names(change):
            if not isinstance(name, str):
                raise TypeError(f"the name {name!r} is not text")
    return changes


def _read_other(kind: int, namespace: Any, *fields: Any) -> ReadChange:
    if namespace is not None or kind != _CLEAR:
        namespace = tuple(namespace)
    return _OTHERS[kind](namespace, *fields)
