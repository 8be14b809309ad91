"""Where an AuditedSaver sends its entries, if that is no AuditLog: a logger, or a function."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, final

from graphkit.errors import CheckpointerError, CheckpointStorageError
from savers._audit.digests import Digester
from savers._audit.entries import FORMAT, Entry, now, to_json

Send = Callable[[Entry], object]


@final
class Sink:
    """Sends entries to a function, numbered but not chained: what it does with them, it answers for.

    A pickle holds the function, so it must be one that pickles.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.digester = Digester(None)
        self._seq = 0
        self._gaps = 0
        self._make_mutex()
        _SINKS.add(self)

    def _make_mutex(self) -> None:
        self._mutex = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Sink, (self._send,)

    def append(self, fields: Entry, *, is_lasting: bool) -> int:  # noqa: ARG002 - the function decides
        """Send an entry; return its number.

        Raises:
            CheckpointStorageError: the function has raised an exception.
        """
        with self._mutex:
            gaps, self._gaps = self._gaps, 0
            self._seq += 1
            seq = self._seq
        entry = {**fields, "format": FORMAT, "seq": seq, "time": now()}
        if gaps:
            entry["gaps"] = gaps
        try:
            self._send(entry)
        except CheckpointerError:
            self._note_gaps(gaps)
            raise
        except Exception as error:
            self._note_gaps(gaps)
            reason = error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            raise CheckpointStorageError(repr(self._send), "write to", reason) from error
        return seq

    def note_gap(self) -> None:
        """Note that an entry could not be sent; the next one says so in its field `gaps`."""
        self._note_gaps(1)

    def _note_gaps(self, count: int) -> None:
        with self._mutex:
            self._gaps += count


_SINKS: Final[weakref.WeakSet[Sink]] = weakref.WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held the mutex.
    for sink in list(_SINKS):
        sink._make_mutex()  # noqa: SLF001 - of this module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@final
class LoggerSink:
    """Logs entries at the level INFO as JSON, and as the attribute `audit` of the log record.

    What handlers raise, the module `logging` catches: an operation is not refused because of it.
    """

    def __init__(self, logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._logger: Final = logger

    def __repr__(self) -> str:
        return repr(self._logger)

    def __call__(self, entry: Entry) -> None:
        self._logger.info("%s", to_json(entry), extra={"audit": entry})
