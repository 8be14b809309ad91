"""Ready-made observers, and the registry of their names; ported from go-agents-orchestration.

    app = graph.compile(observers=[LoggingObserver(), metrics])

`EVENTS` lists the types of the events that observers receive.
"""

from graphkit._plan.events import (
    EVENTS,
    Event,
    Level,
    LoggingObserver,
    Metrics,
    MultiObserver,
    NoOpObserver,
    Observer,
    filtered,
    get_observer,
    observers_of,
    register_observer,
)
from graphkit._public_names import set_public_module

__all__ = [
    "EVENTS",
    "Event",
    "Level",
    "LoggingObserver",
    "Metrics",
    "MultiObserver",
    "NoOpObserver",
    "Observer",
    "filtered",
    "get_observer",
    "observers_of",
    "register_observer",
]

set_public_module(globals(), __name__)
