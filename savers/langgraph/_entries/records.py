"""The changes in the records of LangGraph's store and cache. docs/format.md specifies them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import ormsgpack

from graphkit.errors import CheckpointSerializationError

Namespace = tuple[str, ...]

_PUT: Final = 0
_DELETE: Final = 1
_TOUCH: Final = 2
_CLEAR: Final = 3
_LENGTH: Final = 9
"""The position of the length in a PUT."""
KEPT_CONTENT: Final = 4096
"""A longer content is not kept in memory, but read from the file each time."""
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
    value_length: int
    """How many bytes of the content are the value. Vectors follow."""
    length: int
    crc: int
    """The CRC-32 of the content."""
    content: bytes


class Entry:
    """An entry as a reader keeps it: the fields of Put, and where the content is."""

    __slots__ = (
        "about",
        "content",
        "crc",
        "created",
        "expires",
        "key",
        "length",
        "namespace",
        "offset",
        "order",
        "ttl",
        "updated",
        "value_length",
    )  # fmt: skip

    def __init__(self, fields: Sequence[Any], offset: int, content: bytes) -> None:
        """Take the fields of a change.

        Args:
            fields: the kind of the change, and the fields of Put in their order, without the content.
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


Change = Put | Delete | Touch | Clear
"""What a writer stores."""
ReadChange = Entry | Delete | Touch | Clear
"""What a reader finds."""


class MalformedRecordError(ValueError):
    """A payload whose checksum is right does not hold changes."""


def make_put(
    *,
    namespace: Namespace,
    key: str,
    created: int,
    updated: int,
    expires: int | None,
    ttl: float | None,
    about: Any,
    value: bytes,
    vectors: bytes = b"",
) -> Put:
    """Return the change that stores an entry."""
    content = value + vectors
    return Put(
        namespace=namespace,
        key=key,
        created=created,
        updated=updated,
        expires=expires,
        ttl=ttl,
        about=about,
        value_length=len(value),
        length=len(content),
        crc=crc32(content),
        content=content,
    )


def pack_changes(changes: Iterable[Change]) -> bytes:
    """Return the payload of a record.

    Raises:
        CheckpointSerializationError: a key or a label cannot be stored.
    """
    rows: list[Any] = []
    contents: list[bytes] = []
    for change in changes:
        if isinstance(change, Put):
            rows.append((_PUT, *change[:-1]))
            contents.append(change.content)
        elif isinstance(change, Delete):
            rows.append((_DELETE, *change))
        elif isinstance(change, Touch):
            rows.append((_TOUCH, *change))
        else:
            rows.append((_CLEAR, *change))
    rows.append(b"".join(contents))
    try:
        return ormsgpack.packb(rows)
    except TypeError as error:
        for change in changes:
            _check_names(change)
        raise CheckpointSerializationError("", "record", str(error)) from error


def _check_names(change: Change) -> None:
    """Refuse a namespace or a key that is not text that UTF-8 can hold."""
    names = [*(change.namespace or ()), *([] if isinstance(change, Clear) else [change.key])]
    for name in names:
        try:
            ormsgpack.packb(name)
        except TypeError as error:
            where = f"the key {name!r} of {change.namespace!r}"
            raise CheckpointSerializationError(where, type(name).__name__, str(error)) from error


def unpack_changes(payload: bytes, offset: int) -> list[ReadChange]:
    """Return the changes of a record.

    Args:
        payload: the payload of the record.
        offset: where the payload begins in the file.

    Raises:
        MalformedRecordError: the payload does not hold changes, although its checksum is right.
    """
    try:
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
                kind, *fields = row
                changes.append(_read_other(kind, fields))
    except (ValueError, TypeError, LookupError) as error:
        raise MalformedRecordError(f"the record is malformed: {error}") from error
    if not isinstance(data, bytes) or position != len(data):
        raise MalformedRecordError("the record is malformed: its changes do not name the data that it holds")
    _check_names_of(changes)
    return changes


def _check_names_of(changes: Iterable[ReadChange]) -> None:
    """Refuse namespaces and keys that are not text."""
    for change in changes:
        if not isinstance(change, Clear) and not isinstance(change.key, str):
            raise MalformedRecordError(f"the record is malformed: the key {change.key!r} is not text")
        for name in change.namespace or ():
            if not isinstance(name, str):
                raise MalformedRecordError(f"the record is malformed: the label {name!r} is not text")


def _read_other(kind: int, fields: Sequence[Any]) -> ReadChange:
    if kind == _DELETE:
        namespace, key = fields
        return Delete(namespace=tuple(namespace), key=key)
    if kind == _TOUCH:
        namespace, key, expires = fields
        return Touch(namespace=tuple(namespace), key=key, expires=expires)
    if kind == _CLEAR:
        (namespace,) = fields
        return Clear(namespace=None if namespace is None else tuple(namespace))
    raise ValueError(f"it has a change of kind {kind}")
