"""Values as JSON that preserves every type, and changes between states, for files of threads."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from typing import Any, Final, NamedTuple, final

from graphkit._values.codec import Codec
from graphkit._values.frozen import extend_frozen, freeze

_PACKED: Final = "$packed"
_INT_BITS: Final = 10_000
"""Python refuses to convert longer ints to digits and back."""
_LEVELS: Final = 100
"""How deeply JSON may be nested, so that every reader of JSON can read it, and people too."""
_WITH_TEXT: Final = (date, time, timedelta, complex, float)
"""Types whose packed values have their text next to them, for people."""


@final
class JsonValueCodec:
    """Converts values to what JSON can hold, and back."""

    def __init__(self, types: Sequence[type]) -> None:
        self._codec = Codec(types)

    def encode(self, value: Any, path: str, levels: int = _LEVELS) -> Any:
        """Convert a value to JSON types; pack what JSON cannot hold exactly.

        Args:
            value: the value.
            path: where in the state it is, for errors.
            levels: how deeply the result may be nested; deeper values are packed.

        Raises:
            CheckpointSerializationError: a value has a type that is not registered.
        """
        if _is_exact_in_json(value):
            return value
        if levels and isinstance(value, list):
            items: list[Any] = []
            for index, item in enumerate(value):
                items.append(self.encode(item, f"{path}[{index}]", levels - 1))
            return items
        if levels and isinstance(value, dict) and _is_json_object(value):
            fields: dict[str, Any] = {}
            for key, item in value.items():
                fields[key] = self.encode(item, f"{path}.{key}", levels - 1)
            return fields
        data = self._codec.pack(value, path)
        packed = {_PACKED: base64.b64encode(data).decode()}
        if isinstance(value, _WITH_TEXT):
            packed["text"] = str(value)
        return packed

    def decode(self, value: Any) -> Any:
        """Convert what `encode` returned back to the value."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if isinstance(value, dict):
            if _PACKED in value:
                data = base64.b64decode(value[_PACKED], validate=True)
                return self._codec.unpack(data)
            return {key: self.decode(item) for key, item in value.items()}
        return value

    def pack(self, value: Any, path: str) -> PackedValue:
        """Pack a value, to compare it with another one.

        Raises:
            CheckpointSerializationError: a value has a type that is not registered.
        """
        if isinstance(value, list):
            return PackedValue(self._codec.pack_items(value, path), len(value))
        return PackedValue(self._codec.pack(value, path))


def _is_exact_in_json(value: Any) -> bool:
    """Return whether JSON can hold a scalar exactly."""
    cls = type(value)
    if cls is float:
        return math.isfinite(value)
    if cls is int:
        return value.bit_length() <= _INT_BITS  # type: ignore[no-any-return]
    return value is None or cls in {bool, str}


def _is_json_object(value: dict[Any, Any]) -> bool:
    return _PACKED not in value and all(type(key) is str for key in value)


def format_line(data: Mapping[str, Any]) -> str:
    """Format one line of the file."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which a UTF-8 file can hold only as an escape
        text = json.dumps(data, allow_nan=False)
    return text + "\n"


class PackedValue(NamedTuple):
    """The bytes of a value.

    They differ where == does not: 1, 1.0 and True; 0.0 and -0.0; dicts in another order.
    """

    data: bytes
    length: int | None = None
    """For a list, the number of items, whose bytes `data` holds one after the other; otherwise
    None."""

    def length_of_prefix(self, old: PackedValue | None) -> int | None:
        """Return the length of an old list if this list begins with its items; otherwise None."""
        if old is None or old.length is None or self.length is None:
            return None
        return old.length if self.data.startswith(old.data) else None


def diff_states(
    values: JsonValueCodec, before: Mapping[str, PackedValue], state: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, PackedValue]]:
    """Return what changed from one state to the next as JSON types, and the packed next state.

    The change has up to four keys: `set` (key to value), `extend` (key to the items that were
    appended to its list), `drop` (keys), and `order` (all keys, if the order is not the old one
    with new keys at the end).

    Cost: msgpack packs the whole state, in C; Python code handles only what changed.
    """
    after = {key: values.pack(value, key) for key, value in state.items()}
    new_values: dict[str, Any] = {}
    new_items: dict[str, Any] = {}
    for key, value in state.items():
        old = before.get(key)
        new = after[key]
        if new == old:
            continue
        prefix = new.length_of_prefix(old)
        if prefix is None:
            new_values[key] = values.encode(value, key)
        else:
            appended = value[prefix:]
            new_items[key] = [values.encode(item, key) for item in appended]

    change: dict[str, Any] = {}
    if new_values:
        change["set"] = new_values
    if new_items:
        change["extend"] = new_items
    dropped = [key for key in before if key not in after]
    if dropped:
        change["drop"] = dropped
    kept = [key for key in before if key in after]
    added = [key for key in after if key not in before]
    if [*kept, *added] != list(after):
        change["order"] = list(after)
    return change, after


def apply_change(values: JsonValueCodec, before: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state after a change, with frozen values.

    Cost: what changed, and a copy of each list that grew.
    """
    dropped = change.get("drop", ())
    new_values = change.get("set", {})
    new_items = change.get("extend", {})
    after = {key: value for key, value in before.items() if key not in dropped}
    for key, value in new_values.items():
        after[key] = freeze(values.decode(value))
    for key, items in new_items.items():
        appended = map(values.decode, items)
        grown = extend_frozen(after[key], appended)
        grown.base = None  # it enters a state, and must not keep the list before it alive
        after[key] = grown
    if "order" not in change:
        return after
    return {key: after[key] for key in change["order"]}
