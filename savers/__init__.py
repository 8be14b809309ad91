"""Savers: store checkpoints in memory, in memory with versions, or in plain files; and wrap other savers."""

from graphkit.abc import set_public_module
from savers._compression import Compression as Compression
from savers._filesystem import FileSystemSaver as FileSystemSaver
from savers._memory import MemorySaver as MemorySaver
from savers._versioned import VersionedMemorySaver as VersionedMemorySaver
from savers._wrappers import SaverWrapper as SaverWrapper, ValidatingSaver as ValidatingSaver

__all__ = ["Compression", "FileSystemSaver", "MemorySaver", "SaverWrapper", "ValidatingSaver", "VersionedMemorySaver"]

set_public_module(globals(), __name__)
