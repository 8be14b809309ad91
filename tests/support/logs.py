"""The logs of a file store: where they lie, what their records are, and how to forge and damage them.

This module may import the private frame code. Test files take everything from here.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import msgpack

from savers._filesystem import log_bytes
from savers._filesystem.layout import locate_thread as locate_thread, namespace_name as namespace_name
from savers._log import catalogue, frame, history, records, stored_checkpoint, writer
from savers._log.frame import (
    CHECKPOINT as CHECKPOINT,
    COMPRESSED as COMPRESSED,
    DATA as DATA,
    EARLY as EARLY,
    FRAME_SIZE as FRAME_SIZE,
    HEADER_SIZE as HEADER_SIZE,
    KEY as KEY,
    MARK as MARK,
    META as META,
    RELEASE as RELEASE,
    REPLACE as REPLACE,
    SCATTERED as SCATTERED,
    SEALED as SEALED,
    SYNC as SYNC,
    TOMBSTONE as TOMBSTONE,
    TRAILER_SIZE as TRAILER_SIZE,
    WRITE as WRITE,
    pack_frame as pack_frame,
    parse_frame as parse_frame,
)
from savers._log.sealing import read_key_id as read_key_id
from savers._log.stored_checkpoint import KEPT_SUCCESSORS as KEPT_SUCCESSORS

SECTOR = 512
VERSION_OFFSET = 8
HEADER_CHECK_OFFSET = 60
RELEASE_PAYLOAD = b"\x92\x01\x00"
"""The payload of a RELEASE record: version 1, released at time 0."""


def locate_log(root, thread="t", namespace=""):
    """Return the path of the live log of a history."""
    return Path(root, locate_thread(thread).name, namespace_name(namespace), "log")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log."""

    offset: int
    end: int
    type: int
    flags: int
    back: int
    key: int
    seq: int
    fid: int
    unsynced: int
    boot: int
    zeros: int
    payload: bytes

    @property
    def size(self):
        """The length of the record, with header and trailer."""
        return self.end - self.offset

    @property
    def is_keyframe(self):
        return bool(self.flags & KEY)


def read_records(path):
    """Return all records of a log.

    This parser follows docs/format.md and shares nothing with the code under test. It checks nothing.
    """
    data = Path(path).read_bytes()
    records = []
    offset = 64
    # Zeros follow the last record of a log that a writer has extended; every record begins with C1.
    while offset < len(data) and data[offset]:
        (length,) = struct.unpack_from("<I", data, offset + 4)
        fields = struct.unpack_from("<BIIIIHHHIB", data, offset + 12)
        flags, back, key, seq, fid, unsynced, boot, zeros, _, type_ = fields
        end = offset + 40 + length + 5
        record = Record(
            offset=offset,
            end=end,
            type=type_,
            flags=flags,
            back=back,
            key=key,
            seq=seq,
            fid=fid,
            unsynced=unsynced,
            boot=boot,
            zeros=zeros,
            payload=data[offset + 40 : end - 5],
        )
        records.append(record)
        offset = end
    return records


def read_checkpoints(path):
    """Return the CHECKPOINT records of a log."""
    return [record for record in read_records(path) if record.type == CHECKPOINT]


def pack_next(path, type, payload, flags=0, **fields):
    """Return the bytes of a record that continues a log, with right checksums."""
    last = read_records(path)[-1]
    return pack_frame(last.end, last.fid, last.seq + 1, type, payload, flags, **fields)


def append_record(path, type, payload, flags=0, **fields):
    """Append a record of any content to a log, with right checksums; return its offset.

    Zeros behind the last record go away.
    """
    end = read_records(path)[-1].end
    path.write_bytes(path.read_bytes()[:end] + pack_next(path, type, payload, flags, **fields))
    return end


def repack_record(record, payload):
    """Return the bytes of a record with another payload and right checksums."""
    return pack_frame(
        offset=record.offset,
        fid=record.fid,
        seq=record.seq,
        type=record.type,
        payload=payload,
        flags=record.flags,
        back=record.back,
        key=record.key,
        unsynced=record.unsynced * SECTOR,
        boot=record.boot,
    )


def replace_payload(path, record, payload):
    """Replace the payload of a record by one of the same length, with the right checksums."""
    path.write_bytes(replace_bytes(path.read_bytes(), record.offset, repack_record(record, payload)))


def forge_meta(path, **changes):
    """Write other METAs of the same length into a log, with right checksums."""
    for record in read_records(path)[:2]:
        meta = msgpack.unpackb(record.payload)
        meta.update(changes)
        padded = {**meta, "p": b""}
        padding = len(record.payload) - len(msgpack.packb(padded))
        if padding >= 0:
            meta = {**padded, "p": b"." * padding}
        payload = msgpack.packb(meta)
        assert len(payload) == len(record.payload)
        replace_payload(path, record, payload)


def flip(data, offset, mask=1):
    """Return a copy of bytes in which the bits of a mask are flipped at an offset."""
    changed = bytearray(data)
    changed[offset] ^= mask
    return bytes(changed)


def replace_bytes(data, offset, new):
    """Return a copy of bytes with others in place of those at an offset."""
    return data[:offset] + new + data[offset + len(new) :]


def flip_in_file(path, offset, mask=1):
    """Flip the bits of a mask at an offset of a file."""
    path.write_bytes(flip(path.read_bytes(), offset, mask))


def with_format(data, major):
    """Return the bytes of a log with another major version in its header, and a right checksum."""
    changed = bytearray(data)
    struct.pack_into("<H", changed, VERSION_OFFSET, major)
    struct.pack_into("<I", changed, HEADER_CHECK_OFFSET, crc32(changed[:HEADER_CHECK_OFFSET]))
    return bytes(changed)


def lose_sectors(data, begin, sectors):
    """Return the bytes of a file whose sectors were lost in a write that began at an offset."""
    changed = bytearray(data)
    for sector in sectors:
        first = max(begin, sector * SECTOR)
        last = min(len(data), (sector + 1) * SECTOR)
        changed[first:last] = bytes(last - first)
    return bytes(changed)


# Limits that tests make small, so that short logs show what long ones do

MAX_PAYLOAD = 1 << 16
"""The most bytes of a payload after `shorten_records`."""


def shorten_records(monkeypatch):
    """Let a record have at most 64 KiB, not 1 GiB."""
    for module in (frame, history, records):
        monkeypatch.setattr(module, "MAX_PAYLOAD", MAX_PAYLOAD)
    monkeypatch.setattr(log_bytes.FileLogBytes, "max_payload", MAX_PAYLOAD)
    monkeypatch.setattr(writer, "_SPILL_LENGTH", 64)


def extend_short_logs(monkeypatch, length=0):
    """Let a writer extend a log with zeros from a length on."""
    monkeypatch.setattr(log_bytes, "SHORTEST_EXTENDED", length)


def limit_cache(monkeypatch, size):
    """Let all logs together keep a number of bytes of states."""
    monkeypatch.setattr(catalogue, "CACHED_BYTES", size)


def limit_descriptors(monkeypatch, count):
    """Let savers believe that the process may open a number of files."""
    monkeypatch.setattr(catalogue, "_max_descriptors", lambda: count)


def limit_keyframe_distance(monkeypatch, distance):
    """Let keyframes follow one another after a number of bytes at least."""
    monkeypatch.setattr(writer, "MIN_KEYFRAME_DISTANCE", distance)
    monkeypatch.setattr(writer, "RECORD_COST", distance // 16)


def keep_waiting_writes(monkeypatch, count):
    """Let `compact` keep early writes until a number of other checkpoints has come."""
    monkeypatch.setattr(stored_checkpoint, "KEPT_SUCCESSORS", count)


def keep_no_records(monkeypatch):
    """Let a log keep no decoded records of past states."""
    monkeypatch.setattr(history, "MAX_LENGTH", 0)
