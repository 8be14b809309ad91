"""Imports that the saver needs later, done before a fork could interrupt them."""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Lock
from typing import Final

_IMPORT_LOCK: Final = Lock()
"""Held while modules are imported, and during a fork. Otherwise, if another thread were importing a
module at the fork, the import lock of that module would stay locked in the child for ever."""
_MODULES: Final[dict[str, object]] = {}


def preload_modules() -> None:
    """Import what a put, a run lock and a fork need; called before the first of them.

    Takes 25 ms, once per process. A process that only reads needs none of it.
    """
    if _MODULES:
        return
    with _IMPORT_LOCK:
        import ctypes
        import platform

        import filelock

        # Windows has no such module, and does not need it.
        with suppress(ImportError):
            import resource

            _MODULES["resource"] = resource
        platform.node()
        _MODULES.update(ctypes=ctypes, platform=platform, filelock=filelock)


if hasattr(os, "register_at_fork"):
    # In the child, the thread of execution that took the lock continues, so it may release it.
    os.register_at_fork(
        before=_IMPORT_LOCK.acquire,
        after_in_parent=_IMPORT_LOCK.release,
        after_in_child=_IMPORT_LOCK.release,
    )
