"""Savers: store checkpoints in memory, files, SQLite, PostgreSQL or object storage; and wrap other savers."""

from typing import TYPE_CHECKING, Any, Final

from graphkit.saver_kit import import_when_used

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
    "graphkit.saver_kit": ["acting_as"],
    "savers._audit.chain": ["AuditProblem", "AuditReport"],
    "savers._audit.entries": ["AuditHead", "AuditRecord"],
    "savers._audit.log": ["AuditLog"],
    "savers._cipher": ["DESTROYED", "KeyFile", "SubjectKeys"],
    "savers._compression": ["Compression"],
    "savers._filesystem": ["FileSystemSaver"],
    "savers._memory": ["MemorySaver", "VersionedMemorySaver"],
    "savers._objects": ["ObjectStoreSaver"],
    "savers._sql.saver": ["PostgresSaver", "SqliteSaver"],
    "savers._wrappers.access": ["AccessControlledSaver"],
    "savers._wrappers.audited": ["AuditedSaver"],
    "savers._wrappers.base": ["SaverWrapper", "ValidatingSaver"],
}
"""The modules of the public names. Each is imported when it is first used: a process needs one saver as a rule."""

_import_name, __dir__ = import_when_used(
    globals(), *(dict.fromkeys(names, module) for module, names in _MODULES.items())
)


def __getattr__(name: str) -> Any:
    """Import a class, or the module of the policies, when it is first used."""
    if name == "policies":
        from importlib import import_module

        return import_module("savers.policies")
    return _import_name(name)
