"""Reads threads, and copies one to a saver: what is missing there, after what is there was compared.

A ThreadSource has everything of one thread in one form, to be exported, copied or compared, wherever it is: in a
saver (StoredThread), or in a file (`_transfer.importing.ThreadFile`). Histories are read forward, with what changed
from checkpoint to checkpoint.
"""

from __future__ import annotations

import abc
import errno
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice, zip_longest
from typing import Any, ClassVar, Final, NamedTuple, final

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions, list_versions
from graphkit._saver.incomplete import (
    CheckpointParts,
    IncomingThread,
    StoredCheckpoint,
    find_all_namespaces,
    find_own_key,
    is_thread_incomplete,
    read_history,
    refuse_incomplete,
    require_empty,
)
from graphkit._values.json_values import JsonValueCodec, StateDiffer, format_line
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointStorageError,
)


class ReadCheckpoint(NamedTuple):
    """A checkpoint with its pending writes and tags; a released history has none of these."""

    stored: StoredCheckpoint
    record: Mapping[str, Any]
    """All of it as JSON types, the state as what changed since the checkpoint before it. Equal
    exactly if the checkpoints are, if it is compared as text: 1 == True, but their texts differ."""

    @property
    def id(self) -> str:
        """The id of the checkpoint."""
        return self.stored.checkpoint.id


class ThreadSource(abc.ABC):
    """Reads one thread. Its records do not hold the id of the thread."""

    name: ClassVar[str]
    """What errors call it."""

    def __init__(self, thread_id: str, values: JsonValueCodec) -> None:
        self.thread_id = thread_id
        self.values = values

    @abc.abstractmethod
    def list_versions(self) -> Sequence[int]:
        """Return the released histories, ascending."""

    @abc.abstractmethod
    def list_namespaces(self, version: int | None = None) -> Sequence[str]:
        """Return the namespaces of a released history; of the active one if there is no version."""

    @abc.abstractmethod
    def find_own_key(self, namespace: str, version: int | None) -> str | None:
        """Return the id of the key that a history has of its own; None if it has none."""

    @abc.abstractmethod
    def read(self, namespace: str, version: int | None = None) -> Iterator[ReadCheckpoint]:
        """Yield the checkpoints of a history, oldest first; holds one of them at a time.

        Raises:
            CheckpointSerializationError: a value has a type that is not registered.
        """

    def _make_records(
        self, namespace: str, version: int | None, history: Iterable[StoredCheckpoint]
    ) -> Iterator[ReadCheckpoint]:
        """Yield the checkpoints of a history with their records. Their `changes` apply to the state before them."""
        differ = StateDiffer(self.values)
        for stored in history:
            checkpoint = stored.checkpoint
            record: dict[str, Any] = {
                "ns": namespace,
                "id": checkpoint.id,
                "node": checkpoint.node_id,
                "next": checkpoint.next_node_id,
                "parent": checkpoint.parent_id,
                "created": checkpoint.created_at.isoformat(),
                "metadata": self.values.encode(dict(checkpoint.metadata), "metadata"),
                "state": differ.advance(checkpoint.state, checkpoint.changes),
            }
            if stored.writes:
                record["writes"] = {key: self.values.encode(value, key) for key, value in stored.writes.items()}
            if stored.tags:
                record["tags"] = [*stored.tags]
            if version is not None:
                record = {"version": version, **record}
            yield ReadCheckpoint(stored, record)


@final
class StoredThread(ThreadSource):
    """A thread of a saver."""

    name = "the source"

    def __init__(self, saver: BaseCheckpointSaver, thread_id: str, values: JsonValueCodec) -> None:
        super().__init__(thread_id, values)
        self.saver = saver

    def check_whole(self) -> None:
        """Check that the thread is complete, and the saver knows all of it, as far as that can be seen.

        Raises:
            CheckpointConflictError: the thread is incomplete.
            CheckpointerConfigurationError: the active history may have namespaces that the saver does not find.
        """
        refuse_incomplete(self.saver, self.thread_id)
        find_all_namespaces(self.saver, self.thread_id, "read all of")

    def list_versions(self) -> Sequence[int]:
        """Return the released histories, ascending; none if the saver keeps none."""
        return [*list_versions(self.saver, self.thread_id)]

    def list_namespaces(self, version: int | None = None) -> Sequence[str]:
        if version is None:
            return [*self.saver.namespaces(self.thread_id)]
        assert isinstance(self.saver, HasVersions)
        return [*self.saver.version_namespaces(self.thread_id, version)]

    def find_own_key(self, namespace: str, version: int | None) -> str | None:
        return find_own_key(self.saver, RunnableConfig(self.thread_id, checkpoint_ns=namespace), version)

    def read(self, namespace: str, version: int | None = None) -> Iterator[ReadCheckpoint]:
        config = RunnableConfig(self.thread_id, checkpoint_ns=namespace)
        return self._make_records(namespace, version, read_history(self.saver, config, version))

    def lines(self, *, versions: bool) -> Iterator[str]:
        """Yield the thread as lines of a file, the last of them with a digest of the others.

        Args:
            versions: whether to export released histories.

        Raises:
            CheckpointNotFoundError: the thread has neither checkpoints nor, if wanted, versions.
        """
        yield format_line({"thread": self.thread_id})
        digest = blake2b(digest_size=16)
        count = 0
        for data in self._records(self.list_versions() if versions else ()):
            line = format_line(data)
            digest.update(line.encode())
            count += 1
            yield line
        if not count:
            raise CheckpointNotFoundError(self.thread_id, hint="see threads()")
        yield format_line({"end": digest.hexdigest(), "lines": count, "thread": self.thread_id})

    def _records(self, versions: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        for version in (*versions, None):
            # Sorted, so that the root comes first: an import marks the first history as incomplete.
            for namespace in sorted(self.list_namespaces(version)):
                for read in self.read(namespace, version):
                    yield read.record
            if version is not None:
                yield {"release": version}


# Copying

_FIELDS: Final = ("id", "node", "next", "parent", "created", "metadata", "state")
"""The fields of a record in which a stored checkpoint must equal the wanted one."""
_DESCRIPTIONS: Final[Mapping[str, str]] = {"next": "next node", "created": "time of creation"}
"""What fields are called in an error, if not by their names."""


@dataclass(kw_only=True)
class HistoryComparison:
    """How much of a history is stored; what is stored is equal."""

    stored: int = 0
    """Checkpoints that are stored."""
    first_missing: str | None = None
    """The id of the first checkpoint that is not; None if all are."""
    parts: list[CheckpointParts] = field(default_factory=list)
    """What stored checkpoints lack, although they are equal otherwise."""


def check_stores(
    source: BaseCheckpointSaver,
    target: BaseCheckpointSaver,
    threads: Sequence[str],
    *,
    versions: bool,
    plaintext: bool,
) -> None:
    """Check that these threads may be copied from one store to another, before anything is changed.

    Raises:
        CheckpointerConfigurationError: source and target are the same store; the target keeps no
            versions; or the source seals its records, the target does not, and `plaintext` is False.
    """
    same_thread = RunnableConfig("t")
    if source.run_lock_key(same_thread) == target.run_lock_key(same_thread):
        raise CheckpointerConfigurationError("the source and the target are the same store; copy() copies a thread")
    if source.seals_records and not target.seals_records and not plaintext:
        raise CheckpointerConfigurationError(
            "the source is sealed, and the target is not: open the target with a cipher, export the logs "
            "(format='logs', `graphkit export --raw`), or ask for plaintext (plaintext=True, --plaintext)"
        )
    if versions and isinstance(source, HasVersions) and not isinstance(target, HasVersions):
        for thread_id in threads:
            if source.versions_by_thread_id(thread_id):
                raise CheckpointerConfigurationError(
                    f"{type(target).__name__} keeps no versions, and thread {thread_id!r} has some; copy without them "
                    f"(versions=False, --no-versions), or to another saver"
                )


_ROUNDS: Final = 5
"""A human may answer an interrupt while its thread is copied, so that something is missing again."""
_READ_ONLY: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
"""How a system says that a lock file cannot be made."""


@dataclass(kw_only=True)
class CopyCounts:
    """What the copies of several threads did."""

    checkpoints: int = 0
    skipped_checkpoints: int = 0
    versions: int = 0
    skipped_versions: int = 0


@dataclass(kw_only=True)
class _Plan:
    """What is stored in the target, and what is missing there."""

    unreleased: Sequence[int | None]
    """The versions of the source that the target does not have, and None: the active history. The first of them is
    the active history of the target."""
    active: Mapping[str, HistoryComparison]
    """How much of that one is stored, by namespace."""
    skipped: int
    """Checkpoints that are stored, those of versions included."""
    skipped_versions: int
    """Versions that are stored."""

    @property
    def has_all_checkpoints(self) -> bool:
        """Whether no checkpoint and no version is missing."""
        return len(self.unreleased) == 1 and not any(found.first_missing for found in self.active.values())

    def find_missing(self) -> tuple[str, str | None, str] | None:
        """Return the namespace and the checkpoint of the first thing that is missing, and what it is; or None."""
        for namespace, found in self.active.items():
            if found.first_missing:
                return namespace, found.first_missing, "it is not stored"
            for part in found.parts:
                names = [*(f"pending write {key!r}" for key in part.writes), *(f"tag {tag!r}" for tag in part.tags)]
                return namespace, part.address.checkpoint_id, f"{', '.join(names)}: not stored"
        if not self.has_all_checkpoints:
            return "", "", "a version is not stored"
        return None


@contextmanager
def hold_both(
    source: BaseCheckpointSaver, target: BaseCheckpointSaver, thread_id: str, timeout: float | None
) -> Iterator[None]:
    """Hold a thread in two savers, in an order that copies in opposite directions share.

    Raises:
        ThreadBusyError: a run held it in one of them until the timeout.
    """
    config = RunnableConfig(thread_id)
    with ExitStack() as locks:
        for saver in sorted((source, target), key=lambda saver: repr(saver.run_lock_key(config))):
            try:
                locks.enter_context(saver.run_lock(config, timeout))
            except CheckpointStorageError as error:
                # No run writes to a store that this process may only read, as far as can be
                # seen. If one does, the comparison finds out.
                if saver is target or error.errno not in _READ_ONLY:
                    raise
        yield


@final
class ThreadCopier:
    """Copies one thread to a saver. The caller holds its run lock there."""

    def __init__(self, source: ThreadSource, target: BaseCheckpointSaver, *, versions: bool) -> None:
        """Prepare a copy.

        Args:
            source: the thread.
            target: where to copy it.
            versions: whether to copy released histories.
        """
        self._source = source
        # One codec for both sides: the same type has the same name in both.
        self._target = StoredThread(target, source.thread_id, source.values)
        self._versions = versions
        # Between stores, the thread has the same id.
        self._incoming = IncomingThread(target, source.thread_id, source.thread_id)

    def copy(self, counts: CopyCounts) -> bool:
        """Copy what is missing, then read everything back and compare it; return whether anything was missing.

        The target is incomplete meanwhile, and stays so after an error: the next copy continues.

        Args:
            counts: what was copied and skipped is added to them.

        Raises:
            CheckpointConflictError: the target differs from the source. If it differed before, it was not
                changed.
        """
        thread_id = self._source.thread_id
        was_incomplete = is_thread_incomplete(self._target.saver, thread_id)
        try:
            plan = self._compare()
        except CheckpointConflictError:
            if not was_incomplete:
                raise
            # It is a copy of another thread, or of what this one was.
            require_empty(self._target.saver, thread_id)
            plan = self._compare()
            was_incomplete = False
        counts.skipped_checkpoints += plan.skipped
        counts.skipped_versions += plan.skipped_versions
        missing = plan.find_missing()
        if was_incomplete:
            self._begin(plan.unreleased[0])
        elif missing is None:
            return False
        for _ in range(_ROUNDS):
            self._append_missing(plan, counts)
            plan = self._compare()
            missing = plan.find_missing()
            if missing is None:
                self._incoming.finish()
                return True
        assert missing is not None
        raise self._conflict(*missing)

    # Comparing

    def _compare(self) -> _Plan:
        versions = self._source.list_versions() if self._versions else []
        stored = self._target.list_versions() if self._versions else []
        # The target has the first versions of the source, and can number the others as the source does.
        if versions[: len(stored)] != stored:
            reason = f"the target has the versions {stored}, which {self._source.name} does not begin with"
            raise CheckpointConflictError(self._source.thread_id, reason)
        unreleased = versions[len(stored) :]
        for number, version in enumerate(unreleased, stored[-1] + 1 if stored else 1):
            if version != number:
                reason = f"the target would number version {version} as {number}; copy without versions"
                raise CheckpointConflictError(self._source.thread_id, reason)
        skipped = 0
        for version in stored:
            for namespace, found in self._compare_histories(version, version).items():
                if found.first_missing:
                    raise self._conflict(namespace, found.first_missing, f"it is missing in version {version}")
                skipped += found.stored
        stages = [*unreleased, None]
        active = self._compare_histories(stages[0], None)
        skipped += sum(found.stored for found in active.values())
        return _Plan(unreleased=stages, active=active, skipped=skipped, skipped_versions=len(stored))

    def _compare_histories(self, version: int | None, target_version: int | None) -> dict[str, HistoryComparison]:
        """Compare each history of a version with one of the target; None: the active histories."""
        in_source = self._source.list_namespaces(version)
        in_target = self._target.list_namespaces(target_version)
        compared: dict[str, HistoryComparison] = {}
        for namespace in dict.fromkeys((*in_source, *in_target)):
            wanted: Iterable[ReadCheckpoint] = ()
            if namespace in in_source:
                wanted = self._source.read(namespace, version)
            if namespace in in_target:
                self._check_key(namespace, version, target_version)
            stored = self._target.read(namespace, target_version)
            compared[namespace] = self._compare_history(namespace, wanted, stored, has_parts=version is None)
        return compared

    def _check_key(self, namespace: str, source_version: int | None, target_version: int | None) -> None:
        """Check that a stored history has the key that the source has of its own: destroying it must erase the copy."""
        key = self._find_own_key(namespace, source_version)
        if key is not None and self._target.find_own_key(namespace, target_version) != key:
            raise CheckpointConflictError(
                self._source.thread_id,
                f"namespace {namespace!r}: the source is sealed with the key {key!r} of its own, and the target with "
                f"another one; delete it there, and copy again",
            )

    def _find_own_key(self, namespace: str, version: int | None) -> str | None:
        """Return the key that the copy of a history must have; None if the source has none, or the target is plain."""
        if not self._target.saver.seals_records:
            return None
        return self._source.find_own_key(namespace, version)

    def _compare_history(
        self, namespace: str, wanted: Iterable[ReadCheckpoint], stored: Iterable[ReadCheckpoint], *, has_parts: bool
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
        # states are. What is missing is read to its end: a line of a file that is malformed is refused before anything
        # of its thread is stored.
        comparison = HistoryComparison()
        for one, other in zip_longest(wanted, stored):
            if one is None:
                raise self._conflict(namespace, other.id, f"it is not in {self._source.name}")
            if other is None:
                comparison.first_missing = comparison.first_missing or one.id
                continue
            self._compare_checkpoints(namespace, one, other)
            comparison.stored += 1
            if has_parts:
                missing = self._find_missing_parts(namespace, one, other)
                if missing.writes or missing.tags:
                    comparison.parts.append(missing)
        return comparison

    def _find_missing_parts(self, namespace: str, one: ReadCheckpoint, other: ReadCheckpoint) -> CheckpointParts:
        """Return the pending writes and tags that a stored checkpoint lacks.

        They are only appended: what is stored must be the beginning of what is wanted, in order.
        """
        writes = [*one.record.get("writes", {}).items()]
        stored_writes = [*other.record.get("writes", {}).items()]
        for stored, wanted in zip_longest(stored_writes, writes[: len(stored_writes)]):
            if json.dumps(stored) != json.dumps(wanted):
                reason = f"its pending write {stored[0]!r} differs from {self._source.name}"
                raise self._conflict(namespace, other.id, reason)
        tags = [*one.stored.tags]
        stored_tags = [*other.stored.tags]
        if tags[: len(stored_tags)] != stored_tags:
            raise self._conflict(namespace, other.id, f"its tags differ from {self._source.name}")
        return CheckpointParts(
            address=RunnableConfig(self._source.thread_id, one.id, namespace),
            writes=dict(islice(one.stored.writes.items(), len(stored_writes), None)),
            tags=tags[len(stored_tags) :],
        )

    def _compare_checkpoints(self, namespace: str, one: ReadCheckpoint, other: ReadCheckpoint) -> None:
        for name in _FIELDS:
            wanted = one.record[name]
            stored = other.record[name]
            if json.dumps(wanted) == json.dumps(stored):
                continue
            if name == "id":
                reason = f"{self._source.name} has {one.id} in its place; delete the thread first, or copy it elsewhere"
                raise self._conflict(namespace, other.id, reason)
            what = _DESCRIPTIONS.get(name, name)
            if name == "state":
                differ = StateDiffer(self._source.values)
                differ.advance(one.stored.checkpoint.state, None)
                change = differ.advance(other.stored.checkpoint.state, None)
                keys = [key for kind in ("set", "extend", "drop") for key in change.get(kind, ())]
                what = f"state at {', '.join(map(repr, keys)) or 'the order of its keys'}"
            raise self._conflict(namespace, other.id, f"its {what} differs from {self._source.name}")

    def _conflict(self, namespace: str, checkpoint_id: str | None, reason: str) -> CheckpointConflictError:
        reason = f"namespace {namespace!r}, checkpoint {checkpoint_id}: {reason}"
        return CheckpointConflictError(self._source.thread_id, reason)

    # Copying

    def _append_missing(self, plan: _Plan, counts: CopyCounts) -> None:
        # Before the parts: with an answer and without the checkpoints that followed, the thread
        # would look like one that a worker may resume.
        if not plan.has_all_checkpoints:
            self._begin(plan.unreleased[0])
        for found in plan.active.values():
            for part in found.parts:
                part.put(self._target.saver)
        stored = {namespace: found.stored for namespace, found in plan.active.items()}
        for version in plan.unreleased:
            if version != plan.unreleased[0]:
                self._begin(version)
                stored = {}
            for namespace in self._source.list_namespaces(version):
                for read in islice(self._source.read(namespace, version), stored.get(namespace, 0), None):
                    self._incoming.put(namespace, read.stored)
                    counts.checkpoints += 1
            if version is not None:
                self._incoming.release(version)
                counts.versions += 1
        self._incoming.settle()

    def _begin(self, version: int | None) -> None:
        namespaces = self._source.list_namespaces(version)
        if not namespaces:
            return
        namespace = min(namespaces)
        # A version may have only the placeholder of a copy that was cut short, which is not read.
        for first in self._source.read(namespace, version):
            checkpoint = first.stored.checkpoint
            key = self._find_own_key(namespace, version)
            self._incoming.begin(namespaces, checkpoint.state, checkpoint.metadata, key)
            break
