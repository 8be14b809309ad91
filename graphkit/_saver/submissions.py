"""Submitted runs: what `operations.submit` stores, and what the run begins with.

A submitted run is one checkpoint at the end of its thread, before the first node: the state of the
thread, and in its metadata the input. Every saver stores that with a single put. The run that
begins stores its own checkpoint after it, as one that starts from an input does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from graphkit._records.config import START

SUBMIT: Final = "graphkit:submit"
"""The key of the submission in the metadata of its checkpoint: {input, at, key, is_new}."""
GRAPH_ID: Final = "graphkit:graph_id"
"""A metadata key: the id of the graph that the run was submitted to. Its later checkpoints have it,
too, because a worker may serve several graphs with the same nodes and edges."""

SCHEDULE_THREADS: Final = "graphkit:schedule:"
"""How the ids of the threads begin that are schedules: they hold no runs, and are no idle threads."""


def is_schedule(thread_id: str) -> bool:
    """Return whether a thread is a schedule, which listings for people and `delete_idle` leave out."""
    return thread_id.startswith(SCHEDULE_THREADS)


class Submission(NamedTuple):
    """A run that was submitted."""

    input: Mapping[str, Any]
    """The input, packed by `pack_if_marked`."""
    at: datetime | None
    """When the run may begin; None: at once."""
    key: str | None
    """Another submission with this key to this thread is the same one."""
    is_new: bool
    """Whether the thread had no checkpoint, so that the state begins with the defaults of the channels."""

    @classmethod
    def find(cls, next_node_id: str | None, metadata: Mapping[str, Any]) -> Submission | None:
        """Return the submission that a checkpoint is; None if it is another one."""
        if not is_queued(next_node_id, metadata):
            return None
        # A caller's metadata may have the key, with any value.
        stored = metadata[SUBMIT]
        if not isinstance(stored, Mapping) or not isinstance(stored.get("input"), Mapping):
            return None
        at = stored.get("at")
        if not isinstance(at, datetime) or at.tzinfo is None:
            at = None
        return cls(stored["input"], at, stored.get("key"), stored.get("is_new") is True)

    def is_due(self, now: datetime) -> bool:
        """Return whether the run may begin."""
        return self.at is None or self.at <= now


def is_queued(next_node_id: str | None, metadata: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is a submission: no other one leads to START."""
    return SUBMIT in metadata and next_node_id == START
