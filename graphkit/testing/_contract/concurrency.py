"""Concurrent callers: threads, several objects on one store, coroutines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from graphkit._records.checkpoint import Checkpoint
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import INTERRUPT
from graphkit.errors import CheckpointNotFoundError
from graphkit.testing._contract.base import PATIENCE, SaverTests
from graphkit.testing._values import GROWING, at, derived, grow_list, made, same, same_checkpoint, stop

R = TypeVar("R")


class ConcurrencyTests(SaverTests):
    """No write is lost or mixed up, and every reader sees it at once."""

    # Concurrent writers

    def test_nothing_is_lost_when_many_write_one_thread(self) -> None:
        saver = self.open()
        savers = [saver if n % 2 else self.open_again(saver) for n in range(6)]

        def write(number: int) -> list[str]:
            ids = []
            for n in range(10):
                stored = savers[number].put(at(), made({"who": [number, n], "text": "x" * n}))
                ids.append(stored.checkpoint_id or "")
                seen = savers[number].list(at())
                assert ids[-1] in {one.id for one in seen}
                same(next(one for one in seen if one.id == ids[-1]).state["who"], [number, n])
            return ids

        written = _all_at_once(write, len(savers))
        for reader in (saver, self.open_again(saver)):
            order = [one.id for one in reversed(reader.list(at()))]
            assert len(order) == len(set(order)) == 60  # noqa: PLR2004
            for number, ids in enumerate(written):
                assert [one for one in order if one in set(ids)] == ids, "each writer's own order stays"
                for n, one in enumerate(ids):
                    found = reader.get(at("t", one))
                    assert found is not None
                    same(found.state, {"who": [number, n], "text": "x" * n})

    def test_nothing_is_mixed_up_when_many_write_many_threads(self) -> None:
        saver = self.open()

        def write(number: int) -> list[Checkpoint]:
            return grow_list(saver, at(f"thread {number}"), 12)

        for number, history in enumerate(_all_at_once(write, 8)):
            self.assert_history(saver, at(f"thread {number}"), history)

    def test_no_write_is_lost_when_many_record_beside_one_checkpoint(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))

        def write(number: int) -> None:
            for n in range(5):
                saver.put_writes(at(), {f"{number} {n}": n})
                saver.add_tags(at(), f"{number} {n}")

        _all_at_once(write, 6)
        expected = sorted(f"{number} {n}" for number in range(6) for n in range(5))
        assert sorted(self.open_again(saver).get_writes(at())) == expected
        assert sorted(self.open_again(saver).tags_of(at())) == expected

    # Another object, another process

    def test_two_objects_on_one_store_see_each_other_at_once(self) -> None:
        saver = self.open()
        other = self.open_again(saver)
        checkpoints: list[Checkpoint] = []
        for number in range(6):
            writer, reader = (saver, other) if number % 2 else (other, saver)
            checkpoints.append(made({"list": [*range(number)]}))
            writer.put(at(), checkpoints[-1])
            same_checkpoint(reader.get(at()), checkpoints[-1])
            writer.put_writes(at(), {"w": number})
            same(reader.get_writes(at()), {"w": number})
            assert len(reader.list(at())) == number + 1
        following = derived(checkpoints[-1], {"list": ["x"]}, GROWING)
        saver.put(at(), following)
        last = derived(following, {"list": ["y"]}, GROWING)
        other.put(at(), last)
        same_checkpoint(saver.get(at()), last)
        checkpoints[0] = made({"list": "replaced"}, id=checkpoints[0].id)
        other.put(at("t", checkpoints[0].id), checkpoints[0])
        same_checkpoint(saver.get(at("t", checkpoints[0].id)), checkpoints[0])
        assert len(other.release(at()).checkpoints) == 8  # noqa: PLR2004
        assert saver.get(at()) is None
        anew = made({"list": "anew"})
        saver.put(at(), anew)
        same_checkpoint(other.get(at()), anew)

    def test_what_was_written_behind_its_back_is_read(self) -> None:
        saver = self.open()
        first, planted = made({"list": [1, (2,)]}), made({"list": [1, (2,), 3]})
        saver.put(at(), first)
        if not self.plant(saver, at(), planted):
            self.skip("there is no other way to write")
        self.assert_history(saver, at(), [first, planted])

    def test_what_it_writes_is_there_for_others(self) -> None:
        saver = self.open()
        grow_list(saver, at(), 3)
        states = self.peek(saver, at())
        if states is None:
            self.skip("there is no other way to read")
        assert [state["list"] for state in states] == [[0, 1, 2], [0, 1], [0]]

    # Async

    def test_async_twins_do_the_same(self) -> None:
        _run(self._walk_the_async_twins(self.open()))

    async def _walk_the_async_twins(self, saver: BaseCheckpointSaver) -> None:
        first, second = made({"n": 1}, metadata={"k": 1}), made({"n": 2})
        stored = await saver.aput(at(), first)
        assert stored == at("t", first.id)
        await saver.aput(at(), second)
        assert [one.id for one in await saver.alist(at())] == [second.id, first.id]
        same_checkpoint(await saver.aget(stored), first)
        same_checkpoint(await saver.aget(at()), second)
        assert [one.id for one in await saver.ahistory(at())] == [second.id, first.id]
        assert [*await saver.anamespaces("t")] == [""]
        await saver.aput_writes(at(), {INTERRUPT + "i": stop()})
        same(await saver.aget_writes(at()), {INTERRUPT + "i": stop()})
        assert [one.id for one in await saver.ainterrupts("t")] == ["i"]
        await saver.aadd_tags(stored, "one", "two")
        await saver.aremove_tags(stored, "one")
        assert await saver.atags_of(stored) == ("two",)
        assert [one.id for one in await saver.asearch({"k": 1}, thread_id="t", limit=5)] == [first.id]
        await saver.acopy("t", "u")
        assert await saver.aprune("t", keep_last=1, keep_tags=("two",)) == 0
        assert await saver.aprune("t", keep_last=1) == 1
        with self.raises(ValueError):
            await saver.aprune("t")
        with self.raises(CheckpointNotFoundError):
            await saver.aput(at("t", "unknown"), second)
        tag = await saver.arelease(at())
        assert [one.id for one in tag.checkpoints] == [second.id]
        assert await saver.adelete("u") is True
        assert await saver.aget(at("u")) is None

    def test_async_twins_of_what_needs_a_list_of_threads(self) -> None:
        saver = self.open("lists_threads", "measures_size")

        async def walk() -> None:
            await saver.aput(at(), made({"n": 1}))
            assert [*await saver.athreads()] == ["t"]
            assert [*await saver.athreads(released=True)] == ["t"]
            assert await saver.asize("t") > 0
            assert await saver.asize() > 0
            assert [*await saver.ainterrupts()] == []

        _run(walk())


def _all_at_once(call: Callable[[int], R], count: int) -> list[R]:
    start = threading.Barrier(count)

    def run(number: int) -> R:
        start.wait(PATIENCE)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return [*pool.map(run, range(count))]


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    import asyncio

    asyncio.run(coroutine)
