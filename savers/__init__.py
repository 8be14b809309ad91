"""Savers: store checkpoints in memory, in plain files, in SQLite or in PostgreSQL; and wrap other savers."""

from typing import TYPE_CHECKING, Any, Final

from graphkit.abc import set_public_module
from savers._compression import Compression as Compression
from savers._filesystem import FileSystemSaver as FileSystemSaver
from savers._memory import MemorySaver as MemorySaver
from savers._versioned import VersionedMemorySaver as VersionedMemorySaver
from savers._wrappers import SaverWrapper as SaverWrapper, ValidatingSaver as ValidatingSaver

if TYPE_CHECKING:
    from savers._sql.postgres_saver import PostgresSaver as PostgresSaver
    from savers._sql.sqlite_saver import SqliteSaver as SqliteSaver

__all__ = [
    "Compression",
    "FileSystemSaver",
    "MemorySaver",
    "PostgresSaver",
    "SaverWrapper",
    "SqliteSaver",
    "ValidatingSaver",
    "VersionedMemorySaver",
]

_LAZY: Final = {
    "PostgresSaver": "savers._sql.postgres_saver",
    "SqliteSaver": "savers._sql.sqlite_saver",
}
"""The modules of classes that are imported when they are first used: they load a database driver."""


def __getattr__(name: str) -> Any:
    """Import a class when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(_LAZY[name]), name)
    set_public_module({"__all__": [name], name: found}, __name__)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names, even before their first use."""
    return sorted({*globals(), *__all__})


set_public_module(globals(), __name__)
