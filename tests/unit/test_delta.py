"""Keyframes and changes without files: whatever is written is read back, byte for byte."""

import random
from copy import deepcopy
from zlib import crc32

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from savers import _delta as delta
from savers._delta.values import cut
from tests.support.sweeps import examples


class Tape:
    """A log without frames: bytes at positions, and per record what leads to its table."""

    def __init__(self, *, opaque=False, key_every=5):
        self.opaque, self.key_every = opaque, key_every
        self.data = b""
        self.records = []
        self.table = None
        self.before = {}
        self.keyframes = {}

    def read(self, ranges):
        return [self.data[start:end] for start, end in ranges]

    def put(self, packed):
        """Store a state: {key: packed value}."""
        order = list(packed)
        old = self.table
        draft = {}
        for name, value in packed.items():
            if old is None or name not in old.values:
                draft[name] = value
                continue
            body = delta.read_bodies([old.values[name]], self.read)[0]
            op = delta.compare_values(old.values[name], body, value, opaque=self.opaque)
            if op is not None:
                draft[name] = op
        gone = [name for name in self.before if name not in packed]
        kept = [name for name in self.before if name in packed]
        fits = (
            old is not None
            and len(self.records) % self.key_every
            and kept + [n for n in order if n not in kept] == order
        )
        if fits:
            draft |= dict.fromkeys(gone, delta.DELETE)
            ops, data = delta.encode_draft(draft, old.names)
            self.records.append((len(self.data), None, ops, data))
        else:
            position = len(self.data)
            listed = []
            for name in order:
                if isinstance(draft.get(name), bytes):
                    listed += (name, None)
                elif delta.is_inlined(old.values[name]):
                    draft[name] = packed[name]
                    listed += (name, None)
                else:
                    listed += (name, delta.encode_entry(old.values[name], position))
            ops, data = delta.encode_draft(draft, order)
            self.records.append((position, listed, ops, data))
        self.data += data + b"##"
        self.before = dict(packed)
        self.table = self.load(len(self.records) - 1)

    def load(self, number):
        """The table of a record, from nothing but what was stored."""
        first = max(n for n in range(number + 1) if self.records[n][1] is not None)
        table = self.keyframe(first)
        for position, _, ops, data in self.records[first + 1 : number + 1]:
            table.apply(ops, data, position)
        return table

    def keyframe(self, number):
        position, listed, ops, data = self.records[number]
        table = delta.Table(opaque=self.opaque)
        table.names = listed[::2]
        depths = {}
        for name, entry in zip(listed[::2], listed[1::2], strict=True):
            if entry is None:
                value = delta.Value(delta.OPAQUE, 0, 0, 0, [])
            else:
                assert all(isinstance(part, int) for part in entry)
                value = delta.decode_entry(entry, position, lambda at, name=name: self.at(at).values[name])
            depths[name] = value.depth
            table.values[name] = value
        table.apply(ops, data, position)
        for name, value in table.values.items():
            assert depths[name] <= delta.MAX_DEPTH
            if value.base is None:
                value.set_base(position, depths[name])
        return table

    def at(self, position):
        if position not in self.keyframes:
            numbers = [n for n, record in enumerate(self.records) if record[0] == position and record[1] is not None]
            self.keyframes[position] = self.keyframe(numbers[-1])
        return self.keyframes[position]

    def state(self, number):
        table = self.load(number)
        bodies = delta.read_bodies(table.values.values(), self.read)
        return {
            name: delta.pack_header(value.kind, value.count) + body
            for (name, value), body in zip(table.values.items(), bodies, strict=True)
        }


values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=80) | st.binary(max_size=200),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=20),
    max_leaves=30,
)
states = st.dictionaries(st.sampled_from("abcdef"), values, max_size=5)


@settings(max_examples=examples(150))
@given(st.lists(states, max_size=12), st.integers(1, 6))
def test_any_states_come_back_in_their_order(history, key_every):
    tape = Tape(key_every=key_every)
    packed = [{key: msgpack.packb(value) for key, value in state.items()} for state in history]
    for state in packed:
        tape.put(state)
    for number, state in enumerate(packed):
        found = tape.state(number)
        assert found == state
        assert list(found) == list(state)


@settings(max_examples=examples(60))
@given(st.lists(st.binary(max_size=300), max_size=12), st.integers(1, 4))
def test_opaque_values_come_back(history, key_every):
    tape = Tape(opaque=True, key_every=key_every)
    for value in history:
        tape.put({"": value})
    assert [tape.state(number)[""] for number in range(len(history))] == history


@pytest.mark.parametrize("seed", range(12))
def test_long_histories_of_edits_come_back(seed):
    dice = random.Random(seed)
    tape = Tape(key_every=dice.choice([2, 3, 7]))
    items, table, counter = [], {}, 0
    expected = []
    for _ in range(150):
        what = dice.random()
        if what < 0.6:
            items = [*items, "x" * dice.randrange(120)]
        elif what < 0.7 and items:
            place = dice.randrange(len(items))
            items = [*items[:place], "edited", *items[place + dice.randrange(2) :]]
        elif what < 0.8:
            table = {**table, f"k{dice.randrange(30)}": [dice.randrange(9)] * dice.randrange(30)}
        elif what < 0.85:
            items = items[: dice.randrange(len(items) + 1)]
        else:
            counter += 1
        state = {"items": items, "n": counter, "table": table}
        if what > 0.97:
            del state["n"]
        expected.append({key: msgpack.packb(value) for key, value in state.items()})
        tape.put(expected[-1])
    for number, state in enumerate(expected):
        assert tape.state(number) == state


def test_growth_costs_what_it_grows_by_in_keyframes_too():
    tape = Tape(key_every=20)
    items = []
    for n in range(400):
        items = [*items, f"{n:0100}"]
        tape.put({"items": msgpack.packb(items)})
    assert len(tape.data) < 400 * 106
    named = sum(len(record[1][1] or ()) for record in tape.records if record[1] is not None)
    assert named < 3 * 400 * 2, "and so do the pieces that they name"


def test_bytes_that_grow_cost_what_they_grow_by_in_keyframes_too():
    tape = Tape(key_every=20)
    grown = b""
    expected = []
    for n in range(400):
        grown += random.Random(n).randbytes(100)
        expected.append(msgpack.packb(grown))
        tape.put({"grown": expected[-1]})
    assert len(tape.data) < 400 * 106
    named = sum(len(record[1][1] or ()) for record in tape.records if record[1] is not None)
    assert named < 3 * 400 * 2, "the pieces that a keyframe's base has named are not named again"
    assert [tape.state(number)["grown"] for number in range(0, 400, 7)] == expected[::7]


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
    assert (value.count, value.length, value.crc) == (len(body), len(body), crc32(body))
    return op, body


def join(value, disk):
    """The bytes of a value whose pieces are in these chunks, by their position."""
    parts = []
    for start, length in zip(value.pieces[::2], value.pieces[1::2], strict=True):
        first = max(position for position in disk if position <= start)
        parts.append(disk[first][start - first :][:length])
    return b"".join(parts)


HEAD = b"the same hundred bytes at the beginning of every element of a list, such as the name of its class: "
ELEMENTS = [b"%d " % (n % 2) + HEAD + str(n).encode() + random.Random(n).randbytes(100) for n in range(200)]


@pytest.mark.parametrize("dropped", [1, 2, 51, 99])
@pytest.mark.parametrize("kept_in_front", [0, 1])
def test_a_window_of_bytes_costs_what_enters_it(dropped, kept_in_front):
    front = ELEMENTS[:kept_in_front]
    old = b"".join(front + ELEMENTS[1:101])
    new = b"".join(front + ELEMENTS[1 + dropped : 101 + dropped])
    op, body = compare_bytes(old, new)
    assert body == new
    assert isinstance(op, delta.Drop)
    assert op.data == b"".join(ELEMENTS[101 : 101 + dropped])


def test_bytes_are_appended_replaced_or_set_as_is_shorter():
    old = b"".join(ELEMENTS[:20])
    for new, kind, added in [
        (old + b"more", delta.Splice, b"more"),
        (old[:500] + b"other" + old[505:], delta.Splice, b"other"),
        (old[:-1], delta.Splice, b""),
        (old[100:], delta.Drop, b""),
        (b"short", bytes, msgpack.packb(b"short")),
        (b"", bytes, msgpack.packb(b"")),
    ]:
        op, body = compare_bytes(old, new)
        assert (op.__class__, delta.get_data(op), body) == (kind, added, new)
    assert compare_bytes(old, old) == (None, old)
    op, body = compare_bytes(b"", old)
    assert isinstance(op, bytes)
    assert body == old


@pytest.mark.parametrize(
    "value",
    [
        [],
        [0] * 15,
        [0] * 16,
        [0] * 65536,
        {},
        {n: n for n in range(15)},
        {n: n for n in range(16)},
        {n: n for n in range(65536)},
        5,
        "x",
        b"",
        None,
    ],
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
    table.apply([part for name, value in values.items() for part in (delta.SET, name, len(value))], data, 100)
    return table


def test_ops_that_make_no_sense_are_refused():
    nonsense = [
        ([9, 0, 1], b"x"),
        ([delta.SET, 7, 1], b"x"),
        ([delta.SET, 0, 2], b"x"),
        ([delta.SET, 0, 1], b"xx"),
        ([delta.APPEND, "new", 1, 1], b"x"),
        ([delta.DEL, "new"], b""),
        ([delta.SET, 0], b""),
        ([delta.APPEND, 0, None, 1], b"x"),
        (5, b""),
    ]
    for ops, data in nonsense:
        with pytest.raises((IndexError, KeyError, ValueError, TypeError)):
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


def test_far_pieces_are_read_apart_and_near_ones_together():
    value = delta.Value(delta.OPAQUE, 0, 30, crc32(b"a" * 10 + b"b" * 10 + b"c" * 10), [0, 10, 50, 10, 10_000_000, 10])
    disk = {0: b"a" * 10 + b"." * 40 + b"b" * 10, 10_000_000: b"c" * 10}
    asked = []

    def read(ranges):
        asked.extend(ranges)
        return [disk[start][: end - start] for start, end in ranges]

    assert delta.read_bodies([value], read) == [b"a" * 10 + b"b" * 10 + b"c" * 10]
    assert asked == [(0, 60), (10_000_000, 10_000_010)]


@given(
    lengths=st.lists(st.integers(1, 9), max_size=12),
    first=st.integers(-3, 60),
    last=st.integers(-3, 60),
)
def test_cutting_pieces_is_cutting_bytes(lengths, first, last):
    text = bytes(range(200))
    pieces = []
    for number, length in enumerate(lengths):
        pieces += (7 + number * 13, length)

    whole = b"".join(text[pieces[i] : pieces[i] + pieces[i + 1]] for i in range(0, len(pieces), 2))
    found = cut(pieces, first, last)
    assert (
        b"".join(text[found[i] : found[i] + found[i + 1]] for i in range(0, len(found), 2))
        == whole[max(first, 0) : max(last, 0)]
    )
    assert all(length > 0 for length in found[1::2])


def test_bytes_that_are_added_at_the_end_keep_the_base():
    table = delta.Table(opaque=False)
    table.apply([delta.SET, "k", 103], b"\xc4\x65" + bytes(101), 1000)
    value = table.values["k"]
    value.set_base(500, 1)
    before = deepcopy(table)
    changed = deepcopy(table)
    changed.apply([delta.SPLICE, 0, 104, 101, 0, crc32(bytes(101) + b"abc"), 3], b"abc", 2000)
    assert before.values["k"].pieces == value.pieces == [1002, 101]
    table.apply([delta.SPLICE, 0, 104, 101, 0, crc32(bytes(101) + b"abc"), 3], b"abc", 2000)
    for after in (table.values["k"], changed.values["k"]):
        assert (after.pieces, after.base, after.shared) == ([1002, 101, 2000, 3], 500, 2)
        assert (after.count, after.length) == (104, 104)


@pytest.mark.parametrize(("distance", "reads"), [(3 << 14, 1), (6 << 14, 3)])
def test_pieces_that_are_a_quarter_of_a_range_are_read_at_once(distance, reads):
    size = 1 << 14
    data = random.Random(1).randbytes(3 * distance)
    pieces = [2 * distance, size, 0, size, distance, size]
    body = b"".join(data[start : start + size] for start in pieces[::2])
    value = delta.Value(delta.LIST, 3, len(body), crc32(body), pieces)
    ranges = []

    def read(wanted):
        ranges.extend(wanted)
        return [data[start:end] for start, end in wanted]

    assert delta.read_bodies([value], read) == [body]
    assert len(ranges) == reads


@settings(max_examples=examples(60))
@given(st.lists(states, min_size=1, max_size=12))
def test_changes_applied_to_one_key_leave_its_value(history):
    tape = Tape(key_every=1000)
    for state in history:
        # With the same keys in each state, one key can be followed through all records.
        tape.put({key: msgpack.packb(value) for key, value in (dict.fromkeys("abcdef") | state).items()})
    whole = tape.load(len(tape.records) - 1)
    for name in "abcdef":
        table = tape.keyframe(0)
        for position, _, ops, data in tape.records[1:]:
            table.apply(ops, data, position, only=name)
        for field in whole.values[name].__slots__:
            assert getattr(table.values[name], field) == getattr(whole.values[name], field), field


@pytest.mark.parametrize("ops", [[0, "a", 2], [0, "a", 1.0], [9, "a", 1]])
def test_malformed_changes_are_refused(ops):
    with pytest.raises(delta.MALFORMED):
        table_of(a=b"\xc0").apply(ops, b"\xc0", 500)
