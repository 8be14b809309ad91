"""Values as JSON that preserves every type, and changes between states, for files of threads."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from typing import Any, Final, final

from graphkit._values.codec import Codec, make_learning_codec
from graphkit._values.frozen import MAX_INT_BITS, FrozenDict, extend_frozen, freeze
from graphkit._values.state import SET, Changes

_PACKED: Final = "$packed"
_LIST: Final = b"\xc1"
"""A byte that no value of msgpack begins with."""
_LEVELS: Final = 100
"""How deeply JSON may be nested, so that every reader of JSON can read it, and people too."""
_WITH_TEXT: Final = (date, time, timedelta, complex, float)
"""Types whose packed values have their text next to them, for people."""


@final
class JsonValueCodec:
    """Converts values to what JSON can hold, and back."""

    def __init__(self, types: Sequence[type] = (), *, learns_types: bool = False) -> None:
        """Make a codec for these application types.

        Args:
            types: the types that values hold.
            learns_types: register each type when one of its objects is packed, instead.
        """
        self._codec = make_learning_codec() if learns_types else Codec(types)

    def encode(self, value: Any, path: str, levels: int = _LEVELS) -> Any:
        """Convert a value to JSON types; pack what JSON cannot hold exactly.

        Args:
            value: the value.
            path: where in the state it is, for errors.
            levels: how deeply the result may be nested; deeper values are packed.

        Raises:
            CheckpointSerializationError: a value has a type that is not registered.
        """
        cls = type(value)
        if cls is float:
            is_exact = math.isfinite(value)
        elif cls is int:
            is_exact = value.bit_length() <= MAX_INT_BITS
        else:
            is_exact = value is None or cls in {bool, str}
        if is_exact:
            return value
        if levels and isinstance(value, list):
            return [self.encode(item, f"{path}[{index}]", levels - 1) for index, item in enumerate(value)]
        is_object = isinstance(value, dict) and _PACKED not in value and all(type(key) is str for key in value)
        if levels and is_object:
            return {key: self.encode(item, f"{path}.{key}", levels - 1) for key, item in value.items()}
        data = self._codec.pack(value, path)
        packed = {_PACKED: base64.b64encode(data).decode()}
        if isinstance(value, _WITH_TEXT):
            packed["text"] = str(value)
        return packed

    def decode(self, value: Any) -> Any:
        """Convert what `encode` returned back to the value."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        if _PACKED in value:
            data = base64.b64decode(value[_PACKED], validate=True)
            return self._codec.unpack(data)
        return {key: self.decode(item) for key, item in value.items()}

    def pack(self, value: Any, path: str) -> bytes:
        """Pack a value, to compare it with another one; a list is `_LIST` and its items, one after the other.

        The bytes differ where == does not: 1, 1.0 and True; 0.0 and -0.0; dicts in another order. Those of a list
        that has grown begin with those of the old one.

        Raises:
            CheckpointSerializationError: a value has a type that is not registered.
        """
        if isinstance(value, list):
            return _LIST + self._codec.pack_items(value, path)
        return self._codec.pack(value, path)


def format_line(data: Any) -> str:
    """Format data, such as those of one line of a file, with the end of the line."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which a UTF-8 file can hold only as an escape
        text = json.dumps(data, allow_nan=False)
    return text + "\n"


@final
class StateDiffer:
    """Tells what changed from one state of a history to the next, as JSON types.

    The result depends on the two states only, and not on what a saver knows of the change.
    """

    def __init__(self, values: JsonValueCodec) -> None:
        self._values = values
        self._state = FrozenDict()
        self._packed: dict[str, bytes] = {}
        """Values of the state that were packed for a comparison."""

    def advance(self, state: FrozenDict, changes: Changes | None) -> dict[str, Any]:
        """Return what changed since the last state; the first state is compared with an empty one.

        The change has up to four keys: `set` (key to value), `extend` (key to the items that were
        appended to its list), `drop` (keys), and `order` (all keys, if the order is not the old one
        with new keys at the end).

        Args:
            state: the next state.
            changes: what changed, if the saver knows it. They count if they apply to the last state.

        Cost: with changes, what changed; otherwise msgpack packs the whole state, in C.

        Raises:
            CheckpointSerializationError: a value has a type that is not registered.
        """
        before = self._state
        ops: Mapping[str, int] = dict.fromkeys(state, SET)
        if changes is not None and changes.base is before:
            ops = changes.ops
        # In a fixed order: equal changes must be equal lines.
        change: dict[str, Any] = {"set": {}, "extend": {}}
        for key, value in state.items():
            if key in ops:
                self._compare(change, key, value, ops[key])
        change["drop"] = [key for key in before if key not in state]
        for key in change["drop"]:
            self._packed.pop(key, None)
        kept = [key for key in before if key in state]
        added = [key for key in state if key not in before]
        if [*kept, *added] != list(state):
            change["order"] = list(state)
        self._state = state
        return {name: part for name, part in change.items() if part}

    def _compare(self, change: dict[str, Any], key: str, value: Any, op: int) -> None:
        """Add to a change what happened to one key."""
        old: Any = self._state.get(key)
        packed_before = self._packed.pop(key, None)
        is_grown = op >= 0
        if not is_grown:
            packed = self._packed[key] = self._values.pack(value, key)
            if packed_before is None and key in self._state:
                packed_before = self._values.pack(old, key)
            if packed == packed_before:
                return
            if packed_before is not None and packed_before.startswith(_LIST):
                is_grown = packed.startswith(packed_before)
        if not is_grown:
            change["set"][key] = self._values.encode(value, key)
            return
        appended = [self._values.encode(item, key) for item in value[len(old) :]]
        if appended:
            change["extend"][key] = appended


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
