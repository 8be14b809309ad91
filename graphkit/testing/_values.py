"""Tools of the saver tests: strict equality, values of every type, and checkpoints to put."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from functools import cache
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple
from uuid import UUID

from graphkit._records.checkpoint import Checkpoint, replace_fields
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._values.channels import Channel
from graphkit._values.state import Changes, merge

HOSTILE_IDS: Final = (
    # Paths.
    *("", " ", ".", "..", "/", "../x", "x/../../y", "/etc/passwd", "a/b", "a\\b", "%2e%2e"),
    # Equal but for the case, the end or the form of a letter.
    *("a", "A", "a.", "a ", "caf\u00e9", "cafe\u0301"),
    # Names that a saver may use itself, and those that Windows reserves.
    *("a-v1", "a-v000001", "v000001.log", "log", "$default2", "CON", "nul.txt"),
    # Characters with a meaning for a file system, a shell, a database or an encoding.
    *("a:b", "a\0b", "a\nb", "a(b", "a.c", "*", "\u0130", "\U0001f600", "\ud800"),
    # Very long, with a difference at the end.
    *("x" * 10_000, "x" * 9_999 + "y"),
)
"""Thread ids and namespaces that a saver must keep apart from each other and within the store."""

# --- values of every type ---------------------------------------------------------------------------------------------


class Colour(Enum):
    """An application's enum."""

    RED = "red"
    BLUE = ("b", 2)


class Level(IntEnum):
    """An enum that is an int; a saver must not return it as a plain int."""

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


class UnknownType:
    """A type that no saver can store."""


@dataclasses.dataclass
class Unregistered:
    """A type that a saver can store only once it is registered."""

    text: str = ""


@cache
def answer_model() -> type[Any]:
    """Return a pydantic model; created at the first call, because pydantic is slow to import."""
    import pydantic

    return pydantic.create_model("Answer", __module__=__name__, text=(str, ...), score=(float, 0.5))


def application_types() -> tuple[type, ...]:
    """Return the types of the sample values that must be registered with a saver."""
    return Colour, Level, Point, Money, Note, answer_model()


def sample_values() -> dict[str, Any]:
    """Return values of every type that a state may hold, with the edge cases of each."""
    datetimes = [
        datetime(2026, 2, 3, 4, 5, 6, 7),  # noqa: DTZ001 - naive datetimes are values too
        datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=-5, minutes=-30))),
        datetime(2026, 10, 25, 2, 30, fold=1),  # noqa: DTZ001
    ]
    keys = {1: "int", "1": "str", b"1": "bytes", (1, 2): "tuple", None: "none", 1.5: "float", 2: 2}
    decimals = [Decimal(text) for text in ("1.10", "-0", "Infinity", "1E+400")]
    return {
        "none": None,
        "bools": [True, False, 1, 0, 1.0],
        # At and beyond the limits of signed and unsigned 64 bits.
        "ints": [0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**50, -(10**50)],
        "floats": [0.0, -0.0, 0.1, float("inf"), float("-inf"), float("nan"), 5e-324],
        "complex": [1j, complex(-0.0, float("nan"))],
        "strings": ["", "caf\u00e9", "\0", "\U0001f600", "\ud800"],
        "bytes": [b"", b"\0\xff", b"__START__"],
        "nested": {"a": [[], {}, [[1], {"b": None}]], "": 0},
        "tuples": [(), (1,), (1, [2, (3,)], {"k": (4,)})],
        "keys": keys,
        "order": {"z": 1, "a": 2, "m": 3},
        "sets": [set(), {1, "1", (1,)}, frozenset(), frozenset({b"x", None})],
        "datetimes": datetimes,
        "dates": [date(2026, 2, 3), date.min, date.max],
        "times": [time(1, 2, 3, 4), time(1, 2, tzinfo=UTC)],
        "timedeltas": [timedelta(days=-1, microseconds=1), timedelta.max],
        "uuid": UUID(int=5),
        "decimals": decimals,
        "paths": [Path("a/b"), PurePosixPath("/x")],
        "enums": [Colour.RED, Colour.BLUE, Level.LOW],
        "point": Point(1.5, ("a",)),
        "money": Money(Decimal("9.90")),
        "note": Note("n", ["one", "two"]),
        "model": answer_model()(text="yes"),
    }


# --- making checkpoints -----------------------------------------------------------------------------------------------


def made(state: Mapping[str, Any] | None = None, **fields: Any) -> Checkpoint:
    """Make a checkpoint from a state, with defaults for the other fields."""
    if state is None:
        state = {}
    return Checkpoint(**{"node_id": "a", "next_node_id": "b", "state": state, **fields})


def derive(
    parent: Checkpoint, update: Mapping[str, Any], channels: Mapping[str, Channel] | None = None, **fields: Any
) -> Checkpoint:
    """Make a checkpoint as the engine does: merge an update into the state of its parent.

    The checkpoint knows what changed.
    """
    state, ops = merge(parent.state, update, channels or {})
    return replace_fields(made(state, parent_id=parent.id, **fields), changes=Changes(parent.state, ops))


CONFIG: Final = RunnableConfig("t")
"""The config of the thread "t", which most tests use."""

OTHER: Final = RunnableConfig("u")
"""The config of a second thread, "u"."""

NESTED: Final = RunnableConfig("t", checkpoint_ns="n")
"""The config of the namespace "n" of the thread "t"."""

UNKNOWN: Final = RunnableConfig("t", "unknown")
"""The config of a checkpoint that does not exist, in the thread "t"."""


def in_namespace(namespace: str) -> RunnableConfig:
    """Make the config of a namespace of the thread "t"."""
    return RunnableConfig("t", checkpoint_ns=namespace)


def config_of(checkpoint: Checkpoint) -> RunnableConfig:
    """Make the config of a checkpoint of the thread "t"."""
    return RunnableConfig("t", checkpoint.id)


def make_interrupt(node_id: str = "a", payload: Any = None) -> dict[str, Any]:
    """Make the value that is recorded for a pending interrupt."""
    when = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    return {"node_id": node_id, "when": "inside", "payload": payload, "metadata": {}, "created_at": when}


def make_failure(at: Any = None) -> dict[str, Any]:
    """Make the value that is recorded for a failure."""
    return {"node_id": "a", "type": "E", "message": "m", "at": at}


GROWING: Final = {"list": Channel(lambda old, new: [*(old or ()), *new])}
"""A channel that appends an update to the value of "list"."""


def put_state(
    saver: BaseCheckpointSaver, state: Mapping[str, Any], config: RunnableConfig = CONFIG, **fields: Any
) -> Checkpoint:
    """Put a new checkpoint with this state, and return it."""
    checkpoint = made(state, **fields)
    saver.put(config, checkpoint)
    return checkpoint


_numbers: Final = count(1)


def put_checkpoint(saver: BaseCheckpointSaver, config: RunnableConfig = CONFIG, **fields: Any) -> Checkpoint:
    """Put a new checkpoint with a state that no other one has, and return it."""
    return put_state(saver, {"number": next(_numbers)}, config, **fields)


def replace_state(saver: BaseCheckpointSaver, checkpoint: Checkpoint, state: Mapping[str, Any]) -> Checkpoint:
    """Replace a checkpoint of the thread "t" by one with another state and the same id, and return that."""
    return put_state(saver, state, config_of(checkpoint), id=checkpoint.id)


def put_all(saver: BaseCheckpointSaver, checkpoints: Iterable[Checkpoint], config: RunnableConfig = CONFIG) -> None:
    """Put checkpoints in their order."""
    for checkpoint in checkpoints:
        saver.put(config, checkpoint)


def put_interrupt(saver: BaseCheckpointSaver, id: str = "i", config: RunnableConfig = CONFIG) -> None:
    """Record an interrupt with a checkpoint."""
    saver.put_writes(config, {f"interrupt:{id}": make_interrupt()})


def extend_list(parent: Checkpoint, *items: Any) -> Checkpoint:
    """Make a checkpoint as the engine does after a node that appended items to "list"."""
    return derive(parent, {"list": [*items]}, GROWING)


def put_extended(
    saver: BaseCheckpointSaver, parent: Checkpoint, item: Any, config: RunnableConfig = CONFIG
) -> Checkpoint:
    """Put a checkpoint as the engine does after a node that appended an item to "list", and return it."""
    checkpoint = extend_list(parent, item)
    saver.put(config, checkpoint)
    return checkpoint


def grow_list(saver: BaseCheckpointSaver, length: int, config: RunnableConfig = CONFIG) -> list[Checkpoint]:
    """Put checkpoints with a growing list, as the engine does; return them oldest first."""
    latest = put_state(saver, {"list": [0], "fixed": "f" * 100}, config)
    checkpoints = [latest]

    for number in range(1, length):
        update = {"list": [number], "last": number}
        latest = derive(latest, update, GROWING)
        saver.put(config, latest)
        checkpoints.append(latest)

    return checkpoints
