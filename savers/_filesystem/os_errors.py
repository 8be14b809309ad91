"""Errors of the file system, as callers of the saver see them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from graphkit.errors import CheckpointerError, CheckpointStorageError

P = ParamSpec("P")
T = TypeVar("T")


def wrap_os_errors(operation: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a method so that an OSError becomes a CheckpointStorageError.

    The object of the method has a `_store`.

    Args:
        operation: what the method does with the path in the error, as a verb.
    """

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def call_method(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except CheckpointerError:
                raise
            except OSError as error:
                root = args[0]._store.root  # type: ignore[attr-defined]  # noqa: SLF001
                raise wrap_os_error(error, operation, root) from error

        return call_method

    return decorate


def wrap_os_error(error: OSError, operation: str, root: str) -> CheckpointStorageError:
    """Return the error that callers of the saver see.

    Args:
        error: an error of the file system.
        operation: what the caller was doing with the path in the error, as a verb.
        root: the directory of the store, in case the error has no path.
    """
    return CheckpointStorageError(os.fsdecode(error.filename or root), operation, error)
