"""Pending writes: what LangGraph's tasks wrote, beside the checkpoint that they ran from.

LangGraph may bring them before the checkpoint itself, from several threads. They are then kept in a namespace of their
own, beside a placeholder with the checkpoint's id, and go into the checkpoint's own record once it comes. Whoever reads
looks in all three places, so that none is lost whatever comes first.
"""

from __future__ import annotations

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

EARLY: Final = "#early:"
"""Before the name of a namespace: where its writes wait for their checkpoints."""

_KEY: Final = "write:"
_ROUND: Final = 100
"""After so many checkpoints that writes waited for, what waits no longer is removed."""


class Write(NamedTuple):
    """One write, as it is stored."""

    task_path: str
    task_id: str
    place: int
    channel: str
    type: str
    data: bytes

    @property
    def key(self) -> str:
        """What tells it from the others of its checkpoint."""
        return f"{_KEY}{self.place}:{self.task_id}"

    @property
    def stays(self) -> bool:
        """Whether the first one with this key stays; errors, interrupts and answers have a place that is replaced."""
        return self.place >= 0


def packed(encoder: Encoder, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> list[Write]:
    """Writes as they are stored.

    Raises:
        CheckpointSerializationError: a value cannot be stored. Nothing was changed.
    """
    return [
        Write(task_path, task_id, WRITES_IDX_MAP.get(channel, place), channel, *encoder.typed(value, channel))
        for place, (channel, value) in enumerate(writes)
    ]


class PendingWrites:
    """The writes of a store."""

    def __init__(self, store: FileSystemSaver) -> None:
        self._store = store
        self._came_early: set[tuple[str, str, str | None]] = set()
        self._taken: Counter[tuple[str, str]] = Counter()

    def put(self, at: RunnableConfig, writes: Sequence[Write]) -> None:
        """Keep writes for the checkpoint that the config names, whether it is there or not."""
        records = {write.key: FrozenList(write) for write in writes}
        first = [write.key for write in writes if write.stays]
        try:
            self._store.put_writes(at, records, keep=first)
        except CheckpointNotFoundError:
            placeholder = Checkpoint(node_id=WRITES, next_node_id=None, state={}, id=at.checkpoint_id)
            self._store.put_writes(_early(at), records, keep=first, or_put=placeholder)
            self._came_early.add(_key(at))

    def waiting(self, at: RunnableConfig) -> Mapping[str, Any]:
        """What came before the checkpoint."""
        return self._store.get_writes(_early(at))

    def to_take(self, at: RunnableConfig) -> Mapping[str, Any]:
        """What goes into the record of a checkpoint: this process's writes; others' are found where they are."""
        return self.waiting(at) if _key(at) in self._came_early else {}

    def of(self, at: RunnableConfig, state: Mapping[str, Any]) -> list[Write]:
        """The writes of a stored checkpoint, in LangGraph's order: by task path, task id and index."""
        found: dict[str, Write] = {}
        for place in (state.get(WRITES, {}), self.waiting(at), self._store.get_writes(at)):
            for key, record in place.items():
                write = Write(*record)
                if key not in found or not write.stays:
                    found[key] = write
        return sorted(found.values(), key=lambda write: writes_sort_key(write.task_path, write.task_id, write.place))

    def taken(self, at: RunnableConfig) -> None:
        """A checkpoint that writes waited for is stored with them; now and then, remove what waits no longer."""
        self._came_early.discard(_key(at))
        place = at.thread, at.checkpoint_ns
        self._taken[place] += 1
        if self._taken[place] >= _ROUND:
            self._taken[place] = 0
            early = _early(at)
            old = [info.id for info in self._store.history(early)[_ROUND:]]
            self._store.remove(early, [one for one in old if self._is_taken(at.replace(checkpoint_id=one))])

    def _is_taken(self, at: RunnableConfig) -> bool:
        checkpoint = self._store.get(at)
        return checkpoint is not None and self.waiting(at).keys() <= checkpoint.state.get(WRITES, {}).keys()

    def remove(self, at: RunnableConfig, ids: Sequence[str]) -> None:
        """Remove what waits for these checkpoints of a namespace."""
        self._store.remove(_early(at), ids)


def _key(at: RunnableConfig) -> tuple[str, str, str | None]:
    return at.thread, at.checkpoint_ns, at.checkpoint_id


def _early(at: RunnableConfig) -> RunnableConfig:
    return RunnableConfig(at.thread_id, checkpoint_ns=EARLY + at.checkpoint_ns, checkpoint_id=at.checkpoint_id)
