"""Concurrent callers: threads, other objects on the same store, and coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from graphkit._records.checkpoint import Checkpoint
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import INTERRUPT
from graphkit.errors import CheckpointNotFoundError
from graphkit.testing import _check as check
from graphkit.testing._contract.base import TIMEOUT, ContractTests
from graphkit.testing._values import (
    CONFIG,
    OTHER,
    UNKNOWN,
    config_of,
    extend_list,
    grow_list,
    made,
    make_config,
    make_interrupt,
    put_state,
)

R = TypeVar("R")


class ConcurrencyTests(ContractTests):
    """No write is lost or mixed up, and every reader sees it at once."""

    # Concurrent writers

    def test_concurrent_puts_to_one_thread_lose_nothing(self) -> None:
        saver = self.open()
        # Half of the writers share a saver object; the others have one each.
        savers = [saver if n % 2 else self.open_again(saver) for n in range(6)]

        def write(writer: int) -> list[str]:
            ids = []

            for n in range(10):
                checkpoint = put_state(savers[writer], _make_writer_state(writer, n))
                ids.append(checkpoint.id)

                # The writer itself reads the checkpoint immediately.
                listed = savers[writer].list(CONFIG)
                states = {loaded.id: loaded.state for loaded in listed}
                is_listed = checkpoint.id in states

                check.true(is_listed, f"list() lacks the checkpoint {checkpoint.id} that was put: {[*states]}")
                check.same(states[checkpoint.id], checkpoint.state)

            return ids

        ids_by_writer = _run_concurrently(write, len(savers))

        for reader in self.readers_of(saver):
            listed = reader.list(CONFIG)
            order = check.get_ids(reversed(listed))

            check.count(order, 60)
            check.count(set(order), 60)

            for writer, ids in enumerate(ids_by_writer):
                own_order = [checkpoint_id for checkpoint_id in order if checkpoint_id in ids]
                check.equal(own_order, ids, "the checkpoints of one writer, in the order of the history")

                for n, checkpoint_id in enumerate(ids):
                    config = make_config("t", checkpoint_id)
                    check.state(reader, config, _make_writer_state(writer, n))

    def test_concurrent_puts_to_many_threads_are_isolated(self) -> None:
        saver = self.open()

        def write(number: int) -> list[Checkpoint]:
            config = make_config(f"thread {number}")
            return grow_list(saver, config, 12)

        histories = _run_concurrently(write, 8)

        for number, history in enumerate(histories):
            config = make_config(f"thread {number}")
            self.assert_history(saver, config, history)

    def test_concurrent_put_writes_to_one_checkpoint_lose_nothing(self) -> None:
        saver = self.open()
        put_state(saver, {"n": 1})

        def write(number: int) -> None:
            for n in range(5):
                key = f"{number} {n}"
                saver.put_writes(CONFIG, {key: n})
                saver.add_tags(CONFIG, key)

        _run_concurrently(write, 6)

        expected = sorted(f"{number} {n}" for number in range(6) for n in range(5))
        reader = self.open_again(saver)

        check.equal(sorted(reader.get_writes(CONFIG)), expected)
        check.equal(sorted(reader.tags_of(CONFIG)), expected)

    # Another object, another process

    def test_two_savers_on_one_store_read_each_other_immediately(self) -> None:
        saver, other = self.open_two()
        checkpoints: list[Checkpoint] = []
        writer, reader = saver, other

        for number in range(6):
            # The two take turns, so that each has read, and may have cached, an older history.
            writer, reader = reader, writer
            state = {"list": [*range(number)]}
            checkpoint = put_state(writer, state)
            checkpoints.append(checkpoint)
            check.checkpoint(reader, CONFIG, checkpoint)

            writer.put_writes(CONFIG, {"w": number})
            check.writes(reader, CONFIG, {"w": number})
            check.count(reader.list(CONFIG), number + 1)

        # Changes that build on a checkpoint that the other saver put.
        following = extend_list(checkpoints[-1], "x")
        saver.put(CONFIG, following)
        last = extend_list(following, "y")
        other.put(CONFIG, last)
        check.checkpoint(saver, CONFIG, last)

        first_config = config_of(checkpoints[0])
        replacement = made({"list": "replaced"}, id=checkpoints[0].id)
        other.put(first_config, replacement)
        check.checkpoint(saver, first_config, replacement)

        tag = other.release(CONFIG)
        check.count(tag.checkpoints, 8)
        check.missing(saver)

        fresh = put_state(saver, {"list": "fresh"})
        check.checkpoint(other, CONFIG, fresh)

    def test_a_checkpoint_written_without_the_saver_is_read(self) -> None:
        saver = self.open()
        first = put_state(saver, {"list": [1, (2,)]})
        planted = made({"list": [1, (2,), 3]})
        if not self.plant(saver, CONFIG, planted):
            self.skip("`plant` is not implemented")
        self.assert_history(saver, CONFIG, [first, planted])

    def test_a_put_is_visible_without_the_saver(self) -> None:
        saver = self.open()
        grow_list(saver, CONFIG, 3)
        states = self.peek(saver, CONFIG)
        if states is None:
            self.skip("`peek` is not implemented")
        lists = [state["list"] for state in states]
        check.equal(lists, [[0, 1, 2], [0, 1], [0]])

    # Async

    def test_async_methods_match_the_sync_methods(self) -> None:
        saver = self.open()
        asyncio.run(self._check_async_methods(saver))

    async def _check_async_methods(self, saver: BaseCheckpointSaver) -> None:
        first = made({"n": 1}, metadata={"k": 1})
        second = made({"n": 2})
        stored = await saver.aput(CONFIG, first)
        await saver.aput(CONFIG, second)
        check.equal(stored, config_of(first))

        listed = await saver.alist(CONFIG)
        check.ids(listed, [second, first])
        check.same_checkpoint(await saver.aget(stored), first)
        check.same_checkpoint(await saver.aget(CONFIG), second)

        writes = {INTERRUPT + "i": make_interrupt()}
        await saver.aput_writes(CONFIG, writes)
        check.same(await saver.aget_writes(CONFIG), writes)

        saver.add_tags(stored, "two")
        await saver.acopy("t", "u")
        count = await saver.aprune("t", keep_last=1, keep_tags=("two",))
        check.equal(count, 0)

        count = await saver.aprune("t", keep_last=1)
        check.equal(count, 1)

        with self.raises(ValueError):
            await saver.aprune("t")
        with self.raises(CheckpointNotFoundError):
            await saver.aput(UNKNOWN, second)

        tag = await saver.arelease(CONFIG)
        check.ids(tag.checkpoints, [second])
        check.same(await saver.adelete("u"), True)
        check.same(await saver.aget(OTHER), None)


def _make_writer_state(writer: int, number: int) -> dict[str, object]:
    return {"who": [writer, number], "text": "x" * number}


def _run_concurrently(call: Callable[[int], R], count: int) -> list[R]:
    """Call a function with each number below `count`, each in a thread, at the same moment."""
    start = threading.Barrier(count)

    def run(number: int) -> R:
        start.wait(TIMEOUT)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        results = pool.map(run, range(count))
        return [*results]
