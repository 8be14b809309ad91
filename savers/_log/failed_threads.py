"""What an operation on many threads does when it fails on some of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointKeyError,
    CheckpointStorageError,
)

_MAX_NAMES: Final = 20
"""How many threads an error names."""


def is_out_of_resources(error: Exception) -> bool:
    """Return whether an error is due to the process, and not to the files of a thread."""
    return isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class FailedThreads:
    """The threads on which an operation has failed; it continues with the others."""

    def __init__(self, operation: str, *, fatal: tuple[type[Exception], ...] = ()) -> None:
        """Begin without failures.

        Args:
            operation: what is done with each thread, as a verb.
            fatal: errors that all other threads would meet, too: they end the operation.
        """
        self._operation = operation
        self._fatal = fatal
        self._errors: dict[str, CheckpointerError | OSError] = {}

    @contextmanager
    def catch(self, thread_id: str) -> Iterator[None]:
        """Record an error of a thread instead of raising it."""
        try:
            yield
        except (CheckpointerError, OSError) as error:
            if is_out_of_resources(error) or isinstance(error, self._fatal):
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
            reason = f"{error.reason} ({text})"
            raise CheckpointKeyError(error.path, error.key_id, reason, has_keys=error.has_keys) from error
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
