"""Restores released histories: each is put as the active history, and then released."""

from __future__ import annotations

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import CheckpointConflictError


def release_as(saver: BaseCheckpointSaver, thread_id: str, version: int) -> None:
    """Release the active history of a thread, which must become a certain version.

    Raises:
        CheckpointConflictError: it became another one.
    """
    tag = saver.release(RunnableConfig(thread_id))
    if tag.version != version:
        raise CheckpointConflictError(
            thread_id, f"its history was released as version {tag.version} and should be version {version}"
        )
