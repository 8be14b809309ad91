"""DriverLocks: the run locks that a driver holds while a run or an update is under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context
from typing import Final, final

from graphkit._engine.history import RunHistory
from graphkit._engine.requests import Hold
from graphkit._records.context import NodeContext
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.run_lock import find_held_lock, locks_held_by_runs
from graphkit.errors import GraphRunnerError

_DEFAULT_TIMEOUT: Final = 10.0
"""Seconds to wait for another run of the holder, if the saver has no `lock_timeout`."""

RunLock = AbstractContextManager[object]


@final
class DriverLocks:
    """The run locks of one run: that of its own saver, and those of the savers of nested graphs.

    Attributes:
        outside_context: the node context of what the run calls outside any node (edges, hooks and
            releases). A saver learns from its `held_locks` which locks the run holds.
    """

    def __init__(self, history: RunHistory, *, is_run: bool) -> None:
        """Prepare the lock of a thread; `acquire` takes it.

        Args:
            history: the history of the run or update.
            is_run: whether this is a run. An update may be made by a node of the same thread.

        Raises:
            GraphRunnerError: the calling code is a node of a run on the same thread and namespace.
        """
        held_keys = locks_held_by_runs()
        self._acquired: list[RunLock] = []
        self._prepared: RunLock | None = None
        saver = history.saver
        config = history.config
        self.outside_context = NodeContext("", (), held_keys, journal=history)
        if saver is None:
            return
        key = saver.run_lock_key(config)
        key_of_namespace = (key, config.checkpoint_ns)
        if is_run and key_of_namespace in held_keys:
            raise GraphRunnerError(
                f"thread {config.thread!r} is running this node: a node cannot run its own thread again; "
                f"use another thread_id",
                thread_id=config.thread,
            )
        lock = saver.run_lock(config)
        held = find_held_lock(key)
        if held is not None:
            lock = _enter_both(lock, held.serialize_runs(config.thread, _lock_timeout(saver)))
        self._prepared = lock
        self._hold_keys({key, key_of_namespace})

    @property
    def held_keys(self) -> frozenset[object]:
        """The keys of these locks, and of those that the outer runs hold."""
        return self.outside_context.held_locks

    def _hold_keys(self, keys: set[object]) -> None:
        # A new context, because threads of nodes may be reading the old one.
        self.outside_context = NodeContext("", (), self.held_keys | keys, journal=self.outside_context.journal)

    @property
    def must_acquire(self) -> bool:
        """Whether `acquire` may have to wait for another run."""
        return self._prepared is not None

    @property
    def is_held(self) -> bool:
        """Whether `release` has something to do."""
        return bool(self._acquired)

    def acquire(self) -> None:
        """Take the lock of the thread.

        Raises:
            ThreadBusyError: another run held it for too long.
        """
        if self._prepared is not None:
            self._enter(self._prepared)

    def acquire_another(self, request: Hold) -> None:
        """Take the lock of another saver too, unless it is held already."""
        key = request.saver.run_lock_key(request.config)
        if key not in self.held_keys:
            self._enter(request.saver.run_lock(request.config))
            self._hold_keys({key})

    def release(self) -> None:
        """Release all locks, the last one first."""
        while self._acquired:
            self._acquired.pop().__exit__(None, None, None)

    def _enter(self, lock: RunLock) -> None:
        # In a context of its own: the run holds the lock, not the code that reads its stream.
        copy_context().run(lock.__enter__)
        self._acquired.append(lock)


@contextmanager
def _enter_both(first: RunLock, second: RunLock) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(first)
        stack.enter_context(second)
        yield


def _lock_timeout(saver: BaseCheckpointSaver) -> float:
    timeout = getattr(saver, "lock_timeout", None)
    return float(timeout) if isinstance(timeout, (int, float)) else _DEFAULT_TIMEOUT
