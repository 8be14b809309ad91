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
from graphkit.testing._values import CONFIG, equal, expect, made, make_config, make_interrupt, present, same

_INTERVAL = 0.01
"""The polling interval of savers without change events, in seconds."""


class WatchTests(ContractTests):
    """Which changes a watch reports, and how long `wait_for_resume` waits."""

    def test_a_watch_tells_what_is_put_from_now_on_in_order(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 0}))
        with saver.watch("t", interval=_INTERVAL) as watch:
            other = self.open_again(saver)
            ids = [_put(other, CONFIG, n) for n in range(1, 20)]
            changes = _collect_until(watch, ids[-1])
        equal(_get_checkpoint_ids(changes), ids)
        for change in changes:
            equal(change.kind, "checkpoint")
            equal(change.thread_id, "t")
            equal(change.checkpoint_ns, "")

    def test_a_watch_tells_stops_answers_and_failures(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 0}))
        with saver.watch(CONFIG, interval=_INTERVAL) as watch:
            other = self.open_again(saver)
            other.put_writes(CONFIG, {"interrupt:i": make_interrupt("x", {"why": 1}), "once:1": 2})
            equal(_get_change(watch, "interrupt").id, "i")
            other.put_writes(CONFIG, {"answer:i": {"yes": True}})
            answer = _get_change(watch, "answer")
            equal(answer.id, "i")
            same(answer.value, {"yes": True})
            other.put_writes(CONFIG, {"failure": {"node_id": "a", "type": "E", "message": "m", "at": 1}})
            equal(_get_change(watch, "failure").value["message"], "m")
            same(watch.get(0), None)

    def test_a_watch_can_begin_at_a_checkpoint(self) -> None:
        saver = self.open()
        ids = [_put(saver, CONFIG, n) for n in range(2)]
        saver.put_writes(CONFIG, {"interrupt:i": make_interrupt("x")})
        ids += [_put(saver, CONFIG, n) for n in range(2, 5)]
        with saver.watch(make_config("t", ids[1]), interval=_INTERVAL) as watch:
            changes = _collect_until(watch, ids[-1])
        equal(_get_checkpoint_ids(changes), ids[2:])
        equal([change.id for change in changes if change.kind == "interrupt"], ["i"])
        with self.raises(CheckpointNotFoundError):
            saver.watch(make_config("t", "unknown"))

    def test_a_watch_can_begin_with_the_latest(self) -> None:
        saver = self.open()
        ids = [_put(saver, CONFIG, n) for n in range(3)]
        saver.put_writes(CONFIG, {"interrupt:i": make_interrupt("x")})
        with saver.watch("t", latest=True, interval=_INTERVAL) as watch:
            first = present(watch.get(TIMEOUT))
            second = present(watch.get(TIMEOUT))
            equal(present(first.checkpoint).id, ids[-1])
            equal((second.kind, second.id), ("interrupt", "i"))
            same(watch.get(0), None)

    def test_a_watch_tells_of_all_threads(self) -> None:
        saver = self.open("lists_threads")
        saver.put(make_config("old"), made({"n": 0}))
        with saver.watch(interval=_INTERVAL) as watch:
            last = [_put(saver, make_config(thread), 1) for thread in ("old", "new", "ünï/cöde")]
            changes = _collect_until(watch, *last)
        expect(all(change.checkpoint is not None for change in changes), f"a change has no checkpoint: {changes}")
        equal(sorted(change.thread_id for change in changes), ["new", "old", "ünï/cöde"])

    def test_a_watch_of_one_thread_tells_of_no_other(self) -> None:
        saver = self.open()
        with saver.watch("t", interval=_INTERVAL) as watch:
            saver.put(make_config("u"), made({"n": 1}))
            own_id = _put(saver, CONFIG, 2)
            (change,) = _collect_until(watch, own_id)
            equal(change.thread_id, "t")

    def test_a_watch_tells_of_the_namespaces_that_it_is_asked_for(self) -> None:
        saver = self.open("lists_namespaces")
        saver.put(make_config("t", namespace="ab"), made({"n": 0}))
        whole_thread = saver.watch("t", interval=_INTERVAL)
        one_namespace = saver.watch(make_config("t", namespace="a"), interval=_INTERVAL)
        with whole_thread, one_namespace:
            ids = [_put(saver, make_config("t", namespace=name), 1) for name in ("ab", "a/b", "a")]
            changes = _collect_until(whole_thread, *ids)
            equal({change.checkpoint_ns for change in changes}, {"ab", "a/b", "a"})
            changes = _collect_until(one_namespace, *ids[1:])
            equal({change.checkpoint_ns for change in changes}, {"a/b", "a"})

    def test_a_watch_tells_of_a_release_and_of_a_delete(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 0}))
        with saver.watch("t", interval=_INTERVAL) as watch:
            saver.release(CONFIG)
            kind = "release" if isinstance(saver, HasVersions) else "delete"
            same(_get_change(watch, kind).checkpoint, None)
            _collect_until(watch, _put(saver, CONFIG, 1))
            saver.delete("t")
            _get_change(watch, "delete")

    def test_a_watch_ends_when_it_is_closed(self) -> None:
        saver = self.open()
        with ThreadPoolExecutor(1) as pool:
            watch = saver.watch("t", interval=_INTERVAL)
            reader = pool.submit(list[Change], watch)
            saver.put(CONFIG, made({"n": 0}))
            watch.close()
            equal({change.kind for change in reader.result(TIMEOUT)} - {"checkpoint"}, set())
        same(watch.get(TIMEOUT), None)

    def test_a_watch_can_be_woken(self) -> None:
        watch = self.open().watch("t", interval=_INTERVAL)
        with watch, ThreadPoolExecutor(1) as pool:
            reader = pool.submit(watch.get)
            watch.wake()
            same(reader.result(TIMEOUT), None)
            same(watch.get(0), None)

    def test_a_watch_comes_back_in_time_however_often_it_looks(self) -> None:
        with ThreadPoolExecutor(1) as pool, self.open().watch("t", interval=1e-9) as watch:
            same(pool.submit(watch.get, 0.0).result(TIMEOUT), None)

    def test_a_watch_wants_an_interval_above_zero(self) -> None:
        for interval in (0.0, -1.0, float("nan")):
            with self.raises(CheckpointerConfigurationError):
                self.open().watch("t", interval=interval)

    def test_waiting_for_an_answer(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 0}))
        same(saver.wait_for_resume("t"), True)
        saver.put_writes(CONFIG, {"interrupt:i": make_interrupt("x"), "interrupt:j": make_interrupt("y")})
        same(saver.wait_for_resume("t", 0, interval=_INTERVAL), False)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(saver.wait_for_resume, CONFIG, TIMEOUT, interval=_INTERVAL)
            other = self.open_again(saver)
            other.put_writes(CONFIG, {"answer:i": None})
            same(saver.wait_for_resume("t", 0.05, interval=_INTERVAL), False)
            expect(not waiter.done(), "wait_for_resume returned before the answer")
            other.put_writes(CONFIG, {"answer:j": 1})
            same(waiter.result(TIMEOUT), True)

    def test_waiting_ends_when_somebody_moves_on(self) -> None:
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
                same(waiter.result(TIMEOUT), True)

    def test_waiting_for_an_answer_in_an_embedded_graph(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 0}))
        saver.put(make_config("t", namespace="sub"), made({"n": 0}))
        saver.put_writes(make_config("t", namespace="sub"), {"interrupt:i": make_interrupt("x")})
        saver.put_writes(CONFIG, {"inner:i": "sub", "inner:k": "in a saver of its own"})
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(saver.wait_for_resume, "t", TIMEOUT, interval=_INTERVAL)
            other = self.open_again(saver)
            other.put_writes(make_config("t", namespace="sub"), {"answer:i": None})
            same(saver.wait_for_resume("t", 0.05, interval=_INTERVAL), False)
            other.put_writes(CONFIG, {"inner:k": None})
            same(waiter.result(TIMEOUT), True)


def _put(saver: BaseCheckpointSaver, config: RunnableConfig, number: int) -> str:
    """Put a checkpoint and return its id."""
    checkpoint = made({"n": number})
    equal(saver.put(config, checkpoint).checkpoint_id, checkpoint.id)
    return checkpoint.id


def _get_change(watch: Watch, kind: str) -> Change:
    """Return the next change, which must be of this kind.

    Changes of the kind "idle" (a run lock is free) are skipped: not every saver reports them.
    """
    change = watch.get(TIMEOUT)
    while change is not None and change.kind == "idle":
        change = watch.get(TIMEOUT)
    change = present(change)
    equal(change.kind, kind, f"the kind of {change!r}")
    return change


def _collect_until(watch: Watch, *ids: str) -> list[Change]:
    """Return the changes that a watch reports until it has reported all these checkpoints."""
    missing = set(ids)
    changes: list[Change] = []
    while missing:
        change = present(watch.get(TIMEOUT))
        changes.append(change)
        if change.checkpoint is not None:
            missing.discard(change.checkpoint.id)
    return changes


def _get_checkpoint_ids(changes: Iterable[Change]) -> list[str]:
    checkpoints = [change.checkpoint for change in changes if change.kind == "checkpoint"]
    return [checkpoint.id for checkpoint in checkpoints if checkpoint is not None]
