"""Async methods on SQLite that take some microseconds run in the event loop, which never waits for a lock."""

import asyncio
import os
import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("langgraph")

from savers._sql.saver import _SMALL_STATE
from savers.langgraph import SqliteCheckpointSaver
from tests.integrations.test_langgraph_inline import CONFIG, hops, step, warm

__all__ = ["hops"]


@pytest.fixture
def open_saver(tmp_path):
    opened = []

    def open_one(fsync="never"):
        opened.append(SqliteCheckpointSaver(tmp_path / "test.db", fsync=fsync))
        return opened[-1]

    yield open_one
    for saver in opened:
        saver._close()


def test_small_calls_of_an_open_log_run_inline(open_saver, hops):
    async def run():
        saver = open_saver()
        await warm(saver, hops)
        for n in range(5):
            found = await step(saver, CONFIG, n)
            assert found.checkpoint["channel_values"] == {"a": n}
            assert found.pending_writes == [("task", "a", 1)]
        assert await saver.aget_tuple(CONFIG) == found

    asyncio.run(run())
    assert hops == []


def test_puts_that_wait_for_the_disk_leave_the_event_loop(open_saver, hops):
    async def run():
        saver = open_saver("always")
        await warm(saver, hops)
        await step(saver, CONFIG, 1)

    asyncio.run(run())
    assert hops == ["put", "put_writes"]


def test_large_states_leave_the_event_loop(open_saver, hops):
    async def run():
        saver = open_saver()
        for n in range(3):
            hops.clear()
            await step(saver, CONFIG, [os.urandom(_SMALL_STATE), n])

    asyncio.run(run())
    assert hops == ["put", "put_writes", "get_tuple"]


def test_an_earlier_checkpoint_is_read_in_a_thread(open_saver, hops):
    async def run():
        saver = open_saver()
        first = await step(saver, CONFIG, 0)
        await step(saver, first.config, 1)
        hops.clear()
        assert await saver.aget_tuple(first.config) == first

    asyncio.run(run())
    assert hops == ["get_tuple"]


def test_the_event_loop_goes_on_while_another_process_writes(open_saver, hops):
    saver = open_saver()

    async def run():
        await warm(saver, hops)
        # A connection of its own excludes this process as it would another one.
        with closing(sqlite3.connect(saver.store.db_file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(step(saver, CONFIG, 1))
            await hops.hopped.wait()
            assert hops == ["put"]
            assert not waiting.done()
            other.execute("COMMIT")
            found = await waiting
        assert found.checkpoint["channel_values"] == {"a": 1}
        assert found.pending_writes == [("task", "a", 1)]
        assert saver.store.verify().ok

    asyncio.run(run())
    assert len(list(saver.list(CONFIG))) == 3


@pytest.mark.parametrize("appends", [False, True])
def test_the_event_loop_goes_on_while_another_thread_uses_the_connection(open_saver, hops, appends):
    saver = open_saver()
    lock = None

    async def run():
        nonlocal lock
        await warm(saver, hops)
        lock = saver.store._database._main_lock
        lock.acquire()
        call = step(saver, CONFIG, 1) if appends else saver.aget_tuple(CONFIG)
        waiting = asyncio.create_task(call)
        await hops.hopped.wait()
        lock.release()
        assert (await waiting).checkpoint["channel_values"] == {"a": 1}

    asyncio.run(run())
    assert hops[0] == ("put" if appends else "get_tuple")


def test_errors_of_an_inline_put_are_those_of_put_and_leave_the_locks_free(open_saver, hops):
    async def run():
        saver = open_saver()
        await warm(saver, hops)
        with pytest.raises(TypeError, match="a"):
            await step(saver, CONFIG, object())
        hops.clear()
        found = await step(saver, CONFIG, 2)
        assert found.checkpoint["channel_values"] == {"a": 2}

    asyncio.run(run())
    assert hops == []


def test_a_thread_may_wait_after_an_inline_call(open_saver, hops):
    """That the event loop must not wait holds for the call alone."""
    saver = open_saver()
    asyncio.run(warm(saver, hops))
    lock = saver.store._database._main_lock
    lock.acquire()
    try:
        assert saver.store.threads() == ["t"]
    finally:
        lock.release()
