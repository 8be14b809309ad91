"""The run lock taken by hand: entered again by its holder, one run at a time; see the contract suite for the rest."""

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest

from graphkit.errors import ThreadBusyError
from graphkit.saver_kit import get_held_run_locks
from graphkit.testing import made
from savers import FileSystemSaver, MemorySaver, SaverWrapper
from tests.support.forked import run_in_child
from tests.support.graphs import CONFIG, make_chain
from tests.support.savers import ListSaver


@pytest.fixture(params=["memory", "file", "wrapped"])
def saver(request, tmp_path):
    if request.param == "file":
        return FileSystemSaver(tmp_path, lock_timeout=0.1)
    saver = MemorySaver(lock_timeout=0.1)
    return SaverWrapper(saver) if request.param == "wrapped" else saver


@pytest.fixture
def app(saver):
    return make_chain({}, a=lambda state: {"n": state["n"] + 1}).compile(checkpoint_saver=saver)


async def test_an_asynchronous_run_inside_the_lock(saver, app):
    with saver.run_lock(CONFIG):
        assert (await app.ainvoke({"n": 1}, CONFIG))["n"] == 2


async def test_a_task_that_was_there_before_does_not_hold_it(saver, app):
    # The saver of a wrapper waits as long as that of the wrapped one.
    go = asyncio.Event()

    async def other():
        await go.wait()
        with pytest.raises(ThreadBusyError):
            await app.ainvoke({"n": 1}, CONFIG)

    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    with saver.run_lock(CONFIG):
        go.set()
        await task


async def test_a_task_that_outlives_the_holder_does_not_hold_it(saver):
    go = asyncio.Event()

    async def late():
        await go.wait()
        return get_held_run_locks()

    with saver.run_lock(CONFIG):
        assert saver.run_lock_key(CONFIG) in get_held_run_locks()
        task = asyncio.create_task(late())
        await asyncio.sleep(0)
    go.set()
    assert await task == frozenset()


def test_two_runs_inside_the_lock_do_not_run_at_the_same_time():
    saver = MemorySaver(lock_timeout=0)
    app = make_chain({}, a=lambda state: None).compile(checkpoint_saver=saver)
    with saver.run_lock(CONFIG):
        stream = iter(app.stream({}, CONFIG))
        next(stream)
        for call in (lambda: app.invoke({}, CONFIG), lambda: app.update_state(CONFIG, {})):
            with pytest.raises(ThreadBusyError, match="another run that the holder of the lock started"):
                call()
        list(stream)
        app.invoke({}, CONFIG)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_the_child_of_a_fork_does_not_hold_what_its_parent_does_and_waits_for_no_lock_in_its_memory(tmp_path):
    on_files, in_memory = FileSystemSaver(tmp_path, lock_timeout=0), MemorySaver(lock_timeout=0)
    with on_files.run_lock(CONFIG), in_memory.run_lock(CONFIG):
        assert run_in_child(lambda: is_busy(on_files) and not is_busy(in_memory))


def remove_slowly(saver, wait):
    saver.remove(CONFIG, (wait() for _ in "x"))  # It reads the ids while it holds the lock of the saver.


def write_slowly(saver, wait):
    with patch.object(saver, "put", lambda *_: wait()):
        saver.put_writes(CONFIG, {"x": 1})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize(("make", "change"), [(MemorySaver, remove_slowly), (ListSaver, write_slowly)])
def test_the_child_of_a_fork_waits_for_no_other_thread_of_its_parent(make, change):
    saver = make()
    saver.put(CONFIG, made({"n": 1}))
    is_inside, may_go_on = threading.Event(), threading.Event()

    def wait():
        is_inside.set()
        may_go_on.wait(10)

    def change_in_child():
        signal.alarm(5)
        may_go_on.set()
        saver.put_writes(CONFIG, {"y": 2})

    with ThreadPoolExecutor(1) as pool:
        pool.submit(change, saver, wait)
        assert is_inside.wait(10)
        assert run_in_child(change_in_child)
        may_go_on.set()


def is_busy(saver):
    try:
        with saver.run_lock(CONFIG, 0):
            return False
    except ThreadBusyError:
        return True
