"""ThreadReader: everything that a saver has of one thread, in one form, to be exported or compared.

Histories are read forward, with what changed from checkpoint to checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from operator import is_
from typing import Any, Final, NamedTuple, final

from graphkit._records.checkpoint import Checkpoint, replace_fields
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions, SupportsReplay
from graphkit._saver.incomplete import is_placeholder, remove_mark
from graphkit._saver.status import public_metadata
from graphkit._saver.writes import is_fork, well_formed_writes
from graphkit._values.frozen import PRIVATE, FrozenDict, FrozenList, kind_of
from graphkit._values.json_values import JsonValueCodec, StateDiffer, format_line
from graphkit._values.state import REMOVED, SET, Changes
from graphkit.errors import CheckpointerConfigurationError, CheckpointNotFoundError

_ABSENT: Final = object()


def read_forward(
    saver: BaseCheckpointSaver, config: RunnableConfig, version: int | None = None
) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a history, oldest first, without the metadata of the default methods.

    Leaves out what marks a thread as incomplete. Holds one state at a time. The `changes` of a
    checkpoint, where they are known, apply to the state of the one before it.

    Args:
        saver: where the history is.
        config: names the thread and the namespace.
        version: a released history; None is the active one. The saver must be a HasVersions.
    """
    if isinstance(saver, SupportsReplay):
        checkpoints = saver.replay(config, version=version)
    else:
        checkpoints = _read_list(saver, config, version)
    for checkpoint in checkpoints:
        if is_placeholder(checkpoint.metadata):
            return
        yield checkpoint.with_metadata(remove_mark(public_metadata(checkpoint.metadata)))


def _read_list(saver: BaseCheckpointSaver, config: RunnableConfig, version: int | None) -> Iterator[Checkpoint]:
    newest_first: Sequence[Checkpoint]
    if version is None:
        newest_first = saver.list(config)
    else:
        assert isinstance(saver, HasVersions)
        newest_first = saver.tag(config, version).checkpoints
    waiting = [*newest_first]
    del newest_first
    before: FrozenDict | None = None
    while waiting:
        checkpoint = waiting.pop()  # a listed checkpoint keeps its state once it was read
        state = checkpoint.state
        changes = None
        # A saver that isolates values copies these objects, unless it is given the changes.
        if before is not None and PRIVATE not in (state.kind, checkpoint.metadata.kind):
            changes = find_changes(before, state)
        yield replace_fields(checkpoint, changes=changes)
        before = state


def find_changes(before: FrozenDict, state: FrozenDict) -> Changes:
    """Return what changed between two states, by the identity of their values.

    Savers that keep objects share those that did not change. An equal value that is another object
    counts as changed.
    """
    ops: dict[str, int] = {}
    for key, value in state.items():
        old = before.get(key, _ABSENT)
        if old is value and kind_of(value) != PRIVATE:
            continue
        ops[key] = SET
        if _begins_with(value, old):
            ops[key] = len(old)
    for key in before:
        if key not in state:
            ops[key] = REMOVED
    return Changes(before, ops)


def _begins_with(value: Any, old: Any) -> bool:
    """Return whether a list begins with all elements of an old one, which are the same objects."""
    if type(value) is not FrozenList or type(old) is not FrozenList or old.kind == PRIVATE:
        return False
    return len(old) <= len(value) and all(map(is_, old, value))


class ReadCheckpoint(NamedTuple):
    """A checkpoint with its pending writes and tags."""

    checkpoint: Checkpoint
    writes: Mapping[str, Any]
    """Without those that no reader could use. Empty for a released history."""
    tags: Sequence[str]
    """Empty for a released history."""
    record: Mapping[str, Any]
    """All of it as JSON types, the state as what changed since the checkpoint before it. Equal
    exactly if the checkpoints are, if it is compared as text: 1 == True, but their texts differ."""


@final
class ThreadReader:
    """Reads one thread. Its records do not hold the id of the thread."""

    def __init__(self, saver: BaseCheckpointSaver, thread_id: str, values: JsonValueCodec) -> None:
        self._saver = saver
        self._thread_id = thread_id
        self._values = values

    def config(self, namespace: str) -> RunnableConfig:
        """Return the config of a history."""
        return RunnableConfig(self._thread_id, checkpoint_ns=namespace)

    def list_namespaces(self) -> Sequence[str]:
        """Return the namespaces of the active history."""
        return [*self._saver.namespaces(self._thread_id)]

    def check_namespaces_known(self) -> None:
        """Check that the saver knows all namespaces of the active history, as far as that can be seen.

        Raises:
            CheckpointerConfigurationError: there may be others.
        """
        if self._saver.lists_namespaces:
            return
        for namespace in self.list_namespaces():
            for latest in self._saver.recent(self.config(namespace), limit=1):
                if is_fork(latest.next_node_id):
                    raise CheckpointerConfigurationError(
                        f"{type(self._saver).__name__} cannot read all of thread {self._thread_id!r}, whose run stands "
                        f"before a fork: the branches may have histories that namespaces() does not find. Let the run "
                        f"go past the fork, or override namespaces()"
                    )

    def list_versions(self) -> Sequence[int]:
        """Return the released histories, ascending; none if the saver keeps none."""
        if not isinstance(self._saver, HasVersions):
            return []
        return [*self._saver.versions_by_thread_id(self._thread_id)]

    def list_namespaces_of(self, version: int) -> Sequence[str]:
        """Return the namespaces of a released history."""
        assert isinstance(self._saver, HasVersions)
        return [*self._saver.version_namespaces(self._thread_id, version)]

    def read(self, namespace: str, version: int | None = None) -> Iterator[ReadCheckpoint]:
        """Yield the checkpoints of a history, oldest first; holds one of them at a time.

        Raises:
            CheckpointSerializationError: a value has a type that is not registered.
        """
        config = self.config(namespace)
        differ = StateDiffer(self._values)
        for checkpoint in read_forward(self._saver, config, version):
            writes: Mapping[str, Any] = {}
            tags: Sequence[str] = ()
            if version is None:  # the contract of savers does not show those of a released history
                address = config.with_check_point_id(checkpoint.id)
                stored = self._saver.get_writes(address)
                writes = well_formed_writes(stored, self._thread_id)
                tags = self._saver.tags_of(address)
            record: dict[str, Any] = {
                "ns": namespace,
                "id": checkpoint.id,
                "node": checkpoint.node_id,
                "next": checkpoint.next_node_id,
                "parent": checkpoint.parent_id,
                "created": checkpoint.created_at.isoformat(),
                "metadata": self._values.encode(dict(checkpoint.metadata), "metadata"),
                "state": differ.advance(checkpoint.state, checkpoint.changes),
            }
            if writes:
                record["writes"] = {key: self._values.encode(value, key) for key, value in writes.items()}
            if tags:
                record["tags"] = [*tags]
            yield ReadCheckpoint(checkpoint=checkpoint, writes=writes, tags=tags, record=record)

    def lines(self, *, versions: bool, order: Sequence[str] = ()) -> Iterator[str]:
        """Yield the thread as lines of a file, the last of them with a digest of the others.

        Args:
            versions: whether to export released histories.
            order: namespaces that come first, in this order; the others are sorted, so that the
                root comes first: an import marks the first history as incomplete.

        Raises:
            CheckpointNotFoundError: the thread has neither checkpoints nor, if wanted, versions.
        """
        namespaces = self.list_namespaces()
        numbers = self.list_versions() if versions else ()
        if not namespaces and not numbers:
            raise CheckpointNotFoundError(self._thread_id, hint="see threads()")
        digest = blake2b(digest_size=16)
        count = 0
        for data in self._records(namespaces, numbers, order):
            line = format_line(data)
            digest.update(line.encode())
            count += 1
            yield line
        yield format_line({"end": digest.hexdigest(), "lines": count})

    def _records(
        self, namespaces: Sequence[str], versions: Sequence[int], order: Sequence[str]
    ) -> Iterator[Mapping[str, Any]]:
        for version in versions:
            for namespace in _sort(self.list_namespaces_of(version), order):
                for read in self.read(namespace, version):
                    yield {"version": version, **read.record}
            yield {"release": version}
        for namespace in _sort(namespaces, order):
            for read in self.read(namespace):
                yield read.record


def _sort(namespaces: Sequence[str], order: Sequence[str]) -> Sequence[str]:
    first = [name for name in order if name in namespaces]
    return [*first, *sorted(name for name in namespaces if name not in first)]
