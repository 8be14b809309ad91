"""Drafts the operations that turn the last stored state into a new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from graphkit.errors import CheckpointSerializationError
from graphkit.values import PRIVATE, FrozenDict, FrozenList, kind_of
from savers import _delta as delta

if TYPE_CHECKING:
    from graphkit.codec import Codec
    from graphkit.values import Changes

COMPARE_LENGTH: Final = 1 << 12
"""A value that a node has changed is compared with the stored one if it is longer than this."""
_ABSENT: Final = object()

Compare = Callable[[delta.Value, bytes], delta.Operation | None]
"""Returns the operation that turns a stored value into a packed one; None if they are equal."""


def draft_from_changes(
    changes: Changes,
    state: FrozenDict,
    table: delta.Table,
    codec: Codec,
    compare: Compare,
) -> delta.Draft:
    """Return what changed, as the engine recorded it: only the changed keys are packed.

    Args:
        changes: what changed since the state of the table.
        state: the new state.
        table: the packed state before.
        codec: packs values.
        compare: compares a stored value with a packed one.
    """
    draft: delta.Draft = {}
    for name, op in changes.ops.items():
        old = table.values.get(name)
        if name not in state:
            if old is not None:
                draft[name] = delta.DELETE
            continue
        value = state[name]
        if op > 0 and old is not None and old.kind == delta.LIST and old.count == op:
            items = value[op:]
            if items:
                draft[name] = delta.Append(len(items), codec.pack_items(items, name, op))
            continue
        if value.__class__ is bytes and are_bytes(old, changes.base.get(name), value):
            assert old is not None
            difference = delta.compare_bytes(old, changes.base[name], value)
            if difference is not None:
                draft[name] = difference
            continue
        packed = codec.pack(value, name)
        if len(packed) > COMPARE_LENGTH and old is not None:
            difference = compare(old, packed)
            if difference is not None:
                draft[name] = difference
        else:
            draft[name] = delta.Set(packed)
    return draft


def draft_by_comparison(
    before: Mapping[str, Any],
    state: FrozenDict,
    table: delta.Table,
    codec: Codec,
    compare: Compare,
) -> delta.Draft:
    """Return what changed, by comparing key by key.

    Identical objects are unchanged, because values are immutable; other values are packed.

    Args:
        before: the state of the table; empty if it is not known.
        state: the new state.
        table: the packed state before.
        codec: packs values.
        compare: compares a stored value with a packed one.
    """
    draft: delta.Draft = {}
    for name, value in state.items():
        old = table.values.get(name)
        if old is None:
            draft[name] = delta.Set(codec.pack(value, check_key(name)))
            continue
        old_value = before.get(name, _ABSENT)
        if old_value is value and kind_of(value) != PRIVATE:
            continue
        if old.kind == delta.LIST and _continues(old_value, value):
            items = value[len(old_value) :]
            if items and old.count == len(old_value):
                draft[name] = delta.Append(
                    len(items),
                    codec.pack_items(items, name, len(old_value)),
                )
                continue
        if are_bytes(old, old_value, value):
            op = delta.compare_bytes(old, old_value, value)
        else:
            op = compare(old, codec.pack(value, name))
        if op is not None:
            draft[name] = op
    for name in table.values:
        if name not in state:
            draft[name] = delta.DELETE
    return draft


def draft_first(state: FrozenDict, codec: Codec) -> delta.Draft:
    """Return the operations for a state that has none before it."""
    return {name: delta.Set(codec.pack(value, check_key(name))) for name, value in state.items()}


def check_key(name: Any) -> str:
    """Return a key of a state.

    Raises:
        CheckpointSerializationError: it is not a string.
    """
    if name.__class__ is not str:
        raise CheckpointSerializationError(
            str(name),
            type(name).__name__,
            "the keys of a state are strings",
        )
    return str(name)


def are_bytes(stored: delta.Value | None, old: Any, new: Any) -> bool:
    """Return whether a value was and is a bytes object, so that it can be compared unpacked.

    Args:
        stored: the stored value, if there is one.
        old: the old value, as far as it is known.
        new: the new value.
    """
    if new.__class__ is not bytes or old.__class__ is not bytes or stored is None:
        return False
    return stored.kind == delta.BIN and stored.length == len(old)


def _continues(old: Any, new: Any) -> bool:
    """Return whether a list begins with all elements of an old one, which are the same objects."""
    if new.__class__ is not FrozenList or old.__class__ is not FrozenList or old.kind == PRIVATE:
        return False
    return len(old) <= len(new) and all(map(is_, old, new))
