"""What the columns beside the frames hold: names, ids, and the terms of metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from savers._log.payloads import id_bytes, id_text
from savers._sql.database import DatabaseDamagedError

# Any str as text that every database stores, compares and indexes
#
# PostgreSQL refuses NUL characters in text, no database takes lone surrogates, and an entry of PostgreSQL's indexes has
# at most 2,704 bytes.

_ESCAPE: Final = "\x1a"
"""The control character "substitute"; four hexadecimal digits of a code point follow."""
_CUT: Final = f"{_ESCAPE}cut:"
"""Stands before the digest of a text that is too long. No escape begins so: "u" is no digit."""
_TO_ESCAPE: Final = re.compile("[\0\x1a\ud800-\udfff]")
_ESCAPED: Final = re.compile(f"{_ESCAPE}([0-9a-f]{{4}})")

MOST_BYTES: Final = 800
"""The longest encoded text, in bytes of UTF-8. Three of them fit into one entry of an index."""
UUID_BYTES: Final = 16
"""The length of an encoded id that is a UUID, and of no other."""
_KEPT: Final = 100
"""Characters that are kept of a longer text, for people who read the table."""


def encode_text(text: str) -> str:
    """Return the text for a column; different texts have different encodings.

    Texts of up to 800 bytes remain as they are, except for NUL, lone surrogates and U+001A, which
    are escaped. Of a longer one remain its beginning and a digest.
    """
    if text.isascii() and text.isprintable() and len(text) <= MOST_BYTES:
        return text
    encoded = _TO_ESCAPE.sub(lambda match: f"{_ESCAPE}{ord(match[0]):04x}", text)
    if len(encoded.encode()) <= MOST_BYTES:
        return encoded
    digest = blake2b(encoded.encode(), digest_size=32).hexdigest()
    beginning = _TO_ESCAPE.sub("", text[:_KEPT])
    return f"{beginning}{_CUT}{digest}"


def encode_id(id: str) -> bytes:
    """Return the id of a checkpoint for a column: 16 bytes for a UUID in canonical form, else text."""
    raw = id_bytes(id)
    if isinstance(raw, bytes):
        return raw
    encoded = encode_text(id).encode()
    if len(encoded) == UUID_BYTES:
        # The text has no NUL, so this one shows that the bytes are not those of a UUID.
        encoded += b"\0"
    return encoded


def decode_id(encoded: bytes) -> str | None:
    """Return the id that was encoded; None if the text was too long, so that the column does not have all of it."""
    if len(encoded) == UUID_BYTES:
        return id_text(encoded)
    text = encoded.removesuffix(b"\0").decode()
    if is_cut(text):
        return None
    return decode_text(text)


def is_cut(encoded: str) -> bool:
    """Return whether the text was too long, so that it cannot be decoded."""
    return _CUT in encoded


def decode_text(encoded: str) -> str:
    """Return the text that was encoded.

    Raises:
        ValueError: the text was too long; see `is_cut`.
    """
    if _ESCAPE not in encoded:
        return encoded
    if is_cut(encoded):
        raise ValueError(f"only the beginning and the digest of this text are stored: {encoded!r}")
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), encoded)


def encode_long(text: str) -> bytes | None:
    """Return the whole of a text that `encode_text` cuts; None for the others."""
    return text.encode("utf-8", "surrogatepass") if is_cut(encode_text(text)) else None


def decode_row(encoded: str, whole: bytes | None) -> str:
    """Return the text of a row: its encoded text, and the whole if that is cut.

    Raises:
        DatabaseDamagedError: the row has something else.
    """
    try:
        return decode_text(encoded) if whole is None else bytes(whole).decode("utf-8", "surrogatepass")
    except ValueError as error:
        reason = f"a row has {encoded!r:.80} in place of a name"
        raise DatabaseDamagedError("the database", reason, "restore a backup of the database") from error


# Terms of the metadata of checkpoints, by which an index finds the histories that have them
#
# A term is a hash of a key and a value. A history has each of its terms once: most of the metadata of a checkpoint is
# that of the one before it.


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
            if text is not None and is_number and text not in texts:
                count = self._numbers[key] = self._numbers.get(key, 0) + 1
                if count > MOST_NUMBERS:
                    text = None
            if text is None:
                text = _describe_key(key)
            known = text if len(text) <= _LONGEST_TEXT else _hash_text(text)
            if known not in texts:
                texts.add(known)
                terms.append(_hash_text(text))
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
