"""A node's action in another process: what is sent there, what runs there, and what comes back.

The worker process finds everything here by name, so any `concurrent.futures.Executor` will do: a
process pool, Dask's `client.get_executor(pure=False)`, or one of the application.
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
from graphkit._wording import describe_error
from graphkit.errors import GraphRunnerError

OpenSaver = Callable[[], BaseCheckpointSaver]
"""Opens the run's saver in another process; see `BaseCheckpointSaver.opener`."""


class RemoteCall(NamedTuple):
    """A call, and the node context that it runs in."""

    call: Call
    argument: Any
    config: RunnableConfig
    node_id: str
    key: str
    answers: tuple[Any, ...]
    journal: RemoteJournal


class RemoteEvent(NamedTuple):
    """An event of a node in another process."""

    type: str
    level: str
    data: dict[str, Any]


class RemoteOutcome(NamedTuple):
    """The result or error of a remote call, and what its node context holds."""

    result: Any
    error: BaseException | None
    outputs: list[Any]
    events: list[RemoteEvent]
    attempt: int
    interrupt_calls: int


@final
class RemoteJournal:
    """The journal of a node execution in another process: it writes to the thread's log itself."""

    def __init__(
        self,
        key: str,
        results: Mapping[str, Any],
        *,
        opener: OpenSaver | None,
        config: RunnableConfig | None,
        prefix: str,
    ) -> None:
        """Prepare a journal to be sent.

        Args:
            key: the idempotency key of the node execution.
            results: the recorded results of `once` that the run knows, by key.
            opener: opens the run's saver; None if that cannot be done in another process.
            config: names the checkpoint at which results are recorded; None if there is no saver.
            prefix: precedes the keys of `once` in the pending writes.
        """
        self._key = key
        self._results = dict(results)
        self._opener = opener
        self._config = config
        self._prefix = prefix
        self.events: list[RemoteEvent] = []

    def idempotency_key(self, _context: NodeContext) -> str:
        """Return the name that the run has given to the node execution."""
        return self._key

    def find_result(self, _context: NodeContext, key: str) -> tuple[bool, Any]:
        """Return whether a result is recorded under a key, and the result.

        The thread's log may have results that the run did not know: a cluster whose worker has died
        sends the same call to another worker.
        """
        if key not in self._results and self._config is not None:
            if self._opener is None:  # raised before the side effect, not after it
                raise GraphRunnerError(
                    f"once({key!r}) runs in another process, which cannot open the run's saver: "
                    f"use a FileSystemSaver, or run the node on threads"
                )
            self._read_results(self._opener(), self._config)
        return key in self._results, self._results.get(key)

    def _read_results(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
        for name, value in saver.get_writes(config).items():
            if name.startswith(self._prefix):
                self._results[name.removeprefix(self._prefix)] = value

    def record_result(self, _context: NodeContext, key: str, value: Any) -> Any:
        """Record a result in the thread's log from this process."""
        if self._config is not None and self._opener is not None:
            self._opener().put_writes(self._config, {self._prefix + key: value})
        self._results[key] = value
        return value

    def post_event(self, _context: NodeContext, type: str, level: str, data: dict[str, Any]) -> None:
        """Keep an event; the run posts it when the node has finished."""
        self.events.append(RemoteEvent(type, level, data))


def perform(remote_call: RemoteCall) -> RemoteOutcome:
    """Make the call in the worker process; never raises."""
    context = NodeContext(
        remote_call.node_id,
        remote_call.answers,
        frozenset(),
        key=remote_call.key,
        journal=remote_call.journal,
    )
    token = CURRENT_NODE_CONTEXT.set(context)
    result: Any = None
    error: BaseException | None = None
    try:
        result = remote_call.call.run(remote_call.argument, remote_call.config)
        if result.__class__ is GeneratorType:
            result = _collect(result)
    except (Exception, GraphInterrupt) as raised:  # noqa: BLE001 - raised again in the run
        raised.add_note(f"In process {os.getpid()}:\n{''.join(traceback.format_exception(raised))}")
        error = _make_picklable(raised)
    finally:
        CURRENT_NODE_CONTEXT.reset(token)
    return RemoteOutcome(
        result=result,
        error=error,
        outputs=context.outputs,
        events=remote_call.journal.events,
        attempt=context.attempt,
        interrupt_calls=context.interrupt_calls,
    )


def _collect(generator: Any) -> Collected:
    chunks = []
    while True:
        try:
            chunks.append(next(generator))
        except StopIteration as end:
            return Collected(chunks, end.value)


def _make_picklable(error: BaseException) -> BaseException:
    """Return the error, or one with the same text if it cannot be pickled."""
    import pickle  # 2 ms, and only a worker needs it

    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - its own bytes
    except Exception:  # noqa: BLE001 - pickling may raise anything
        replacement = RuntimeError(describe_error(error))
        replacement.__notes__ = error.__notes__
        return replacement
    return error
