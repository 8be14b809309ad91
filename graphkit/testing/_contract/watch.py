"""Live changes of a store: watches, and waiting for an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from graphkit._records.config import END, RunnableConfig, ThreadLike
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions
from graphkit._saver.watch import Change, Watch
from graphkit.errors import CheckpointerConfigurationError, CheckpointNotFoundError
from graphkit.testing import _check as check
from graphkit.testing._contract.base import INTERVAL, TIMEOUT, ContractTests
from graphkit.testing._values import (
    CONFIG,
    OTHER,
    UNKNOWN,
    config_of,
    in_namespace,
    make_failure,
    make_interrupt,
    put_checkpoint,
    put_interrupt,
)


class WatchTests(ContractTests):
    """Which changes a watch reports, and how long `wait_for_resume` waits."""

    # What a watch reports

    def test_watch_reports_new_checkpoints_in_order(self) -> None:
        """`watch` reports each checkpoint of the thread that is put after the call, once."""
        saver = self.open()
        for config in (OTHER, CONFIG):
            put_checkpoint(saver, config)

        with saver.watch("t", interval=INTERVAL) as watch:
            # The writer is another saver, so that the watch cannot rely on calls of its own saver.
            other = self.open_again(saver)
            put_checkpoint(other, OTHER)
            ids = [put_checkpoint(other).id for _ in range(19)]
            changes = _collect_until(watch, ids[-1])

        # Those from before the watch, and of the other thread, are not reported.
        _assert_checkpoints(changes, ids)

        for change in changes:
            check.assert_equal(change.kind, "checkpoint", "the kind of a change")
            check.assert_equal(change.thread_id, "t", "the thread_id of a change")
            check.assert_equal(change.checkpoint_ns, "", "the checkpoint_ns of a change")

    def test_watch_reports_what_pending_writes_say(self) -> None:
        """`watch` reports interrupts, answers, timers, progress, failures and cancels."""
        saver = self.open_with_checkpoint()
        interrupt = make_interrupt("x", {"why": 1})
        timer = {**interrupt, "due": datetime(2031, 4, 1, tzinfo=UTC)}
        failure = make_failure(at=1)
        cancellation = {"reason": "no more", "at": datetime(2026, 1, 1, tzinfo=UTC)}
        other = self.open_again(saver)

        with saver.watch(CONFIG, interval=INTERVAL) as watch:

            def assert_reported(key: str, value: object, kind: str, id: str | None, reported: object) -> None:
                # Other pending writes, such as the results of `once`, are not reported.
                other.put_writes(CONFIG, {key: value, "once:1": 2})
                change = _get_change(watch, kind)
                check.assert_equal(change.id, id, "the id of the change")
                check.same(change.value, reported, "the value of the change")

            assert_reported("interrupt:i", interrupt, "interrupt", "i", interrupt)
            assert_reported("answer:i", {"yes": True}, "answer", "i", {"yes": True})
            assert_reported("timer:t", timer, "timer", "t", timer)
            assert_reported("task:b", {"node": "b"}, "progress", None, {"node_id": "b"})
            assert_reported("failure", failure, "failure", None, failure)
            assert_reported("cancelled", cancellation, "cancel", None, cancellation)
            _assert_no_change(watch)

    def test_watch_can_start_at_a_checkpoint(self) -> None:
        """`watch` of a named checkpoint begins with what was written after it."""
        saver = self.open_with_checkpoint()
        start = put_checkpoint(saver)
        put_interrupt(saver)
        later_ids = [put_checkpoint(saver).id for _ in range(3)]

        # The watch reports what happened since, including the writes of the checkpoint itself.
        with saver.watch(config_of(start), interval=INTERVAL) as watch:
            changes = _collect_until(watch, later_ids[-1])
        _assert_checkpoints(changes, later_ids)

        interrupt_ids = [change.id for change in changes if change.kind == "interrupt"]
        check.assert_equal(interrupt_ids, ["i"])

        with self.raises(CheckpointNotFoundError):
            saver.watch(UNKNOWN)

    def test_watch_can_start_with_the_latest_checkpoint(self) -> None:
        """`watch(latest=True)` begins with the latest checkpoint and its pending writes."""
        saver = self.open_with_checkpoint()
        latest = put_checkpoint(saver)
        put_interrupt(saver)

        with saver.watch("t", latest=True, interval=INTERVAL) as watch:
            first = _get_change(watch, "checkpoint")
            _assert_checkpoints([first], [latest.id])

            # The checkpoint is followed by its pending writes, and by nothing else.
            second = _get_change(watch, "interrupt")
            check.assert_equal(second.id, "i", "id")
            _assert_no_change(watch)

    def test_watch_covers_all_threads(self) -> None:
        """With `lists_threads`, `watch` without a thread reports all threads, new ones included."""
        saver = self.open("lists_threads")
        thread_ids = ("old", "new", "ünï/cöde")
        put_checkpoint(saver, RunnableConfig("old"))

        ids = []
        with saver.watch(interval=INTERVAL) as watch:
            for thread_id in thread_ids:
                config = RunnableConfig(thread_id)
                ids.append(put_checkpoint(saver, config).id)
            changes = _collect_until(watch, *ids)

        # Each thread is reported once, with its checkpoint.
        reported = [(change.thread_id, check.not_none(change.checkpoint).id) for change in changes]
        check.assert_any_order(reported, zip(thread_ids, ids, strict=True), "the changes")

    def test_watch_of_a_namespace_covers_nested_namespaces(self) -> None:
        """With `lists_namespaces`, `watch` of a namespace reports it and those below it."""
        saver = self.open("lists_namespaces")
        # "a/b" is nested in "a"; "ab" only starts with the same letter.
        similar = in_namespace("ab")
        nested = in_namespace("a/b")
        namespace = in_namespace("a")
        put_checkpoint(saver, similar)

        whole_thread = saver.watch("t", interval=INTERVAL)
        one_namespace = saver.watch(namespace, interval=INTERVAL)

        with whole_thread, one_namespace:
            similar_id = put_checkpoint(saver, similar).id
            nested_id = put_checkpoint(saver, nested).id
            own_id = put_checkpoint(saver, namespace).id
            changes = _collect_until(whole_thread, similar_id, nested_id, own_id)
            _assert_namespaces(changes, "ab", "a/b", "a")

            changes = _collect_until(one_namespace, nested_id, own_id)
            _assert_namespaces(changes, "a/b", "a")
            _assert_no_change(one_namespace)

    def test_watch_reports_release_and_delete(self) -> None:
        """`watch` reports that the thread was released or deleted."""
        saver = self.open_with_checkpoint()
        # Without versions, nothing is left of a released thread.
        kind = "release" if isinstance(saver, HasVersions) else "delete"

        with saver.watch("t", interval=INTERVAL) as watch:
            saver.release(CONFIG)
            change = _get_change(watch, kind)
            check.same(change.checkpoint, None)

            new_id = put_checkpoint(saver).id
            _collect_until(watch, new_id)
            saver.delete("t")
            _get_change(watch, "delete")

    # Until a status

    def test_watch_ends_when_the_thread_has_a_status(self) -> None:
        """`watch(until=...)` ends when the thread has the status, or has it already."""
        saver = self.open()
        # The thread does not exist yet.
        watch = saver.watch("t", interval=INTERVAL, until="finished")
        other = self.open_again(saver)
        put_checkpoint(other, OTHER, next_node_id=END)
        put_checkpoint(other)
        put_interrupt(other)
        put_checkpoint(other, next_node_id=END)

        *_, last = _assert_ends(watch, "finished", "checkpoint", "interrupt", "checkpoint")
        check.assert_equal(last.to_dict()["status"], "finished", "status")
        check.assert_equal(last.to_dict()["next"], END, "next")

        # The thread has the status already.
        again = saver.watch("t", latest=True, interval=INTERVAL, until="finished")
        _assert_ends(again, "finished", "checkpoint")

        # The run of the thread is over, so that it does not fail any more.
        failed = saver.watch("t", interval=INTERVAL, until="failed")
        _assert_ends(failed, "finished")

    def test_watch_ends_when_the_run_has_failed(self) -> None:
        """`watch(until=...)` ends when the run is over, whatever its status."""
        saver = self.open_with_checkpoint()
        watch = saver.watch("t", interval=INTERVAL, until="finished")
        saver.put_writes(CONFIG, {"failure": make_failure(at=1)})

        _assert_ends(watch, "failed", "failure")

    def test_watch_ends_when_the_thread_is_gone(self) -> None:
        """`watch(until=...)` ends when the thread is deleted."""
        saver = self.open_with_checkpoint()
        watch = saver.watch("t", interval=INTERVAL, until="finished")
        saver.delete("t")

        _assert_ends(watch, None, "delete")

    def test_watch_of_all_threads_ends_when_each_has_the_status(self) -> None:
        """With `lists_threads`, `watch(until=...)` of all threads waits for each of them."""
        saver = self.open("lists_threads")
        new = RunnableConfig("new")
        put_checkpoint(saver)
        put_checkpoint(saver, OTHER)
        watch = saver.watch(interval=INTERVAL, until="finished")

        put_checkpoint(saver, next_node_id=END)
        change = _get_change(watch, "checkpoint")
        check.assert_equal(change.thread_id, "t", "the thread_id of a change")
        _assert_no_change(watch)
        check.same(watch.reached, None, "reached")

        put_checkpoint(saver, new)
        put_checkpoint(saver, OTHER, next_node_id=END)
        put_checkpoint(saver, new, next_node_id=END)
        changes = _assert_ends(watch, "finished", "checkpoint", "checkpoint", "checkpoint")
        reported = [change.thread_id for change in changes]
        check.assert_any_order(reported, ["new", "new", "u"], "threads")

    # The life of a watch

    def test_wake_and_close_end_a_waiting_get(self) -> None:
        """`Watch.wake` and `Watch.close` let a `get` that waits return None."""
        saver = self.open()
        watch = saver.watch("t", interval=INTERVAL)

        with ThreadPoolExecutor(1) as pool:
            for end in (watch.wake, watch.close):
                reader = pool.submit(watch.get, 2 * TIMEOUT)
                end()
                check.same(reader.result(TIMEOUT), None)

        # A watch that is closed reports nothing more.
        put_checkpoint(saver)
        check.same(watch.get(TIMEOUT), None)

    def test_watch_refuses_an_unknown_status_and_no_interval(self) -> None:
        """`watch` raises CheckpointerConfigurationError for options that make no sense."""
        wrong: list[dict[str, Any]] = [{"until": "finishd"}]
        wrong += [{"interval": interval} for interval in (0.0, -1.0, float("nan"))]
        for options in wrong:
            with self.raises(CheckpointerConfigurationError):
                self.open().watch("t", **options)

    # Waiting for an answer

    def test_wait_for_resume_returns_after_the_last_answer(self) -> None:
        """`wait_for_resume` returns True when no interrupt waits, False after its timeout."""
        saver = self.open()
        check.same(saver.wait_for_resume("t"), True, "wait_for_resume")  # it does not exist
        put_checkpoint(saver)
        check.same(saver.wait_for_resume("t"), True, "wait_for_resume")

        put_interrupt(saver, "i")
        put_interrupt(saver, "j")
        _assert_waiting(saver, 0)

        with ThreadPoolExecutor(1) as pool:
            waiter = _start_waiting(pool, saver, CONFIG)
            other = self.open_again(saver)

            # None is an answer too, but the other interrupt has none.
            other.put_writes(CONFIG, {"answer:i": None})

            _assert_waiting(saver, 0.05)
            check.assert_true(not waiter.done(), "wait_for_resume returned before the answer")

            other.put_writes(CONFIG, {"answer:j": 1})
            _assert_resumed(waiter)

    def test_wait_for_resume_returns_when_the_thread_moves_on(self) -> None:
        """`wait_for_resume` returns True when the run has moved past its interrupts."""
        self.assert_ends_waiting(put_checkpoint)
        self.assert_ends_waiting(lambda other: other.release(CONFIG))
        self.assert_ends_waiting(lambda other: other.delete("t"))

    def assert_ends_waiting(self, call: Callable[[BaseCheckpointSaver], object]) -> None:
        """Assert that `wait_for_resume` returns after a call of another saver."""
        saver = self.open_with_checkpoint()
        put_interrupt(saver)

        with ThreadPoolExecutor(1) as pool:
            waiter = _start_waiting(pool, saver, "t")
            call(self.open_again(saver))
            _assert_resumed(waiter)

    def test_wait_for_resume_covers_nested_subgraphs(self) -> None:
        """`wait_for_resume` waits for the interrupts of nested graphs, too."""
        saver = self.open()
        subgraph = in_namespace("sub")
        put_checkpoint(saver)
        put_checkpoint(saver, subgraph)
        put_interrupt(saver, config=subgraph)

        # The root records where each interrupt is. That of k is in a store which this saver does
        # not know, so that only the root can record that it was answered.
        saver.put_writes(CONFIG, {"inner:i": "sub", "inner:k": "in a saver of its own"})

        with ThreadPoolExecutor(1) as pool:
            waiter = _start_waiting(pool, saver, "t")
            other = self.open_again(saver)
            other.put_writes(subgraph, {"answer:i": None})
            _assert_waiting(saver, 0.05)

            other.put_writes(CONFIG, {"inner:k": None})
            _assert_resumed(waiter)


def _start_waiting(pool: Executor, saver: BaseCheckpointSaver, thread: ThreadLike) -> Future[bool]:
    """Call `wait_for_resume` in another thread."""
    return pool.submit(saver.wait_for_resume, thread, TIMEOUT, interval=INTERVAL)


def _assert_resumed(waiter: Future[bool]) -> None:
    """Assert that `wait_for_resume` ends before its timeout."""
    check.same(waiter.result(TIMEOUT), True, "wait_for_resume")


def _assert_waiting(saver: BaseCheckpointSaver, timeout: float) -> None:
    """Assert that `wait_for_resume` reaches its timeout, because an answer is missing."""
    is_answered = saver.wait_for_resume("t", timeout, interval=INTERVAL)
    check.same(is_answered, False, "wait_for_resume")


def _get_change(watch: Watch, kind: str) -> Change:
    """Return the next change, which must be of this kind.

    Changes of the kind "idle" (a run lock is free) are skipped: not every saver reports them.
    """
    change = watch.get(TIMEOUT)
    while change is not None and change.kind == "idle":
        change = watch.get(TIMEOUT)
    change = check.not_none(change)
    check.assert_equal(change.kind, kind, f"the kind of {change!r}")
    return change


def _assert_no_change(watch: Watch) -> None:
    """Assert that a watch has nothing more to report now."""
    check.same(watch.get(0), None, "a further change")


def _assert_ends(watch: Watch, reached: str | None, *kinds: str) -> list[Change]:
    """Assert that a watch ends by itself, for which status, and after changes of which kinds; return these.

    Changes of the kind "idle" do not count.
    """
    changes: list[Change] = []
    deadline = monotonic() + TIMEOUT
    while (change := watch.get(max(0.0, deadline - monotonic()))) is not None:
        if change.kind != "idle":
            changes.append(change)
    check.assert_true(monotonic() < deadline, f"the watch did not end after {changes}")

    reported = [change.kind for change in changes]
    check.assert_equal(reported, [*kinds], "the kinds of the changes")
    check.assert_equal(watch.reached, reached, "reached")
    return changes


def _collect_until(watch: Watch, *ids: str) -> list[Change]:
    """Return the changes that a watch reports until it has reported all these checkpoints."""
    missing = set(ids)
    changes: list[Change] = []

    while missing:
        change = check.not_none(watch.get(TIMEOUT), "the next change")
        changes.append(change)
        if change.checkpoint is not None:
            missing.discard(change.checkpoint.id)

    return changes


def _assert_checkpoints(changes: Iterable[Change], expected: Iterable[str]) -> None:
    """Assert which checkpoints were reported, by their ids and in their order."""
    checkpoints = [check.not_none(change.checkpoint) for change in changes if change.kind == "checkpoint"]
    check.assert_sequence_equal(check.get_ids(checkpoints), expected, "the checkpoints of the changes")


def _assert_namespaces(changes: Iterable[Change], *expected: str) -> None:
    """Assert from which namespaces changes were reported."""
    namespaces = {change.checkpoint_ns for change in changes}
    check.assert_equal(namespaces, {*expected}, "the namespaces of the changes")
