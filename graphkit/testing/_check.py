"""The assertions of the saver tests, which call them as `check.assert_equal(...)`. The config is `CONFIG` by default.

pytest explains a bare `assert` only in modules that it rewrites, and unittest never does. The tests of the contract
therefore call these functions, whose messages show under both what was expected and what was found.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Mapping, Sequence, Sized
from datetime import datetime, time
from decimal import Decimal
from typing import Any, Final, TypeVar

from graphkit._records.checkpoint import Checkpoint, Tag
from graphkit._records.config import ConfigLike, RunnableConfig, ThreadLike
from graphkit._records.output import CheckpointInfo, HistorySummary, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.status import public_metadata
from graphkit._values.frozen import builtin_type
from graphkit.testing._values import CONFIG

V = TypeVar("V")
_MAX_SHOWN: Final = 1_000
"""Characters of a value in a message: enough for a list of ids, not for a hostile one."""


def assert_true(condition: bool, message: str) -> None:
    """Assert a condition; the message says what was found instead."""
    if not condition:
        raise AssertionError(message)


def assert_equal(got: object, expected: object, what: str = "value") -> None:
    """Assert that two values are equal by `==`, where `same` would be too strict."""
    assert_true(got == expected, f"{what}: {_compare(got, expected)}")


def assert_sequence_equal(got: Iterable[object], expected: Iterable[object], what: str = "items") -> None:
    """Assert that two iterables have equal items in the same order, whatever their types."""
    assert_equal([*got], [*expected], what)


def assert_contains(text: str, part: str, what: str) -> None:
    """Assert that a text contains another."""
    assert_true(part in text, f"{what}: {_show(text)} does not contain {part!r}")


def assert_at_least(number: float, least: float) -> None:
    """Assert that a number is at least as large as another."""
    assert_true(number >= least, f"{number} instead of at least {least}")


def not_none(value: V | None, what: str = "value") -> V:
    """Assert that a value is not None, and return it."""
    if value is None:
        raise AssertionError(f"{what}: None instead of a value")
    return value


def assert_instance(value: object, kind: type) -> None:
    """Assert that a value is of a type."""
    assert_true(isinstance(value, kind), f"{_show(value)} instead of a {kind.__name__}")


def _compare(got: object, expected: object) -> str:
    return f"{_show(got)} instead of {_show(expected)}"


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text)} characters)"


# --- equality, strict in type and order -------------------------------------------------------------------------------


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


def find_difference(got: Any, expected: Any, path: str) -> str | None:
    """Return a message with the path of the first difference and both values; None if there is none."""
    got_type = builtin_type(got)
    expected_type = builtin_type(expected)
    if got_type is not expected_type:
        types = f"{got_type.__name__} instead of {expected_type.__name__}"
        return f"{path}: {types}: {_compare(got, expected)}"

    expected_parts = _split(expected)
    if expected_parts is None:
        is_same = _normalize_scalar(got) == _normalize_scalar(expected)
        return None if is_same else f"{path}: {_compare(got, expected)}"

    got_parts = _split(got) or []
    if len(got_parts) != len(expected_parts):
        counts = f"{len(got)} items instead of {len(expected)}"
        return f"{path}: {counts}: {_compare(got, expected)}"

    for (_, got_part), (name, expected_part) in zip(got_parts, expected_parts, strict=True):
        message = find_difference(got_part, expected_part, path + name)
        if message is not None:
            return message

    return None


def _split(value: Any) -> list[tuple[str, Any]] | None:
    """Return the parts of a compound value in a defined order, each after its part of the path; None for a scalar."""
    if isinstance(value, dict):
        # Keys and values alternate, so that the order of a dict counts.
        parts: list[tuple[str, Any]] = []
        for number, (key, item) in enumerate(value.items()):
            parts += [(f".keys[{number}]", key), (f"[{_show(key)}]", item)]
        return parts

    if isinstance(value, (list, tuple)):
        return [(f"[{number}]", item) for number, item in enumerate(value)]

    if isinstance(value, (set, frozenset)):
        return _split(sorted(value, key=_get_sort_key))

    if dataclasses.is_dataclass(value):  # it may have slots, and fields without a value
        names = [field.name for field in dataclasses.fields(value)]
        return [("", {name: getattr(value, name) for name in names if hasattr(value, name)})]

    # Only instances of pydantic models have it.
    if hasattr(value, "model_fields_set"):
        return [("", vars(value))]

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


def assert_same_fields(got: object, expected: object, *names: str) -> None:
    """Assert that two objects have the same values of some attributes."""
    for name in names:
        same(getattr(got, name), getattr(expected, name), name)


def assert_same_checkpoint(got: Checkpoint | None, expected: Checkpoint) -> None:
    """Assert that two checkpoints are equal, field by field.

    Raises:
        AssertionError: the checkpoints differ; the message has the path of the first difference.
    """
    got = not_none(got, f"the checkpoint {expected.id!r}")
    assert_same_fields(got, expected, "id", "node_id", "next_node_id", "parent_id", "created_at", "state")
    assert_metadata(got, expected.metadata)


def assert_metadata(checkpoint: Checkpoint, expected: Mapping[str, Any]) -> None:
    """Assert that a checkpoint has this metadata, besides the writes and tags that default methods keep there."""
    found = public_metadata(checkpoint.metadata)
    same(found, expected, "metadata")


# --- what a saver stores ----------------------------------------------------------------------------------------------


def assert_any_order(got: Iterable[Any], expected: Iterable[Any], what: str = "items") -> None:
    """Assert that two iterables have equal items, each as often, in any order."""
    assert_equal(sorted(got), sorted(expected), what)


def get_ids(records: Iterable[Checkpoint | CheckpointInfo | WaitingInterrupt]) -> list[str]:
    """Return the ids of checkpoints, infos or interrupts, in their order."""
    return [record.id for record in records]


def assert_length(got: Sized, expected: int, what: str = "items") -> None:
    """Assert how many items a collection has."""
    assert_equal(len(got), expected, f"the number of {what}")


def assert_threads(saver: BaseCheckpointSaver, *expected: str, released: bool = False) -> None:
    """Assert that a saver lists exactly these threads, in any order."""
    threads = saver.threads(released=released)
    assert_any_order(threads, expected, "threads")


def assert_namespaces(saver: BaseCheckpointSaver, *expected: str, thread: ThreadLike = "t") -> None:
    """Assert that a saver lists exactly these namespaces of a thread, in any order."""
    namespaces = saver.namespaces(thread)
    assert_any_order(namespaces, expected, "namespaces")


def assert_statuses(saver: BaseCheckpointSaver, *expected: str, config: RunnableConfig = CONFIG) -> None:
    """Assert the status of each checkpoint of a history, newest first."""
    found = [info.status for info in saver.history(config)]
    assert_equal(found, [*expected], "statuses")


def assert_stops(saver: BaseCheckpointSaver, *expected: str, config: RunnableConfig = CONFIG) -> None:
    """Assert why a run stopped at each checkpoint of a history, newest first."""
    found = [info.stopped for info in saver.history(config)]
    assert_equal(found, [*expected], "stopped")


def assert_interrupts(saver: BaseCheckpointSaver, *expected: str) -> None:
    """Assert the ids of the pending interrupts of the thread "t"."""
    interrupts = saver.interrupts("t")
    assert_equal(get_ids(interrupts), [*expected], "interrupts")


def assert_checkpoint(saver: BaseCheckpointSaver, expected: Checkpoint, config: ConfigLike = CONFIG) -> None:
    """Assert that `get` returns this checkpoint."""
    assert_same_checkpoint(saver.get(config), expected)


def assert_missing(saver: BaseCheckpointSaver, config: RunnableConfig = CONFIG) -> None:
    """Assert that `get` returns None."""
    same(saver.get(config), None, f"get({config!r})")


def assert_state(saver: BaseCheckpointSaver, expected: Mapping[str, Any]) -> None:
    """Assert that `get` returns a checkpoint with this state."""
    checkpoint = get_checkpoint(saver)
    same(checkpoint.state, expected, "state")


def assert_writes(saver: BaseCheckpointSaver, expected: Mapping[str, Any], config: RunnableConfig = CONFIG) -> None:
    """Assert that a checkpoint has exactly these pending writes, in this order."""
    writes = saver.get_writes(config)
    same(writes, expected, "pending writes")


def assert_no_writes(saver: BaseCheckpointSaver, config: RunnableConfig = CONFIG) -> None:
    """Assert that a checkpoint has no pending writes; any empty mapping will do."""
    assert_equal(dict(saver.get_writes(config)), {}, "pending writes")


def assert_tags(saver: BaseCheckpointSaver, *expected: str, config: RunnableConfig = CONFIG) -> None:
    """Assert that a checkpoint has exactly these tags, in this order."""
    assert_equal(saver.tags_of(config), expected, "tags")


def assert_checkpoints(got: Sequence[Checkpoint], oldest_first: Sequence[Checkpoint], what: str = "ids") -> None:
    """Assert that checkpoints, newest first, equal the expected ones, oldest first."""
    newest_first = oldest_first[::-1]
    assert_equal(get_ids(got), get_ids(newest_first), what)

    for checkpoint, expected in zip(got, newest_first, strict=True):
        assert_same_checkpoint(checkpoint, expected)


def assert_listed(saver: BaseCheckpointSaver, oldest_first: Sequence[Checkpoint], config: ConfigLike = CONFIG) -> None:
    """Assert that `list` returns exactly these checkpoints."""
    assert_checkpoints(saver.list(config), oldest_first, "the ids of list")


def assert_released(tag: Tag, oldest_first: Sequence[Checkpoint], thread: str = "t") -> None:
    """Assert that a tag has exactly these checkpoints of a thread."""
    assert_instance(tag, Tag)
    assert_equal(tag.thread_id, thread, "the thread of the tag")
    assert_checkpoints(tag.checkpoints, oldest_first, "the ids of the tag")


def assert_version(tag: Tag, expected: int | None) -> None:
    """Assert which version a release has made."""
    assert_equal(tag.version, expected, "the version of the tag")


def get_checkpoint(saver: BaseCheckpointSaver, config: RunnableConfig = CONFIG) -> Checkpoint:
    """Return a checkpoint that must exist."""
    return not_none(saver.get(config), f"get({config!r})")


def get_summary(saver: BaseCheckpointSaver, config: RunnableConfig = CONFIG) -> HistorySummary:
    """Return the summary of a history that must exist."""
    return not_none(saver.summary(config), f"summary({config!r})")
