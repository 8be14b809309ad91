"""Policies for AccessControlledSaver: by the owner of a thread, by the prefix of its id, read-only.

A policy is any function of (principal, operation, thread_id, checkpoint_ns); only True allows. These
are made by functions, so that each has its options: `AccessControlledSaver(saver, owner())`. They
pickle, so that nodes in other processes can use them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, final

from graphkit import RunnableConfig
from graphkit.abc import BaseCheckpointSaver, HasVersions
from graphkit.errors import CheckpointErasedError, CheckpointerConfigurationError
from graphkit.saver_kit import set_public_module

__all__ = ["READING", "Owner", "Prefix", "ReadOnly", "owner", "prefix", "read_only"]

READING: Final = frozenset({
    "copy", "get", "get_version", "get_writes", "history", "interrupts", "is_run_locked", "last_tag",
    "last_version_by_thread_id", "list", "namespaces", "own_key", "recent", "replay", "search", "size", "summary",
    "tag", "tags_of", "threads", "verify", "version_namespaces", "versions_by_thread_id",
    "wait_for_resume", "watch",
})  # fmt: skip
"""The operations that change nothing. `copy` reads its source; it needs `put` on its target."""


@final
class Owner:
    """Allows everything to the principal that put the first checkpoint of a thread; see `owner`."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._saver: BaseCheckpointSaver | None = None

    def __repr__(self) -> str:
        return f"owner(key={self.key!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return owner, (self.key,)

    def bind(self, saver: BaseCheckpointSaver) -> None:
        """Accept the saver whose threads have the owners.

        Raises:
            CheckpointerConfigurationError: the policy guards another saver already.
        """
        if self._saver is not None and self._saver is not saver:
            raise CheckpointerConfigurationError("the policy guards another saver: make one with owner() for each")
        self._saver = saver

    def metadata_of(self, principal: Any) -> Mapping[str, Any]:
        """Return the metadata of the checkpoints that a principal puts."""
        return {self.key: principal}

    def __call__(self, principal: Any, operation: str, thread_id: str, checkpoint_ns: str) -> bool:  # noqa: ARG002
        if principal is None:
            return False
        try:
            for metadata in self._iter_metadata(thread_id):
                return bool(metadata.get(self.key) == principal)
        except CheckpointErasedError:
            return False  # the owner was erased with the rest
        return True  # there is no such thread yet

    def _iter_metadata(self, thread_id: str) -> Iterator[Mapping[str, Any]]:
        """Yield the metadata of one checkpoint of each history of a thread; every checkpoint has the key."""
        saver = self._saver
        assert saver is not None
        latest = saver.get(RunnableConfig(thread_id))
        if latest is not None:
            yield latest.metadata
        for namespace in saver.namespaces(thread_id):
            for info in saver.recent(RunnableConfig(thread_id, checkpoint_ns=namespace), limit=1):
                yield info.metadata
        # Its histories were released: what they hold still has an owner.
        if isinstance(saver, HasVersions) and saver.versions_by_thread_id(thread_id):
            for namespace in saver.version_namespaces(thread_id):
                for checkpoint in saver.tag(RunnableConfig(thread_id, checkpoint_ns=namespace)).checkpoints:
                    yield checkpoint.metadata


@final
class Prefix:
    """Allows everything in the threads whose ids begin with a prefix of the principal; see `prefix`."""

    def __init__(self, prefixes: Mapping[Any, str | Collection[str]]) -> None:
        self._prefixes: dict[Any, tuple[str, ...]] = {}
        for principal, given in prefixes.items():
            own = (given,) if isinstance(given, str) else tuple(given)
            if not all(isinstance(each, str) for each in own):
                raise CheckpointerConfigurationError(f"the prefixes of {principal!r} must be strings")
            self._prefixes[principal] = own

    def __repr__(self) -> str:
        return f"prefix(<of {len(self._prefixes)} principals>)"

    def __call__(self, principal: Any, operation: str, thread_id: str, checkpoint_ns: str) -> bool:  # noqa: ARG002
        return thread_id.startswith(self._prefixes.get(principal, ()))


@final
class ReadOnly:
    """Allows everybody to read; see `read_only`."""

    def __repr__(self) -> str:
        return "read_only()"

    def __call__(self, principal: Any, operation: str, thread_id: str, checkpoint_ns: str) -> bool:  # noqa: ARG002
        return operation in READING


def owner(key: str = "owner") -> Owner:
    """Return a policy: a thread belongs to the principal that put its first checkpoint.

    The policy itself writes the principal to the metadata of each checkpoint, over what is there under
    that key. So the principal must be storable, and equal to what is read: use strings. A thread that
    was stored without the key, or whose cipher key was destroyed, belongs to nobody, and so do the
    threads of others: all operations are refused, so a principal can find out that an id is taken.
    Nobody (None) may do nothing.

    Args:
        key: the metadata key.
    """
    return Owner(key)


def prefix(prefixes: Mapping[Any, str | Collection[str]]) -> Prefix:
    """Return a policy: each principal may do everything in the threads whose ids begin with a prefix.

    Args:
        prefixes: a prefix, or several, for each principal. End them with a separator: `"ann"` is also
            the beginning of the threads of `"anna"`. The prefix "" is all threads.

    Raises:
        CheckpointerConfigurationError: a prefix is not a string.
    """
    return Prefix(prefixes)


def read_only() -> ReadOnly:
    """Return a policy: everybody may read everything, and change nothing."""
    return ReadOnly()


set_public_module(globals(), __name__)
