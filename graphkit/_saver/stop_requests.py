"""Requests to the run of a thread from other processes: to end as cancelled, or to pause.

A request is a pending write. It is recorded without the run lock, which the run holds, at a
checkpoint where the run will look: its mailbox. The latest checkpoint will not do, because the run
may have stored the next one before the write arrives. So both sides agree on checkpoints that change
seldom, and find them in the history itself:

* the first checkpoint that a run stores after its start or resume;
* the first checkpoint of each fifth of a second, by the time at which the checkpoint was made.

A run reads all mailboxes that were current since it looked last, so it misses no request that was
recorded while its mailbox was the newest. Before it has stored anything, its mailbox is the latest
checkpoint; therefore a request is recorded there, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from graphkit._records.config import END
from graphkit._saver.writes import CANCELLED

if TYPE_CHECKING:
    from graphkit._records.config import RunnableConfig
    from graphkit._records.output import CheckpointInfo
    from graphkit._saver.base import BaseCheckpointSaver

CANCEL_REQUEST: Final = "cancel_request"
"""The key of a request to end as cancelled: {reason, at}; None once it is withdrawn or granted."""
PAUSE_REQUEST: Final = "pause_request"
"""The key of a request to pause: {reason, at}; None once it is withdrawn."""
RESUMED_AT: Final = "resumed_at"
"""In the metadata of the first checkpoint after a resume: when the run resumed. Its node ran from
then on, and not since the parent was stored: in between the run waited, had failed, or was not
running at all."""
LOOK_INTERVAL: Final = 0.2
"""Seconds between two looks of a run, at least."""
SLOT_NANOSECONDS: Final = 200_000_000
"""The length of the slots of time whose first checkpoints are mailboxes."""
_SLOT: Final = timedelta(microseconds=SLOT_NANOSECONDS // 1000)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PAGE: Final = 16
_RECENT_MAILBOXES: Final = 4
"""How many mailboxes a run may have passed since it looked last, and more."""


def find_mailboxes(saver: BaseCheckpointSaver, config: RunnableConfig, count: int = 1) -> list[str]:
    """Return the latest checkpoint of a history, and the newest mailboxes of its run.

    Args:
        saver: the store.
        config: names the history.
        count: how many mailboxes to return, at most.
    """
    limit = _PAGE
    while True:
        infos = [*saver.recent(config, limit=limit)]
        is_whole = len(infos) < limit
        found = _select_mailboxes(infos, count, is_whole=is_whole)
        if found is not None:
            return [*dict.fromkeys([*(info.id for info in infos[:1]), *found])]
        limit *= _PAGE


def grant_cancel_request(saver: BaseCheckpointSaver, config: RunnableConfig) -> bool:
    """Cancel a stalled thread whose process died before it had read a request; return whether there was one.

    For workers; the caller holds the run lock.
    """
    for latest in saver.recent(config, limit=1):
        if latest.stopped or latest.next_node_id == END:
            return False
    for checkpoint_id in find_mailboxes(saver, config, _RECENT_MAILBOXES):
        writes = saver.get_writes(config.with_check_point_id(checkpoint_id))
        request = writes.get(CANCEL_REQUEST)
        if isinstance(request, Mapping):
            saver.put_writes(config, {CANCELLED: request})
            return True
        if CANCELLED in writes:  # a resume went on from here, in spite of all earlier requests
            return False
    return False


def _select_mailboxes(infos: Sequence[CheckpointInfo], count: int, *, is_whole: bool) -> list[str] | None:
    """Return the mailboxes among the newest checkpoints of a history; None if that takes older ones."""
    found: list[str] = []
    for info, older in zip_longest(infos, infos[1:]):
        if older is None and not is_whole:
            return None
        # As in `RunHistory.save`.
        is_first = info.metadata.get("source") == "input" or RESUMED_AT in info.metadata
        if is_first or older is None or _number_slot(info) != _number_slot(older):
            found.append(info.id)
        if is_first or len(found) == count:
            break
    return found


def _number_slot(info: CheckpointInfo) -> int:
    return (info.created_at - _EPOCH) // _SLOT
