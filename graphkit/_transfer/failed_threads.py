"""What a copy of several threads does when it fails on some of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Final, final

from graphkit.errors import (
    AccessDeniedError,
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointKeyError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    ThreadBusyError,
)

_OF_ONE_THREAD: Final = (
    AccessDeniedError,
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointFormatError,
    CheckpointKeyError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    ThreadBusyError,
)
"""Errors that the next thread need not meet. A full disk or a lost connection would stop all others, too."""
_MAX_NAMES: Final = 20
"""How many threads an error names."""


@final
class FailedThreads:
    """The threads that could not be copied; the copy continues with the others."""

    def __init__(self, total: int) -> None:
        """Begin without failures.

        Args:
            total: how many threads are to be copied.
        """
        self._total = total
        self._thread_ids: list[str] = []
        # Of the others no error is kept: the frames of its traceback hold the states of its thread.
        self._first: CheckpointerError | None = None
        self.has_waited = False
        """Whether a run held a thread until the copy gave up."""

    @contextmanager
    def catch(self, thread_id: str) -> Iterator[None]:
        """Record an error of one thread instead of raising it."""
        try:
            yield
        except _OF_ONE_THREAD as error:
            self._thread_ids.append(thread_id)
            if self._first is None:
                self._first = error
            self.has_waited = self.has_waited or isinstance(error, ThreadBusyError)

    def raise_if_any(self) -> None:
        """Raise the first error; of several threads, its message also says which were not copied."""
        first = self._first
        if first is None:
            return
        if self._total == 1:
            raise first
        error = copy(first)
        error.args = (*first.args[:-1], f"{first} ({self._describe()})")
        raise error from first

    def _describe(self) -> str:
        names = ", ".join(f"{thread_id:.80}" for thread_id in self._thread_ids[:_MAX_NAMES])
        unnamed = len(self._thread_ids) - _MAX_NAMES
        if unnamed > 0:
            names = f"{names} and {unnamed} more"
        copied = "none"
        if self._total > len(self._thread_ids):
            copied = "all others"
        return f"not copied: {names}; copied: {copied}"
