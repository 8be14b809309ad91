"""Observers to use as they are, and the registry that names them; go-agents-orchestration's, ported.

    app = graph.compile(observers=[LoggingObserver(), metrics])

`EVENTS` lists what they are told.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from logging import DEBUG, ERROR, INFO, WARNING, Logger, getLogger
from threading import Lock
from typing import Final, final

from graphkit._named_registry import NamedRegistry
from graphkit._plan.events import Event, Level, Observer, call_observer, get_level
from graphkit._saver.base import BaseCheckpointSaver, ThreadLike
from graphkit.errors import CheckpointerConfigurationError

_ENDS: Final = frozenset({"graph.complete", "graph.fail", "interrupt.raised"})
_LOG_LEVELS: Final = {Level.VERBOSE: DEBUG, Level.INFO: INFO, Level.WARNING: WARNING, Level.ERROR: ERROR}


@final
class NoOpObserver:
    """Takes every event and does nothing."""

    level: Level = Level.ERROR

    def __call__(self, event: Event) -> None:
        """Do nothing."""


@final
class LoggingObserver:
    """Writes each event to a logger of the standard library; verbose ones as DEBUG.

    The record has the event itself as `record.event`, for handlers that write structured logs.
    """

    def __init__(self, logger: Logger | None = None, level: Level | str = Level.INFO) -> None:
        """Log to a logger.

        Args:
            logger: where to; `graphkit.events` if it is None.
            level: the lowest level to log.
        """
        self.logger = logger or getLogger("graphkit.events")
        self.level = Level(level)

    def __call__(self, event: Event) -> None:
        """Log an event."""
        if event.level >= self.level:
            places = {"thread": event.thread_id, "node": event.node_id, "checkpoint": event.checkpoint_id}
            said = {name: place for name, place in places.items() if place is not None} | dict(event.data)
            text = " ".join(f"{name}={value!r:.500}" for name, value in said.items())
            self.logger.log(_LOG_LEVELS[event.level], "%s %s", event.type, text, extra={"event": event})


@final
class MultiObserver:
    """Forwards each event to several observers, in order. One that raises is logged and does not stop the others."""

    def __init__(self, *observers: Observer | str | None) -> None:
        """Forward to these; a name is looked up, None is left out."""
        self.observers = observers_of(observers)
        self.level = min(map(get_level, self.observers), default=Level.ERROR)

    def __call__(self, event: Event) -> None:
        """Forward an event."""
        for observer in self.observers:
            if event.level >= get_level(observer):
                call_observer(observer, event)


@final
class _Filtered:
    """An observer, from a level upwards."""

    def __init__(self, observer: Observer, level: Level) -> None:
        self.observer = observer
        self.level = level

    def __call__(self, event: Event) -> None:
        if event.level >= self.level:
            self.observer(event)


def filtered(observer: Observer, level: Level | str) -> Observer:
    """The observer, told only of events of this level and above."""
    return _Filtered(observer, max(Level(level), get_level(observer)))


@final
class Metrics:
    """Counts what happens in all the runs that it observes, those of embedded graphs too. Thread-safe.

    Read it at any time; the figures are exact once the runs have ended, since events are on their way until then.
    """

    def __init__(self) -> None:
        self._guard = Lock()
        self._counts: Counter[str] = Counter()
        self._resuming: set[str | None] = set()
        self._open: dict[str | None, list[tuple[datetime, bool]]] = {}
        """By thread, when each run began that has not ended yet, and whether it was resumed."""
        self._seconds = 0.0
        self._recovered = 0

    def __call__(self, event: Event) -> None:
        """Count an event."""
        with self._guard:
            self._counts[event.type] += 1
            if event.type == "checkpoint.resume":
                self._resuming.add(event.thread_id)
            elif event.type == "graph.start":
                resumed = event.thread_id in self._resuming
                self._resuming.discard(event.thread_id)
                self._open.setdefault(event.thread_id, []).append((event.timestamp, resumed))
            elif event.type in _ENDS:
                self._end(event)

    def _end(self, event: Event) -> None:
        begun = self._open.pop(event.thread_id, [])
        # A stop ends the runs around the graph that stops, too; otherwise the innermost has ended.
        ended = begun if event.type == "interrupt.raised" else begun[-1:]
        if still := begun[: len(begun) - len(ended)]:
            self._open[event.thread_id] = still
        for started, resumed in ended:
            self._seconds += (event.timestamp - started).total_seconds()
            self._recovered += resumed and event.type != "graph.fail"

    def count(self, type: str) -> int:
        """How many events of a type there were."""
        with self._guard:
            return self._counts[type]

    @property
    def runs(self) -> int:
        """Runs that began, resumed ones too."""
        return self.count("graph.start")

    @property
    def nodes(self) -> int:
        """Nodes that ended, failed ones too."""
        return self.count("node.complete")

    @property
    def checkpoints(self) -> int:
        """Checkpoints that were stored."""
        return self.count("checkpoint.save")

    @property
    def failures(self) -> int:
        """Runs that failed."""
        return self.count("graph.fail")

    @property
    def resumes(self) -> int:
        """Runs that went on from a checkpoint."""
        return self.count("checkpoint.resume")

    @property
    def interrupts(self) -> int:
        """Stops for a human."""
        return self.count("interrupt.raised")

    @property
    def retries(self) -> int:
        """Attempts after a failed one."""
        return self.count("retry.attempt")

    @property
    def seconds(self) -> float:
        """How long the runs that have ended took, together, in seconds."""
        with self._guard:
            return self._seconds

    @property
    def resume_success(self) -> float | None:
        """The part of the resumed runs that reached the end or a stop, 0 to 1; None before any was resumed."""
        with self._guard:
            resumes = self._counts["checkpoint.resume"]
            return self._recovered / resumes if resumes else None

    @property
    def checkpoints_per_second(self) -> float | None:
        """Checkpoints stored per second of run; None before any run has ended."""
        seconds = self.seconds
        return self.checkpoints / seconds if seconds else None

    def bytes(self, saver: BaseCheckpointSaver, thread: ThreadLike = None) -> int:
        """What a thread, or the whole store (None), takes, in bytes.

        Raises:
            CheckpointerConfigurationError: the saver cannot tell sizes.
        """
        return saver.size(thread)

    def as_dict(self) -> dict[str, float | None]:
        """All figures by name, for whatever exports them."""
        names = ("runs", "nodes", "checkpoints", "failures", "resumes", "interrupts", "retries")
        rates = ("seconds", "resume_success", "checkpoints_per_second")
        return {name: getattr(self, name) for name in (*names, *rates)}


_OBSERVERS: Final[NamedRegistry[Observer]] = NamedRegistry("observer")


def register_observer(name: str, observer: Observer) -> None:
    """Let a name mean an observer, for configurations; registering it again replaces it. From any thread.

    Raises:
        CheckpointerConfigurationError: the name is empty, or the observer cannot be called.
    """
    _OBSERVERS.register(name, _checked(observer))


def get_observer(name: str) -> Observer:
    """The observer of a name: "noop", "logging" (also "slog", its name in Go), or one that was registered.

    Raises:
        CheckpointerConfigurationError: there is none; the message lists the names.
    """
    return _OBSERVERS.get(name)


def observers_of(given: Observer | str | Iterable[Observer | str | None] | None) -> tuple[Observer, ...]:
    """What a caller gave as `observers=`: one or several, by themselves or by name; None and "noop" are left out.

    Raises:
        CheckpointerConfigurationError: a name is unknown, or something is no observer.
    """
    several = [given] if given is None or isinstance(given, str) or callable(given) else given
    found = [get_observer(one) if isinstance(one, str) else one for one in several]
    return tuple(_checked(one) for one in found if one is not None and not isinstance(one, NoOpObserver))


def _checked(observer: Observer) -> Observer:
    given: object = observer
    if not callable(given):
        raise CheckpointerConfigurationError(f"an observer is called with an Event; {observer!r} cannot be called")
    if inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(getattr(given, "__call__", None)):  # noqa: B004
        raise CheckpointerConfigurationError(f"observer {observer!r} is asynchronous; give a plain function")
    return observer


register_observer("noop", NoOpObserver())
register_observer("logging", LoggingObserver())
register_observer("slog", LoggingObserver())
