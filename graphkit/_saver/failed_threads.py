"""What an operation on many threads does when it fails on some of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Final, TypeVar, final

from graphkit._saver.capabilities import HasBaseDirectory
from graphkit.errors import CheckpointerError, CheckpointStorageError, ThreadBusyError

_MAX_NAMES: Final = 20
"""How many threads a message names."""
_OUT_OF_RESOURCES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_Result = TypeVar("_Result")


@final
class FailedThreads:
    """The threads on which an operation failed; it continues with the others."""

    def __init__(
        self,
        operation: str,
        saver: object = None,
        *,
        fatal: tuple[type[Exception], ...] = (),
        passes_over: tuple[type[Exception], ...] = (),
    ) -> None:
        """Begin without failures.

        Args:
            operation: what is done with each thread, as a verb.
            saver: that of the threads; see `concerns_all_threads`.
            fatal: errors that all other threads would meet, too: they end the operation.
            passes_over: errors that are no failure: nothing is to be done with their thread.
        """
        self._operation = operation
        self._saver = saver
        self._fatal = fatal
        self._passes_over = passes_over
        self._tried: set[str] = set()
        """The threads on which the operation has begun."""
        self._thread_ids: list[str] = []
        """Those of them on which it failed."""
        # Of the others no error is kept: the frames of its traceback hold the states of its thread.
        self._first: Exception | None = None
        self.has_waited = False
        """Whether a run held a thread until the operation gave up."""

    @contextmanager
    def catch(self, thread_id: str) -> Iterator[None]:
        """Record an error of one thread instead of raising it."""
        self._tried.add(thread_id)
        try:
            yield
        except self._passes_over:
            pass
        except (CheckpointerError, OSError) as error:
            kind = _kind_of(error)
            if issubclass(kind, self._fatal) or concerns_all_threads(error, self._saver):
                raise
            self.add(thread_id, error)

    def add(self, thread_id: str, error: Exception) -> None:
        """Record an error of one thread, inside `catch`."""
        self._thread_ids.append(thread_id)
        if self._first is None:
            self._first = error
        self.has_waited = self.has_waited or isinstance(error, ThreadBusyError)

    def change_each(
        self,
        thread_ids: Sequence[str],
        change: Callable[[str], _Result],
        progress: Callable[[int, int, str], object] | None,
    ) -> list[_Result]:
        """Change threads one after another, and raise at the end if some could not be changed.

        Args:
            thread_ids: the threads.
            change: changes one of them.
            progress: called after each thread with how many are done, how many there are, and its id.

        Returns:
            What `change` returned, for each thread that was changed.
        """
        results: list[_Result] = []
        for done, thread_id in enumerate(thread_ids, 1):
            with self.catch(thread_id):
                results.append(change(thread_id))
            if progress is not None:
                progress(done, len(thread_ids), thread_id)
        self.raise_if_any()
        return results

    def raise_if_any(self) -> None:
        """Raise the first error; of several threads, its message also names those that failed."""
        first = self._first
        if first is None:
            return
        total = len(self._tried)
        if total == 1:
            raise first
        error = first
        if isinstance(first, OSError) and not isinstance(first, CheckpointerError):
            error = CheckpointStorageError(os.fsdecode(first.filename or ""), self._operation, first)
        names = name_threads(self._thread_ids)
        others = "no other is done" if len(self._thread_ids) == total else "all others are done"
        described = copy(error)
        *numbers, message = error.args or [""]
        described.args = (*numbers, f"{message} (cannot {self._operation} {names}; {others})")
        raise described from first


def name_threads(thread_ids: Sequence[str]) -> str:
    """Return the ids of threads for a message: the first of them, and how many more there are."""
    names = ", ".join(map(_name_thread, thread_ids[:_MAX_NAMES]))
    unnamed = len(thread_ids) - _MAX_NAMES
    if unnamed > 0:
        names = f"{names} and {unnamed} more"
    return names


def _name_thread(thread_id: str) -> str:
    """Return the beginning of an id, quoted if it is empty or has characters that cannot be printed."""
    shown = f"{thread_id:.80}"
    is_plain = shown != "" and shown.isprintable()  # a line break would look like another message of a log
    return shown if is_plain else repr(shown)


def without_option(error: Exception) -> Exception:
    """Return an error whose text names no option of a saver, for readers who cannot set one."""
    if not isinstance(error, CheckpointerError) or not error.option:
        return error
    shown = copy(error)
    shown.option = ""
    return shown


def concerns_all_threads(error: Exception, saver: object = None) -> bool:
    """Return whether an error that one thread met would meet all others, too.

    It is due to the process, which has no memory or no files left. Or it is a storage error of a saver that keeps no
    files: its database or bucket cannot be used. Each thread has files of its own (None: it may have).
    """
    if not isinstance(error, OSError):
        return False
    if error.errno in _OUT_OF_RESOURCES:
        return True
    keeps_files = saver is None or isinstance(saver, HasBaseDirectory)
    return not keeps_files and issubclass(_kind_of(error), CheckpointStorageError)


def _kind_of(error: Exception) -> type[Exception]:
    """Return the type of an error; that of an OSError that the saver did not wrap is what it would be wrapped in."""
    return type(error) if isinstance(error, CheckpointerError) else CheckpointStorageError
