"""Short calls on SQLite in the event loop, and those that find the connection or the log in use by another thread."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("langgraph")

from savers.langgraph import SqliteCheckpointSaver
from tests.support.langgraph import WorkerCalls
from tests.support.langgraph_checkpoints import make_checkpoint, thread, values_of


@pytest.fixture
def saver(tmp_path):
    with SqliteCheckpointSaver(tmp_path / "test.db", fsync="never") as opened:
        yield opened


@pytest.fixture
def hops(monkeypatch):
    return WorkerCalls(monkeypatch)


@asynccontextmanager
async def holding(lock):
    """Hold a lock in another thread of execution."""
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            let_go.wait()

    thread_of_lock = threading.Thread(target=hold)
    thread_of_lock.start()
    await asyncio.to_thread(held.wait)
    try:
        yield let_go.set
    finally:
        let_go.set()
        await asyncio.to_thread(thread_of_lock.join)


def connection_lock(saver):
    return saver.store._database._connections.lock


def log_lock(saver):
    return saver.store.catalogue.shared_log("t0", "").mutex


def make(value):
    return make_checkpoint(version=f"{value + 1:032}.0", a=value)


async def aput(saver, name, value=0):
    return await saver.aput(thread(name), *make(value))


def list_values(saver, name):
    return [found.checkpoint["channel_values"]["a"] for found in saver.list(thread(name))]


@pytest.mark.parametrize("find_lock", [connection_lock, log_lock])
def test_a_put_that_finds_a_lock_in_use_goes_to_a_thread(saver, hops, find_lock):
    async def run():
        await aput(saver, "t0")
        hops.forget()
        async with holding(find_lock(saver)) as release:
            task = asyncio.create_task(aput(saver, "t0", 1))
            await hops.has_put.wait()
            assert not task.done()
            release()
            await task
        await aput(saver, "t0", 2)

    asyncio.run(run())
    assert hops == ["put"]
    assert list_values(saver, "t0") == [2, 1, 0]


def test_the_first_calls_of_new_threads_run_in_the_event_loop(saver, hops):
    async def converse(name):
        assert await saver.aget_tuple(thread(name)) is None
        config = await aput(saver, name)
        await saver.aput_writes(config, [("a", 1)], "task")
        assert (await saver.aget_tuple(thread(name))).pending_writes == [("task", "a", 1)]

    async def run():
        # The first use opens the file.
        await saver.aget_tuple(thread("unknown"))
        hops.forget()
        await asyncio.gather(*(converse(f"t{n}") for n in range(20)))

    asyncio.run(run())
    assert hops == []
    assert saver.store.verify().ok


def test_a_read_does_not_wait_for_a_put_that_waits_for_the_disk(hops, tmp_path):
    async def run(saver):
        await aput(saver, "t0")
        hops.forget()
        async with holding(connection_lock(saver)):
            # The lock is in use until the block ends.
            found = await saver.aget_tuple(thread("t0"))
        assert found.checkpoint["channel_values"] == {"a": 0}

    with SqliteCheckpointSaver(tmp_path / "test.db", fsync="always") as saver:
        asyncio.run(run(saver))
    assert hops == ["get_tuple"]


def test_event_loops_and_threads_use_one_saver_at_once(saver):
    """Each puts to histories of its own; some states are too large for the event loop."""
    loops, tasks, puts = 3, 8, 6

    async def converse(name):
        for value in range(puts):
            made = make(value)
            values = made[0]["channel_values"]
            if value == 2:
                values["large"] = [f"a text of {name}"] * 9000
            config = await saver.aput(thread(name), *made)
            await saver.aput_writes(config, [("a", value)], "task")
            found = await saver.aget_tuple(thread(name))
            assert values_of(found)["a"] == value
            (write,) = found.pending_writes
            assert write == ("task", "a", value)

    async def run(name):
        await asyncio.gather(*(converse(f"{name}-{n}") for n in range(tasks)))

    def run_without_loop(name):
        for value in range(puts * tasks):
            saver.put(thread(name), *make(value))
            assert saver.get_tuple(thread(name)).checkpoint["channel_values"] == {"a": value}

    with ThreadPoolExecutor(loops + 1) as pool:
        running = [pool.submit(asyncio.run, run(f"loop{n}")) for n in range(loops)]
        running.append(pool.submit(run_without_loop, "sync"))
        for future in running:
            future.result()
    for n in range(loops):
        for task in range(tasks):
            assert list_values(saver, f"loop{n}-{task}") == list(reversed(range(puts)))
    assert saver.store.verify().ok
