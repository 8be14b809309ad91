"""The codec: exact or refused, and never code from data."""

from __future__ import annotations

import datetime as dt
import enum
import pathlib
import sys
import threading
from collections import OrderedDict
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import ClassVar, NamedTuple
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import example, given, settings, strategies as st
from pydantic import BaseModel, ConfigDict, PrivateAttr, RootModel

from graphkit.errors import CheckpointerConfigurationError, CheckpointSerializationError
from graphkit.saver_kit import PLAIN, Codec, FrozenList, MalformedDataError, freeze
from graphkit.testing import same
from tests.support.fresh_process import fresh_process
from tests.support.sweeps import examples


def array_header(length):
    return msgpack.Packer().pack_array_header(length)


class Colour(enum.Enum):
    RED = "r"
    BLUE = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


class Bits(enum.Flag):
    X = 1
    Y = 2


class Big(enum.IntFlag, boundary=enum.KEEP):
    Z = 1 << 70


class Pair(NamedTuple):
    left: object
    right: object = 7


@dataclass
class Note:
    text: str
    tags: list = field(default_factory=list)
    late: int = field(init=False)
    kinds: ClassVar[list] = []
    seed: InitVar[int] = 0

    def __post_init__(self, seed):
        self.late = seed

    @cached_property
    def size(self):
        return len(self.text)


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: object = None


class SlotBase:
    __slots__ = ("__secret", "hidden")


@dataclass
class Slotted(SlotBase):
    __slots__ = ("a",)
    a: int


@dataclass
class Outer:
    colour: Colour
    notes: list[Note]
    point: Point | None = None


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str
    many: list[int] = []
    point: Point | None = None
    _secret: int = PrivateAttr(default=3)


class Strict(BaseModel):
    a: int
    b: int = 5


class Root(RootModel[list[int]]):
    pass


TYPES = (Colour, Level, Word, Bits, Big, Pair, Note, Point, Outer, Model, Strict, Slotted)
CODEC = Codec(TYPES)


ZONES = st.sampled_from(
    [None, dt.UTC, dt.timezone(dt.timedelta(hours=-5, seconds=3)), dt.timezone(dt.timedelta(hours=1), "CE\ud800T"), ZoneInfo("Europe/Berlin"), ZoneInfo("Etc/GMT+5")]
)  # fmt: skip
TEXT = st.text(st.characters(), max_size=8) | st.text(st.characters(categories=["Cs"]), min_size=1, max_size=2)
HASHABLE = st.deferred(
    lambda: st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), TEXT, st.binary(max_size=8),
        st.datetimes(timezones=st.just(None)) | st.builds(lambda d, z, f: d.replace(tzinfo=z, fold=f), st.datetimes(), ZONES, st.integers(0, 1)),
        st.dates(), st.builds(lambda t, z, f: t.replace(tzinfo=z, fold=f), st.times(), ZONES, st.integers(0, 1)), st.timedeltas(), st.uuids(), st.decimals(allow_nan=False),
        ZONES, st.builds(pathlib.PurePosixPath, st.sampled_from(["", "a/b", "/x", "\udc80"])), st.just(pathlib.PureWindowsPath("c:\\x")), st.just(pathlib.Path("/tmp/x")),
        st.sampled_from([*Colour, *Level, *Word, *Bits, Bits.X | Bits.Y, Bits(0), Big.Z, Big(0)]),
        st.tuples(HASHABLE, HASHABLE), st.frozensets(HASHABLE, max_size=3), st.builds(Pair, HASHABLE, HASHABLE), st.builds(Point, st.floats(), HASHABLE),
    )
)  # fmt: skip
VALUES = st.recursive(
    HASHABLE | st.sampled_from([Decimal("NaN"), Decimal("-sNaN12"), Decimal("-0E+99"), Decimal("Infinity")]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(HASHABLE, inner, max_size=4), st.sets(HASHABLE, max_size=3),
        st.tuples(inner, inner), st.builds(Pair, inner, st.just(7)), st.builds(Note, st.text(), st.lists(inner, max_size=2)), st.builds(Point, st.floats(), inner),
        st.builds(Model, name=st.text(), many=st.lists(st.integers(), max_size=2)),
    ),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.requirement("P61")
@settings(max_examples=examples(300))
@example({1: ()})
@given(VALUES)
def test_everything_comes_back_exactly(value):
    data = CODEC.pack(freeze(value))
    same(CODEC.unpack(data), value)
    same(CODEC.unpack(CODEC.pack(value)), value)
    assert CODEC.pack(CODEC.unpack(data)) == data


@settings(max_examples=examples(60))
@given(st.lists(VALUES, max_size=20))
def test_a_flat_list_and_items_after_a_header_are_packed_as_any_list(items):
    frozen = freeze(items)
    assert CODEC.pack_flat(tuple(frozen), "x") == CODEC.pack(frozen, "x")
    assert array_header(len(items)) + CODEC.pack_items(frozen) == CODEC.pack(frozen)
    assert CODEC.pack_items(list(frozen)[:2]) + CODEC.pack_items(list(frozen)[2:]) == CODEC.pack_items(frozen)


@pytest.mark.parametrize("odd", ["\ud800", 2**63, -(2**63) - 1])
def test_a_flat_list_holds_what_msgpack_does_not(odd):
    values = ("text", odd, None)
    assert CODEC.pack_flat(values) == CODEC.pack(freeze([*values]))


def test_plain_data_is_plain_msgpack():
    value = {"a": [1, "x", None, True, 2.5, b"b"], 1: {"c": {}}}
    assert CODEC.pack(freeze(value)) == msgpack.packb(value) == CODEC.pack(value)


@settings(max_examples=examples(100))
@given(VALUES)
def test_what_is_unpacked_is_frozen_and_knows_its_kind(value):
    frozen = freeze([value])
    made = CODEC.unpack(CODEC.pack(frozen))
    assert freeze(made) is made
    assert made.kind == frozen.kind


def test_equal_sets_give_equal_bytes():
    assert list({0, 8}) != list({8, 0})
    assert CODEC.pack({0, 8}) == CODEC.pack({8, 0})


def test_what_an_application_object_holds_is_its_own():
    made = CODEC.unpack(CODEC.pack([Note("x", [{"a": [{1}, (["t"],)]}])]))[0]
    inside = made.tags[0]["a"]
    held = [made.tags, made.tags[0], inside, inside[0], inside[1][0]]
    assert list(map(type, held)) == [list, dict, list, set, list]


def test_objects_come_back_without_their_constructors(monkeypatch):
    note = Note("x", seed=4)
    assert note.size == 1
    unset = Note("y")
    del unset.late
    data = CODEC.pack([note, unset, Point(1.0), Slotted(1)])
    for cls in (Note, Point, Slotted):
        monkeypatch.setattr(cls, "__init__", None)
    made, bare, point, slotted = CODEC.unpack(data)
    assert (made.text, made.late) == ("x", 4)
    assert "size" not in vars(made)
    assert not hasattr(bare, "late")
    assert (point.x, slotted.a) == (1.0, 1)


def test_models_come_back_whole():
    model = Model(name="n", other=[1], point=Point(1.0))
    model._secret = 8
    made = CODEC.unpack(CODEC.pack(freeze([model])))[0]
    assert made == model
    assert (made._secret, made.other, made.model_fields_set) == (8, [1], {"name", "other", "point"})
    made.many.append(1)
    assert CODEC.unpack(CODEC.pack(Strict(a=1))).model_fields_set == {"a"}


class Stranger:
    pass


@dataclass
class Unknown:
    a: int


def beside():
    note = Note("x")
    note.other = 1
    return note


def hidden():
    value = Slotted(1)
    value.hidden = 2
    return value


def half():
    note = Note("x")
    del note.text
    return note


REFUSED = [
    ([(i for i in "")], "x", "x[0]", "generator", r"list\(x\)"),
    ({"messages": [0, 1, 2, {"when": Stranger()}]}, "", "messages[3].when", "Stranger", "leave it out"),
    ({"a b": Unknown(1)}, "config", "config['a b']", "Unknown", r"FileSystemSaver\(types=\[Unknown\]\)"),
    ({(1, 2): Stranger()}, "x", "x[(1, 2)]", "Stranger", "leave it out"),
    ({"k" * 90 + " ": Stranger()}, "", "['" + "k" * 56 + "...]", "Stranger", "leave it out"),
    ([Outer(Colour.RED, [Note(Stranger())])], "s", "s[0].notes[0].text", "Stranger", "leave it out"),
    (Model(name="x", extra={1: Stranger()}), "m", "m.extra[1]", "Stranger", "leave it out"),
    ({frozenset({Stranger})}, "s", "s", "type", "leave it out"),
    (OrderedDict(a=1), "x", "x", "collections.OrderedDict", r"dict\(x\)"),
    ([bytearray(b"x")], "x", "x[0]", "bytearray", r"bytes\(x\)"),
    ([threading.Lock()], "x", "x[0]", "_thread.lock", "make it again"),
    ([msgpack.ExtType(1, b"")], "x", "x[0]", "msgpack.ext.ExtType", "storage format"),
    ([dt.datetime(2020, 1, 1, tzinfo=type("Z", (dt.tzinfo,), {})())], "x", "x[0]", "Z", "ZoneInfo with a key"),
    ([beside()], "x", "x[0]", "Note", "'other' is not a field"),
    ([hidden()], "x", "x[0]", "Slotted", "'hidden' is not a field"),
    ([half()], "x", "x[0]", "Note", "'text' has no value"),
]


@pytest.mark.requirement("P61")
@pytest.mark.parametrize(("value", "path", "where", "name", "advice"), REFUSED)
def test_refusals_have_the_path_the_type_and_the_advice(value, path, where, name, advice):
    for form in (value, freeze(value)):
        with pytest.raises(CheckpointSerializationError, match=advice) as caught:
            CODEC.pack(form, path)
        assert caught.value.path == where
        assert caught.value.type_name.endswith(name)


class SubPair(Pair):
    pass


def sub_pair():
    pair = SubPair(1)
    pair.x = 1
    return pair


def test_refused_items_are_counted_from_the_start():
    with pytest.raises(CheckpointSerializationError) as caught:
        CODEC.pack_items([1, {"when": Stranger()}], "messages", 10)
    assert caught.value.path == "messages[11].when"
    with pytest.raises(CheckpointSerializationError):
        Codec([SubPair]).pack(sub_pair())


def nested(levels, value, wrap=lambda x: [x]):
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap", [lambda x: [x], lambda x: (x,), lambda x: {"a": x}, lambda x: Note("x", x), lambda x: {(1,): x}]
)
def test_what_is_nested_too_deeply_is_refused(wrap):
    for leaf in (1, (1,), 2**70):
        with pytest.raises(CheckpointSerializationError, match="deep"):
            CODEC.pack(nested(5000, leaf, wrap), "a")
        value = nested(100, leaf, wrap)
        assert repr(CODEC.unpack(CODEC.pack(value))) == repr(value)


def test_the_deepest_that_packs_unpacks():
    for levels in range(1015, 1030):
        value = FrozenList()
        for _ in range(levels):
            value = FrozenList([value])
            value.kind = PLAIN
        try:
            packed = CODEC.pack(value)
        except CheckpointSerializationError:
            break
        assert CODEC.unpack(packed).kind == PLAIN
    else:
        pytest.fail("no depth was refused")


def test_a_root_model_can_be_stored_again_after_it_was_read():
    codec = Codec([Root])
    (read,) = codec.unpack(codec.pack([Root([1])]))
    assert (read, vars(read)) == (Root([1]), {"root": [1]})
    assert codec.unpack(codec.pack([read])) == [Root([1])]


def test_registering():
    codec = Codec([Outer])
    assert set(codec.types.values()) == {Outer, Colour, Note, Point}

    codec.register(Outer, Outer)
    codec.register_as("strict", Strict)
    assert codec.types["strict"] is Strict
    assert b"strict" in codec.pack(Strict(a=1))

    codec.register_as("old.Strict", Strict)
    assert b"old" not in codec.pack(Strict(a=1))
    assert codec.unpack(codec.pack(Strict(a=1)).replace(b"\xa6strict", b"\xaaold.Strict")) == Strict(a=1)
    with pytest.raises(CheckpointerConfigurationError, match="two classes are called 'strict'"):
        codec.register_as("strict", Model)


def test_a_registered_type_of_msgpack_is_no_mark():
    codec = Codec([msgpack.ExtType])
    for value in ([msgpack.ExtType(5, b"a"), 1], [msgpack.ExtType(0, b"\1"), 1]):
        assert codec.unpack(codec.pack(value)) == value


@pytest.mark.parametrize(
    "cls", [dict, Stranger, tuple, Tagged := type("Tagged", (tuple,), {}), 5, dataclass(type("D", (dict,), {}))]
)
def test_only_what_can_be_restored_can_be_registered(cls):
    with pytest.raises(TypeError, match="cannot be registered"):
        Codec().register(cls)


def test_annotations_that_cannot_be_evaluated_are_left_alone():
    cls = dataclass(type("Odd", (), {"__annotations__": {"a": "Nowhere", "b": Colour, "c": dict[str, Point]}}))
    assert set(Codec([cls]).types.values()) == {cls, Colour, Point}


@pytest.mark.requirement("promise 7")
def test_unknown_types_are_named_and_their_fields_are_at_hand():
    data = CODEC.pack([Note("x", [1])])

    with pytest.raises(CheckpointSerializationError, match="not registered") as caught:
        Codec().unpack(data, "messages")
    assert caught.value.path == "messages"

    name, fields = caught.value.raw
    assert name.endswith("Note")
    assert (fields["text"], fields["tags"]) == ("x", [1])
    with pytest.raises(CheckpointSerializationError, match="unknown ext") as caught:
        CODEC.unpack(msgpack.packb([msgpack.ExtType(77, b"ab")]))
    assert caught.value.raw == (77, b"ab")


def record(mark, *rest):
    return msgpack.packb([msgpack.ExtType(0, bytes([mark])), *rest])


def test_changed_classes():
    codec = Codec()
    for name, cls in {"e": Colour, "n": Pair, "d": Note, "p": Strict, "s": Point}.items():
        codec.register_as(name, cls)

    assert codec.unpack(record(5, "n", {"left": 1})) == Pair(1, 7)
    made = codec.unpack(record(6, "d", {"text": "x"}))
    assert vars(made) == {"text": "x", "tags": []}
    assert codec.unpack(record(6, "s", {"x": 1.0})) == Point(1.0, None)
    assert codec.unpack(record(7, "p", {"a": 1}, ["a"], None, None)) == Strict(a=1, b=5)

    for data, reason in [
        (record(4, "e", "GREEN"), "no member 'GREEN'"), (record(4, "e", 1), "no member 1"), (record(5, "n", {}), "lack its field 'left'"),
        (record(6, "d", {"text": "x", "gone": 1}), "no field 'gone'"), (record(6, "d", {}), "lack its field 'text'"),
        (record(7, "p", {}, [], None, None), "lack its field 'a'"), (record(6, "n", {}), "another kind"),
    ]:  # fmt: skip
        with pytest.raises(CheckpointSerializationError, match=reason) as caught:
            codec.unpack(data)
        assert caught.value.raw[0] == caught.value.type_name


@pytest.mark.parametrize("wrap", [lambda tag: {tag}, lambda tag: {tag: 1}, lambda tag: frozenset({(tag,)})])
def test_an_object_in_a_set_that_has_no_hash_any_more_is_no_damage(wrap):
    @dataclass(frozen=True)
    class Tag:
        name: str

    data = Codec([Tag]).pack(wrap(Tag("x")))
    mutable = dataclass(type("Tag", (), {"__annotations__": {"name": str}, "__module__": __name__}))
    codec = Codec()
    codec.register_as(f"{__name__}.{Tag.__qualname__}", mutable)

    with pytest.raises(CheckpointSerializationError, match="cannot be in a set or be a key") as caught:
        codec.unpack(data, "tags")
    assert (caught.value.path, caught.value.type_name) == ("tags", f"{__name__}.Tag")
    assert caught.value.raw is not None


MALFORMED = [
    b"", b"\xc1", b"\x01\x01", b"\xa5abc", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff\x01", b"\xc6\xff\xff\xff\xff", b"\xa1\xff", b"\x91" * 100000, b"\x81\x90\x01",
    record(8), record(0, 1), record(0, [], 1), record(2, []), record(6), record(6, 5, {}), record(6, "x"), record(6, "x", {}, 1), record(7, "x", {}),
    record(6, f"{__name__}.Note", [1]), msgpack.packb(msgpack.ExtType(0, b"\1")), msgpack.packb([1, msgpack.ExtType(0, b"\1")]),
    msgpack.packb({"a": msgpack.ExtType(0, b"\1")}), record(1, msgpack.ExtType(0, b"\1")),
    *(msgpack.packb(msgpack.ExtType(code, data)) for code in (4, 5, 6, 7, 8, 9, 10, 11) for data in (b"", b"\xff" * 3)),
    *(msgpack.packb(msgpack.ExtType(8, b"\3" + key)) for key in (b"../etc/passwd", b"/etc/passwd", b"a..b", b"\xff", b"", b"a/")),
    b"\xd4\xff\x00", b"\xc7\x0c\xff" + b"\xff" * 12,
]  # fmt: skip


def test_malformed_data():
    for data in MALFORMED:
        with pytest.raises((MalformedDataError, CheckpointSerializationError)) as caught:
            CODEC.unpack(data)
        assert isinstance(caught.value, MalformedDataError) or caught.value.raw is not None, data


@pytest.mark.requirement("promise 7")
@settings(max_examples=examples(300))
@given(st.binary(max_size=60) | st.builds(lambda v, cut: CODEC.pack(v)[:-cut], VALUES, st.integers(1, 5)))
def test_hostile_bytes_raise_only_what_is_documented(data):
    try:
        value = CODEC.unpack(data)
    except (MalformedDataError, CheckpointSerializationError):
        return
    same(CODEC.unpack(CODEC.pack(value)), value)


def test_a_process_that_imported_the_codec_while_a_test_froze_the_time():
    code = """
import datetime as dt
real = dt.datetime
dt.datetime = type("FakeDatetime", (real,), {"__slots__": ()})
from graphkit.saver_kit import Codec
dt.datetime = real
print(Codec().unpack(Codec().pack(real(2026, 1, 2), "x")))
"""
    assert fresh_process(code) == "2026-01-02 00:00:00\n"


def test_timestamps_of_msgpack_itself_are_read():
    when = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    assert CODEC.unpack(msgpack.packb([when], datetime=True)) == [when]


def test_zones_and_paths_that_this_machine_lacks():
    with pytest.raises(CheckpointSerializationError, match="does not know the time zone 'No/Where'"):
        CODEC.unpack(msgpack.packb(msgpack.ExtType(8, b"\3No/Where")))
    alien = b"\3x" if sys.platform != "win32" else b"\2x"
    with pytest.raises(CheckpointSerializationError, match="pure path"):
        CODEC.unpack(msgpack.packb(msgpack.ExtType(11, alien)))


def test_a_full_stack_is_no_damage():
    data = CODEC.pack(Note("x", nested(300, 1)))

    def deeper(levels):
        return deeper(levels - 1) if levels else CODEC.unpack(data)

    with pytest.raises(CheckpointSerializationError, match="too deeply to be read here"):
        deeper(sys.getrecursionlimit() - 250)


def test_no_memory_is_no_damage(monkeypatch):
    def full(*_args, **_kwargs):
        raise MemoryError

    monkeypatch.setattr("graphkit._values.codec.unpackb", full)
    with pytest.raises(MemoryError):
        CODEC.unpack(b"\1")
