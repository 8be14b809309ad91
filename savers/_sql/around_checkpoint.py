"""The part of a statement that selects the records around a checkpoint."""

from __future__ import annotations

from typing import Final

PROBED: Final = 1 << 12
"""Readers look at so many bytes from the beginning of a record on, without knowing how long it is."""
_LAST_POSITION: Final = (1 << 63) - 1


def find_around(records: str, history: str, behind: int = 0) -> str:
    """Return the table `around`: the records from the keyframe of a checkpoint to the next checkpoint.

    Up to there is what was recorded with it. `found` is the position of the checkpoint. The encoded id
    of the checkpoint is a parameter.

    Args:
        records: the name of the table of records.
        history: an expression for the history.
        behind: records so many bytes behind that checkpoint are added.
    """
    # The plus keeps SQLite from walking through the history by its primary key instead of looking
    # into the index of the checkpoints. With max() and min(), PostgreSQL plans for longer.
    return (
        f"wanted AS MATERIALIZED (SELECT c.history, c.position FROM {records} AS c"
        f" WHERE c.history = {history} AND c.checkpoint = ? ORDER BY +c.position DESC LIMIT 1),"
        f" around AS (SELECT r.history, r.position, r.frame, w.position AS found FROM wanted AS w"
        f" JOIN {records} AS r ON r.history = w.history"
        f" AND r.position >= (SELECT k.position FROM {records} AS k WHERE k.history = w.history"
        " AND k.is_keyframe AND k.position <= w.position ORDER BY k.position DESC LIMIT 1)"
        f" AND r.position <= coalesce((SELECT n.position + {behind} FROM {records} AS n WHERE n.history = w.history"
        f" AND n.position > w.position AND n.checkpoint IS NOT NULL ORDER BY n.position LIMIT 1), {_LAST_POSITION}))"
    )
