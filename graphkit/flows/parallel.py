"""A node that calls one function for many items, several at a time.

It is one node, so after a crash inside it all items run again; `add_map_node` keeps each finished
item. The action is asynchronous if the function is, and pickles if its functions do.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from typing import Any, Final, final

from graphkit._plan.topology import Call
from graphkit._records.context import GraphInterrupt
from graphkit.errors import GraphRunnerError
from graphkit.flows.calls import arun_call, get_name, make_call, notify_start_and_end, run_call

_MAX_WORKERS: Final = 16


def process_parallel(
    function: Callable[..., Any],
    items: str | Callable[[Any], Iterable[Any]],
    into: str | Callable[[list[Any]], Any],
    *,
    workers: int | None = None,
    fail_fast: bool = True,
    errors: str | None = None,
) -> Callable[[Any, Any], Any]:
    """Return an action that calls a function once per item, several at a time.

    Plain functions run in threads, asynchronous ones as tasks.

    Args:
        function: called with an item, and the config if it takes a second argument. It may use
            `once`. It may not use `interrupt`, because the items run in any order; that of a map
            node may.
        items: the key of the state that holds the items, or a function of the state that returns
            them.
        into: the key of the state for the results, in the order of the items; or a function that
            turns them into the update of the node.
        workers: how many items run at a time; None: twice the number of processors, at most 16.
            Never more than there are items.
        fail_fast: after the first failure, start no further items, wait for those that run (tasks
            are cancelled), and raise the failure. False: run all items.
        errors: with `fail_fast=False`, the key of the state for the failures, by index as text; the
            results are then those of the other items. None: raise the failures together, as an
            ExceptionGroup.

    Raises:
        TypeError: the function cannot be called, or is a generator.
        ValueError: workers is below one, or `errors` is given with `fail_fast`.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    if errors is not None and fail_fast:
        raise ValueError("errors= collects failures, which fail_fast=True does not; pass fail_fast=False")
    call = make_call(function)
    action = _AsyncParallel if call.is_async else _Parallel
    return action(
        call=call,
        items=items,
        into=into,
        workers=workers,
        fail_fast=fail_fast,
        errors=errors,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Parallel:
    call: Call
    items: str | Callable[[Any], Iterable[Any]]
    into: str | Callable[[list[Any]], Any]
    workers: int | None
    fail_fast: bool
    errors: str | None

    def __call__(self, state: Any, config: Any) -> Any:
        items = self._read_items(state)
        workers = self._count_workers(items)
        failed: list[int] = []

        def run_item(index: int, item: Any) -> Any:
            with self._run_item(index, failed):
                return run_call(self.call, item, config)

        with self._notify_all(items, workers):
            with ThreadPoolExecutor(workers, "graphkit-parallel") as pool:
                # Each item sees the context of the node, and so its observers and `once`.
                futures = [pool.submit(copy_context().run, run_item, index, item) for index, item in enumerate(items)]
                try:
                    wait(futures, return_when=FIRST_EXCEPTION if self.fail_fast else ALL_COMPLETED)
                finally:
                    pool.shutdown(cancel_futures=True)
            return self._make_update(futures)

    def _read_items(self, state: Any) -> list[Any]:
        if isinstance(self.items, str):
            return [*state[self.items]]
        return [*self.items(state)]

    def _count_workers(self, items: list[Any]) -> int:
        processors = os.cpu_count() or 1
        limit = self.workers or min(2 * processors, _MAX_WORKERS)
        return max(1, min(limit, len(items)))

    def _notify_all(self, items: list[Any], workers: int) -> AbstractContextManager[None]:
        return notify_start_and_end("parallel", items=len(items), workers=workers)

    @contextmanager
    def _run_item(self, index: int, failed: list[int]) -> Iterator[None]:
        """Run one item, unless an earlier one failed and `fail_fast` is set.

        Items start in order, so an item that does not start any more comes after the failed ones.

        Args:
            index: of the item.
            failed: the indices of the items that failed; shared by all items.
        """
        if failed and self.fail_fast:
            raise CancelledError
        with notify_start_and_end("worker", index=index):
            try:
                yield
            except GraphInterrupt:
                failed.append(index)
                raise _make_interrupt_error(self.call) from None
            except BaseException:
                failed.append(index)
                raise

    def _make_update(self, futures: Sequence[Any]) -> Any:
        """Return the update of the node.

        Args:
            futures: futures or tasks that are done or were cancelled, in the order of the items.
        """
        failures = _find_failures(futures)
        if failures and self.errors is None:
            errors = [*failures.values()]
            if self.fail_fast:
                raise errors[0]
            raise BaseExceptionGroup(f"{len(errors)} of {len(futures)} items failed", errors)

        results: list[Any] = []
        for index, future in enumerate(futures):
            if index not in failures:
                results.append(future.result())
        update = {self.into: results} if isinstance(self.into, str) else self.into(results)
        if self.errors is None:
            return update

        texts: dict[str, str] = {}
        for index, error in failures.items():
            texts[str(index)] = f"{type(error).__name__}: {error}"
        return {**update, self.errors: texts}


def _find_failures(futures: Sequence[Any]) -> dict[int, BaseException]:
    """Return index -> error of the futures or tasks that failed; cancelled ones did not fail."""
    failures: dict[int, BaseException] = {}
    for index, future in enumerate(futures):
        error = None if future.cancelled() else future.exception()
        if error is not None:
            failures[index] = error
    return failures


@final
class _AsyncParallel(_Parallel):
    __slots__ = ()

    async def __call__(self, state: Any, config: Any) -> Any:
        import asyncio  # 25 ms to import, and only asynchronous runs need it

        items = self._read_items(state)
        workers = self._count_workers(items)
        failed: list[int] = []
        free_workers = asyncio.Semaphore(workers)

        async def run_item(index: int, item: Any) -> Any:
            async with free_workers:
                with self._run_item(index, failed):
                    return await arun_call(self.call, item, config)

        until = asyncio.FIRST_EXCEPTION if self.fail_fast else asyncio.ALL_COMPLETED
        with self._notify_all(items, workers):
            tasks = [asyncio.create_task(run_item(index, item)) for index, item in enumerate(items)]
            try:
                if tasks:
                    await asyncio.wait(tasks, return_when=until)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            return self._make_update(tasks)


def _make_interrupt_error(call: Call) -> GraphRunnerError:
    return GraphRunnerError(f"{get_name(call.function)} called interrupt() inside process_parallel; use a map node")
