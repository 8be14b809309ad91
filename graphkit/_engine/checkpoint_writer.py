"""Writes checkpoints and pending writes, at once or in the background, and handles failures.

In the background, puts wait in a bounded queue; one thread does them in order. The queue stops at
the first failure. That error is raised at the next save, or when the run stops, so what is stored
is always a prefix of what has happened. A run flushes the queue before it emits its last output
and before it reads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import Queue
from typing import Any, Final, NamedTuple, final

from graphkit._engine.requests import Record, Save
from graphkit._plan.compile_config import CompileConfig
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._wording import describe_error
from graphkit.errors import CheckpointerError

_QUEUE_SIZE: Final = 64
"""How many puts may wait in the background. A run that is faster than its disk waits for it."""
_LOG: Final = logging.getLogger("graphkit.engine")

PostEvent = Callable[[str, Mapping[str, Any]], None]


@final
class CheckpointWriter:
    """Stores the checkpoints and pending writes of one run.

    Attributes:
        queue: the puts that wait in the background; None if they are made at once.
    """

    def __init__(self, options: CompileConfig, post_event: PostEvent, *, is_update: bool) -> None:
        """Prepare a writer.

        Args:
            options: say whether to store in the background, and whether a failure ends the run.
            post_event: posts an event, given its type and data.
            is_update: whether this is an update of a state, which always stores at once, or fails.
        """
        self.post_event = post_event
        self.raises = is_update or options.on_save_error == "raise"
        self.queue: _WriteQueue | None = None
        if options.durability == "async" and not is_update:
            self.queue = _WriteQueue(self.handle_failure)

    def save(self, save: Save) -> Checkpoint | None:
        """Append a checkpoint; return None if that failed and the run goes on."""
        is_stored = self._write(save.saver.put, save.config, save.checkpoint, save)
        return save.checkpoint if is_stored else None

    def record(self, record: Record) -> None:
        """Record pending writes."""
        self._write(record.saver.put_writes, record.config, record.writes, record)

    def _write(
        self, put: Callable[[RunnableConfig, Any], object], config: RunnableConfig, value: Any, request: Save | Record
    ) -> bool:
        """Make a put, now or in the background; return False if that failed and the run goes on."""
        if self.queue is not None:
            self.queue.add(partial(put, config, value), describe_write(request))
            return True
        try:
            put(config, value)
        except (CheckpointerError, OSError) as error:
            self.handle_failure(error, describe_write(request))
            return False
        return True

    def flush(self) -> None:
        """Wait until everything is stored.

        Raises:
            CheckpointerError: something could not be stored.
        """
        if self.queue is not None:
            self.queue.flush()

    def close(self) -> None:
        """End the background thread after what waits; log a failure that has not been raised."""
        if self.queue is not None:
            self.queue.close()

    def handle_failure(self, error: Exception, what: str) -> None:
        """Raise or log a failure to store, as the options say.

        Raises:
            Exception: the error itself, if a failure to store ends a run.
        """
        self.post_event("checkpoint.fail", {"error": describe_error(error), "what": what})
        if self.raises:
            raise error
        _LOG.warning("%s was not stored, and the run goes on: %s", what, error)


class _QueuedWrite(NamedTuple):
    """A put that waits, and what it stores, for a message."""

    put: Callable[[], object]
    what: str


@final
class _WriteQueue:
    """A thread that makes the queued puts in order."""

    def __init__(self, handle_failure: Callable[[Exception, str], None]) -> None:
        self.handle_failure = handle_failure
        self.queue: Queue[_QueuedWrite | None] = Queue(_QUEUE_SIZE)
        self.error: BaseException | None = None
        """The first failure; the queue stops at it. Every later call raises it again, because a
        node may have swallowed it."""
        self.was_raised = False
        self.thread: threading.Thread | None = None

    def add(self, put: Callable[[], object], what: str) -> None:
        self._raise_failure()
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name="graphkit-saves", daemon=True)
            self.thread.start()
        self.queue.put(_QueuedWrite(put, what))

    def flush(self) -> None:
        self.queue.join()
        self._raise_failure()

    def close(self) -> None:
        thread = self.thread
        self.thread = None
        if thread is not None:
            self.queue.put(None)
            thread.join()
        if self.error is not None and not self.was_raised:
            _LOG.error("not everything of the last run was stored: %s", self.error)

    def _raise_failure(self) -> None:
        if self.error is not None:
            self.was_raised = True
            raise self.error

    def _work(self) -> None:
        while (write := self.queue.get()) is not None:
            try:
                if self.error is None:
                    self._make(write)
            except BaseException as error:  # noqa: BLE001 - `_raise_failure` raises it in the run
                self.error = error
            finally:
                self.queue.task_done()
        self.queue.task_done()

    def _make(self, write: _QueuedWrite) -> None:
        try:
            write.put()
        except (CheckpointerError, OSError) as error:
            self.handle_failure(error, write.what)


def describe_write(request: Save | Record) -> str:
    """Name what a request stores, for a message."""
    if isinstance(request, Save):
        return f"the checkpoint of {request.checkpoint.node_id!r}"
    return "the pending writes of a checkpoint"
