"""Retention: which checkpoints `prune` removes, and which it keeps.

`prune` applies it to each live history of a thread, nested ones included. The latest checkpoint
always stays. Released versions are not touched.

A checkpoint that stays keeps the ancestors that it needs: with a DeltaChannel, LangGraph stores a
value whole only now and then, and reads the other values from the pending writes of the ancestors,
back to the one that stores the value.

The pending writes of LangGraph's tasks may come before their checkpoint. A saver without a log keeps
them in a history of their own, which `prune` does not count: they stay as long as their checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypedDict, final

from graphkit._options import check_count, check_texts, check_time
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.langgraph_writes import EARLY_WRITES, list_unstored_channels
from graphkit._saver.status import WRITES_TAKEN_FROM

if TYPE_CHECKING:
    from graphkit._saver.base import BaseCheckpointSaver


class RetentionOptions(TypedDict, total=False):
    """The keywords of `prune`; see the fields of `Retention`."""

    keep_last: int | None
    older_than: datetime | None
    keep_tags: Collection[str]
    keep_interrupted: bool


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """The options of a `prune`, checked; decides which checkpoints of a history it removes.

    Raises:
        ValueError: neither `keep_last` nor `older_than` is given, or an option has a value that it cannot have.
    """

    keep_last: int | None = None
    """How many of the newest checkpoints stay, whatever their age; None is one."""
    older_than: datetime | None = None
    """Checkpoints made at this time or later stay; None ignores the age."""
    keep_tags: Collection[str] = ()
    """Checkpoints with one of these tags stay."""
    keep_interrupted: bool = True
    """Whether checkpoints with pending interrupts stay."""

    def __post_init__(self) -> None:
        if self.keep_last is None and self.older_than is None:
            raise ValueError("prune() needs keep_last, older_than or both")
        if self.keep_last is not None:
            check_count("keep_last", self.keep_last)
        if self.older_than is not None:
            check_time("older_than", self.older_than)
        object.__setattr__(self, "keep_tags", check_texts("keep_tags", self.keep_tags))

    def select_removable(self, history: Sequence[CheckpointInfo]) -> Sequence[CheckpointInfo]:
        """Return the checkpoints of a history that `prune` removes.

        Args:
            history: all checkpoints of one namespace, newest first. Of early writes, all stay.
        """
        if history and is_of_early_writes(history[0].checkpoint_ns):
            return []
        count = self.keep_last or 1
        old = history[count:]
        kept = [*history[:count], *filter(self._keeps, old)]
        kept_ids = {info.id for info in kept}
        for latest in history[:1]:
            # If the process died in an update, the pending writes of the run are still at an earlier checkpoint.
            taken_from = latest.metadata.get(WRITES_TAKEN_FROM)
            if taken_from is not None and not latest.stopped:
                kept_ids.add(taken_from)
        kept_ids.update(_find_needed_ancestors(kept, history))
        return [info for info in old if info.id not in kept_ids]

    def _keeps(self, info: CheckpointInfo) -> bool:
        """Return whether an old checkpoint stays for its own sake."""
        is_young = self.older_than is not None and info.created_at >= self.older_than
        is_tagged = not set(info.tags).isdisjoint(self.keep_tags)
        waits = self.keep_interrupted and info.stopped == "interrupted"
        return is_young or is_tagged or waits


def _find_needed_ancestors(kept: Sequence[CheckpointInfo], history: Sequence[CheckpointInfo]) -> Iterable[str]:
    """Return the ids of the ancestors from whose pending writes values of checkpoints that stay are read."""
    remaining = [(info, channels) for info in kept if (channels := list_unstored_channels(info.metadata))]
    if not remaining:
        return ()  # Nearly all histories have no DeltaChannel, and these need no index.
    infos = {info.id: info for info in history}
    needed: dict[str, set[str]] = {}
    while remaining:
        info, channels = remaining.pop()
        parent = infos.get(info.parent_id or "")
        if parent is None:
            continue
        # Several kept checkpoints share ancestors: each is walked once for each channel.
        known = needed.setdefault(parent.id, set())
        new = channels - known
        known |= new
        unstored = new & list_unstored_channels(parent.metadata)
        if unstored:
            remaining.append((parent, unstored))
    return needed


def prune_thread(saver: BaseCheckpointSaver, thread_id: str, options: RetentionOptions, *, dry_run: bool) -> int:
    """Prune a thread; return how many checkpoints were, or would be, removed. Early writes do not count.

    Most threads lose nothing, and a listing takes no lock and rewrites nothing. `prune` decides again under its
    lock, because a run may have put checkpoints since then.
    """
    count = 0
    has_orphans = False
    for config, select in iter_prunable(saver, thread_id, Retention(**options)):
        removable = select(saver.history(config))
        if is_of_early_writes(config.checkpoint_ns):
            has_orphans = has_orphans or bool(removable)
        else:
            count += len(removable)
    if dry_run or not (count or has_orphans):
        return count
    return saver.prune(thread_id, **options)


_Select = Callable[[Sequence[CheckpointInfo]], Sequence[CheckpointInfo]]
"""Returns the checkpoints of a history that `prune` removes, given all of them, newest first."""


def iter_prunable(
    saver: BaseCheckpointSaver, thread_id: str, retention: Retention
) -> Iterator[tuple[RunnableConfig, _Select]]:
    """Yield the histories of a thread, each with the function that selects what `prune` removes.

    Those of early writes come last, because what is left of their checkpoints by then decides.
    """
    for namespace in sorted(saver.namespaces(thread_id), key=is_of_early_writes):
        config = RunnableConfig(thread_id, checkpoint_ns=namespace)
        select: _Select = retention.select_removable
        if is_of_early_writes(namespace):
            owner = config.replace(checkpoint_ns=namespace.removeprefix(EARLY_WRITES))
            select = partial(_select_orphans, owner_ids={info.id for info in saver.history(owner)})
        yield config, select


def is_of_early_writes(namespace: str) -> bool:
    """Return whether a namespace holds the early writes of another one, and no checkpoints of a run."""
    return namespace.startswith(EARLY_WRITES)


def _select_orphans(early: Sequence[CheckpointInfo], owner_ids: Collection[str]) -> Sequence[CheckpointInfo]:
    """Return the early writes that `prune` removes, since no checkpoint has them any more.

    Args:
        early: a history of early writes, newest first.
        owner_ids: the ids of the checkpoints that there are.
    """
    # LangGraph's ids ascend: a checkpoint whose id is above all others may still be put. A saver that does not say
    # which checkpoints there are keeps all early writes.
    newest = max(owner_ids, default="")
    return [info for info in early[1:] if info.id not in owner_ids and info.id < newest]
