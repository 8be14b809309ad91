"""Concurrent callers: threads, other objects on the same store, and coroutines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from graphkit._records.checkpoint import Checkpoint
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import INTERRUPT
from graphkit.errors import CheckpointNotFoundError
from graphkit.testing._contract.base import TIMEOUT, ContractTests, get_ids
from graphkit.testing._values import (
    CONFIG,
    GROWING,
    assert_equal,
    assert_not_none,
    assert_same,
    assert_same_checkpoint,
    assert_true,
    derive,
    grow_list,
    made,
    make_config,
    make_interrupt,
)

R = TypeVar("R")


class ConcurrencyTests(ContractTests):
    """No write is lost or mixed up, and every reader sees it at once."""

    # Many at once

    def test_concurrent_puts_to_one_thread_lose_nothing(self) -> None:
        saver = self.open()
        savers = [saver if n % 2 else self.open_again(saver) for n in range(6)]

        def write(number: int) -> list[str]:
            ids = []
            for n in range(10):
                stored = savers[number].put(CONFIG, made({"who": [number, n], "text": "x" * n}))
                ids.append(stored.checkpoint_id or "")
                states = {checkpoint.id: checkpoint.state for checkpoint in savers[number].list(CONFIG)}
                assert_true(ids[-1] in states, f"{ids[-1]} was put, and the history does not have it: {[*states]}")
                assert_same(states[ids[-1]]["who"], [number, n])
            return ids

        written = _run_concurrently(write, len(savers))
        for reader in (saver, self.open_again(saver)):
            order = get_ids(reversed(reader.list(CONFIG)))
            assert_equal(len(order), 60)
            assert_equal(len(set(order)), 60)
            for number, ids in enumerate(written):
                own_order = [id_ for id_ in order if id_ in ids]
                assert_equal(own_order, ids, "the checkpoints of one writer, in the order of the history")
                for n, id_ in enumerate(ids):
                    loaded = assert_not_none(reader.get(make_config("t", id_)))
                    assert_same(loaded.state, {"who": [number, n], "text": "x" * n})

    def test_concurrent_puts_to_many_threads_are_isolated(self) -> None:
        saver = self.open()

        def write(number: int) -> list[Checkpoint]:
            return grow_list(saver, make_config(f"thread {number}"), 12)

        for number, history in enumerate(_run_concurrently(write, 8)):
            self.assert_history(saver, make_config(f"thread {number}"), history)

    def test_concurrent_put_writes_to_one_checkpoint_lose_nothing(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 1}))

        def write(number: int) -> None:
            for n in range(5):
                saver.put_writes(CONFIG, {f"{number} {n}": n})
                saver.add_tags(CONFIG, f"{number} {n}")

        _run_concurrently(write, 6)
        expected = sorted(f"{number} {n}" for number in range(6) for n in range(5))
        assert_equal(sorted(self.open_again(saver).get_writes(CONFIG)), expected)
        assert_equal(sorted(self.open_again(saver).tags_of(CONFIG)), expected)

    # Another object, another process

    def test_two_savers_on_one_store_read_each_other_immediately(self) -> None:
        saver = self.open()
        other = self.open_again(saver)
        checkpoints: list[Checkpoint] = []
        for number in range(6):
            writer, reader = (saver, other) if number % 2 else (other, saver)
            checkpoints.append(made({"list": [*range(number)]}))
            writer.put(CONFIG, checkpoints[-1])
            assert_same_checkpoint(reader.get(CONFIG), checkpoints[-1])
            writer.put_writes(CONFIG, {"w": number})
            assert_same(reader.get_writes(CONFIG), {"w": number})
            assert_equal(len(reader.list(CONFIG)), number + 1)
        following = derive(checkpoints[-1], {"list": ["x"]}, GROWING)
        saver.put(CONFIG, following)
        last = derive(following, {"list": ["y"]}, GROWING)
        other.put(CONFIG, last)
        assert_same_checkpoint(saver.get(CONFIG), last)
        checkpoints[0] = made({"list": "replaced"}, id=checkpoints[0].id)
        other.put(make_config("t", checkpoints[0].id), checkpoints[0])
        assert_same_checkpoint(saver.get(make_config("t", checkpoints[0].id)), checkpoints[0])
        assert_equal(len(other.release(CONFIG).checkpoints), 8)
        assert_same(saver.get(CONFIG), None)
        fresh = made({"list": "fresh"})
        saver.put(CONFIG, fresh)
        assert_same_checkpoint(other.get(CONFIG), fresh)

    def test_a_checkpoint_written_without_the_saver_is_read(self) -> None:
        saver = self.open()
        first = made({"list": [1, (2,)]})
        planted = made({"list": [1, (2,), 3]})
        saver.put(CONFIG, first)
        if not self.plant(saver, CONFIG, planted):
            self.skip("`plant` is not implemented")
        self.assert_history(saver, CONFIG, [first, planted])

    def test_a_put_is_visible_without_the_saver(self) -> None:
        saver = self.open()
        grow_list(saver, CONFIG, 3)
        states = self.peek(saver, CONFIG)
        if states is None:
            self.skip("`peek` is not implemented")
        assert_equal([state["list"] for state in states], [[0, 1, 2], [0, 1], [0]])

    # Async

    def test_async_methods_match_the_sync_methods(self) -> None:
        _run_coroutine(self._check_async_methods(self.open()))

    async def _check_async_methods(self, saver: BaseCheckpointSaver) -> None:
        first = made({"n": 1}, metadata={"k": 1})
        second = made({"n": 2})
        stored = await saver.aput(CONFIG, first)
        assert_equal(stored, make_config("t", first.id))
        await saver.aput(CONFIG, second)
        assert_equal(get_ids(await saver.alist(CONFIG)), [second.id, first.id])
        assert_same_checkpoint(await saver.aget(stored), first)
        assert_same_checkpoint(await saver.aget(CONFIG), second)
        await saver.aput_writes(CONFIG, {INTERRUPT + "i": make_interrupt()})
        assert_same(await saver.aget_writes(CONFIG), {INTERRUPT + "i": make_interrupt()})
        saver.add_tags(stored, "two")
        await saver.acopy("t", "u")
        assert_equal(await saver.aprune("t", keep_last=1, keep_tags=("two",)), 0)
        assert_equal(await saver.aprune("t", keep_last=1), 1)
        with self.raises(ValueError):
            await saver.aprune("t")
        with self.raises(CheckpointNotFoundError):
            await saver.aput(make_config("t", "unknown"), second)
        tag = await saver.arelease(CONFIG)
        assert_equal(get_ids(tag.checkpoints), [second.id])
        assert_same(await saver.adelete("u"), True)
        assert_same(await saver.aget(make_config("u")), None)


def _run_concurrently(call: Callable[[int], R], count: int) -> list[R]:
    """Call a function with each number below `count`, each in a thread, at the same moment."""
    start = threading.Barrier(count)

    def run(number: int) -> R:
        start.wait(TIMEOUT)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return [*pool.map(run, range(count))]


def _run_coroutine(coroutine: Coroutine[Any, Any, None]) -> None:
    import asyncio

    asyncio.run(coroutine)
