"""Short calls on SQLite that find the connection in use by a worker thread wait in the event loop."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("langgraph")

from savers.langgraph import SqliteCheckpointSaver, thread_calls
from tests.support.langgraph import WorkerCalls
from tests.support.langgraph_checkpoints import make_checkpoint, thread, values_of


@pytest.fixture
def saver(tmp_path):
    with SqliteCheckpointSaver(tmp_path / "test.db", fsync="never") as opened:
        yield opened


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """No call of a test goes to a thread because it waits for long."""
    monkeypatch.setattr(thread_calls, "_MAX_WAIT", 3600.0)


@pytest.fixture
def hops(monkeypatch):
    return WorkerCalls(monkeypatch)


@asynccontextmanager
async def holding(saver, lock):
    """Hold a lock in a call in a worker thread; yield functions that release the lock, and end the call."""
    held, let_go, released, done = (threading.Event() for _ in range(4))

    def hold():
        with lock:
            held.set()
            let_go.wait()
        released.set()
        done.wait()

    async def release():
        let_go.set()
        await asyncio.to_thread(released.wait)

    async def end():
        let_go.set()
        done.set()
        await task

    task = asyncio.create_task(saver._find_calls().run(hold))
    await asyncio.to_thread(held.wait)
    try:
        yield release, end
    finally:
        await end()


def connection_lock(saver):
    return saver.store._database._connections.lock


def log_lock(saver):
    return saver.store.catalogue.shared_log("t0", "").mutex


def make(value):
    return make_checkpoint(version=f"{value + 1:032}.0", a=value)


async def aput(saver, name, value=0):
    return await saver.aput(thread(name), *make(value))


async def start(*calls):
    """Start calls, in their order, and let each go on until it waits."""
    tasks = [asyncio.create_task(call) for call in calls]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


def list_values(saver, name):
    return [found.checkpoint["channel_values"]["a"] for found in saver.list(thread(name))]


@pytest.mark.parametrize("find_lock", [connection_lock, log_lock])
def test_a_call_that_finds_a_lock_in_use_waits_in_the_event_loop(saver, hops, find_lock):
    async def run():
        await aput(saver, "t0")
        hops.forget()
        async with holding(saver, find_lock(saver)) as (_, end):
            putting, getting = await start(aput(saver, "t0", 1), saver.aget_tuple(thread("t0")))
            assert not putting.done()
            assert not getting.done()
            await end()
            await putting
            found = await getting
        assert found.checkpoint["channel_values"] == {"a": 1}

    asyncio.run(run())
    assert hops == ["hold"]


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


def test_a_call_that_has_waited_for_long_goes_to_a_thread(saver, hops, monkeypatch):
    monkeypatch.setattr(thread_calls, "_MAX_WAIT", 0.0)

    async def run():
        await aput(saver, "t0")
        hops.forget()
        async with holding(saver, connection_lock(saver)) as (_, end):
            task = asyncio.create_task(aput(saver, "t0", 1))
            await hops.has_put.wait()
            assert not task.done()
            await end()
            await task

    asyncio.run(run())
    assert list_values(saver, "t0") == [1, 0]


def test_a_read_does_not_wait_for_a_put_that_waits_for_the_disk(hops, tmp_path):
    async def run(saver):
        await aput(saver, "t0")
        hops.forget()
        async with holding(saver, connection_lock(saver)):
            # The lock is in use until the block ends.
            found = await saver.aget_tuple(thread("t0"))
        assert found.checkpoint["channel_values"] == {"a": 0}

    with SqliteCheckpointSaver(tmp_path / "test.db", fsync="always") as saver:
        asyncio.run(run(saver))
    assert hops == ["hold", "get_tuple"]


@pytest.mark.parametrize("is_woken", [False, True])
def test_a_call_that_is_cancelled_while_it_waits_writes_nothing_and_lets_the_next_go_on(saver, hops, is_woken):
    async def run():
        for name in "t0", "t1":
            await aput(saver, name)
        hops.forget()
        async with holding(saver, connection_lock(saver)) as (release, end):
            cancelled, following = await start(*(aput(saver, f"t{n}", 1) for n in range(2)))
            await release()
            if is_woken:
                # The next one goes on although the call in the thread has not ended.
                saver._find_calls()._wake_next()
            cancelled.cancel()
            if not is_woken:
                await end()
            await following
            with pytest.raises(asyncio.CancelledError):
                await cancelled

    asyncio.run(run())
    assert hops == ["hold"]
    assert [list_values(saver, f"t{n}") for n in range(2)] == [[0], [1, 0]]


def test_an_error_of_a_call_that_has_waited_reaches_its_caller_and_the_next_goes_on(saver, hops):
    async def run():
        await aput(saver, "t0")
        unstorable = make(1)
        unstorable[0]["channel_values"] = {"a": threading.Lock()}
        async with holding(saver, connection_lock(saver)) as (_, end):
            refused, stored = await start(saver.aput(thread("t0"), *unstorable), aput(saver, "t0", 2))
            await end()
            with pytest.raises(TypeError, match="a"):
                await refused
            await stored

    asyncio.run(run())
    assert list_values(saver, "t0") == [2, 0]


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
