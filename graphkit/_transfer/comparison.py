"""Compares two histories, checkpoint by checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, final

from graphkit._transfer.thread_reader import ReadCheckpoint
from graphkit._values.json_values import format_line
from graphkit.errors import CheckpointConflictError

_FIELDS: Final[Mapping[str, str]] = {
    "id": "id",
    "node": "node",
    "next": "next node",
    "parent": "parent",
    "created": "time of creation",
    "metadata": "metadata",
    "state": "state",
}
"""What each field of a record is called in an error."""


@dataclass(frozen=True, kw_only=True)
class MissingParts:
    """What a stored checkpoint lacks, although it is equal otherwise."""

    checkpoint_id: str
    writes: Mapping[str, Any]
    tags: Sequence[str]


@dataclass(kw_only=True)
class HistoryComparison:
    """How much of a history is stored; what is stored is equal."""

    stored: int = 0
    """Checkpoints that are stored."""
    missing: int = 0
    """Checkpoints that are not."""
    first_missing: str = ""
    """The id of the first of them."""
    parts: list[MissingParts] = field(default_factory=list)


@final
class HistoryComparer:
    """Compares histories of one thread."""

    def __init__(self, thread_id: str) -> None:
        self._thread_id = thread_id

    def compare(
        self,
        namespace: str,
        wanted: Iterable[ReadCheckpoint],
        stored: Iterable[ReadCheckpoint],
        *,
        has_parts: bool,
    ) -> HistoryComparison:
        """Compare a history with what is stored of it, which may end early.

        Args:
            namespace: the namespace, for errors.
            wanted: the history, oldest first.
            stored: the stored history.
            has_parts: whether the history that is wanted has its pending writes and tags. Those of a
                released history cannot be read.

        Raises:
            CheckpointConflictError: the stored history is not the beginning of the wanted one. It
                names the checkpoint, and what differs.
        """
        # One checkpoint of each side at a time, since the states of a history may not fit into memory. Both sides are
        # told by what changed, so that the comparison costs what changed, too: if all changes so far were equal, the
        # states are.
        comparison = HistoryComparison()
        for one, other in zip_longest(wanted, stored):
            if one is None:
                raise self._conflict(namespace, other, "it is not in the source")
            if other is None:
                if not comparison.missing:
                    comparison.first_missing = one.checkpoint.id
                comparison.missing += 1
                continue
            self._compare_checkpoints(namespace, one, other)
            comparison.stored += 1
            if has_parts:
                missing = self._find_missing_parts(namespace, one, other)
                if missing is not None:
                    comparison.parts.append(missing)
        return comparison

    def _compare_checkpoints(self, namespace: str, one: ReadCheckpoint, other: ReadCheckpoint) -> None:
        for name, description in _FIELDS.items():
            wanted = one.record[name]
            stored = other.record[name]
            if _text(wanted) == _text(stored):
                continue
            if name == "id":
                raise self._conflict(namespace, other, f"the source has {one.checkpoint.id} in its place")
            what = description
            if name == "state":
                keys = _find_keys(wanted, stored)
                what = f"{description} at {keys}"
            raise self._conflict(namespace, other, f"its {what} differs from the source")

    def _find_missing_parts(self, namespace: str, one: ReadCheckpoint, other: ReadCheckpoint) -> MissingParts | None:
        """Return what a stored checkpoint lacks; None if it lacks nothing."""
        wanted = one.record.get("writes", {})
        stored = other.record.get("writes", {})
        # Writes and tags are only appended. What is stored must therefore be the beginning of what is wanted, in order.
        for key, stored_key in zip_longest(wanted, stored):
            if stored_key is None:
                break
            is_equal = key == stored_key and _text(wanted[key]) == _text(stored[key])
            if not is_equal:
                raise self._conflict(namespace, other, f"its pending write {stored_key!r} differs from the source")
        count = len(other.tags)
        if [*one.tags[:count]] != [*other.tags]:
            raise self._conflict(namespace, other, "its tags differ from the source")
        tags = one.tags[count:]
        writes = {key: value for key, value in one.writes.items() if key not in stored}
        if not writes and not tags:
            return None
        return MissingParts(checkpoint_id=one.checkpoint.id, writes=writes, tags=tags)

    def _conflict(self, namespace: str, read: ReadCheckpoint, reason: str) -> CheckpointConflictError:
        return make_conflict(self._thread_id, namespace, read.checkpoint.id, reason)


def make_conflict(thread_id: str, namespace: str, checkpoint_id: str, reason: str) -> CheckpointConflictError:
    """Return an error about one stored checkpoint."""
    return CheckpointConflictError(thread_id, f"namespace {namespace!r}, checkpoint {checkpoint_id}: {reason}")


def _text(value: Any) -> str:
    """Return what tells values apart that == does not, such as 1 and True, or dicts in another order."""
    return format_line({"": value})


def _find_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the keys of a state at which two changes differ, for an error."""
    changed_one = _changed_keys(one)
    changed_other = _changed_keys(other)
    keys = [key for key in {**changed_one, **changed_other} if changed_one.get(key) != changed_other.get(key)]
    return ", ".join(map(repr, keys)) or "the order of its keys"


def _changed_keys(change: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for kind in ("set", "extend"):
        for key, value in change.get(kind, {}).items():
            found[key] = kind + _text(value)
    for key in change.get("drop", ()):
        found[key] = "drop"
    return found
