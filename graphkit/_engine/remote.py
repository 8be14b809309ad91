"""A node's action in another process: what is sent there, what is done there, what comes back.

Everything here is found by name in the worker, so it works with any `concurrent.futures.Executor`: a process pool,
Dask's `client.get_executor(pure=False)`, or one of the application's own.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from types import GeneratorType
from typing import Any, NamedTuple, final

from graphkit._engine.requests import Collected
from graphkit._plan.topology import Call
from graphkit._records.config import RunnableConfig
from graphkit._records.context import CURRENT_NODE_CONTEXT, GraphInterrupt, NodeContext
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import GraphRunnerError


class RemoteCall(NamedTuple):
    """A call, and the visit it belongs to."""

    call: Call
    argument: Any
    config: RunnableConfig
    node_id: str
    key: str
    answers: tuple[Any, ...]
    journal: RemoteJournal


class Outcome(NamedTuple):
    """What became of it."""

    result: Any
    error: BaseException | None
    outputs: list[Any]
    notes: list[tuple[str, str, dict[str, Any]]]
    attempt: int
    asked: int


@final
class RemoteJournal:
    """The journal of a visit in another process: it writes to the thread's log itself."""

    def __init__(
        self,
        place: str,
        results: Mapping[str, Any],
        opener: Callable[[], BaseCheckpointSaver] | None,
        here: RunnableConfig | None,
        prefix: str,
    ) -> None:
        self._place = place
        self._results = dict(results)
        self._opener = opener
        self._here = here
        self._prefix = prefix
        self.notes: list[tuple[str, str, dict[str, Any]]] = []

    def idempotency_key(self, _visit: NodeContext) -> str:
        """As the run said."""
        return self._place

    def find_result(self, _visit: NodeContext, key: str) -> tuple[bool, Any]:
        """What the run knew, or what is in the thread's log by now.

        A cluster whose worker died gives its errand to another one, as it was sent the first time.
        """
        if key not in self._results and self._here is not None:
            if self._opener is None:  # said before the effect, not after it
                raise GraphRunnerError(
                    f"once({key!r}) runs in another process, which cannot open the run's saver: "
                    f"use a FileSystemSaver, or run the node on threads"
                )
            writes = self._opener().get_writes(self._here)
            mine = {name: value for name, value in writes.items() if name.startswith(self._prefix)}
            self._results |= {name.removeprefix(self._prefix): value for name, value in mine.items()}
        return key in self._results, self._results.get(key)

    def record_result(self, _visit: NodeContext, key: str, value: Any) -> Any:
        """Put it into the thread's log from here."""
        if self._here is not None and self._opener is not None:
            self._opener().put_writes(self._here, {self._prefix + key: value})
        self._results[key] = value
        return value

    def post_event(self, _visit: NodeContext, type: str, level: str, data: dict[str, Any]) -> None:
        """Kept, and told when the node is done."""
        self.notes.append((type, level, data))


def perform(errand: RemoteCall) -> Outcome:
    """Do it, in the worker; never raises."""
    visit = NodeContext(errand.node_id, errand.answers, frozenset(), key=errand.key, journal=errand.journal)
    token = CURRENT_NODE_CONTEXT.set(visit)
    result: Any = None
    error: BaseException | None = None
    try:
        result = errand.call.run(errand.argument, errand.config)
        if result.__class__ is GeneratorType:
            result = _collected(result)
    except (Exception, GraphInterrupt) as raised:  # noqa: BLE001 - raised again in the run
        raised.add_note(f"In process {os.getpid()}:\n{''.join(traceback.format_exception(raised))}")
        error = _portable(raised)
    finally:
        CURRENT_NODE_CONTEXT.reset(token)
    return Outcome(result, error, visit.outputs, errand.journal.notes, visit.attempt, visit.interrupt_calls)


def _collected(generator: Any) -> Collected:
    chunks = []
    while True:
        try:
            chunks.append(next(generator))
        except StopIteration as end:
            return Collected(chunks, end.value)


def _portable(error: BaseException) -> BaseException:
    """The error, or its text if it cannot travel."""
    import pickle  # 2 ms, and only a worker needs it

    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - its own bytes
    except Exception:  # noqa: BLE001 - whatever it is that does not pickle
        told = RuntimeError(f"{type(error).__name__}: {error}")
        told.__notes__ = error.__notes__
        return told
    return error
