"""Changes for async code, and as JSON."""

import asyncio
import json
import os
import signal
import threading
from contextlib import aclosing
from datetime import UTC, datetime

import pytest

from graphkit import END, Checkpoint, NodeExecutionError, RunnableConfig, operations
from savers import FileSystemSaver, MemorySaver, SaverWrapper, SqliteSaver
from tests.support.graphs import LOG, FlakyNode, asking, make_chain, make_graph
from tests.support.workers import PATIENCE

T = RunnableConfig("t")
AT = datetime(2026, 12, 1, 8, tzinfo=UTC)


def step(following, **state):
    return Checkpoint(node_id="a", next_node_id=following, state=state, created_at=AT)


def watching_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("graphkit-watch")]


@pytest.mark.requirement("W15")
@pytest.mark.parametrize("wrap", [lambda saver: saver, SaverWrapper])
async def test_async_code_follows_a_thread_until_it_has_finished(wrap):
    saver = wrap(MemorySaver())

    async def follow():
        return [change.to_dict() async for change in saver.awatch("t", latest=True, interval=0.01, until="finished")]

    task = asyncio.create_task(follow())
    await asyncio.sleep(0)
    await saver.aput(T, step("b"))
    await saver.aput(T, step(END))
    rows = await task

    assert rows[-1]["next"] == END
    assert json.loads(json.dumps(rows[-1]))["time"] == "2026-12-01T08:00:00+00:00"


def test_leaving_an_async_watch_closes_it():
    saver = MemorySaver()
    saver.put(T, step("b"))

    async def leave():
        async with aclosing(saver.awatch("t", latest=True)) as changes:
            async for change in changes:
                assert change.kind == "checkpoint"
                return

    async def cancel():
        changes = saver.awatch("t")
        task = asyncio.create_task(anext(changes))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    asyncio.run(cancel())
    for thread in watching_threads():
        thread.join(60)
    assert not watching_threads()


def read_kinds(changes, count):
    return [changes.get(PATIENCE).kind for _ in range(count)]


def test_a_run_that_fails_again_at_a_checkpoint_is_reported_again():
    saver = MemorySaver()
    app = make_chain(a=FlakyNode("a", fails=True)).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError):
        app.invoke({}, T)
    with saver.watch("t", interval=0.001) as changes:
        for _ in range(2):
            with pytest.raises(NodeExecutionError):
                app.resume(T)
            assert read_kinds(changes, 1) == ["failure"]
        assert changes.get(0.01) is None


def test_a_question_that_waits_again_after_a_cancel_is_reported_again():
    saver = MemorySaver()
    graph = make_graph(LOG, "START>s s>a,b a>j b>j j>END", a=asking("?"), b=asking("answered"))
    app = graph.compile(checkpoint_saver=saver)
    app.invoke({}, T)
    operations.answer(saver, T, "yes", interrupt=saver.interrupts(T)[1].id)

    with saver.watch("t", interval=0.001) as changes:
        operations.cancel(saver, T)
        assert read_kinds(changes, 1) == ["cancel"]

        app.resume(T)
        assert changes.get(60).value["payload"] == "?"
        assert read_kinds(changes, 1) == ["progress"]
        assert changes.get(0.01) is None


@pytest.mark.parametrize("depth", [1, 2])
def test_a_nested_question_that_waits_again_after_a_cancel_is_reported_again(depth):
    saver = MemorySaver()
    graph = make_chain(ask=asking("?"))
    for _ in range(depth):
        graph = make_chain(sub=graph.compile())
    app = graph.compile(checkpoint_saver=saver)
    app.invoke({}, T)
    with saver.watch("t", interval=0.001) as changes:
        operations.cancel(saver, T)
        assert read_kinds(changes, 1) == ["cancel"]
        app.resume(T)
        assert changes.get(60).value["payload"] == "?"
        assert changes.get(0.01) is None


@pytest.mark.parametrize("saver_class", [FileSystemSaver, SqliteSaver])
def test_a_watch_until_a_status_that_only_the_run_lock_shows_ends_at_its_interval(saver_class, tmp_path):
    may_end = threading.Event()
    with saver_class(tmp_path / "store", fsync="never") as saver:
        saver.put(T, step("b"))

        def hold_run_lock():
            with saver.run_lock(T):
                may_end.wait(PATIENCE)

        holder = threading.Timer(0.1, hold_run_lock)
        for until, timer in (("running", holder), ("stalled", threading.Timer(0.1, may_end.set))):
            with saver.watch("t", interval=0.01, until=until) as changes:
                timer.start()
                while changes.get(PATIENCE / 2) is not None:
                    pass
                assert changes.reached == until
        holder.join()


def test_a_watch_until_a_status_notices_the_answer_to_a_nested_question():
    saver = MemorySaver()
    make_chain(sub=make_chain(ask=asking("?")).compile()).compile(checkpoint_saver=saver).invoke({}, T)
    with saver.watch("t", interval=0.01, until="answered") as changes:
        assert changes.get(0.0) is None
        operations.answer(saver, T, "yes")
        while changes.get(PATIENCE / 2) is not None:
            pass
        assert changes.reached == "answered"


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="a platform with signals of POSIX")
def test_a_signal_that_does_not_interrupt_the_sleep_is_noticed(monkeypatch):
    """Another thread receives the signal, as if it had come just before the sleep."""
    monkeypatch.setattr("graphkit._waker._LONGEST_SLEEP", 0.2)
    was_late = threading.Event()
    with MemorySaver().watch(interval=3600) as changes:
        previous = signal.signal(signal.SIGUSR1, lambda *_: changes.wake())
        sender = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        sender.start()  # before the mask, which a new thread would inherit
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        rescue = threading.Timer(PATIENCE, lambda: (was_late.set(), changes.close()))
        rescue.start()
        try:
            assert changes.get() is None
        finally:
            rescue.cancel()
            sender.join()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signal.signal(signal.SIGUSR1, previous)
    assert not was_late.is_set()
