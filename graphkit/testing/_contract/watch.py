"""Live changes of a store: watches, and waiting for an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.versions import HasVersions
from graphkit._saver.watch import Change, Watch
from graphkit.errors import CheckpointerConfigurationError, CheckpointNotFoundError
from graphkit.testing._contract.base import TIMEOUT, ContractTests
from graphkit.testing._values import (
    CONFIG,
    assert_equal,
    assert_not_none,
    assert_same,
    assert_true,
    made,
    make_config,
    make_interrupt,
)

_INTERVAL = 0.01
"""The polling interval of savers without change events, in seconds."""


class WatchTests(ContractTests):
    """Which changes a watch reports, and how long `wait_for_resume` waits."""

    def test_watch_reports_new_checkpoints_in_order(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 0}))
        with saver.watch("t", interval=_INTERVAL) as watch:
            other = self.open_again(saver)
            ids = [_put(other, CONFIG, n) for n in range(1, 20)]
            changes = _collect_until(watch, ids[-1])
        assert_equal(_get_checkpoint_ids(changes), ids)
        for change in changes:
            assert_equal(change.kind, "checkpoint")
            assert_equal(change.thread_id, "t")
            assert_equal(change.checkpoint_ns, "")

    def test_watch_reports_interrupts_answers_and_failures(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 0}))
        with saver.watch(CONFIG, interval=_INTERVAL) as watch:
            other = self.open_again(saver)
            other.put_writes(CONFIG, {"interrupt:i": make_interrupt("x", {"why": 1}), "once:1": 2})
            assert_equal(_get_change(watch, "interrupt").id, "i")
            other.put_writes(CONFIG, {"answer:i": {"yes": True}})
            answer = _get_change(watch, "answer")
            assert_equal(answer.id, "i")
            assert_same(answer.value, {"yes": True})
            other.put_writes(CONFIG, {"failure": {"node_id": "a", "type": "E", "message": "m", "at": 1}})
            assert_equal(_get_change(watch, "failure").value["message"], "m")
            assert_same(watch.get(0), None)

    def test_watch_can_start_at_a_checkpoint(self) -> None:
        saver = self.open()
        ids = [_put(saver, CONFIG, n) for n in range(2)]
        saver.put_writes(CONFIG, {"interrupt:i": make_interrupt("x")})
        ids += [_put(saver, CONFIG, n) for n in range(2, 5)]
        with saver.watch(make_config("t", ids[1]), interval=_INTERVAL) as watch:
            changes = _collect_until(watch, ids[-1])
        assert_equal(_get_checkpoint_ids(changes), ids[2:])
        assert_equal([change.id for change in changes if change.kind == "interrupt"], ["i"])
        with self.raises(CheckpointNotFoundError):
            saver.watch(make_config("t", "unknown"))

    def test_watch_can_start_with_the_latest_checkpoint(self) -> None:
        saver = self.open()
        ids = [_put(saver, CONFIG, n) for n in range(3)]
        saver.put_writes(CONFIG, {"interrupt:i": make_interrupt("x")})
        with saver.watch("t", latest=True, interval=_INTERVAL) as watch:
            first = assert_not_none(watch.get(TIMEOUT))
            second = assert_not_none(watch.get(TIMEOUT))
            assert_equal(assert_not_none(first.checkpoint).id, ids[-1])
            assert_equal((second.kind, second.id), ("interrupt", "i"))
            assert_same(watch.get(0), None)

    def test_watch_covers_all_threads(self) -> None:
        saver = self.open("lists_threads")
        saver.put(make_config("old"), made({"n": 0}))
        with saver.watch(interval=_INTERVAL) as watch:
            last = [_put(saver, make_config(thread), 1) for thread in ("old", "new", "ünï/cöde")]
            changes = _collect_until(watch, *last)
        assert_true(all(change.checkpoint is not None for change in changes), f"a change has no checkpoint: {changes}")
        assert_equal(sorted(change.thread_id for change in changes), ["new", "old", "ünï/cöde"])

    def test_watch_of_one_thread_ignores_others(self) -> None:
        saver = self.open()
        with saver.watch("t", interval=_INTERVAL) as watch:
            saver.put(make_config("u"), made({"n": 1}))
            own_id = _put(saver, CONFIG, 2)
            (change,) = _collect_until(watch, own_id)
            assert_equal(change.thread_id, "t")

    def test_watch_of_a_namespace_covers_nested_namespaces(self) -> None:
        saver = self.open("lists_namespaces")
        saver.put(make_config("t", namespace="ab"), made({"n": 0}))
        whole_thread = saver.watch("t", interval=_INTERVAL)
        one_namespace = saver.watch(make_config("t", namespace="a"), interval=_INTERVAL)
        with whole_thread, one_namespace:
            ids = [_put(saver, make_config("t", namespace=name), 1) for name in ("ab", "a/b", "a")]
            changes = _collect_until(whole_thread, *ids)
            assert_equal({change.checkpoint_ns for change in changes}, {"ab", "a/b", "a"})
            changes = _collect_until(one_namespace, *ids[1:])
            assert_equal({change.checkpoint_ns for change in changes}, {"a/b", "a"})

    def test_watch_reports_release_and_delete(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 0}))
        with saver.watch("t", interval=_INTERVAL) as watch:
            saver.release(CONFIG)
            kind = "release" if isinstance(saver, HasVersions) else "delete"
            assert_same(_get_change(watch, kind).checkpoint, None)
            _collect_until(watch, _put(saver, CONFIG, 1))
            saver.delete("t")
            _get_change(watch, "delete")

    def test_close_ends_a_watch(self) -> None:
        saver = self.open()
        with ThreadPoolExecutor(1) as pool:
            watch = saver.watch("t", interval=_INTERVAL)
            reader = pool.submit(list[Change], watch)
            saver.put(CONFIG, made({"n": 0}))
            watch.close()
            assert_equal({change.kind for change in reader.result(TIMEOUT)} - {"checkpoint"}, set())
        assert_same(watch.get(TIMEOUT), None)

    def test_wake_ends_a_waiting_get(self) -> None:
        watch = self.open().watch("t", interval=_INTERVAL)
        with watch, ThreadPoolExecutor(1) as pool:
            reader = pool.submit(watch.get)
            watch.wake()
            assert_same(reader.result(TIMEOUT), None)
            assert_same(watch.get(0), None)

    def test_watch_get_respects_its_timeout_at_a_tiny_interval(self) -> None:
        with ThreadPoolExecutor(1) as pool, self.open().watch("t", interval=1e-9) as watch:
            assert_same(pool.submit(watch.get, 0.0).result(TIMEOUT), None)

    def test_watch_requires_a_positive_interval(self) -> None:
        for interval in (0.0, -1.0, float("nan")):
            with self.raises(CheckpointerConfigurationError):
                self.open().watch("t", interval=interval)

    def test_wait_for_resume_returns_after_the_last_answer(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 0}))
        assert_same(saver.wait_for_resume("t"), True)
        saver.put_writes(CONFIG, {"interrupt:i": make_interrupt("x"), "interrupt:j": make_interrupt("y")})
        assert_same(saver.wait_for_resume("t", 0, interval=_INTERVAL), False)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(saver.wait_for_resume, CONFIG, TIMEOUT, interval=_INTERVAL)
            other = self.open_again(saver)
            other.put_writes(CONFIG, {"answer:i": None})
            assert_same(saver.wait_for_resume("t", 0.05, interval=_INTERVAL), False)
            assert_true(not waiter.done(), "wait_for_resume returned before the answer")
            other.put_writes(CONFIG, {"answer:j": 1})
            assert_same(waiter.result(TIMEOUT), True)

    def test_wait_for_resume_returns_when_the_thread_moves_on(self) -> None:
        calls: list[Callable[[BaseCheckpointSaver], object]] = [
            lambda saver: saver.put(CONFIG, made({"n": 1})),
            lambda saver: saver.release(CONFIG),
            lambda saver: saver.delete("t"),
        ]
        for call in calls:
            saver = self.open()
            saver.put(CONFIG, made({"n": 0}))
            saver.put_writes(CONFIG, {"interrupt:i": make_interrupt("x")})
            with ThreadPoolExecutor(1) as pool:
                waiter = pool.submit(saver.wait_for_resume, "t", TIMEOUT, interval=_INTERVAL)
                call(self.open_again(saver))
                assert_same(waiter.result(TIMEOUT), True)

    def test_wait_for_resume_covers_nested_subgraphs(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 0}))
        saver.put(make_config("t", namespace="sub"), made({"n": 0}))
        saver.put_writes(make_config("t", namespace="sub"), {"interrupt:i": make_interrupt("x")})
        saver.put_writes(CONFIG, {"inner:i": "sub", "inner:k": "in a saver of its own"})
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(saver.wait_for_resume, "t", TIMEOUT, interval=_INTERVAL)
            other = self.open_again(saver)
            other.put_writes(make_config("t", namespace="sub"), {"answer:i": None})
            assert_same(saver.wait_for_resume("t", 0.05, interval=_INTERVAL), False)
            other.put_writes(CONFIG, {"inner:k": None})
            assert_same(waiter.result(TIMEOUT), True)


def _put(saver: BaseCheckpointSaver, config: RunnableConfig, number: int) -> str:
    """Put a checkpoint and return its id."""
    checkpoint = made({"n": number})
    assert_equal(saver.put(config, checkpoint).checkpoint_id, checkpoint.id)
    return checkpoint.id


def _get_change(watch: Watch, kind: str) -> Change:
    """Return the next change, which must be of this kind.

    Changes of the kind "idle" (a run lock is free) are skipped: not every saver reports them.
    """
    change = watch.get(TIMEOUT)
    while change is not None and change.kind == "idle":
        change = watch.get(TIMEOUT)
    change = assert_not_none(change)
    assert_equal(change.kind, kind, f"the kind of {change!r}")
    return change


def _collect_until(watch: Watch, *ids: str) -> list[Change]:
    """Return the changes that a watch reports until it has reported all these checkpoints."""
    missing = set(ids)
    changes: list[Change] = []
    while missing:
        change = assert_not_none(watch.get(TIMEOUT))
        changes.append(change)
        if change.checkpoint is not None:
            missing.discard(change.checkpoint.id)
    return changes


def _get_checkpoint_ids(changes: Iterable[Change]) -> list[str]:
    checkpoints = [change.checkpoint for change in changes if change.kind == "checkpoint"]
    return [checkpoint.id for checkpoint in checkpoints if checkpoint is not None]
