"""Decides which items a search returns, and which namespaces a listing returns.

Filters have the meaning that they have in LangGraph's InMemoryStore, with two additions. Two values
that have no order do not match, where that store raises an error. A key may be a path with dots, as
in SqliteStore.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from langgraph.store.base import ListNamespacesOp, MatchCondition

from savers.langgraph._entries.records import Namespace

_ORDERINGS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_ANY_LABEL: Final = "*"


def check_filter(filter: Mapping[str, Any] | None) -> None:
    """Raise a ValueError if a filter has an operator that does not exist."""
    for expected in (filter or {}).values():
        _check_expected(expected)


def _check_expected(expected: Any) -> None:
    if isinstance(expected, Mapping):
        is_comparison = _is_comparison(expected)
        for name, value in expected.items():
            if is_comparison and name not in {"$eq", "$ne", *_ORDERINGS}:
                raise ValueError(f"Unsupported operator: {name}")
            _check_expected(value)


def make_test(filter: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    """Return the test that the value of an item must pass; see `matches`."""
    if len(filter) == 1:
        ((key, expected),) = filter.items()
        if "." not in key and not isinstance(expected, (Mapping, list, tuple)):
            # The usual filter, in 0.1 us instead of 0.8.
            return lambda value: bool(value.get(key) == expected)
    return lambda value: matches(value, filter)


def matches(value: Mapping[str, Any], filter: Mapping[str, Any]) -> bool:
    """Return whether the value of an item has what a filter asks for.

    A key that the value does not have counts as None. If the value has no key "a.b", the filter
    means the key "b" of the mapping at "a".
    """
    return all(_is_match(_look_up(value, key), expected) for key, expected in filter.items())


def _look_up(value: Mapping[str, Any], key: str) -> Any:
    if key in value or "." not in key:
        return value.get(key)
    found: Any = value
    for part in key.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _is_match(found: Any, expected: Any) -> bool:
    if isinstance(expected, Mapping):
        if _is_comparison(expected):
            return all(_compare(found, name, value) for name, value in expected.items())
        return isinstance(found, Mapping) and matches(found, expected)
    if isinstance(expected, (list, tuple)):
        return isinstance(found, list) and len(found) == len(expected) and all(map(_is_match, found, expected))
    return bool(found == expected)


def _is_comparison(expected: Mapping[Any, Any]) -> bool:
    return any(isinstance(name, str) and name.startswith("$") for name in expected)


def _compare(found: Any, name: str, value: Any) -> bool:
    if name == "$eq":
        return bool(found == value)
    if name == "$ne":
        return bool(found != value)
    compare = _ORDERINGS[name]
    if isinstance(found, str) and isinstance(value, str):
        return compare(found, value)
    try:
        return compare(float(found), float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def select_namespaces(namespaces: list[Namespace], op: ListNamespacesOp) -> list[Namespace]:
    """Return the namespaces that an operation asks for.

    Args:
        namespaces: all namespaces, sorted.
        op: the operation.
    """
    conditions = op.match_conditions or ()
    found = [one for one in namespaces if all(_has_path(one, condition) for condition in conditions)]
    if op.max_depth is not None:
        found = list(dict.fromkeys(one[: op.max_depth] for one in found))
    return found[op.offset : op.offset + op.limit]


def _has_path(namespace: Namespace, condition: MatchCondition) -> bool:
    path = condition.path
    if len(namespace) < len(path):
        return False
    if condition.match_type == "prefix":
        part = namespace[: len(path)]
    elif condition.match_type == "suffix":
        part = namespace[len(namespace) - len(path) :]
    else:
        raise ValueError(f"Unsupported match type: {condition.match_type}")
    return all(wanted in (_ANY_LABEL, label) for label, wanted in zip(part, path, strict=True))
