"""Pending writes: what LangGraph's tasks wrote, recorded with the checkpoint that they ran from.

LangGraph may call `put_writes` before it puts the checkpoint, and from several threads. The log
keeps such early writes until their checkpoint comes. An earlier version stored them in a namespace
of their own, and copied them into the record of the checkpoint; readers look there, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from graphkit import RunnableConfig
from graphkit.values import PLAIN, FrozenList
from savers.langgraph.channels import WRITES, Encoder

if TYPE_CHECKING:
    from savers._filesystem import FileSystemSaver
    from savers._filesystem.store import Store

EARLY: Final = "#early:"
"""The prefix of the namespace in which an earlier version kept the early writes of another
namespace."""

_KEY: Final = "write:"
_MAX_DIRECTORIES: Final = 4096
"""How many paths of directories are remembered."""


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


class PendingWrites:
    """The pending writes of a store.

    Args:
        store: the saver that holds the checkpoints and the writes.
    """

    def __init__(self, store: FileSystemSaver) -> None:
        self._store = store
        self._early_directories: dict[tuple[str, str], str] = {}
        """By thread and namespace: the directory in which an earlier version stored early writes."""

    def put(self, history: RunnableConfig, checkpoint_id: str | None, writes: TaskWrites) -> None:
        """Store writes for a checkpoint, whether it exists or not.

        Args:
            history: names the history of the checkpoint.
            checkpoint_id: its id; None for the latest.
            writes: the writes.
        """
        records, keep = writes
        self._store._put_langgraph_writes(history, checkpoint_id, records, keep)  # noqa: SLF001 - a part of the same package

    def read(
        self,
        history: RunnableConfig,
        checkpoint_id: str,
        state: Mapping[str, Any],
        own: Mapping[str, Any] | None = None,
    ) -> list[Write]:
        """Return the writes of a checkpoint, sorted like LangGraph's: by task path, task id, index.

        Args:
            history: names the history of the checkpoint.
            checkpoint_id: its id.
            state: its state.
            own: what is recorded with the checkpoint itself, if the caller has read it.
        """
        early: Mapping[str, Any] = {}
        if self.has_early(history):
            early = self._store.get_writes(_early_config(history.replace(checkpoint_id=checkpoint_id)))
        if own is None:
            own = self._store.get_writes(history.replace(checkpoint_id=checkpoint_id))
        writes: dict[str, Write] = {}
        for records in (state.get(WRITES, {}), early, own):
            for key, record in records.items():
                write = Write(*record)
                if key not in writes or not write.is_ordinary:
                    writes[key] = write
        return sorted(writes.values(), key=_sort_key)

    def has_early(self, config: RunnableConfig) -> bool:
        """Return whether an earlier version may have stored early writes for a namespace."""
        # Opening a log that does not exist costs 20 times as much as this.
        key = (config.thread, config.checkpoint_ns)
        path = self._early_directories.get(key)
        if path is None:
            if len(self._early_directories) >= _MAX_DIRECTORIES:
                self._early_directories.clear()
            path = get_store(self._store).directory(config.thread, EARLY + config.checkpoint_ns)
            self._early_directories[key] = path
        return os.path.lexists(path)

    def remove(self, config: RunnableConfig, ids: Sequence[str]) -> None:
        """Remove the early writes of these checkpoints of a namespace."""
        self._store.remove(_early_config(config), ids)


def get_store(saver: FileSystemSaver) -> Store:
    """Return the directory of a saver, for reading it in other ways than the saver does."""
    return saver._store  # noqa: SLF001 - a part of the same package


def _sort_key(write: Write) -> Any:
    return writes_sort_key(write.task_path, write.task_id, write.idx)


def _early_config(config: RunnableConfig) -> RunnableConfig:
    return RunnableConfig(
        config.thread_id, checkpoint_ns=EARLY + config.checkpoint_ns, checkpoint_id=config.checkpoint_id
    )
