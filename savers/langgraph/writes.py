"""Pending writes: what LangGraph's tasks wrote, recorded with the checkpoint that they ran from.

LangGraph may call `put_writes` before it puts the checkpoint, and from several threads. A log keeps
such early writes until their checkpoint comes; a saver without a log keeps them in a namespace of
their own. Earlier versions did so with files, too, and copied them into the record of the
checkpoint; readers look there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from graphkit.values import PLAIN, FrozenList
from savers.langgraph.channels import Encoder

_KEY: Final = "write:"


class Write(NamedTuple):
    """One write, in the order of the fields in which it is stored."""

    task_path: str
    task_id: str
    idx: int
    """The position among the writes of its task; negative for the special writes of LangGraph."""
    channel: str
    type: str
    data: bytes

    @property
    def key(self) -> str:
        """The key that distinguishes it from the other writes of its checkpoint."""
        return f"{_KEY}{self.idx}:{self.task_id}"

    @property
    def is_ordinary(self) -> bool:
        """Whether the first write with this key stays.

        Special writes (errors, interrupts, answers, schedules) replace earlier ones.
        """
        return is_ordinary(self.idx)


def is_ordinary(idx: int) -> bool:
    """Return whether a write at this position is no special one; see `Write.is_ordinary`."""
    return idx >= 0


class TaskWrites(NamedTuple):
    """The writes of a task as they are stored."""

    records: dict[str, FrozenList]
    """By key: the fields of a Write."""
    keep: list[str]
    """The keys whose recorded values stay, if there are any: those of ordinary writes."""


def encode_writes(encoder: Encoder, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> TaskWrites:
    """Return the writes of a task as they are stored.

    Raises:
        CheckpointSerializationError: a value cannot be stored. Nothing was changed.
    """
    # This is part of each step: no Write is made, and no kind is looked for in what is plain.
    records: dict[str, FrozenList] = {}
    keep: list[str] = []
    has_plain_task = task_id.__class__ is str and task_path.__class__ is str
    for position, (channel, value) in enumerate(writes):
        type_name, data = encoder.serialize(value, channel)
        idx = WRITES_IDX_MAP.get(channel, position)
        key = f"{_KEY}{idx}:{task_id}"
        record = FrozenList((task_path, task_id, idx, channel, type_name, data))
        if has_plain_task and channel.__class__ is str and type_name.__class__ is str:
            record.kind = PLAIN
        records[key] = record
        if is_ordinary(idx):
            keep.append(key)
    return TaskWrites(records, keep)


def merge_writes(*parts: Mapping[str, Any]) -> list[Write]:
    """Return the writes of a checkpoint, sorted like LangGraph's: by task path, task id, index.

    Args:
        parts: what is recorded of them, by key; what was recorded first comes first.
    """
    writes: dict[str, Write] = {}
    for records in parts:
        for key, record in records.items():
            write = Write(*record)
            if key not in writes or not write.is_ordinary:
                writes[key] = write
    return sort_writes(writes.values())


def sort_writes(writes: Iterable[Write]) -> list[Write]:
    """Return the writes of a checkpoint in LangGraph's order."""
    return sorted(writes, key=_sort_key)


def _sort_key(write: Write) -> Any:
    return writes_sort_key(write.task_path, write.task_id, write.idx)
