"""Read-only values: the values of a state, which all later states and all checkpoints share.

A list, dict or set is frozen once, when it enters a state. From then on all steps share it, so that
the cost of a step is the cost of what it adds. The frozen classes are subclasses of the builtins,
so that `isinstance`, `==`, `json.dumps` and slices work as for the builtins. Copies and pickles of
them are plain, mutable builtins.

The read-only classes prevent mistakes, not attacks: `list.append(frozen, 1)`, and C code that
writes to a list without asking its class (`heapq.heappush`), still change it. `check_size` detects
such changes of the length, for the keys that an update names. It does not detect changes that keep
the length (`heapq.heapreplace`, `list.sort(frozen)`).

Every container knows its `kind`, the greatest of its members' kinds:

* `PLAIN`: it and everything inside are of types that msgpack has exactly: str, int, float, bool,
  None, bytes, FrozenList and FrozenDict (with keys of those types).
* `VALUE`: it cannot change, but needs types that msgpack lacks: a tuple, a set, a datetime, an
  enum, a NamedTuple, a frozen dataclass of such values. Objects of unknown types (clients,
  functions) are shared by reference and have this kind, too; the codec refuses them.
* `PRIVATE`: somewhere inside is a mutable object of the application, such as a dataclass, a
  pydantic model or an OrderedDict. The state has a copy of its own, and its readers receive a
  `private_copy`.

Keys of dicts and elements of sets are hashable, and therefore treated as immutable.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date, time
from enum import Enum
from operator import attrgetter, is_
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Never, TypeGuard, final, overload

if TYPE_CHECKING:
    from pydantic import BaseModel

PLAIN: Final = 0
VALUE: Final = 1
PRIVATE: Final = 2

NATIVE_SCALARS: Final = frozenset({str, int, float, bool, NoneType, bytes})
"""The immutable types that msgpack has; exact types, no subclasses."""


def _refuse(copier: str) -> Callable[..., Never]:
    """Make the method that replaces every mutator of a class."""

    def read_only(*_args: object, **_kwargs: object) -> Never:
        """Raise a TypeError: the value is read-only."""
        raise TypeError(
            f"a state is read-only: return an update from the node instead, or change a copy made with {copier}(x)"
        )

    return read_only


# Any, because to mypy these are incompatible overrides, which is the intention.
_no_list: Any = _refuse("list")
_no_dict: Any = _refuse("dict")
_no_set: Any = _refuse("set")


class _Frozen:
    """What the frozen classes have in common: slots that need no `__init__`, and copies that are plain builtins."""

    __slots__ = ()

    kind: int
    """PLAIN, VALUE or PRIVATE; computed on first use, O(length)."""
    size: int | None
    """The length when it entered a state; None before that. See `check_size`."""
    _thawed: ClassVar[type[Any]]
    """The builtin."""

    def __getattr__(self, name: str) -> Any:
        # Python calls this only when it has not found the attribute, and so only while a slot is
        # empty: the first time. That replaces an __init__ that sets the slots. Without an __init__,
        # `FrozenList(items)` is made in C and takes a quarter of the time, and a state that is read
        # consists of nothing else: the codec gives the class to msgpack, which calls it for each list.
        # A slot that is set costs no more than any attribute.
        if name == "kind":
            self.kind = _kind_of_all(self) if type(self) is FrozenList else _kind_of_dict(self)  # type: ignore[arg-type, misc]
            return self.kind
        if name == "size" or (name in ("base", "ids", "seen") and type(self) is FrozenList):
            return None
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # `copy` would make do with `__reduce_ex__`, and take three to five times as long.

    def __copy__(self) -> Any:
        return self._thawed(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._thawed(self), memo)


@final
class FrozenList(_Frozen, list[Any]):
    """A read-only list. `frozen + items` is a FrozenList too, whose `base` is `frozen`.

    Make one with `freeze`; the constructor requires frozen elements and does not check them.
    """

    __slots__ = ("base", "ids", "kind", "seen", "size")

    base: FrozenList | None
    """The list from which this one was made by appending; None otherwise, and once this list is in
    a state."""
    seen: set[int] | None
    """For a list without duplicates: digests of its elements, and perhaps others. `channels` keeps
    them."""
    ids: set[int] | None
    """For a list of messages: digests of their ids, and perhaps others. `channels` keeps them."""
    _thawed = list

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, list):
            return NotImplemented
        return extend_frozen(self, other)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return list, (), None, iter(self)

    append = extend = insert = pop = remove = clear = sort = reverse = _no_list
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _no_list


@final
class FrozenDict(_Frozen, dict[Any, Any]):
    """A read-only dict, which keeps its order.

    Make one with `freeze`; the constructor requires frozen values and does not check them.
    """

    __slots__ = ("kind", "size")

    _thawed = dict

    def _set_frozen(self, key: str, value: Any) -> None:
        """Set a key to a frozen value. Only for a dict that is not shared yet."""
        self.kind = max(self.kind, kind_of(value))
        dict.__setitem__(self, key, value)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return dict, (), None, None, iter(self.items())

    update = pop = popitem = clear = setdefault = _no_dict
    __setitem__ = __delitem__ = __ior__ = _no_dict


@final
class FrozenSet(_Frozen, set[Any]):
    """A read-only set. Unlike a frozenset it is a set: it is stored, and read back, as one."""

    __slots__ = ("size",)

    kind = VALUE  # elements are hashable and treated as immutable, and msgpack has no sets
    _thawed = set

    def copy(self) -> set[Any]:
        return set(self)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return set, (list(self),)

    add = discard = remove = pop = clear = update = _no_set
    intersection_update = difference_update = symmetric_difference_update = _no_set
    __ior__ = __iand__ = __isub__ = __ixor__ = _no_set


CONTAINERS: Final = frozenset({FrozenList, FrozenDict, FrozenSet})
"""The frozen classes, whose length `check_size` can check."""
PLAIN_CONTAINERS: Final = frozenset({FrozenList, FrozenDict})
"""Those that msgpack has, too, if their `kind` is PLAIN."""
_ALREADY_FROZEN: Final = NATIVE_SCALARS | CONTAINERS
_kind_slot: Final[Callable[[Any], int]] = attrgetter("kind")


def builtin_type(value: object) -> type:
    """Return the type of a value; for a frozen container, the builtin that it replaces."""
    cls = type(value)
    return cls._thawed if cls in CONTAINERS else cls  # type: ignore[attr-defined]


@overload
def freeze(value: dict[Any, Any]) -> FrozenDict: ...
@overload
def freeze(value: list[Any]) -> FrozenList: ...
@overload
def freeze(value: object) -> Any: ...
def freeze(value: object) -> object:
    """Return the immutable form of a value: O(1) if it is frozen already, O(size) otherwise.

    Mutable objects of the application are deep-copied, so that the code that made them cannot
    change the state later. An object that cannot be copied (one that holds a lock, for example) is
    shared, like any object of an unknown type.

    Raises:
        ValueError: the value contains itself, or is nested too deeply.
    """
    if type(value) in _ALREADY_FROZEN:
        return value
    try:
        return _freeze(value)
    except RecursionError:
        raise ValueError("a value contains itself, or is nested too deeply to be kept in a state") from None


def extend_frozen(old: FrozenList, items: Iterable[Any]) -> FrozenList:
    """Return the old list with items appended; its `base` is the old list. Freezes only the items.

    Raises:
        ValueError: an item contains itself, or is nested too deeply.
    """
    # `base` tells the merge what has changed: a node returns state["messages"] + [reply], the merge sees
    # that the base of the new list is the value of the key, and notes the length of the old list as the
    # change. A saver then writes the reply, and not a thousand messages.
    appended = freeze(list(items))
    assert type(appended) is FrozenList
    new = FrozenList(old)
    list.extend(new, appended)
    new.kind = max(old.kind, appended.kind)
    # A list that still has a base has not entered a state: it is `old + a` in `old + a + b`.
    new.base = old if old.base is None else old.base
    return new


def freeze_grown(old: FrozenList, new: list[Any]) -> tuple[FrozenList, bool]:
    """Freeze the list that a reducer made from an old list, and find out whether it only appended.

    Elements at the same index count as unchanged if they are identical.

    Returns:
        The frozen list, and whether it begins with exactly the elements of the old one.

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
    """Record the length of a container that enters a state; check it if it was recorded before.

    Raises:
        ValueError: the length differs, because code bypassed the read-only class and changed the
            container.
    """
    size = value.size
    if size is None:
        value.size = len(value)
    elif size != len(value):
        kind = builtin_type(value).__name__
        raise ValueError(
            f"a {kind} of the state was changed in place, by code that bypasses the read-only class, such as heapq or "
            f"a method called on the class {kind}: change a copy made with {kind}(x), and return that"
        )


def kind_of(value: object) -> int:
    """Return PLAIN, VALUE or PRIVATE.

    O(1) for scalars and frozen containers, O(size) for tuples and dataclasses.
    """
    cls = type(value)
    if cls in NATIVE_SCALARS:
        return PLAIN
    if cls in CONTAINERS:
        return value.kind  # type: ignore[attr-defined, no-any-return]
    if isinstance(value, tuple):
        return max(VALUE, _kind_of_all(value))
    if _is_mutable(value):
        return PRIVATE
    return VALUE


def private_copy(value: Any) -> Any:
    """Return a copy with copies of mutable application objects; the value itself if it has none.

    The containers of the copy are frozen like those of the original.
    """
    if kind_of(value) != PRIVATE:
        return value
    new: FrozenList | FrozenDict
    if type(value) is FrozenList:
        new = FrozenList(map(private_copy, value))
    elif type(value) is FrozenDict:
        new = FrozenDict(zip(value, map(private_copy, value.values()), strict=True))
    elif isinstance(value, tuple) and _is_plain_tuple(value):
        return tuple.__new__(type(value), map(private_copy, value))
    else:
        return _copy_object(value)
    new.kind = PRIVATE
    return new


# --- freezing ---------------------------------------------------------------------------------------------------------


def _freeze(value: Any) -> Any:  # noqa: PLR0911 - a case per type
    cls = type(value)
    if cls in _ALREADY_FROZEN:
        return value
    # Copy first and then freeze the copy: another thread may be changing the original.
    # In this frame: another one per level would lower the depth at which Python stops the recursion.
    if cls is list:
        grown = FrozenList(value)
        if NATIVE_SCALARS.issuperset(map(type, grown)):
            grown.kind = PLAIN
            return grown
        for index, item in enumerate(grown):
            if type(item) not in _ALREADY_FROZEN:
                list.__setitem__(grown, index, _freeze(item))
        grown.kind = _kind_of_all(grown)
        return grown
    if cls is dict:
        new = FrozenDict(value)
        for key, item in new.items():
            if type(item) not in _ALREADY_FROZEN:
                dict.__setitem__(new, key, _freeze(item))
        new.kind = _kind_of_dict(new)
        return new
    if cls is set:
        return FrozenSet(value)
    if isinstance(value, tuple):
        items = [_freeze(item) for item in value]
        if all(map(is_, items, value)):
            return value
        if _is_plain_tuple(value):
            return tuple.__new__(cls, items)
        return _copy_object(value)
    return _copy_object(value) if _is_mutable(value) else value


def _is_plain_tuple(value: tuple[Any, ...]) -> bool:
    """Return whether a tuple has no state but its items; true of a NamedTuple."""
    if type(value) is tuple:
        return True
    return hasattr(value, "_fields") and not getattr(value, "__dict__", None)


def _copy_object(value: Any) -> Any:
    """Copy a mutable object of the application; share it if it cannot be copied, like a lock."""
    try:
        return copy.deepcopy(value)
    except RecursionError:
        raise
    except Exception:  # noqa: BLE001 - a __deepcopy__ may raise anything; the codec refuses such an object anyway
        return value


# --- kinds ------------------------------------------------------------------------------------------------------------


def _kind_of_all(items: Iterable[Any]) -> int:
    types = set(map(type, items))
    if types <= NATIVE_SCALARS:
        return PLAIN
    if types <= PLAIN_CONTAINERS:
        return max(map(_kind_slot, items))
    return max(map(kind_of, items))


def _kind_of_dict(mapping: FrozenDict) -> int:
    keys = PLAIN if NATIVE_SCALARS.issuperset(map(type, mapping)) else VALUE
    return max(keys, _kind_of_all(mapping.values()))


# By isinstance, because the classes of an application derive from these. Modules are never imported
# for this.
_MUTABLE: Final = (list, dict, set, bytearray, memoryview)
_MUTABLE_MODULES: Final = {"collections": ("deque", "UserDict", "UserList"), "array": ("array",)}


def _is_mutable(value: Any) -> bool:
    """Return whether a value is known to be mutable: a dataclass, unless deeply frozen, a model, ..."""
    cls = type(value)
    if isinstance(value, _MUTABLE):
        return True
    params = getattr(cls, "__dataclass_params__", None)
    if params is not None and not isinstance(value, Enum):
        if not params.frozen:
            return True
        from dataclasses import fields

        return any(kind_of(getattr(value, field.name, None)) == PRIVATE for field in fields(value))
    if is_pydantic_model(cls):
        return True
    for module_name, class_names in _MUTABLE_MODULES.items():
        module = sys.modules.get(module_name)
        if module is not None and isinstance(value, tuple(getattr(module, name) for name in class_names)):
            return True
    return False


def is_pydantic_model(cls: type) -> TypeGuard[type[BaseModel]]:
    """Return whether a class is a pydantic model, without importing pydantic."""
    pydantic = sys.modules.get("pydantic")  # imported by the application if it has a model
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


# Values as JSON for people and scripts, without their types. `export` keeps every type.

MAX_INT_BITS: Final = 10_000
"""Python refuses to convert longer integers to decimal digits."""


def to_plain(value: Any) -> Any:  # noqa: PLR0911 - a case per type
    """Convert a value to what JSON can represent: other types become lists, objects or text."""
    # Before the numbers and texts, which members of IntEnum and StrEnum are, too.
    if isinstance(value, Enum):
        return to_plain(value.value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        is_long = value.bit_length() > MAX_INT_BITS
        return hex(value) if is_long else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has neither nan nor infinity
    if isinstance(value, str):
        encoded = value.encode("utf-8", "backslashreplace")  # a lone surrogate is not UTF-8
        return encoded.decode()
    value = _fields_of(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        items = [to_plain(item) for item in value]
        return sorted(items, key=repr)  # items of several types have no order
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        encoded = base64.b64encode(value)
        return encoded.decode()
    return str(value)


def _fields_of(value: Any) -> Any:
    """Return the fields of a record as a mapping; other values as they are."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return dict(value)  # `model_dump` would make dicts of records within a set
    return value
