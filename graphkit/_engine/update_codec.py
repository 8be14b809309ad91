"""Updates as plain values, so that they can be recorded and merged later, in another process too.

The markers of an update (RESET, REMOVE, ReplaceAllWith, RemoveByHash) are objects that no store knows; here they become
lists. A RemoveIdentifier of the application's own stays what it is: it can be merged, and a store refuses it by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from graphkit._values.channels import REMOVE, RESET, RemoveByHash, ReplaceAllWith
from graphkit._values.frozen import FrozenDict, freeze

_SET: Final = "set"
_DO: Final = "do"
_MARKED: Final = "graphkit:marked"
"""The only key of an update that was recorded with markers in it; older versions recorded none."""


def pack(update: Mapping[str, Any]) -> FrozenDict:
    """An update, frozen. Cost: the update.

    Raises:
        ValueError: a value contains itself.
    """
    plain: dict[str, Any] = {}
    marked: dict[str, Any] = {}
    for key, value in update.items():
        mark = _mark_of(value)
        if mark is None:
            plain[key] = value
        else:
            marked[key] = mark
    packed: FrozenDict = freeze({_SET: plain, _DO: marked} if marked else {_SET: plain})
    return packed


def unpack(packed: Mapping[str, Any]) -> dict[str, Any]:
    """The update back."""
    return {**packed[_SET], **{key: _value_of(mark) for key, mark in packed.get(_DO, {}).items()}}


def pack_marked(update: Mapping[str, Any]) -> Mapping[str, Any]:
    """An update as it is recorded: as it is, or packed under a key of its own if it has markers."""
    packed = pack(update)
    return {_MARKED: packed} if _DO in packed else update


def unpack_marked(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `pack_marked` was given."""
    return unpack(recorded[_MARKED]) if recorded.keys() == {_MARKED} else recorded


def keys_of(packed: Mapping[str, Any]) -> Collection[str]:
    """The keys that an update names."""
    return [*packed[_SET], *packed.get(_DO, {})]


def only(packed: Mapping[str, Any], keys: Collection[str]) -> FrozenDict:
    """The part of an update that concerns some keys."""
    part = {kind: {key: value for key, value in of.items() if key in keys} for kind, of in packed.items()}
    frozen: FrozenDict = freeze(part)
    return frozen


def _mark_of(value: Any) -> list[Any] | None:
    if value is RESET:
        return ["reset"]
    if value is REMOVE:
        return ["remove"]
    if isinstance(value, ReplaceAllWith):
        return ["replace", value.values]
    if isinstance(value, RemoveByHash):
        return ["drop", value.value]
    if type(value) in (list, tuple) and any(isinstance(item, RemoveByHash) for item in value):
        return ["mixed", [_mark_of(item) or ["new", item] for item in value]]
    return None


def _value_of(mark: list[Any]) -> Any:
    kind, *content = mark
    if kind == "reset":
        return RESET
    if kind == "remove":
        return REMOVE
    if kind == "replace":
        return ReplaceAllWith(content[0])
    if kind == "drop":
        return RemoveByHash(content[0])
    if kind == "mixed":
        return [_value_of(item) for item in content[0]]
    return content[0]
