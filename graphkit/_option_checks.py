"""Checks of options that are numbers: what a valid one is, and how an error says so."""

from __future__ import annotations

import math


def check_seconds(name: str, value: object, error: type[Exception] = ValueError) -> None:
    """Check a duration: a finite number of seconds above 0.

    Raises:
        error: it is something else.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:  # type: ignore[operator]
        raise error(f"{name} must be a number of seconds above 0, not {value!r}")


def check_count(name: str, value: object, error: type[Exception] = ValueError) -> None:
    """Check a limit: an int of at least 1.

    Raises:
        error: it is something else.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < 1:  # type: ignore[operator]
        raise error(f"{name} must be an int of at least 1, not {value!r}")
