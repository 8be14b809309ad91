"""Concurrent callers: the run lock, which lets one run of a thread go on at a time; and callers that need no lock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from time import monotonic, sleep
from typing import Any

from graphkit._build.state_graph import StateGraph
from graphkit._engine.tasks import executing
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import END, START, RunnableConfig
from graphkit._records.context import NodeContext
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import CheckpointNotFoundError, ThreadBusyError
from graphkit.operations import cancel
from graphkit.testing import _check as check
from graphkit.testing._contract.base import INTERVAL, TIMEOUT, ContractTests, R, call_in_thread
from graphkit.testing._values import (
    CONFIG,
    NESTED,
    OTHER,
    UNKNOWN,
    config_of,
    grow_list,
    made,
    make_interrupt,
    put_checkpoint,
    put_extended,
    put_state,
    replace_state,
)


class LockTests(ContractTests):
    """Which callers get the run lock, which wait for it, and which do not need it."""

    def test_the_run_lock_excludes_other_runs(self) -> None:
        """`run_lock` raises ThreadBusyError after its timeout if another run holds the thread."""
        saver, other = self.open_two()

        # The lock belongs to the thread: a run in another namespace waits too.
        for config in (CONFIG, NESTED):
            with saver.run_lock(CONFIG):
                with self.raises(ThreadBusyError) as caught:
                    call_in_thread(_acquire, other, config, 0.05)
                error = caught.exception
                check.assert_equal(error.thread_id, "t")
                check.assert_true(bool(error.holder), "the error does not name the holder of the run lock")

                # Clocks are coarse: a wait of 0.05 s may be measured as a little less.
                is_long_enough = error.waited >= 0.04  # noqa: PLR2004
                check.assert_true(is_long_enough, f"waited {error.waited} s for the run lock instead of 0.05 s")
                self.assert_unlocked(other, OTHER)

            self.assert_unlocked(other, config)

    def test_a_run_that_holds_the_lock_is_cancelled(self) -> None:
        """A run that holds the thread notices a `cancel` through another saver."""
        saver, other = self.open_two()
        graph = StateGraph({})

        def work(_state: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
            accepted = call_in_thread(cancel, other, "t")
            deadline = monotonic() + TIMEOUT
            while not config.is_cancelled and monotonic() < deadline:
                sleep(INTERVAL)
            return {"n": 1, "accepted": accepted}

        graph.add_node("work", work)
        graph.add_node("rest", lambda _: {"n": -1})
        graph.add_edge(START, "work").add_edge("work", "rest").add_edge("rest", END)
        app = graph.compile(checkpoint_saver=saver)

        last = app.invoke_final({}, CONFIG)

        check.assert_equal(last.is_cancelled, True)
        check.assert_equal(last.state, {"n": 1, "accepted": True}, "the last state")
        for reader in (saver, other):
            check.assert_statuses(reader, "cancelled", "")
            self.assert_unlocked(reader, CONFIG)

    def test_is_run_locked_reports_a_held_lock(self) -> None:
        """`is_run_locked` looks at the run lock without taking it; `history` then says "running"."""
        saver = self.open_with_checkpoint()
        other = self.open_again(saver)

        for reader in (saver, other):
            _assert_reported(reader, is_locked=False)
            with saver.run_lock(CONFIG):
                _assert_reported(reader, is_locked=True)
                # Asking did not release the lock.
                self.assert_locked(other, CONFIG)

            _assert_reported(reader, is_locked=False)
            self.assert_unlocked(reader, CONFIG)

    def test_the_run_lock_is_released_after_an_exception(self) -> None:
        """`run_lock` ends with its block, also if that raises."""
        saver = self.open()
        with self.raises(ZeroDivisionError), saver.run_lock(CONFIG):
            _ = 1 / 0
        self.assert_unlocked(saver, CONFIG)

    def test_a_waiter_acquires_the_lock(self) -> None:
        """`run_lock` waits for another holder."""
        saver = self.open()
        with ThreadPoolExecutor(1) as pool:
            with saver.run_lock(CONFIG):
                waiter = pool.submit(_acquire, saver, CONFIG, TIMEOUT)
                with self.raises(TimeoutError):
                    waiter.result(0.1)

            # The waiter acquires the lock now, or this raises its ThreadBusyError.
            waiter.result(TIMEOUT)

    def test_the_holder_may_reenter_the_lock_and_use_the_thread(self) -> None:
        """`run_lock`, `copy`, `release` and `delete` do not wait for their own caller."""
        saver, other = self.open_two()
        checkpoint = put_checkpoint(saver)

        with saver.run_lock(CONFIG):
            with saver.run_lock(CONFIG, 0), saver.run_lock(NESTED, 0):
                pass
            # The end of the inner blocks did not release the lock.
            self.assert_locked(other, CONFIG)

            saver.copy("t", "u")
            tag = saver.release(CONFIG)
            check.assert_released(tag, [checkpoint])

            put_checkpoint(saver)
            check.same(saver.delete("t"), True, "delete")
            self.assert_locked(other, CONFIG)

        self.assert_unlocked(other, CONFIG)
        check.assert_missing(saver)
        check.get_checkpoint(saver, OTHER)

    def test_a_node_may_reenter_the_lock_of_its_run(self) -> None:
        """A node may do with the thread of its run what the run itself may do."""
        saver, other = self.open_two()
        checkpoint = put_checkpoint(saver)

        held_locks = frozenset({saver.run_lock_key(CONFIG)})
        context = NodeContext("node", (), held_locks)

        with saver.run_lock(CONFIG), executing(context):
            # The node context holds the lock, so that any saver of the store accepts it.
            _acquire(saver, NESTED, 0)
            _acquire(other, CONFIG, 0)
            self.assert_locked(other, CONFIG)

            tag = saver.release(CONFIG)
            check.assert_released(tag, [checkpoint])
            other.delete("t")
            self.assert_locked(other, CONFIG)

    def test_the_run_lock_key_identifies_the_store_and_the_thread(self) -> None:
        """`run_lock_key` is equal for saver objects that share a store, and only for one thread."""
        saver, other = self.open_two()
        other_store = self.make_saver()
        key = saver.run_lock_key(CONFIG)
        default_key = saver.run_lock_key(None)

        # The saver object, the checkpoint and the namespace do not matter.
        same_thread = RunnableConfig("t", "id", "n")

        check.assert_equal(other.run_lock_key(same_thread), key, "run_lock_key")
        check.assert_equal(saver.run_lock_key(RunnableConfig("$default")), default_key, "run_lock_key")

        is_shared = saver.run_lock_key(OTHER) == key
        check.assert_true(not is_shared, "two threads have the same run lock")

        is_shared = other_store.run_lock_key(CONFIG) == key
        check.assert_true(not is_shared, "two stores have the same run lock")

    def test_readers_and_puts_do_not_wait_for_a_run(self) -> None:
        """`list`, `get`, `put` and `put_writes` need no run lock."""
        saver = self.open()

        with saver.run_lock(CONFIG):
            other = self.open_again(saver)
            checkpoint = call_in_thread(put_checkpoint, other)
            call_in_thread(other.put_writes, CONFIG, {"w": 1})

            listed = call_in_thread(other.list, CONFIG)
            check.assert_checkpoints(listed, [checkpoint])
            loaded = call_in_thread(other.get, CONFIG)
            check.assert_same_checkpoint(loaded, checkpoint)

    def test_release_delete_and_copy_wait_for_a_run(self) -> None:
        """With `waits_for_runs`, `release`, `delete` and `copy` wait until the run ends."""
        saver = self.open("waits_for_runs")
        other = self.open_again(saver)
        put_checkpoint(saver, OTHER)

        # The target of a copy must be empty, but its run lock may be held.
        self.assert_waits_for_a_run(saver, other.copy, "u", "t")
        self.assert_waits_for_a_run(saver, other.copy, "t", "new")
        self.assert_waits_for_a_run(saver, other.release, CONFIG)
        put_checkpoint(saver)
        self.assert_waits_for_a_run(saver, other.delete, "t")

    def assert_waits_for_a_run(self, saver: BaseCheckpointSaver, call: Callable[..., object], *args: Any) -> None:
        """Assert that a call changes nothing until the run lock of "t" is free, and then returns."""
        with ThreadPoolExecutor(1) as pool:
            with saver.run_lock(CONFIG), self.assert_unchanged(saver):
                waiter = pool.submit(call, *args)
                with self.raises(TimeoutError):
                    waiter.result(0.1)

            waiter.result(TIMEOUT)

    def assert_locked(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
        """Assert that a caller in another thread cannot acquire the run lock."""
        with self.raises(ThreadBusyError):
            call_in_thread(_acquire, saver, config, 0)

    def assert_unlocked(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
        """Assert that a caller in another thread can acquire the run lock at once."""
        call_in_thread(_acquire, saver, config, 0)


def _assert_reported(reader: BaseCheckpointSaver, *, is_locked: bool) -> None:
    """Assert what a saver reports of the run lock of "t", in this thread and in another."""
    for config in (CONFIG, NESTED):
        reported = reader.is_run_locked(config)
        check.assert_equal(reported, is_locked, "is_run_locked")

        reported = call_in_thread(reader.is_run_locked, config)
        check.assert_equal(reported, is_locked, "is_run_locked in another thread")

    expected_status = "running" if is_locked else "stalled"
    check.assert_statuses(reader, expected_status)
    check.assert_equal(reader.is_run_locked(OTHER), False, "is_run_locked of another thread")


def _acquire(saver: BaseCheckpointSaver, config: RunnableConfig, timeout: float) -> None:
    """Acquire the run lock and release it."""
    with saver.run_lock(config, timeout):
        pass


class ConcurrencyTests(ContractTests):
    """No write is lost or mixed up, and every reader sees it at once."""

    # Concurrent writers

    def test_concurrent_puts_to_one_thread_lose_nothing(self) -> None:
        """`put` may be called by several threads at once, also through several saver objects."""
        saver = self.open()
        # Half of the writers share a saver object; the others have one each.
        savers = [saver if n % 2 else self.open_again(saver) for n in range(6)]

        def write(number: int) -> list[Checkpoint]:
            writer = savers[number]
            written = []

            for n in range(10):
                checkpoint = put_state(writer, {"who": [number, n], "text": "x" * n})
                written.append(checkpoint)

                # The writer itself reads the checkpoint immediately.
                states = {loaded.id: loaded.state for loaded in writer.list(CONFIG)}
                check.same(states.get(checkpoint.id), checkpoint.state, "the state that was put")

            return written

        written_by_writer = _run_concurrently(write, len(savers))

        for reader in self.readers_of(saver):
            history = reader.list(CONFIG)
            check.assert_length(history, 60, "the checkpoints of list")

            # The history has the checkpoints of each writer in the order of its puts.
            for written in written_by_writer:
                ids = check.get_ids(written)
                own = [checkpoint for checkpoint in history if checkpoint.id in ids]
                check.assert_checkpoints(own, written)

                for checkpoint in written:
                    check.assert_checkpoint(reader, checkpoint, config_of(checkpoint))

    def test_concurrent_puts_to_many_threads_are_isolated(self) -> None:
        """`put` may be called for several threads at once."""
        saver = self.open()

        def write(number: int) -> list[Checkpoint]:
            config = RunnableConfig(f"thread {number}")
            return grow_list(saver, 12, config)

        histories = _run_concurrently(write, 8)

        for number, history in enumerate(histories):
            config = RunnableConfig(f"thread {number}")
            self.assert_history(saver, history, config)

    def test_concurrent_put_writes_to_one_checkpoint_lose_nothing(self) -> None:
        """`put_writes` and `add_tags` may be called by several threads at once."""
        saver = self.open_with_checkpoint()

        def write(number: int) -> None:
            for n in range(5):
                name = f"{number} {n}"
                saver.put_writes(CONFIG, {name: n})
                saver.add_tags(CONFIG, name)

        _run_concurrently(write, 6)

        expected = [f"{number} {n}" for number in range(6) for n in range(5)]
        reader = self.open_again(saver)

        check.assert_any_order(reader.get_writes(CONFIG), expected, "pending writes")
        check.assert_any_order(reader.tags_of(CONFIG), expected, "tags")

    # Another object, another process

    def test_two_savers_on_one_store_read_each_other_immediately(self) -> None:
        """What one saver object has written, another one on the store reads at once."""
        saver, other = self.open_two()
        checkpoints = []

        for number in range(6):
            # The two take turns, and both read each time, so that each may have cached an older history.
            writer = other if number % 2 else saver
            checkpoint = put_state(writer, {"list": [*range(number)]})
            checkpoints.append(checkpoint)
            writer.put_writes(CONFIG, {"w": number})
            writer.add_tags(CONFIG, f"tag {number}")

            for reader in (saver, other):
                check.assert_checkpoint(reader, checkpoint)
                check.assert_writes(reader, {"w": number})
                check.assert_tags(reader, f"tag {number}")
                check.assert_listed(reader, checkpoints)
                summary = check.get_summary(reader)
                check.assert_equal(summary.checkpoints, number + 1, "the checkpoints of the summary")

        # Changes that build on a checkpoint that the other saver put.
        following = put_extended(saver, checkpoint, "x")
        last = put_extended(other, following, "y")
        check.assert_checkpoint(saver, last)

    def test_what_another_saver_replaces_or_releases_is_read_no_more(self) -> None:
        """What one saver object has replaced or released, another one on the store does not return."""
        saver, other = self.open_two()
        first, last = grow_list(saver, 2)
        first_config = config_of(first)
        check.assert_checkpoint(saver, first, first_config)
        check.assert_checkpoint(saver, last)

        replacement = replace_state(other, first, {"list": "replaced"})
        check.assert_checkpoint(saver, replacement, first_config)

        tag = other.release(CONFIG)
        check.assert_released(tag, [replacement, last])
        check.assert_missing(saver)

        fresh = put_checkpoint(saver)
        check.assert_checkpoint(other, fresh)

    def test_a_checkpoint_written_without_the_saver_is_read(self) -> None:
        """`list` reads what another program has put into the store."""
        saver = self.open()
        first = put_state(saver, {"list": [1, (2,)]})
        planted = made({"list": [1, (2,), 3]})
        if not self.plant(saver, CONFIG, planted):
            self.skip("`plant` is not implemented")
        self.assert_history(saver, [first, planted])

    def test_a_put_is_visible_without_the_saver(self) -> None:
        """Another program reads from the store what `put` has written."""
        saver = self.open()
        grow_list(saver, 3)
        states = self.peek(saver, CONFIG)
        if states is None:
            self.skip("`peek` is not implemented")
        lists = [state["list"] for state in states]
        check.assert_equal(lists, [[0, 1, 2], [0, 1], [0]])

    # Async

    def test_async_methods_match_the_sync_methods(self) -> None:
        """Each method with the prefix `a` does what its sync method does."""
        saver = self.open()
        asyncio.run(self._check_async_methods(saver))

    async def _check_async_methods(self, saver: BaseCheckpointSaver) -> None:
        first = made({"n": 1}, metadata={"k": 1})
        second = made({"n": 2})
        stored = await saver.aput(CONFIG, first)
        await saver.aput(CONFIG, second)
        check.assert_equal(stored, config_of(first))

        listed = await saver.alist(CONFIG)
        check.assert_checkpoints(listed, [first, second])
        check.assert_same_checkpoint(await saver.aget(stored), first)
        check.assert_same_checkpoint(await saver.aget(CONFIG), second)

        async with aclosing(saver.awatch("t", latest=True, interval=INTERVAL)) as changes:
            change = await anext(changes)
        check.assert_equal(check.not_none(change.checkpoint).id, second.id)

        writes = {"interrupt:i": make_interrupt()}
        await saver.aput_writes(CONFIG, writes)
        check.same(await saver.aget_writes(CONFIG), writes)

        saver.add_tags(stored, "two")
        await saver.acopy("t", "u")
        count = await saver.aprune("t", keep_last=1, keep_tags=("two",))
        check.assert_equal(count, 0, "the count of aprune")

        count = await saver.aprune("t", keep_last=1)
        check.assert_equal(count, 1, "the count of aprune")

        with self.raises(ValueError):
            await saver.aprune("t")
        with self.raises(CheckpointNotFoundError):
            await saver.aput(UNKNOWN, second)

        check.assert_released(await saver.arelease(CONFIG), [second])
        check.same(await saver.adelete("u"), True, "adelete")
        check.same(await saver.aget(OTHER), None)


def _run_concurrently(call: Callable[[int], R], count: int) -> list[R]:
    """Call a function with each number below `count`, each in a thread, at the same moment."""
    start = threading.Barrier(count)

    def run(number: int) -> R:
        start.wait(TIMEOUT)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        results = pool.map(run, range(count))
        return [*results]
