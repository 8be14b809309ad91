"""Read-only values: what a state holds, shared by every later state and by every checkpoint.

A list, dict or set is frozen once, as it enters a state; from then on each step shares it, so that a step costs what it
adds. The frozen classes are subclasses of the builtins, so that `isinstance`, `==`, `json.dumps` and slices treat them
as such; copies and pickles of them are the plain, mutable builtins.

The read-only classes stop mistakes, not malice: `list.append(frozen, 1)`, and C code that writes to a list without
asking its class (`heapq.heappush`), still reach inside. `check_size` finds those that change the length, for the keys
that an update names; what keeps the length (`heapq.heapreplace`, `list.sort(frozen)`) is not found.

Every container knows its `kind`, the greatest of its members' kinds:

* `PLAIN`: it and everything below are what msgpack has itself, exactly: str, int, float, bool, None, bytes, FrozenList
  and FrozenDict (with keys of those types).
* `VALUE`: cannot be changed, but needs more than msgpack has: a tuple, a set, a datetime, an enum, a NamedTuple, a
  frozen dataclass of such values. Objects of unknown types (clients, functions) are shared by reference and count here;
  the codec refuses them.
* `PRIVATE`: somewhere below is a mutable object of the application, such as a dataclass, a pydantic model or an
  OrderedDict. It is copied as it enters, and whoever reads it should be handed a `private_copy`.

Keys of dicts and elements of sets are hashable, and are therefore taken to be immutable.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from operator import attrgetter, is_
from types import NoneType
from typing import Any, ClassVar, Final, Never, final, overload

PLAIN: Final = 0
VALUE: Final = 1
PRIVATE: Final = 2

LEAVES: Final = frozenset({str, int, float, bool, NoneType, bytes})
"""The types that msgpack has itself and that cannot be changed; exact types, no subclasses."""


def _refuse(copier: str) -> Callable[..., Never]:
    """Make the method that stands in for every mutator of a class."""

    def read_only(*_args: object, **_kwargs: object) -> Never:
        """Raise a TypeError: the value is read-only."""
        raise TypeError(
            f"a state is read-only: return an update from the node instead, "
            f"or change a copy of your own, which {copier}(x) makes"
        )

    return read_only


# mypy takes the stand-ins for incompatible overrides, which they are meant to be; hence Any.
_no_list: Any = _refuse("list")
_no_dict: Any = _refuse("dict")
_no_set: Any = _refuse("set")


@final
class FrozenList(list[Any]):
    """A list that cannot be changed. `frozen + items` is a FrozenList too, and knows what it grew from.

    Make one with `freeze`; the bare constructor takes its elements to be frozen already.
    """

    __slots__ = ("base", "ids", "kind", "seen", "size")

    kind: int
    """PLAIN, VALUE or PRIVATE; found out when first asked for, O(length)."""
    base: FrozenList | None
    """The list that this one grew from by appending, until whoever keeps this one clears it; otherwise None."""
    seen: set[int] | None
    """Digests of the elements, and perhaps of others: of a list without duplicates; see `_channels`."""
    ids: set[int] | None
    """Digests of the ids of the elements, and perhaps of others: of a list of messages; see `_channels`."""
    size: int | None
    """The length when it entered a state; None before that. See `check_size`."""

    def __getattr__(self, name: str) -> Any:
        # Called only while a slot is empty, so that the decoder can make lists without a line of Python.
        if name == "kind":
            self.kind = _kind_of_all(self)
            return self.kind
        if name in ("base", "seen", "ids", "size"):
            return None
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __add__(self, other: Any) -> Any:
        return extend_frozen(self, other) if isinstance(other, list) else NotImplemented

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return copy.deepcopy(list(self), memo)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return list, (), None, iter(self)

    append = extend = insert = pop = remove = clear = sort = reverse = _no_list
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _no_list


@final
class FrozenDict(dict[Any, Any]):
    """A dict that cannot be changed, in its order.

    Make one with `freeze`; the bare constructor takes its values to be frozen already.
    """

    __slots__ = ("kind", "size")

    kind: int
    """PLAIN, VALUE or PRIVATE; found out when first asked for, O(length)."""
    size: int | None
    """The length when it entered a state; None before that. See `check_size`."""

    def __getattr__(self, name: str) -> Any:
        if name == "kind":
            self.kind = _kind_of_dict(self)
            return self.kind
        if name == "size":
            return None
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _set_frozen(self, key: str, value: Any) -> None:
        """Set a key to a frozen value: for whoever builds a dict that nobody else has seen yet."""
        self.kind = max(self.kind, kind_of(value))
        dict.__setitem__(self, key, value)

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return dict, (), None, None, iter(self.items())

    update = pop = popitem = clear = setdefault = _no_dict
    __setitem__ = __delitem__ = __ior__ = _no_dict


@final
class FrozenSet(set[Any]):
    """A set that cannot be changed; unlike frozenset it is equal to, and comes back as, a set."""

    __slots__ = ("size",)

    kind: ClassVar[int] = VALUE
    """Elements are hashable and taken to be immutable, and msgpack has no sets."""
    size: int | None
    """The length when it entered a state; None before that. See `check_size`."""

    def __getattr__(self, name: str) -> Any:
        if name == "size":
            return None
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def copy(self) -> set[Any]:
        return set(self)

    def __copy__(self) -> set[Any]:
        return set(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> set[Any]:
        return copy.deepcopy(set(self), memo)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return set, (list(self),)

    add = discard = remove = pop = clear = update = _no_set
    intersection_update = difference_update = symmetric_difference_update = _no_set
    __ior__ = __iand__ = __isub__ = __ixor__ = _no_set


_FROZEN: Final = frozenset({FrozenList, FrozenDict, FrozenSet})
CONTAINERS: Final = _FROZEN
"""The classes that `check_size` looks at."""
_AS_IT_IS: Final = LEAVES | _FROZEN
_KEYED: Final = frozenset({FrozenList, FrozenDict})
_kind_slot: Final[Callable[[Any], int]] = attrgetter("kind")


@overload
def freeze(value: dict[Any, Any]) -> FrozenDict: ...
@overload
def freeze(value: list[Any]) -> FrozenList: ...
@overload
def freeze(value: object) -> Any: ...
def freeze(value: object) -> object:
    """The immutable form of a value; O(1) for what is frozen already, O(size) for what is not.

    Mutable objects of the application are deep-copied, so that whoever made them cannot change the state later; one
    that cannot be copied (it holds a lock, say) is shared, like any object of an unknown type.

    Raises:
        ValueError: the value contains itself, or is nested too deeply.
    """
    if type(value) in _AS_IT_IS:
        return value
    return _frozen(value)


def extend_frozen(old: FrozenList, items: Iterable[Any]) -> FrozenList:
    """The old list with items appended; `base` says what it grew from. Only the items are frozen.

    Raises:
        ValueError: an item contains itself, or is nested too deeply.
    """
    tail = freeze(list(items))
    assert type(tail) is FrozenList
    new = FrozenList(old)
    list.extend(new, tail)
    new.kind = max(old.kind, tail.kind)
    # A list that still has a base has not entered a state: it is a step on the way, in `old + a + b`.
    new.base = old if old.base is None else old.base
    return new


def freeze_grown(old: FrozenList, new: list[Any]) -> tuple[FrozenList, bool]:
    """Freeze what a reducer made of an old list, and see whether it only appended.

    An element that is identical to the old one at its place is taken to be unchanged.

    Returns:
        The frozen list, and whether it starts with exactly the elements of the old one.

    Raises:
        ValueError: a new element contains itself, or is nested too deeply.
    """
    size = len(old)
    if len(new) < size or not all(map(is_, old, new)):
        frozen = freeze(list(new))
        assert type(frozen) is FrozenList
        return frozen, False
    if len(new) == size:
        return old, True
    return extend_frozen(old, new[size:]), True


def check_size(value: Any) -> None:
    """Note the length of a container that enters a state, or see that it still has the length that it entered with.

    Raises:
        ValueError: somebody got around the read-only class and changed it.
    """
    size = value.size
    if size is None:
        value.size = len(value)
    elif size != len(value):
        kind = next(base.__name__ for base in (list, dict, set) if isinstance(value, base))
        raise ValueError(
            f"a {kind} of the state was changed in place, by code that gets around its being read-only, such as heapq "
            f"or {kind}'s own methods called on the class: change a copy of your own, which {kind}(x) makes, and "
            f"return that"
        )


def kind_of(value: object) -> int:
    """PLAIN, VALUE or PRIVATE: O(1) for leaves and frozen containers, O(size) for tuples and dataclasses."""
    cls = type(value)
    if cls in LEAVES:
        return PLAIN
    if cls in _FROZEN:
        return value.kind  # type: ignore[attr-defined, no-any-return]
    if isinstance(value, tuple):
        return max(VALUE, _kind_of_all(value))
    return PRIVATE if _is_mutable(value) else VALUE


def private_copy(value: Any) -> Any:
    """A copy whose mutable application objects are its own; a value without any is returned as it is.

    The containers of the copy are frozen like those of the original.
    """
    if kind_of(value) != PRIVATE:
        return value
    new: FrozenList | FrozenDict
    if type(value) is FrozenList:
        new = FrozenList(map(private_copy, value))
    elif type(value) is FrozenDict:
        new = FrozenDict(zip(value, map(private_copy, value.values()), strict=True))
    elif isinstance(value, tuple) and _is_bare(value):
        return tuple.__new__(type(value), map(private_copy, value))
    else:
        return _own(value)
    new.kind = PRIVATE
    return new


# --- freezing ---------------------------------------------------------------------------------------------------------


def _frozen(value: object) -> object:
    try:
        return _freeze(value)
    except RecursionError:
        # Looking for a cycle costs memory and time, so it is done only where there may be one.
        where = _cycle(value)
        raise ValueError(
            "a value is nested too deeply to be kept in a state" if where is None else f"a {where} contains itself"
        ) from None


def _freeze(value: Any) -> Any:  # noqa: PLR0911 - a case per type
    cls = type(value)
    if cls in _AS_IT_IS:
        return value
    # Copy first and look at the copy, for another thread may be changing the original.
    if cls is list:
        return _freeze_list(FrozenList(value))
    if cls is dict:
        new = FrozenDict(value)
        for key, item in new.items():
            if type(item) not in _AS_IT_IS:
                dict.__setitem__(new, key, _freeze(item))
        new.kind = _kind_of_dict(new)
        return new
    if cls is set:
        return FrozenSet(value)
    if isinstance(value, tuple):
        items = [_freeze(item) for item in value]
        if all(map(is_, items, value)):
            return value
        return tuple.__new__(cls, items) if _is_bare(value) else _own(value)
    return _own(value) if _is_mutable(value) else value


def _is_bare(value: tuple[Any, ...]) -> bool:
    """Whether a tuple is its items and nothing else, so that it can be made of others; a NamedTuple is."""
    return type(value) is tuple or (hasattr(value, "_fields") and not getattr(value, "__dict__", None))


def _freeze_list(new: FrozenList) -> FrozenList:
    if LEAVES.issuperset(map(type, new)):
        new.kind = PLAIN
        return new
    for index, item in enumerate(new):
        if type(item) not in _AS_IT_IS:
            list.__setitem__(new, index, _freeze(item))
    new.kind = _kind_of_all(new)
    return new


def _own(value: Any) -> Any:
    """Copy a mutable object of the application; what cannot be copied is shared, as a client or a lock would be."""
    try:
        return copy.deepcopy(value)
    except RecursionError:
        raise
    except Exception:  # noqa: BLE001 - a __deepcopy__ may raise anything; the codec refuses such an object anyway
        return value


def _cycle(root: object) -> str | None:
    """The type name of a list, dict or tuple that contains itself; without recursion."""
    above: set[int] = set()
    done: set[int] = set()
    todo: list[tuple[Any, bool]] = [(root, False)]
    while todo:
        value, leaving = todo.pop()
        if leaving:
            above.discard(id(value))
            done.add(id(value))
        elif id(value) in above:
            return type(value).__name__
        elif isinstance(value, (list, dict, tuple)) and id(value) not in done:
            above.add(id(value))
            todo.append((value, True))
            todo.extend((item, False) for item in (value.values() if isinstance(value, dict) else value))
    return None


# --- kinds ------------------------------------------------------------------------------------------------------------


def _kind_of_all(items: Iterable[Any]) -> int:
    types = set(map(type, items))
    if types <= LEAVES:
        return PLAIN
    if types <= _KEYED:
        return max(map(_kind_slot, items))
    return max(map(kind_of, items))


def _kind_of_dict(mapping: FrozenDict) -> int:
    keys = PLAIN if LEAVES.issuperset(map(type, mapping)) else VALUE
    return max(keys, _kind_of_all(mapping.values()))


# Bases, and by exact type where the standard library has them, for the classes of the application derive from them.
_MUTABLE: Final = (list, dict, set, bytearray, memoryview)
_MUTABLE_MODULES: Final = {"collections": ("deque", "UserDict", "UserList"), "array": ("array",)}


def _is_mutable(value: object) -> bool:
    """Whether a value is known to be mutable: a dataclass that is not frozen all the way down, a pydantic model, ..."""
    cls = type(value)
    if isinstance(value, _MUTABLE):
        return True
    params = getattr(cls, "__dataclass_params__", None)
    if params is not None and not isinstance(value, Enum):
        return not (params.frozen and _is_frozen_below(value))
    pydantic = sys.modules.get("pydantic")  # never imported here: whoever has a model has imported it
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return True
    return any(
        isinstance(value, getattr(sys.modules[module], name))
        for module, names in _MUTABLE_MODULES.items()
        if module in sys.modules
        for name in names
    )


def _is_frozen_below(value: Any) -> bool:
    from dataclasses import fields

    return all(kind_of(getattr(value, field.name, None)) != PRIVATE for field in fields(value))
