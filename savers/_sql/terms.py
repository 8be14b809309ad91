"""Terms of the metadata of a checkpoint, by which an index finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from savers._sql.encoded_text import encode_text

_NUMBERS: Final = frozenset({bool, int, float})
_INTERNAL: Final = "graphkit:"
"""The keys with this prefix are graphkit's own; nobody searches for them."""


def list_terms(metadata: Mapping[str, Any]) -> Sequence[str]:
    """Return the terms under which the index keeps a checkpoint.

    A value that is no number, text or None has no term of its own: it may equal others in ways
    that no term shows. Its key has one.
    """
    terms: list[str] = []
    for key, value in metadata.items():
        if key.startswith(_INTERNAL):
            continue
        term = _make_term(key, value)
        terms.append(_make_key_term(key) if term is None else term)
    return terms


def list_search_terms(key: str, value: Any) -> Sequence[str] | None:
    """Return the terms of all checkpoints whose metadata may have a value under a key.

    None if the index cannot know. A checkpoint with a term may have another value, so the caller
    compares.
    """
    if key.startswith(_INTERNAL):
        return None
    term = _make_term(key, value)
    return None if term is None else (term, _make_key_term(key))


def _make_term(key: str, value: Any) -> str | None:
    """Return the term of a value; values that are equal have the same."""
    kind = value.__class__
    if kind is str:
        return encode_text(f"{key}='{value}")
    if value is None:
        return encode_text(f"{key}=")
    if kind in _NUMBERS and value == value:  # noqa: PLR0124 - not a number equals nothing
        # 1, 1.0 and True are equal.
        number = int(value) if value in {0, 1} or kind is int or value.is_integer() else value
        return encode_text(f"{key}={number!r}")
    return None


def _make_key_term(key: str) -> str:
    return encode_text(f"{key}:")
