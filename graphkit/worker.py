"""Worker: resumes the runs of a store, one after the other; start as many workers as needed.

    worker = Worker(app)
    worker.run()  # until another thread or a signal handler calls worker.stop()

A worker resumes the runs that can continue: runs that are answered, in any process, and runs whose
process died. It starts no runs; a caller with an input invokes the graph. Several workers, in as
many processes, share a store through its run locks: one of them at a time runs a thread.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Any, Final, final

from graphkit import operations
from graphkit._compiled import CompiledGraph
from graphkit._plan.retry import RetryPolicy
from graphkit._records.config import RunnableConfig
from graphkit._records.context import CURRENT_NODE_CONTEXT, NodeContext
from graphkit._records.output import CheckpointInfo, InterruptionMetadata, NodeOutput
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.run_lock import get_held_run_locks
from graphkit._saver.watch import Watch
from graphkit._saver.writes import ANSWER, UPDATE
from graphkit.errors import CheckpointerConfigurationError, ThreadBusyError

__all__ = ["Worker"]

_LOG: Final = logging.getLogger("graphkit.worker")
_BUSY: Final = RetryPolicy(initial_delay=0.02, backoff=2.0, max_delay=5.0)
"""When to look again at a thread that another process runs, if no event reports the end of that
run."""
_BATCH: Final = 1000
"""How many changes the worker reads before it looks for work."""
_NEVER: Final = float("inf")
_RESUMABLE: Final = frozenset({"running", "stalled", "answered"})
"""The statuses of threads that a worker resumes. What is running has a run lock, which another process holds;
the worker looks again when it is free."""


@final
@dataclasses.dataclass(slots=True)
class _Candidate:
    """A thread whose run may have to be resumed. Times are those of `monotonic`."""

    due: float = 0.0
    """When to look at the thread."""
    busy_count: int = 0
    """How many times in a row another process was running it."""
    false_reports: int = 0
    """How many times the store reported it idle although another process was running it."""
    failed_at: str | None = None
    """The checkpoint at which its run failed; the worker does not resume it there before
    `retry_at`."""
    retry_at: float = 0.0
    failures: int = 0
    """How many times in a row the run failed at that checkpoint."""


@final
class Worker:
    """Resumes the runs of one graph that can continue.

    Call `run` in one thread and `stop` from any; a stopped worker cannot be started again.

    A stalled thread, in the middle of a run whose run lock is free, counts as a run whose process
    died. A stream that was closed early looks the same, and so does a copy or a fork of such a
    thread, once it has ended: a worker leaves incomplete threads alone. A worker does not notice answers
    to an interrupt in an embedded graph that has a saver of its own: resume such a run through the
    graph.
    """

    def __init__(
        self,
        app: CompiledGraph,
        saver: BaseCheckpointSaver | None = None,
        *,
        failed: bool = False,
        retry: RetryPolicy | None = None,
        on_output: Callable[[str, NodeOutput], object] | None = None,
        interval: float = 1.0,
    ) -> None:
        """Prepare a worker.

        Args:
            app: the graph. The worker serves only threads whose latest checkpoint was stored by
                this graph. It leaves others alone, and logs that once for each graph.
            saver: where the threads are, in place of the graph's own saver.
            failed: also resume runs that failed; otherwise a failed run waits for a human.
            retry: when to resume a run again that failed again at the same checkpoint, and how many
                times. By default after 1, 2, 4, ... seconds, at most 300, ten times. After that the
                worker leaves the run alone until its thread changes.
            on_output: called with the thread's id and each output of its run.
            interval: seconds between two polls of a store that has no events; see
                `BaseCheckpointSaver.watch`.

        Raises:
            CheckpointerConfigurationError: there is no saver.
        """
        options = app.compile_config
        if saver is not None:
            options = options.replace(checkpoint_saver=saver)
        # A graph of its own: stopping the worker must not pause runs of the caller's graph.
        self.app = CompiledGraph(app.topology, options)
        own_saver = self.app.compile_config.saver
        if own_saver is None:
            raise CheckpointerConfigurationError("a worker needs a saver: compile the graph with checkpoint_saver=...")
        self.saver = own_saver
        self._resumes_failed = failed
        self._retry = retry or RetryPolicy(max_attempts=10, initial_delay=1.0, max_delay=300.0)
        self._on_output = on_output
        self._interval = interval
        self._candidates: dict[str, _Candidate] = {}
        self._foreign_graphs: set[object] = set()
        self._stopping = threading.Event()
        self._changes: Watch | None = None

    def run(self, *, once: bool = False) -> int:
        """Serve until `stop` is called; return how many times a run was resumed.

        Waits for events and is idle while there are none. Logs a run that fails, and continues.

        Args:
            once: return when there is nothing to do at the moment.

        Raises:
            CheckpointStorageError: the store cannot be read.
            CheckpointerConfigurationError: the saver cannot list its threads.
        """
        count = 0
        has_more = True
        with self.saver.watch(latest=True, interval=self._interval) as self._changes:
            while not self._stopping.is_set():
                now = monotonic()
                due = (thread for thread, candidate in self._candidates.items() if candidate.due <= now)
                thread = next(due, None)
                if thread is not None:
                    count += self._serve(thread)
                elif has_more:
                    has_more = self._read_changes(self._changes, 0.0)
                elif once:
                    break
                else:
                    soonest = min((candidate.due for candidate in self._candidates.values()), default=_NEVER)
                    timeout = None if soonest == _NEVER else max(0.0, soonest - now)
                    has_more = self._read_changes(self._changes, timeout)
        return count

    def stop(self) -> None:
        """Stop at the next node boundary, with everything saved.

        Another worker can resume that run at once. Returns at once; `run` returns when the current
        node has ended. May be called from a signal handler.
        """
        self._stopping.set()
        self.app.pause()
        if self._changes is not None:
            self._changes.wake()

    # Which threads there are to serve

    def _read_changes(self, changes: Watch, timeout: float | None) -> bool:
        """Wait for a change, then handle all that are there, at most one batch.

        Return whether there may be more.
        """
        for _ in range(_BATCH):
            change = changes.get(timeout)
            if change is None:
                return False
            if change.kind == "answer":
                self._candidates[change.thread_id] = _Candidate()
            elif change.kind == "idle":
                self._handle_idle(change.thread_id)
            elif not change.checkpoint_ns:
                self._handle_status(change.thread_id, change.checkpoint)
            timeout = 0.0
        return True

    def _handle_status(self, thread: str, info: CheckpointInfo | None) -> None:
        if info is None or not self._is_served(info.status):
            self._candidates.pop(thread, None)
        elif self._is_own_graph(thread, info.metadata):
            candidate = self._candidates.setdefault(thread, _Candidate())
            if not candidate.busy_count:
                candidate.due = 0.0

    def _is_served(self, status: str) -> bool:
        return status in _RESUMABLE or (status == "failed" and self._resumes_failed)

    def _handle_idle(self, thread: str) -> None:
        """Look at a busy thread again, because its run is said to have ended.

        At once the first time; later if an earlier report was false.
        """
        candidate = self._candidates.get(thread)
        if candidate is None or not candidate.busy_count:
            return
        delay = 0.0
        if candidate.false_reports:
            delay = _BUSY.delay_after(candidate.false_reports)
        candidate.due = min(candidate.due, monotonic() + delay)
        candidate.false_reports += 1

    def _is_own_graph(self, thread: str, metadata: Mapping[str, Any]) -> bool:
        graph = metadata.get("graph")
        if graph == self.app.topology.fingerprint:
            return True
        if graph not in self._foreign_graphs:
            self._foreign_graphs.add(graph)
            _LOG.warning(
                "thread %r belongs to another graph (%s): this worker serves no thread of that graph", thread, graph
            )
        return False

    def _is_resumable(self, config: RunnableConfig, candidate: _Candidate) -> bool:
        """Return whether a thread's run needs no answer and no input, and is not postponed."""
        latest = self._find_latest(config)
        # A placeholder names no graph.
        if latest is None or latest.status == "incomplete":
            return False
        if not self._is_own_graph(config.thread, latest.metadata):
            return False
        if latest.id == candidate.failed_at and monotonic() < candidate.retry_at:
            self._postpone(config.thread, candidate, candidate.retry_at)
            return False
        if latest.status == "finished":
            # A run that stopped after its last node may have yet to act on an answer.
            options = self.app.compile_config
            clears_thread = options.release_thread or not options.preserve
            writes = self.saver.get_writes(config.with_check_point_id(latest.id))
            answers = [value for key, value in writes.items() if key.startswith((ANSWER, UPDATE))]
            return any(value or clears_thread for value in answers)
        return self._is_served(latest.status)

    def _find_latest(self, config: RunnableConfig) -> CheckpointInfo | None:
        return next(iter(self.saver.recent(config, limit=1)), None)

    # Serving a thread

    def _serve(self, thread: str) -> bool:
        """Resume a thread's run if it can continue and its lock is free; return whether it did."""
        config = RunnableConfig(thread)
        candidate = self._candidates.pop(thread)
        is_resumed = False
        try:
            # Check before taking the lock, which would create a directory for a thread that was
            # deleted; and again under the lock, because the thread may have changed in between.
            if self._is_resumable(config, candidate):
                with ExitStack() as lock:
                    if self._take_lock(lock, config, candidate) and self._is_resumable(config, candidate):
                        is_resumed = True
                        self._resume(config)
        except Exception as error:  # noqa: BLE001 - one thread's failure is not the others'
            self._handle_failure(config, candidate, error)
        return is_resumed

    def _postpone(self, thread: str, candidate: _Candidate, due: float) -> None:
        candidate.due = due
        candidate.retry_at = due
        self._candidates[thread] = candidate

    def _take_lock(self, lock: ExitStack, config: RunnableConfig, candidate: _Candidate) -> bool:
        """Take the run lock; if another process holds it, look at the thread again later."""
        try:
            lock.enter_context(self.saver.run_lock(config, 0))
        except ThreadBusyError:
            candidate.busy_count += 1
            self._postpone(config.thread, candidate, monotonic() + _BUSY.delay_after(candidate.busy_count))
            return False
        candidate.busy_count = 0
        candidate.false_reports = 0
        return True

    def _resume(self, config: RunnableConfig) -> None:
        _LOG.info("resuming thread %r", config.thread)
        # The run enters the lock that this worker holds, as a run inside a node of its holder does.
        own_lock = self.saver.run_lock_key(config)
        context = NodeContext("", (), get_held_run_locks() | {own_lock})
        token = CURRENT_NODE_CONTEXT.set(context)
        try:
            if self.app.topology.asynchronous:
                last = self._run_async(config)
            else:
                last = None
                for last in self.app.stream(None, config):
                    self._report(config, last)
        finally:
            CURRENT_NODE_CONTEXT.reset(token)
        if self._stopping.is_set() and isinstance(last, InterruptionMetadata):
            # Answer the interrupts that only this worker's stop caused, so that another can resume.
            paused = {stop.id for stop in last.interrupts if stop.metadata.get("reason") == "pause"}
            for waiting in self.saver.interrupts(config):
                if waiting.id in paused:
                    operations.answer(self.saver, config, None, interrupt=waiting.id)
        _LOG.info("thread %r: %s", config.thread, last)

    def _run_async(self, config: RunnableConfig) -> NodeOutput | None:
        import asyncio

        async def run() -> NodeOutput | None:
            last = None
            async for last in self.app.astream(None, config):
                self._report(config, last)
            return last

        return asyncio.run(run())

    def _report(self, config: RunnableConfig, output: NodeOutput) -> None:
        if self._on_output is not None:
            self._on_output(config.thread, output)
        if self._stopping.is_set():  # perhaps since before this run could be paused
            self.app.pause(config)

    def _handle_failure(self, config: RunnableConfig, candidate: _Candidate, error: Exception) -> None:
        """Postpone a thread that failed or cannot be read, or leave it until it changes."""
        checkpoint_id, is_recorded = self._find_failure(config)
        if checkpoint_id == candidate.failed_at:
            candidate.failures += 1
        else:
            candidate.failed_at = checkpoint_id
            candidate.failures = 1
        if is_recorded and not self._resumes_failed:
            outcome = "it waits for a human"
        else:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            delay = _NEVER
            if self._retry.retries(cause, candidate.failures):
                delay = self._retry.delay_after(candidate.failures)
            self._postpone(config.thread, candidate, monotonic() + delay)
            outcome = f"the next attempt is in {delay:.3g} s"
            if delay == _NEVER:
                outcome = "the worker leaves it until its thread changes"
        times = "once"
        if candidate.failures > 1:
            times = f"{candidate.failures} times"
        _LOG.warning("thread %r failed here %s; %s: %s", config.thread, times, outcome, error)

    def _find_failure(self, config: RunnableConfig) -> tuple[str | None, bool]:
        """Return the latest checkpoint of a thread, and whether its status is "failed"."""
        with suppress(Exception):  # the caller reports the error that made the thread unreadable
            latest = self._find_latest(config)
            if latest is not None:
                return latest.id, latest.status == "failed"
        return None, False
