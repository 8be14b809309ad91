"""Walks from a checkpoint back to its ancestors, reading only what the values of delta channels need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from graphkit.abc import LANGGRAPH, MADE_BY
from graphkit.errors import CheckpointConflictError
from savers.langgraph.channels import CHANNEL, VALUE, WRITES, get_stored_channels
from savers.langgraph.writes import Write

if TYPE_CHECKING:
    from graphkit import RunnableConfig
    from savers._log.history_view import Ancestor
    from savers.langgraph.histories import Histories

_MAX_KNOWN: Final = 4000
"""How many ancestors are remembered."""
_MAX_BYTES: Final = 16 << 20
"""The most bytes of their writes."""


class KnownAncestor(NamedTuple):
    """A checkpoint with its writes, and the channels whose values its state has."""

    found: Ancestor
    recorded: Mapping[str, int]
    """Which writes were recorded with it when it was read, by the offsets of their records."""
    writes: list[Write]
    channels: frozenset[str]


class KnownAncestors:
    """The ancestors that were read last: histories read the same ones again and again.

    A record of a log never changes, and the id of a file is never used again.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], KnownAncestor] = {}
        """By the id of the file and the offset of the record."""
        self._bytes = 0

    def find(self, found: Ancestor) -> KnownAncestor | None:
        """Return what is known of a checkpoint; None if that is not all any more."""
        known = self._known.get((found.fid, found.stored.offset))
        return known if known is not None and known.recorded == found.stored.writes else None

    def remember(self, ancestor: KnownAncestor) -> None:
        """Remember a checkpoint."""
        size = sum(len(write.data) for write in ancestor.writes)
        if len(self._known) >= _MAX_KNOWN or self._bytes + size > _MAX_BYTES:
            self._known.clear()
            self._bytes = 0
        self._bytes += size
        self._known[ancestor.found.fid, ancestor.found.stored.offset] = ancestor


class AncestorWalk:
    """Reads the ancestors of the checkpoints of one history."""

    def __init__(self, histories: Histories[Any], history: RunnableConfig, known: KnownAncestors) -> None:
        self._histories = histories
        self._history = history
        self._known = known
        self._reader = histories.open_ancestors(history)
        self._has_early: bool | None = None
        """Whether there may be early writes elsewhere; None before the first ancestor."""

    def iter_ancestors(self, checkpoint_id: str | None) -> Iterator[KnownAncestor]:
        """Yield the parent of a checkpoint, its parent, and so on.

        No checkpoint is yielded twice: parents in an imported history may form a cycle.

        Raises:
            CheckpointConflictError: a checkpoint is one of graphkit.
        """
        seen: set[str] = set()
        found = self._find(checkpoint_id)
        while found is not None:
            parent = found.stored.parent
            if not parent or parent in seen:
                return
            seen.add(parent)
            found = self._find(parent)
            if found is not None:
                ancestor = self._read(found)
                if ancestor is None:
                    return
                found = ancestor.found
                yield ancestor

    def read_channel(self, ancestor: KnownAncestor, name: str) -> Mapping[str, Any]:
        """Return the part of a state that holds the value of a channel; empty if it is gone."""

        def is_wanted(key: str) -> bool:
            return key in {CHANNEL + name, VALUE + name}

        part = self._reader.read(ancestor.found, is_wanted)
        if part is None:
            # The log was rewritten.
            again = self._find(ancestor.found.stored.id)
            part = None if again is None else self._reader.read(again, is_wanted)
        return {} if part is None else part.state

    def _find(self, checkpoint_id: str | None) -> Ancestor | None:
        found = self._reader.find(checkpoint_id)
        if found is not None and found.stored.metadata.get(MADE_BY) != LANGGRAPH:
            raise CheckpointConflictError(
                self._history.thread, "it holds a run of graphkit's own; give LangGraph another thread id"
            )
        return found

    def _read(self, found: Ancestor) -> KnownAncestor | None:
        """Return a checkpoint with its writes; None if it is gone."""
        # What is not in a log has no place that identifies it. What is in one gets no early writes
        # any more, so one look for them is enough.
        if self._has_early is None:
            self._has_early = not found.fid or self._histories.has_early(self._history)
        has_early = self._has_early
        known = None if has_early else self._known.find(found)
        if known is not None:
            return known
        recorded = found.stored.writes
        part = self._reader.read(found, _is_about_channels)
        if part is None:
            # The log was rewritten.
            again = self._find(found.stored.id)
            if again is None:
                return None
            found = again
            recorded = found.stored.writes
            part = self._reader.read(found, _is_about_channels)
            if part is None:
                return None
        return self._make(found, recorded, part.state, part.writes, remembers=not has_early)

    def _make(
        self,
        found: Ancestor,
        recorded: Mapping[str, int],
        state: Mapping[str, Any],
        own: Mapping[str, Any],
        *,
        remembers: bool,
    ) -> KnownAncestor:
        writes = self._histories.read_writes(self._history, found.stored.id, state, own)
        ancestor = KnownAncestor(found, recorded, writes, frozenset(get_stored_channels(state)))
        if remembers:
            self._known.remember(ancestor)
        return ancestor


def _is_about_channels(key: str) -> bool:
    return key == WRITES or key.startswith(CHANNEL)
