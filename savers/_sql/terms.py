"""Terms of the metadata of checkpoints, by which an index finds the histories that have them.

A term is a hash of a key and a value. A history has each of its terms once: most of the metadata of
a checkpoint is that of the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final


def _hash_text(text: str) -> int:
    """Return 64 bits that stand for a text in an index; two texts may have the same. Takes 1 us."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


SEALED_TERM: Final = _hash_text("graphkit:sealed")
"""The only term of a history whose records are sealed: a term of its metadata would show what they are. No key and
value have the same text."""
_NUMBERS: Final = frozenset({bool, int, float})
_INTERNAL: Final = "graphkit:"
"""The keys with this prefix are graphkit's own; nobody searches for them."""
MOST_NUMBERS: Final = 8
"""How many terms of numbers a history has under one key, as far as its writer knows."""
_MOST_KNOWN: Final = 4096
"""How many terms a writer remembers."""
_LONGEST_TEXT: Final = 200
"""Of a longer text, the term is remembered."""


class KnownTerms:
    """The terms that a history has, as far as its writer knows.

    A number that changes with every checkpoint, such as a count of steps, would take a term in each,
    which no search for a history needs. After some numbers under a key, the term of the key stands
    for all of them: it also stands for values that have no term of their own.
    """

    def __init__(self) -> None:
        self._texts: set[str | int] = set()
        """What the terms are made of; the terms themselves if that is long."""
        self._numbers: dict[str, int] = {}
        """By key: how many terms of numbers there are, up to one more than each history has."""
        self._last: Mapping[str, Any] = {}
        """The metadata whose terms were taken last."""

    def take_new(self, metadata: Mapping[str, Any]) -> list[int]:
        """Return the terms of a checkpoint that the history does not have yet; they are known from now on.

        A value that is no number, text or None has no term of its own: it may equal others in ways
        that no term shows. Its key has one.
        """
        terms: list[int] = []
        texts = self._texts
        if len(texts) > _MOST_KNOWN:
            texts.clear()
            self._numbers.clear()
            self._last = {}
        last = self._last
        self._last = metadata
        for key, value in metadata.items():
            # Most values are those of the checkpoint before.
            if (key in last and value is last[key]) or key.startswith(_INTERNAL):
                continue
            is_number = value.__class__ in _NUMBERS
            if is_number and self._numbers.get(key, 0) > MOST_NUMBERS:
                continue
            text = _describe(key, value)
            if text is None:
                text = _describe_key(key)
            elif is_number and text not in texts:
                text = self._count_number(key, text)
            known = text if len(text) <= _LONGEST_TEXT else _hash_text(text)
            if known not in texts:
                texts.add(known)
                terms.append(_hash_text(text))
        return terms

    def _count_number(self, key: str, text: str) -> str:
        """Count a number under a key; return the text of its term, or that of the key after too many."""
        count = self._numbers.get(key, 0) + 1
        self._numbers[key] = count
        return text if count <= MOST_NUMBERS else _describe_key(key)


def list_search_terms(metadata: Mapping[str, Any]) -> Sequence[tuple[int, int]]:
    """Return pairs of terms: of each pair, a history with such metadata has at least one.

    Keys whose values the index does not know have no pair. A history with the terms may have no
    checkpoint with all the values, so the caller compares.
    """
    pairs: list[tuple[int, int]] = []
    for key, value in metadata.items():
        text = None if key.startswith(_INTERNAL) else _describe(key, value)
        if text is not None:
            pairs.append((_hash_text(text), _hash_text(_describe_key(key))))
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


def _describe_key(key: str) -> str:
    return f"{key}:"
