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
from graphkit.testing._contract.base import PATIENCE, SaverTests, call_in_thread
from graphkit.testing._values import at, made


class LockTests(SaverTests):
    """Who gets the run lock, who waits for it, and who need not wait."""

    def test_the_run_lock_excludes_other_runs(self) -> None:
        saver = self.open()
        other = self.open_again(saver)
        for namespace in ("", "n"):
            config = at("t", None, namespace)
            with saver.run_lock(at("t")):
                with self.raises(ThreadBusyError) as caught:
                    call_in_thread(_hold, other, config, 0.05)
                assert isinstance(caught.error, TimeoutError)
                assert caught.error.thread_id == "t"
                assert caught.error.holder
                assert caught.error.waited >= 0.04  # noqa: PLR2004 - clocks are coarse
                call_in_thread(_hold, other, at("u"), 0)
            call_in_thread(_hold, other, config, 0)

    def test_the_run_lock_is_let_go_on_failure(self) -> None:
        saver = self.open()
        with self.raises(KeyError), saver.run_lock(at()):
            _fail()
        call_in_thread(_hold, saver, at(), 0)

    def test_whoever_waits_for_the_run_lock_gets_it(self) -> None:
        saver = self.open()
        waiting = threading.Event()

        def wait() -> None:
            waiting.set()
            _hold(saver, at(), PATIENCE)

        with ThreadPoolExecutor(1) as pool:
            with saver.run_lock(at()):
                waiter = pool.submit(wait)
                assert waiting.wait(PATIENCE)
                assert not waiter.done()
            waiter.result(PATIENCE)

    def test_the_nodes_of_a_run_may_enter_its_lock_again(self) -> None:
        saver = self.open()
        other = self.open_again(saver)
        saver.put(at(), made({"n": 1}))
        with saver.run_lock(at()), _enter_node(saver, at()):
            _hold(saver, at("t", None, "n"), 0)
            _hold(other, at(), 0)
            with self.raises(ThreadBusyError):
                call_in_thread(_hold, other, at(), 0)
            assert len(saver.release(at()).checkpoints) == 1
            assert other.delete("t") is False or isinstance(saver, HasVersions)
            with self.raises(ThreadBusyError):
                call_in_thread(_hold, other, at(), 0)

    def test_whoever_holds_the_run_lock_may_release_copy_and_delete(self) -> None:
        saver = self.open()
        saver.put(at("t"), made({"n": 1}))
        with saver.run_lock(at("t")):
            saver.copy("t", "u")
            assert len(saver.release(at("t")).checkpoints) == 1
            saver.put(at("t"), made({"n": 2}))
            assert saver.delete("t") is True
            with self.raises(ThreadBusyError):
                call_in_thread(_hold, saver, at("t"), 0)
        assert saver.get(at("t")) is None
        assert saver.get(at("u")) is not None
        if saver.lists_threads:
            assert [*saver.threads()] == ["u"]

    def test_whoever_holds_the_run_lock_may_take_it_again(self) -> None:
        saver = self.open()
        other = self.open_again(saver)
        with saver.run_lock(at("t")):
            with saver.run_lock(at("t"), 0), saver.run_lock(at("t", None, "n"), 0):
                pass
            with self.raises(ThreadBusyError):
                call_in_thread(_hold, other, at("t"), 0)  # what was entered again is not let go
        call_in_thread(_hold, other, at("t"), 0)

    def test_whoever_holds_the_run_lock_may_run_and_update_the_thread(self) -> None:
        saver = self.open()
        app = _counting(saver)
        with saver.run_lock(at("t")):
            assert dict(app.invoke({"n": 1}, at("t")) or {}) == {"n": 2}
            app.update_state(at("t"), {"n": 5})
            assert asyncio.run(_later(app, at("t"))) == {"n": 8}
            with self.raises(ThreadBusyError):
                call_in_thread(_hold, saver, at("t"), 0)
        assert call_in_thread(lambda: dict(app.invoke({"n": 1}, at("t")) or {})) == {"n": 2}

    def test_a_run_does_not_give_its_lock_to_the_code_that_goes_through_its_stream(self) -> None:
        saver = self.open()
        stream = iter(_counting(saver).stream({"n": 1}, at("t")))
        next(stream)
        with self.raises(ThreadBusyError):
            _hold(saver, at("t"), 0)
        for _ in stream:
            pass
        _hold(saver, at("t"), 0)

    def test_a_node_cannot_run_its_own_thread_though_its_caller_holds_the_lock(self) -> None:
        saver = self.open()
        seen: list[type[BaseException]] = []

        def node(_state: object) -> None:
            with self.raises(GraphRunnerError) as caught:
                app.invoke({}, at("t"))
            seen.append(type(caught.error))

        app = StateGraph({}).add_node("a", node).add_edge(START, "a").add_edge("a", END).compile(checkpoint_saver=saver)
        with saver.run_lock(at("t")):
            app.invoke({}, at("t"))
        assert seen == [GraphRunnerError]

    def test_the_key_of_the_run_lock_tells_threads_apart_not_objects(self) -> None:
        saver = self.open()
        other = self.open_again(saver)
        assert saver.run_lock_key(at("t")) == other.run_lock_key(at("t", "id", "n"))
        assert saver.run_lock_key(at("t")) != saver.run_lock_key(at("u"))
        assert saver.run_lock_key(None) == saver.run_lock_key(at("$default"))
        assert self.make_saver().run_lock_key(at("t")) != saver.run_lock_key(at("t"))

    def test_readers_and_puts_do_not_wait_for_a_run(self) -> None:
        saver = self.open()
        with saver.run_lock(at()):
            other = self.open_again(saver)
            call_in_thread(lambda: other.put(at(), made({"n": 1})))
            assert call_in_thread(lambda: len(other.list(at()))) == 1
            assert call_in_thread(lambda: other.get(at())) is not None
            call_in_thread(lambda: other.put_writes(at(), {"w": 1}))

    def test_release_delete_and_copy_wait_for_a_run(self) -> None:
        calls: list[Callable[[BaseCheckpointSaver], object]] = [
            lambda saver: saver.release(at("t")),
            lambda saver: saver.delete("t"),
            lambda saver: saver.copy("t", "new"),
            lambda saver: saver.copy("u", "t"),
        ]
        for call in calls:
            saver = self.open("waits_for_runs")
            saver.put(at("u"), made({"n": 2}))
            if call is not calls[-1]:
                saver.put(at("t"), made({"n": 1}))
            with ThreadPoolExecutor(1) as pool:
                with saver.run_lock(at("t")):
                    waiter = pool.submit(call, self.open_again(saver))
                    with self.raises(TimeoutError):
                        waiter.result(0.1)
                    assert len(saver.list(at("t"))) == (call is not calls[-1])
                waiter.result(PATIENCE)


def _fail() -> None:
    raise KeyError


def _counting(saver: BaseCheckpointSaver) -> CompiledGraph:
    graph = StateGraph({}).add_node("a", lambda state: {"n": state["n"] + 1})
    return graph.add_edge(START, "a").add_edge("a", END).compile(checkpoint_saver=saver)


async def _later(app: CompiledGraph, config: RunnableConfig) -> dict[str, object]:
    return dict(await app.ainvoke({"n": 7}, config) or {})


def _hold(saver: BaseCheckpointSaver, config: RunnableConfig, timeout: float) -> None:
    with saver.run_lock(config, timeout):
        pass


@contextmanager
def _enter_node(saver: BaseCheckpointSaver, config: RunnableConfig) -> Iterator[None]:
    """Run the block as if inside a node of a run that holds the thread."""
    token = CURRENT_NODE_CONTEXT.set(NodeContext("node", (), frozenset({saver.run_lock_key(config)})))
    try:
        yield
    finally:
        CURRENT_NODE_CONTEXT.reset(token)
