"""Any str as text that every database stores, compares and indexes.

PostgreSQL refuses NUL characters in text, no database takes lone surrogates, and an entry of
PostgreSQL's indexes has at most 2,704 bytes.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from savers._log.payloads import id_bytes, id_text
from savers._sql.database import DatabaseDamagedError

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
