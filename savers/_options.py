"""Checks of the options that several savers have."""

from __future__ import annotations

from typing import Literal

from graphkit.errors import CheckpointerConfigurationError

Fsync = Literal["always", "never"] | float


def parse_fsync(fsync: object) -> Fsync:
    """Return the option `fsync`, checked.

    Raises:
        CheckpointerConfigurationError: it is neither a mode nor a positive number of seconds.
    """
    if fsync == "always":
        return "always"
    if fsync == "never":
        return "never"
    if isinstance(fsync, int | float) and not isinstance(fsync, bool) and fsync > 0:
        return float(fsync)
    raise CheckpointerConfigurationError(f'fsync must be "always", "never" or seconds above zero, not {fsync!r}')


def check_lock_timeout(lock_timeout: object) -> None:
    """Check the option `lock_timeout`.

    Raises:
        CheckpointerConfigurationError: it is no number of seconds from zero on.
    """
    is_number = isinstance(lock_timeout, int | float) and not isinstance(lock_timeout, bool)
    if not is_number or not lock_timeout >= 0:  # type: ignore[operator]
        raise CheckpointerConfigurationError(f"lock_timeout must be seconds, not {lock_timeout!r}")


def check_lease(lease: object) -> None:
    """Check the option `lease`.

    Raises:
        CheckpointerConfigurationError: it is no finite number of seconds above zero.
    """
    is_number = isinstance(lease, int | float) and not isinstance(lease, bool)
    if not is_number or not 0 < lease < float("inf"):  # type: ignore[operator]
        raise CheckpointerConfigurationError(f"lease must be seconds above zero, not {lease!r}")
