"""Events: what observers receive, their types, the Outbox that delivers them, and ready-made observers.

Ports the observability of go-agents-orchestration (its event types and tau's levels). A run never
waits for an observer. Each observer is called from a thread of its own; one that is slow, blocks or
raises does not change the run.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from logging import DEBUG, ERROR, INFO, WARNING, Logger, getLogger
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, final, runtime_checkable

from graphkit._options import NamedRegistry, check_function, check_list
from graphkit._records.config import ThreadLike
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import CheckpointerConfigurationError

_LOGGER: Final = getLogger("graphkit.observers")
_NO_DATA: Final[Mapping[str, Any]] = MappingProxyType({})
_ABOVE_ALL: Final = 99
"""A rank above that of every level."""
_MOST_WAITING: Final = 10_000
"""How many events may wait for one observer. Further events are dropped, and a warning is logged once."""


@final
class Level(StrEnum):
    """The importance of an event. Levels are ordered and compare with text: `level >= "info"`."""

    VERBOSE = "verbose"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """The position in the order, from 0."""
        return _RANKS[self]

    # The operators of str would compare the letters.
    def __lt__(self, other: str) -> bool:
        return self.rank < Level(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= Level(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > Level(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= Level(other).rank


_RANKS: Final[Mapping[str, int]] = {level: rank for rank, level in enumerate(Level)}


@final
class Event(NamedTuple):
    """One occurrence in a run. Immutable. docs/from-other-systems.md lists the types."""

    type: str
    level: Level
    thread_id: str | None
    node_id: str | None
    checkpoint_id: str | None
    timestamp: datetime
    """When it was posted; timezone-aware, in UTC."""
    data: Mapping[str, Any]
    """Details that depend on the type; read-only."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a copy of the data: a mapping proxy cannot be pickled."""
        fields = self._asdict()
        fields["data"] = dict(self.data)
        return _rebuild, (fields,)


def _rebuild(fields: dict[str, Any]) -> Event:
    data = MappingProxyType(fields.pop("data"))
    return Event(**fields, data=data)


@runtime_checkable
class Observer(Protocol):
    """A callable that receives each Event of a run. What it returns is ignored.

    Each run calls it from one thread, in the order of the events; several runs that share it may
    call it at the same time. An observer with an attribute `level`, a Level or its text, does not receive
    events below that level.
    """

    def __call__(self, event: Event, /) -> object:
        """Receive an event."""
        ...


EVENTS: Final = {
    Level.VERBOSE: {
        "state.create": "A run has its first state, or a State was created: keys, or run_id.",
        "state.clone": "A State was copied: run_id.",
        "state.set": "A key of a State was set: run_id, key.",
        "state.merge": "An update was merged into the state, or another State into a State: keys.",
        "node.state": "The state that a node receives (input) or leaves (output).",
        "edge.evaluate": "A condition was evaluated: result, target.",
        "edge.transition": "The next node is known: target.",
        "route.evaluate": "A predicate was evaluated: predicate_name, predicate_result, edge_index.",
        "step.start": "A step of a chain begins: chain, step, index.",
        "step.complete": "A step of a chain has ended: chain, step, index, error.",
        "worker.start": "An item of process_parallel begins: index.",
        "worker.complete": "An item of process_parallel has ended: index, error.",
    },
    Level.INFO: {
        "graph.start": "A run begins, after a resume too: run_id, step.",
        "graph.complete": "A run has ended successfully: nodes (how many it executed).",
        "node.start": "A node begins: step.",
        "node.complete": "A node has ended: step, error (whether it failed; a failure is a warning and has a reason).",
        "cycle.detected": "A run executes a node again: visit_count.",
        "checkpoint.save": "A checkpoint is stored: id, run_id, node, next, source.",
        "checkpoint.load": "A checkpoint was loaded to continue from: run_id, node, id.",
        "checkpoint.resume": "A run resumes from a checkpoint: run_id, checkpoint_node, resume_node.",
        "checkpoint.delete": "preserve=False deleted the thread of a successful run; error, if that failed.",
        "interrupt.raised": "A run stops for a human: id, when.",
        "graph.cancel": "A run ends because it was cancelled: reason.",
        "interrupt.answered": "A run goes on with an answer: id, by (human, or deadline).",
        "interrupt.reminder": "A question has no answer yet: id, payload, created_at, deadline, number, total.",
        "timer.set": "A run sleeps: id, due.",
        "parallel.start": "Branches begin: tasks; or the items of process_parallel: items, workers.",
        "parallel.branch": "A branch, or an item of a map, has ended: branch, nodes, index, total; of an item, label.",
        "parallel.complete": "All branches have ended: tasks; or all items of process_parallel: items, workers, error.",
        "chain.start": "process_chain begins: chain, steps.",
        "chain.complete": "process_chain has ended: chain, steps, error.",
        "route.select": "process_conditional has chosen a function: predicate_name, predicate_result, route.",
    },
    Level.WARNING: {
        "model.retry": "A model gave no usable answer and is asked again: model, attempt, error, delay (seconds).",
        "parallel.overwrite": "Several branches or items wrote a key without a reducer; the last wins: key, branches.",
        "retry.attempt": "A node failed and will run again: attempt, delay (seconds), error_type, error.",
        "retry.exhausted": "A node failed in the last attempt that its policy allows: attempt, error_type, error.",
    },
    Level.ERROR: {
        "graph.fail": "A run failed: error.",
        "checkpoint.fail": "Something could not be stored: error, what.",
    },
}
"""Every type of event that graphkit posts, by its usual level: what happened, and the keys of `data`."""
LEVELS: Final = {name: level for level, names in EVENTS.items() for name in names}
"""The usual level of each type."""
_WARNINGS_IF_FAILED: Final = frozenset({"checkpoint.delete", "node.complete"})
"""Types of level INFO that also report failures: an observer of warnings must receive these."""


def level_of(type: str, data: Mapping[str, Any]) -> Level:
    """Return the level of an event of graphkit: that of its type, or a warning if it reports a failure."""
    if type in _WARNINGS_IF_FAILED and data.get("error"):
        return Level.WARNING
    return LEVELS[type]


def get_level(observer: Observer) -> Level:
    """Return the lowest level that an observer receives: its `level`, if that is one, or its text."""
    try:
        return Level(getattr(observer, "level", Level.VERBOSE))
    except ValueError:
        return Level.VERBOSE


def call_observer(observer: Observer, event: Event) -> None:
    """Call an observer. If it raises, log the error with its traceback and return."""
    try:
        observer(event)
    except BaseException:  # a SystemExit of an observer must not change a run either
        _LOGGER.exception("observer %r failed at %s", observer, event.type)


@final
class _Subscription:
    """An observer, its queue of events, and the thread that calls it."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.rank = get_level(observer).rank
        self.handled = 0
        self.dropped = 0
        self._is_abandoned = False
        # put() of a SimpleQueue takes no lock that a signal handler could find taken by the code
        # that it interrupted.
        self._queue: SimpleQueue[Event | None] = SimpleQueue()
        self.thread = Thread(target=self._deliver, name="graphkit-observer", daemon=True)
        self.thread.start()

    def add(self, event: Event) -> None:
        """Queue an event, or drop it if the queue is full."""
        if self._queue.qsize() < _MOST_WAITING:
            self._queue.put(event)
        else:
            # Not logged here: a signal may have interrupted code that holds a log handler's lock.
            self.dropped += 1

    def _deliver(self) -> None:
        has_warned = False
        while not self._is_abandoned:
            event = self._queue.get()
            if event is None or self._is_abandoned:
                return
            call_observer(self.observer, event)
            self.handled += 1
            if self.dropped and not has_warned:
                has_warned = True
                _LOGGER.warning("observer %r is too slow: events are dropped", self.observer)

    def end(self) -> None:
        """Let the thread end after it has delivered the events that are queued now."""
        self._queue.put(None)

    def join(self, timeout: float) -> None:
        """Wait for the thread to end; abandon the observer if it makes no progress.

        Args:
            timeout: seconds in which the observer must handle at least one event.
        """
        if self.thread is current_thread():
            return

        # The timeout is for one event, not for all that wait: an observer that takes 0.1 s for each of
        # 10,000 events may take its time. One that hangs is left after `timeout` seconds without progress.
        handled_before = -1
        while self.thread.is_alive() and self.handled != handled_before:
            handled_before = self.handled
            self.thread.join(timeout)

        if self.thread.is_alive():
            self._is_abandoned = True
            missed = self._queue.qsize() - 1 + self.dropped  # the None that end() added is no event
            message = "observer %r has handled no event for %g s and is abandoned: it misses %d events"
            _LOGGER.warning(message, self.observer, timeout, missed)


@final
class Outbox:
    """Delivers the events of one run to its observers. Posting takes about 2 microseconds.

    Each observer has a thread and a queue of its own. It receives the events in order. An observer
    that is slow, blocks or raises delays neither the run nor the other observers.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        """Start a thread for each observer; `close` ends the threads.

        Args:
            observers: receive the events.
        """
        self._subscriptions = tuple(_Subscription(observer) for observer in observers)
        ranks = [subscription.rank for subscription in self._subscriptions]
        self._rank = min(ranks, default=_ABOVE_ALL)

    def post(
        self,
        type: str,
        *,
        thread_id: str | None = None,
        node_id: str | None = None,
        checkpoint_id: str | None = None,
        data: Mapping[str, Any] = _NO_DATA,
    ) -> None:
        """Send an event to every observer of its level.

        Any thread and any signal handler may call it.

        Args:
            type: one of `LEVELS`.
            thread_id: the thread of the run.
            node_id: the node that the event is about, if any.
            checkpoint_id: the checkpoint that the event is about, if any.
            data: details. It is kept and not copied, so the caller must not change it afterwards.

        Raises:
            KeyError: the type is unknown.
        """
        level = level_of(type, data)
        rank = _RANKS[level]
        if rank < self._rank:
            return
        now = datetime.now(UTC)
        # Positional, in the order of the fields: keywords cost 0.6 us more, of about 2.
        event = Event(type, level, thread_id, node_id, checkpoint_id, now, MappingProxyType(data))
        for subscription in self._subscriptions:
            if subscription.rank <= rank:
                subscription.add(event)

    def close(self, timeout: float = 1.0) -> None:
        """Wait until the observers have received all events, and end their threads.

        Events that are posted later are dropped.

        Args:
            timeout: seconds in which each observer must handle at least one event. An observer that
                does not is abandoned, which is logged; its thread ends when its call returns.
        """
        # All of them first: the observers then work off their queues at the same time.
        self._rank = _ABOVE_ALL
        for subscription in self._subscriptions:
            subscription.end()
        for subscription in self._subscriptions:
            subscription.join(timeout)


# Ready-made observers, and the registry of their names; see `graphkit.observers`

_STOPS: Final = frozenset({"interrupt.raised", "timer.set"})
_ENDS: Final = frozenset({"graph.complete", "graph.fail", *_STOPS})
_LOG_LEVELS: Final = {Level.VERBOSE: DEBUG, Level.INFO: INFO, Level.WARNING: WARNING, Level.ERROR: ERROR}


@final
class NoOpObserver:
    """Receives every event and does nothing."""

    level: Level = Level.ERROR

    def __call__(self, event: Event) -> None:
        """Do nothing."""


@final
class LoggingObserver:
    """Writes each event to a logger of the standard library; verbose events as DEBUG.

    Handlers that write structured logs find the event as `record.event`.
    """

    def __init__(self, logger: Logger | None = None, level: Level | str = Level.INFO) -> None:
        """Choose a logger and a level.

        Args:
            logger: the logger; None: the logger `graphkit.events`.
            level: the lowest level to log.
        """
        self.logger = logger or getLogger("graphkit.events")
        self.level = Level(level)

    def __call__(self, event: Event) -> None:
        """Log an event."""
        if event.level < self.level:
            return

        ids = {
            "thread": event.thread_id,
            "node": event.node_id,
            "checkpoint": event.checkpoint_id,
        }
        fields = {name: value for name, value in ids.items() if value is not None}
        fields |= event.data
        texts = [f"{name}={value!r:.500}" for name, value in fields.items()]
        level = _LOG_LEVELS[event.level]
        self.logger.log(level, "%s %s", event.type, " ".join(texts), extra={"event": event})


@final
class MultiObserver:
    """Forwards each event to several observers, in order.

    If an observer raises, the error is logged and the other observers still receive the event.
    """

    def __init__(self, *observers: Observer | str | None) -> None:
        """Forward events to these observers; names are looked up, None is left out."""
        self.observers = observers_of(observers)
        self.level = min(map(get_level, self.observers), default=Level.ERROR)

    def __call__(self, event: Event) -> None:
        """Forward an event."""
        for observer in self.observers:
            if event.level >= get_level(observer):
                call_observer(observer, event)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class _RunStart:
    """When a run began, and whether it was resumed."""

    timestamp: datetime
    is_resumed: bool


@final
class Metrics:
    """Counts events over all the runs that it observes, including those of nested graphs.

    Thread-safe. The figures may be read at any time. They are exact after the runs have ended,
    because events are delivered in the background.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[str] = Counter()
        self._resuming: set[str | None] = set()
        """The threads that have been resumed and whose run has not begun yet."""
        self._running: dict[str | None, list[_RunStart]] = {}
        """By thread, the runs that have not ended, outermost first."""
        self._seconds = 0.0
        self._recovered = 0

    def __call__(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            self._counts[event.type] += 1
            if event.type == "checkpoint.resume":
                self._resuming.add(event.thread_id)
            elif event.type == "graph.start":
                start = _RunStart(timestamp=event.timestamp, is_resumed=event.thread_id in self._resuming)
                self._resuming.discard(event.thread_id)
                self._running.setdefault(event.thread_id, []).append(start)
            elif event.type in _ENDS:
                # A nested graph is a run of the same thread, and begins after its outer run: [outer, nested]. The
                # events do not name a run, so an end is that of the innermost one: first `graph.complete` of the
                # nested run, then that of the outer. A stop ends the outer runs as well.
                running = self._running.pop(event.thread_id, [])
                ended = running[-1:]
                outer = running[:-1]
                if event.type in _STOPS:
                    ended = running
                elif outer:
                    self._running[event.thread_id] = outer

                for start in ended:
                    self._seconds += (event.timestamp - start.timestamp).total_seconds()
                    if start.is_resumed and event.type != "graph.fail":
                        self._recovered += 1

    def count(self, type: str) -> int:
        """Return how many events of a type were received."""
        with self._lock:
            return self._counts[type]

    @property
    def checkpoints(self) -> int:
        """How many checkpoints were stored."""
        return self.count("checkpoint.save")

    @property
    def failures(self) -> int:
        """How many runs failed."""
        return self.count("graph.fail")

    @property
    def resumes(self) -> int:
        """How many runs resumed from a checkpoint."""
        return self.count("checkpoint.resume")

    @property
    def seconds(self) -> float:
        """The total duration of the runs that have ended, in seconds."""
        with self._lock:
            return self._seconds

    @property
    def resume_success(self) -> float | None:
        """The share of resumed runs that reached the end or a stop, 0 to 1; None without resumes."""
        with self._lock:
            resumes = self._counts["checkpoint.resume"]
            if resumes:
                return self._recovered / resumes
            return None

    @property
    def checkpoints_per_second(self) -> float | None:
        """Checkpoints stored per second of run; None before the first run has ended."""
        seconds = self.seconds
        if seconds:
            return self.checkpoints / seconds
        return None

    def bytes(self, saver: BaseCheckpointSaver, thread: ThreadLike = None) -> int:
        """Return the size of a thread, or of the whole store (None), in bytes.

        Raises:
            CheckpointerConfigurationError: the saver does not know sizes.
        """
        return saver.size(thread)

    def as_dict(self) -> dict[str, float | None]:
        """Return the counts of all types of events that were received, and the other figures, for export."""
        rates = ("seconds", "resume_success", "checkpoints_per_second")
        with self._lock:
            counts = dict(self._counts)
        return {**counts, **{name: getattr(self, name) for name in rates}}


_OBSERVERS: Final[NamedRegistry[Observer]] = NamedRegistry("observer")


def register_observer(name: str, observer: Observer) -> None:
    """Register an observer under a name, for configurations. Thread-safe.

    A second observer of the same name replaces the first.

    Raises:
        CheckpointerConfigurationError: the name is empty, or the observer cannot be called.
    """
    _OBSERVERS.register(name, _check_observer(observer))


def get_observer(name: str) -> Observer:
    """Return an observer by name.

    The names are "noop", "logging" (also "slog", its name in Go), and those that were registered.

    Raises:
        CheckpointerConfigurationError: the name is unknown; the message lists the names.
    """
    return _OBSERVERS.get(name)


def observers_of(given: Observer | str | Iterable[Observer | str | None] | None) -> tuple[Observer, ...]:
    """Return the observers that an option `observers=` names.

    Args:
        given: one observer or several, as objects or names. None and "noop" are left out.

    Raises:
        CheckpointerConfigurationError: a name is unknown, or an object is not an observer.
    """
    items = [given] if given is None or isinstance(given, str) or callable(given) else given
    check_list("observers", "observers", items, CheckpointerConfigurationError)
    found = [get_observer(item) if isinstance(item, str) else item for item in items]
    used = [item for item in found if item is not None and not isinstance(item, NoOpObserver)]
    return tuple(_check_observer(observer) for observer in used)


def _check_observer(observer: Observer) -> Observer:
    """Return an observer that can be called with an Event."""
    check_function("an observer", observer, CheckpointerConfigurationError)
    return observer


register_observer("noop", NoOpObserver())
register_observer("logging", LoggingObserver())
register_observer("slog", LoggingObserver())
