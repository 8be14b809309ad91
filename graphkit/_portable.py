"""What a file of threads has of a state: values as JSON that keeps every type, and what changed between two states."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from typing import Any, Final, final

from graphkit._serde import Codec

_PACKED: Final = "$packed"
_INT_BITS: Final = 10_000
"""Longer ones Python refuses to turn into digits and back."""
_SAYS: Final = (date, time, timedelta, complex, float)
"""Types whose packed values are accompanied by their text, for people."""


@final
class PortableValues:
    """Values to what JSON can hold, and back."""

    def __init__(self, types: Sequence[type]) -> None:
        self._codec = Codec(types)

    def out(self, value: Any, path: str) -> Any:
        """A value as JSON has it, or packed.

        Raises:
            CheckpointSerializationError: it is of a type that is not registered.
        """
        if _is_plain(value):
            return value
        if isinstance(value, list):
            return [self.out(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, dict) and _PACKED not in value and all(type(key) is str for key in value):
            return {key: self.out(item, f"{path}.{key}") for key, item in value.items()}
        packed = {_PACKED: base64.b64encode(self._codec.pack(value, path)).decode()}
        return {**packed, "text": str(value)} if isinstance(value, _SAYS) else packed

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


def change_between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What leads from one state to the next, both as JSON: keys to set, lists to extend, keys to drop, a new order."""
    change: dict[str, Any] = {"set": {}, "extend": {}}
    for key, value in after.items():
        old = before.get(key)
        if key in before and _text(old) == _text(value):
            continue
        if isinstance(old, list) and isinstance(value, list) and _text(value[: len(old)]) == _text(old):
            change["extend"][key] = value[len(old) :]
        else:
            change["set"][key] = value
    if dropped := [key for key in before if key not in after]:
        change["drop"] = dropped
    follows = [*(key for key in before if key in after), *(key for key in after if key not in before)]
    if follows != list(after):
        change["order"] = list(after)
    return {name: part for name, part in change.items() if part}


def _text(value: Any) -> str:
    """Tells apart what == does not: 1, 1.0 and True; 0.0 and -0.0; dicts in another order."""
    return json.dumps(value, allow_nan=False)


def changed(before: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The state after a change, both as JSON."""
    after = {key: value for key, value in before.items() if key not in change.get("drop", ())}
    after.update(change.get("set", {}))
    for key, items in change.get("extend", {}).items():
        after[key] = [*after[key], *items]
    return {key: after[key] for key in change["order"]} if "order" in change else after
