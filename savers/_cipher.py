"""The keys that seal stored data, and how the key of one log is derived.

A user's key never seals anything itself. From it and a random salt, HKDF-SHA256 derives a key for
one history of one thread, and a *check*: a few bytes that show whether a reader has the same key.
"""

from __future__ import annotations

import os
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, final

from graphkit.errors import CheckpointerConfigurationError, CheckpointKeyError, MissingDependencyError

_FIELDS: Final = 2
"""A line has a key id and a key."""


@final
class KeyFile:
    """A `cipher` whose keys stand in a file, one per line: its id, and the key in base64.

    The first key is the current one. Empty lines, and lines that begin with `#`, are skipped. The
    file is read each time a key is needed: that is when a log is opened. A pickle holds only its
    path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(Path(path).absolute())

    def __call__(self, key_id: str | None) -> bytes | tuple[str, bytes]:
        """Return a key by its id; for None the id of the current key, and the key.

        Raises:
            LookupError: the file has no such key.
            CheckpointerConfigurationError: the file cannot be read, or is malformed.
        """
        keys = self.read()
        if key_id is None:
            return next(iter(keys.items()))
        return keys[key_id]

    def read(self) -> dict[str, bytes]:
        """Return all keys, the current one first.

        Raises:
            CheckpointerConfigurationError: the file cannot be read, or is malformed. The message
                shows no key.
        """
        try:
            lines = Path(self.path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointerConfigurationError(f"the key file {self.path} cannot be read: {error}") from error
        keys: dict[str, bytes] = {}
        for number, line in enumerate(lines, 1):
            fields = line.split()
            if not fields or fields[0].startswith("#"):
                continue
            key = _decode_key(fields[1]) if len(fields) == _FIELDS else None
            if key is None:
                raise self._error(number, "must be a key id and 32 bytes in base64")
            if fields[0] in keys:
                raise self._error(number, f"repeats the key id {fields[0]!r}")
            keys[fields[0]] = key
        if not keys:
            raise CheckpointerConfigurationError(f"the key file {self.path} has no key")
        return keys

    def _error(self, number: int, reason: str) -> CheckpointerConfigurationError:
        return CheckpointerConfigurationError(f"line {number} of the key file {self.path} {reason}")

    def __repr__(self) -> str:
        return f"KeyFile({self.path!r})"


def _decode_key(text: str) -> bytes | None:
    try:
        key = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        return None
    return key if len(key) == 32 else None  # noqa: PLR2004 - as the message says


Cipher: TypeAlias = Mapping[str, bytes] | Callable[[str | None], Any] | str | os.PathLike[str]
"""Keys of 32 bytes by their ids, the current one first; or a function from an id to its key, which
returns the id and the key of the current one for None; or the path of a key file."""

KEY_SIZE: Final = 32
"""Bytes of a user's key."""
SALT_SIZE: Final = 16
CHECK_SIZE: Final = 4
MAX_KEY_ID: Final = 255
"""Bytes of the longest key id, in UTF-8."""
_LABEL: Final = b"graphkit sealed record\0"


class DerivedKey(NamedTuple):
    """What seals the records of one history."""

    aead: Any
    """AES-256-GCM with the derived key: `encrypt` and `decrypt`."""
    refusal: type[Exception]
    """What `decrypt` raises if the bytes are not what was encrypted."""
    check: bytes
    """Shows a reader whether it has derived the same key."""


@final
class KeyRing:
    """The keys of a saver. Its repr shows none of them."""

    def __init__(self, cipher: Cipher) -> None:
        """Check the keys, and that the package is installed.

        Raises:
            CheckpointerConfigurationError: the cipher is not a mapping of ids to keys, a function
                or the path of a key file.
            MissingDependencyError: the package `cryptography` is not installed.
        """
        keys: Any = cipher
        if isinstance(keys, (str, os.PathLike)):
            keys = KeyFile(keys)
            keys.read()  # raises at once what is wrong with it
        if not isinstance(keys, Mapping) and not callable(keys):
            raise CheckpointerConfigurationError(
                f"cipher must be a mapping of key ids to keys, a function or the path of a key file, "
                f"not {type(keys).__name__}",
            )
        if isinstance(keys, Mapping):
            if not keys:
                raise CheckpointerConfigurationError("cipher has no key; the first one seals new records")
            # A copy: the caller may change or clear the mapping.
            keys = dict(keys)
            for key_id, key in keys.items():
                _check_key(key_id, key)
        _import_aesgcm()
        self.cipher: Mapping[str, bytes] | Callable[[str | None], Any] = keys

    def get_current(self, path: str) -> tuple[str, bytes]:
        """Return the id of the current key, and the key.

        Args:
            path: the file to seal, for errors.

        Raises:
            CheckpointKeyError: the function that provides the keys failed.
            CheckpointerConfigurationError: it returned something else than an id and a key.
        """
        cipher = self.cipher
        if isinstance(cipher, Mapping):
            return next(iter(cipher.items()))
        try:
            current = cipher(None)
        except Exception as error:
            raise CheckpointKeyError(path, "(current)", _describe_failure(error)) from error
        if not isinstance(current, tuple) or len(current) != len(("id", "key")):
            raise CheckpointerConfigurationError(
                f"cipher(None) must return the id and the key of the current key, not {type(current).__name__}",
            )
        key_id, key = current
        _check_key(key_id, key)
        return key_id, key

    def find(self, key_id: str, path: str) -> bytes:
        """Return the key with an id.

        Raises:
            CheckpointKeyError: there is no such key.
            CheckpointerConfigurationError: the function that provides the keys returned no key.
        """
        cipher = self.cipher
        try:
            key = cipher[key_id] if isinstance(cipher, Mapping) else cipher(key_id)
        except LookupError as error:
            raise CheckpointKeyError(path, key_id, "no such key was given; add it") from error
        except Exception as error:
            raise CheckpointKeyError(path, key_id, _describe_failure(error)) from error
        _check_key(key_id, key)
        return bytes(key)


def _describe_failure(error: Exception) -> str:
    return f"the function that provides the keys raised {type(error).__name__}: {error}"


def _check_key(key_id: Any, key: Any) -> None:
    """Refuse an invalid id or key. The message does not show the key."""
    if not isinstance(key_id, str) or not 1 <= len(encode_text(key_id)) <= MAX_KEY_ID:
        raise CheckpointerConfigurationError(f"a key id must be text of 1 to {MAX_KEY_ID} bytes, not {key_id!r}")
    if not isinstance(key, bytes) or len(key) != KEY_SIZE:
        found = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise CheckpointerConfigurationError(
            f"the key {key_id!r} must be {KEY_SIZE} random bytes, not {found}; os.urandom({KEY_SIZE}) makes one",
        )


def parse_cipher(option: Any) -> KeyRing | None:
    """Return the KeyRing for an option, None without one; see KeyRing for the errors."""
    return None if option is None else KeyRing(option)


def check_cipher(option: Any) -> None:
    """Check an option of a saver that is not opened; a key file may be missing. See KeyRing for the errors."""
    if not isinstance(option, str | os.PathLike):
        parse_cipher(option)


def derive_key(key: bytes, salt: bytes, thread_id: str, namespace: str) -> DerivedKey:
    """Derive what seals the records of one history with one salt. Takes about 6 us."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    thread = encode_text(thread_id)
    owner = len(thread).to_bytes(4, "little") + thread + encode_text(namespace)
    derived = HKDF(SHA256(), KEY_SIZE + CHECK_SIZE, salt=salt, info=_LABEL + owner).derive(key)
    aead = _import_aesgcm()(derived[:KEY_SIZE])
    return DerivedKey(aead=aead, refusal=InvalidTag, check=derived[KEY_SIZE:])


def encode_text(text: str) -> bytes:
    """Return a text in UTF-8; lone surrogates are encoded like other code points."""
    return text.encode("utf-8", "surrogatepass")


def _import_aesgcm() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise MissingDependencyError("cryptography", "encryption") from error
    return AESGCM
