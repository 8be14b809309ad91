"""Savers: store checkpoints in memory, files, SQLite, PostgreSQL or object storage; and wrap other savers."""

from typing import TYPE_CHECKING, Any, Final

from graphkit.saver_kit import set_public_module

if TYPE_CHECKING:
    from graphkit.saver_kit import acting_as as acting_as
    from savers import policies as policies
    from savers._audit.chain import AuditProblem as AuditProblem, AuditReport as AuditReport
    from savers._audit.entries import AuditHead as AuditHead, AuditRecord as AuditRecord
    from savers._audit.log import AuditLog as AuditLog
    from savers._cipher import DESTROYED as DESTROYED, KeyFile as KeyFile, SubjectKeys as SubjectKeys
    from savers._compression import Compression as Compression
    from savers._filesystem import FileSystemSaver as FileSystemSaver
    from savers._memory import MemorySaver as MemorySaver, VersionedMemorySaver as VersionedMemorySaver
    from savers._objects import ObjectStoreSaver as ObjectStoreSaver
    from savers._sql.saver import PostgresSaver as PostgresSaver, SqliteSaver as SqliteSaver
    from savers._wrappers.access import AccessControlledSaver as AccessControlledSaver
    from savers._wrappers.audited import AuditedSaver as AuditedSaver
    from savers._wrappers.base import SaverWrapper as SaverWrapper, ValidatingSaver as ValidatingSaver

__all__ = [
    "DESTROYED",
    "AccessControlledSaver",
    "AuditHead",
    "AuditLog",
    "AuditProblem",
    "AuditRecord",
    "AuditReport",
    "AuditedSaver",
    "Compression",
    "FileSystemSaver",
    "KeyFile",
    "MemorySaver",
    "ObjectStoreSaver",
    "PostgresSaver",
    "SaverWrapper",
    "SqliteSaver",
    "SubjectKeys",
    "ValidatingSaver",
    "VersionedMemorySaver",
    "acting_as",
    "policies",
]

_MODULES: Final = {
    "DESTROYED": "savers._cipher",
    "AccessControlledSaver": "savers._wrappers.access",
    "AuditHead": "savers._audit.entries",
    "AuditLog": "savers._audit.log",
    "AuditProblem": "savers._audit.chain",
    "AuditRecord": "savers._audit.entries",
    "AuditReport": "savers._audit.chain",
    "AuditedSaver": "savers._wrappers.audited",
    "Compression": "savers._compression",
    "FileSystemSaver": "savers._filesystem",
    "KeyFile": "savers._cipher",
    "MemorySaver": "savers._memory",
    "ObjectStoreSaver": "savers._objects",
    "PostgresSaver": "savers._sql.saver",
    "SaverWrapper": "savers._wrappers.base",
    "SqliteSaver": "savers._sql.saver",
    "SubjectKeys": "savers._cipher",
    "ValidatingSaver": "savers._wrappers.base",
    "VersionedMemorySaver": "savers._memory",
    "acting_as": "graphkit.saver_kit",
}
"""The modules of the public names. Each is imported when it is first used: a process needs one saver as a rule."""


def __getattr__(name: str) -> Any:
    """Import a class when it is first used."""
    from importlib import import_module

    if name == "policies":
        return import_module("savers.policies")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_MODULES[name]), name)
    set_public_module({"__all__": [name], name: found}, __name__)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names, even before their first use."""
    return sorted({*globals(), *__all__})
