"""Checks the options that the savers on files and on databases share."""

from __future__ import annotations

import os
from threading import TIMEOUT_MAX
from typing import Final, Literal

from graphkit.errors import CheckpointerConfigurationError

Fsync = Literal["always", "never"] | float

_LONGEST_WAIT: Final = min(TIMEOUT_MAX, (1 << 31) // 1000)
"""Seconds; PostgreSQL counts milliseconds in 31 bits."""


def parse_fsync(fsync: object) -> Fsync:
    """Return the option `fsync`, checked.

    Raises:
        CheckpointerConfigurationError: it is neither a mode nor a positive number of seconds, up to about 24 days.
    """
    if fsync == "always":
        return "always"
    if fsync == "never":
        return "never"
    return _parse_seconds_above_zero('fsync must be "always", "never" or', fsync)


def parse_path(name: str, path: object) -> str:
    """Return the option with a name, a path, as text.

    Raises:
        CheckpointerConfigurationError: it is none.
    """
    text = os.fsdecode(path) if isinstance(path, (str, os.PathLike)) else ""
    if not text or "\0" in text:
        raise CheckpointerConfigurationError(f"{name} must be a path, without null characters, not {path!r}")
    return text


def parse_lock_timeout(lock_timeout: object) -> float:
    """Return the option `lock_timeout`, checked; infinity becomes about 24 days.

    Raises:
        CheckpointerConfigurationError: it is not a number of seconds, or negative.
    """
    seconds = _find_seconds(lock_timeout)
    if seconds is None or not seconds >= 0:
        raise CheckpointerConfigurationError(f"lock_timeout must be seconds, not {lock_timeout!r}")
    return float(min(seconds, _LONGEST_WAIT))


def parse_lease(lease: object) -> float:
    """Return the option `lease`, checked.

    Raises:
        CheckpointerConfigurationError: it is not a positive number of seconds, up to about 24 days.
    """
    return _parse_seconds_above_zero("lease must be", lease)


def _parse_seconds_above_zero(demand: str, value: object) -> float:
    """Return a number that may be a time to wait; `demand` begins the error for anything else."""
    seconds = _find_seconds(value)
    if seconds is None or not 0 < seconds <= _LONGEST_WAIT:
        reason = f"{demand} seconds above zero, at most {_LONGEST_WAIT}, not {value!r}"
        raise CheckpointerConfigurationError(reason)
    return float(seconds)


def _find_seconds(value: object) -> float | None:
    """Return a number as it is, for an int may be too great for a float; None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    return None
