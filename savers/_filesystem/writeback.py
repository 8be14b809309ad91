"""The system call sync_file_range of Linux, which starts to write what a later sync waits for."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Final

StartWriting = Callable[[int], None]
"""Starts to write the changed bytes of an open file to the disk, and does not wait for it."""

_WRITE: Final = 2
"""SYNC_FILE_RANGE_WRITE: start to write; wait neither before nor after it."""
_UNSUPPORTED: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP, errno.EPERM})
"""How a system, a file system or a sandbox says that it does not have the call."""


def find_start_writing() -> StartWriting:
    """Return a function that calls sync_file_range; it does nothing where there is no such call.

    It raises OSError if the system could not start: a later sync need not report that again.
    """
    if sys.platform != "linux":
        return do_not_start
    import ctypes  # 10 ms to import

    try:
        call = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return do_not_start
    # Without argtypes, which would cost a microsecond: from offset 0 to the end of the file, both as
    # the 64-bit numbers that the call takes.
    zero = ctypes.c_int64(0)
    get_errno = ctypes.get_errno

    def start_writing(fd: int) -> None:
        if call(fd, zero, zero, _WRITE):
            number = get_errno()
            if number not in _UNSUPPORTED:
                raise OSError(number, os.strerror(number))

    return start_writing


def do_not_start(_fd: int) -> None:
    """Do nothing: the sync does it all."""
