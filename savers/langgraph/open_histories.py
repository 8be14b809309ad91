"""Chooses how LangGraph's checkpointer uses a saver."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from savers.langgraph.contract_histories import ContractHistories

if TYPE_CHECKING:
    from graphkit.abc import BaseCheckpointSaver
    from savers.langgraph.histories import Histories


def open_histories(saver: BaseCheckpointSaver) -> Histories[Any]:
    """Return the histories in a saver."""
    # Only what the saver needs is imported. A module that is not loaded has not made the saver.
    files = sys.modules.get("savers._filesystem.saver")
    if files is not None and isinstance(saver, files.FileSystemSaver):
        from savers.langgraph.file_histories import FileHistories

        return FileHistories(saver)
    sql = sys.modules.get("savers._sql.saver")
    if sql is not None and isinstance(saver, sql.SqlSaver):
        from savers.langgraph.sql_histories import SqlHistories

        return SqlHistories(saver)
    return ContractHistories(saver)
