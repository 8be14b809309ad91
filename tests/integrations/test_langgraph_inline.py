"""Async methods that take some microseconds run in the event loop, on files and in SQLite.

All others run in a worker thread, and so does one that would have to wait for a lock.
"""

import asyncio
import fcntl
import itertools
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import pytest

pytest.importorskip("langgraph")

from savers.langgraph import FileSystemCheckpointSaver, SqliteCheckpointSaver
from tests.support.langgraph import SMALL_STATE, WorkerCalls, find_write_lock
from tests.support.langgraph_checkpoints import make_checkpoint, put, thread, values_of

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


def connection_lock(saver):
    return saver.store._database._connections.lock


def log_lock(saver):
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


async def step(saver, config, value):
    """Put a checkpoint and a write of it, and read it."""
    made = make_checkpoint(version=saver.get_next_version(None, None), a=value)
    config = await saver.aput(config, *made)
    await saver.aput_writes(config, [("a", 1)], "task")
    found = await saver.aget_tuple(config)
    assert values_of(found) == {"a": value}
    assert found.pending_writes == [("task", "a", 1)]


async def warm(saver, hops):
    """Open the log, and read it once."""
    for n in range(2):
        await step(saver, CONFIG, n)
    hops.forget()


async def test_small_calls_of_an_open_log_run_inline(open_saver, hops):
    saver = open_saver()
    await warm(saver, hops)
    for n in range(5):
        await step(saver, CONFIG, n)
    assert hops == []


async def test_the_first_calls_of_new_threads_run_in_the_event_loop_on_sqlite(tmp_path, hops):
    with SqliteCheckpointSaver(tmp_path / "test.db", fsync="never") as saver:
        await saver.aget_tuple(thread("unknown"))  # the first use opens the file
        hops.forget()
        await asyncio.gather(*(step(saver, thread(f"t{n}"), n) for n in range(20)))
    assert hops == []


async def test_puts_that_wait_for_the_disk_leave_the_event_loop(open_saver, hops):
    saver = open_saver("always")
    await warm(saver, hops)
    await step(saver, CONFIG, 1)
    assert hops == ["put", "put_writes"]


async def test_large_states_leave_the_event_loop(open_saver, hops):
    saver = open_saver()
    for n in range(3):
        hops.clear()
        await step(saver, CONFIG, [os.urandom(SMALL_STATE), n])
    assert hops == ["put", "put_writes", "get_tuple"]


async def test_the_event_loop_goes_on_while_another_process_writes(open_saver, hops):
    saver = open_saver()

    await warm(saver, hops)
    with another_process_writes(saver):
        waiting = asyncio.create_task(step(saver, CONFIG, 1))
        await hops.has_any.wait()
        assert hops == ["put"]
        assert not waiting.done()
    await waiting
    assert saver.store.verify().ok
    assert len(list(saver.list(CONFIG))) == 3


@pytest.mark.parametrize("appends", [False, True])
@pytest.mark.parametrize(
    ("kind", "find_lock"),
    [
        (FileSystemCheckpointSaver, log_lock),
        (SqliteCheckpointSaver, log_lock),
        (SqliteCheckpointSaver, connection_lock),
    ],
)
async def test_a_call_that_finds_a_lock_in_use_by_another_thread_goes_to_a_thread(
    tmp_path, hops, kind, find_lock, appends
):
    with kind(tmp_path / "store", fsync="never") as saver:
        await warm(saver, hops)

        with held_by_another_thread(find_lock(saver)):
            call = step(saver, CONFIG, 2) if appends else saver.aget_tuple(CONFIG)
            waiting = asyncio.create_task(call)
            await hops.has_any.wait()
            assert waiting.done() is False
        await waiting

        assert hops[0] == ("put" if appends else "get_tuple")
        assert [values_of(found)["a"] for found in saver.list(CONFIG)] == [*([2] if appends else []), 1, 0]


def test_event_loops_and_threads_use_one_saver_at_once(tmp_path):
    """Each puts to histories of its own; some states are too large for the event loop."""
    loops, tasks, puts = 3, 8, 6
    saver = SqliteCheckpointSaver(tmp_path / "test.db", fsync="never")

    async def converse(name):
        for value in range(puts):
            await step(saver, thread(name), [f"a text of {name}"] * 9000 if value == 2 else value)

    async def run(name):
        await asyncio.gather(*(converse(f"{name}-{n}") for n in range(tasks)))

    def run_without_loop(name):
        for value in range(puts * tasks):
            put(saver, thread(name), a=value)
            assert values_of(saver.get_tuple(thread(name))) == {"a": value}

    with saver, ThreadPoolExecutor(loops + 1) as pool:
        running = [pool.submit(asyncio.run, run(f"loop{n}")) for n in range(loops)]
        running.append(pool.submit(run_without_loop, "sync"))
        for future in running:
            future.result()

        for n, task in itertools.product(range(loops), range(tasks)):
            values = [values_of(found)["a"] for found in saver.list(thread(f"loop{n}-{task}"))]
            assert values == [5, 4, 3, [f"a text of loop{n}-{task}"] * 9000, 1, 0]

        assert saver.store.verify().ok
