"""The keys of an audit log: what signs its heads, and what its digests are keyed with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

from graphkit.errors import CheckpointerConfigurationError, MissingDependencyError
from savers._audit.entries import Entry, to_canonical
from savers._cipher import KeyFile

KeySource = bytes | str | os.PathLike[str] | object
"""32 bytes, the content of a PEM file, the path of one, or a key object of `cryptography`."""
_RAW_KEY: Final = 32
_PEM: Final = b"-----BEGIN "
_LEAST_DIGEST_KEY: Final = 16


@final
class Signer:
    """Signs heads with an Ed25519 private key. Its repr does not show the key."""

    def __init__(self, source: KeySource) -> None:
        """Load the key.

        Raises:
            CheckpointerConfigurationError: it is not such a key.
            MissingDependencyError: the package `cryptography` is not installed.
        """
        keys = _import_keys()
        self._key: Any = _load(source, keys.Ed25519PrivateKey, "from_private_bytes", "private")
        self.public_key: str = self._key.public_key().public_bytes_raw().hex()

    def sign(self, entry: Entry) -> Entry:
        """Return an entry with the public key and the signature of its canonical form."""
        unsigned = {**entry, "public_key": self.public_key}
        return {**unsigned, "signature": self._key.sign(to_canonical(unsigned)).hex()}


@final
class SignatureChecker:
    """Checks signatures with an Ed25519 public key."""

    def __init__(self, source: KeySource) -> None:
        """Load the key.

        Raises:
            CheckpointerConfigurationError: it is not such a key.
            MissingDependencyError: the package `cryptography` is not installed.
        """
        keys = _import_keys()
        self._key: Any = _load(source, keys.Ed25519PublicKey, "from_public_bytes", "public")

    def accepts(self, entry: Mapping[str, Any]) -> bool:
        """Return whether an entry has the signature of the key."""
        from cryptography.exceptions import InvalidSignature

        unsigned = {name: value for name, value in entry.items() if name != "signature"}
        try:
            self._key.verify(bytes.fromhex(entry["signature"]), to_canonical(unsigned))
        except (InvalidSignature, KeyError, TypeError, ValueError):
            return False
        return True


def _import_keys() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingDependencyError("cryptography", "encryption") from error
    return ed25519


def _load(source: KeySource, key_class: Any, from_raw: str, kind: str) -> Any:
    """Return a key: an object as it is, or made from bytes or from a PEM file."""
    if isinstance(source, key_class):
        return source
    if isinstance(source, (str, os.PathLike)):
        try:
            source = Path(source).read_bytes()
        except OSError as error:
            raise CheckpointerConfigurationError(f"the {kind} key cannot be read: {error}") from error
    if not isinstance(source, bytes):
        raise CheckpointerConfigurationError(f"not a {kind} key of Ed25519: {type(source).__name__}")
    if not source.startswith(_PEM):
        if len(source) != _RAW_KEY:
            raise CheckpointerConfigurationError(f"a {kind} key of Ed25519 has {_RAW_KEY} bytes, not {len(source)}")
        return getattr(key_class, from_raw)(source)
    loaded = _load_pem(source, kind)
    if not isinstance(loaded, key_class):
        raise CheckpointerConfigurationError(f"the PEM file has no {kind} key of Ed25519")
    return loaded


def _load_pem(content: bytes, kind: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        if kind == "private":
            return serialization.load_pem_private_key(content, None)
        return serialization.load_pem_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # TypeError: it is encrypted. No message here shows the content of the file.
        raise CheckpointerConfigurationError(f"the PEM file of the {kind} key cannot be used: {error}") from error


def load_digest_key(source: Any) -> bytes | None:
    """Return a digest key: bytes as they are, or the current key of a key file, as `cipher` has it.

    Raises:
        CheckpointerConfigurationError: it is too short, or the file cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        return next(iter(KeyFile(source).read().values()))
    if source is not None and (not isinstance(source, bytes) or len(source) < _LEAST_DIGEST_KEY):
        raise CheckpointerConfigurationError(f"a digest key has at least {_LEAST_DIGEST_KEY} bytes")
    return source
