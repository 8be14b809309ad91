"""Async methods that take some microseconds run in the event loop; all others run in a worker thread."""

import asyncio
import fcntl
import os
import threading
from pathlib import Path

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from savers._filesystem import layout
from savers._filesystem.saver import SMALL_STATE
from savers.langgraph import FileSystemCheckpointSaver, async_methods

CONFIG = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


class Hops(list):
    """The names of the methods that run in a worker thread."""

    def __init__(self):
        super().__init__()
        self.hopped = asyncio.Event()


@pytest.fixture
def hops(monkeypatch):
    names = Hops()

    async def run_in_thread(call):
        names.append(call.func.__name__)
        names.hopped.set()
        return await asyncio.to_thread(call)

    monkeypatch.setattr(async_methods, "run_in_thread", run_in_thread)
    return names


async def warm(saver, hops):
    """Open the log, and read it once."""
    for n in range(2):
        await step(saver, CONFIG, n)
    hops.clear()
    hops.hopped.clear()


async def step(saver, config, value):
    checkpoint = empty_checkpoint()
    version = saver.get_next_version(None, None)
    checkpoint["channel_values"], checkpoint["channel_versions"] = {"a": value}, {"a": version}
    config = await saver.aput(config, checkpoint, {"source": "loop"}, {"a": version})
    await saver.aput_writes(config, [("a", 1)], "task")
    return await saver.aget_tuple(config)


def test_small_calls_of_an_open_log_run_inline(tmp_path, hops):
    async def run():
        saver = FileSystemCheckpointSaver(tmp_path, fsync="never")
        await warm(saver, hops)
        for n in range(5):
            found = await step(saver, CONFIG, n)
            assert found.checkpoint["channel_values"] == {"a": n}
            assert found.pending_writes == [("task", "a", 1)]
        assert await saver.aget_tuple(CONFIG) == found

    asyncio.run(run())
    assert hops == []


def test_puts_that_wait_for_the_disk_leave_the_event_loop(tmp_path, hops):
    async def run():
        saver = FileSystemCheckpointSaver(tmp_path, fsync="always")
        await warm(saver, hops)
        await step(saver, CONFIG, 1)

    asyncio.run(run())
    assert hops == ["put", "put_writes"]


def test_large_states_leave_the_event_loop(tmp_path, hops):
    async def run():
        saver = FileSystemCheckpointSaver(tmp_path, fsync="never")
        for n in range(3):
            hops.clear()
            await step(saver, CONFIG, [os.urandom(SMALL_STATE), n])

    asyncio.run(run())
    assert hops == ["put", "put_writes", "get_tuple"]


def test_an_earlier_checkpoint_is_read_in_a_thread(tmp_path, hops):
    async def run():
        saver = FileSystemCheckpointSaver(tmp_path, fsync="never")
        first = await step(saver, CONFIG, 0)
        await step(saver, first.config, 1)
        hops.clear()
        assert await saver.aget_tuple(first.config) == first

    asyncio.run(run())
    assert hops == ["get_tuple"]


def test_the_event_loop_goes_on_while_another_process_holds_the_write_lock(tmp_path, hops):
    saver = FileSystemCheckpointSaver(tmp_path, fsync="never")

    async def run(file):
        await warm(saver, hops)
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = asyncio.create_task(step(saver, CONFIG, 1))
        await hops.hopped.wait()
        assert hops == ["put"]
        assert not waiting.done()
        fcntl.flock(file, fcntl.LOCK_UN)
        found = await waiting
        assert found.checkpoint["channel_values"] == {"a": 1}

    path = Path(tmp_path, layout.LOCKS, f"{layout.locate_thread('t').stripe:02x}")
    path.parent.mkdir(exist_ok=True)
    # A lock of its own descriptor excludes this process as it would another one.
    with path.open("w+b") as file:
        asyncio.run(run(file))


def test_the_event_loop_goes_on_while_another_thread_uses_the_log(tmp_path, hops):
    async def run():
        saver = FileSystemCheckpointSaver(tmp_path, fsync="never")
        await warm(saver, hops)
        log = saver.store._store.shared_writer("t", "")
        held, done = threading.Event(), threading.Event()

        def hold():
            with log.mutex:
                held.set()
                done.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        waiting = asyncio.create_task(step(saver, CONFIG, 1))
        await hops.hopped.wait()
        done.set()
        holder.join()
        assert (await waiting).checkpoint["channel_values"] == {"a": 1}

    asyncio.run(run())


def test_errors_of_an_inline_put_are_those_of_put_and_leave_the_locks_free(tmp_path, hops):
    async def run():
        saver = FileSystemCheckpointSaver(tmp_path, fsync="never")
        await warm(saver, hops)
        with pytest.raises(TypeError, match="a"):
            await step(saver, CONFIG, threading.Lock())
        hops.clear()
        found = await step(saver, CONFIG, 2)
        assert found.checkpoint["channel_values"] == {"a": 2}

    asyncio.run(run())
    assert hops == []
