"""Watches, and waiting for an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.versions import HasVersions
from graphkit._saver.watch import Change, Watch
from graphkit.errors import CheckpointerConfigurationError, CheckpointNotFoundError
from graphkit.testing._contract.base import PATIENCE, SaverTests
from graphkit.testing._values import at, made, same, stop

_OFTEN = 0.01


class WatchTests(SaverTests):
    """What a watch reports, and how long `wait_for_resume` blocks."""

    def test_a_watch_tells_what_is_put_from_now_on_in_order(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 0}))
        with saver.watch("t", interval=_OFTEN) as watch:
            other = self.open_again(saver)
            put = [other.put(at(), made({"n": n})).checkpoint_id for n in range(1, 20)]
            found = _until(watch, put[-1])
        assert [change.checkpoint.id for change in found if change.checkpoint] == put
        assert {change.kind for change in found} == {"checkpoint"}
        assert {(change.thread_id, change.checkpoint_ns) for change in found} == {("t", "")}

    def test_a_watch_tells_stops_answers_and_failures(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 0}))
        with saver.watch(at(), interval=_OFTEN) as watch:
            other = self.open_again(saver)
            other.put_writes(at(), {"interrupt:i": stop("x", {"why": 1}), "once:1": 2})
            assert _next(watch, "interrupt")[4] == "i"
            other.put_writes(at(), {"answer:i": {"yes": True}})
            answer = _next(watch, "answer")
            assert answer.id == "i"
            same(answer.value, {"yes": True})
            other.put_writes(at(), {"failure": {"node_id": "a", "type": "E", "message": "m", "at": 1}})
            assert _next(watch, "failure").value["message"] == "m"
            assert watch.get(0) is None

    def test_a_watch_can_begin_at_a_checkpoint(self) -> None:
        saver = self.open()
        ids = [saver.put(at(), made({"n": n})).checkpoint_id for n in range(2)]
        saver.put_writes(at(), {"interrupt:i": stop("x")})
        ids += [saver.put(at(), made({"n": n})).checkpoint_id for n in range(2, 5)]
        with saver.watch(at("t", ids[1]), interval=_OFTEN) as watch:
            found = _until(watch, ids[-1])
        assert [one.checkpoint.id for one in found if one.kind == "checkpoint" and one.checkpoint] == ids[2:]
        assert [one.id for one in found if one.kind == "interrupt"] == ["i"]
        with self.raises(CheckpointNotFoundError):
            saver.watch(at("t", "unknown"))

    def test_a_watch_can_begin_with_the_latest(self) -> None:
        saver = self.open()
        ids = [saver.put(at(), made({"n": n})).checkpoint_id for n in range(3)]
        saver.put_writes(at(), {"interrupt:i": stop("x")})
        with saver.watch("t", latest=True, interval=_OFTEN) as watch:
            first, second = watch.get(PATIENCE), watch.get(PATIENCE)
            assert first is not None
            assert first.checkpoint is not None
            assert first.checkpoint.id == ids[-1]
            assert second is not None
            assert (second.kind, second.id) == ("interrupt", "i")
            assert watch.get(0) is None

    def test_a_watch_tells_of_all_threads(self) -> None:
        saver = self.open("lists_threads")
        saver.put(at("old"), made({"n": 0}))
        with saver.watch(interval=_OFTEN) as watch:
            last = [saver.put(at(thread), made({"n": 1})).checkpoint_id for thread in ("old", "new", "ünï/cöde")]
            missing, found = set(last), []
            while missing:
                found.append(watch.get(PATIENCE))
                assert found[-1] is not None
                assert found[-1].checkpoint is not None
                missing.discard(found[-1].checkpoint.id)
        assert sorted(one.thread_id for one in found if one) == ["new", "old", "ünï/cöde"]

    def test_a_watch_of_one_thread_tells_of_no_other(self) -> None:
        saver = self.open()
        with saver.watch("t", interval=_OFTEN) as watch:
            saver.put(at("u"), made({"n": 1}))
            mine = saver.put(at("t"), made({"n": 2})).checkpoint_id
            assert [one.thread_id for one in _until(watch, mine)] == ["t"]

    def test_a_watch_tells_of_the_namespaces_that_it_is_asked_for(self) -> None:
        saver = self.open("lists_namespaces")
        saver.put(at("t", None, "ab"), made({"n": 0}))
        with saver.watch("t", interval=_OFTEN) as every, saver.watch(at("t", None, "a"), interval=_OFTEN) as some:
            ids = [saver.put(at("t", None, ns), made({"n": 1})).checkpoint_id for ns in ("ab", "a/b", "a")]
            assert {one.checkpoint_ns for one in _until(every, *ids)} == {"ab", "a/b", "a"}
            assert {one.checkpoint_ns for one in _until(some, *ids[1:])} == {"a/b", "a"}

    def test_a_watch_tells_of_a_release_and_of_a_delete(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 0}))
        with saver.watch("t", interval=_OFTEN) as watch:
            saver.release(at())
            assert _next(watch, "release" if isinstance(saver, HasVersions) else "delete").checkpoint is None
            again = saver.put(at(), made({"n": 1})).checkpoint_id
            _until(watch, again)
            saver.delete("t")
            _next(watch, "delete")

    def test_a_watch_ends_when_it_is_closed(self) -> None:
        saver = self.open()
        with ThreadPoolExecutor(1) as pool:
            watch = saver.watch("t", interval=_OFTEN)
            reader = pool.submit(list[Change], watch)
            saver.put(at(), made({"n": 0}))
            watch.close()
            assert all(one.kind == "checkpoint" for one in reader.result(PATIENCE))
        assert watch.get(PATIENCE) is None

    def test_a_watch_can_be_woken(self) -> None:
        watch = self.open().watch("t", interval=_OFTEN)
        with watch, ThreadPoolExecutor(1) as pool:
            reader = pool.submit(watch.get)
            watch.wake()
            assert reader.result(PATIENCE) is None
            assert watch.get(0) is None

    def test_a_watch_comes_back_in_time_however_often_it_looks(self) -> None:
        with ThreadPoolExecutor(1) as pool, self.open().watch("t", interval=1e-9) as watch:
            assert pool.submit(watch.get, 0.0).result(PATIENCE) is None

    def test_a_watch_wants_an_interval_above_zero(self) -> None:
        for interval in (0.0, -1.0, float("nan")):
            with self.raises(CheckpointerConfigurationError):
                self.open().watch("t", interval=interval)

    def test_waiting_for_an_answer(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 0}))
        assert saver.wait_for_resume("t") is True
        saver.put_writes(at(), {"interrupt:i": stop("x"), "interrupt:j": stop("y")})
        assert saver.wait_for_resume("t", 0, interval=_OFTEN) is False
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(saver.wait_for_resume, at(), PATIENCE, interval=_OFTEN)
            other = self.open_again(saver)
            other.put_writes(at(), {"answer:i": None})
            assert saver.wait_for_resume("t", 0.05, interval=_OFTEN) is False
            assert not waiter.done()
            other.put_writes(at(), {"answer:j": 1})
            assert waiter.result(PATIENCE) is True

    def test_waiting_ends_when_somebody_moves_on(self) -> None:
        calls: list[Callable[[BaseCheckpointSaver], object]] = [
            lambda saver: saver.put(at(), made({"n": 1})),
            lambda saver: saver.release(at()),
            lambda saver: saver.delete("t"),
        ]
        for call in calls:
            saver = self.open()
            saver.put(at(), made({"n": 0}))
            saver.put_writes(at(), {"interrupt:i": stop("x")})
            with ThreadPoolExecutor(1) as pool:
                waiter = pool.submit(saver.wait_for_resume, "t", PATIENCE, interval=_OFTEN)
                call(self.open_again(saver))
                assert waiter.result(PATIENCE) is True

    def test_waiting_for_an_answer_in_an_embedded_graph(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 0}))
        saver.put(at("t", None, "sub"), made({"n": 0}))
        saver.put_writes(at("t", None, "sub"), {"interrupt:i": stop("x")})
        saver.put_writes(at(), {"inner:i": "sub", "inner:k": "in a saver of its own"})
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(saver.wait_for_resume, "t", PATIENCE, interval=_OFTEN)
            other = self.open_again(saver)
            other.put_writes(at("t", None, "sub"), {"answer:i": None})
            assert saver.wait_for_resume("t", 0.05, interval=_OFTEN) is False
            other.put_writes(at(), {"inner:k": None})
            assert waiter.result(PATIENCE) is True

    def test_async_twins_of_following(self) -> None:
        import asyncio

        saver = self.open()
        saver.put(at(), made({"n": 0}))
        asyncio.run(_follow(saver))


async def _follow(saver: BaseCheckpointSaver) -> None:
    changes = saver.awatch("t", latest=True, interval=_OFTEN)
    assert (await anext(changes)).kind == "checkpoint"
    await saver.aput_writes(at(), {"interrupt:i": stop("x")})
    assert (await anext(changes)).kind == "interrupt"
    assert await saver.await_for_resume("t", 0, interval=_OFTEN) is False
    await changes.aclose()  # type: ignore[attr-defined]
    await saver.aput_writes(at(), {"answer:i": 1})
    assert await saver.await_for_resume("t", PATIENCE, interval=_OFTEN) is True


def _next(watch: Watch, kind: str) -> Change:
    """Return the next change, but not `idle`, which only some savers report."""
    while (change := watch.get(PATIENCE)) is not None and change.kind == "idle":
        pass
    assert change is not None
    assert change.kind == kind, change
    return change


def _until(watch: Watch, *ids: str | None) -> list[Change]:
    """Return the changes up to those of these checkpoints."""
    missing, found = {*_known(ids)}, []
    while missing:
        found.append(watch.get(PATIENCE))
        assert found[-1] is not None
        if found[-1].checkpoint is not None:
            missing.discard(found[-1].checkpoint.id)
    return [one for one in found if one is not None]


def _known(ids: Iterable[str | None]) -> Iterable[str]:
    return (one for one in ids if one is not None)
