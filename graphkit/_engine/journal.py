"""RunJournal: the pending writes of a run as its nodes see them, and the engine's own keys.

`interrupt()` asks the journal for its answer. The answer was recorded as a pending write, by
`RunStart` in `start.py` when the run was resumed, or by `graphkit.operations.answer`. The keys of
interrupts, answers, updates and finished tasks are in `graphkit._saver.writes`, because savers list
them. The keys of results of `config.once` and the record of a failure are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol, final

from graphkit._records.context import NodeContext
from graphkit._records.output import ABSENT
from graphkit._saver.writes import ANSWER, interrupts_in
from graphkit._values.frozen import freeze
from graphkit._wording import message_of
from graphkit.errors import GraphRunnerError

ONCE: Final = "once:"
"""Prefix: `once:<key of the node execution>:<key>` -> the result of a side effect."""
_MAX_MESSAGE: Final = 2000
"""How many characters of an error message are recorded."""


class _Run(Protocol):
    """What a journal needs of its run."""

    writes: dict[str, Any]
    perform: Callable[[Any], None]

    def idempotency_key(self, key: str, node_id: str) -> str: ...
    def record(self, writes: Mapping[str, Any]) -> Any: ...
    def record_deferred(self) -> Any: ...
    def post_event(self, type: str, level: str, node_id: str | None, **data: Any) -> None: ...


@final
class RunJournal:
    """The journal of a run; see `graphkit._records.context.Journal`."""

    __slots__ = ("run",)

    def __init__(self, run: _Run) -> None:
        self.run = run

    def idempotency_key(self, context: NodeContext) -> str:
        """Return the unique name of a node execution; it is the same after a crash.

        The items of a map are recorded first, because the name of an item's execution has its index.
        """
        self.run.perform(self.run.record_deferred())
        return self.run.idempotency_key(context.key, context.node_id)

    def find_result(self, context: NodeContext, key: str) -> tuple[bool, Any]:
        """Return whether `once` has recorded a result under a key, and the result."""
        result = self.run.writes.get(f"{ONCE}{context.key}:{key}", ABSENT)
        return result is not ABSENT, result

    def record_result(self, context: NodeContext, key: str, value: Any) -> Any:
        """Record a result at once, on the thread that the node runs on."""
        try:
            frozen = freeze(value)
        except ValueError as error:
            raise GraphRunnerError(f"the result of once({key!r}) cannot be stored: {error}") from error
        self.run.perform(self.run.record({f"{ONCE}{context.key}:{key}": frozen}))
        return frozen

    def post_event(self, context: NodeContext, type: str, level: str, data: dict[str, Any]) -> None:
        """Post an event to the observers of the run."""
        self.run.post_event(type, level, context.node_id or None, **data)


def find_answers(writes: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    """Return the answers to the `interrupt()` calls of a node execution.

    They are in the order of the calls, and end before the first call that has no answer yet.
    """
    answers: list[Any] = []
    for interrupt_id, interrupt in interrupts_in(writes).items():
        if interrupt["when"] != "inside" or interrupt.get("key", "") != key:
            continue
        answer = writes.get(ANSWER + interrupt_id, ABSENT)
        if answer is ABSENT:
            break
        answers.append(answer)
    return tuple(answers)


def failure_record(error: Exception, node_id: str | None, at: datetime) -> dict[str, Any]:
    """Return what is recorded about the failure that ended a run."""
    return {
        "node_id": node_id,
        "type": type(error).__name__,
        "message": message_of(error)[:_MAX_MESSAGE],
        "at": at,
    }
