"""Updates as plain values, so that they can be recorded and merged later, in another process too.

The markers of an update (RESET, REMOVE, ReplaceAllWith, RemoveByHash) are objects that no store can
encode; here they become lists. A RemoveIdentifier of the application stays as it is: it can be
merged, and a store refuses it by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from graphkit._values.channels import REMOVE, RESET, RemoveByHash, ReplaceAllWith
from graphkit._values.frozen import FrozenDict, freeze

_PLAIN_VALUES: Final = "set"
_MARKERS: Final = "do"
_PACKED_UPDATE: Final = "graphkit:marked"
"""The only key of an update that was recorded with markers; older versions recorded none."""


def pack(update: Mapping[str, Any]) -> FrozenDict:
    """Return an update as a frozen mapping of plain values. Cost: the update.

    Raises:
        ValueError: a value contains itself.
    """
    plain: dict[str, Any] = {}
    markers: dict[str, Any] = {}
    for key, value in update.items():
        marker = _encode_marker(value)
        if marker is None:
            plain[key] = value
        else:
            markers[key] = marker
    parts = {_PLAIN_VALUES: plain}
    if markers:
        parts[_MARKERS] = markers
    packed: FrozenDict = freeze(parts)
    return packed


def unpack(packed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the update that `pack` was given."""
    update = dict(packed[_PLAIN_VALUES])
    for key, marker in packed.get(_MARKERS, {}).items():
        update[key] = _decode_marker(marker)
    return update


def pack_if_marked(update: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an update as it is recorded: packed if it has markers, else unchanged."""
    packed = pack(update)
    return {_PACKED_UPDATE: packed} if _MARKERS in packed else update


def unpack_if_marked(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the update that `pack_if_marked` was given."""
    if recorded.keys() == {_PACKED_UPDATE}:
        return unpack(recorded[_PACKED_UPDATE])
    return recorded


def keys_of(packed: Mapping[str, Any]) -> Collection[str]:
    """Return the keys of a packed update."""
    return [*packed[_PLAIN_VALUES], *packed.get(_MARKERS, {})]


def select_keys(packed: Mapping[str, Any], keys: Collection[str]) -> FrozenDict:
    """Return the part of a packed update that concerns some keys."""
    selected: dict[str, dict[str, Any]] = {}
    for part, values in packed.items():
        selected[part] = {key: value for key, value in values.items() if key in keys}
    frozen: FrozenDict = freeze(selected)
    return frozen


def _encode_marker(value: Any) -> list[Any] | None:
    """Encode a marker, or a list that contains markers; return None for a plain value."""
    if value is RESET:
        return ["reset"]
    if value is REMOVE:
        return ["remove"]
    if isinstance(value, ReplaceAllWith):
        return ["replace", value.values]
    if isinstance(value, RemoveByHash):
        return ["drop", value.value]
    if type(value) in (list, tuple) and any(isinstance(item, RemoveByHash) for item in value):
        return ["mixed", [_encode_marker(item) or ["new", item] for item in value]]
    return None


def _decode_marker(marker: list[Any]) -> Any:
    kind, *content = marker
    if kind == "reset":
        return RESET
    if kind == "remove":
        return REMOVE
    if kind == "replace":
        return ReplaceAllWith(content[0])
    if kind == "drop":
        return RemoveByHash(content[0])
    if kind == "mixed":
        return [_decode_marker(item) for item in content[0]]
    return content[0]
