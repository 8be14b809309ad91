"""Pending writes: what LangGraph's tasks wrote, recorded with the checkpoint that they ran from.

LangGraph may call `put_writes` before it puts the checkpoint, and from several threads. Such early
writes are stored in a namespace of their own, with a placeholder that has the id of the checkpoint.
When the checkpoint is put, its record includes them. Readers look in all three places, so that no
write is lost in whatever order they arrive.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointNotFoundError
from graphkit.values import FrozenList
from savers.langgraph.channels import WRITES, Encoder

if TYPE_CHECKING:
    from savers._filesystem import FileSystemSaver
    from savers._filesystem.store import Store

EARLY: Final = "#early:"
"""The prefix of the namespace that holds the early writes of another namespace."""

_KEY: Final = "write:"
_CLEANUP_INTERVAL: Final = 100
"""The checkpoints with early writes between two cleanups. A cleanup spares as many placeholders."""
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
        return self.idx >= 0


def pack_writes(encoder: Encoder, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> list[Write]:
    """Return the writes of a task as they are stored.

    Raises:
        CheckpointSerializationError: a value cannot be stored. Nothing was changed.
    """
    packed = []
    for position, (channel, value) in enumerate(writes):
        type_name, data = encoder.serialize(value, channel)
        write = Write(
            task_path=task_path,
            task_id=task_id,
            idx=WRITES_IDX_MAP.get(channel, position),
            channel=channel,
            type=type_name,
            data=data,
        )
        packed.append(write)
    return packed


class PendingWrites:
    """The pending writes of a store.

    Args:
        store: the saver that holds the checkpoints and the writes.
    """

    def __init__(self, store: FileSystemSaver) -> None:
        self._store = store
        self._early_checkpoints: set[tuple[str, str, str | None]] = set()
        """Checkpoints for which this process stored early writes, and which are not yet put."""
        self._puts_since_cleanup: Counter[tuple[str, str]] = Counter()
        """By thread and namespace: how many checkpoints with early writes were put."""
        self._early_directories: dict[tuple[str, str], str] = {}
        """By thread and namespace: the directory that its early writes have, if there are any."""

    def put(self, config: RunnableConfig, writes: Sequence[Write]) -> None:
        """Store writes for the checkpoint that the config names, whether it exists or not."""
        records = {write.key: FrozenList(write) for write in writes}
        keep = [write.key for write in writes if write.is_ordinary]
        try:
            self._store.put_writes(config, records, keep=keep)
        except CheckpointNotFoundError:
            placeholder = Checkpoint(node_id=WRITES, next_node_id=None, state={}, id=config.checkpoint_id)
            self._store.put_writes(_early_config(config), records, keep=keep, or_put=placeholder)
            self._early_checkpoints.add(_checkpoint_key(config))

    def get_early(self, config: RunnableConfig) -> Mapping[str, Any]:
        """Return the early writes of a checkpoint that are still in the separate namespace."""
        return self._store.get_writes(_early_config(config))

    def get_own_early(self, config: RunnableConfig) -> Mapping[str, Any]:
        """Return the early writes that belong in the record of a new checkpoint.

        Empty unless this process stored early writes for it: readers find the early writes of other
        processes in the separate namespace.
        """
        if _checkpoint_key(config) not in self._early_checkpoints:
            return {}
        return self.get_early(config)

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
        if self._has_early(history):
            early = self.get_early(history.replace(checkpoint_id=checkpoint_id))
        if own is None:
            own = self._store.get_writes(history.replace(checkpoint_id=checkpoint_id))
        writes: dict[str, Write] = {}
        for records in (state.get(WRITES, {}), early, own):
            for key, record in records.items():
                write = Write(*record)
                if key not in writes or not write.is_ordinary:
                    writes[key] = write
        return sorted(writes.values(), key=_sort_key)

    def _has_early(self, config: RunnableConfig) -> bool:
        """Return whether there may be early writes for the namespace of a config."""
        # Opening a log that does not exist costs 20 times as much as this.
        key = (config.thread, config.checkpoint_ns)
        path = self._early_directories.get(key)
        if path is None:
            if len(self._early_directories) >= _MAX_DIRECTORIES:
                self._early_directories.clear()
            path = get_store(self._store).directory(config.thread, EARLY + config.checkpoint_ns)
            self._early_directories[key] = path
        return os.path.lexists(path)

    def mark_stored(self, config: RunnableConfig) -> None:
        """Record that a checkpoint was put together with its early writes.

        After every 100 such checkpoints of a namespace, remove early writes that checkpoints
        already contain.
        """
        self._early_checkpoints.discard(_checkpoint_key(config))
        history = (config.thread, config.checkpoint_ns)
        self._puts_since_cleanup[history] += 1
        if self._puts_since_cleanup[history] >= _CLEANUP_INTERVAL:
            self._puts_since_cleanup[history] = 0
            self._clean_up(config)

    def _clean_up(self, config: RunnableConfig) -> None:
        early = _early_config(config)
        old_ids = [info.id for info in self._store.history(early)[_CLEANUP_INTERVAL:]]
        stored_ids = [id_ for id_ in old_ids if self._is_stored(config.replace(checkpoint_id=id_))]
        self._store.remove(early, stored_ids)

    def _is_stored(self, config: RunnableConfig) -> bool:
        """Return whether the record of a checkpoint contains all its early writes."""
        checkpoint = self._store.get(config)
        if checkpoint is None:
            return False
        records: Mapping[str, Any] = checkpoint.state.get(WRITES, {})
        return self.get_early(config).keys() <= records.keys()

    def remove(self, config: RunnableConfig, ids: Sequence[str]) -> None:
        """Remove the early writes of these checkpoints of a namespace."""
        self._store.remove(_early_config(config), ids)


def get_store(saver: FileSystemSaver) -> Store:
    """Return the directory of a saver, for reading it in other ways than the saver does."""
    return saver._store  # noqa: SLF001 - a part of the same package


def _sort_key(write: Write) -> Any:
    return writes_sort_key(write.task_path, write.task_id, write.idx)


def _checkpoint_key(config: RunnableConfig) -> tuple[str, str, str | None]:
    return config.thread, config.checkpoint_ns, config.checkpoint_id


def _early_config(config: RunnableConfig) -> RunnableConfig:
    return RunnableConfig(
        config.thread_id, checkpoint_ns=EARLY + config.checkpoint_ns, checkpoint_id=config.checkpoint_id
    )
