"""Keyframes and changes without files: whatever is written is read back, byte for byte."""

import random
from zlib import crc32

import msgpack
import pytest

from savers import _delta as delta
from savers._delta import operations


def compare_bytes(old, new):
    """The operation between two bytes objects, and what it makes of the old one."""
    table = table_of(a=msgpack.packb(old))
    disk = {100: msgpack.packb(old)}
    op = delta.compare_bytes(old, new)
    if op is not None:
        ops, data = delta.encode_draft({"a": op}, table.names)
        disk[1_000_000] = data
        table.apply(ops, data, 1_000_000)
    value = table.values["a"]
    body = join(value, disk)
    assert value.count == len(body)
    assert value.length == len(body)
    assert value.crc == crc32(body)
    return op, body


def join(value, disk):
    """The bytes of a value whose pieces are in these chunks, by their position."""
    parts = []
    for start, length in zip(value.pieces[::2], value.pieces[1::2], strict=True):
        first = max(position for position in disk if position <= start)
        parts.append(disk[first][start - first :][:length])
    return b"".join(parts)


HEAD = b"the same hundred bytes at the beginning of every element of a list, such as the name of its class: "
ELEMENTS = [HEAD + str(n).encode() + random.Random(n).randbytes(100) for n in range(20)]


def test_bytes_are_appended_replaced_or_set_as_is_shorter():
    old = b"".join(ELEMENTS)
    for new, kind, added in [
        (old + b"more", delta.SPLICE, b"more"),
        (old[:500] + b"other" + old[505:], delta.SPLICE, b"other"),
        (old[:-1], delta.SPLICE, b""),
        (old[100:], delta.DROP, b""),
        (b"short", operations.SET, msgpack.packb(b"short")),
        (b"", operations.SET, msgpack.packb(b"")),
    ]:
        op, body = compare_bytes(old, new)
        assert kind == (operations.SET if isinstance(op, bytes) else op.op)
        assert delta.get_data(op) == added
        assert body == new
    assert compare_bytes(old, old) == (None, old)
    op, body = compare_bytes(b"", old)
    assert isinstance(op, bytes)
    assert body == old


SIZES = [0, 15, 16, 65536]


@pytest.mark.parametrize(
    "value", [*[[0] * size for size in SIZES], *[dict.fromkeys(range(size)) for size in SIZES], 5, "x", b"", None]
)
def test_the_header_of_a_value_is_left_out_and_put_back(value):
    packed = msgpack.packb(value)
    kind, count, skip = delta.parse_header(packed, 0)
    assert (kind != delta.OPAQUE) == isinstance(value, (list, dict, str, bytes))
    assert count == (len(value) if kind else 0)
    assert delta.pack_header(kind, count) + packed[skip:] == packed


def table_of(**values):
    table = delta.Table(opaque=False)
    data = b"".join(values.values())
    table.apply([part for name, value in values.items() for part in (operations.SET, name, len(value))], data, 100)
    return table


NONSENSE = [
    ([9, 0, 1], b"x"),
    ([9, "a", 1], b"x"),
    ([operations.SET, 7, 1], b"x"),
    ([operations.SET, 0, 2], b"x"),
    ([operations.SET, 0, 1], b"xx"),
    ([operations.SET, "a", 1.0], b"x"),
    ([operations.APPEND, "new", 1, 1], b"x"),
    ([operations.DEL, "new"], b""),
    ([operations.SET, 0], b""),
    ([operations.APPEND, 0, None, 1], b"x"),
    (5, b""),
]


@pytest.mark.parametrize(("ops", "data"), NONSENSE)
def test_ops_that_make_no_sense_are_refused(ops, data):
    with pytest.raises(delta.MALFORMED):
        table_of(a=b"\x01").apply(ops, data, 0)


def test_bytes_that_are_not_those_stored_are_noticed():
    table = table_of(a=b"\x92\x01\x02")

    def read_from(data):
        return delta.read_bodies(
            table.values.values(), lambda ranges: [data[start - 101 : end - 101] for start, end in ranges]
        )

    assert read_from(b"\x01\x02") == [b"\x01\x02"]
    for wrong in (b"\x01\x03", b"\x01", b""):
        with pytest.raises(delta.Mismatch):
            read_from(wrong)


@pytest.mark.parametrize(("distance", "reads"), [(3 << 14, 1), (6 << 14, 3)])
def test_pieces_that_are_a_quarter_of_a_range_are_read_at_once(distance, reads):
    size = 1 << 14
    data = random.Random(1).randbytes(3 * distance)
    pieces = [2 * distance, size, 0, size, distance, size]
    starts = pieces[::2]
    body = b"".join(data[start : start + size] for start in starts)
    value = delta.Value(delta.LIST, 3, len(body), crc32(body), pieces)
    ranges = []

    def read(wanted):
        ranges.extend(wanted)
        return [data[start:end] for start, end in wanted]

    assert delta.read_bodies([value], read) == [body]
    assert len(ranges) == reads
