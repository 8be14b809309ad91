"""Signs entries of an audit log; checks its chain and its signatures, and reports what is wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from graphkit.errors import CheckpointerConfigurationError, MissingDependencyError
from savers._audit.entries import BEGINNING, AuditHead, Entry, digest_entry, parse_entry, to_canonical

KeySource = bytes | str | os.PathLike[str] | object
"""32 bytes, the content of a PEM file, the path of one, or a key object of `cryptography`."""
_RAW_KEY: Final = 32
_PEM: Final = b"-----BEGIN "
_MOST_AT_ONCE: Final = 3
"""How many entries a writer appends at most before it looks whether a signed head is due: an operation, a gap,
and an unfinished write. It may die before it appends the head."""


class AuditProblem(NamedTuple):
    """Something that is wrong with an audit log, or with the store that it is about."""

    where: str
    """A file or an entry of the log, or a thread."""
    reason: str
    """What is wrong."""


@final
@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What verify found.

    Attributes:
        problems: what is wrong; empty if nothing is.
        entries: how many entries the log has.
        unknown: how many operations have no outcome: a crash came before it, or they still run.
        gaps: how many entries could not be written; see `on_error="warn"`.
        torn: how often the last write had not finished, and was set aside.
        signed: the number of the last entry with a valid signature; 0 if there is none, or no key was given.
        head: where the log ends.
    """

    problems: tuple[AuditProblem, ...] = ()
    entries: int = 0
    unknown: int = 0
    gaps: int = 0
    torn: int = 0
    signed: int = 0
    head: AuditHead = BEGINNING

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@final
@dataclass(kw_only=True)
class ChainChecker:
    """Checks the entries of a log, one after another."""

    signatures: SignatureChecker | None = None
    expect_head: AuditHead | None = None
    problems: list[AuditProblem] = field(default_factory=list)
    is_damaged: bool = False
    """Whether records could not be read: entries may be missing in what was yielded."""
    _head: AuditHead = BEGINNING
    _entries: int = 0
    _signed: int = 0
    _gaps: int = 0
    _torn: int = 0
    _sign_every: int = 0
    _open: set[int] = field(default_factory=set)
    _is_expected_found: bool = field(init=False)
    _is_resuming: bool = False
    """Whether damage lies before the next entry, which was reported."""

    def __post_init__(self) -> None:
        # Each log has had the head of an empty one.
        self._is_expected_found = self.expect_head in {None, BEGINNING}

    def report(self, where: str, reason: str) -> None:
        """Note a problem."""
        self.problems.append(AuditProblem(where, reason))

    def skip_damage(self) -> None:
        """Note that what is between the last entry and the next one cannot be read."""
        self.is_damaged = True
        self._is_resuming = True

    def add(self, canonical: bytes) -> Entry | None:
        """Check the next entry; return it, or None if it is none."""
        entry = parse_entry(canonical)
        if entry is None:
            self.report(f"entry {self._head.seq + 1}", "it is not an entry in its canonical form")
            self.skip_damage()
            return None
        seq = entry["seq"]
        if not self._is_resuming:
            if seq != self._head.seq + 1:
                reason = f"the number {seq} stands there: entries were removed, added or reordered"
                self.report(f"entry {self._head.seq + 1}", reason)
            elif entry["prev"] != self._head.digest:
                self.report(f"entry {self._head.seq}", "it was changed: the next entry has another digest of it")
        self._is_resuming = False
        self._head = AuditHead(seq, digest_entry(canonical))
        self._entries += 1
        if self._head == self.expect_head:
            self._is_expected_found = True
        self._note(entry, seq)
        return entry

    def _note(self, entry: Entry, seq: int) -> None:
        match entry["kind"]:
            case "intent":
                self._open.add(seq)
            case "outcome":
                if entry.get("of") not in self._open:
                    self.report(f"entry {seq}", "it is the outcome of no intent")
                self._open.discard(entry.get("of", 0))
            case "gap":
                self._gaps += entry.get("count", 1)
            case "torn":
                self._torn += 1
        if self.signatures is None or "signature" not in entry:
            return
        if self.signatures.accepts(entry):
            self._signed = seq
            # Only a signed entry says it: anyone can append another one.
            self._sign_every = entry.get("sign_every", self._sign_every)
        else:
            self.report(f"entry {seq}", "its signature is not that of the public key")

    def finish(self) -> AuditReport:
        """Check what can only be known at the end; return the report."""
        if self.expect_head is not None and not self._is_expected_found:
            self.report(f"entry {self.expect_head.seq}", "the expected head is missing: the log was cut or changed")
        if self.signatures is not None and not self._signed:
            self.report("the log", "no head is signed with the public key")
        elif self.signatures is not None:
            unsigned = self._head.seq - self._signed
            if unsigned > self._sign_every + _MOST_AT_ONCE:
                interval = f"every {self._sign_every} there is a signed head"
                self.report("the log", f"{unsigned} entries at its end are not signed, and {interval}")
        return AuditReport(
            problems=tuple(self.problems),
            entries=self._entries,
            unknown=len(self._open),
            gaps=self._gaps,
            torn=self._torn,
            signed=self._signed,
            head=self._head,
        )


# Signatures


@final
class Signer:
    """Signs heads with an Ed25519 private key. Its repr does not show the key."""

    def __init__(self, source: KeySource) -> None:
        """Load the key.

        Raises:
            CheckpointerConfigurationError: it is not such a key.
            MissingDependencyError: the package `cryptography` is not installed.
        """
        self._key: Any = _load(source, "private")
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
        self._key: Any = _load(source, "public")

    def accepts(self, entry: Mapping[str, Any]) -> bool:
        """Return whether an entry has the signature of the key."""
        from cryptography.exceptions import InvalidSignature

        unsigned = {name: value for name, value in entry.items() if name != "signature"}
        try:
            self._key.verify(bytes.fromhex(entry["signature"]), to_canonical(unsigned))
        except (InvalidSignature, KeyError, TypeError, ValueError):
            return False
        return True


def _load(source: KeySource, kind: str) -> Any:
    """Return a key of a kind, private or public: an object as it is, or made from bytes or from a PEM file."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    except ImportError as error:
        raise MissingDependencyError("cryptography", "encryption") from error
    key_class: Any = Ed25519PrivateKey if kind == "private" else Ed25519PublicKey
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
        return getattr(key_class, f"from_{kind}_bytes")(source)
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        if kind == "private":
            loaded: object = serialization.load_pem_private_key(source, None)
        else:
            loaded = serialization.load_pem_public_key(source)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # TypeError: it is encrypted. No message here shows the content of the file.
        raise CheckpointerConfigurationError(f"the PEM file of the {kind} key cannot be used: {error}") from error
    if not isinstance(loaded, key_class):
        raise CheckpointerConfigurationError(f"the PEM file has no {kind} key of Ed25519")
    return loaded
