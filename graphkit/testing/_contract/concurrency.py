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
    derive,
    equal,
    expect,
    grow_list,
    made,
    make_config,
    make_interrupt,
    present,
    same,
    same_checkpoint,
)

R = TypeVar("R")


class ConcurrencyTests(ContractTests):
    """No write is lost or mixed up, and every reader sees it at once."""

    # Many at once

    def test_nothing_is_lost_when_many_write_one_thread(self) -> None:
        saver = self.open()
        savers = [saver if n % 2 else self.open_again(saver) for n in range(6)]

        def write(number: int) -> list[str]:
            ids = []
            for n in range(10):
                stored = savers[number].put(CONFIG, made({"who": [number, n], "text": "x" * n}))
                ids.append(stored.checkpoint_id or "")
                states = {checkpoint.id: checkpoint.state for checkpoint in savers[number].list(CONFIG)}
                expect(ids[-1] in states, f"{ids[-1]} was put, and the history does not have it: {[*states]}")
                same(states[ids[-1]]["who"], [number, n])
            return ids

        written = _run_concurrently(write, len(savers))
        for reader in (saver, self.open_again(saver)):
            order = get_ids(reversed(reader.list(CONFIG)))
            equal(len(order), 60)
            equal(len(set(order)), 60)
            for number, ids in enumerate(written):
                own_order = [id_ for id_ in order if id_ in ids]
                equal(own_order, ids, "the checkpoints of one writer, in the order of the history")
                for n, id_ in enumerate(ids):
                    loaded = present(reader.get(make_config("t", id_)))
                    same(loaded.state, {"who": [number, n], "text": "x" * n})

    def test_nothing_is_mixed_up_when_many_write_many_threads(self) -> None:
        saver = self.open()

        def write(number: int) -> list[Checkpoint]:
            return grow_list(saver, make_config(f"thread {number}"), 12)

        for number, history in enumerate(_run_concurrently(write, 8)):
            self.assert_history(saver, make_config(f"thread {number}"), history)

    def test_no_write_is_lost_when_many_record_beside_one_checkpoint(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 1}))

        def write(number: int) -> None:
            for n in range(5):
                saver.put_writes(CONFIG, {f"{number} {n}": n})
                saver.add_tags(CONFIG, f"{number} {n}")

        _run_concurrently(write, 6)
        expected = sorted(f"{number} {n}" for number in range(6) for n in range(5))
        equal(sorted(self.open_again(saver).get_writes(CONFIG)), expected)
        equal(sorted(self.open_again(saver).tags_of(CONFIG)), expected)

    # Another object, another process

    def test_two_objects_on_one_store_see_each_other_at_once(self) -> None:
        saver = self.open()
        other = self.open_again(saver)
        checkpoints: list[Checkpoint] = []
        for number in range(6):
            writer, reader = (saver, other) if number % 2 else (other, saver)
            checkpoints.append(made({"list": [*range(number)]}))
            writer.put(CONFIG, checkpoints[-1])
            same_checkpoint(reader.get(CONFIG), checkpoints[-1])
            writer.put_writes(CONFIG, {"w": number})
            same(reader.get_writes(CONFIG), {"w": number})
            equal(len(reader.list(CONFIG)), number + 1)
        following = derive(checkpoints[-1], {"list": ["x"]}, GROWING)
        saver.put(CONFIG, following)
        last = derive(following, {"list": ["y"]}, GROWING)
        other.put(CONFIG, last)
        same_checkpoint(saver.get(CONFIG), last)
        checkpoints[0] = made({"list": "replaced"}, id=checkpoints[0].id)
        other.put(make_config("t", checkpoints[0].id), checkpoints[0])
        same_checkpoint(saver.get(make_config("t", checkpoints[0].id)), checkpoints[0])
        equal(len(other.release(CONFIG).checkpoints), 8)
        same(saver.get(CONFIG), None)
        fresh = made({"list": "fresh"})
        saver.put(CONFIG, fresh)
        same_checkpoint(other.get(CONFIG), fresh)

    def test_what_was_written_behind_its_back_is_read(self) -> None:
        saver = self.open()
        first = made({"list": [1, (2,)]})
        planted = made({"list": [1, (2,), 3]})
        saver.put(CONFIG, first)
        if not self.plant(saver, CONFIG, planted):
            self.skip("`plant` is not implemented")
        self.assert_history(saver, CONFIG, [first, planted])

    def test_what_it_writes_is_there_for_others(self) -> None:
        saver = self.open()
        grow_list(saver, CONFIG, 3)
        states = self.peek(saver, CONFIG)
        if states is None:
            self.skip("`peek` is not implemented")
        equal([state["list"] for state in states], [[0, 1, 2], [0, 1], [0]])

    # Async

    def test_async_twins_do_the_same(self) -> None:
        _run_coroutine(self._check_async_methods(self.open()))

    async def _check_async_methods(self, saver: BaseCheckpointSaver) -> None:
        first = made({"n": 1}, metadata={"k": 1})
        second = made({"n": 2})
        stored = await saver.aput(CONFIG, first)
        equal(stored, make_config("t", first.id))
        await saver.aput(CONFIG, second)
        equal(get_ids(await saver.alist(CONFIG)), [second.id, first.id])
        same_checkpoint(await saver.aget(stored), first)
        same_checkpoint(await saver.aget(CONFIG), second)
        await saver.aput_writes(CONFIG, {INTERRUPT + "i": make_interrupt()})
        same(await saver.aget_writes(CONFIG), {INTERRUPT + "i": make_interrupt()})
        saver.add_tags(stored, "two")
        await saver.acopy("t", "u")
        equal(await saver.aprune("t", keep_last=1, keep_tags=("two",)), 0)
        equal(await saver.aprune("t", keep_last=1), 1)
        with self.raises(ValueError):
            await saver.aprune("t")
        with self.raises(CheckpointNotFoundError):
            await saver.aput(make_config("t", "unknown"), second)
        tag = await saver.arelease(CONFIG)
        equal(get_ids(tag.checkpoints), [second.id])
        same(await saver.adelete("u"), True)
        same(await saver.aget(make_config("u")), None)


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
