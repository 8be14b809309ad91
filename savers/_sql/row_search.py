"""Searches the checkpoints of all histories by their metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from graphkit import RunnableConfig
from graphkit.abc import BaseCheckpointSaver, with_status
from savers._log.listed_checkpoints import make_info
from savers._sql.row_views import RowHistories, ScannedRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from graphkit import CheckpointInfo
    from savers._sql.row_store import RowStore
    from savers._sql.row_views import LiveHistory

_MOST_PAIRS: Final = 8
"""A search has at most so many conditions on the index; the caller compares all."""
_FEWEST_READ: Final = 16
"""A search with a limit reads at least so many histories with one statement."""


def search_rows(
    saver: BaseCheckpointSaver,
    store: RowStore,
    metadata: Mapping[str, Any],
    pairs: Sequence[tuple[int, int]],
    limit: int | None,
) -> Iterator[CheckpointInfo]:
    """Yield the checkpoints whose metadata have all these keys with these values.

    A few statements read the histories that the index finds, and an info is made only of what
    matches.

    Args:
        saver: the saver, which reads a history that is long, or that was deleted or rewritten meanwhile.
        store: its store.
        metadata: the keys and values.
        pairs: the terms of the index; see `list_search_terms`.
        limit: about how many are wanted; None for all.
    """
    rows = RowHistories(store)
    for batch in _split(rows.list_live(pairs[:_MOST_PAIRS]), limit):
        for live, view in rows.read_whole(batch, _is_not_known):
            if isinstance(view, ScannedRows):
                for stored in reversed(view.checkpoints):
                    if _has_all(stored.metadata, metadata):
                        info = make_info(view, stored)
                        yield with_status(saver, info) if stored is view.checkpoints[-1] else info
                continue
            for info in saver.history(RunnableConfig(live.thread_id, checkpoint_ns=live.namespace)):
                if _has_all(info.metadata, metadata):
                    yield info


def _has_all(known: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    return all(key in known and known[key] == value for key, value in metadata.items())


def _split(histories: Sequence[LiveHistory], limit: int | None) -> Iterator[Sequence[LiveHistory]]:
    """Yield the histories in batches that grow, so that few are read in vain if few are wanted."""
    count = len(histories) if limit is None else max(_FEWEST_READ, limit)
    first = 0
    while first < len(histories):
        yield histories[first : first + count]
        first += count
        count *= 2


def _is_not_known(_thread_id: str) -> bool:
    """Return False: a search does not ask whether a thread has other namespaces."""
    return False
