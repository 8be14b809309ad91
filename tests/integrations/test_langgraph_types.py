"""Classes of the application in LangGraph's state: what is stored is read by a fresh process, and no other code runs."""

import asyncio
import importlib.util
import logging
import pathlib
import re
import sys
import types
import uuid
import zoneinfo
from collections import deque, namedtuple
from dataclasses import InitVar, dataclass, field, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag
from functools import cached_property
from ipaddress import IPv4Address, IPv6Network
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import ormsgpack
import pytest

pytest.importorskip("langgraph")

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, SecretStr, computed_field, field_validator

from graphkit import CheckpointSerializationError
from savers.langgraph import FileSystemCache, FileSystemCheckpointSaver
from tests.integrations.langgraph_stores import OTHERS, parametrize
from tests.support.langgraph_checkpoints import again, put, thread, values_of

T = TypeVar("T")
called = []
"""What ran although it must not."""


@pytest.fixture(autouse=True)
def _nothing_ran():
    called.clear()
    yield
    assert called == []


def get(saver):
    """Read the channels of the latest checkpoint."""
    return values_of(saver.get_tuple(thread()))


# Classes of each kind -------------------------------------------------------------------------------------------------


class Color(Enum):
    RED = ("r", 1)
    GREEN = "green"
    LIKE_GREEN = "green"  # noqa: PIE796 - an alias


class Level(IntEnum):
    LOW = 1


class Mode(Flag):
    READ = 1
    WRITE = 2


class Bits(IntFlag):
    ONE = 1
    TWO = 2


@dataclass
class Note:
    text: str
    tags: list = field(default_factory=list)

    @cached_property
    def length(self):
        return len(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slotted:
    text: str
    late: Any = field(init=False, default=None)


@dataclass
class Counted:
    """Its constructor takes something else than its fields."""

    start: InitVar[int]
    count: int = field(init=False)

    def __post_init__(self, start):
        self.count = start + 1


class Point(NamedTuple):
    x: float
    tags: tuple = ()


class Outer:
    class Inner(NamedTuple):
        color: Color


class Person(BaseModel):
    name: str
    note: Note | None = None
    anything: Any = None


class Full(BaseModel):
    """Its validators do not accept what they made."""

    model_config = ConfigDict(extra="allow")

    people: list[Person] = Field(alias="persons")
    text: str = ""
    _secret: list = PrivateAttr(default_factory=list)

    @computed_field
    @property
    def size(self) -> int:
        return len(self.people)

    @field_validator("text", mode="before")
    @classmethod
    def shout(cls, text: str) -> str:
        return f"{text}!"


class Names(RootModel[list[str]]):
    pass


class Mine(HumanMessage):
    rating: int = 0


def make_full():
    full = Full(persons=[Person(name="ann", note=Note("n"))], text="hello", more=Point(1.0))
    full._secret.append(Color.RED)
    return full


MADE = {
    "enums": [Color.RED, Color.LIKE_GREEN, Level.LOW, Mode.READ | Mode.WRITE, Mode(0), Bits.ONE | Bits.TWO, Bits(8)],
    "dataclasses": [Note("a", [Note("b")]), Slotted(text="s")],
    "constructed": Counted(4),
    "namedtuples": [Point(1.5, ()), Outer.Inner(Color.GREEN)],
    "models": [Person(name="ann", note=Note("n"), anything=Person(name="bob")), Names(["a"]), Mine("hi", rating=3)],
    "full": make_full(),
    "sets": {"enums": {Color.RED}, "deque": deque([Point(0.5)]), "frozen": frozenset({Outer.Inner(Color.RED)})},
    "langgraph": [
        Send("node", Note("sent")),
        Interrupt(value=Note("asked"), id="1"),
        Command(update={"note": Note("updated")}, resume=Color.RED),
        Overwrite(Person(name="eve")),
        AIMessage("text", additional_kwargs={"note": Color.GREEN}),
    ],
    "keys": {1: Note("one"), "x": [Color.RED]},
}
"""Values that no other serializer of LangGraph's returns all exactly."""


def assert_same(found, expected):
    """Compare values with the types in them, and with what pydantic keeps beside the fields."""
    assert describe(found) == describe(expected)


def describe(value):
    parts = value

    if isinstance(value, dict):
        parts = {key: describe(part) for key, part in value.items()}
    elif isinstance(value, (list, tuple, deque)):
        parts = [describe(part) for part in value]
    elif isinstance(value, BaseModel) and type(value).__module__ == __name__:
        beside = (value.__pydantic_fields_set__, value.__pydantic_extra__, value.__pydantic_private__)
        parts = [describe(part) for part in (value.__dict__, *beside)]
    elif is_dataclass(value):
        parts = {field.name: describe(getattr(value, field.name, ...)) for field in fields(value)}
    # A tuple in an object is stored as a list.
    return list if type(value) is tuple else type(value), parts


@parametrize("file", *OTHERS)
def test_the_classes_of_the_application_are_read_as_they_were(opener):
    saver = opener.open("store")
    config = put(saver, **MADE)
    writes = list(MADE.items())
    saver.put_writes(config, writes, "task")
    asyncio.run(saver.aput_writes(config, writes, "another"))

    for reader in (saver, opener.reopen(saver)):
        for found in (reader.get_tuple(config), asyncio.run(reader.aget_tuple(config)), *reader.list(thread())):
            assert_same(values_of(found), MADE)
            assert len(found.pending_writes) == 2 * len(MADE)
            for _, channel, value in found.pending_writes:
                assert_same(value, MADE[channel])


def test_the_cache_returns_the_classes_of_the_application(tmp_path):
    key = (("ns",), "key")
    FileSystemCache(tmp_path).set({key: (MADE, None)})
    assert_same(FileSystemCache(tmp_path).get([key]), {key: MADE})


def test_langgraphs_own_serializer_and_ours_read_what_the_other_has_stored(saver):
    values = [Note("a", [Color.GREEN]), Person(name="ann", note=Note("n", ["t"])), Level.LOW, Mode.READ | Mode.WRITE]
    theirs = JsonPlusSerializer()
    assert theirs.loads_typed(saver.serde.dumps_typed(values)) == values
    assert saver.serde.loads_typed(theirs.dumps_typed(values)) == values
    assert saver.serde.loads_typed(theirs.dumps_typed([*values, Point(1.0), Names(["a"])]))[:4] == values
    times = np.array([[NAIVE], [NAIVE]], dtype="datetime64[us]")  # LangGraph's does not store them
    for serde in (theirs, saver.serde):
        found = serde.loads_typed(saver.serde.dumps_typed(times))
        assert np.array_equal(found, times)


NAIVE = datetime(2026, 1, 2, tzinfo=UTC).replace(tzinfo=None)
TABLE = np.arange(12.0).reshape(3, 4)
STANDARD = [
    *[uuid.UUID(int=5), Decimal("1.10"), {1, 2}, frozenset({"a"}), deque([1]), IPv4Address("127.0.0.1")],
    *[IPv6Network("::/64"), datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), NAIVE, timedelta(1, 2, 3)],
    *[date(2026, 1, 2), time(1, 2, 3, 4, tzinfo=UTC, fold=1), timezone(timedelta(hours=1)), UTC],
    *[re.compile("a+", re.IGNORECASE), zoneinfo.ZoneInfo("Europe/Berlin"), pathlib.Path("/a/b")],
    *[AIMessage("a", id="1"), ToolMessage("t", tool_call_id="1", artifact={1})],
    *[Document("d", metadata={"when": NAIVE})],
    *[Send("n", {"x": {1}}), Interrupt(value=NAIVE, id="1"), Command(goto=[Send("n", 1)]), Overwrite({2})],
    *[Item(value={"a": 1}, key="k", namespace=("n",), created_at=NAIVE, updated_at=NAIVE)],
    *[{1: 2, None: 3, 1.5: 4}, (1, (2,)), [None, True, 2**63, -1, "\ud800", b"b", bytearray(b"c")], "text", None],
    *[TABLE, TABLE.T, TABLE[:, ::2], np.array(["text"])],
    *[ValueError("an error is stored as its text")],
]


def test_other_values_are_stored_and_read_as_by_langgraphs_own_serializer(saver):
    strict = JsonPlusSerializer(allowed_msgpack_modules=None)
    for value in [*STANDARD, *([{"deep": (value,)}] for value in STANDARD)]:
        data = saver.serde.dumps_typed(value)
        assert data == strict.dumps_typed(value)
        found = saver.serde.loads_typed(data)
        expected = strict.loads_typed(data)
        assert (type(found), repr(found)) == (type(expected), repr(expected))


# Classes that are not there when they are read ------------------------------------------------------------------------

SHAPES = """
from dataclasses import dataclass
from pydantic import BaseModel

@dataclass
class Note:
    text: str

class Person(BaseModel):
    name: str
    notes: list[Note]

VALUE = Person(name="ann", notes=[Note("n")])
"""


def test_a_module_is_not_imported_and_the_error_names_the_missing_one(saver, tmp_path, monkeypatch):
    (tmp_path / "shapes.py").write_text(SHAPES)
    monkeypatch.syspath_prepend(tmp_path)
    put(saver, person=importlib.import_module("shapes").VALUE)
    monkeypatch.delitem(sys.modules, "shapes")

    with pytest.raises(CheckpointSerializationError) as caught:
        get(saver)
    for name in ("Note", "Person"):
        hint = f"shapes.{name}: its module is not imported: import shapes before reading, or pass types=[{name}]"
        assert hint in caught.value.reason
    assert (caught.value.path, caught.value.raw["name"]) == ("person", "ann")
    assert "shapes" not in sys.modules

    shapes = importlib.import_module("shapes")
    assert get(saver) == {"person": shapes.VALUE}
    monkeypatch.delitem(sys.modules, "shapes")
    assert get(again(saver, types=[shapes.Person, shapes.Note])) == {"person": shapes.VALUE}


SCRIPT = """
from dataclasses import dataclass
from savers.langgraph import FileSystemCheckpointSaver
from tests.support.langgraph_checkpoints import put

@dataclass
class Note:
    text: str

put(FileSystemCheckpointSaver("store", fsync="never"), note=Note("a"))
"""


def test_types_of_a_script_are_read_as_the_types_that_are_given(saver, tmp_path, launcher):
    (tmp_path / "app.py").write_text(SCRIPT)
    launcher.run("app.py", cwd=tmp_path)
    own = "a script stored it (python FILE), so its module is not known: pass types=[Note]"
    with pytest.raises(CheckpointSerializationError, match=re.escape(own)):
        get(saver)
    assert get(again(saver, types=[Note])) == {"note": Note("a")}

    two = type("Note", (), {"__qualname__": "Note", "__module__": "two"})
    message = f"{__name__}.Note and two.Note in types=[...] have this name"
    with pytest.raises(CheckpointSerializationError, match=re.escape(message)):
        get(again(saver, types=[Note, two]))


# What is refused when it is stored ------------------------------------------------------------------------------------


class Custom:
    """LangGraph's serializer takes it for a model of pydantic 1."""

    def dict(self):
        return {"a": 1}


@dataclass
class Derived:
    text: str

    def __post_init__(self):
        self.derived = self.text * 2


@dataclass
class Guarded:
    text: str
    _text = ""

    @property
    def text(self):
        return self._text

    @text.setter
    def text(self, text):
        self._text = text


class Client(BaseModel):
    name: str
    _client: Any = PrivateAttr(default_factory=object)


class Fancy(Flag):
    ONE = 1
    TWO = 2

    def __new__(cls, value):
        if value == 3:
            called.append("Fancy")
        member = object.__new__(cls)
        member._value_ = value
        return member


class Box(BaseModel, Generic[T]):
    item: T


def make_box(item):
    """A box of a class that pydantic keeps in no module, because it is not made at the level of one."""
    return Box[str](item=item)


Hidden = namedtuple("NotFoundHere", "x")  # noqa: PYI024 - a name that leads nowhere


class Zone(tzinfo):
    def utcoffset(self, _):
        return timedelta(hours=1)


class Span(timedelta):
    pass


ENDLESS = []
ENDLESS.append(ENDLESS)
REFUSED = [
    (Custom(), "", "Custom", "only Enums, dataclasses, NamedTuples and pydantic models"),
    ([1, {"a": Custom()}], "[1].a", "Custom", "pass types=[..., Custom]"),
    ({"p": Person(name="a", anything={"b c": (Custom(),)})}, ".p.anything['b c'][0]", "Custom", ""),
    (Person(name="a", anything=SecretStr("s")), ".anything", "SecretStr", "pass types=[..., SecretStr]"),
    (Send("n", Custom()), "[1]", "Custom", ""),
    ({1: {frozenset(): 3}}, "[1][frozenset()]", "key of type frozenset", ""),
    ([2**70], "[0]", "int", "64-bit"),
    (Derived("a"), "", "Derived", "its attribute 'derived' is not a field"),
    (Guarded("a"), "", "Guarded", "its field 'text' is a property"),
    (Client(name="a"), "._client", "object", ""),
    (Fancy.ONE | Fancy.TWO, "", "Fancy", "it combines flags"),
    (make_box("a"), "", "Box[str]", "has no such class under this name"),
    (Hidden(1), "", "NotFoundHere", "has no such class under this name"),
    ([time(12, tzinfo=Zone())], "[0].tzinfo", "Zone", "pass types=[..., Zone]"),
    (timezone(Span(hours=1)), "[0]", "Span", ""),
    ({"a": np.array([{}])}, ".a", "numpy.ndarray of object", "only arrays of numbers, texts and times are stored"),
    (ENDLESS, 100 * "[0]", "list", ""),
]


@pytest.mark.parametrize(("value", "path", "type_name", "reason"), REFUSED)
def test_what_no_reader_could_make_is_refused_with_its_path(saver, value, path, type_name, reason):
    fine = put(saver, channel=1)
    for store in (lambda: put(saver, channel=value), lambda: saver.put_writes(fine, [("channel", value)], "task")):
        with pytest.raises(CheckpointSerializationError) as caught:
            store()

        error = caught.value
        assert error.path == f"channel{path}"
        assert error.type_name.endswith(type_name)
        assert reason in error.reason
    (stored,) = saver.list(None)
    assert (stored.config, stored.pending_writes) == (fine, [])


def test_types_are_made_by_their_constructors(tmp_path):
    types = [Derived, Client, SecretStr, Fancy, Box[int]]
    saver = FileSystemCheckpointSaver(tmp_path, fsync="never", types=types)
    client = Client(name="a")
    values = {"secret": SecretStr("s"), "fancy": Fancy.ONE, "box": Box[int](item=1)}
    put(saver, derived=Derived("a"), client=client, **values)
    found = get(saver)
    derived = found.pop("derived")
    made = found.pop("client")

    assert derived.derived == "aa"
    assert made._client is not client._client
    assert found == values


def test_types_make_the_list_strict(tmp_path):
    note = Note("n", [Color.RED])
    put(FileSystemCheckpointSaver(tmp_path, fsync="never"), note=note)
    strict = FileSystemCheckpointSaver(tmp_path, fsync="never", types=[Note])
    with pytest.raises(CheckpointSerializationError, match=r"it is not in types=.* add Color there") as caught:
        get(strict)
    assert caught.value.raw == Note("n", [["r", 1]])

    with pytest.raises(CheckpointSerializationError, match=r"its type is not in types=.* add Color there") as caught:
        put(strict, note=note)
    assert (caught.value.path, caught.value.type_name) == ("note.tags[0]", f"{__name__}.Color")

    dated = Note("n", [date(2026, 1, 1)])
    put(strict, note=dated)
    assert get(strict) == {"note": dated}


def test_types_read_what_was_stored_without_them(tmp_path):
    put(FileSystemCheckpointSaver(tmp_path, fsync="never"), **MADE)
    plain = get(FileSystemCheckpointSaver(tmp_path, on_blocked_type="plain"))
    assert plain["dataclasses"][0] == {"text": "a", "tags": [{"text": "b", "tags": []}]}
    assert plain["namedtuples"][1] == {"color": "green"}
    kinds = [Color, Level, Mode, Bits, Note, Slotted, Counted, Point, Outer.Inner, Person, Full, Names, Mine]
    for options in ({}, {"on_blocked_type": "plain"}):
        assert_same(get(FileSystemCheckpointSaver(tmp_path, types=kinds, **options)), MADE)


def make_local():
    @dataclass
    class Local:
        text: str

    class Model(BaseModel):
        local: Local

    return Local, Model


def test_a_class_in_a_function_is_read_as_plain_data_with_a_warning(tmp_path, saver, caplog):
    local, model = make_local()
    value = model(local=local("a"))

    for _ in range(2):
        put(saver, value=value)

    model_warning, _ = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "make_local.<locals>.Model is defined in a function" in model_warning
    assert get(saver) == {"value": {"local": {"text": "a"}}}
    assert get(FileSystemCheckpointSaver(tmp_path / "store", types=[local, model])) == {"value": value}


# What a hostile store could try ---------------------------------------------------------------------------------------


class Hostile(bytes):
    """Bytes that stand for a value."""


class StoresAnything(JsonPlusSerializer):
    """Stores Hostile bytes as if they were what the serializer returned."""

    def dumps_typed(self, obj):
        return ("msgpack", bytes(obj)) if isinstance(obj, Hostile) else super().dumps_typed(obj)


def read_forged(path, code, *parts):
    """Store the bytes of an ext type, with any parts; return the channels that a saver then reads."""
    ext = ormsgpack.Ext(code, ormsgpack.packb(parts, None, ormsgpack.OPT_NON_STR_KEYS))
    put(FileSystemCheckpointSaver(path, fsync="never", serde=StoresAnything()), channel=Hostile(ormsgpack.packb([ext])))
    return get(FileSystemCheckpointSaver(path))


def noting(name):
    """Return a method that notes that it ran."""
    return lambda *_, **__: called.append(name)


@dataclass
class DangerousInit:
    text: str

    __init__ = noting("__init__")
    __post_init__ = noting("__post_init__")


@dataclass
class DangerousNew:
    text: str

    __new__ = noting("__new__")
    __setattr__ = noting("__setattr__")


@dataclass
class DangerousProperty:
    text: str = property(noting("get"), noting("set"))


class DangerousTuple(NamedTuple("Base", [("text", str)])):
    __slots__ = ()
    __new__ = noting("tuple")


class DangerousModel(BaseModel):
    text: str

    __init__ = noting("model")
    model_post_init = noting("post init")


class DangerousEnum(Enum):
    ONE = 1

    _missing_ = classmethod(noting("missing"))


class DangerousFlag(Flag):
    ONE = 1
    TWO = 2

    _missing_ = classmethod(noting("missing"))


class Meta(type):
    def __getattribute__(cls, name):
        called.append(f"metaclass {name}")
        return super().__getattribute__(name)


class Plain:
    """Not of a kind that is made."""

    __init__ = method = noting("Plain")


INSTANCE = Note("an instance")
HERE = __name__
BLOCKED = [
    # Functions, and classes that are no data.
    (0, "os", "system", "touch /tmp/x"),
    (1, "subprocess", "Popen", ["true"]),
    (0, HERE, "Plain", 1),
    (3, "datetime", "datetime", "x", "strptime"),
    (5, HERE, "Plain", {"text": "x"}, "model_validate_json"),
    # Paths that do not lead from class to class.
    (2, HERE, "INSTANCE", {"text": "x"}),
    (2, HERE, "sys.modules", {}),
    (2, HERE, "Note.__class__", {"text": "x"}),
    (2, HERE, 5, {}),
    # Another kind, or other fields.
    (0, HERE, "Note", "x"),
    (1, HERE, "Note", ["x"]),
    (2, HERE, "Person", {"name": "x"}),
    (2, HERE, "Color", {"value": "New", "names": "a b"}),
    (2, HERE, "Note", {"text": "x", "__class__": "y"}),
    (2, HERE, "Note", {}),
    (2, HERE, "Note", {1: 2, "text": "x"}),
    (5, HERE, "Person", {"nme": "x"}, "", ["name"], None),
    (0, HERE, "Color", "purple"),
    (0, HERE, "Color", "green", "__class__"),
    (0, HERE, "DangerousEnum", 7),
    (0, HERE, "DangerousFlag", 3),
    (0, HERE, "Fancy", 3),
    (2, HERE, "DangerousProperty", {"text": "x"}),
    # Malformed.
    (2, HERE),
    (77, HERE, "Note", {"text": "x"}),
    (6, "O", [1], "C", b"12345678"),
]


@pytest.mark.parametrize("parts", BLOCKED, ids=lambda parts: "-".join(map(str, parts[:3])))
def test_what_a_store_names_is_not_called(tmp_path, parts):
    with pytest.raises(CheckpointSerializationError) as caught:
        read_forged(tmp_path, *parts)
    assert caught.value.path == "channel"


@pytest.mark.parametrize(
    "parts",
    [
        (2, HERE, "DangerousInit", {"text": "x"}),
        (2, HERE, "DangerousNew", {"text": "x"}),
        (2, HERE, "DangerousTuple", {"text": "x"}),
        (5, HERE, "DangerousModel", {"text": "x"}, "", ["text"], None),
    ],
    ids=lambda parts: parts[2],
)
def test_no_constructor_of_a_class_that_is_not_listed_runs(tmp_path, parts):
    (made,) = read_forged(tmp_path, *parts)["channel"]
    assert (type(made).__name__, made.text) == (parts[2], "x")


def test_a_model_as_langgraph_stores_it_is_validated_without_its_constructor(tmp_path):
    (made,) = read_forged(tmp_path, 5, HERE, "DangerousModel", {"text": "x"}, "model_validate_json")["channel"]
    assert made.text == "x"
    assert called == ["post init"], "part of pydantic's validation"
    called.clear()


def test_nothing_is_imported(tmp_path, monkeypatch):
    marker = tmp_path / "imported"
    code = f"open({str(marker)!r}, 'w')\nfrom tests.integrations.test_langgraph_types import Note\n"
    tmp_path.joinpath("not_imported.py").write_text(code)
    tmp_path.joinpath("lazy.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.find_spec("lazy")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    spec.loader.exec_module(lazy)

    class Module(types.ModuleType):
        def __getattr__(self, name):
            called.append(name)

    monkeypatch.setitem(sys.modules, "computed", Module("computed"))
    monkeypatch.setitem(sys.modules, "no_module", INSTANCE)
    odd = types.ModuleType("odd")
    odd.Odd = Meta("Odd", (), {})
    called.clear()
    monkeypatch.setitem(sys.modules, "odd", odd)
    for module in ("not_imported", "lazy", "computed", "no_module", "tests.integrations.missing"):
        with pytest.raises(CheckpointSerializationError, match=f"import {module} before|has no class Note now"):
            read_forged(tmp_path / module, 2, module, "Note", {"text": "x"})
    assert not marker.exists()
    assert "not_imported" not in sys.modules
