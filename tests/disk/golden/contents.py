"""What the golden directories of the format have; test_golden.py compares.

Each was written once, when its version of the format was new: what is committed is what was written then, and every
later graphkit must read it exactly.
"""

import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import NamedTuple
from uuid import UUID

NOON = datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=UTC)


class Colour(Enum):
    RED = 1


@dataclass
class Point:
    x: int
    y: float


class Pair(NamedTuple):
    a: int
    b: str


TYPES = {"golden.Colour": Colour, "golden.Point": Point, "golden.Pair": Pair}
TYPED = {
    "none": None, "big": 2**70, "float": 0.1, "bytes": b"\x00\xff", "text": "Grüße \ud800", "tuple": (1, (2,)),
    "set": {1, 2}, "frozen": frozenset({"a"}), "keys": {1: "a", (1, 2): "b"}, "when": NOON, "day": date(2026, 1, 2),
    "span": timedelta(days=1, microseconds=5), "id": UUID(int=7), "money": Decimal("1.10"), "complex": 1 + 2j,
    "enum": Colour.RED, "point": Point(1, 2.5), "pair": Pair(1, "b"),
}  # fmt: skip
LONG = [f"line {n} of a list that is compressed" for n in range(60)]
TEXT = "The quick brown fox jumps over the lazy dog. " * 30


def checkpoint(n, state, **fields):
    from graphkit import Checkpoint

    fields = {
        "id": f"{n:08x}-0000-7000-8000-000000000000",
        "node_id": f"node{n}",
        "next_node_id": f"node{n + 1}",
        **fields,
    }
    return Checkpoint(state=state, metadata={"step": n}, created_at=NOON + timedelta(seconds=n), **fields)


def growing(start, count):
    """A list that grows, and a text that is edited: changes, keyframes, pieces, blocks."""
    for n in range(start, start + count):
        text = TEXT[: n * 3] + f"<{n}>" + TEXT[n * 3 + n % 7 :]
        yield checkpoint(n, {"items": LONG + [f"item {m} " * 20 for m in range(n)], "text": text, "n": n})


def long_ones():
    """States that are longer than a record, whose limit is lowered while they are written."""
    for n in range(3):
        noise = random.Random(n).randbytes(20_000)
        yield checkpoint(n, {"blob": noise, "list": [noise[at : at + 500] for at in range(0, 15_000, 500)], "n": n})


def windows():
    """Lists that drop their first elements, one behind a first element that stays."""
    lines = [f"message {n} " * 6 for n in range(60)]
    for n in range(20):
        yield checkpoint(n, {"window": lines[n : n + 30], "kept": ["system", *lines[n * 2 : n * 2 + 20]]})


def expected(version="v2.1"):
    """Per thread, namespace and version (None: live) the checkpoints, oldest first.

    Args:
        version: of the format.
    """
    replaced = [checkpoint(0, {"a": 1}), checkpoint(11, {"a": 99}), checkpoint(2, {"b": [1]})]
    scattered = [checkpoint(n, {"n": n}) for n in range(4)]
    found = {
        ("plain", "", None): list(growing(0, 40)),
        ("plain", "sub/Graph", None): [checkpoint(5, {"inner": True})],
        ("../Ünïcode\x00", "", None): [checkpoint(1, TYPED, parent_id="by hand")],
        ("replaced", "", None): replaced,
        ("released", "", 1): list(growing(0, 3)),
        ("released", "", 2): [checkpoint(7, {"second": "version"}, next_node_id="__END__")],
        ("released", "", None): [],
        ("long", "", None): list(long_ones()),
        ("window", "", None): list(windows()),
        ("scattered", "", None): scattered,
        ("extended", "", None): list(growing(0, 5)),
    }
    if version != "v2":
        # Version 2.1 has writes that were recorded before their checkpoints, in addition.
        found["early", "", None] = [checkpoint(n, {"items": LONG[: n * 5], "n": n}) for n in range(12)]
    return found


WRITES = {
    "interrupt:i1": {"node_id": "node1", "when": "before", "payload": [1], "metadata": {}, "created_at": NOON},
    "k": "v",
}


def early_writes(n):
    """The pending writes of a checkpoint of the thread "early": the first two were written before it."""
    return {"first": [n], "second": "x" * n, "behind": n}


def saver_on(path):
    from savers import Compression, FileSystemSaver

    saver = FileSystemSaver(path, compression=Compression(threshold=1000))
    for name, cls in TYPES.items():
        saver._codec.register_as(name, cls)
    return saver
