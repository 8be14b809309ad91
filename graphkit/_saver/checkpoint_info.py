"""What a listing shows of a checkpoint, and the metadata keys of the default methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.writes import derive_stop
from graphkit._values.frozen import FrozenDict

WRITES_KEY: Final = "graphkit:writes"
"""The metadata key under which the default methods store pending writes."""
TAGS_KEY: Final = "graphkit:tags"
"""The metadata key under which the default methods store tags."""


def make_checkpoint_info(
    config: RunnableConfig, checkpoint: Checkpoint, writes: Mapping[str, Any], tags: tuple[str, ...]
) -> CheckpointInfo:
    """Return what a listing shows of an older checkpoint. The size is 0, because only the store knows it.

    For the latest checkpoint of a history, `with_status` adds the status.

    Args:
        config: names the thread and the namespace.
        checkpoint: the checkpoint.
        writes: its pending writes, from which follows why a run stopped there.
        tags: its tags.
    """
    return CheckpointInfo(
        thread_id=config.thread,
        checkpoint_ns=config.checkpoint_ns,
        id=checkpoint.id,
        parent_id=checkpoint.parent_id,
        node_id=checkpoint.node_id,
        next_node_id=checkpoint.next_node_id,
        created_at=checkpoint.created_at,
        size=0,
        status="",
        tags=tags,
        metadata=public_metadata(checkpoint.metadata),
        stopped=derive_stop(checkpoint.next_node_id, writes, checkpoint.metadata),
    )


def public_metadata(metadata: FrozenDict) -> FrozenDict:
    """Return metadata without the keys of the default methods."""
    if WRITES_KEY not in metadata and TAGS_KEY not in metadata:
        return metadata
    hidden = (WRITES_KEY, TAGS_KEY)
    return FrozenDict({key: value for key, value in metadata.items() if key not in hidden})
