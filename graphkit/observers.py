"""Ready-made observers, and the registry of their names; ported from go-agents-orchestration.

app = graph.compile(observers=[LoggingObserver(), metrics])

The option `observers` takes the registered names, too: `observers="logging"`.
"""

from graphkit._plan.events import (
    Event,
    Level,
    LoggingObserver,
    Metrics,
    MultiObserver,
    NoOpObserver,
    Observer,
    get_observer,
    register_observer,
)
from graphkit._public_names import set_public_module

__all__ = [
    "Event",
    "Level",
    "LoggingObserver",
    "Metrics",
    "MultiObserver",
    "NoOpObserver",
    "Observer",
    "get_observer",
    "register_observer",
]

set_public_module(globals(), __name__)
