"""The changes in the records of LangGraph's store and cache, and the table that they make.

docs/format.md specifies the records. Nothing here knows files.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, takewhile
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


def check_names(namespace: Namespace, key: str) -> None:
    """Check the names of an entry: a reader accepts a record only if they are text, and UTF-8 has each character.

    Raises:
        CheckpointSerializationError: they cannot be stored.
    """
    for name in (*namespace, key):
        try:
            str.encode(name)
        except (TypeError, UnicodeEncodeError) as error:
            where = f"the key {key!r} of {namespace!r}"
            reason = "a key and the labels of a namespace must be text that UTF-8 can hold"
            raise CheckpointSerializationError(where, type(name).__name__, reason) from error


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
        CheckpointSerializationError: a time is beyond what 64 bits hold.
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
        raise CheckpointSerializationError("", "record", str(error)) from error


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
            continue
        kind, namespace, *fields = row
        if namespace is not None or kind != _CLEAR:
            namespace = tuple(namespace)
        changes.append(_OTHERS[kind](namespace, *fields))
    if not isinstance(data, bytes) or position != len(data):
        raise ValueError("its changes do not name the data that it holds")
    for change in changes:
        names = change.namespace or ()
        if not isinstance(change, Clear):
            names = (*names, change.key)
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"the name {name!r} is not text")
    return changes


_order: Final = attrgetter("order")
_NO_ENTRIES: Final[Mapping[str, Any]] = {}


class _Group(dict[str, Entry]):
    """The entries of a namespace by key, the newest last."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Namespace) -> None:
        super().__init__()
        self.namespace = namespace
        """Shared by all entries: fewer objects make opening a log a third faster."""


class EntryTable:
    """The entries of each namespace, the newest last."""

    def __init__(self) -> None:
        self._namespaces: dict[Namespace, _Group] = {}
        self._sorted: list[Namespace] | None = None
        """The namespaces in order; None before the first use, so that loading a log sorts once."""
        self._changes = 0

    def apply(self, changes: Iterable[ReadChange]) -> None:
        """Apply the next changes of the log."""
        for change in changes:
            if isinstance(change, Entry):
                self._put(change)
            elif isinstance(change, Delete):
                entries = self._namespaces.get(change.namespace)
                if entries is None:
                    continue
                entries.pop(change.key, None)
                if not entries:
                    self._clear(change.namespace)
            elif isinstance(change, Clear):
                self._clear(change.namespace)
            else:
                entry = self.get(change.namespace, change.key)
                if entry is not None:
                    entry.expires = change.expires

    def _put(self, entry: Entry) -> None:
        self._changes += 1
        entry.order = self._changes
        group = self._namespaces.get(entry.namespace)
        if group is None:
            group = self._namespaces[entry.namespace] = _Group(entry.namespace)
            if self._sorted is not None:
                insort(self._sorted, entry.namespace)
        entry.namespace = group.namespace
        key = entry.key
        if key in group:
            del group[key]  # The new entry is the last one.
        group[key] = entry

    def _clear(self, namespace: Namespace | None) -> None:
        if namespace is None:
            self._namespaces.clear()
            self._sorted = None
        elif self._namespaces.pop(namespace, None) is not None and self._sorted is not None:
            del self._sorted[bisect_left(self._sorted, namespace)]

    def get(self, namespace: Namespace, key: str) -> Entry | None:
        """Return an entry, or None."""
        found: Entry | None = self._namespaces.get(namespace, _NO_ENTRIES).get(key)
        return found

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """Return the namespaces that begin with these labels and have entries, sorted."""
        if self._sorted is None:
            self._sorted = sorted(self._namespaces)
        if not prefix:
            return list(self._sorted)
        start = bisect_left(self._sorted, prefix)
        following = islice(self._sorted, start, None)
        return list(takewhile(lambda namespace: namespace[: len(prefix)] == prefix, following))

    def entries_in(self, namespace: Namespace) -> Iterator[Entry]:
        """Return the entries of a namespace, newest first."""
        return reversed(self._namespaces[namespace].values())

    def newest_first(self, prefix: Namespace = (), *, expects_all: bool = False) -> Iterator[Entry]:
        """Return the entries of all namespaces that begin with these labels, newest first.

        Args:
            prefix: the labels.
            expects_all: whether the caller will probably need all entries, and not only the first.
        """
        found = [self.entries_in(namespace) for namespace in self.namespaces(prefix)]
        if len(found) == 1:
            return found[0]
        if expects_all:
            return iter(sorted(chain.from_iterable(found), key=_order, reverse=True))
        return heapq.merge(*found, key=_order, reverse=True)

    def __len__(self) -> int:
        """Return how many entries there are."""
        return sum(map(len, self._namespaces.values()))

    def __iter__(self) -> Iterator[Entry]:
        """Yield all entries, in no order that means anything."""
        return (entry for entries in self._namespaces.values() for entry in entries.values())

    def oldest_first(self) -> list[Entry]:
        """Return all entries in the order of their last changes."""
        return sorted(self, key=_order)

    def find_expired(self, now: int) -> list[Entry]:
        """Return the entries that have expired."""
        return [entry for entry in self if entry.has_expired(now)]

    def measure(self, now: int) -> int:
        """Return about how many bytes the entries that have not expired take in a rewritten log."""
        return sum(entry.size for entry in self if not entry.has_expired(now))
