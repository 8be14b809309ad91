"""Sealed payloads: who can open them, and to what each is bound."""

import hmac
import os
import struct
from io import BytesIO

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from graphkit import CheckpointCorruptionError, CheckpointerConfigurationError, CheckpointKeyError
from savers import FileSystemSaver
from savers._cipher import KeyRing
from savers._log.frame import KEY, SEALED, Frame
from savers._log.sealing import MAX_OVERHEAD, LogSeal, pack_place, read_key_id

KEYS = {"new": bytes(range(32)), "old": bytes(32)}
OWNER = ("thread", "inner")
FID = 0x1234
PLACE = {"flags": SEALED | KEY, "back": 0, "key": 0, "seq": 2, "fid": FID, "type": 2, "offset": 218}
PAYLOAD = b"the state of a run" * 20


def seal_of(keys=KEYS, owner=OWNER):
    return LogSeal(None if keys is None else KeyRing(keys), "/store/log", owner, "new")


def frame_of(payload, **place):
    place = {**PLACE, **place}
    return Frame(
        offset=place["offset"], end=place["offset"] + len(payload) + 45, type=place["type"], flags=place["flags"],
        back=place["back"], key=place["key"], seq=place["seq"], payload=payload, vouched=0, boot=0,
    )  # fmt: skip


def sealed(keys=KEYS, owner=OWNER, payload=PAYLOAD, **place):
    return seal_of(keys, owner).seal(payload, pack_place(**{**PLACE, **place}))


def test_the_bytes_are_those_of_the_specification():
    """Opened here by the words of docs/format.md, with HKDF written out."""
    stored = BytesIO(sealed())
    (size,) = stored.read(1)
    key_id = stored.read(size)
    salt = stored.read(16)
    check = stored.read(4)
    nonce = stored.read(12)
    tag = stored.read(16)
    ciphertext = stored.read()
    thread = b"thread"
    namespace = b"inner"
    info = b"graphkit sealed record\0" + struct.pack("<I", len(thread)) + thread + namespace
    extracted = hmac.digest(salt, KEYS["new"], "sha256")
    first = hmac.digest(extracted, info + b"\1", "sha256")
    second = hmac.digest(extracted, first + info + b"\2", "sha256")

    bound = struct.pack("<BIIIIBQ", 9, 0, 0, 2, FID, 2, 218)

    assert key_id == b"new"
    assert second[:4] == check
    assert AESGCM(first).decrypt(nonce, ciphertext + tag, bound) == PAYLOAD
    assert len(ciphertext) == len(PAYLOAD)


@pytest.mark.requirement("P70")
def test_no_flipped_bit_and_no_prefix_is_ever_opened():
    stored = bytearray(sealed(payload=b"short"))
    for size in range(len(stored)):
        with pytest.raises((CheckpointKeyError, CheckpointCorruptionError)):
            seal_of().open(frame_of(bytes(stored[:size])), FID)
    for bit in range(len(stored) * 8):
        stored[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CheckpointKeyError, CheckpointCorruptionError)):
            seal_of().open(frame_of(bytes(stored)), FID)
        stored[bit // 8] ^= 1 << bit % 8


def test_a_copy_keeps_key_and_length_and_has_another_salt():
    old = sealed({"old": KEYS["old"]})
    copied = seal_of().seal_as(old, PAYLOAD, pack_place(**PLACE))
    assert (read_key_id(copied), len(copied)) == ("old", len(old))
    assert copied[4:20] != old[4:20]
    assert seal_of().open(frame_of(copied), FID).payload == PAYLOAD


def test_the_overhead_is_bounded():
    assert len(sealed()) - len(PAYLOAD) == 52
    assert len(sealed({"k" * 255: bytes(32)})) - len(PAYLOAD) == MAX_OVERHEAD


@pytest.mark.parametrize(
    "cipher",
    [{}, {"": bytes(32)}, {"k": bytes(31)}, {"k": "x" * 32}, {1: bytes(32)}, {"k" * 256: bytes(32)}, b"x" * 32, 7],
)
def test_an_invalid_cipher_is_refused_and_never_shown(cipher, tmp_path):
    with pytest.raises(CheckpointerConfigurationError) as caught:
        FileSystemSaver(tmp_path / "store", cipher=cipher)
    assert "xxxx" not in str(caught.value)
    assert not (tmp_path / "store").exists()


def test_a_function_that_fails_is_an_error_that_names_the_key():
    def provide(key_id):
        if key_id is None:
            raise ConnectionError("the vault is away")
        return {}[key_id]

    with pytest.raises(CheckpointKeyError, match="the vault is away") as caught:
        sealed(provide)
    assert isinstance(caught.value.__cause__, ConnectionError)
    with pytest.raises(CheckpointKeyError, match="no such key"):
        seal_of(provide).open(frame_of(sealed()), FID)
    for answer in (None, ("a", b"short"), ("a", bytes(32), 1), [("a", bytes(32))]):
        with pytest.raises(CheckpointerConfigurationError):
            sealed(lambda _, answer=answer: answer)


def test_the_mapping_is_copied_and_never_shown():
    keys = {"k": os.urandom(32)}
    ring = KeyRing(keys)
    before = keys["k"]
    keys.clear()
    assert ring.get_current("/p") == ("k", before)
    assert before.hex() not in repr(ring)
    assert repr(before) not in repr(ring)
