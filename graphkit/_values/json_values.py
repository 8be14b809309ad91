"""What a file of threads has of a state: values as JSON that keeps every type, and what changed between two states."""

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
"""Longer ones Python refuses to turn into digits and back."""
_LEVELS: Final = 100
"""As deep as a reader of JSON surely goes, and people's eyes."""
_SAYS: Final = (date, time, timedelta, complex, float)
"""Types whose packed values are accompanied by their text, for people."""


@final
class JsonValueCodec:
    """Values to what JSON can hold, and back."""

    def __init__(self, types: Sequence[type]) -> None:
        self._codec = Codec(types)

    def out(self, value: Any, path: str, levels: int = _LEVELS) -> Any:
        """A value as JSON has it, or packed; packed also what stands deeper in it than so many levels.

        Raises:
            CheckpointSerializationError: it is of a type that is not registered.
        """
        if _is_plain(value):
            return value
        if isinstance(value, list) and levels:
            return [self.out(item, f"{path}[{index}]", levels - 1) for index, item in enumerate(value)]
        if isinstance(value, dict) and levels and _PACKED not in value and all(type(key) is str for key in value):
            return {key: self.out(item, f"{path}.{key}", levels - 1) for key, item in value.items()}
        packed = {_PACKED: base64.b64encode(self._codec.pack(value, path)).decode()}
        return {**packed, "text": str(value)} if isinstance(value, _SAYS) else packed

    def packed(self, value: Any, path: str) -> Packed:
        """A value's bytes, to be compared.

        Raises:
            CheckpointSerializationError: it is of a type that is not registered.
        """
        if isinstance(value, list):
            return Packed(self._codec.pack_items(value, path), len(value))
        return Packed(self._codec.pack(value, path))

    def back(self, value: Any) -> Any:
        """What `out` was given."""
        if isinstance(value, list):
            return [self.back(item) for item in value]
        if isinstance(value, dict):
            if _PACKED in value:
                return self._codec.unpack(base64.b64decode(value[_PACKED], validate=True))
            return {key: self.back(item) for key, item in value.items()}
        return value


def _is_plain(value: Any) -> bool:
    """Whether JSON has it exactly."""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    return value is None or kind in {bool, str} or (kind is int and value.bit_length() <= _INT_BITS)


def line_of(data: Mapping[str, Any]) -> str:
    """A line of the file."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which no file holds but as an escape
        text = json.dumps(data, allow_nan=False)
    return text + "\n"


class Packed(NamedTuple):
    """A value's bytes, which tell apart what == does not: 1, 1.0 and True; 0.0 and -0.0; dicts in another order."""

    data: bytes
    length: int | None = None
    """Of a list, how many items `data` has; they stand there one after the other."""


def change_between(
    values: JsonValueCodec, before: Mapping[str, Packed], state: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Packed]]:
    """What leads from one state to the next, as JSON: keys to set, lists to extend, keys to drop, a new order.

    Costs a packing of the state, which is C, and a walk over what changed. Also returns the state for the next change.
    """
    after = {key: values.packed(value, key) for key, value in state.items()}
    change: dict[str, Any] = {"set": {}, "extend": {}}
    for key, value in state.items():
        old, new = before.get(key), after[key]
        if old == new:
            continue
        if old is not None and old.length is not None and new.length is not None and new.data.startswith(old.data):
            change["extend"][key] = [values.out(item, key) for item in value[old.length :]]
        else:
            change["set"][key] = values.out(value, key)
    if dropped := [key for key in before if key not in after]:
        change["drop"] = dropped
    follows = [*(key for key in before if key in after), *(key for key in after if key not in before)]
    if follows != list(after):
        change["order"] = list(after)
    return {name: part for name, part in change.items() if part}, after


def changed(values: JsonValueCodec, before: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The state after a change, its values frozen. Costs what changed, and a copy of each list that grew."""
    after = {key: value for key, value in before.items() if key not in change.get("drop", ())}
    after.update((key, freeze(values.back(value))) for key, value in change.get("set", {}).items())
    for key, items in change.get("extend", {}).items():
        after[key] = extend_frozen(after[key], map(values.back, items))
        after[key].base = None  # it has entered a state, and must not keep the one before alive
    return {key: after[key] for key in change["order"]} if "order" in change else after
