"""The warning about a run without a thread id on a durable saver: all such runs share one state."""

from __future__ import annotations

import sys
import warnings
from typing import Final
from weakref import WeakValueDictionary

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import DefaultThreadWarning

_WARNED: Final[WeakValueDictionary[int, BaseCheckpointSaver]] = WeakValueDictionary()
"""The savers that the warning was given for, by id(); not a set, because a saver may be
unhashable."""


def warn_of_default_thread(saver: BaseCheckpointSaver | None, config: RunnableConfig) -> None:
    """Warn, once per saver, that all runs without a thread id are stored in the same thread."""
    if config.thread_id is not None or saver is None or not saver.is_durable:
        return
    if id(saver) in _WARNED:
        return
    _WARNED[id(saver)] = saver
    warnings.warn(
        f"the run has no thread id, so it continues and is stored in the thread {config.thread!r}, which all runs "
        f'without an id share; give each run its own: config={{"configurable": {{"thread_id": ...}}}}',
        DefaultThreadWarning,
        stacklevel=_stacklevel_of_caller(),
    )


def _stacklevel_of_caller() -> int:
    """Return the `stacklevel` that attributes a warning to the caller of graphkit."""
    # The documented way to skip frames, `skip_file_prefixes`, needs Python 3.12.
    frame = sys._getframe(1)  # noqa: SLF001
    level = 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "graphkit":
        frame = frame.f_back
        level += 1
    return level
