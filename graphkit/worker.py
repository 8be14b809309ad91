"""Worker: serves the runs of a store, one after the other; start as many as there is work for.

    worker = Worker(app)
    worker.run()  # until somebody calls worker.stop()

A worker takes up what can go on: runs whose question was answered, in whatever process, and runs whose process died.
It starts none: whoever has an input invokes the graph. Several workers, in as many processes, share a store by its run
locks: a thread is run by one of them at a time.
"""

from __future__ import annotations

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
from graphkit._saver.base import BaseCheckpointSaver, waiting_ids
from graphkit._saver.run_lock import get_held_run_locks
from graphkit._saver.watch import Change, Watch
from graphkit._saver.writes import ANSWER, UPDATE, derive_status
from graphkit.errors import CheckpointerConfigurationError, ThreadBusyError

__all__ = ["Worker"]

_LOG: Final = logging.getLogger("graphkit.worker")
_BUSY: Final = RetryPolicy(initial_delay=0.02, backoff=2.0, max_delay=5.0)
"""When to look again at a thread that somebody else runs, where no event tells that they have ended."""
_BATCH: Final = 1000
"""So many changes are taken in before it is looked whether there is something to do."""
_NEVER: Final = float("inf")


class _Case:
    """What a worker knows of a thread that may have to go on."""

    __slots__ = ("alarms", "at", "busy", "due", "failures", "until")

    def __init__(self) -> None:
        self.due = 0.0
        """When to look at it; in the clock of `monotonic`, as `until`."""
        self.busy = 0
        """How often in a row somebody else was running it."""
        self.alarms = 0
        """How often it was said to be idle while somebody was running it."""
        self.at: str | None = None
        """The checkpoint at which its run has failed; not to be taken up there `until` then."""
        self.until = 0.0
        self.failures = 0
        """How often in a row."""


@final
class Worker:
    """Takes up the runs of one graph that can go on. `run` in one thread; `stop` from any, and it stays stopped.

    A thread stands in the middle of a run and nobody holds it: that is how a run is known whose process died, and a
    stream that was closed early, a copy or a fork looks the same. What waits in an embedded graph with a saver of its
    own is not seen to be answered: resume such a run through the graph.
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
            app: the graph. Only threads whose latest checkpoint this very graph has stored are served; others are left
                alone, and the log says so once for each graph.
            saver: where the threads are, in place of the graph's own saver.
            failed: take up runs that failed too; otherwise a failed run waits for somebody to look at it.
            retry: when a run that failed again at the same checkpoint is taken up again, and how often. By default
                after 1, 2, 4, ... seconds, at most 300, ten times. Then it is left until its thread changes.
            on_output: called with the thread's id and each output of its run.
            interval: seconds between looks at a store that has no events; see `BaseCheckpointSaver.watch`.

        Raises:
            CheckpointerConfigurationError: there is no saver.
        """
        options = app.compile_config
        # A graph of its own, so that stopping the worker stops nobody else's runs.
        self.app = CompiledGraph(app.topology, options if saver is None else options.replace(checkpoint_saver=saver))
        own = self.app.compile_config.saver
        if own is None:
            raise CheckpointerConfigurationError("a worker needs a saver: compile the graph with checkpoint_saver=...")
        self.saver = own
        self._failed, self._interval, self._on_output = failed, interval, on_output
        self._retry = retry or RetryPolicy(max_attempts=10, initial_delay=1.0, max_delay=300.0)
        self._cases: dict[str, _Case] = {}
        self._strangers: set[object] = set()
        self._stopping = threading.Event()
        self._changes: Watch | None = None

    def run(self, *, once: bool = False) -> int:
        """Serve until `stop` is called; returns how many times a run was taken up.

        Waits for events, and does nothing while there are none. A run that fails is logged, and does not end this.

        Args:
            once: return when there is nothing to do at the moment.

        Raises:
            CheckpointStorageError: the store cannot be read.
            CheckpointerConfigurationError: the saver keeps no list of its threads.
        """
        count, is_more = 0, True
        with self.saver.watch(latest=True, interval=self._interval) as self._changes:
            while not self._stopping.is_set():
                if (thread := self._due_now()) is not None:
                    count += self._serve(thread)
                elif is_more:
                    is_more = self._take_in(self._changes, 0.0)
                elif once:
                    break
                else:
                    is_more = self._take_in(self._changes, self._next_due())
        return count

    def stop(self) -> None:
        """Stop at the next node boundary, with everything saved; another worker goes on with that run at once.

        Returns at once; `run` returns when that node has ended. May be called from a signal handler.
        """
        self._stopping.set()
        self.app.pause()
        if self._changes is not None:
            self._changes.wake()

    # What there is to do

    def _due_now(self) -> str | None:
        now = monotonic()
        return next((thread for thread, case in self._cases.items() if case.due <= now), None)

    def _next_due(self) -> float | None:
        """Seconds until there is something to do without anybody's doing; None if there is nothing."""
        soonest = min((case.due for case in self._cases.values()), default=_NEVER)
        return None if soonest == _NEVER else max(0.0, soonest - monotonic())

    def _take_in(self, changes: Watch, timeout: float | None) -> bool:
        """Wait for a change, and take what there is, up to so many; whether there may be more."""
        for number in range(_BATCH):
            change = changes.get(0.0 if number else timeout)
            if change is None:
                return False
            self._heed(change)
        return True

    def _heed(self, change: Change) -> None:
        """Note what a change says of its thread."""
        if change.kind == "answer":
            self._call(change.thread_id)
        elif change.kind == "idle":
            self._call_the_busy(change.thread_id)
        elif not change.checkpoint_ns:
            self._heed_status(change.thread_id, change.checkpoint)

    def _heed_status(self, thread: str, info: CheckpointInfo | None) -> None:
        takes = {"running", "failed"} if self._failed else {"running"}
        if info is None or info.status not in takes:
            self._cases.pop(thread, None)
        elif self._is_mine(thread, info.metadata):
            case = self._cases.setdefault(thread, _Case())
            if not case.busy:
                case.due = 0.0

    def _call(self, thread: str) -> None:
        self._cases[thread] = _Case()

    def _call_the_busy(self, thread: str) -> None:
        """Somebody's run has ended: look at once, unless that was said before and was not so."""
        case = self._cases.get(thread)
        if case is not None and case.busy:
            pause = _BUSY.delay_after(case.alarms) if case.alarms else 0.0
            case.due = min(case.due, monotonic() + pause)
            case.alarms += 1

    def _is_mine(self, thread: str, metadata: Mapping[str, Any]) -> bool:
        graph = metadata.get("graph")
        if graph == self.app.topology.fingerprint:
            return True
        if graph not in self._strangers:
            self._strangers.add(graph)
            _LOG.warning(
                "thread %r is of another graph (%s): neither it nor others of that graph are served", thread, graph
            )
        return False

    def _can_go_on(self, at: RunnableConfig, case: _Case) -> bool:
        """Whether a thread's run is one that nobody has to answer or to start, and is not put off."""
        latest = self.saver.get(at)
        if latest is None or not self._is_mine(at.thread, latest.metadata):
            return False
        if latest.id == case.at and monotonic() < case.until:
            self._put_off(at.thread, case, case.until)
            return False
        writes = self.saver.get_writes(at.with_check_point_id(latest.id))
        status = derive_status(latest.next_node_id, writes)
        if status == "finished":
            return self._owes_an_end(writes)
        return not waiting_ids(self.saver, at) if status == "interrupted" else status == "running" or self._failed

    def _owes_an_end(self, writes: Mapping[str, Any]) -> bool:
        """Whether a run that stopped after its last node was answered, and still has something to do about it."""
        options = self.app.compile_config
        clears = options.release_thread or not options.preserve
        return any(key.startswith((ANSWER, UPDATE)) and (value or clears) for key, value in writes.items())

    # Doing it

    def _serve(self, thread: str) -> bool:
        """Go on with a thread's run, if it still can and nobody else does; whether it was taken up."""
        at, case, is_taken = RunnableConfig(thread), self._cases.pop(thread), False
        try:
            with ExitStack() as lock:
                # Asked twice: a lock makes a place for a thread that is gone, and what was so before it may not be now.
                if self._can_go_on(at, case) and self._holds(lock, at, case) and self._can_go_on(at, case):
                    is_taken = True
                    self._go_on(at)
        except Exception as error:  # noqa: BLE001 - one thread's failure is not the others'
            self._has_failed(at, case, error)
        return is_taken

    def _put_off(self, thread: str, case: _Case, due: float) -> None:
        case.due = case.until = due
        self._cases[thread] = case

    def _holds(self, lock: ExitStack, at: RunnableConfig, case: _Case) -> bool:
        """Take the run lock; if somebody else has it, their run is looked at again later."""
        try:
            lock.enter_context(self.saver.run_lock(at, 0))
        except ThreadBusyError:
            case.busy += 1
            self._put_off(at.thread, case, monotonic() + _BUSY.delay_after(case.busy))
            return False
        case.busy = case.alarms = 0
        return True

    def _go_on(self, at: RunnableConfig) -> None:
        _LOG.info("thread %r goes on", at.thread)
        # As inside a node of whoever holds the lock: the run enters it again.
        token = CURRENT_NODE_CONTEXT.set(NodeContext("", (), get_held_run_locks() | {self.saver.run_lock_key(at)}))
        try:
            last = self._run_async(at) if self.app.topology.asynchronous else self._run(at)
        finally:
            CURRENT_NODE_CONTEXT.reset(token)
        if self._stopping.is_set() and isinstance(last, InterruptionMetadata):
            self._pass_on(at, last)
        _LOG.info("thread %r: %s", at.thread, last)

    def _run(self, at: RunnableConfig) -> NodeOutput | None:
        last = None
        for last in self.app.stream(None, at):
            self._report(at, last)
        return last

    def _run_async(self, at: RunnableConfig) -> NodeOutput | None:
        import asyncio

        async def run() -> NodeOutput | None:
            last = None
            async for last in self.app.astream(None, at):
                self._report(at, last)
            return last

        return asyncio.run(run())

    def _report(self, at: RunnableConfig, output: NodeOutput) -> None:
        if self._on_output is not None:
            self._on_output(at.thread, output)
        if self._stopping.is_set():  # perhaps since before the run could be asked to pause
            self.app.pause(at)

    def _pass_on(self, at: RunnableConfig, last: InterruptionMetadata) -> None:
        """Let others go on with a run that stopped for no other reason than that this worker does."""
        paused = {stop.id for stop in last.interrupts if stop.metadata.get("reason") == "pause"}
        for waiting in self.saver.interrupts(at):
            if waiting.id in paused:
                operations.answer(self.saver, at, None, interrupt=waiting.id)

    def _has_failed(self, at: RunnableConfig, case: _Case, error: Exception) -> None:
        """A run has failed, or its thread could not be read: leave it for a while, or for good."""
        where, is_told = self._failure_of(at)
        case.failures = case.failures + 1 if where == case.at else 1
        case.at = where
        if is_told and not self._failed:
            what = "it waits for somebody to look"
        else:
            delay = self._delay_after(error, case.failures)
            self._put_off(at.thread, case, monotonic() + delay)
            what = "it is left until its thread changes" if delay == _NEVER else f"it is tried again in {delay:.3g} s"
        _LOG.warning("thread %r failed here %d times; %s: %s", at.thread, case.failures, what, error)

    def _failure_of(self, at: RunnableConfig) -> tuple[str | None, bool]:
        """The latest checkpoint of a thread whose run has failed, and whether its status says so."""
        with suppress(Exception):  # what cannot be read stands in the error that is told
            latest = self.saver.get(at)
            if latest is not None:
                writes = self.saver.get_writes(at.with_check_point_id(latest.id))
                return latest.id, derive_status(latest.next_node_id, writes) == "failed"
        return None, False

    def _delay_after(self, error: Exception, failures: int) -> float:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        return self._retry.delay_after(failures) if self._retry.retries(cause, failures) else _NEVER
