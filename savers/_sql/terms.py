"""Terms of the metadata of checkpoints, by which an index finds the histories that have them.

A term is a hash of a key and a value. A history has each of its terms once: most of the metadata of
a checkpoint is that of the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from savers._sql.encoded_text import hash_text

_NUMBERS: Final = frozenset({bool, int, float})
_INTERNAL: Final = "graphkit:"
"""The keys with this prefix are graphkit's own; nobody searches for them."""


def list_terms(metadata: Mapping[str, Any]) -> Sequence[int]:
    """Return the terms by which the index finds the history of a checkpoint.

    A value that is no number, text or None has no term of its own: it may equal others in ways
    that no term shows. Its key has one.
    """
    terms: list[int] = []
    for key, value in metadata.items():
        if key.startswith(_INTERNAL):
            continue
        text = _describe(key, value)
        terms.append(_make_key_term(key) if text is None else hash_text(text))
    return terms


def list_search_terms(metadata: Mapping[str, Any]) -> Sequence[tuple[int, int]]:
    """Return pairs of terms: of each pair, a history with such metadata has at least one.

    Keys whose values the index does not know have no pair. A history with the terms may have no
    checkpoint with all the values, so the caller compares.
    """
    pairs: list[tuple[int, int]] = []
    for key, value in metadata.items():
        text = None if key.startswith(_INTERNAL) else _describe(key, value)
        if text is not None:
            pairs.append((hash_text(text), _make_key_term(key)))
    return pairs


def _describe(key: str, value: Any) -> str | None:
    """Return a text for a key and a value; values that are equal have the same."""
    kind = value.__class__
    if kind is str:
        return f"{key}='{value}"
    if value is None:
        return f"{key}="
    if kind in _NUMBERS and value == value:  # noqa: PLR0124 - not a number equals nothing
        # 1, 1.0 and True are equal.
        number = int(value) if value in {0, 1} or kind is int or value.is_integer() else value
        return f"{key}={number!r}"
    return None


def _make_key_term(key: str) -> int:
    return hash_text(f"{key}:")
