"""One visit of a node: what `interrupt()` inside it finds, and which run locks the calling code holds."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, Protocol, final

from graphkit.errors import GraphRunnerError, ThreadBusyError


class GraphInterrupt(BaseException):
    """What `interrupt()` raises: the run stops here and is resumed by running the node again.

    A BaseException, so that a node's `except Exception` lets it pass. A node may raise it itself.
    """

    def __init__(self, payload: Any = None) -> None:
        self.payload = payload
        super().__init__(payload)


class Journal(Protocol):
    """Where the visits of a run keep what must outlive them; the engine's."""

    def place(self, visit: NodeContext) -> str:
        """Names a visit: the same again when it is repeated after a crash, and no other's."""
        ...

    def recorded(self, visit: NodeContext, key: str) -> tuple[bool, Any]:
        """Whether something is recorded under a key of a visit, and what."""
        ...

    def record(self, visit: NodeContext, key: str, value: Any) -> Any:
        """Record a value at once; returns it as it will be read."""
        ...

    def note(self, visit: NodeContext, type: str, level: str, data: dict[str, Any]) -> None:
        """Tell the observers."""
        ...


class NodeContext:
    """A node is being run; or, with no node id, an edge or a hook is asked, which can neither wait nor record.

    Attributes:
        answers: the human's answers of earlier stops in this visit, in the order of the `interrupt()` calls.
        asked: how many `interrupt()` calls this attempt has made.
        attempt: which attempt of this visit is running, from 1.
        outputs: what the node dispatched into the stream.
    """

    __slots__ = ("answers", "asked", "attempt", "held", "journal", "key", "node_id", "outputs")

    def __init__(
        self,
        node_id: str,
        answers: tuple[Any, ...],
        held: frozenset[object],
        key: str = "",
        journal: Journal | None = None,
    ) -> None:
        self.node_id = node_id
        self.answers = answers
        self.asked = 0
        self.attempt = 1
        self.held = held
        """The run locks that the run holds, and those of the runs around it; see `held_locks`."""
        self.key = key
        """Tells this visit from every other of the thread, and is the same when it is repeated after a crash."""
        self.journal = journal
        self.outputs: list[Any] = []

    def begin(self, attempt: int) -> None:
        """Start over: what the attempt before asked and dispatched is as if it had not been."""
        self.attempt = attempt
        self.asked = 0
        self.outputs.clear()

    @property
    def has_open_question(self) -> bool:
        """Whether this attempt has called `interrupt()` without an answer to return, so that it has raised."""
        return self.asked > len(self.answers)

    def note(self, type: str, level: str, data: dict[str, Any]) -> None:
        """Tell the observers of the run, if it has any."""
        if self.journal is not None:
            self.journal.note(self, type, level, data)


CURRENT: Final[ContextVar[NodeContext | None]] = ContextVar("graphkit_visit", default=None)
"""The visit that the running code belongs to. Copied into threads by asyncio.to_thread and by graphkit's executors."""


@final
class HeldRunLock:
    """A run lock that the calling code took itself, with `saver.run_lock(...)`: what runs inside enters it again.

    It does so through the same saver, or a wrapper of it. Another saver object on the same store is another party.
    """

    __slots__ = ("_is_open", "_key", "_pid", "_running", "saver")

    def __init__(self, key: object, saver: object) -> None:
        self.saver = saver
        self._key = key
        self._is_open = True
        self._pid = os.getpid()
        self._running = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the lock is still held; not in the child of a fork, and not in a task that outlives the holder."""
        return self._is_open and self._pid == os.getpid()

    def take(self) -> None:
        """Let the calling code, and the tasks that it starts, enter the lock again."""
        _BY_HAND.set({**_BY_HAND.get(), self._key: self})

    def let_go(self) -> None:
        """The lock is no longer held."""
        self._is_open = False
        _BY_HAND.set({key: hold for key, hold in _BY_HAND.get().items() if hold is not self})

    @contextmanager
    def one_run(self, thread_id: str, timeout: float) -> Iterator[None]:
        """Keep the runs apart that the holder starts: two of one thread must not run at the same time here either.

        Raises:
            ThreadBusyError: another one has not ended after that time.
        """
        if not self._running.acquire(timeout=timeout):
            raise ThreadBusyError(thread_id, "another run that the holder of the lock started", timeout)
        try:
            yield
        finally:
            self._running.release()


_BY_HAND: Final[ContextVar[Mapping[object, HeldRunLock]]] = ContextVar("graphkit_by_hand", default=MappingProxyType({}))
"""The run locks that the calling code took by hand, by key. A run takes its lock in a context of its own."""


def held_locks() -> frozenset[object]:
    """The keys of the run locks held by the runs that the calling code is a node of, and of those it took by hand."""
    by_hand = [key for key, hold in _BY_HAND.get().items() if hold.is_open]
    return locks_held_by_runs().union(by_hand)


def locks_held_by_runs() -> frozenset[object]:
    """The keys of the run locks held by the runs that the calling code is a node of."""
    visit = CURRENT.get()
    return frozenset() if visit is None else visit.held


def find_held_lock(key: object) -> HeldRunLock | None:
    """The hold of a run lock that the calling code took by hand, outside any run of that thread."""
    hold = _BY_HAND.get().get(key)
    if hold is None or not hold.is_open or key in locks_held_by_runs():
        return None
    return hold


def running(what: str) -> NodeContext:
    """The visit that the calling code belongs to.

    Raises:
        GraphRunnerError: it belongs to none.
    """
    visit = CURRENT.get()
    if visit is None or not visit.node_id:
        raise GraphRunnerError(f"{what} works inside a node of a running graph only")
    return visit


def interrupt(payload: Any = None) -> Any:
    """Stop the run here and ask a human; returns the answer once the run is resumed with one.

    The node is run again from its start, so what stands before this call runs again too; every call that was answered
    returns its answer at once, by the order of the calls.

    Args:
        payload: what the human should see; stored, so it must be storable.

    Raises:
        GraphInterrupt: caught by the engine.
        GraphRunnerError: called outside a node.
    """
    visit = running("interrupt()")
    index = visit.asked
    visit.asked += 1
    if index < len(visit.answers):
        return visit.answers[index]
    raise GraphInterrupt(payload)
