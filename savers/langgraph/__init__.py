"""LangGraph's checkpoints in graphkit's files: FileSystemCheckpointSaver (extra `langgraph`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from graphkit.errors import MissingDependencyError

if TYPE_CHECKING:
    from savers.langgraph.importing import (
        ImportReport as ImportReport,
        import_langgraph_postgres as import_langgraph_postgres,
        import_langgraph_sqlite as import_langgraph_sqlite,
    )
    from savers.langgraph.saver import FileSystemCheckpointSaver as FileSystemCheckpointSaver

__all__ = ["FileSystemCheckpointSaver", "ImportReport", "import_langgraph_postgres", "import_langgraph_sqlite"]


def __getattr__(name: str) -> object:
    """Import LangGraph when something of it is first needed: it takes 300 ms, and may not be installed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import langgraph.checkpoint.base  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingDependencyError("langgraph", "langgraph") from error
    module = "saver" if name == "FileSystemCheckpointSaver" else "importing"
    return getattr(import_module(f"{__name__}.{module}"), name)
