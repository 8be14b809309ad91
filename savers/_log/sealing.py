"""Seals the payloads of a log's records, and opens them, one by one or for a range of bytes.

docs/format.md specifies the bytes. A sealed payload is a *head* (the id of the user's key, the salt
and the check), a nonce, a tag, and the ciphertext, which is as long as the payload was and ends
where the payload ends. So the data of a record stand at the same distance from the record's end,
whether it is sealed or not, and pieces of values keep their positions.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import TYPE_CHECKING, Final, final

from graphkit.errors import CheckpointCorruptionError, CheckpointKeyError
from savers._cipher import CHECK_SIZE, MAX_KEY_ID, SALT_SIZE, derive_key, encode_text, get_key_name, has_own_key
from savers._log.frame import (
    FRAME_SIZE,
    HEADER_SIZE,
    MAX_PAYLOAD,
    OVERHEAD,
    SEALED,
    SEALED_TYPES,
    SYNC,
    TRAILER_SIZE,
    Frame,
    parse_extent,
    parse_frame,
)

if TYPE_CHECKING:
    from savers._cipher import DerivedKey, KeyRing
    from savers._log.log_bytes import LogBytes

NONCE_SIZE: Final = 12
TAG_SIZE: Final = 16
_PLACE: Final = Struct("<BIIIIBQ")
FIXED_HEAD: Final = 1 + SALT_SIZE + CHECK_SIZE
"""Bytes of a head without the key id."""
MAX_OVERHEAD: Final = FIXED_HEAD + MAX_KEY_ID + NONCE_SIZE + TAG_SIZE
"""By how many bytes sealing makes a payload longer at most."""
_RECORD: Final = Struct("<4sI4x17s10xB")
"""Of a record's header: sync marker, length, flags to fid, type."""
_unpack_record: Final = _RECORD.unpack_from
_pack_offset: Final = Struct("<BQ").pack
"""Packs the type and the offset of a record."""
_FIRST_STEP: Final = 1 << 12
"""Bytes that are searched at first for the header before a position."""
_STEP_GROWTH: Final = 16
_READ_AHEAD: Final = 1 << 12
"""Bytes read beyond a range, in which its last record usually ends."""
_LONGEST_KEPT: Final = 1 << 18
"""Longer ranges are not kept for the next call."""


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
            key_id: the stored id of the key with which the log was begun. For a new log that of a key
                of its own, or "".
        """
        self.key_id = key_id
        self._key_ring = key_ring
        self._path = path
        self._owner = owner
        self._keys: dict[bytes, DerivedKey] = {}
        """By head. Usually one: who appends to a log continues with the salt that it finds."""
        self._head = b""
        """The head of new records; empty until it was chosen."""

    @property
    def own_key(self) -> str:
        """The stored id of the key that the log has of its own; "" if it has none."""
        return self.key_id if has_own_key(self.key_id) else ""

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
        known = self._keys.get(head)
        if known is not None:
            return known
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
            raise CheckpointKeyError(self._path, get_key_name(key_id), reason)
        self._keys[head] = derived
        return derived

    def _get_key_ring(self, key_id: str) -> KeyRing:
        if self._key_ring is None:
            name = get_key_name(key_id)
            raise CheckpointKeyError(self._path, name, "open the store with `cipher`", has_keys=False)
        return self._key_ring

    # Sealing

    def seal(self, payload: bytes, place: bytes) -> bytes:
        """Return a payload sealed with the key of the log; takes about 1.5 us for 500 bytes.

        Args:
            payload: the payload.
            place: see `pack_place`; its flags include SEALED.

        Raises:
            CheckpointKeyError: the key is missing.
        """
        return self._seal(self._head or self.begin(), payload, place)

    def begin(self) -> bytes:
        """Choose the key for the records to come: the log's own, or the current one; return their head.

        Raises:
            CheckpointKeyError: the key is missing.
        """
        key_ring = self._get_key_ring(self.key_id)
        if has_own_key(self.key_id):
            key_id, key = self.key_id, key_ring.find(self.key_id, self._path)
        else:
            key_id, key = key_ring.get_current(self._path)
        self.key_id = self.key_id or key_id
        self._head = self._choose_head(key_id, key)
        return self._head

    def seal_as(self, sealed: bytes, payload: bytes, place: bytes) -> bytes:
        """Return a payload sealed with the key that another sealed payload names.

        It is as long as that one, so distances between records stay true when all are copied.
        """
        key_id = read_key_id(sealed)
        key = self._get_key_ring(key_id).find(key_id, self._path)
        return self._seal(self._choose_head(key_id, key), payload, place)

    def _choose_head(self, key_id: str, key: bytes) -> bytes:
        """Return the head of records that a key seals: with a salt that the log has already, or a new one."""
        encoded = encode_text(key_id)
        beginning = bytes([len(encoded)]) + encoded
        # One salt serves all records of a log, so that a reader derives one key, which takes longer than opening some
        # records. A new salt is needed only for a new key, or by a writer that has read no record with that key.
        for head in self._keys:
            if head.startswith(beginning):
                return head
        salt = os.urandom(SALT_SIZE)
        derived = derive_key(key, salt, *self._owner)
        head = beginning + salt + derived.check
        self._keys[head] = derived
        return head

    def _seal(self, head: bytes, payload: bytes, place: bytes) -> bytes:
        # A random nonce, never one of a counter: after a crash, a counter would repeat the nonces of
        # records that were cut off. A reserve of random bytes would be shared with a forked child.
        nonce = os.urandom(NONCE_SIZE)
        sealed: bytes = self._keys[head].aead.encrypt(nonce, payload, place)
        return b"".join((head, nonce, sealed[-TAG_SIZE:], sealed[:-TAG_SIZE]))


@final
class OpenedRanges:
    """Reads ranges of a sealed log, with the payloads of its records opened.

    A value's pieces are ranges of the log, and a piece does not say in which record it is. So the
    reader goes back from the beginning of a range to the header of the record there, which proves
    itself, and from it forward over all records of the range. Each is opened, which checks all of
    it, and its payload takes the place of its ciphertext. Bytes that belong to no record that can be
    opened are zero in the result, because damage between the pieces of a value does no harm to it.
    Every value has a checksum of its own, so a missing piece never goes unnoticed.

    The records of an open log do not change.
    """

    def __init__(self, bytes: LogBytes, fid: int | None, seal: LogSeal) -> None:
        self._bytes = bytes
        self._fid = fid
        self._seal = seal
        self._start = 0
        """Where the bytes that were opened last begin in the file."""
        self._kept = bytearray()
        """Whole records, up to where the next one begins."""
        self._ends_with_record = True
        self._appended_start = 0
        self._appended = b""
        """The payload that was sealed last, which the next put is compared with."""

    @property
    def size(self) -> int:
        """How many bytes this keeps."""
        return len(self._kept) + len(self._appended)

    def forget(self) -> None:
        """Drop what is kept."""
        self._kept = bytearray()
        self._appended = b""

    def read(self, start: int, length: int) -> bytes:
        """Return a range of the file as it would be if the log were not sealed.

        Only the bytes of payloads mean anything.

        Raises:
            CheckpointKeyError: a key is missing or wrong.
        """
        # A put compares a long value with the one that the last put has stored: that payload is still in memory.
        at = start - self._appended_start
        if at >= 0 and at + length <= len(self._appended):
            return self._appended[at : at + length]
        end = start + length
        kept_end = self._start + len(self._kept)
        if not self._start <= start <= kept_end:
            # Not in the bytes that are kept, nor behind them.
            self._kept = bytearray()
            self._start = kept_end = self._find_record(start)
        if end > kept_end:
            self._kept += self._open_records(kept_end, end)
        at = start - self._start
        opened = bytes(self._kept[at : at + length])
        if len(self._kept) > _LONGEST_KEPT or not self._ends_with_record:
            self._kept = bytearray()
        return opened

    def note_appended(self, end: int, payload: bytes) -> None:
        """Note the payload of the record that was just appended; `end` is where it ends."""
        self._appended_start = end - len(payload)
        self._appended = payload if len(payload) <= _LONGEST_KEPT else b""

    def _open_records(self, first: int, end: int) -> bytearray:
        """Return the bytes from a record on, opened, up to the end of the record at `end`."""
        data = self._bytes.read_at(first, end + _READ_AHEAD - first)
        opened = bytearray(len(data))
        size = end - first
        at = 0
        # A long list has thousands of records; each takes about 2 us here.
        while at < size and at + FRAME_SIZE <= len(data):
            sync, length, place, type_ = _unpack_record(data, at)
            record_end = at + length + OVERHEAD
            payload = None
            if sync == SYNC and length <= MAX_PAYLOAD and place[0] & SEALED:
                if record_end > len(data):
                    data += self._bytes.read_at(first + len(data), record_end - len(data))
                    opened += bytes(len(data) - len(opened))
                sealed = data[at + FRAME_SIZE : at + FRAME_SIZE + length]
                offset = first + at
                try:
                    payload = self._seal.open_payload(sealed, place + _pack_offset(type_, offset), offset)
                except (CheckpointKeyError, CheckpointCorruptionError):
                    # Of a damaged record, the id of the key may be damaged.
                    if isinstance(parse_frame(data, at, offset, self._fid or 0), Frame):
                        raise
            if payload is None:
                at = self._find_next_record(first, data, at)
                self._ends_with_record = False
                continue
            payload_end = record_end - TRAILER_SIZE
            opened[payload_end - len(payload) : payload_end] = payload
            at = record_end
            self._ends_with_record = True
        del opened[at:]
        return opened

    def _find_record(self, position: int) -> int:
        """Return the offset of the record with a position; the position itself if there is none."""
        step = _FIRST_STEP
        while True:
            start = max(HEADER_SIZE, position - step)
            data = self._bytes.read_at(start, position - start)
            at = data.rfind(SYNC)
            while at >= 0:
                if self._is_record(data, at, start + at):
                    return start + at
                at = data.rfind(SYNC, 0, at + len(SYNC) - 1)
            if start == HEADER_SIZE:
                return position
            step *= _STEP_GROWTH

    def _find_next_record(self, first: int, data: bytes, at: int) -> int:
        """Return the index of the next record in the data that can be one; their length if none is.

        Args:
            first: where the data begin in the file.
            data: a range of the file.
            at: the index of the record that could not be opened.
        """
        # No other record stands inside of one: the checksum of a header covers its offset.
        at = data.find(SYNC, at + 1)
        while at >= 0 and not self._is_record(data, at, first + at):
            at = data.find(SYNC, at + 1)
        return len(data) if at < 0 else at

    def _is_record(self, data: bytes, at: int, offset: int) -> bool:
        extent = parse_extent(data[at : at + FRAME_SIZE], offset)
        return extent is not None and extent.fid == self._fid
