"""Worker: runs what can run in a store; start as many workers as needed.

    worker = Worker(saver, app, concurrency=4)
    worker.run()  # until another thread or a signal handler calls worker.stop()

A worker begins the runs that were submitted, and resumes those that can continue: runs that are
answered, in any process, and runs whose process died. Several workers, in as many processes, share
a store through its run locks: one of them at a time runs a thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Any, Final, Generic, TypeVar, final

from graphkit import operations, schedules
from graphkit._compiled import CompiledGraph, parse_submitted
from graphkit._engine.driver import Driver
from graphkit._engine.history import RunHistory
from graphkit._engine.loop import Run
from graphkit._engine.schedules import ScheduleAgenda
from graphkit._engine.tasks import executing
from graphkit._options import check_count, check_function
from graphkit._plan.events import Outbox
from graphkit._plan.retry import RetryPolicy, check_retry
from graphkit._records.config import RunnableConfig, with_current_principal
from graphkit._records.context import NodeContext
from graphkit._records.output import CheckpointInfo, GraphResume, InterruptionMetadata, NodeOutput, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.retention_policy import RetentionThread, find_store
from graphkit._saver.run_lock import get_held_run_locks
from graphkit._saver.status import PAUSE_REQUEST, find_next_time, grant_cancel_request
from graphkit._saver.watch import Change, Watch
from graphkit._saver.writes import ANSWER, GRAPH_ID, INTERRUPT, REMINDED, UPDATE, Submission, time_or_none
from graphkit._to_thread import iterate
from graphkit.errors import CheckpointerConfigurationError, ThreadBusyError
from graphkit.retention import RetentionPolicy
from graphkit.schedules import Schedule

__all__ = ["Worker"]

_LOG: Final = logging.getLogger("graphkit.worker")
_BUSY: Final = RetryPolicy(initial_delay=0.02, backoff=2.0, max_delay=5.0)
"""When to look again at a thread that another process runs, if no event reports the end of that
run."""
_BATCH: Final = 1000
"""How many changes the worker reads before it looks for work."""
_LONGEST_WAIT: Final = 60.0
"""Seconds after which the worker looks at the clock again while a run is not due: the clock may be set, and the
machine may sleep."""
_OWN_CLOCK_WAIT: Final = 0.05
"""The same for a clock that the worker was given: nobody can say when it moves."""
_WAITING: Final = frozenset({"sleeping", "interrupted"})
"""The statuses of threads that a worker runs once a timer is due or a deadline has passed."""
_RUNNABLE: Final = frozenset({"queued", "running", "stalled", "answered"})
"""The statuses of threads that a worker runs. What is running has a run lock, which another process holds;
the worker looks again when it is free."""


# What a worker has to do, by time: the threads that it looks at next, and those that wait for a time.

_NEVER: Final = float("inf")

_Time = TypeVar("_Time", float, datetime)


@final
class _DueQueue(Generic[_Time]):
    """Threads by the time at which they are due, one time for each.

    A heap has an entry for each time that was set. To move or remove a thread inside a heap, it would
    have to be searched; so the heap keeps such entries until they come to its top, where they are
    dropped because the thread has another time by then, or none.
    """

    def __init__(self) -> None:
        self._times: dict[str, _Time] = {}
        self._heap: list[tuple[_Time, int, str]] = []
        """(time, number, thread). Of those that are due at the same time, the first that was set comes first."""
        self._numbers = count()

    def set(self, thread: str, time: _Time) -> None:
        """Make a thread due at a time, in place of another one."""
        if self._times.get(thread) != time:
            self._times[thread] = time
            heappush(self._heap, (time, next(self._numbers), thread))

    def set_earlier(self, thread: str, time: _Time) -> None:
        """Make a thread due at a time, unless it is due before."""
        known = self._times.get(thread)
        if known is None or time < known:
            self.set(thread, time)

    def discard(self, thread: str) -> None:
        """Remove a thread, if it is there."""
        self._times.pop(thread, None)

    def next_due(self) -> _Time | None:
        """Return when the next thread is due; None if there is none."""
        heap = self._heap
        while heap:
            time, _, thread = heap[0]
            if self._times.get(thread) == time:
                return time
            heappop(heap)
        return None

    def take(self, now: _Time) -> tuple[str, _Time] | None:
        """Remove and return the thread that has been due for longest, and since when; None if none is due."""
        time = self.next_due()
        if time is None or time > now:
            return None
        _, _, thread = heappop(self._heap)
        del self._times[thread]
        return thread, time


@final
@dataclass(slots=True)
class _Candidate:
    """A thread that may have something to run. Times are those of `monotonic`."""

    due: float
    """When to look at the thread; in the past: since when it could run."""
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
    was_alarmed: bool = False
    """Whether its alarm has brought it here, so that reminders may be due."""


@final
class _Agenda:
    """The threads that a worker looks at, by time. Any thread may call its methods.

    It is only a hint, made of the changes that the worker watches: whether a thread can run, the worker decides when
    it looks at it.
    """

    def __init__(self, now: Callable[[], datetime], longest_wait: float, concurrency: int) -> None:
        """Begin without threads.

        Args:
            now: the clock of the worker.
            longest_wait: seconds after which it has to be asked again while a thread waits for a time.
            concurrency: how many threads may be taken at once.
        """
        self._now = now
        self._longest_wait = longest_wait
        self._concurrency = concurrency
        self._lock = threading.Lock()
        """Guards everything here, because the threads of runs change it, too. Never held while a store is read."""
        self._candidates: dict[str, _Candidate] = {}
        self._queue = _DueQueue[float]()
        """The candidates that are not taken."""
        self._alarms = _DueQueue[datetime]()
        """When to look at the threads that wait for a time, the earliest time of each, by the worker's clock and
        not by `monotonic`: the time may be weeks away."""
        self.taken: set[str] = set()
        """The threads that the worker serves now. What happens to them is looked at when they are
        done."""

    # What has happened to a thread

    def note_runnable(self, thread: str, *since: datetime | None) -> None:
        """Look at a thread that can run since the last of some times, as far as they are known; without any, now."""
        with self._lock:
            known = filter(None, since)
            due = max(map(self._measure_since, known), default=monotonic())
            candidate = self._candidates.get(thread) or _Candidate(due)
            if not candidate.busy_count:
                candidate.due = due
            self._put(thread, candidate)

    def note_answer(self, thread: str, at: datetime | None) -> None:
        """Look at a thread that was answered, whatever became of it before."""
        with self._lock:
            known = self._candidates.get(thread)
            was_alarmed = known is not None and known.was_alarmed
            self._put(thread, _Candidate(self._measure_since(at), was_alarmed=was_alarmed))

    def note_idle(self, thread: str) -> None:
        """Look at a busy thread whose run is said to have ended: at once, and later if an earlier report was false."""
        with self._lock:
            busy = self._candidates.get(thread)
            if busy is None or not busy.busy_count:
                return
            delay = 0.0
            if busy.false_reports:
                delay = _BUSY.delay_after(busy.false_reports)
            busy.due = min(busy.due, monotonic() + delay)
            busy.false_reports += 1
            self._put(thread, busy)

    def set_alarm(self, thread: str, time: datetime) -> None:
        """Look at a thread at a time, or before."""
        with self._lock:
            self._alarms.set_earlier(thread, time)

    def postpone(self, thread: str, candidate: _Candidate, due: float) -> None:
        """Look at a thread that was taken again when it is due, and do not resume a failed run before."""
        candidate.due = due
        candidate.retry_at = due
        with self._lock:
            self._put(thread, candidate)

    def discard(self, thread: str) -> None:
        """Remove a thread, but not its alarm."""
        with self._lock:
            self._candidates.pop(thread, None)
            self._queue.discard(thread)

    # What to do next

    def take(self) -> tuple[str, _Candidate] | None:
        """Remove and return the thread that has been due for longest; None if none is due, or enough are taken."""
        with self._lock:
            if len(self.taken) == self._concurrency:
                return None
            now = self._now()
            while (alarm := self._alarms.take(now)) is not None:
                thread, time = alarm
                due = self._measure_since(time)
                candidate = self._candidates.get(thread) or _Candidate(due)
                # The worker may have left the thread alone, at another checkpoint.
                candidate.due = min(candidate.due, due)
                candidate.was_alarmed = True
                self._put(thread, candidate)
            taken = self._queue.take(monotonic())
            if taken is None:
                return None
            thread, _ = taken
            self.taken.add(thread)
            return thread, self._candidates.pop(thread)

    def finish(self, thread: str) -> None:
        """Note that the worker has served a thread that was taken."""
        with self._lock:
            self.taken.discard(thread)
            candidate = self._candidates.get(thread)
            if candidate is not None:
                self._queue.set(thread, candidate.due)

    def seconds_until_due(self) -> float:
        """Return how many seconds remain until a thread can be taken."""
        with self._lock:
            if len(self.taken) == self._concurrency:
                return _NEVER
            seconds = _NEVER
            due = self._queue.next_due()
            if due is not None:
                seconds = due - monotonic()
            alarm = self._alarms.next_due()
            if alarm is not None:
                seconds = min(seconds, self._longest_wait, (alarm - self._now()).total_seconds())
            return seconds

    def _put(self, thread: str, candidate: _Candidate) -> None:
        """Add a candidate, or one whose time has changed."""
        self._candidates[thread] = candidate
        if thread not in self.taken:
            self._queue.set(thread, candidate.due)

    def _measure_since(self, time: datetime | None) -> float:
        """Return a past time by the monotonic clock; now for None, and for a time of a clock that is ahead."""
        if time is None:
            return monotonic()
        return monotonic() - max(0.0, (self._now() - time).total_seconds())


@final
class Worker:
    """Begins the runs of a store that were submitted, and resumes those that can continue.

    It takes threads in the order in which they became due: a submitted run when it was submitted, or
    at its `at`; an answered one when it was answered; one that waits at its timer or deadline.

    Call `run` in one thread and `stop` from any; a stopped worker cannot be started again.

    A stalled thread, in the middle of a run whose run lock is free, counts as a run whose process
    died. A stream that was closed early looks the same, and so does a copy or a fork of such a
    thread, once it has ended: a worker leaves incomplete threads alone. A worker does not notice answers,
    timers and deadlines in an embedded graph that has a saver of its own: resume such a run through the
    graph.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver,
        graphs: CompiledGraph | Mapping[str, CompiledGraph],
        *,
        concurrency: int = 1,
        failed: bool = False,
        retry: RetryPolicy | None = None,
        on_output: Callable[[str, NodeOutput], object] | None = None,
        interval: float = 1.0,
        clock: Callable[[], datetime] | None = None,
        policy: RetentionPolicy | None = None,
    ) -> None:
        """Prepare a worker.

        Args:
            saver: where the threads are, in place of the savers of the graphs.
            graphs: the graph, or several by their ids. The worker serves only threads whose latest
                checkpoint was stored by one of them, and runs that were submitted to one of them. A
                run that was submitted without a graph id is for the only graph. The worker leaves
                other threads alone, and logs that once for each graph.
            concurrency: how many threads to run at once. Above 1, each runs on a thread of its own,
                on which `on_output` is called.
            failed: also resume runs that failed; otherwise a failed run waits for a human.
            retry: when to resume a run again that failed again at the same checkpoint, and how many
                times. By default after 1, 2, 4, ... seconds, at most 300, ten times. After that the
                worker leaves the run alone until its thread changes.
            on_output: called with the thread's id and each output of its run.
            interval: seconds between two polls of a store that has no events; see
                `BaseCheckpointSaver.watch`.
            clock: returns the time, aware, in place of the clocks of the graphs. By default the one that a
                graph was compiled with, for all of them; or that of the system.
            policy: what stays in the store. `run` applies it in the background, when it has read the
                store and then every ten minutes, with pauses for the runs, to all threads of the store: those of
                other graphs and of LangGraph, too. Of several workers with a policy, one applies its
                own; another takes over when that one has ended. Errors are logged.

        Raises:
            CheckpointerConfigurationError: the saver is none, or there is no graph; the graphs have different
                clocks, and the worker was given none; or the policy is none, or the saver cannot do what it
                needs.
            TypeError: `clock`, `retry` or `on_output` is none.
            ValueError: `concurrency` is not a whole number, or is below one.
        """
        check_retry("retry", retry)
        self.saver = saver
        self._graphs = _adopt_graphs(graphs, saver, clock)
        own_clock = next(iter(self._graphs.values())).compile_config.clock
        self._now: Callable[[], datetime] = own_clock or partial(datetime.now, UTC)
        check_count("concurrency", concurrency)
        if on_output is not None:
            check_function("on_output", on_output)
        self._concurrency = concurrency
        self._resumes_failed = failed
        self._retry = retry or RetryPolicy(max_attempts=10, initial_delay=1.0, max_delay=300.0)
        self._on_output = on_output
        self._interval = interval
        longest_wait = _LONGEST_WAIT if own_clock is None else _OWN_CLOCK_WAIT
        self._agenda = _Agenda(self._now, longest_wait, concurrency)
        self._schedules = ScheduleAgenda(self.saver, self._now, longest_wait)
        self._running: set[RunHistory] = set()
        """The runs that have not ended."""
        self._count = 0
        """How many times a run was begun or resumed."""
        self._count_lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        """The threads of the runs."""
        self._foreign_graphs: set[str] = set()
        self._is_stopping = False
        self._changes: Watch | None = None
        if policy is not None:
            find_store(policy, saver)
        self._policy = policy
        self._retention: RetentionThread | None = None
        """Applies the policy in the background while `run` is called."""

    def run(self, *, once: bool = False) -> int:
        """Serve until `stop` is called; return how many times this worker has begun or resumed a run.

        The count is that of all calls of a worker, not of the last one.
        Waits for events and is idle while there are none. Logs a run that fails, and continues.
        Returns only when all its runs have stopped.

        Args:
            once: return when there is nothing to do at the moment; the policy, if there is one, is
                applied then, and not in the background.

        Raises:
            CheckpointStorageError: the store cannot be read.
            CheckpointerConfigurationError: the saver cannot list its threads.
        """
        has_more = True
        with ExitStack() as stack:
            if self._policy is not None:
                self._retention = RetentionThread(self._policy, self.saver, self._now)
                stack.callback(self._retention.stop)
            self._changes = stack.enter_context(self.saver.watch(latest=True, interval=self._interval))
            try:
                while not self._is_stopping:
                    taken = self._agenda.take()
                    if taken is not None:
                        self._start(*taken)
                    elif has_more:
                        has_more = self._read_changes(self._changes, 0.0)
                        if self._retention is not None and not has_more and not once:
                            # Not before: the first reading of a large store would take several times as long.
                            self._retention.start()
                    elif self._submit_scheduled():
                        continue
                    elif once and not self._agenda.taken:
                        if self._retention is not None:
                            self._retention.apply_now()
                        break
                    else:
                        seconds = min(self._schedules.seconds_until_due(), self._agenda.seconds_until_due())
                        has_more = self._read_changes(self._changes, max(0.0, seconds))
            finally:
                # After an error, the runs of other threads stop at their next node boundary.
                if self._agenda.taken:
                    self.stop()
                for thread in self._threads:
                    thread.join()
        return self._count

    def stop(self) -> None:
        """Stop all runs at their next node boundary, with everything saved.

        Other workers can resume those runs at once. Returns at once; `run` returns when the current
        nodes have ended. May be called from a signal handler.
        """
        # Takes no lock: the thread in which the signal arrives may hold it.
        self._is_stopping = True
        for run in self._running.copy():
            run.control.request_pause()
        if self._retention is not None:
            self._retention.request_stop()
        if self._changes is not None:
            self._changes.wake()

    def schedule(
        self,
        name: str,
        cron: str,
        input: Mapping[str, Any],
        *,
        graph_id: str | None = None,
        timezone: str | None = None,
    ) -> Schedule:
        """Store a schedule: the workers of the store submit a run at each of its times.

        Each due time gets a thread of its own, once, whichever workers run. Of the times that were
        missed while no worker ran, the latest is submitted. The same definition again changes
        nothing; another one replaces it. `graphkit.schedules` lists and removes schedules.

        Args:
            name: names the schedule in the store.
            cron: five fields: minute, hour, day of the month, month, day of the week.
            input: the input of each run, as for `CompiledGraph.submit`.
            graph_id: the graph; required if the worker serves several.
            timezone: the zone of the cron expression, such as "Europe/Zurich"; None: UTC.

        Raises:
            CheckpointerConfigurationError: the name, the cron expression or the zone is none, or the
                worker has no such graph.
            GraphRunnerError: the input is not one, or has a key that the graph does not know.
            CheckpointSerializationError: the input cannot be stored.
            MissingDependencyError: the package of the extra `schedules` is not installed.
            ThreadBusyError: another process holds the schedule.

            None of them changes the store.
        """
        if graph_id is None and len(self._graphs) == 1:
            (graph_id,) = self._graphs
        if graph_id not in self._graphs:
            known = ", ".join(map(repr, self._graphs))
            raise CheckpointerConfigurationError(f"the worker has no graph {graph_id!r}; graph_id is one of {known}")
        values = parse_submitted(input, self._graphs[graph_id].topology.schema)
        return schedules.add(
            self.saver, name, cron, values, graph_id=graph_id, timezone=timezone, created_at=self._now()
        )

    # Which threads there are to serve

    def _submit_scheduled(self) -> bool:
        """Submit the runs of schedules that are due, and take them; return whether there were any."""
        submitted = self._schedules.submit_due()
        for thread in submitted:
            self._agenda.note_runnable(thread)
        return bool(submitted)

    def _read_changes(self, changes: Watch, seconds: float) -> bool:
        """Wait for a change, at most for some seconds; then handle all that are there, at most one batch.

        Return whether there may be more.
        """
        for _ in range(_BATCH):
            change = changes.get(None if seconds == _NEVER else seconds)
            if change is None:
                return False
            self._handle_change(change)
            seconds = 0.0
        return True

    def _handle_change(self, change: Change) -> None:
        if self._schedules.note_change(change):
            return
        if change.kind == "answer":
            self._agenda.note_answer(change.thread_id, change.at)
        elif change.kind in {"timer", "interrupt"}:
            # When the timer is due, or the question expires or has to be reminded of.
            stop: Mapping[str, Any] = change.value if isinstance(change.value, Mapping) else {}
            times = [stop.get("due"), stop.get("deadline"), *stop.get("reminders", ())]
            time = min(filter(None, map(time_or_none, times)), default=None)
            if time is not None:
                self._agenda.set_alarm(change.thread_id, time)
        elif change.kind == "idle":
            self._agenda.note_idle(change.thread_id)
        elif change.checkpoint_ns:
            pass
        elif change.checkpoint is not None:
            self._handle_status(change.thread_id, change.checkpoint, change.at)
        elif change.kind in {"release", "delete"}:  # others without a checkpoint are about one that is not the latest
            self._agenda.discard(change.thread_id)

    def _handle_status(self, thread: str, info: CheckpointInfo, changed_at: datetime | None) -> None:
        if info.status in _WAITING:
            # Its alarm may have made it a candidate before: the timer of a nested graph may be reported first.
            return
        if not self._is_served(info.status):
            self._agenda.discard(thread)
        elif self._find_graph(info) is not None:
            submission = Submission.find(info.next_node_id, info.metadata)
            time = None if submission is None else submission.at
            if time is None or time <= self._now():
                self._agenda.note_runnable(thread, changed_at, time)
            else:
                # Not even a look: a store may have many of them.
                self._agenda.set_alarm(thread, time)

    def _is_served(self, status: str) -> bool:
        return status in _RUNNABLE or (status == "failed" and self._resumes_failed)

    def _find_graph(self, latest: CheckpointInfo) -> CompiledGraph | None:
        """Return the graph that a thread belongs to; None if the worker has none, or cannot tell which."""
        graph_id = latest.metadata.get(GRAPH_ID)
        fingerprint = latest.metadata.get("graph")
        submission = Submission.find(latest.next_node_id, latest.metadata)
        found = [graph for known_id, graph in self._graphs.items() if graph_id is None or graph_id == known_id]
        if submission is None:
            found = [graph for graph in found if graph.topology.fingerprint == fingerprint]
        if len(found) == 1:
            return found[0]
        name = str(graph_id or fingerprint)  # text: metadata of callers may hold what cannot be hashed
        if name not in self._foreign_graphs:
            self._foreign_graphs.add(name)
            _LOG.warning(
                "thread %r belongs to another graph (%s): this worker serves no thread of that graph",
                latest.thread_id,
                name,
            )
        return None

    def _find_runnable_graph(self, config: RunnableConfig, candidate: _Candidate) -> CompiledGraph | None:
        """Return the graph of a thread whose run needs no answer and no input, and is due.

        Otherwise return None. A run that is not due yet is looked at again when it is.
        """
        latest = self._find_latest(config)
        # A placeholder names no graph.
        if latest is None or latest.status == "incomplete":
            return None
        graph = self._find_graph(latest)
        if graph is None:
            return None
        submission = Submission.find(latest.next_node_id, latest.metadata)
        if submission is not None and submission.at is not None and not submission.is_due(self._now()):
            self._agenda.set_alarm(latest.thread_id, submission.at)
            return None
        if latest.id == candidate.failed_at and monotonic() < candidate.retry_at:
            self._agenda.postpone(latest.thread_id, candidate, candidate.retry_at)
            return None
        is_runnable = self._is_served(latest.status)
        if latest.status in _WAITING:
            time = find_next_time(self.saver, config)
            # What sleeps without a timer has died before the outer graph had noted that the timer was due.
            is_runnable = latest.status == "sleeping" if time is None else time <= self._now()
            if time is not None and not is_runnable:
                self._agenda.set_alarm(config.thread, time)
        elif latest.status == "finished":
            # A run that stopped after its last node may have yet to act on an answer.
            writes = self.saver.get_writes(config.with_check_point_id(latest.id))
            answers = [value for key, value in writes.items() if key.startswith((ANSWER, UPDATE))]
            options = graph.compile_config
            clears_thread = options.release_thread or not options.preserve
            is_runnable = any(value or clears_thread for value in answers)
        return graph if is_runnable else None

    def _find_latest(self, config: RunnableConfig) -> CheckpointInfo | None:
        return next(iter(self.saver.recent(config, limit=1)), None)

    # Serving a thread

    def _start(self, thread: str, candidate: _Candidate) -> None:
        """Serve a thread that was taken: here, or on a thread of its own if several may run at once."""
        if self._concurrency == 1:
            self._serve(thread, candidate)
            return
        # A daemon: a second Ctrl-C ends the process in the middle of the nodes.
        server = threading.Thread(
            target=copy_context().run,
            args=(self._serve, thread, candidate),
            name=f"graphkit-worker-{thread}",
            daemon=True,
        )
        self._threads = [other for other in self._threads if other.is_alive()]
        self._threads.append(server)
        server.start()

    def _serve(self, thread: str, candidate: _Candidate) -> None:
        """Run a thread if it can run and its lock is free."""
        config = RunnableConfig(thread)
        try:
            # Check before taking the lock, which would create a directory for a thread that was
            # deleted; and again under the lock, because the thread may have changed in between.
            if self._find_runnable_graph(config, candidate) is not None:
                with ExitStack() as lock:
                    if not self._take_lock(lock, config, candidate):
                        return
                    graph = self._find_runnable_graph(config, candidate)
                    if graph is not None and not grant_cancel_request(self.saver, config):
                        self._resume(graph, config)
            if candidate.was_alarmed:
                # Also after a run: the alarm may be for the reminder of a question in another branch.
                self._remind(config, candidate)
        except Exception as error:  # noqa: BLE001 - one thread's failure is not the others'
            self._handle_failure(config, candidate, error)
        finally:
            self._agenda.finish(thread)
            if self._concurrency > 1 and self._changes is not None:
                self._changes.wake()

    def _take_lock(self, lock: ExitStack, config: RunnableConfig, candidate: _Candidate) -> bool:
        """Take the run lock; if another process holds it, look at the thread again later."""
        try:
            lock.enter_context(self.saver.run_lock(config, 0))
        except ThreadBusyError:
            candidate.busy_count += 1
            self._agenda.postpone(config.thread, candidate, monotonic() + _BUSY.delay_after(candidate.busy_count))
            return False
        candidate.busy_count = 0
        candidate.false_reports = 0
        return True

    def _resume(self, graph: CompiledGraph, config: RunnableConfig) -> None:
        """Begin or resume the run of a thread whose run lock is held."""
        _LOG.info("running thread %r", config.thread)
        with self._count_lock:
            self._count += 1
        # The run enters the lock that this worker holds, as a run inside a node of its holder does.
        own_lock = self.saver.run_lock_key(config)
        context = NodeContext("", (), get_held_run_locks() | {own_lock})
        with executing(context):
            program = graph.program
            history = RunHistory(program, with_current_principal(config), program.options.saver)
            driver = Driver(history, self._running)
            steps = Run(history, GraphResume(), is_by_worker=True).steps()
            last = None
            for last in iterate(driver.adrive(steps) if program.topology.asynchronous else driver.drive(steps)):
                if self._on_output is not None:
                    self._on_output(config.thread, last)
                if self._is_stopping:  # perhaps since before this run could be paused
                    history.control.request_pause()
        if isinstance(last, InterruptionMetadata):
            is_requested = PAUSE_REQUEST in history.control.granted
            if self._is_stopping and not is_requested:
                # Answer the interrupts that only this worker's stop caused, so that another can resume.
                paused = {stop.id for stop in last.interrupts if stop.metadata.get("reason") == "pause"}
                for waiting in self.saver.interrupts(config):
                    if waiting.id in paused:
                        operations.answer(self.saver, config, None, interrupt=waiting.id)
            # Those that were recorded by earlier runs are in no change.
            for stop in last.interrupts:
                time = stop.due if stop.waiting is None else stop.waiting.deadline
                if time is not None:
                    self._agenda.set_alarm(config.thread, time)
        _LOG.info("thread %r: %s", config.thread, last)

    def _remind(self, config: RunnableConfig, candidate: _Candidate) -> None:
        """Post the reminders that are due of the questions of a thread, each by one worker."""
        latest = self._find_latest(config)
        if latest is None or latest.status != "interrupted":
            return
        reminders = map(self._read_reminders, self.saver.interrupts(config))
        if all(posted >= len(times) for times, posted in reminders):
            return
        graph = self._find_graph(latest)
        if graph is None:
            return
        observers: Any = graph.compile_config.observers
        with ExitStack() as lock:
            if not self._take_lock(lock, config, candidate):
                return
            # A worker that dies between posting and recording leaves the reminders to another one: each is posted at
            # least once.
            for interrupt in self.saver.interrupts(config):
                times, posted = self._read_reminders(interrupt)
                now = self._now()
                due = sum(time <= now for time in times)
                following = times[max(due, posted) :]
                if following:
                    self._agenda.set_alarm(config.thread, following[0])
                if due <= posted:
                    continue
                outbox = Outbox(observers)
                for number in range(posted + 1, due + 1):
                    data = {
                        "id": interrupt.id,
                        "payload": interrupt.payload,
                        "created_at": interrupt.created_at,
                        "deadline": interrupt.deadline,
                        "number": number,
                        "total": len(times),
                    }
                    outbox.post(
                        "interrupt.reminder",
                        thread_id=interrupt.thread_id,
                        node_id=interrupt.node_id,
                        checkpoint_id=interrupt.checkpoint_id,
                        data=data,
                    )
                outbox.close()
                self.saver.put_writes(_config_of(interrupt), {REMINDED + interrupt.id: due})

    def _read_reminders(self, interrupt: WaitingInterrupt) -> tuple[Sequence[datetime], int]:
        """Return the times of all reminders of a question, and how many were posted."""
        writes = self.saver.get_writes(_config_of(interrupt))
        return writes.get(INTERRUPT + interrupt.id, {}).get("reminders", ()), writes.get(REMINDED + interrupt.id, 0)

    def _handle_failure(self, config: RunnableConfig, candidate: _Candidate, error: Exception) -> None:
        """Postpone a thread that failed or cannot be read, or leave it until it changes."""
        latest = None
        with suppress(Exception):  # below, the error is logged that made the thread unreadable
            latest = self._find_latest(config)
        checkpoint_id = None if latest is None else latest.id
        if checkpoint_id == candidate.failed_at:
            candidate.failures += 1
        else:
            candidate.failed_at = checkpoint_id
            candidate.failures = 1
        if latest is not None and latest.status == "failed" and not self._resumes_failed:
            outcome = "it waits for a human"
        else:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            delay = _NEVER
            if self._retry.retries(cause, candidate.failures):
                delay = self._retry.delay_after(candidate.failures)
            self._agenda.postpone(config.thread, candidate, monotonic() + delay)
            outcome = f"the next attempt is in {delay:.3g} s"
            if delay == _NEVER:
                outcome = "the worker leaves it until its thread changes"
        times = "once" if candidate.failures == 1 else f"{candidate.failures} times"
        _LOG.warning("thread %r failed here %s; %s: %s", config.thread, times, outcome, error)


def _adopt_graphs(
    graphs: CompiledGraph | Mapping[str, CompiledGraph], saver: object, clock: Callable[[], datetime] | None
) -> Mapping[str | None, CompiledGraph]:
    """Return graphs of the worker's own by their ids, with its saver and one clock.

    Raises:
        CheckpointerConfigurationError: there is no graph, one is none, or the saver is none; or the graphs have
            different clocks, and the worker was given none.
    """
    given: Mapping[Any, Any] = {}
    if isinstance(graphs, CompiledGraph):
        given = {graphs.compile_config.graph_id: graphs}
    elif isinstance(graphs, Mapping):
        given = graphs
    are_graphs = all(isinstance(graph, CompiledGraph) for graph in given.values())
    if not given or not are_graphs or not isinstance(saver, BaseCheckpointSaver):
        raise CheckpointerConfigurationError("a worker needs a saver and a compiled graph: Worker(saver, graph)")
    if clock is None:
        clock = _common_clock(given.values())
    return {
        graph_id: CompiledGraph(graph.topology, graph.compile_config.replace(checkpoint_saver=saver, clock=clock))
        for graph_id, graph in given.items()
    }


def _common_clock(graphs: Iterable[CompiledGraph]) -> Callable[[], datetime] | None:
    """Return the one clock that graphs were compiled with, if any was.

    Raises:
        CheckpointerConfigurationError: there are two.
    """
    clocks = [graph.compile_config.clock for graph in graphs if graph.compile_config.clock is not None]
    if any(clock != clocks[0] for clock in clocks):
        raise CheckpointerConfigurationError(
            "the graphs have different clocks, and only one can say when a run is due: compile them with the same "
            "clock, or give the worker one, Worker(saver, graphs, clock=...)"
        )
    return clocks[0] if clocks else None


def _config_of(interrupt: WaitingInterrupt) -> RunnableConfig:
    return RunnableConfig(interrupt.thread_id, interrupt.checkpoint_id, interrupt.checkpoint_ns)
