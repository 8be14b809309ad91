"""The warning about a run without a thread id on a durable saver: whoever forgets the id shares one state."""

from __future__ import annotations

import sys
import warnings
from typing import Final
from weakref import WeakValueDictionary

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import DefaultThreadWarning

_WARNED: Final[WeakValueDictionary[int, BaseCheckpointSaver]] = WeakValueDictionary()
"""The savers that the warning was given for, by id(); not a set, for a saver may be unhashable."""


def warn_of_default_thread(saver: BaseCheckpointSaver | None, config: RunnableConfig) -> None:
    """Warn, once per saver, that a run without a thread id is kept in the thread that all such runs share."""
    if config.thread_id is not None or saver is None or not saver.is_durable:
        return
    if id(saver) in _WARNED:
        return
    _WARNED[id(saver)] = saver
    warnings.warn(
        f"the run has no thread id, so it goes on from, and is stored in, the thread {config.thread!r}, which all runs "
        f'without an id share; give each its own: config={{"configurable": {{"thread_id": ...}}}}',
        DefaultThreadWarning,
        stacklevel=_frames_of_graphkit(),
    )


def _frames_of_graphkit() -> int:
    """The `stacklevel` that blames the caller of graphkit: one more than graphkit's own frames below it."""
    frame = sys._getframe(1)  # noqa: SLF001 - the documented way, where skip_file_prefixes (3.12) is not there yet
    level = 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "graphkit":
        frame = frame.f_back
        level += 1
    return level
