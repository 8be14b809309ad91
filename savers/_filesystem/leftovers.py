"""Removes directories and files that a process left half made or half removed."""

from __future__ import annotations

import errno
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointFormatError
from savers._filesystem import layout

if TYPE_CHECKING:
    from savers._filesystem.io import FileIO
    from savers._filesystem.layout import ThreadDirectory

_NOT_REMOVABLE: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS})
"""Why a directory cannot be removed, other than by a failing disk: it is not empty, or it is a
mount point."""
_LOGGER: Final = getLogger("graphkit")


class Leftovers:
    """The leftovers in the root directory of a store."""

    def __init__(self, io: FileIO, root: str) -> None:
        self._io = io
        self._root = root
        self.is_swept = False
        """Whether this process has removed the leftovers of other processes."""

    def sweep_once(self) -> None:
        """Sweep, unless this process has done so."""
        if not self.is_swept:
            self.sweep()

    def sweep(self) -> list[str]:
        """Remove threads that a process left half deleted; return the names of those removed.

        Each process that makes or deletes a thread does this once, and so do verify and repair. It
        does not disturb a process that is deleting a thread at this moment.
        """
        self.is_swept = True
        names = self._io.listdir(self._root)
        if layout.MARKER in names:
            for name in filter(layout.is_marker_leftover, names):
                with suppress(FileNotFoundError):
                    self._io.unlink(layout.join(self._root, name))
        return [name for name in filter(layout.is_leftover, names) if self.remove(layout.join(self._root, name))]

    def remove(self, path: str) -> bool:
        """Remove a leftover, as far as possible; return whether it was there and is gone.

        It is not a thread any more. Therefore an error must not keep callers from writing to
        another thread.
        """
        try:
            return self._io.stat(path) is not None and not remove_tree(self._io, path)
        except (OSError, CheckpointFormatError) as error:
            _LOGGER.info("%s is left of a deleted thread and cannot be removed: %s", path, error)
            return False

    def choose_path(self, thread: ThreadDirectory) -> str:
        """Return a free path to which a thread's directory can be renamed before it is removed."""
        self.remove(thread.leftover)
        if self._io.stat(thread.leftover) is None:
            return thread.leftover
        return layout.join(self._root, layout.TEMPORARY + layout.random_thread_name(thread.name))


def remove_temporary_logs(io: FileIO, directory: str) -> None:
    """Remove logs that a process began to rewrite and did not finish.

    The caller holds the write lock.
    """
    for name in io.listdir(directory):
        if name.startswith(layout.TEMPORARY):
            path = layout.join(directory, name)
            # A directory is not the store's: a writer makes only files.
            if not io.is_dir(path):
                io.unlink(path)


def remove_tree(io: FileIO, directory: str) -> list[str]:
    """Remove the directory of a thread or a namespace, with everything that is the store's.

    Follows no link. A directory in it that is not the store's is removed if it is empty, and stays
    otherwise. Other processes may remove the same files at the same time.

    Returns:
        The directories that stay.
    """
    if not io.is_dir(directory):
        with suppress(FileNotFoundError):
            io.unlink(directory)
        return []
    kept: list[str] = []
    for name in io.listdir(directory):
        path = layout.join(directory, name)
        # A link with the name of a namespace is not followed: the recursion removes it.
        if layout.is_namespace(name):
            kept += remove_tree(io, path)
        elif io.is_dir(path):
            kept += _remove_if_empty(io, path)
        else:
            with suppress(FileNotFoundError):
                io.unlink(path)
    if kept:
        return kept
    return _remove_if_empty(io, directory)


def _remove_if_empty(io: FileIO, directory: str) -> list[str]:
    """Remove a directory; return it if it cannot be removed."""
    try:
        io.rmdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno not in _NOT_REMOVABLE:
            raise
        return [directory]
    return []
