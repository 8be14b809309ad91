"""Incomplete threads: what a copy, a fork, an import or a prune has begun and not ended.

The latest checkpoint of such a thread says so, under the key `INCOMPLETE` of its metadata. Therefore
a run, a worker or a listing finds out from the checkpoint that it reads anyway, at no cost. For this
to be true at every moment, at which the process may die, the history ends with a *placeholder*:

    [T]  [c1, T']  [c1, c2, T'']  ...  [c1, ..., c(n-1), T]  [c1, ..., cn + mark]  [c1, ..., cn]

Each checkpoint takes the place of the placeholder, after another placeholder was appended. The last
checkpoint takes its place together with the mark. It loses the mark when everything else is stored: its
own pending writes, and the histories of all other namespaces.

`put` is all that this takes of a saver: appending and replacing in place. docs/adr/0037 compares it
with other ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, final

from graphkit._records.checkpoint import Checkpoint, replace_fields
from graphkit._records.config import END, START, RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.capabilities import (
    HasVersions,
    SupportsCompact,
    SupportsFlush,
    SupportsOwnKeys,
    SupportsReplay,
    check_rights,
    list_versions,
)
from graphkit._saver.run_lock import lock_for_rewrite
from graphkit._saver.status import public_metadata
from graphkit._saver.writes import INCOMPLETE, is_fork, is_incomplete
from graphkit._values.frozen import PRIVATE, FrozenDict, FrozenList, freeze, kind_of
from graphkit._values.state import REMOVED, SET, Changes
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointNotFoundError,
)

if TYPE_CHECKING:
    from graphkit._saver.base import BaseCheckpointSaver

_EMPTY: Final = FrozenDict()
_ABSENT: Final = object()
_MOST_PLACEHOLDERS: Final = 2


class StoredCheckpoint(NamedTuple):
    """A checkpoint with its pending writes and tags, wherever its saver keeps them."""

    checkpoint: Checkpoint
    writes: Mapping[str, Any] = _EMPTY
    tags: Sequence[str] = ()

    def put(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> RunnableConfig:
        """Append the checkpoint to a history, or put it in the place of the one that the config names.

        Returns:
            The config of the stored checkpoint.
        """
        saver.put(config, self.checkpoint)
        address = config.with_check_point_id(self.checkpoint.id)
        CheckpointParts(address, self.writes, self.tags).put(saver)
        return address


class CheckpointParts(NamedTuple):
    """Pending writes and tags of a checkpoint that is stored."""

    address: RunnableConfig
    writes: Mapping[str, Any]
    tags: Sequence[str]

    def put(self, saver: BaseCheckpointSaver) -> None:
        """Record them with the checkpoint."""
        if self.writes:
            saver.put_writes(self.address, self.writes)
        if self.tags:
            saver.add_tags(self.address, *self.tags)


class _Mark(NamedTuple):
    """What the mark of an incomplete thread says."""

    source: str
    """The thread that is copied."""
    extends: bool
    """Whether the thread was complete before, and gets what was added to the source since then."""
    is_placeholder: bool
    """Whether the checkpoint is none of the source."""
    key: str | None = None
    """The id of the key that the source has of its own: the copy gets the same."""

    @classmethod
    def find(cls, values: Mapping[str, Any]) -> _Mark | None:
        """Return the mark in the metadata or the pending writes of a checkpoint; None if there is none."""
        if not is_incomplete(values):
            return None
        # A caller's metadata may have the key, with any value.
        stored = values[INCOMPLETE]
        if not isinstance(stored, Mapping):
            stored = {}
        key = stored.get("key")
        return cls(
            source=str(stored.get("source", "")),
            extends=stored.get("extends") is not False,
            is_placeholder=stored.get("placeholder") is True,
            key=key if isinstance(key, str) and key else None,
        )

    def add_to(self, metadata: Mapping[str, Any]) -> FrozenDict:
        """Return metadata with the mark."""
        return cast("FrozenDict", freeze({**metadata, INCOMPLETE: self.to_json()}))

    def to_json(self) -> Mapping[str, Any]:
        stored = {"source": self.source, "extends": self.extends, "placeholder": self.is_placeholder}
        if self.key is not None:
            stored["key"] = self.key
        return stored


# Finding


def is_placeholder(metadata: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint with these metadata only marks its thread as incomplete."""
    mark = _Mark.find(metadata)
    return mark is not None and mark.is_placeholder


def find_copied_key(metadata: Mapping[str, Any]) -> str | None:
    """Return the id of the key that a history gets as a copy, from the metadata of its first checkpoint."""
    mark = _Mark.find(metadata)
    return None if mark is None else mark.key


def find_own_key(saver: BaseCheckpointSaver, config: RunnableConfig, version: int | None = None) -> str | None:
    """Return the id of the key that a history has of its own; None if it has none."""
    if not isinstance(saver, SupportsOwnKeys):
        return None
    return saver.own_key(config, version=version)


def remove_mark(metadata: FrozenDict) -> FrozenDict:
    """Return metadata without the mark of an incomplete thread."""
    if not is_incomplete(metadata):
        return metadata
    return FrozenDict({key: value for key, value in metadata.items() if key != INCOMPLETE})


def is_thread_incomplete(saver: BaseCheckpointSaver, thread_id: str) -> bool:
    """Return whether a thread is a copy, fork or import that has not ended."""
    return _find_mark(saver, thread_id) is not None


def refuse_incomplete(saver: BaseCheckpointSaver, thread_id: str) -> None:
    """Check that a thread is not incomplete.

    Raises:
        CheckpointConflictError: it is.
    """
    mark = _find_mark(saver, thread_id)
    if mark is not None:
        raise _make_error(thread_id, mark)


def check_complete(thread_id: str, values: Mapping[str, Any]) -> None:
    """Check that a thread is not incomplete, by its latest checkpoint.

    Args:
        thread_id: the thread, for the error.
        values: the metadata or the pending writes of the checkpoint.

    Raises:
        CheckpointConflictError: the thread is incomplete.
    """
    mark = _Mark.find(values)
    if mark is not None:
        raise _make_error(thread_id, mark)


def require_empty(saver: BaseCheckpointSaver, thread_id: str) -> None:
    """Check that a copy or a fork may take a thread id, and remove an incomplete thread that has it.

    Raises:
        CheckpointConflictError: as `check_target`. Nothing was changed.
    """
    if check_target(saver, thread_id):
        saver.delete(thread_id)


def check_target(saver: BaseCheckpointSaver, thread_id: str) -> bool:
    """Check that a copy or a fork may take a thread id; return whether an incomplete thread has to be removed.

    Raises:
        CheckpointConflictError: the thread is not empty; or it is incomplete, and a removal would
            take along what it had before.
    """
    if not saver.namespaces(thread_id):
        return False
    mark = _find_mark(saver, thread_id)
    if mark is None:
        raise CheckpointConflictError(thread_id, "not empty; choose another id, or release or delete it first")
    if mark.extends:
        raise _make_error(thread_id, mark)
    if list_versions(saver, thread_id):
        raise CheckpointConflictError(
            thread_id, "it is incomplete, and has released versions, which must stay: release it, or delete the thread"
        )
    return True


def check_copy(saver: BaseCheckpointSaver, source_id: str, target_id: str) -> Sequence[str]:
    """Check that a thread may be copied within a store, and remove an incomplete target.

    Returns:
        The namespaces of the source.

    Raises:
        CheckpointNotFoundError: the source is empty. Nothing was changed.
        CheckpointConflictError: the source is incomplete, or as `require_empty`. Nothing was changed.
    """
    namespaces = _check_source(saver, source_id)
    require_empty(saver, target_id)
    return namespaces


def _check_source(saver: BaseCheckpointSaver, thread_id: str) -> Sequence[str]:
    """Check that a thread may be copied; return its namespaces."""
    namespaces = find_all_namespaces(saver, thread_id, "copy")
    if not namespaces:
        raise CheckpointNotFoundError(thread_id)
    refuse_incomplete(saver, thread_id)
    return namespaces


def find_all_namespaces(saver: BaseCheckpointSaver, thread_id: str, operation: str) -> Sequence[str]:
    """Return the namespaces of a thread, for an operation that must not miss one.

    Raises:
        CheckpointerConfigurationError: the saver may not find all of them.
    """
    namespaces = saver.namespaces(thread_id)
    if saver.lists_namespaces:
        return namespaces
    for namespace in namespaces:
        for latest in saver.recent(RunnableConfig(thread_id, checkpoint_ns=namespace), limit=1):
            if is_fork(latest.next_node_id):
                raise CheckpointerConfigurationError(
                    f"{type(saver).__name__} cannot {operation} thread {thread_id!r}, whose run stands before a fork: "
                    f"the branches may have histories that namespaces() does not find. Let the run go past the fork, "
                    f"or override namespaces()"
                )
    return namespaces


def _find_mark(saver: BaseCheckpointSaver, thread_id: str) -> _Mark | None:
    config = RunnableConfig(thread_id)
    # No state is decoded: whoever answers an interrupt need not know the types of the application.
    latest = saver.recent(config, limit=1)
    if not latest:
        namespaces = saver.namespaces(thread_id)
        if not namespaces:
            return None
        latest = saver.recent(config.replace(checkpoint_ns=min(namespaces)), limit=1)
    if latest:
        return _find_mark_of(saver, latest[0])
    return None


def _find_mark_of(saver: BaseCheckpointSaver, latest: CheckpointInfo) -> _Mark | None:
    mark = _Mark.find(latest.metadata)
    if mark is None and latest.status == "incomplete":
        address = RunnableConfig(latest.thread_id, latest.id, latest.checkpoint_ns)
        mark = _Mark.find(saver.get_writes(address))
    return mark


def _make_error(thread_id: str, mark: _Mark) -> CheckpointConflictError:
    what = "a copy, fork or import"
    if mark.source:
        what = f"the copy, fork or import of {mark.source!r}"
    return CheckpointConflictError(
        thread_id, f"it is incomplete: {what} to it has not ended. Repeat that to complete it, or delete the thread"
    )


# Filling


@final
class IncomingThread:
    """Stores a thread that is incomplete until `finish`. The caller holds its run lock, if the saver has others.

    What was begun can be continued by another object of this class, in another process: it finds the
    placeholders.
    """

    def __init__(self, saver: BaseCheckpointSaver, thread_id: str, source: str, *, extends: bool = False) -> None:
        """Prepare; `begin` is the first to store something.

        Args:
            saver: where to store the thread.
            thread_id: the thread.
            source: the thread that it is a copy of, for messages.
            extends: whether the thread was there before, so that nothing may take its place.
        """
        self._saver = saver
        self._thread_id = thread_id
        self._mark = _Mark(source, extends=extends, is_placeholder=False)
        self._config: RunnableConfig | None = None
        """Names the history whose end says that the thread is incomplete; None before `begin`."""
        self._placeholders: list[RunnableConfig] = []
        """The placeholders at the end of that history, oldest first: one, or two while a checkpoint
        takes the place of the first; none if the latest checkpoint itself has the mark."""
        self._held: StoredCheckpoint | None = None
        """The newest checkpoint of that history, which takes the place of the first placeholder when
        it is known whether another one follows."""
        self._metadata: Mapping[str, Any] = _EMPTY
        self._state = _EMPTY
        """The state of the checkpoint before it. The next placeholder has it too: some savers refuse
        other states, and those that store what changed have nothing to store."""

    def begin(
        self,
        namespaces: Sequence[str],
        state: FrozenDict,
        metadata: Mapping[str, Any] = _EMPTY,
        key: str | None = None,
    ) -> None:
        """Mark the thread as incomplete, unless it is.

        Args:
            namespaces: those of the source. The first of them, in the order of their names, has the
                mark; so the root has it, if there is one.
            state: that of the oldest checkpoint of that history.
            metadata: those of the same checkpoint: a saver may decide by them how it seals the thread.
            key: the id of the key that the source has of its own, which the thread is to have, too.
        """
        self._metadata = metadata
        self._state = state
        self._config = RunnableConfig(self._thread_id, checkpoint_ns=min(namespaces))
        newest = self._saver.recent(self._config, limit=_MOST_PLACEHOLDERS + 1)
        mark = _find_mark_of(self._saver, newest[0]) if newest else None
        if mark is not None:
            extends = mark.extends
        else:
            extends = self._mark.extends or bool(newest or self._saver.namespaces(self._thread_id))
        self._mark = self._mark._replace(extends=extends, key=key)
        if not newest:
            self._append_placeholder()
            return
        if mark is None:
            latest = self._get_checkpoint()
            self._replace(latest, self._mark.add_to(latest.metadata))
            return
        self._placeholders = []
        for info in newest:
            if is_placeholder(info.metadata):
                self._placeholders.insert(0, self._config.with_check_point_id(info.id))
            elif self._placeholders and is_incomplete(info.metadata):
                # The process died after it had appended a placeholder behind this checkpoint.
                self._remove_mark(self._get_checkpoint(info.id))

    def put(self, namespace: str, stored: StoredCheckpoint) -> None:
        """Append a checkpoint to a history of the thread."""
        config = RunnableConfig(self._thread_id, checkpoint_ns=namespace)
        if config != self._config:
            stored.put(self._saver, config)
            return
        if self._held is not None:
            if len(self._placeholders) == 1:
                self._append_placeholder()
            self._held.put(self._saver, self._placeholders.pop(0))
            self._state = self._held.checkpoint.state
        elif not self._placeholders:
            marked = self._get_checkpoint()
            self._state = marked.state
            self._append_placeholder()
            self._remove_mark(marked)
        self._held = stored

    def settle(self) -> None:
        """Store what is held back, so that everything can be read. The thread stays incomplete.

        Raises:
            CheckpointConflictError: an earlier copy has stored more than there is.
        """
        held = self._held
        if held is not None:
            metadata = self._mark.add_to(held.checkpoint.metadata)
            marked = held._replace(checkpoint=held.checkpoint.with_metadata(metadata))
            placeholder = self._placeholders.pop(0)
            marked.put(self._saver, placeholder)
            self._held = None
        if self._placeholders:
            raise _make_error(self._thread_id, self._mark)
        self._flush()

    def finish(self) -> None:
        """Store what is held back; from then on the thread is complete.

        Raises:
            CheckpointConflictError: as `settle`.
        """
        self.settle()
        if self._config is not None:
            self._remove_mark(self._get_checkpoint())
            self._compact()
            self._flush()

    def release(self, version: int) -> None:
        """Release what was stored as a version, which is never live and complete.

        Args:
            version: the number that the version gets, for the error.

        Raises:
            CheckpointConflictError: there is nothing to release; or as `settle`.
        """
        self.settle()
        if self._config is not None:
            # A version must equal that of the source, and readers of versions see metadata, but no
            # pending writes. So the mark moves there until the history is no longer live.
            latest = self._get_checkpoint()
            address = self._config.with_check_point_id(latest.id)
            self._saver.put_writes(address, {INCOMPLETE: self._mark.to_json()})
            self._remove_mark(latest)
            self._compact()
            self._config = None
        tag = self._saver.release(RunnableConfig(self._thread_id))
        if tag.version is None:
            raise CheckpointConflictError(
                self._thread_id, f"version {version} has no checkpoints and cannot be stored; leave versions out"
            )

    def _append_placeholder(self) -> None:
        assert self._config is not None
        placeholder = Checkpoint(
            node_id=START,
            # A saver of somebody else that derives the status without the metadata says "finished".
            next_node_id=END,
            state=self._state,
            metadata=self._mark._replace(is_placeholder=True).add_to(self._metadata),
        )
        self._placeholders.append(self._saver.put(self._config, placeholder))

    def _get_checkpoint(self, checkpoint_id: str | None = None) -> Checkpoint:
        """Return a checkpoint of the history that has the mark, by default the latest."""
        assert self._config is not None
        found = self._saver.get(self._config.with_check_point_id(checkpoint_id))
        if found is None:
            raise CheckpointNotFoundError(self._thread_id, hint="it was deleted while it was copied")
        return found

    def _remove_mark(self, marked: Checkpoint) -> None:
        self._replace(marked, remove_mark(marked.metadata))

    def _replace(self, checkpoint: Checkpoint, metadata: FrozenDict) -> None:
        """Replace the metadata of a checkpoint as it was read: the default methods keep writes and tags there."""
        assert self._config is not None
        self._saver.put(self._config.with_check_point_id(checkpoint.id), checkpoint.with_metadata(metadata))

    def _flush(self) -> None:
        """Bring everything to the disk: without its mark, a thread must not lack what it had before."""
        if isinstance(self._saver, SupportsFlush):
            self._saver.flush()

    def _compact(self) -> None:
        """Free what was replaced: savers read a history that has nothing of it faster."""
        if isinstance(self._saver, SupportsCompact):
            self._saver.compact(self._thread_id)


@contextmanager
def fill_new_thread(
    saver: BaseCheckpointSaver,
    thread_id: str,
    source: str,
    namespaces: Sequence[str],
    first: Checkpoint,
    key: str | None,
) -> Iterator[IncomingThread]:
    """Make a thread in the block: complete at its end, or gone after an exception.

    Args:
        saver: where to make it.
        thread_id: the thread. The caller holds its run lock, if the saver has others.
        source: the thread that it is a copy of.
        namespaces: those of the source; see `IncomingThread.begin`.
        first: its state and metadata are those of the oldest checkpoint of the first of them.
        key: the id of the key that the source has of its own.

    Raises:
        CheckpointConflictError: the thread is not empty. Nothing was changed.
    """
    require_empty(saver, thread_id)
    compact = ("compact",) if isinstance(saver, SupportsCompact) else ()
    check_rights(saver, RunnableConfig(thread_id), "get", "put", "put_writes", "add_tags", *compact)
    incoming = IncomingThread(saver, thread_id, source)
    try:
        incoming.begin(namespaces, first.state, public_metadata(first.metadata), key)
        yield incoming
        incoming.finish()
    except BaseException as error:
        # Remove what there is of it; if that is not possible, the error says so.
        try:
            if list_versions(saver, thread_id):
                note = f"thread {thread_id!r} has released versions, so it stays, and is incomplete: release it"
                error.add_note(note)
            else:
                saver.delete(thread_id)
        except CheckpointerError as second:
            error.add_note(f"thread {thread_id!r} stays, and is incomplete: {second}")
        raise


def remove_by_rewriting(
    saver: BaseCheckpointSaver,
    config: RunnableConfig,
    select: Callable[[Sequence[CheckpointInfo]], Iterable[CheckpointInfo]],
) -> int:
    """Remove checkpoints of one history: release the thread, and put back what stays.

    Args:
        saver: any saver; one that keeps versions has the history as it was in a version afterwards.
        config: the thread and the namespace. An incomplete thread is left alone.
        select: returns those to remove, from all of the history, newest first.

    Returns:
        How many were removed.

    Raises:
        CheckpointerConfigurationError: `namespaces` may not find the histories of the branches that the run
            stands before. Nothing was changed.
    """
    # The run lock keeps a run from putting between `list` and `release`, and the other lock keeps writers from
    # recording pending writes and tags. A crash between releasing and putting back loses the thread: it is
    # incomplete.
    with saver.run_lock(config), lock_for_rewrite(saver.run_lock_key(config)):
        removable = {info.id for info in select(saver.history(config))}
        if not removable or is_thread_incomplete(saver, config.thread):
            return 0
        # What stays of all histories that `release` would end, each oldest first.
        kept: dict[str, list[StoredCheckpoint]] = {}
        for namespace in find_all_namespaces(saver, config.thread, "prune"):
            history = [*read_history(saver, RunnableConfig(config.thread, checkpoint_ns=namespace))]
            for stored in history:
                _ = stored.checkpoint.state  # some savers decode a state on first use, and cannot after the release
            gone = removable if namespace == config.checkpoint_ns else ()
            left = [stored for stored in history if stored.checkpoint.id not in gone]
            if left:
                kept[namespace] = left
        saver.release(config)
        # The `release` of some savers ends one namespace only.
        kept = {ns: left for ns, left in kept.items() if saver.get(config.replace(checkpoint_ns=ns)) is None}
        if kept:
            oldest = kept[min(kept)][0].checkpoint
            incoming = IncomingThread(saver, config.thread, config.thread, extends=True)
            incoming.begin([*kept], oldest.state)
            for namespace, history in kept.items():
                for stored in history:
                    incoming.put(namespace, stored)
            incoming.finish()
        return len(removable)


def read_history(
    saver: BaseCheckpointSaver, config: RunnableConfig, version: int | None = None
) -> Iterator[StoredCheckpoint]:
    """Yield the checkpoints of a history, oldest first, with their pending writes and tags.

    They have neither the metadata of the default methods nor what marks a thread as incomplete.

    Args:
        saver: where the history is.
        config: names the thread and the namespace.
        version: a released history, whose writes and tags the contract does not show; None: the active one.
    """
    if isinstance(saver, SupportsReplay):
        checkpoints = saver.replay(config, version=version)
    else:
        checkpoints = _read_list(saver, config, version)
    for checkpoint in checkpoints:
        if is_placeholder(checkpoint.metadata):
            return
        plain = checkpoint.with_metadata(remove_mark(public_metadata(checkpoint.metadata)))
        if version is not None:
            yield StoredCheckpoint(plain)
            continue
        address = config.with_check_point_id(checkpoint.id)
        yield StoredCheckpoint(plain, saver.get_writes(address), saver.tags_of(address))


def _read_list(saver: BaseCheckpointSaver, config: RunnableConfig, version: int | None) -> Iterator[Checkpoint]:
    if version is None:
        waiting = [*saver.list(config)]
    else:
        assert isinstance(saver, HasVersions)
        waiting = [*saver.tag(config, version).checkpoints]
    before: FrozenDict | None = None
    while waiting:
        checkpoint = waiting.pop()  # a listed checkpoint keeps its state once it was read
        yield with_changes(checkpoint, before)
        before = checkpoint.state


def with_changes(checkpoint: Checkpoint, before: FrozenDict | None) -> Checkpoint:
    """Return a checkpoint with what changed since the state of the one before it; None for the first."""
    state = checkpoint.state  # before the checkpoint is copied: both would decode it
    changes = None
    # A saver that isolates values copies these objects, unless it is given the changes.
    if before is not None and PRIVATE not in (state.kind, checkpoint.metadata.kind):
        changes = find_changes(before, state)
    return replace_fields(checkpoint, changes=changes)


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
        are_lists = type(value) is FrozenList and type(old) is FrozenList and old.kind != PRIVATE
        if are_lists and len(old) <= len(value) and all(map(is_, old, value)):
            ops[key] = len(old)
    for key in before:
        if key not in state:
            ops[key] = REMOVED
    return Changes(before, ops)


def copy_thread(source: BaseCheckpointSaver, thread: str, target: BaseCheckpointSaver, new_thread: str) -> None:
    """Copy the active history of a thread between savers, checkpoint by checkpoint.

    Raises:
        CheckpointNotFoundError: the source is empty. Nothing was changed.
        CheckpointConflictError: the source is incomplete, or the target is not empty. Nothing was
            changed.
    """
    namespaces = _check_source(source, thread)
    first = RunnableConfig(thread, checkpoint_ns=min(namespaces))
    checkpoints = source.list(first)
    if not checkpoints:
        # Another process has released or deleted it meanwhile: not every saver has run locks across processes.
        raise CheckpointNotFoundError(thread)
    oldest = checkpoints[-1]
    with fill_new_thread(target, new_thread, thread, namespaces, oldest, find_own_key(source, first)) as incoming:
        for namespace in namespaces:
            config = RunnableConfig(thread, checkpoint_ns=namespace)
            for stored in read_history(source, config):
                incoming.put(namespace, stored)
