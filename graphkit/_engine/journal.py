"""What is recorded beside a checkpoint while a run stands there, under which keys, and what is made of it again.

The keys of stops, answers, updates and finished tasks are in `graphkit._saver.writes`, for savers list them. Here are
the others: results of `config.once`, and the failure that ended a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol, final

from graphkit._records.context import NodeContext
from graphkit._records.output import ABSENT
from graphkit._saver.writes import ANSWER, interrupts_in
from graphkit._values.frozen import freeze
from graphkit.errors import GraphRunnerError


class _Run(Protocol):
    """What a journal needs of its run."""

    writes: dict[str, Any]
    perform: Callable[[Any], None]

    def idempotency_key(self, key: str, node_id: str) -> str: ...
    def record(self, writes: Mapping[str, Any]) -> Any: ...
    def tell(self, type: str, level: str, node_id: str | None, **data: Any) -> None: ...


ONCE: Final = "once:"
"""Prefix: `once:<key of the visit>:<key>` -> the result of a side effect."""


@final
class RunJournal:
    """The journal of a run's visits; see `graphkit._records.context.Journal`."""

    __slots__ = ("run",)

    def __init__(self, run: _Run) -> None:
        self.run = run

    def idempotency_key(self, visit: NodeContext) -> str:
        """Names a visit: the same again when it is repeated after a crash, and no other's."""
        return self.run.idempotency_key(visit.key, visit.node_id)

    def find_result(self, visit: NodeContext, key: str) -> tuple[bool, Any]:
        """Whether `once` has a result under a key, and which."""
        found = self.run.writes.get(f"{ONCE}{visit.key}:{key}", ABSENT)
        return found is not ABSENT, found

    def record_result(self, visit: NodeContext, key: str, value: Any) -> Any:
        """Record a result at once, from whatever thread the node runs on."""
        try:
            frozen = freeze(value)
        except ValueError as error:
            raise GraphRunnerError(f"the result of once({key!r}) cannot be kept: {error}") from error
        self.run.perform(self.run.record({f"{ONCE}{visit.key}:{key}": frozen}))
        return frozen

    def post_event(self, visit: NodeContext, type: str, level: str, data: dict[str, Any]) -> None:
        """Tell the observers of the run."""
        self.run.tell(type, level, visit.node_id or None, **data)


def answers_of(writes: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    """The answers to the `interrupt()` calls of a visit, in the order of the calls, up to the first that waits."""
    stops = interrupts_in(writes).items()
    asked = [name for name, stop in stops if stop["when"] == "inside" and stop.get("key", "") == key]
    found = [writes.get(ANSWER + name, ABSENT) for name in asked]
    return tuple(found[: found.index(ABSENT)] if ABSENT in found else found)


def failure_of(error: Exception, node_id: str | None) -> dict[str, Any]:
    """What is recorded of the failure that ended a run."""
    return {"node_id": node_id, "type": type(error).__name__, "message": str(error)[:2000], "at": datetime.now(UTC)}
