"""Chooses how LangGraph's checkpointer uses a saver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphkit.errors import CheckpointerConfigurationError
from savers._filesystem import FileSystemSaver
from savers.langgraph.file_histories import FileHistories

if TYPE_CHECKING:
    from graphkit.abc import BaseCheckpointSaver
    from savers.langgraph.histories import Histories


def open_histories(saver: BaseCheckpointSaver) -> Histories[Any]:
    """Return the histories in a saver.

    Raises:
        CheckpointerConfigurationError: there is no implementation for such a saver.
    """
    if isinstance(saver, FileSystemSaver):
        return FileHistories(saver)
    raise CheckpointerConfigurationError(f"LangGraph's checkpointer needs a FileSystemSaver, not {saver!r}")
