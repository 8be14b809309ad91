"""Seals the payloads of a log's records, and opens them.

docs/format.md specifies the bytes. A sealed payload is a *head* (the id of the user's key, the salt
and the check), a nonce, a tag, and the ciphertext, which is as long as the payload was and ends
where the payload ends. So the data of a record stand at the same distance from the record's end,
whether it is sealed or not, and pieces of values keep their positions.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, final

from graphkit.errors import CheckpointCorruptionError, CheckpointKeyError
from savers._cipher import CHECK_SIZE, MAX_KEY_ID, SALT_SIZE, derive_key, encode_text
from savers._log.frame import SEALED, SEALED_TYPES, Frame

if TYPE_CHECKING:
    from savers._cipher import DerivedKey, KeyRing

NONCE_SIZE: Final = 12
TAG_SIZE: Final = 16
_PLACE: Final = Struct("<BIIIIBQ")
FIXED_HEAD: Final = 1 + SALT_SIZE + CHECK_SIZE
"""Bytes of a head without the key id."""
MAX_OVERHEAD: Final = FIXED_HEAD + MAX_KEY_ID + NONCE_SIZE + TAG_SIZE
"""By how many bytes sealing makes a payload longer at most."""


class _Sealer(NamedTuple):
    """What seals and opens the records with one head."""

    head: bytes
    key: DerivedKey


def pack_place(flags: int, back: int, key: int, seq: int, fid: int, type: int, offset: int) -> bytes:
    """Return what a sealed record is bound to, besides the history: fields of its header, its offset.

    The first five fields stand in the header in this order.
    """
    return _PLACE.pack(flags, back, key, seq, fid, type, offset)


def read_key_id(payload: bytes) -> str:
    """Return the id of the key that sealed a payload."""
    return payload[1 : 1 + payload[0]].decode("utf-8", "surrogatepass")


@final
class LogSeal:
    """Seals and opens the records of one log.

    A log is sealed or plain as a whole. The caller holds the mutex of the log.
    """

    def __init__(self, key_ring: KeyRing | None, path: str, owner: tuple[str, str], key_id: str) -> None:
        """Prepare to open or to seal records.

        Args:
            key_ring: the keys of the saver; None if it has none, so that every use of the seal
                is an error.
            path: the path of the log, for errors.
            owner: the thread and the namespace.
            key_id: the id of the key with which the log was begun, for errors.
        """
        self.key_id = key_id
        self._key_ring = key_ring
        self._path = path
        self._owner = owner
        self._sealers: dict[bytes, _Sealer] = {}
        """By head. Usually one: who appends to a log continues with the salt that it finds."""
        self._current: _Sealer | None = None
        """What seals new records."""

    # Opening

    def open(self, frame: Frame, fid: int) -> Frame:
        """Return a record with the payload that was sealed; others are returned as they are.

        Raises:
            CheckpointKeyError: the key is missing or wrong.
            CheckpointCorruptionError: the record was changed, or moved from another place.
        """
        if not frame.flags & SEALED:
            if frame.type in SEALED_TYPES:
                raise CheckpointCorruptionError(self._path, frame.offset, "it is not sealed, as its log is")
            return frame
        # By position: `_replace` takes 1 us.
        offset, end, type_, flags, back, key, seq, sealed, vouched, boot = frame
        place = pack_place(flags, back, key, seq, fid, type_, offset)
        payload = self.open_payload(sealed, place, offset)
        if payload is None:
            reason = "it was changed, or moved to another place, after it was sealed"
            raise CheckpointCorruptionError(self._path, frame.offset, reason)
        return Frame(offset, end, type_, flags & ~SEALED, back, key, seq, payload, vouched, boot)

    def open_payload(self, sealed: bytes, place: bytes, offset: int) -> bytes | None:
        """Return the payload that was sealed; None if the bytes or their place were changed.

        Args:
            sealed: the stored payload.
            place: see `pack_place`.
            offset: the offset of the record, for errors.

        Raises:
            CheckpointKeyError: the key is missing or wrong.
        """
        head_end = sealed[0] + FIXED_HEAD if sealed else 0
        nonce_end = head_end + NONCE_SIZE
        tag_end = nonce_end + TAG_SIZE
        if not head_end or len(sealed) < tag_end:
            return None
        key = self.find_key(sealed[:head_end], offset)
        try:
            opened: bytes = key.aead.decrypt(
                sealed[head_end:nonce_end],
                sealed[tag_end:] + sealed[nonce_end:tag_end],
                place,
            )
        except key.refusal:
            return None
        return opened

    def find_key(self, head: bytes, offset: int) -> DerivedKey:
        """Return what opens the records with a head.

        Raises:
            CheckpointKeyError: the key is missing or wrong.
            CheckpointCorruptionError: the head is malformed.
        """
        sealer = self._sealers.get(head)
        if sealer is not None:
            return sealer.key
        try:
            key_id = read_key_id(head)
        except UnicodeDecodeError as error:
            raise CheckpointCorruptionError(self._path, offset, f"its key id is malformed: {error}") from error
        key = self._get_key_ring(key_id).find(key_id, self._path)
        salt_end = len(head) - CHECK_SIZE
        salt = head[salt_end - SALT_SIZE : salt_end]
        derived = derive_key(key, salt, *self._owner)
        if derived.check != head[salt_end:]:
            reason = (
                f"another key was given under this id, or the record at byte {offset} "
                "comes from another thread or namespace"
            )
            raise CheckpointKeyError(self._path, key_id, reason)
        return self._add(head, derived).key

    def _add(self, head: bytes, key: DerivedKey) -> _Sealer:
        sealer = _Sealer(head, key)
        self._sealers[head] = sealer
        return sealer

    def _get_key_ring(self, key_id: str) -> KeyRing:
        if self._key_ring is None:
            raise CheckpointKeyError(self._path, key_id, "open the store with `cipher`", has_keys=False)
        return self._key_ring

    # Sealing

    def seal(self, payload: bytes, place: bytes) -> bytes:
        """Return a payload sealed with the current key; takes about 1.5 us for 500 bytes.

        Args:
            payload: the payload.
            place: see `pack_place`; its flags include SEALED.

        Raises:
            CheckpointKeyError: the key is missing.
        """
        return _seal(self._current or self.begin(), payload, place)

    def begin(self) -> _Sealer:
        """Choose the current key for the records to come.

        Raises:
            CheckpointKeyError: the key is missing.
        """
        key_id, key = self._get_key_ring(self.key_id).get_current(self._path)
        self.key_id = self.key_id or key_id
        self._current = self._choose_sealer(key_id, key)
        return self._current

    def seal_as(self, sealed: bytes, payload: bytes, place: bytes) -> bytes:
        """Return a payload sealed with the key that another sealed payload names.

        It is as long as that one, so distances between records stay true when all are copied.
        """
        key_id = read_key_id(sealed)
        key = self._get_key_ring(key_id).find(key_id, self._path)
        return _seal(self._choose_sealer(key_id, key), payload, place)

    def _choose_sealer(self, key_id: str, key: bytes) -> _Sealer:
        """Return what seals with a key: with a salt that the log has already, or a new one."""
        encoded = encode_text(key_id)
        beginning = bytes([len(encoded)]) + encoded
        for head, sealer in self._sealers.items():
            if head.startswith(beginning):
                return sealer
        salt = os.urandom(SALT_SIZE)
        derived = derive_key(key, salt, *self._owner)
        return self._add(beginning + salt + derived.check, derived)


def _seal(sealer: _Sealer, payload: bytes, place: bytes) -> bytes:
    # A random nonce, never one of a counter: after a crash, a counter would repeat the nonces of
    # records that were cut off. A reserve of random bytes would be shared with a forked child.
    nonce = os.urandom(NONCE_SIZE)
    sealed: bytes = sealer.key.aead.encrypt(nonce, payload, place)
    return b"".join((sealer.head, nonce, sealed[-TAG_SIZE:], sealed[:-TAG_SIZE]))
