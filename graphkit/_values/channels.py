"""Channels: how an update of one key merges into its old value. Ports langgraph4j's Channel, Channels and reducers."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol, final

from graphkit._java_names import JavaNames
from graphkit._values.frozen import FrozenDict, FrozenList, FrozenSet, extend_frozen, freeze

_THAWED: Final[Mapping[type, type]] = {FrozenList: list, FrozenDict: dict, FrozenSet: set}
_FEW: Final = 50
"""Up to so many elements are compared with; of more, digests are kept."""


class Marker(Enum):
    """Values of an update that ask for something else than a merge."""

    RESET = "reset"
    REMOVE = "remove"

    def __repr__(self) -> str:
        return self.name


RESET: Final = Marker.RESET
"""As a value in an update: the key gets its channel's default again, or is removed if there is none."""
REMOVE: Final = Marker.REMOVE
"""As a value in an update: the key is removed."""


class Reducer(Protocol):
    """Merges an update into the old value. Must return a new value and leave both arguments alone."""

    def __call__(self, old: Any, new: Any, /) -> Any: ...


class Channel(JavaNames):
    """How one key merges: an optional reducer, and an optional supplier of the default.

    Subclass it and override `update` for rules of your own.
    """

    def __init__(self, reducer: Reducer | None = None, default: Callable[[], Any] | None = None) -> None:
        """Make a channel.

        Raises:
            TypeError: the reducer or the default cannot be called.
        """
        for role, value in (("reducer", reducer), ("default", default)):
            if value is not None and not callable(value):
                raise TypeError(f"a channel's {role} must be callable, not {value!r}; for a default write lambda: ...")
        self.reducer = reducer
        self.default = default
        self.is_transient = False
        """Whether the key lives in memory only: nodes see it, and no store, output or event ever does."""

    def initial(self) -> Any:
        """The default value, or None if there is none."""
        return None if self.default is None else self.default()

    def update(self, key: str, old: Any, new: Any) -> Any:  # noqa: ARG002 - a subclass may use the key
        """Merge `new` into `old` (None: no value yet). The result None removes the key."""
        if self.reducer is None:
            return new
        return self.reducer(self.initial() if old is None else old, new)

    # Java names
    def getReducer(self) -> Reducer | None:
        return self.reducer

    def getDefault(self) -> Callable[[], Any] | None:
        return self.default


class RemoveIdentifier(JavaNames, abc.ABC):
    """In an update of a list: takes out every element it matches."""

    @abc.abstractmethod
    def compare_to(self, element: Any, index: int) -> int:
        """0 if the element at this position of the old list is to be removed."""

    # Java names
    compareTo = compare_to


@final
class RemoveByHash(RemoveIdentifier):
    """Removes the elements equal to a value, unhashable ones included."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def compare_to(self, element: Any, index: int) -> int:  # noqa: ARG002 - the position does not matter here
        return 0 if _same(element, self.value) else 1

    # Java names
    compareTo = compare_to

    @staticmethod
    def of(value: Any) -> RemoveByHash:
        """Java's factory."""
        return RemoveByHash(value)


@final
class ReplaceAllWith:
    """In an update of a list: the new content, whatever was there."""

    def __init__(self, values: Any) -> None:
        self.values = _as_list(values)

    @staticmethod
    def of(values: Any) -> ReplaceAllWith:
        """Java's factory."""
        return ReplaceAllWith(values)


class _ListChannel(Channel):
    """A list that grows: an update is one element or several.

    None empties it (to the default), an empty list changes nothing, `ReplaceAllWith` sets it, and every
    RemoveIdentifier among the new elements takes elements out of the old list before the rest is appended.
    """

    def update(self, key: str, old: Any, new: Any) -> Any:  # noqa: ARG002
        """Merge. Cost follows the new elements, plus a copy of the list's pointers."""
        if new is None:
            return self.initial()
        if isinstance(new, ReplaceAllWith):
            return new.values
        items = _as_list(new)
        if not items:
            return old
        if not isinstance(old, list):
            old = self.initial()
        removals = [item for item in items if isinstance(item, RemoveIdentifier)]
        if removals:
            old = _without(old or (), removals)
            items = [item for item in items if not isinstance(item, RemoveIdentifier)]
        return self._append([] if old is None else old, items)

    def _append(self, old: Sequence[Any], items: Sequence[Any]) -> Any:
        """The old list with the new elements."""
        raise NotImplementedError


@final
class AppenderChannel(_ListChannel):
    __doc__ = _ListChannel.__doc__

    def __init__(self, default: Callable[[], list[Any]] = list, *, duplicates: bool = False) -> None:
        """Make one; without `duplicates`, an element that is equal to one already there is not appended."""
        super().__init__(None, default)
        self.duplicates = duplicates

    def _append(self, old: Sequence[Any], items: Sequence[Any]) -> Any:
        if self.duplicates:
            return _extended(old, items)
        return _appended_once(old, items)


@final
class MessagesChannel(_ListChannel):
    """A list of messages, which are told apart by their ids.

    A message with an id takes the place of the earlier message with that id. A message without one is always appended,
    even if it equals an earlier one. The id is the key `id` of a mapping, or the attribute `id` of an object.
    """

    def __init__(self) -> None:
        """Make one; the default is an empty list."""
        super().__init__(None, list)

    def _append(self, old: Sequence[Any], items: Sequence[Any]) -> Any:
        # As in _appended_once: a list knows the digests of its ids, so that a new message needs no search.
        known = getattr(old, "ids", None)
        ids: set[int] = _digests_of_ids(old) if known is None else known
        replaced: dict[int, Any] = {}
        fresh: list[Any] = []
        for item in items:
            message_id = _message_id(item)
            digest = None if message_id is None else _digest(message_id)
            if digest is None or digest not in ids:
                fresh.append(item)
            elif (place := _place_of_id(fresh, message_id)) is not None:
                fresh[place] = item
            elif (place := _place_of_id(old, message_id)) is not None:
                replaced[place] = item
            else:  # two ids with the same digest
                fresh.append(item)
            if digest is not None:
                ids.add(digest)
        base = _with_replaced(old, replaced)
        new = _extended(base, fresh) if fresh else base
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
        """A channel with a reducer, a default, or both, in Java's order or by keyword.

        One positional argument is a default if it can be called without arguments (or is a class such as `list`).
        """
        if second is not None:
            return Channel(first, second)
        if first is None:
            return Channel(reducer, default)
        if _takes_nothing(first):
            return Channel(reducer, first)
        return Channel(first, default)

    @staticmethod
    def appender(default: Callable[[], list[Any]] = list) -> AppenderChannel:
        """A list without duplicates."""
        return AppenderChannel(default)

    @staticmethod
    def appender_with_duplicate(default: Callable[[], list[Any]] = list) -> AppenderChannel:
        """A list in which equal elements may repeat."""
        return AppenderChannel(default, duplicates=True)

    @staticmethod
    def transient(default: Callable[[], Any] | None = None) -> Channel:
        """A key that is never stored nor shown: a secret, a client. It may hold any object.

        Nodes see it in their state; outputs, snapshots, errors, events and logs do not have it. After a resume it is
        its default again, or what the resume brings: `GraphResume(update={...})`. Ports langgraph4j's transient
        attributes and tau's secrets.
        """
        channel = Channel(None, default)
        channel.is_transient = True
        return channel

    # Java names
    appenderWithDuplicate = appender_with_duplicate


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return list(value) if type(value) is tuple else [value]


def _same(left: Any, right: Any) -> bool:
    # Equal and of one type: 1 and True are two elements. A dict and the same one frozen are one.
    return _type_of(left) is _type_of(right) and bool(left == right)


def _type_of(value: Any) -> type:
    return _THAWED.get(type(value), type(value))


def _extended(old: Sequence[Any], items: Sequence[Any]) -> Any:
    return extend_frozen(old, items) if isinstance(old, FrozenList) else [*old, *items]


def _with_replaced(old: Sequence[Any], replaced: Mapping[int, Any]) -> Sequence[Any]:
    """The old list with other elements at some places; the list itself if that changes nothing."""
    changed = {place: item for place, item in replaced.items() if not _same(old[place], item)}
    if not changed:
        return old
    new = FrozenList(old) if isinstance(old, FrozenList) else list(old)
    for place, item in changed.items():
        list.__setitem__(new, place, freeze(item))  # nobody else has seen this list yet
    return new


def _message_id(message: Any) -> Any:
    """The id of a message, or None."""
    if isinstance(message, Mapping):
        return message.get("id")
    found = getattr(message, "id", None)
    return None if callable(found) else found


def _digests_of_ids(messages: Iterable[Any]) -> set[int]:
    return {_digest(message_id) for message in messages if (message_id := _message_id(message)) is not None}


def _place_of_id(messages: Sequence[Any], message_id: Any) -> int | None:
    """The place of the last message with an id, which is the one that a later message replaces."""
    for place in range(len(messages) - 1, -1, -1):
        found = _message_id(messages[place])
        if found is not None and _same(found, message_id):
            return place
    return None


def _appended_once(old: Sequence[Any], items: Sequence[Any]) -> Any:
    """The old list and, after it, the items that are not in it yet.

    A long list knows the digests of its elements: what has none of them is not in it, and needs no comparison.
    """
    if len(old) + len(items) < _FEW:
        fresh = _unseen(old, items)
        return _extended(old, fresh) if fresh else old
    # Handed on to the list that grows from this one. If two grow from it, there are digests too many, never too few.
    seen = getattr(old, "seen", None) or set(map(_digest, old))
    fresh = []
    for item in items:
        digest = _digest(item)
        if digest not in seen or not (_is_in(item, old) or _is_in(item, fresh)):
            fresh.append(item)
            seen.add(digest)
    if not isinstance(old, FrozenList):
        return [*old, *fresh] if fresh else old
    new = extend_frozen(old, fresh) if fresh else old
    new.seen = seen
    return new


def _unseen(old: Sequence[Any], items: Iterable[Any]) -> list[Any]:
    fresh: list[Any] = []
    for item in items:
        if not (_is_in(item, old) or _is_in(item, fresh)):
            fresh.append(item)
    return fresh


def _is_in(item: Any, items: Sequence[Any]) -> bool:
    # `in` runs in C and settles nearly every element; only its rare hits need the strict look.
    return item in items and any(_same(item, one) for one in items)


def _digest(value: Any) -> int:
    """A number that is the same for elements that `_same` holds to be one. Cost: the element."""
    try:
        return hash(value)
    except TypeError:
        if isinstance(value, dict):
            return hash(frozenset((key, _digest(one)) for key, one in value.items()))
        if isinstance(value, (list, tuple)):
            return hash(tuple(map(_digest, value)))
        if isinstance(value, (set, frozenset)):
            return hash(frozenset(value))
        return hash(type(value))  # an object that only its own == can tell


def _without(old: Sequence[Any], removals: Sequence[RemoveIdentifier]) -> list[Any]:
    return [
        item for index, item in enumerate(old) if not any(removal.compare_to(item, index) == 0 for removal in removals)
    ]


def _takes_nothing(call: Callable[..., Any]) -> bool:
    if isinstance(call, type):
        return True
    try:
        inspect.signature(call).bind()
    except (TypeError, ValueError):  # it needs arguments, or is a builtin like max, which tells nothing
        return False
    return True
