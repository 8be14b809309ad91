"""The run lock: one run of a thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, Final

from graphkit._build.state_graph import StateGraph
from graphkit._records.config import END, START, RunnableConfig
from graphkit._records.context import CURRENT_NODE_CONTEXT, NodeContext
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions
from graphkit.errors import ThreadBusyError
from graphkit.operations import cancel
from graphkit.testing import _check as check
from graphkit.testing._contract.base import TIMEOUT, ContractTests, call_in_thread
from graphkit.testing._values import CONFIG, NESTED, OTHER, made, make_config, put_state

_POLLING: Final = 0.01
"""Seconds between two questions of a node whether its run is cancelled."""


class LockTests(ContractTests):
    """Which callers get the run lock, which wait for it, and which do not need it."""

    def test_the_run_lock_excludes_other_runs(self) -> None:
        saver, other = self.open_two()

        # The lock belongs to the thread: a run in another namespace waits too.
        for config in (CONFIG, NESTED):
            with saver.run_lock(CONFIG):
                with self.raises(ThreadBusyError) as caught:
                    call_in_thread(_acquire, other, config, 0.05)
                error = caught.exception
                check.instance(error, TimeoutError)
                check.equal(error.thread_id, "t")
                check.true(bool(error.holder), "the error does not name the holder of the run lock")

                # Clocks are coarse: a wait of 0.05 s may be measured as a little less.
                is_long_enough = error.waited >= 0.04  # noqa: PLR2004
                check.true(is_long_enough, f"waited {error.waited} s for the run lock instead of 0.05 s")
                self.assert_unlocked(other, OTHER)

            self.assert_unlocked(other, config)

    def test_a_run_that_holds_the_lock_is_cancelled(self) -> None:
        saver, other = self.open_two()
        graph = StateGraph({})

        def work(_state: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
            accepted = call_in_thread(cancel, other, "t")
            deadline = monotonic() + TIMEOUT
            while not config.is_cancelled and monotonic() < deadline:
                sleep(_POLLING)
            return {"n": 1, "accepted": accepted}

        graph.add_node("work", work).add_node("rest", lambda _: {"n": -1})
        graph.add_edge(START, "work").add_edge("work", "rest").add_edge("rest", END)
        app = graph.compile(checkpoint_saver=saver)
        last = app.invoke_final({}, CONFIG)
        check.equal((last.is_cancelled, dict(last.state)), (True, {"n": 1, "accepted": True}), "the end of the run")
        for reader in (saver, other):
            check.statuses(reader, CONFIG, "cancelled", "")
            self.assert_unlocked(reader, CONFIG)

    def test_is_run_locked_reports_a_held_lock(self) -> None:
        saver, other = self.open_two()
        put_state(saver, {"n": 1})

        _assert_reported(saver, is_locked=False)
        _assert_reported(other, is_locked=False)

        with saver.run_lock(CONFIG):
            _assert_reported(saver, is_locked=True)
            _assert_reported(other, is_locked=True)
            # Asking did not release the lock.
            self.assert_locked(other, CONFIG)

        for reader in (saver, other):
            _assert_reported(reader, is_locked=False)
            self.assert_unlocked(reader, CONFIG)

    def test_the_run_lock_is_released_after_an_exception(self) -> None:
        saver = self.open()
        with self.raises(ZeroDivisionError), saver.run_lock(CONFIG):
            _ = 1 / 0
        self.assert_unlocked(saver, CONFIG)

    def test_a_waiter_acquires_the_lock(self) -> None:
        saver = self.open()
        started = threading.Event()

        def wait() -> None:
            started.set()
            _acquire(saver, CONFIG, TIMEOUT)

        with ThreadPoolExecutor(1) as pool:
            with saver.run_lock(CONFIG):
                waiter = pool.submit(wait)
                check.true(started.wait(TIMEOUT), "the other thread did not start")
                check.true(not waiter.done(), "another thread acquired the run lock while it was held")

            # The waiter acquires the lock now, or this raises its ThreadBusyError.
            waiter.result(TIMEOUT)

    def test_a_node_may_reenter_the_lock_of_its_run(self) -> None:
        saver, other = self.open_two()
        put_state(saver, {"n": 1})

        with saver.run_lock(CONFIG), _enter_node(saver, CONFIG):
            # The node context holds the lock, so that any saver of the store accepts it.
            _acquire(saver, NESTED, 0)
            _acquire(other, CONFIG, 0)
            self.assert_locked(other, CONFIG)

            tag = saver.release(CONFIG)
            check.count(tag.checkpoints, 1)

            # Only a saver with versions still has something of the thread to delete.
            existed = other.delete("t")
            is_possible = not existed or isinstance(saver, HasVersions)

            check.true(is_possible, "delete of a released thread returned True")
            self.assert_locked(other, CONFIG)

    def test_the_lock_holder_may_release_copy_and_delete(self) -> None:
        saver = self.open()
        put_state(saver, {"n": 1})

        with saver.run_lock(CONFIG):
            saver.copy("t", "u")
            tag = saver.release(CONFIG)
            check.count(tag.checkpoints, 1)

            put_state(saver, {"n": 2})
            check.same(saver.delete("t"), True)
            self.assert_locked(saver, CONFIG)

        check.missing(saver)

        check.get_checkpoint(saver, OTHER)
        if saver.lists_threads:
            check.threads(saver, "u")

    def test_the_run_lock_is_reentrant(self) -> None:
        saver, other = self.open_two()

        with saver.run_lock(CONFIG):
            with saver.run_lock(CONFIG, 0), saver.run_lock(NESTED, 0):
                pass
            # The end of the inner blocks did not release the lock.
            self.assert_locked(other, CONFIG)

        self.assert_unlocked(other, CONFIG)

    def test_the_run_lock_key_identifies_the_store_and_the_thread(self) -> None:
        saver, other = self.open_two()
        other_store = self.make_saver()
        key = saver.run_lock_key(CONFIG)
        default_key = saver.run_lock_key(None)

        # The saver object, the checkpoint and the namespace do not matter.
        same_thread = make_config("t", "id", "n")

        check.equal(other.run_lock_key(same_thread), key)
        check.equal(saver.run_lock_key(make_config("$default")), default_key)

        is_shared = saver.run_lock_key(OTHER) == key
        check.true(not is_shared, "two threads have the same run lock")

        is_shared = other_store.run_lock_key(CONFIG) == key
        check.true(not is_shared, "two stores have the same run lock")

    def test_readers_and_puts_do_not_wait_for_a_run(self) -> None:
        saver = self.open()

        with saver.run_lock(CONFIG):
            other = self.open_again(saver)
            call_in_thread(other.put, CONFIG, made({"n": 1}))
            listed = call_in_thread(other.list, CONFIG)
            check.count(listed, 1)

            loaded = call_in_thread(other.get, CONFIG)
            check.not_none(loaded)

            call_in_thread(other.put_writes, CONFIG, {"w": 1})

    def test_release_delete_and_copy_wait_for_a_run(self) -> None:
        self._check_call_waits(lambda saver: saver.release(CONFIG))
        self._check_call_waits(lambda saver: saver.delete("t"))
        self._check_call_waits(lambda saver: saver.copy("t", "new"))
        # The target of a copy must be empty, but its run lock may be held.
        self._check_call_waits(lambda saver: saver.copy("u", "t"), is_empty=True)

    def _check_call_waits(
        self,
        call: Callable[[BaseCheckpointSaver], object],
        *,
        is_empty: bool = False,
    ) -> None:
        """Assert that a call waits while the run lock of "t" is held, and changes nothing until then."""
        saver = self.open("waits_for_runs")
        put_state(saver, {"n": 2}, OTHER)
        if not is_empty:
            put_state(saver, {"n": 1})
        count = len(saver.list(CONFIG))

        with ThreadPoolExecutor(1) as pool:
            with saver.run_lock(CONFIG):
                waiter = pool.submit(call, self.open_again(saver))
                with self.raises(TimeoutError):
                    waiter.result(0.1)
                check.count(saver.list(CONFIG), count)

            waiter.result(TIMEOUT)

    def assert_locked(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
        """Assert that a caller in another thread cannot acquire the run lock."""
        with self.raises(ThreadBusyError):
            call_in_thread(_acquire, saver, config, 0)

    def assert_unlocked(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
        """Assert that a caller in another thread can acquire the run lock at once."""
        call_in_thread(_acquire, saver, config, 0)


def _assert_reported(reader: BaseCheckpointSaver, *, is_locked: bool) -> None:
    """Assert what a saver reports of the run lock of "t", in this thread and in another."""
    for config in (CONFIG, NESTED):
        reported = reader.is_run_locked(config)
        check.equal(reported, is_locked, "is_run_locked")

        reported = call_in_thread(reader.is_run_locked, config)
        check.equal(reported, is_locked, "is_run_locked in another thread")

    expected_status = "running" if is_locked else "stalled"
    check.statuses(reader, CONFIG, expected_status)
    check.equal(reader.is_run_locked(OTHER), False, "is_run_locked of another thread")


def _acquire(saver: BaseCheckpointSaver, config: RunnableConfig, timeout: float) -> None:
    """Acquire the run lock and release it."""
    with saver.run_lock(config, timeout):
        pass


@contextmanager
def _enter_node(saver: BaseCheckpointSaver, config: RunnableConfig) -> Iterator[None]:
    """Run the block as inside a node of a run that holds the thread's lock."""
    held_locks = frozenset({saver.run_lock_key(config)})
    context = NodeContext("node", (), held_locks)
    token = CURRENT_NODE_CONTEXT.set(context)

    try:
        yield
    finally:
        CURRENT_NODE_CONTEXT.reset(token)
