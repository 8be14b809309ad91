"""What the tests of savers are made of: strict equality, values of every type, checkpoints made by hand and derived."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple
from uuid import UUID

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._values.channels import Channel
from graphkit._values.frozen import FrozenDict, FrozenList, FrozenSet
from graphkit._values.state import Changes, merge

HOSTILE_IDS: Final = (
    "",
    " ",
    ".",
    "..",
    "/",
    "../x",
    "x/../../y",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a",
    "A",
    "a.",
    "a ",
    "a-v1",
    "a-v000001",
    "v000001.log",
    "log",
    "CON",
    "nul.txt",
    "a:b",
    "a\0b",
    "a\nb",
    "a(b",
    "a.c",
    "%2e%2e",
    "*",
    "$default2",
    "caf\u00e9",
    "cafe\u0301",
    "\u0130",
    "\U0001f600",
    "\ud800",
    "x" * 10_000,
    "x" * 9_999 + "y",
)
"""Thread ids and namespaces that must not meet each other, nor leave the store."""

# --- equality, strict in type and order -------------------------------------------------------------------------------

_READ_ONLY: Final[dict[type, type]] = {FrozenList: list, FrozenDict: dict, FrozenSet: set}


def same(got: object, expected: object) -> None:
    """Assert that a value is what was stored: in type and in order, NaN and -0.0 and time zones included.

    Read-only lists, dicts and sets count as the builtins.

    Raises:
        AssertionError: it is not; says where.
    """
    where = difference(got, expected)
    assert where is None, where


def difference(got: Any, expected: Any, path: str = "value") -> str | None:
    """Where and how two values differ, or None."""
    kind = _READ_ONLY.get(type(expected), type(expected))
    if _READ_ONLY.get(type(got), type(got)) is not kind:
        return f"{path}: {type(got).__name__} {got!r} instead of {kind.__name__} {expected!r}"
    parts = _parts_of(got), _parts_of(expected)
    if parts[1] is None:
        return None if _leaf(got) == _leaf(expected) else f"{path}: {got!r} instead of {expected!r}"
    if len(parts[0] or ()) != len(parts[1]):
        return f"{path}: {len(parts[0] or ())} parts instead of {len(parts[1])}: {got!r} instead of {expected!r}"
    found = (difference(*pair, f"{path}[{n}]") for n, pair in enumerate(zip(parts[0] or (), parts[1], strict=True)))
    return next((where for where in found if where is not None), None)


def _parts_of(value: Any) -> list[Any] | None:
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, (list, tuple)):
        return [*value]
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=lambda item: (type(item).__name__, repr(item)))
    if dataclasses.is_dataclass(value) or hasattr(value, "model_fields_set"):
        return [vars(value)]
    return None


def _leaf(value: Any) -> object:
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, complex):
        return struct.pack(">dd", value.real, value.imag)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (datetime, time)):
        return value.replace(tzinfo=None), value.fold, str(value.tzinfo), value.utcoffset()
    return value


def same_checkpoint(found: Checkpoint | None, expected: Checkpoint) -> None:
    """Assert that a checkpoint is what was stored, field by field.

    Raises:
        AssertionError: it is not; says where.
    """
    assert found is not None, "there is no such checkpoint"
    for name in ("id", "node_id", "next_node_id", "parent_id", "created_at", "state"):
        where = difference(getattr(found, name), getattr(expected, name), name)
        assert where is None, where
    # A saver of four methods keeps writes and tags there.
    metadata = {key: value for key, value in found.metadata.items() if not str(key).startswith("graphkit:")}
    where = difference(metadata, dict(expected.metadata), "metadata")
    assert where is None, where


# --- values of every type ---------------------------------------------------------------------------------------------


class Colour(Enum):
    """An application's enum."""

    RED = "red"
    BLUE = ("b", 2)


class Level(IntEnum):
    """An enum that is an int, which must not come back as one."""

    LOW = 1


class Point(NamedTuple):
    """An application's named tuple."""

    x: float
    tags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Money:
    """An application's immutable object."""

    amount: Decimal
    currency: str = "EUR"


@dataclasses.dataclass
class Note:
    """An application's mutable object."""

    text: str
    lines: list[str] = dataclasses.field(default_factory=list)


class Stranger:
    """Of a type that no saver knows."""


@dataclasses.dataclass
class Unregistered:
    """Of a type that a saver could store if it were registered."""

    text: str = ""


@cache
def answer_model() -> type[Any]:
    """A pydantic model; made late, for pydantic is slow to import."""
    import pydantic

    return pydantic.create_model("Answer", __module__=__name__, text=(str, ...), score=(float, 0.5))


def application_types() -> tuple[type, ...]:
    """The types of the zoo that a saver has to be told of."""
    return Colour, Level, Point, Money, Note, answer_model()


def zoo() -> dict[str, Any]:
    """A value of every type that a state may hold, and the odd ones of each."""
    return {
        "none": None,
        "bools": [True, False, 1, 0, 1.0],
        "ints": [0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**50, -(10**50)],
        "floats": [0.0, -0.0, 0.1, float("inf"), float("-inf"), float("nan"), 5e-324],
        "complex": [1j, complex(-0.0, float("nan"))],
        "strings": ["", "caf\u00e9", "\0", "\U0001f600", "\ud800"],
        "bytes": [b"", b"\0\xff", b"__START__"],
        "nested": {"a": [[], {}, [[1], {"b": None}]], "": 0},
        "tuples": [(), (1,), (1, [2, (3,)], {"k": (4,)})],
        "keys": {1: "int", "1": "str", b"1": "bytes", (1, 2): "tuple", None: "none", 1.5: "float", True + 1: 2},
        "order": {"z": 1, "a": 2, "m": 3},
        "sets": [set(), {1, "1", (1,)}, frozenset(), frozenset({b"x", None})],
        "datetimes": [
            datetime(2026, 2, 3, 4, 5, 6, 7),  # noqa: DTZ001 - naive ones are values too
            datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC),
            datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=-5, minutes=-30))),
            datetime(2026, 10, 25, 2, 30, fold=1),  # noqa: DTZ001
        ],
        "dates": [date(2026, 2, 3), date.min, date.max],
        "times": [time(1, 2, 3, 4), time(1, 2, tzinfo=UTC)],
        "timedeltas": [timedelta(days=-1, microseconds=1), timedelta.max],
        "uuid": UUID(int=5),
        "decimals": [Decimal("1.10"), Decimal("-0"), Decimal("Infinity"), Decimal("1E+400")],
        "paths": [Path("a/b"), PurePosixPath("/x")],
        "enums": [Colour.RED, Colour.BLUE, Level.LOW],
        "point": Point(1.5, ("a",)),
        "money": Money(Decimal("9.90")),
        "note": Note("n", ["one", "two"]),
        "model": answer_model()(text="yes"),
    }


# --- making checkpoints -----------------------------------------------------------------------------------------------


def made(state: Mapping[str, Any] | None = None, **fields: Any) -> Checkpoint:
    """A checkpoint made by hand."""
    return Checkpoint(**{"node_id": "a", "next_node_id": "b", "state": {} if state is None else state, **fields})


def derived(
    parent: Checkpoint, update: Mapping[str, Any], channels: Mapping[str, Channel] | None = None, **fields: Any
) -> Checkpoint:
    """A checkpoint as the engine makes it: its parent's state with an update merged in, knowing what changed."""
    state, ops = merge(parent.state, update, channels or {})
    made_by_hand = made(parent_id=parent.id, **fields)
    return Checkpoint.from_stored(
        id=made_by_hand.id,
        node_id=made_by_hand.node_id,
        next_node_id=made_by_hand.next_node_id,
        parent_id=parent.id,
        created_us=made_by_hand.created_us,
        metadata=made_by_hand.metadata,
        state=state,
        changes=Changes(parent.state, ops),
    )


def at(thread: str | None = "t", checkpoint_id: str | None = None, namespace: str = "") -> RunnableConfig:
    """The address of a checkpoint."""
    return RunnableConfig(thread, checkpoint_id, namespace)


def stop(node_id: str = "a", payload: Any = None) -> dict[str, Any]:
    """What is recorded of a run that waits for a human."""
    when = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    return {"node_id": node_id, "when": "inside", "payload": payload, "metadata": {}, "created_at": when}


GROWING: Final = {"list": Channel(lambda old, new: [*(old or ()), *new])}


def grow_list(saver: BaseCheckpointSaver, config: RunnableConfig, length: int) -> list[Checkpoint]:
    """Put checkpoints of a list that grows by one each, as the engine does; oldest first."""
    checkpoints = [made({"list": [0], "fixed": "f" * 100})]
    saver.put(config, checkpoints[0])
    for number in range(1, length):
        checkpoints.append(derived(checkpoints[-1], {"list": [number], "last": number}, GROWING))
        saver.put(config, checkpoints[-1])
    return checkpoints
