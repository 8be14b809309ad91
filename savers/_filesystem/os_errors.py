"""Errors of the file system, as callers of the saver see them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointKeyError,
    CheckpointStorageError,
)

P = ParamSpec("P")
T = TypeVar("T")

_MAX_NAMES: Final = 20
"""How many threads an error names."""


def wrap_os_errors(operation: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a method so that an OSError becomes a CheckpointStorageError.

    The object of the method has a `_store`.

    Args:
        operation: what the method does with the path in the error, as a verb.
    """

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def call_method(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except CheckpointerError:
                raise
            except OSError as error:
                root = args[0]._store.root  # type: ignore[attr-defined]  # noqa: SLF001
                raise wrap_os_error(error, operation, root) from error

        return call_method

    return decorate


def wrap_os_error(error: OSError, operation: str, root: str) -> CheckpointStorageError:
    """Return the error that callers of the saver see.

    Args:
        error: an error of the file system.
        operation: what the caller was doing with the path in the error, as a verb.
        root: the directory of the store, in case the error has no path.
    """
    return CheckpointStorageError(os.fsdecode(error.filename or root), operation, error)


def is_out_of_resources(error: Exception) -> bool:
    """Return whether an error is due to the process, and not to the files of a thread."""
    return isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class FailedThreads:
    """The threads of a store on which an operation has failed; it continues with the others."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._errors: dict[str, CheckpointerError | OSError] = {}

    @contextmanager
    def catch(self, thread_id: str) -> Iterator[None]:
        """Record an error of a thread instead of raising it."""
        try:
            yield
        except (CheckpointerError, OSError) as error:
            if is_out_of_resources(error):
                raise
            self._errors[thread_id] = error

    def raise_if_any(self) -> None:
        """Raise one error of the kind of the first, which names the threads that failed."""
        if not self._errors:
            return
        error = next(iter(self._errors.values()))
        text = f"cannot {self._operation} these threads, all others are done: {self._list_names()}"
        if isinstance(error, CheckpointCorruptionError):
            raise CheckpointCorruptionError(
                error.path,
                error.offset,
                f"{error.reason} ({text})",
            ) from error
        if isinstance(error, CheckpointKeyError):
            raise CheckpointKeyError(error.path, error.key_id, f"{error.reason} ({text})") from error
        if isinstance(error, CheckpointFormatError):
            raise CheckpointFormatError(error.path, f"{error.reason} ({text})") from error
        if isinstance(error, OSError):
            cause = OSError(error.errno, f"{error.strerror or error} ({text})")
            path = getattr(error, "path", None) or error.filename or ""
            raise CheckpointStorageError(os.fsdecode(path), self._operation, cause) from error
        raise CheckpointerError(f"{text}; the first: {error}") from error

    def _list_names(self) -> str:
        names = [f"{thread_id:.80}" for thread_id in list(self._errors)[:_MAX_NAMES]]
        more = len(self._errors) - len(names)
        return f"{names} and {more} more" if more else f"{names}"
