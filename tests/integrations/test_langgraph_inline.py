"""Async methods that take some microseconds run in the event loop, on files and in SQLite.

All others run in a worker thread, and so does one that would have to wait for a lock.
"""

import asyncio
import fcntl
import os
import sqlite3
import threading
from contextlib import ExitStack, closing, contextmanager

import pytest

pytest.importorskip("langgraph")


from savers.langgraph import FileSystemCheckpointSaver, SqliteCheckpointSaver
from tests.support.langgraph import SMALL_STATE, WorkerCalls, find_write_lock
from tests.support.langgraph_checkpoints import make_checkpoint, thread

CONFIG = thread()


@pytest.fixture
def hops(monkeypatch):
    return WorkerCalls(monkeypatch)


@pytest.fixture(params=[FileSystemCheckpointSaver, SqliteCheckpointSaver])
def open_saver(request, tmp_path):
    with ExitStack() as stack:
        yield lambda fsync="never": stack.enter_context(request.param(tmp_path / "store", fsync=fsync))


@contextmanager
def another_process_writes(saver):
    """Write to the store. A descriptor or a connection of its own excludes this process as it would another one."""
    if isinstance(saver, SqliteCheckpointSaver):
        with closing(sqlite3.connect(saver.store.db_file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("COMMIT")
        return
    path = find_write_lock(saver.store.base_directory, "t")
    path.parent.mkdir(exist_ok=True)
    with path.open("w+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_mutex(saver):
    """What a thread holds while it uses the connection, or the log."""
    if isinstance(saver, SqliteCheckpointSaver):
        return saver.store._database._connections.lock
    return saver.store.catalogue.shared_log("t", "").mutex


@contextmanager
def held_by_another_thread(mutex):
    """Hold a mutex in a thread until the block ends."""
    held, done = threading.Event(), threading.Event()

    def hold():
        with mutex:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        holder.join()


async def warm(saver, hops):
    """Open the log, and read it once."""
    for n in range(2):
        await step(saver, CONFIG, n)
    hops.forget()


async def step(saver, config, value):
    """Put a checkpoint and a write of it, and read it."""
    made = make_checkpoint(version=saver.get_next_version(None, None), a=value)
    config = await saver.aput(config, *made)
    await saver.aput_writes(config, [("a", 1)], "task")
    return await saver.aget_tuple(config)


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
            await step(saver, CONFIG, [os.urandom(SMALL_STATE), n])

    asyncio.run(run())
    assert hops == ["put", "put_writes", "get_tuple"]


def test_the_event_loop_goes_on_while_another_process_writes(open_saver, hops):
    saver = open_saver()

    async def run():
        await warm(saver, hops)
        with another_process_writes(saver):
            waiting = asyncio.create_task(step(saver, CONFIG, 1))
            await hops.has_any.wait()
            assert hops == ["put"]
            assert not waiting.done()
        found = await waiting
        assert found.checkpoint["channel_values"] == {"a": 1}
        assert found.pending_writes == [("task", "a", 1)]
        assert saver.store.verify().ok

    asyncio.run(run())
    assert len(list(saver.list(CONFIG))) == 3


@pytest.mark.parametrize("appends", [False, True])
def test_the_event_loop_goes_on_while_another_thread_uses_the_log(open_saver, hops, appends):
    saver = open_saver()

    async def run():
        await warm(saver, hops)
        with held_by_another_thread(find_mutex(saver)):
            call = step(saver, CONFIG, 1) if appends else saver.aget_tuple(CONFIG)
            waiting = asyncio.create_task(call)
            await hops.has_any.wait()
        assert (await waiting).checkpoint["channel_values"] == {"a": 1}

    asyncio.run(run())
    assert hops[0] == ("put" if appends else "get_tuple")
