"""One flipped bit of a record is found by its checksum, and repair corrects it."""

import random
from zlib import crc32

import pytest

from savers._filesystem.correction import find_flipped_bit


@pytest.mark.parametrize("length", [1, 2, 7, 64, 300])
def test_every_single_flipped_bit_is_found(length):
    data = random.Random(length).randbytes(length)
    for position in range(length):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            assert find_flipped_bit(bytes(damaged), crc32(data)) == (position, 1 << bit)


def test_two_flipped_bits_are_not_taken_for_one():
    dice = random.Random(5)
    data = dice.randbytes(500)
    for _ in range(300):
        damaged = bytearray(data)
        for bit in dice.sample(range(4000), 2):
            damaged[bit // 8] ^= 1 << bit % 8
        assert find_flipped_bit(bytes(damaged), crc32(data)) is None
