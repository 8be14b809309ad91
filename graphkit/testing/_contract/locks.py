"""The run lock: one run of a thread at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from graphkit._build.state_graph import StateGraph
from graphkit._compiled import CompiledGraph
from graphkit._records.config import END, START, RunnableConfig
from graphkit._records.context import CURRENT_NODE_CONTEXT, NodeContext
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.versions import HasVersions
from graphkit.errors import GraphRunnerError, ThreadBusyError
from graphkit.testing._contract.base import TIMEOUT, ContractTests, call_in_thread
from graphkit.testing._values import (
    CONFIG,
    assert_equal,
    assert_isinstance,
    assert_not_none,
    assert_same,
    assert_true,
    made,
    make_config,
)


class LockTests(ContractTests):
    """Which callers get the run lock, which wait for it, and which do not need it."""

    def test_the_run_lock_excludes_other_runs(self) -> None:
        saver = self.open()
        other = self.open_again(saver)
        for namespace in ("", "n"):
            config = make_config("t", namespace=namespace)
            with saver.run_lock(CONFIG):
                with self.raises(ThreadBusyError) as caught:
                    call_in_thread(_take_lock, other, config, 0.05)
                assert_isinstance(caught.error, TimeoutError)
                assert_equal(caught.error.thread_id, "t")
                assert_true(bool(caught.error.holder), "the error does not name the holder of the run lock")
                waited = caught.error.waited
                assert_true(waited >= 0.04, f"waited {waited} s for the run lock instead of 0.05 s")  # noqa: PLR2004 - clocks are coarse
                call_in_thread(_take_lock, other, make_config("u"), 0)
            call_in_thread(_take_lock, other, config, 0)

    def test_is_run_locked_reports_a_held_lock(self) -> None:
        saver = self.open()
        other = self.open_again(saver)
        saver.put(CONFIG, made({"n": 1}))
        for reader in (saver, other):
            assert_equal(reader.is_run_locked(CONFIG), False, "is_run_locked of a free thread")
            assert_equal(reader.history(CONFIG)[0].status, "stalled")
        with saver.run_lock(CONFIG):
            for reader in (saver, other):
                for config in (CONFIG, make_config("t", namespace="n")):
                    assert_equal(reader.is_run_locked(config), True, "is_run_locked of a held thread")
                    assert_equal(call_in_thread(reader.is_run_locked, config), True, "is_run_locked of a held thread")
                assert_equal(reader.history(CONFIG)[0].status, "running")
                assert_equal(reader.is_run_locked(make_config("u")), False, "is_run_locked of another thread")
            with self.raises(ThreadBusyError):
                call_in_thread(_take_lock, other, CONFIG, 0)
        for reader in (saver, other):
            assert_equal(reader.is_run_locked(CONFIG), False, "is_run_locked of a thread that was let go")
            call_in_thread(_take_lock, reader, CONFIG, 0)

    def test_the_run_lock_is_released_after_an_exception(self) -> None:
        saver = self.open()
        with self.raises(KeyError), saver.run_lock(CONFIG):
            _fail()
        call_in_thread(_take_lock, saver, CONFIG, 0)

    def test_a_waiter_acquires_the_lock(self) -> None:
        saver = self.open()
        waiting = threading.Event()

        def wait() -> None:
            waiting.set()
            _take_lock(saver, CONFIG, TIMEOUT)

        with ThreadPoolExecutor(1) as pool:
            with saver.run_lock(CONFIG):
                waiter = pool.submit(wait)
                assert_true(waiting.wait(TIMEOUT), "the other thread did not start")
                assert_true(not waiter.done(), "another thread got the run lock while it was held")
            waiter.result(TIMEOUT)

    def test_a_node_may_reenter_the_lock_of_its_run(self) -> None:
        saver = self.open()
        other = self.open_again(saver)
        saver.put(CONFIG, made({"n": 1}))
        with saver.run_lock(CONFIG), _enter_node(saver, CONFIG):
            _take_lock(saver, make_config("t", namespace="n"), 0)
            _take_lock(other, CONFIG, 0)
            with self.raises(ThreadBusyError):
                call_in_thread(_take_lock, other, CONFIG, 0)
            assert_equal(len(saver.release(CONFIG).checkpoints), 1)
            existed = other.delete("t")
            assert_true(not existed or isinstance(saver, HasVersions), "delete of a released thread returned True")
            with self.raises(ThreadBusyError):
                call_in_thread(_take_lock, other, CONFIG, 0)

    def test_the_lock_holder_may_release_copy_and_delete(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 1}))
        with saver.run_lock(CONFIG):
            saver.copy("t", "u")
            assert_equal(len(saver.release(CONFIG).checkpoints), 1)
            saver.put(CONFIG, made({"n": 2}))
            assert_same(saver.delete("t"), True)
            with self.raises(ThreadBusyError):
                call_in_thread(_take_lock, saver, CONFIG, 0)
        assert_same(saver.get(CONFIG), None)
        assert_not_none(saver.get(make_config("u")))
        if saver.lists_threads:
            assert_equal([*saver.threads()], ["u"])

    def test_the_run_lock_is_reentrant(self) -> None:
        saver = self.open()
        other = self.open_again(saver)
        with saver.run_lock(CONFIG):
            with saver.run_lock(CONFIG, 0), saver.run_lock(make_config("t", namespace="n"), 0):
                pass
            with self.raises(ThreadBusyError):
                call_in_thread(_take_lock, other, CONFIG, 0)  # the inner blocks did not release it
        call_in_thread(_take_lock, other, CONFIG, 0)

    def test_the_lock_holder_may_run_and_update_the_thread(self) -> None:
        saver = self.open()
        app = _make_counter(saver)
        with saver.run_lock(CONFIG):
            assert_equal(dict(app.invoke({"n": 1}, CONFIG) or {}), {"n": 2})
            app.update_state(CONFIG, {"n": 5})
            assert_equal(asyncio.run(_run_async(app, CONFIG)), {"n": 8})
            with self.raises(ThreadBusyError):
                call_in_thread(_take_lock, saver, CONFIG, 0)
        assert_equal(call_in_thread(lambda: dict(app.invoke({"n": 1}, CONFIG) or {})), {"n": 2})

    def test_the_consumer_of_a_stream_does_not_hold_the_lock(self) -> None:
        saver = self.open()
        stream = iter(_make_counter(saver).stream({"n": 1}, CONFIG))
        next(stream)
        with self.raises(ThreadBusyError):
            _take_lock(saver, CONFIG, 0)
        for _ in stream:
            pass
        _take_lock(saver, CONFIG, 0)

    def test_a_node_cannot_run_its_own_thread_under_its_callers_lock(self) -> None:
        saver = self.open()
        seen: list[type[BaseException]] = []

        def node(_state: object) -> None:
            with self.raises(GraphRunnerError) as caught:
                app.invoke({}, CONFIG)
            seen.append(type(caught.error))

        app = StateGraph({}).add_node("a", node).add_edge(START, "a").add_edge("a", END).compile(checkpoint_saver=saver)
        with saver.run_lock(CONFIG):
            app.invoke({}, CONFIG)
        assert_equal(seen, [GraphRunnerError])

    def test_the_run_lock_key_identifies_the_store_and_the_thread(self) -> None:
        saver = self.open()
        other = self.open_again(saver)
        assert_equal(saver.run_lock_key(CONFIG), other.run_lock_key(make_config("t", "id", "n")))
        is_shared = saver.run_lock_key(CONFIG) == saver.run_lock_key(make_config("u"))
        assert_true(not is_shared, "two threads have the same run lock")
        assert_equal(saver.run_lock_key(None), saver.run_lock_key(make_config("$default")))
        is_shared = self.make_saver().run_lock_key(CONFIG) == saver.run_lock_key(CONFIG)
        assert_true(not is_shared, "two stores have the same run lock")

    def test_readers_and_puts_do_not_wait_for_a_run(self) -> None:
        saver = self.open()
        with saver.run_lock(CONFIG):
            other = self.open_again(saver)
            call_in_thread(lambda: other.put(CONFIG, made({"n": 1})))
            assert_equal(call_in_thread(lambda: len(other.list(CONFIG))), 1)
            assert_not_none(call_in_thread(lambda: other.get(CONFIG)))
            call_in_thread(lambda: other.put_writes(CONFIG, {"w": 1}))

    def test_release_delete_and_copy_wait_for_a_run(self) -> None:
        calls: list[Callable[[BaseCheckpointSaver], object]] = [
            lambda saver: saver.release(CONFIG),
            lambda saver: saver.delete("t"),
            lambda saver: saver.copy("t", "new"),
            lambda saver: saver.copy("u", "t"),
        ]
        for call in calls:
            saver = self.open("waits_for_runs")
            saver.put(make_config("u"), made({"n": 2}))
            if call is not calls[-1]:
                saver.put(CONFIG, made({"n": 1}))
            with ThreadPoolExecutor(1) as pool:
                with saver.run_lock(CONFIG):
                    waiter = pool.submit(call, self.open_again(saver))
                    with self.raises(TimeoutError):
                        waiter.result(0.1)
                    assert_equal(len(saver.list(CONFIG)), call is not calls[-1])
                waiter.result(TIMEOUT)


def _fail() -> None:
    raise KeyError


def _make_counter(saver: BaseCheckpointSaver) -> CompiledGraph:
    graph = StateGraph({}).add_node("a", lambda state: {"n": state["n"] + 1})
    return graph.add_edge(START, "a").add_edge("a", END).compile(checkpoint_saver=saver)


async def _run_async(app: CompiledGraph, config: RunnableConfig) -> dict[str, object]:
    return dict(await app.ainvoke({"n": 7}, config) or {})


def _take_lock(saver: BaseCheckpointSaver, config: RunnableConfig, timeout: float) -> None:
    with saver.run_lock(config, timeout):
        pass


@contextmanager
def _enter_node(saver: BaseCheckpointSaver, config: RunnableConfig) -> Iterator[None]:
    """Run the block as inside a node of a run that holds the thread's lock."""
    token = CURRENT_NODE_CONTEXT.set(NodeContext("node", (), frozenset({saver.run_lock_key(config)})))
    try:
        yield
    finally:
        CURRENT_NODE_CONTEXT.reset(token)
