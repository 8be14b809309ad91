"""Tools of the saver tests: strict equality, values of every type, and checkpoints to put."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.status import public_metadata
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
"""Thread ids and namespaces that a saver must keep apart from each other and within the store."""

V = TypeVar("V")
_MAX_SHOWN: Final = 1_000
"""Characters of a value in a message: enough for a list of ids, not for a hostile one."""

# --- assertions -----------------------------------------------------------------------------------------------------
#
# pytest explains a bare `assert` only in modules that it rewrites, and unittest never does. The tests of the contract
# therefore call these functions, whose messages show under both what was expected and what was found.


def assert_true(condition: bool, message: str) -> None:
    """Assert a condition; the message says what was found instead."""
    if not condition:
        raise AssertionError(message)


def assert_equal(got: object, expected: object, what: str = "value") -> None:
    """Assert that two values are equal by `==`, where `assert_same` would be too strict."""
    assert_true(got == expected, f"{what}: {_compare(got, expected)}")


def assert_items(got: Iterable[object], expected: Iterable[object], what: str = "items") -> None:
    """Assert that two iterables have equal items in the same order, whatever their types."""
    assert_equal([*got], [*expected], what)


def assert_at_least(number: float, least: float) -> None:
    """Assert that a number is at least as large as another."""
    assert_true(number >= least, f"{number} instead of at least {least}")


def assert_not_none(value: V | None) -> V:
    """Assert that a value is not None, and return it."""
    if value is None:
        raise AssertionError("None instead of a value")
    return value


def assert_isinstance(value: object, kind: type) -> None:
    """Assert that a value is of a type."""
    assert_true(isinstance(value, kind), f"{_show(value)} instead of a {kind.__name__}")


def _compare(got: object, expected: object) -> str:
    return f"{_show(got)} instead of {_show(expected)}"


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text)} characters)"


# --- equality, strict in type and order -------------------------------------------------------------------------------

_READ_ONLY: Final[dict[type, type]] = {FrozenList: list, FrozenDict: dict, FrozenSet: set}


def same(got: object, expected: object, what: str = "value") -> None:
    """Assert that two values are equal in type and order, including NaN, -0.0 and time zones.

    Read-only lists, dicts and sets count as the builtins.

    Raises:
        AssertionError: the values differ; the message has the path of the first difference, which
            begins with `what`.
    """
    message = find_difference(got, expected, what)
    if message is not None:
        raise AssertionError(message)


# `same` is the public name; the tests of the contract call it like the other assertions.
assert_same = same


def find_difference(got: Any, expected: Any, path: str = "value") -> str | None:
    """Return a message with the path of the first difference and both values; None if there is none."""
    got_type = _get_builtin_type(got)
    expected_type = _get_builtin_type(expected)
    if got_type is not expected_type:
        types = f"{got_type.__name__} instead of {expected_type.__name__}"
        return f"{path}: {types}: {_compare(got, expected)}"

    expected_parts = _split(expected)
    if expected_parts is None:
        is_same = _normalize_scalar(got) == _normalize_scalar(expected)
        return None if is_same else f"{path}: {_compare(got, expected)}"

    got_parts = _split(got) or []
    if len(got_parts) != len(expected_parts):
        counts = f"{len(got_parts)} parts instead of {len(expected_parts)}"
        return f"{path}: {counts}: {_compare(got, expected)}"

    pairs = zip(got_parts, expected_parts, strict=True)

    for number, (got_part, expected_part) in enumerate(pairs):
        message = find_difference(got_part, expected_part, f"{path}[{number}]")
        if message is not None:
            return message

    return None


def _get_builtin_type(value: object) -> type:
    """Return the type of a value; for a read-only list, dict or set, the builtin type."""
    return _READ_ONLY.get(type(value), type(value))


def _split(value: Any) -> list[Any] | None:
    """Return the parts of a compound value in a defined order; None for a scalar."""
    if isinstance(value, dict):
        # Keys and values alternate, so that the order of a dict counts.
        return [part for item in value.items() for part in item]

    if isinstance(value, (list, tuple)):
        return [*value]

    if isinstance(value, (set, frozenset)):
        return sorted(value, key=_get_sort_key)

    # Only instances of pydantic models have `model_fields_set`.
    if dataclasses.is_dataclass(value) or hasattr(value, "model_fields_set"):
        return [vars(value)]

    return None


def _get_sort_key(item: object) -> tuple[str, str]:
    """Return a key by which items of different types can be sorted."""
    return type(item).__name__, repr(item)


def _normalize_scalar(value: Any) -> object:
    """Return an object that compares equal exactly if two scalars are indistinguishable.

    `==` is too weak for that: it ignores the sign of zero, the exponent of a Decimal (1.0 and 1.00)
    and the time zone of a datetime, and a NaN does not equal itself.
    """
    if isinstance(value, float):
        return struct.pack(">d", value)

    if isinstance(value, complex):
        return struct.pack(">dd", value.real, value.imag)

    if isinstance(value, Decimal):
        return str(value)

    if isinstance(value, (datetime, time)):
        local_time = value.replace(tzinfo=None)
        zone = str(value.tzinfo)
        return local_time, value.fold, zone, value.utcoffset()

    return value


def assert_same_checkpoint(got: Checkpoint | None, expected: Checkpoint) -> None:
    """Assert that two checkpoints are equal, field by field.

    Raises:
        AssertionError: the checkpoints differ; the message has the path of the first difference.
    """
    got = assert_not_none(got)
    for name in ("id", "node_id", "next_node_id", "parent_id", "created_at", "state"):
        assert_same(getattr(got, name), getattr(expected, name), name)
    # A saver of four methods keeps pending writes and tags in the metadata.
    assert_same(public_metadata(got.metadata), expected.metadata, "metadata")


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
    keys = {
        1: "int",
        "1": "str",
        b"1": "bytes",
        (1, 2): "tuple",
        None: "none",
        1.5: "float",
        True + 1: 2,
    }
    decimals = [
        Decimal("1.10"),
        Decimal("-0"),
        Decimal("Infinity"),
        Decimal("1E+400"),
    ]
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
    template = made(parent_id=parent.id, **fields)
    return Checkpoint.from_stored(
        id=template.id,
        node_id=template.node_id,
        next_node_id=template.next_node_id,
        parent_id=parent.id,
        created_us=template.created_us,
        metadata=template.metadata,
        state=state,
        changes=Changes(parent.state, ops),
    )


def make_config(thread: str | None = "t", checkpoint_id: str | None = None, namespace: str = "") -> RunnableConfig:
    """Make the config of a checkpoint; without an id, of the latest in its history."""
    return RunnableConfig(thread, checkpoint_id, namespace)


CONFIG: Final = make_config()
"""The config of the thread "t", which most tests use."""

OTHER: Final = make_config("u")
"""The config of a second thread, "u"."""

NESTED: Final = make_config("t", namespace="n")
"""The config of the namespace "n" of the thread "t"."""

UNKNOWN: Final = make_config("t", "unknown")
"""The config of a checkpoint that does not exist, in the thread "t"."""


def config_of(checkpoint: Checkpoint) -> RunnableConfig:
    """Make the config of a checkpoint of the thread "t"."""
    return make_config("t", checkpoint.id)


def make_interrupt(node_id: str = "a", payload: Any = None) -> dict[str, Any]:
    """Make the value that is recorded for a pending interrupt."""
    when = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    return {"node_id": node_id, "when": "inside", "payload": payload, "metadata": {}, "created_at": when}


GROWING: Final = {"list": Channel(lambda old, new: [*(old or ()), *new])}
"""A channel that appends an update to the value of "list"."""


def put_state(
    saver: BaseCheckpointSaver,
    state: Mapping[str, Any],
    config: RunnableConfig = CONFIG,
    **fields: Any,
) -> Checkpoint:
    """Put a new checkpoint with this state, and return it."""
    checkpoint = made(state, **fields)
    saver.put(config, checkpoint)
    return checkpoint


def put_all(saver: BaseCheckpointSaver, config: RunnableConfig, checkpoints: Iterable[Checkpoint]) -> None:
    """Put checkpoints in their order."""
    for checkpoint in checkpoints:
        saver.put(config, checkpoint)


def extend_list(parent: Checkpoint, *items: Any) -> Checkpoint:
    """Make a checkpoint as the engine does after a node that appended items to "list"."""
    return derive(parent, {"list": [*items]}, GROWING)


def grow_list(saver: BaseCheckpointSaver, config: RunnableConfig, length: int) -> list[Checkpoint]:
    """Put checkpoints with a growing list, as the engine does; return them oldest first."""
    latest = made({"list": [0], "fixed": "f" * 100})
    saver.put(config, latest)
    checkpoints = [latest]

    for number in range(1, length):
        update = {"list": [number], "last": number}
        latest = derive(latest, update, GROWING)
        saver.put(config, latest)
        checkpoints.append(latest)

    return checkpoints
