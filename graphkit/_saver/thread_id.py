"""Thread ids: what names a thread in the methods of a saver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphkit._records.config import RunnableConfig

ThreadLike = str | RunnableConfig | Mapping[str, Any] | None
"""A thread: its id, or a config that names it; None is the default thread."""


def resolve_thread_id(thread: ThreadLike) -> str:
    """Return the thread id of an id or a config; that of the default thread for None."""
    if isinstance(thread, str):
        return thread
    return RunnableConfig.of(thread).thread
