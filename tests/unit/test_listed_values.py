"""Long values as keyframes list them: steps from piece to piece, and reading them in one pass."""

import random
from zlib import crc32

import pytest
from hypothesis import given, settings, strategies as st

from savers import _delta as delta
from savers._delta.values import ListedValue
from tests.support.sweeps import examples

FAR = 5_000_000
"""The position of the keyframe."""
pieces_of_files = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 300)), min_size=8, max_size=40)


def place(spaced, first=0):
    """Return pieces from (gap before, length)."""
    pieces = []
    end = first
    for gap, length in spaced:
        pieces += (end + gap, length)
        end += gap + length
    return pieces


def listed(pieces, body=b"", base=None):
    """Return the value that a keyframe's entry with these pieces describes."""
    value = delta.Value(delta.LIST, 1, len(body), crc32(body), pieces)
    if base is not None:
        value.set_base(FAR - 1000, 0)
        value.shared = len(base.pieces)
    return delta.decode_entry(delta.encode_entry(value, FAR), FAR, lambda position: base)


def cut_out(data, pieces):
    return b"".join(data[start : start + length] for start, length in zip(pieces[::2], pieces[1::2], strict=True))


def reading(data):
    """Read ranges of these bytes."""
    return lambda ranges: [data[start:end] for start, end in ranges]


def read_x(ranges):
    return [b"x" * (end - start) for start, end in ranges]


@settings(max_examples=examples(100))
@given(pieces_of_files, pieces_of_files, st.booleans(), st.booleans())
def test_pieces_are_those_that_were_listed(early, late, is_reversed, was_used):
    first = place(early)
    whole = first + place(late, first[-2] + first[-1])
    if is_reversed:
        whole = [*whole[-2:], *whole[:-2]]
    base = listed(whole[: len(first)])
    assert isinstance(base, ListedValue)

    if was_used:
        assert base.pieces == whole[: len(first)]
    value = listed(whole, base=base)
    copy = value.copy()
    before = value.copy()
    value.add_piece(7, 5)
    assert [*copy.pieces] == whole

    copy.add_piece(9, 3)
    assert value.count_pieces() == copy.count_pieces() == len(whole) // 2 + 1
    assert value.pieces == [*whole, 7, 5]
    assert copy.pieces == [*whole, 9, 3]
    assert before.pieces == whole
    assert base.pieces == whole[: len(first)]
    assert value.shared == base.shared
    assert value.depth == base.depth + 1


@settings(max_examples=examples(100))
@given(pieces_of_files, st.integers(0, 1 << 30))
def test_a_listed_value_is_read_whole_and_damage_is_noticed(spaced, seed):
    chance = random.Random(seed)
    pieces = place(spaced)
    data = chance.randbytes(pieces[-2] + pieces[-1] + 10)
    body = cut_out(data, pieces)

    value = listed(pieces, body)

    assert delta.read_bodies([value], reading(data)) == [body]

    inside = [i for start, length in zip(pieces[::2], pieces[1::2], strict=True) for i in range(start, start + length)]
    if not inside:
        return
    damaged = bytearray(data)
    damaged[chance.choice(inside)] ^= 1 << chance.randrange(8)

    for wrong in (bytes(damaged), data[: max(inside)]):
        with pytest.raises(delta.Mismatch):
            delta.read_bodies([value], reading(wrong))


def test_bytes_that_two_listed_values_name_are_refused():
    pieces = place([(3, 50)] * 8)
    value = listed(pieces, b"x" * 400)
    delta.check_pieces([value])
    with pytest.raises(delta.Mismatch):
        delta.check_pieces([value, listed(pieces, b"x" * 400)])
    with pytest.raises(delta.Mismatch):
        delta.read_bodies([value, listed(pieces, b"x" * 400)], read_x)
    with pytest.raises(delta.Mismatch):
        delta.read_bodies([listed([0, 50] * 8, b"x" * 400)], read_x)


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("wrong", ["5", None, 5.0, b"5", [5]])
def test_steps_that_are_not_numbers_are_refused_when_the_keyframe_is_read(count, wrong):
    entry = [delta.LIST, 1, 5, 0, 0]
    steps = [5, 5] * count
    delta.decode_entry([*entry, *steps], FAR, None)

    for position in (0, -2, -1):
        bad = [*steps]
        bad[position] = wrong
        with pytest.raises((TypeError, ValueError)):
            delta.decode_entry([*entry, *bad], FAR, None)

    with pytest.raises((TypeError, ValueError)):
        delta.decode_entry([*entry, *steps, 5], FAR, None)
