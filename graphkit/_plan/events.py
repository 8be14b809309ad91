"""What observers are told: Event, the table of its types, and the Outbox through which a run posts them.

Ports the observability of go-agents-orchestration (its event types and tau's levels). A run never waits for an
observer: each is called from a thread of its own, and what it does, raises or never finishes changes no run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from logging import getLogger
from queue import SimpleQueue
from threading import Thread, current_thread
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, final, runtime_checkable

_LOGGER: Final = getLogger("graphkit.observers")
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_ABOVE_ALL: Final = 99


@final
class Level(StrEnum):
    """How much an event matters. Ordered: `event.level >= "warning"` works, with a Level or its text."""

    VERBOSE = "verbose"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """Its place in the order, from 0."""
        return _RANKS[self]

    # Those of str would compare the letters.
    def __lt__(self, other: str) -> bool:
        return self.rank < Level(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= Level(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > Level(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= Level(other).rank


_ORDER: Final = tuple(Level)
_RANKS: Final[Mapping[str, int]] = {level: rank for rank, level in enumerate(_ORDER)}


@final
class Event(NamedTuple):
    """Something happened in a run. Immutable; `EVENTS` lists the types."""

    type: str
    level: Level
    thread_id: str | None
    node_id: str | None
    checkpoint_id: str | None
    timestamp: datetime
    """When it was posted, aware, UTC."""
    data: Mapping[str, Any]
    """What else there is to say; read-only."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A proxied mapping does not pickle, its copy does."""
        return _rebuild, (*self[:-1], dict(self.data))


def _rebuild(*fields: Any) -> Event:
    *others, data = fields
    return Event._make((*others, MappingProxyType(data)))


@runtime_checkable
class Observer(Protocol):
    """What is called with each Event of a run. Any callable is one; what it returns is ignored.

    Called from one thread per run, in the order of the events; from several at once if several runs share it. An
    attribute `level` that is a Level spares it the events below.
    """

    def __call__(self, event: Event, /) -> object:
        """Take an event."""
        ...


@final
class EventType(NamedTuple):
    """A line of the table of events."""

    level: Level
    says: str
    """What happened, and the keys of `data`."""


def _table(**levels: Mapping[str, str]) -> Mapping[str, EventType]:
    lines = {name: EventType(Level(level), says) for level, names in levels.items() for name, says in names.items()}
    return MappingProxyType(lines)


EVENTS: Final[Mapping[str, EventType]] = _table(
    verbose={
        "state.create": "A run has its first state, or a State was made: keys, or run_id.",
        "state.clone": "A State was copied: run_id.",
        "state.set": "A key of a State was set: run_id, key.",
        "state.merge": "An update was merged into the state, or another State into a State: keys.",
        "node.state": "The state that a node is given (input), or the one that it leaves (output).",
        "edge.evaluate": "A condition was asked where to go: result, target.",
        "edge.transition": "The next node is known: target.",
        "route.evaluate": "A predicate was asked: predicate_name, predicate_result, edge_index.",
        "step.start": "A step of a chain begins: chain, step, index.",
        "step.complete": "A step of a chain has ended: chain, step, index, error.",
        "worker.start": "An item of process_parallel begins: index.",
        "worker.complete": "An item of process_parallel has ended: index, error.",
    },
    info={
        "graph.start": "A run begins, after a resume too: run_id, step.",
        "graph.complete": "A run has ended well: nodes (how many it executed).",
        "node.start": "A node begins: step.",
        "node.complete": "A node has ended: step, error (whether it failed; then it is a warning, with a reason).",
        "cycle.detected": "A node is visited again in one run: visit_count.",
        "checkpoint.save": "A checkpoint is stored: id, next, source.",
        "checkpoint.load": "A checkpoint was read, to go on from: id.",
        "checkpoint.resume": "A run goes on from a checkpoint: checkpoint_node, resume_node.",
        "checkpoint.delete": "The thread of a run that ended well is gone, as preserve=False asks; error if it is not.",
        "interrupt.raised": "A run stops for a human: id, when.",
        "interrupt.answered": "A human's answer was recorded: id.",
        "parallel.start": "Branches begin: tasks; or the items of process_parallel: items, workers.",
        "parallel.branch": "A branch of a fork, or an item of a map, has ended: branch, nodes, index, total.",
        "parallel.complete": "All branches have ended: tasks; or all items of process_parallel: items, workers, error.",
        "chain.start": "process_chain begins: chain, steps.",
        "chain.complete": "process_chain has ended: chain, steps, error.",
        "route.select": "process_conditional has chosen: predicate_name, predicate_result, route.",
    },
    warning={
        "parallel.overwrite": "Several branches or items wrote a key without a reducer, the last wins: key, branches.",
        "retry.attempt": "A node has failed and will be tried again: attempt, delay in seconds, and the error.",
        "retry.exhausted": "A node has failed for the last time that its policy allows: attempt, and the error.",
    },
    error={
        "graph.fail": "A run failed: error.",
        "checkpoint.fail": "Something could not be stored: error, what.",
    },
)
"""Every type of event that graphkit posts, with its usual level and what it says."""


def get_level(observer: Observer) -> Level:
    """The lowest level that an observer wants: its attribute `level`, if that is a Level."""
    level = getattr(observer, "level", None)
    return level if isinstance(level, Level) else Level.VERBOSE


def call_observer(observer: Observer, event: Event) -> None:
    """Call an observer; what it raises is logged, with its traceback, and goes no further."""
    try:
        observer(event)
    except BaseException:  # a SystemExit of an observer must not change a run either
        _LOGGER.exception("observer %r failed at %s", observer, event.type)


@final
class _Line:
    """An observer, the events that wait for it, and the thread that hands them over."""

    __slots__ = ("_is_cut", "_limit", "_waiting", "dropped", "handled", "observer", "rank", "thread")

    def __init__(self, observer: Observer, limit: int) -> None:
        self.observer = observer
        self.rank = get_level(observer).rank
        self.handled = 0
        self.dropped = 0
        self._limit = limit
        self._is_cut = False
        # Its put takes no lock that a signal handler could find taken by the code it interrupted.
        self._waiting: SimpleQueue[Event | None] = SimpleQueue()
        self.thread = Thread(target=self._work, name="graphkit-observer", daemon=True)
        self.thread.start()

    def add(self, event: Event) -> None:
        if self._waiting.qsize() < self._limit:
            self._waiting.put(event)
        else:
            self.dropped += 1  # not logged here: a handler's lock may be taken by what a signal has interrupted

    def _work(self) -> None:
        has_told = False
        while (event := self._waiting.get()) is not None and not self._is_cut:
            call_observer(self.observer, event)
            self.handled += 1
            if self.dropped and not has_told:
                has_told = True
                _LOGGER.warning("observer %r is too slow: events are dropped", self.observer)

    def end(self) -> None:
        """Let the thread end after what waits now."""
        self._waiting.put(None)

    def wait(self, patience: float) -> None:
        """Wait for the thread to end, as long as it handles something every so many seconds."""
        before = -1
        while self.thread.is_alive() and self.handled != before and self.thread is not current_thread():
            before = self.handled
            self.thread.join(patience)
        if self.thread.is_alive() and self.thread is not current_thread():
            self._is_cut = True
            unseen = self._waiting.qsize() - 1 + self.dropped
            reason = "observer %r has handled nothing for %g s and is given up on: it misses %d events"
            _LOGGER.warning(reason, self.observer, patience, unseen)


@final
class Outbox:
    """What one run posts its events to. Posting takes about 2 microseconds and waits for nobody.

    Each observer has a thread and a queue of its own: it gets the events in order, and one that is slow, blocks or
    raises delays neither the run nor the others.
    """

    def __init__(self, observers: Sequence[Observer], *, limit: int = 10_000) -> None:
        """Start a thread for each observer; `close` ends them.

        Args:
            observers: who is told.
            limit: how many events may wait for one observer. Those that do not fit are dropped, counted in `dropped`,
                and a warning is logged, once.
        """
        self._lines = tuple(_Line(observer, limit) for observer in observers)
        self._rank = min((line.rank for line in self._lines), default=_ABOVE_ALL)

    @property
    def dropped(self) -> int:
        """How many events did not fit, over all observers."""
        return sum(line.dropped for line in self._lines)

    def wants(self, level: str) -> bool:
        """Whether any observer wants events of this level: ask before making costly data."""
        return _RANKS[level] >= self._rank

    def post(
        self,
        type: str,
        level: str,
        *,
        thread_id: str | None = None,
        node_id: str | None = None,
        checkpoint_id: str | None = None,
        data: Mapping[str, Any] = _NOTHING,
    ) -> None:
        """Tell every observer that wants this level. From any thread, and from a signal handler.

        Args:
            type: one of `EVENTS`, or a type of the caller's own.
            level: "verbose", "info", "warning" or "error".
            thread_id: the thread of the run.
            node_id: the node, if it is about one.
            checkpoint_id: the checkpoint, if it is about one.
            data: what else there is to say; kept, not copied, so it must not change any more.

        Raises:
            KeyError: there is no such level.
        """
        rank = _RANKS[level]
        if rank < self._rank:
            return
        now = datetime.now(UTC)
        event = Event(type, _ORDER[rank], thread_id, node_id, checkpoint_id, now, MappingProxyType(data))
        for line in self._lines:
            if line.rank <= rank:
                line.add(event)

    def close(self, patience: float = 1.0) -> None:
        """Wait until the observers have seen everything, and end their threads. What is posted later is dropped.

        Args:
            patience: an observer that handles not one event in so many seconds is given up on, which is logged; its
                thread ends once its call returns.
        """
        self._rank = _ABOVE_ALL
        for line in self._lines:
            line.end()
        for line in self._lines:
            line.wait(patience)
