"""Capabilities: what some savers can do and others cannot.

There are two kinds:

* Qualities of the methods that every saver has are read-only properties of `BaseCheckpointSaver`;
  `QUALITIES` lists them. A saver declares one with a line such as `isolates_values = True`.
* Methods that only some savers have are runtime-checkable protocols: a saver declares one by having
  the method, and a caller asks with `isinstance(saver, SupportsRepair)`.

The contract suite runs the tests that belong to the declared qualities and skips the others.
Wrappers have the capabilities of the saver that they wrap. A wrapper that overrides `list` does not
have `SupportsReplay`, which would bypass it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args, runtime_checkable

from graphkit._public_names import JavaNames
from graphkit._records.checkpoint import Checkpoint, Tag
from graphkit._records.config import ConfigLike, RunnableConfig, ThreadLike, resolve_thread_id
from graphkit._saver.writes import follow_namespaces
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointFormatError,
    CheckpointKeyError,
    CheckpointNotFoundError,
    CheckpointStorageError,
)

if TYPE_CHECKING:
    from graphkit._saver.base import BaseCheckpointSaver
    from graphkit._saver.reports import RepairReport, RotationReport, VerifyReport

Quality = Literal[
    "is_durable",
    "isolates_values",
    "lists_namespaces",
    "lists_threads",
    "measures_size",
    "refuses_unstorable_values",
    "seals_records",
    "waits_for_runs",
]
"""The name of a property of `BaseCheckpointSaver` that declares a capability."""

QUALITIES: Final[Sequence[Quality]] = get_args(Quality)
"""All of them, sorted; wrappers forward each."""

Progress = Callable[[int, int, str], object]
"""Called as progress(done, total, item) after each item; the total is 0 if it is not known."""


@runtime_checkable
class SupportsVerify(Protocol):
    """A saver that finds damage in its store."""

    def verify(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> VerifyReport:
        """Check everything that is stored of one thread, or of all (None). Change nothing.

        Damage is reported and never raised.
        """


@runtime_checkable
class SupportsRepair(Protocol):
    """A saver that makes damaged threads readable again."""

    def repair(
        self, thread: ThreadLike = None, *, dry_run: bool = False, progress: Progress | None = None
    ) -> RepairReport:
        """Repair one thread, or all (None), and keep every checkpoint that can be rebuilt.

        Args:
            thread: the thread.
            dry_run: change nothing, and report what a repair would do.
            progress: called after each item.

        Raises:
            ThreadBusyError: a run holds a thread. All other threads are repaired.
        """


@runtime_checkable
class SupportsRotate(Protocol):
    """A saver that can seal everything again with its current key."""

    def rotate(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> RotationReport:
        """Seal one thread, or all threads (None), with the current key."""


@runtime_checkable
class SupportsOwnKeys(Protocol):
    """A saver that can seal a history with a key of its own."""

    def own_key(self, config: ConfigLike = None, *, version: int | None = None) -> str | None:
        """Return the id of the key that a history has of its own; None if it has none.

        A copy must be sealed with the same key, so that destroying the key erases it, too.

        Args:
            config: names the history.
            version: a released version; None: the live history.
        """


@runtime_checkable
class SupportsCompact(Protocol):
    """A saver that frees space taken by replaced data."""

    def compact(self, thread: ThreadLike = None, *, dry_run: bool = False, progress: Progress | None = None) -> int:
        """Free space in one thread, or in all (None). Return the number of bytes freed, or with dry_run to be freed."""


@runtime_checkable
class SupportsErase(Protocol):
    """A saver that can make sure that no byte of what was deleted is left in its store."""

    def erase_deleted(self, *, full: bool = False) -> Sequence[str]:
        """Remove every byte that deleted threads and replaced data have left in the store.

        What other threads have stays as it is. Waits for other users of the store as long as a put
        would, and then reports what they keep. Removes nothing else, and can be called again.

        Args:
            full: do also what keeps other processes from using the store meanwhile.

        Returns:
            Why bytes are left, a sentence for each reason, which names no thread; empty if none is.
        """


@runtime_checkable
class SupportsFlush(Protocol):
    """A saver that can be told to bring everything that was put to the disk."""

    def flush(self) -> None:
        """Bring everything to the disk that an option lets wait there.

        Raises:
            CheckpointStorageError: something may not be on the disk.
        """


@runtime_checkable
class SupportsDeleteIdle(Protocol):
    """A saver that deletes threads that no process has written to for a while."""

    def delete_idle(
        self,
        thread: ThreadLike = None,
        *,
        idle_since: datetime,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Sequence[str]:
        """Delete whole threads that no process has written to since a moment; return their ids, sorted.

        Pending writes and tags count as writes. A thread with a run stays, and so does one that is
        written to at the same time.

        Args:
            thread: the thread; None is all of them.
            idle_since: threads that were written to at this time or later stay; aware.
            dry_run: change nothing, and only return the threads that would be deleted.
            progress: called after each thread.

        Raises:
            ValueError: `idle_since` has no time zone.
        """


@runtime_checkable
class SupportsReplay(Protocol):
    """A saver that reads a history forward, at the cost of what changed from checkpoint to checkpoint.

    `list` decodes each state by itself, so that reading a history of growing states takes quadratic
    time.
    """

    def replay(self, config: ConfigLike = None, *, version: int | None = None) -> Iterator[Checkpoint]:
        """Yield the checkpoints of a history, oldest first, as it was when the first one was read.

        The `changes` of each apply to the state of the checkpoint that was yielded before it,
        whatever its parent is; None for the first, and where the saver does not know them.
        Consecutive states share the values that did not change, mutable objects of the application
        included: do not change them.

        Hold no lock while a checkpoint is yielded: the caller reads its pending writes then, and `copy` puts
        it into another thread of the same saver.

        Args:
            config: names the thread and the namespace.
            version: a released history; None is the active one.

        Raises:
            CheckpointNotFoundError: there is no such version.
        """


@runtime_checkable
class SupportsRemove(Protocol):
    """A saver that removes single checkpoints."""

    def remove(self, config: ConfigLike, ids: Collection[str]) -> int:
        """Remove checkpoints of a history, with their pending writes and tags.

        The other checkpoints keep their whole states. A thread of which nothing is left does not
        exist any more.

        Returns:
            How many of the checkpoints the history had.
        """


@runtime_checkable
class SupportsCheckAccess(Protocol):
    """A saver that decides who may do what, and can be asked before.

    A run asks for everything that it may have to do before its first node, so that it does not end
    halfway because it may not store a checkpoint.
    """

    def check_access(self, config: ConfigLike, operations: Collection[str]) -> None:
        """Check that the principal of the call may do several things with a history. Change nothing.

        Args:
            config: names the thread and the namespace.
            operations: names of methods of savers, such as "put".

        Raises:
            AccessDeniedError: one of them is not allowed.
        """


def check_rights(saver: object, config: RunnableConfig, *operations: str) -> None:
    """Check that several operations are allowed, before the first of them changes something.

    Raises:
        AccessDeniedError: one of them is not.
    """
    # Not by isinstance: with a protocol, it takes 5 us, and each run comes through here.
    check_access = getattr(saver, "check_access", None)
    if check_access is not None:
        check_access(config, operations)


@runtime_checkable
class SupportsExists(Protocol):
    """A saver that can tell whether its store exists, before the first use creates it."""

    def exists(self) -> bool:
        """Return whether the store exists. Creates nothing.

        Raises:
            CheckpointFormatError: it is something else, or the store of a newer graphkit.
            CheckpointStorageError: it cannot be read.
        """


@runtime_checkable
class HasBaseDirectory(Protocol):
    """A saver whose threads are directories with logs below one directory, in the layout of docs/format.md."""

    @property
    def base_directory(self) -> Any:
        """The path of the directory."""

    def thread_directory(self, thread: ThreadLike = None) -> str:
        """Return the directory of a thread, whether it exists or not."""


class HasVersions(JavaNames, abc.ABC):
    """A saver that keeps every released history as a version. Versions count from 1 in each thread."""

    @abc.abstractmethod
    def versions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        """Return the versions of a thread, ascending; empty if there are none."""

    @abc.abstractmethod
    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        """Return a released history.

        Args:
            config: names the thread and the namespace.
            version: the version; None is the newest.

        Raises:
            CheckpointNotFoundError: there is no such version.
        """

    def last_tag(self, config: ConfigLike = None) -> Tag | None:
        """Return the history that was released last; None if there is none."""
        if self.last_version_by_thread_id(config) is None:
            return None
        return self.tag(config)

    def last_version_by_thread_id(self, thread: ThreadLike = None) -> int | None:
        """Return the newest version of a thread, or None."""
        versions = self.versions_by_thread_id(thread)
        return versions[-1] if versions else None

    def get_version(self, config: ConfigLike = None) -> str | None:
        """Return the newest version of a thread as text, or None."""
        version = self.last_version_by_thread_id(config)
        if version is None:
            return None
        return str(version)

    def version_namespaces(self, thread: ThreadLike = None, version: int | None = None) -> Sequence[str]:
        """Return the namespaces of a released history that hold checkpoints.

        The default implementation finds the root, the namespaces that the thread has now, and those
        of nested graphs that the released histories name. Savers that can list them override it.

        Args:
            thread: the thread.
            version: the version; None is the newest.

        Raises:
            CheckpointNotFoundError: there is no such version.
        """
        thread_id = resolve_thread_id(thread)
        first = ["", *self.namespaces(thread_id)]  # type: ignore[attr-defined]  # a saver is both

        def read_history(namespace: str) -> tuple[Sequence[Checkpoint], Mapping[str, Any]]:
            return self.tag(RunnableConfig(thread_id, checkpoint_ns=namespace), version).checkpoints, {}

        return follow_namespaces(first, read_history)

    def _find_version(self, thread_id: str, version: int | None) -> int:
        """Return a version of a thread, by default the newest.

        Raises:
            CheckpointNotFoundError: there is no such version.
        """
        versions = self.versions_by_thread_id(thread_id)
        if version is None and versions:
            return versions[-1]
        if version is None or version not in versions:
            missing = "version" if version is None else f"version {version}"
            raise CheckpointNotFoundError(thread_id, missing)
        return version

    # Java names
    versionsByThreadId = versions_by_thread_id
    lastVersionByThreadId = last_version_by_thread_id
    getVersion = get_version
    versionNamespaces = version_namespaces
    lastTag = last_tag


def list_versions(saver: object, thread_id: str) -> Sequence[int]:
    """Return the versions of a thread, ascending; none if the saver keeps none."""
    if not isinstance(saver, HasVersions):
        return []
    return saver.versions_by_thread_id(thread_id)


def load_checkpoint(saver: BaseCheckpointSaver, config: RunnableConfig, hint: str = "") -> Checkpoint:
    """Return the checkpoint that a config names.

    Raises:
        CheckpointNotFoundError: there is none, perhaps because another process has removed it. The message
            ends with the hint.
    """
    checkpoint = saver.get(config)
    if checkpoint is None:
        what = config.checkpoint_id or f"in namespace {config.checkpoint_ns!r}"
        raise CheckpointNotFoundError(config.thread, f"checkpoint {what}", hint)
    return checkpoint


_UNREADABLE: Final = (CheckpointCorruptionError, CheckpointFormatError, CheckpointKeyError, CheckpointStorageError)
"""What looking for a thread raises that is there."""


def has_thread(saver: BaseCheckpointSaver, thread_id: str, *, released: bool) -> bool:
    """Return whether a saver has a thread, readable or not. What reads it raises the error that it has.

    Args:
        saver: the saver.
        thread_id: the thread.
        released: whether a thread counts that only has versions.
    """
    try:
        return bool(saver.namespaces(thread_id) or (released and list_versions(saver, thread_id)))
    except _UNREADABLE:
        return True
