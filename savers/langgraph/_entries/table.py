"""What a log of entries says: the entries of each namespace, in memory. Does not know files."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any, Final

from savers.langgraph._entries.records import Clear, Delete, Entry, Namespace, ReadChange

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
                self._remove(change.namespace, change.key)
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

    def _remove(self, namespace: Namespace, key: str) -> None:
        entries = self._namespaces.get(namespace)
        if entries is None:
            return
        entries.pop(key, None)
        if not entries:
            self._clear(namespace)

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
        start = end = bisect_left(self._sorted, prefix)
        while end < len(self._sorted) and self._sorted[end][: len(prefix)] == prefix:
            end += 1
        return self._sorted[start:end]

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
