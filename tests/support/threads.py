"""A thread with all that a saver can hold, and a comparison that tells apart what == does not."""

import dataclasses
import enum
from datetime import date, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import NamedTuple
from uuid import UUID

from graphkit import END, START, RunnableConfig
from graphkit._saver.status import public_metadata
from savers import FileSystemSaver, MemorySaver, SaverWrapper, VersionedMemorySaver
from tests.support.savers import ListingSaver
from tests.support.terminal import NOW, checkpoint


@dataclasses.dataclass
class Point:
    x: int


class Colour(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    a: int
    b: str


EVERYTHING = {
    "none": None, "bools": [True, False], "ints": [0, -1, 2**80, 3**12_000], "floats": [1.0, -0.0, float("inf"), 1e-300],
    "complex": 1 + 2j, "text": "äöü \ud800 \n", "bytes": b"\x00\xff", "list": [1, [2, []]], "tuple": (1, (2,)),
    "dict": {"b": 1, "a": {}}, "odd keys": {1: "a", (1, 2): "b", None: "c"}, "set": {3, 1, 2},
    "frozen": frozenset({"x"}), "aware": NOW, "naive": NOW.replace(tzinfo=None), "zone": NOW.astimezone(timezone(timedelta(hours=2))),
    "date": date(2026, 1, 1), "time": time(1, 2), "delta": timedelta(days=-1), "uuid": UUID(int=7),
    "decimal": Decimal("1.10"), "path": PurePosixPath("/a"), "enum": Colour.RED, "pair": Pair(1, "b"),
    "point": Point(1), "deep": [{"p": [Point(2)]}], "marked": {"$packed": "not ours"}, "": "empty key",
}  # fmt: skip
TYPES = (Point, Colour, Pair)
MAKERS = {
    "file": lambda path: FileSystemSaver(path, fsync="never"),
    "sealed": lambda path: FileSystemSaver(path, fsync="never", cipher={"k": b"k" * 32}),
    "memory": lambda _: MemorySaver(),
    "versioned": lambda _: VersionedMemorySaver(),
    "wrapped": lambda _: SaverWrapper(MemorySaver()),
    "lists": lambda _: ListingSaver(),
}


def made(kind, path=None):
    """Open a saver of a kind that knows the types."""
    saver = MAKERS[kind](path)
    saver.register_types(*TYPES)
    return saver


def strict(value):
    """Tells apart what == does not."""
    if isinstance(value, dict):
        return [(strict(key), strict(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__.removeprefix("Frozen").lower(), [strict(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return isinstance(value, frozenset), sorted(map(repr, value))
    return type(value).__name__, hex(value) if type(value) is int else repr(value)


def exact(checkpoint):
    return {
        name: strict(getattr(checkpoint, name))
        for name in ("id", "node_id", "next_node_id", "parent_id", "created_at", "state")
    } | {"metadata": strict(public_metadata(checkpoint.metadata))}


def everything(saver):
    """A thread with all that can be there."""
    at = RunnableConfig("t")
    nested = RunnableConfig("t", checkpoint_ns="sub")
    first = {"log": ["one"], "gone": 1, "n": 1}
    saver.put(at, checkpoint(1, START, "a", first))
    inside = {"inside": (1,)}
    saver.put(nested, checkpoint(5, "x", "y", inside))
    second = {"log": ["one", "two"], "n": True}
    with_time = checkpoint(2, "a", "b", second, 1, when=NOW)
    here = saver.put(at, with_time)
    interrupt = {"node_id": "b", "when": "inside", "payload": (1,), "metadata": {}, "created_at": NOW}
    writes = {"interrupt:q": interrupt, "answer:q": (1, 2)}
    saver.put_writes(here, writes)
    saver.add_tags(here, "golden", "kept")
    third = {"n": 1.0, "log": ["two"]}
    saver.put(at, checkpoint(3, "b", None, third, 2))
    saver.put(at, checkpoint(4, "c", END, EVERYTHING, 3))
    return saver


def assert_same(first, second, thread="t", other="t"):
    """Check that a thread of a saver and another thread of a saver have the same checkpoints, writes and tags."""
    namespaces = sorted(first.namespaces(thread))
    assert sorted(second.namespaces(other)) == namespaces
    for namespace in namespaces:
        at = RunnableConfig(thread, checkpoint_ns=namespace)
        there = RunnableConfig(other, checkpoint_ns=namespace)
        originals = first.list(at)
        copies = second.list(there)
        for original, copy in zip(originals, copies, strict=True):
            assert exact(copy) == exact(original)
            own = at.replace(checkpoint_id=original.id)
            own_of_copy = there.replace(checkpoint_id=original.id)
            writes = first.get_writes(own)
            copied_writes = second.get_writes(own_of_copy)
            assert strict(copied_writes) == strict(writes)
            tags = first.tags_of(own)
            assert second.tags_of(own_of_copy) == tags
