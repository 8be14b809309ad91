"""A bucket: the objects below one URL, and the one way to create an object that no other writer has created."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from graphkit.errors import CheckpointerConfigurationError, CheckpointStorageError, MissingDependencyError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_IN_MEMORY: Final = threading.RLock()
"""Held by each call for objects in memory: that file system of fsspec is not made for several threads of execution."""

_UNFINISHED: Final = re.compile(r"\.[0-9a-f]{32}\Z")


class Bucket:
    """The objects below one URL. Their names are relative to it, with slashes."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MissingDependencyError("fsspec", "objects") from error
        try:
            # A list that is kept would hide what other processes have created.
            fs, root = url_to_fs(url, use_listings_cache=False, **options)
        except (ImportError, TypeError, ValueError) as error:
            raise CheckpointerConfigurationError(f"{url!r} cannot be used: {error}") from error
        if set(root).intersection("*?["):
            raise CheckpointerConfigurationError(f"the path of {url!r} must not contain *, ? or [")
        self.url = url
        self._fs: AbstractFileSystem = fs
        self._root = root.rstrip("/")
        protocols = fs.protocol
        if isinstance(protocols, str):
            protocols = (protocols,)
        self._is_local = "file" in protocols
        self._guard = _IN_MEMORY if "memory" in protocols else nullcontext()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _explain(self, name: str, operation: str) -> Iterator[None]:
        try:
            with self._guard:
                yield
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as error:
            raise CheckpointStorageError(f"{self.url}/{name}", operation, error) from error

    def scan(self, directory: str) -> list[tuple[str, int]]:
        """Return the names of the objects and directories in a directory, with the sizes of the objects, sorted."""
        with suppress(FileNotFoundError), self._explain(directory, "list"):
            entries = self._fs.ls(self._path(directory), detail=True)
            # A name with a dot is a local file that `create` has not linked yet.
            named = [(entry["name"].rstrip("/").rpartition("/")[2], entry["size"] or 0) for entry in entries]
            return sorted(entry for entry in named if not entry[0].startswith("."))
        return []

    def create(self, name: str, data: bytes) -> None:
        """Create an object, all of it at once.

        Raises:
            FileExistsError: it is there already. Nothing was changed.
            CheckpointStorageError: the storage refused.
        """
        with self._explain(name, "write"):
            if not self._is_local:
                self._fs.pipe_file(self._path(name), data, mode="create")
                return
            # fsspec writes to a local file little by little, and readers would see a part of it.
            written = self._path(f".{uuid4().hex}")
            self._fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(written, data)
            try:
                os.link(written, self._path(name))
            finally:
                self._fs.rm_file(written)

    def exists(self, name: str) -> bool:
        """Return whether there is an object with a name."""
        with self._explain(name, "look for"):
            return bool(self._fs.exists(self._path(name)))

    def read(self, names: Sequence[str]) -> list[bytes]:
        """Return the bytes of several objects.

        Raises:
            FileNotFoundError: one of them is gone.
        """
        paths = [self._path(name) for name in names]
        with self._explain(names[0], "read"):
            return list(self._fs.cat_ranges(paths, None, None, on_error="raise"))

    def empty(self, name: str) -> None:
        """Remove the bytes of an object, whose name stays taken."""
        with self._explain(name, "empty"):
            self._fs.pipe_file(self._path(name), b"")

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        with suppress(FileNotFoundError), self._explain(name, "remove"):
            self._fs.rm_file(self._path(name))

    def remove_directory(self, directory: str) -> None:
        """Remove a directory without objects, where directories are more than a part of names."""
        if self._is_local:
            with suppress(OSError):
                Path(self._path(directory)).rmdir()

    def list_unfinished(self) -> list[str]:
        """Return the local files that `create` has not linked yet, or whose process has died before."""
        if not self._is_local:
            return []
        with suppress(FileNotFoundError), self._explain("", "list"):
            names = [path.rpartition("/")[2] for path in self._fs.ls(self._path(""), detail=False)]
            return [name for name in names if _UNFINISHED.match(name)]
        return []

    def measure(self, directory: str) -> tuple[int, float]:
        """Return the bytes of all objects below a directory, and the time of the last write, in seconds since 1970."""
        with self._explain(directory, "list"):
            found = self._fs.find(self._path(directory), detail=True)
            written = (self._fs.modified(path).timestamp() for path in found)
            return sum(entry["size"] for entry in found.values()), max(written, default=0.0)
