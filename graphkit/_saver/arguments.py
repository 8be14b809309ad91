"""What the arguments of a saver's methods may be: threads and limits."""

from __future__ import annotations

import operator
import sys
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


def check_limit(limit: int, least: int = 0) -> int:
    """Return the most results that a caller wants; no sequence has more than `sys.maxsize`.

    Raises:
        ValueError: it is not a whole number, or below the least.
    """
    try:
        number = operator.index(limit)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"limit must be a whole number, at least {least}, not {limit!r}")
    return min(number, sys.maxsize)
