"""Channels: how the update of a key merges into its old value. Ports langgraph4j's channels."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol, final

from graphkit._options import check_function
from graphkit._public_names import JavaNames
from graphkit._values.frozen import FrozenList, builtin_type, extend_frozen, freeze

_DIGEST_THRESHOLD: Final = 50
"""Shorter lists compare elements; longer ones keep digests of them."""


class Marker(Enum):
    """Values of an update that are instructions, not values to merge."""

    RESET = "reset"
    REMOVE = "remove"

    def __repr__(self) -> str:
        return self.name


RESET: Final = Marker.RESET
"""As a value in an update: restores the default of the channel, or removes the key if there is
none."""
REMOVE: Final = Marker.REMOVE
"""As a value in an update: removes the key."""


class Reducer(Protocol):
    """Merges an update into the old value. Must return a new value and not change its arguments."""

    def __call__(self, old: Any, new: Any, /) -> Any: ...


class Channel(JavaNames):
    """How one key merges: an optional reducer, and an optional function that returns the default.

    Subclass it and override `update` for other rules.
    """

    def __init__(self, reducer: Reducer | None = None, default: Callable[[], Any] | None = None) -> None:
        """Make a channel.

        Raises:
            TypeError: the reducer or the default cannot be called, or is asynchronous.
        """
        for name, value in (("reducer", reducer), ("default", default)):
            if value is None:
                continue
            if not callable(value):
                raise TypeError(f"a channel's {name} must be callable, not {value!r}; for a default write lambda: ...")
            check_function(f"a channel's {name}", value)
        self.reducer = reducer
        self.default = default
        self.is_transient = False
        """Whether the key exists in memory only: nodes see it, but no store, output or event
        does."""

    def initial(self) -> Any:
        """Return the default value, or None if there is none."""
        if self.default is None:
            return None
        return self.default()

    def update(self, key: str, old: Any, new: Any) -> Any:  # noqa: ARG002 - a subclass may use the key
        """Merge `new` into `old` (None: no value yet). The result None removes the key."""
        if self.reducer is None:
            return new
        if old is None:
            old = self.initial()
        return self.reducer(old, new)

    # Java names
    def getReducer(self) -> Reducer | None:
        return self.reducer

    def getDefault(self) -> Callable[[], Any] | None:
        return self.default


class RemoveIdentifier(JavaNames, abc.ABC):
    """In an update of a list: removes every element that it matches."""

    @abc.abstractmethod
    def compare_to(self, element: Any, index: int) -> int:
        """Return 0 if the element at this index of the old list is to be removed."""

    # Java names
    compareTo = compare_to


@final
class RemoveByHash(RemoveIdentifier):
    """Removes the elements that equal a value, also unhashable ones."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def compare_to(self, element: Any, index: int) -> int:  # noqa: ARG002 - the index does not matter here
        return int(not _is_same(element, self.value))

    # Java names
    @staticmethod
    def of(value: Any) -> RemoveByHash:
        """Java's factory."""
        return RemoveByHash(value)


@final
class ReplaceAllWith:
    """In an update of a list: replaces the whole list."""

    def __init__(self, values: Any) -> None:
        self.values = _as_list(values)

    @staticmethod
    def of(values: Any) -> ReplaceAllWith:
        """Java's factory."""
        return ReplaceAllWith(values)


class _ListChannel(Channel):
    """A list that grows: an update is one element or several.

    None restores the default, an empty list changes nothing, and `ReplaceAllWith` replaces the
    list. Every RemoveIdentifier among the new elements removes elements of the old list before the
    others are appended.
    """

    def update(self, key: str, old: Any, new: Any) -> Any:  # noqa: ARG002
        """Merge an update. Cost: the new elements, and a copy of the pointers of the list."""
        if new is None:
            return self.initial()
        if isinstance(new, ReplaceAllWith):
            return new.values
        items = _as_list(new)
        if not items:
            return old
        if not isinstance(old, list):
            old = self.initial()
        if old is None:
            old = []
        removals = [item for item in items if isinstance(item, RemoveIdentifier)]
        if removals:
            old = [
                item
                for index, item in enumerate(old)
                if not any(removal.compare_to(item, index) == 0 for removal in removals)
            ]
            items = [item for item in items if not isinstance(item, RemoveIdentifier)]
        return self._append(old, items)

    def _append(self, old: Sequence[Any], items: Sequence[Any]) -> Any:
        """Return the old list with the new elements."""
        raise NotImplementedError


@final
class AppenderChannel(_ListChannel):
    __doc__ = _ListChannel.__doc__

    def __init__(self, default: Callable[[], list[Any]] = list, *, duplicates: bool = False) -> None:
        """Make a channel; without `duplicates` it appends no element that the list contains."""
        super().__init__(None, default)
        self.duplicates = duplicates

    def _append(self, old: Sequence[Any], items: Sequence[Any]) -> Any:
        if self.duplicates:
            return _append_all(old, items)
        return _append_missing(old, items)


@final
class MessagesChannel(_ListChannel):
    """A list of messages, identified by their ids.

    A message with an id replaces the earlier message with that id. A message without an id is
    always appended, even if it equals an earlier one. The id is the key `id` of a mapping, or the
    attribute `id` of an object.
    """

    def __init__(self) -> None:
        """Make a channel whose default is an empty list."""
        super().__init__(None, list)

    def _append(self, old: Sequence[Any], items: Sequence[Any]) -> Any:
        # As in _append_missing: a list has the digests of its ids, so that a new message needs no
        # search.
        ids: set[int] | None = getattr(old, "ids", None)
        if ids is None:
            old_ids = map(_message_id, old)
            ids = {_digest(message_id) for message_id in old_ids if message_id is not None}
        replaced: dict[int, Any] = {}
        appended: list[Any] = []
        for item in items:
            message_id = _message_id(item)
            if message_id is None:
                appended.append(item)
                continue
            digest = _digest(message_id)
            if digest not in ids:
                appended.append(item)
            elif (index := _index_of_id(appended, message_id)) is not None:
                appended[index] = item
            elif (index := _index_of_id(old, message_id)) is not None:
                replaced[index] = item
            else:  # another id has the same digest
                appended.append(item)
            ids.add(digest)
        replaced = {index: item for index, item in replaced.items() if not _is_same(old[index], item)}
        new = old
        if replaced:
            new = FrozenList(old) if isinstance(old, FrozenList) else list(old)
            for index, item in replaced.items():
                list.__setitem__(new, index, freeze(item))  # not shared yet
        if appended:
            new = _append_all(new, appended)
        if isinstance(new, FrozenList):
            new.ids = ids
        return new


@final
class Channels:
    """Makes channels, with Java's names."""

    @staticmethod
    def base(
        first: Callable[..., Any] | None = None,
        second: Callable[..., Any] | None = None,
        /,
        *,
        reducer: Reducer | None = None,
        default: Callable[[], Any] | None = None,
    ) -> Channel:
        """Make a channel with a reducer, a default, or both, in Java's order or by keyword.

        A single positional argument is a default if it can be called without arguments (or is a
        class such as `list`), and otherwise a reducer.
        """
        if second is not None:
            return Channel(first, second)
        if first is None:
            return Channel(reducer, default)
        if not isinstance(first, type):
            try:
                inspect.signature(first).bind()
            except (TypeError, ValueError):  # it needs arguments, or is a builtin without a signature, such as max
                return Channel(first, default)
        return Channel(reducer, first)

    @staticmethod
    def appender(default: Callable[[], list[Any]] = list) -> AppenderChannel:
        """Make a channel for a list without duplicates."""
        return AppenderChannel(default)

    @staticmethod
    def appender_with_duplicate(default: Callable[[], list[Any]] = list) -> AppenderChannel:
        """Make a channel for a list with duplicates."""
        return AppenderChannel(default, duplicates=True)

    @staticmethod
    def transient(default: Callable[[], Any] | None = None) -> Channel:
        """Make a channel for a key that is neither stored nor shown: a secret, a client, any object.

        Nodes see the key in their state; outputs, snapshots, errors, events and logs lack it. After
        a resume it has its default, or the value that the resume brings:
        `GraphResume(update={...})`. Ports langgraph4j's transient attributes and tau's secrets.
        """
        channel = Channel(None, default)
        channel.is_transient = True
        return channel

    # Java names
    appenderWithDuplicate = appender_with_duplicate


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if type(value) is tuple:
        return list(value)
    return [value]


def _is_same(left: Any, right: Any) -> bool:
    # Equal and of one type: 1 and True are two elements. A dict and a FrozenDict that equals it are
    # one.
    return builtin_type(left) is builtin_type(right) and bool(left == right)


def _append_all(old: Sequence[Any], items: Sequence[Any]) -> Any:
    if isinstance(old, FrozenList):
        return extend_frozen(old, items)
    return [*old, *items]


def _message_id(message: Any) -> Any:
    """Return the id of a message, or None."""
    if isinstance(message, Mapping):
        return message.get("id")
    message_id = getattr(message, "id", None)
    if callable(message_id):
        return None
    return message_id


def _index_of_id(messages: Sequence[Any], message_id: Any) -> int | None:
    """Return the index of the last message with an id; None if there is none."""
    for index in range(len(messages) - 1, -1, -1):
        other_id = _message_id(messages[index])
        if other_id is not None and _is_same(other_id, message_id):
            return index
    return None


def _append_missing(old: Sequence[Any], items: Sequence[Any]) -> Any:
    """Append the items that the old list does not contain.

    A long list has the digests of its elements: an item with another digest is not in the list, and
    needs no comparison.
    """
    if len(old) + len(items) < _DIGEST_THRESHOLD:
        missing: list[Any] = []
        for item in items:
            if not (_has_item(old, item) or _has_item(missing, item)):
                missing.append(item)
        return _append_all(old, missing) if missing else old
    # The list that grows from this one shares this set. If two lists grow from it, the set has too
    # many digests, never too few.
    seen = getattr(old, "seen", None) or set(map(_digest, old))
    missing = []
    for item in items:
        digest = _digest(item)
        if digest not in seen or not (_has_item(old, item) or _has_item(missing, item)):
            missing.append(item)
            seen.add(digest)
    new = _append_all(old, missing) if missing else old
    if isinstance(new, FrozenList):
        new.seen = seen
    return new


def _has_item(items: Sequence[Any], item: Any) -> bool:
    # `in` runs in C and decides nearly every case; only its rare hits need the strict comparison.
    return item in items and any(_is_same(item, other) for other in items)


def _digest(value: Any) -> int:
    """Return a number that is equal for elements that are the same by `_is_same`. O(element)."""
    try:
        return hash(value)
    except TypeError:
        if isinstance(value, dict):
            return hash(frozenset((key, _digest(item)) for key, item in value.items()))
        if isinstance(value, (list, tuple)):
            return hash(tuple(map(_digest, value)))
        if isinstance(value, (set, frozenset)):
            return hash(frozenset(value))
        return hash(type(value))  # only its own == can compare such an object
