"""LangGraph's checkpoints in graphkit's files: FileSystemCheckpointSaver (extra `langgraph`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from graphkit.abc import set_public_module
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
    """Import LangGraph when a name that needs it is first used: it takes 300 ms, and may not be installed.

    Without LangGraph every name is a stand-in, which raises MissingDependencyError when it is called. An application
    that only imports the name, for an option that its user did not choose, does not fail.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import langgraph.checkpoint.base  # noqa: F401 - only whether it is there
    except ImportError as error:
        return _stand_in(name, error)  # not stored: the package may be installed while this process runs
    module = "saver" if name == "FileSystemCheckpointSaver" else "importing"
    found = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    set_public_module(globals(), __name__)
    return found


def __dir__() -> list[str]:
    """List the public names before their first use, too."""
    return sorted({*globals(), *__all__})


def _stand_in(name: str, cause: ImportError) -> object:
    """Make what stands for a class or a function while LangGraph is not installed."""

    def refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        raise MissingDependencyError("langgraph", "langgraph") from cause

    if name[0].isupper():
        # A class, so that it can be subclassed and named in annotations. The refusal is in __new__, because a subclass
        # may have an __init__ of its own.
        return type(name, (), {"__module__": __name__, "__new__": refuse})
    refuse.__name__ = refuse.__qualname__ = name
    return refuse
