"""CheckpointWriter: stores what a run has to store, at once or in the background, and handles failures.

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
from typing import Any, Final, final

from graphkit._engine.reporter import RunReporter
from graphkit._engine.requests import Discard, Load, LoadWrites, Record, Release, Save, Steps
from graphkit._plan.compile_config import CompileConfig
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._to_thread import HeldCancellation, Thunk
from graphkit._wording import describe_error
from graphkit.errors import CheckpointerError

_QUEUE_SIZE: Final = 64
"""How many puts may wait in the background. A run that is faster than its disk waits for it."""
_LOG: Final = logging.getLogger("graphkit.engine")


@final
class CheckpointWriter:
    """Stores the checkpoints and pending writes of one run, and reads what it has stored.

    Attributes:
        queue: the puts that wait in the background; None if they are made at once.
        is_shared: whether several threads may store: there have been concurrent tasks.
    """

    def __init__(
        self, options: CompileConfig, reporter: RunReporter, cancellation: HeldCancellation, *, is_update: bool
    ) -> None:
        """Prepare a writer.

        Args:
            options: say whether to store in the background, and whether a failure ends the run.
            reporter: posts events.
            cancellation: holds back a cancellation while something is stored.
            is_update: whether this is an update of a state, which always stores at once, or fails.
        """
        self.reporter = reporter
        self.cancellation = cancellation
        self.is_shared = False
        self.lock = threading.RLock()
        """Held to store: the run and the threads of its nodes store one at a time."""
        self.raises = is_update or options.on_save_error == "raise"
        self.queue: _WriteQueue | None = None
        if options.durability == "async" and not is_update:
            self.queue = _WriteQueue()

    def share(self) -> None:
        """Prepare for nodes that run concurrently, and so for several threads that store."""
        self.is_shared = True

    def answers(self) -> dict[type, Callable[[Any], Any]]:
        """Return what answers the requests to read and to store, by their type."""
        return {Save: self.save, Record: self.record, Load: self.load, LoadWrites: self.load_writes}

    def perform(self, steps: Steps) -> None:
        """Answer the requests of a generator on the calling thread: for `once` and `is_cancelled`."""
        answers = self.answers()
        answer: Any = None
        with self.lock:
            try:
                while True:
                    request = steps.send(answer)
                    answer = answers[request.__class__](request)
            except StopIteration:
                self.flush()

    def save(self, save: Save) -> Checkpoint | None:
        """Append a checkpoint; return None if that failed and the run goes on."""
        if not self.is_shared:  # the lock would cost a step 2,000 instructions, 1.5 %
            is_stored = self._write(save.saver.put, save.checkpoint, save, self.queue)
            return save.checkpoint if is_stored else None
        # The threads of several nodes, and the loop, may find at the same time that the position of their run
        # is not stored, and each makes a checkpoint of it. The later ones get that of the first. They cannot be
        # recognized by their content: one that was made a moment later has the first as its parent.
        position = save.position
        with self.lock:
            if position.stored is None and self._write(save.saver.put, save.checkpoint, save, self.queue):
                position.stored = save.checkpoint
            return position.stored

    def record(self, record: Record) -> None:
        """Record pending writes."""
        with self.lock:
            self._write(record.saver.put_writes, record.writes, record, self.queue)

    async def astore(self, request: Save | Record) -> Checkpoint | None:
        """As `save` or `record`; a cancellation is held back."""
        if self.queue is not None or self.is_shared:
            # Other threads store too: they share the lock and the order of `save`, which may block.
            store: Callable[[Any], Checkpoint | None] = self.answers()[request.__class__]
            return await self.cancellation.complete_in_thread(store, request)
        saver = request.saver
        try:
            if isinstance(request, Save):
                await self.cancellation.complete(saver.aput(request.config, request.checkpoint))
            else:
                await self.cancellation.complete(saver.aput_writes(request.config, request.writes))
        except (CheckpointerError, OSError) as error:
            self._handle_failure(error, request)
            return None
        return request.checkpoint if isinstance(request, Save) else None

    def _write(
        self,
        put: Callable[[RunnableConfig, Any], object],
        value: Any,
        request: Save | Record,
        queue: _WriteQueue | None,
    ) -> bool:
        """Make a put, or add it to the queue; return False if it failed and the run goes on."""
        # All by position: a step of a run without a queue comes through here.
        if queue is not None:
            queue.add(partial(self._write, put, value, request, None))
            return True
        try:
            put(request.config, value)
        except (CheckpointerError, OSError) as error:
            self._handle_failure(error, request)
            return False
        return True

    def load(self, request: Load) -> Checkpoint | None:
        """Read a checkpoint, after all that waits is stored."""
        self.flush()
        return request.saver.get(request.config)

    async def aload(self, request: Load) -> Checkpoint | None:
        """As `load`."""
        await self.aflush()
        return await request.saver.aget(request.config)

    def load_writes(self, request: LoadWrites) -> Mapping[str, Any]:
        """Read the pending writes of a checkpoint, after all that waits is stored."""
        self.flush()
        return request.saver.get_writes(request.config)

    async def aload_writes(self, request: LoadWrites) -> Mapping[str, Any]:
        """As `load_writes`."""
        await self.aflush()
        return await request.saver.aget_writes(request.config)

    def release(self, request: Release) -> None:
        """Release a thread, after all that waits is stored."""
        self.flush()
        request.saver.release(request.config)

    def discard(self, request: Discard) -> None:
        """Delete a thread. A failure is posted and logged."""
        self.flush()
        try:
            request.saver.delete(request.config)
        except (CheckpointerError, OSError) as error:
            # The run has succeeded; a thread that is left over must not cost its result.
            self.reporter.post_event("checkpoint.delete", None, {"error": describe_error(error)})
            _LOG.warning("thread %r could not be deleted after its run: %s", request.config.thread, error)
        else:
            self.reporter.post_event("checkpoint.delete", None)

    def flush(self) -> None:
        """Wait until everything is stored.

        Raises:
            CheckpointerError: something could not be stored.
        """
        if self.queue is not None:
            self.queue.flush()

    async def aflush(self) -> None:
        """As `flush`; a cancellation is held back."""
        if self.queue is not None:
            await self.cancellation.complete_in_thread(self.queue.flush)

    def close(self) -> None:
        """End the background thread after what waits; log a failure that has not been raised."""
        if self.queue is not None:
            self.queue.close()

    def _handle_failure(self, error: Exception, request: Save | Record) -> None:
        """Raise or log a failure to store, as the options say.

        Raises:
            Exception: the error itself, if a failure to store ends a run.
        """
        what = "the pending writes of a checkpoint"
        if isinstance(request, Save):
            what = f"the checkpoint of {request.checkpoint.node_id!r}"
        self.reporter.post_event("checkpoint.fail", None, {"error": describe_error(error), "what": what})
        if self.raises:
            raise error
        _LOG.warning("%s was not stored, and the run goes on: %s", what, error)


@final
class _WriteQueue:
    """A thread that makes the queued puts in order."""

    def __init__(self) -> None:
        self.queue: Queue[Thunk | None] = Queue(_QUEUE_SIZE)
        self.error: BaseException | None = None
        """The first failure; the queue stops at it. Every later call raises it again, because a
        node may have swallowed it."""
        self.was_raised = False
        self.thread: threading.Thread | None = None

    def add(self, write: Thunk) -> None:
        self._raise_failure()
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name="graphkit-saves", daemon=True)
            self.thread.start()
        self.queue.put(write)

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
                    write()
            except BaseException as error:  # noqa: BLE001 - `_raise_failure` raises it in the run
                self.error = error
            finally:
                self.queue.task_done()
        self.queue.task_done()
