"""LangGraph's checkpoints in graphkit's savers, its items and cached values in files (extra `langgraph`)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

from graphkit.errors import MissingDependencyError
from graphkit.saver_kit import run_in_thread, set_public_module

if TYPE_CHECKING:
    from savers.langgraph.cache import FileSystemCache as FileSystemCache
    from savers.langgraph.checkpoint_savers import (
        FileSystemCheckpointSaver as FileSystemCheckpointSaver,
        PostgresCheckpointSaver as PostgresCheckpointSaver,
        SqliteCheckpointSaver as SqliteCheckpointSaver,
    )
    from savers.langgraph.entry_log import EntriesReport as EntriesReport
    from savers.langgraph.exporting import (
        ExportReport as ExportReport,
        export_langgraph_sqlite as export_langgraph_sqlite,
    )
    from savers.langgraph.importing import (
        ImportReport as ImportReport,
        import_langgraph_postgres as import_langgraph_postgres,
        import_langgraph_sqlite as import_langgraph_sqlite,
    )
    from savers.langgraph.saver import CheckpointSaver as CheckpointSaver
    from savers.langgraph.store import FileSystemStore as FileSystemStore

__all__ = [
    "CheckpointSaver",
    "EntriesReport",
    "ExportReport",
    "FileSystemCache",
    "FileSystemCheckpointSaver",
    "FileSystemStore",
    "ImportReport",
    "PostgresCheckpointSaver",
    "SqliteCheckpointSaver",
    "checkpointer",
    "export_langgraph_sqlite",
    "import_langgraph_postgres",
    "import_langgraph_sqlite",
]

_MODULES: Final = {
    "CheckpointSaver": "saver",
    "EntriesReport": "entry_log",
    "ExportReport": "exporting",
    "FileSystemCache": "cache",
    "FileSystemCheckpointSaver": "checkpoint_savers",
    "FileSystemStore": "store",
    "ImportReport": "importing",
    "PostgresCheckpointSaver": "checkpoint_savers",
    "SqliteCheckpointSaver": "checkpoint_savers",
    "export_langgraph_sqlite": "exporting",
    "import_langgraph_postgres": "importing",
    "import_langgraph_sqlite": "importing",
}
"""The module of each public name that is not defined here."""


@asynccontextmanager
async def checkpointer() -> AsyncIterator[FileSystemCheckpointSaver]:
    """Open the checkpointer for LangGraph's Agent Server, in the directory that GRAPHKIT_DIR names.

    In langgraph.json:

        "checkpointer": {"path": "savers.langgraph.checkpointer"}

    The server enters this context when it starts, and leaves it when it stops. The options are the
    defaults of FileSystemCheckpointSaver; write such a function yourself for others.

    Raises:
        CheckpointerConfigurationError: GRAPHKIT_DIR is missing, or what it names cannot be used.
        MissingDependencyError: LangGraph is not installed.
    """
    # Defined here, because the server looks for it in the dictionary of the module.
    try:
        import langgraph.checkpoint.base  # noqa: F401 - checks that the package is installed
    except ImportError as error:
        raise MissingDependencyError("langgraph", "langgraph") from error
    from savers.langgraph.checkpoint_savers import open_from_environment

    async with await run_in_thread(open_from_environment, os.environ) as saver:
        yield saver


def __getattr__(name: str) -> object:
    """Import a public name, and LangGraph with it, at its first use.

    The import of LangGraph takes 300 ms. If LangGraph is not installed, every name is a stand-in
    that raises MissingDependencyError when it is called. An application that only imports the name,
    for an option that its user did not choose, does not fail.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import langgraph.checkpoint.base  # noqa: F401 - checks that the package is installed
    except ImportError as error:
        # Not stored in globals(): the package may be installed while this process runs.
        return _make_stand_in(name, error)
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    set_public_module(globals(), __name__)
    return value


def __dir__() -> list[str]:
    """List the public names, even before their first use."""
    return sorted({*globals(), *__all__})


def _make_stand_in(name: str, cause: ImportError) -> object:
    """Make the stand-in for a public name while LangGraph is not installed."""

    def refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        raise MissingDependencyError("langgraph", "langgraph") from cause

    if name[0].isupper():
        # A class, so that applications can subclass it and name it in annotations. __new__ raises
        # the error, because a subclass may have an __init__ of its own.
        return type(name, (), {"__module__": __name__, "__new__": refuse})
    refuse.__name__ = name
    refuse.__qualname__ = name
    return refuse
