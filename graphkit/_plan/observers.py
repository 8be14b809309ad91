"""Ready-made observers, and the registry of their names; ported from go-agents-orchestration.

    app = graph.compile(observers=[LoggingObserver(), metrics])

`EVENTS` lists the types of the events that observers receive.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from logging import DEBUG, ERROR, INFO, WARNING, Logger, getLogger
from threading import Lock
from typing import Final, final

from graphkit._options import NamedRegistry
from graphkit._plan.events import Event, Level, Observer, call_observer, get_level
from graphkit._records.config import ThreadLike
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import CheckpointerConfigurationError

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
class _Filtered:
    """An observer that receives only events of a level and above."""

    def __init__(self, observer: Observer, level: Level) -> None:
        self.observer = observer
        self.level = level

    def __call__(self, event: Event) -> None:
        if event.level >= self.level:
            self.observer(event)


def filtered(observer: Observer, level: Level | str) -> Observer:
    """Return an observer that passes on only events of this level and above."""
    return _Filtered(observer, max(Level(level), get_level(observer)))


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
                # nested run, then that of the outer.
                running = self._running.pop(event.thread_id, [])
                if event.type in _STOPS:
                    ended = running  # a stop ends the outer runs as well
                    remaining = []
                else:
                    ended = running[-1:]  # the innermost run
                    remaining = running[:-1]

                if remaining:
                    self._running[event.thread_id] = remaining

                for start in ended:
                    self._seconds += (event.timestamp - start.timestamp).total_seconds()
                    if start.is_resumed and event.type != "graph.fail":
                        self._recovered += 1

    def count(self, type: str) -> int:
        """Return how many events of a type were received."""
        with self._lock:
            return self._counts[type]

    @property
    def runs(self) -> int:
        """How many runs began, including resumed ones."""
        return self.count("graph.start")

    @property
    def nodes(self) -> int:
        """How many nodes ended, including failed ones."""
        return self.count("node.complete")

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
    def interrupts(self) -> int:
        """How often runs stopped for a human."""
        return self.count("interrupt.raised")

    @property
    def retries(self) -> int:
        """How often an attempt was made after a failed one."""
        return self.count("retry.attempt")

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
        """Return all figures by name, for export."""
        counts = ("runs", "nodes", "checkpoints", "failures", "resumes", "interrupts", "retries")
        rates = ("seconds", "resume_success", "checkpoints_per_second")
        return {name: getattr(self, name) for name in (*counts, *rates)}


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
    found = [get_observer(item) if isinstance(item, str) else item for item in items]
    used = [item for item in found if item is not None and not isinstance(item, NoOpObserver)]
    return tuple(_check_observer(observer) for observer in used)


def _check_observer(observer: Observer) -> Observer:
    """Return an observer that can be called with an Event."""
    candidate: object = observer
    if not callable(candidate):
        raise CheckpointerConfigurationError(f"an observer is called with an Event; {observer!r} cannot be called")
    method = getattr(candidate, "__call__", None)  # noqa: B004 - a method that may be asynchronous
    if inspect.iscoroutinefunction(candidate) or inspect.iscoroutinefunction(method):
        raise CheckpointerConfigurationError(f"observer {observer!r} is asynchronous; use a plain function")
    return observer


register_observer("noop", NoOpObserver())
register_observer("logging", LoggingObserver())
register_observer("slog", LoggingObserver())
