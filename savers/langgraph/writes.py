"""Pending writes: what LangGraph's tasks wrote, recorded with the checkpoint that they ran from.

LangGraph may call `put_writes` before it puts the checkpoint, and from several threads. A log keeps
such early writes until their checkpoint comes; a saver without a log keeps them in a namespace of
their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from graphkit.abc import LANGGRAPH_WRITE as WRITE
from graphkit.codec import Codec
from graphkit.values import FrozenList
from savers.langgraph.channels import Encoder

_LONG: Final = 1 << 12
"""Values from this many bytes on are not packed by a packer that keeps its buffer."""
_CODEC: Final = Codec()
"""Packs the fields of writes: strings, numbers and bytes, which need no registered types."""


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
        return f"{WRITE}{self.idx}:{self.task_id}"

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

    packed: dict[str, bytes]
    """By key: the fields of a Write, packed as a list."""
    keep: list[str]
    """The keys whose recorded values stay, if there are any: those of ordinary writes."""

    def unpack(self) -> dict[str, FrozenList]:
        """Return the fields of each Write by key, for a saver that packs what it stores itself."""
        return {key: _CODEC.unpack(packed) for key, packed in self.packed.items()}


def encode_writes(encoder: Encoder, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> TaskWrites:
    """Return the writes of a task as they are stored.

    Raises:
        CheckpointSerializationError: a value cannot be stored. Nothing was changed.
    """
    # This is part of each step: no Write is made.
    packed: dict[str, bytes] = {}
    keep: list[str] = []
    for position, (channel, value) in enumerate(writes):
        type_name, data = encoder.serialize(value, channel)
        idx = WRITES_IDX_MAP.get(channel, position)
        key = f"{WRITE}{idx}:{task_id}"
        fields = (task_path, task_id, idx, channel, type_name, data)
        packed[key] = _CODEC.pack_flat(fields, key) if len(data) < _LONG else _CODEC.pack(FrozenList(fields), key)
        if is_ordinary(idx):
            keep.append(key)
    return TaskWrites(packed, keep)


def pack_writes(writes: Sequence[Write]) -> TaskWrites:
    """Return whole writes as they are stored."""
    packed = {write.key: _CODEC.pack(FrozenList(write), write.key) for write in writes}
    return TaskWrites(packed, [write.key for write in writes if write.is_ordinary])


def sort_writes(writes: Iterable[Write]) -> list[Write]:
    """Return the writes of a checkpoint in LangGraph's order."""
    return sorted(writes, key=_sort_key)


def _sort_key(write: Write) -> Any:
    return writes_sort_key(write.task_path, write.task_id, write.idx)
