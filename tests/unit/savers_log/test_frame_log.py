"""Beginning a log, appending to it, and taking back."""

import pytest

from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointFormatError,
    CheckpointKeyError,
    CheckpointSerializationError,
)
from savers._cipher import KeyRing
from savers._log.frame import HEADER_SIZE, META, WRITE
from savers._log.frame_log import FrameLog
from savers._log.payloads import unpack_payload
from savers.log import MemoryLogBytes, StaleLogError, ThreadIdentity, digest_thread


def make(data=None, *, owner=("t", ""), key_ring=None, is_opaque=False):
    identity = ThreadIdentity(owner, digest_thread(owner[0]), key_ring, is_opaque=is_opaque)
    return FrameLog(MemoryLogBytes(data=data), identity)


@pytest.fixture
def frames():
    frames = make()
    frames.append(WRITE, b"first")
    frames.append(WRITE, b"second")
    return frames


def read_again(frames):
    other = make(frames.bytes.data)
    assert other.open()
    return other


def payloads_of(frames):
    return [frame.payload for frame in frames.records.scan(frames.end, frames.bytes.size, frames.seq)]


def test_a_log_begins_with_whose_it_is_twice(frames):
    data = bytes(frames.bytes.data)
    found = [*frames.records.scan(HEADER_SIZE, len(data), 0)]
    assert [frame.type for frame in found] == [META, META, WRITE, WRITE]
    for frame in found[:2]:
        assert unpack_payload("", frame) == {"thread": "t", "ns": "", "opaque": False}
    assert (frames.end, frames.seq) == (len(data), 4)


def test_a_log_whose_creation_was_cut_short_is_no_log(frames):
    data = frames.bytes.data
    first = next(iter(frames.records.scan(HEADER_SIZE, len(data), 0)))
    for cut in (1, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 20, first.end - 1):
        assert not make(bytearray(data[:cut])).open(), cut
    assert not make(bytearray(500)).open(), "zeros"


def test_damage_of_the_beginning_is_an_error_and_one_copy_is_enough(frames):
    data = frames.bytes.data
    for offset in (0, 20, HEADER_SIZE + 3, HEADER_SIZE + 45):
        bad = bytearray(data)
        bad[offset] ^= 8
        log = make(bad)
        with pytest.raises((CheckpointCorruptionError, CheckpointFormatError)):
            log.open()
        assert not log.bytes.is_open


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"owner": ("u", "")}, "another thread"),
        ({"owner": ("t", "inner")}, "another thread"),
        ({"is_opaque": True}, "without a state_serializer"),
    ],
)
def test_the_log_of_another_owner_is_refused(frames, options, match):
    with pytest.raises(CheckpointFormatError, match=match):
        make(frames.bytes.data, **options).open()


def test_what_was_appended_is_taken_back(frames):
    start = frames.end
    frames.append(WRITE, b"third")
    frames.undo(start)
    assert frames.in_doubt
    frames.close()
    assert payloads_of(read_again(frames))[1:] == [b"first", b"second"]


def test_another_writer_makes_an_append_stale(frames):
    other = make(frames.bytes.data)
    assert other.open()
    for frame in other.records.scan(other.end, other.bytes.size, other.seq):
        other.note_read(frame)
    other.append(WRITE, b"of the other")
    with pytest.raises(StaleLogError):
        frames.append(WRITE, b"too late")
    assert frames.in_doubt
    assert payloads_of(read_again(frames))[1:] == [b"first", b"second", b"of the other"]


def test_a_record_that_no_reader_accepts_is_refused(frames, monkeypatch):
    monkeypatch.setattr(MemoryLogBytes, "max_payload", 300)
    before = bytes(frames.bytes.data)
    frames.append(WRITE, b"x" * 300)
    with pytest.raises(CheckpointSerializationError, match="at most 300"):
        frames.append(WRITE, b"x" * 301)
    assert frames.bytes.data.startswith(before)
    assert payloads_of(read_again(frames))[-1] == b"x" * 300


def test_a_sealed_log_has_room_for_the_seal(monkeypatch):
    pytest.importorskip("cryptography")
    monkeypatch.setattr(MemoryLogBytes, "max_payload", 500)
    frames = make(key_ring=KeyRing({"k" * 255: bytes(32)}))
    frames.append(WRITE, b"x" * frames.max_payload)

    with pytest.raises(CheckpointSerializationError):
        frames.append(WRITE, b"x" * (frames.max_payload + 1))

    with pytest.raises(CheckpointKeyError):
        [*read_again(frames).records.scan(HEADER_SIZE, len(frames.bytes.data), 0)]
