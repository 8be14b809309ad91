"""Savers around another saver. Each wraps any saver, so they can be nested."""

from savers._wrappers.base import SaverWrapper as SaverWrapper, VersionedSaverWrapper as VersionedSaverWrapper
from savers._wrappers.validating import ValidatingSaver as ValidatingSaver

__all__ = ["SaverWrapper", "ValidatingSaver", "VersionedSaverWrapper"]
