"""Nodes made of functions: chains, parallel items and choices.

What stands here is one node, so a crash inside runs the whole of it again; nodes of their own, or `add_map_node`, keep
each finished part. Actions are asynchronous if a function in them is, and pickle if their functions do.
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
from graphkit.flows.calls import arun, name_of, note, plain_call, run, told
from graphkit.flows.predicates import (
    Predicate,
    checked,
)

_MOST_WORKERS: Final = 16


def process_chain(
    *steps: Callable[..., Any], on_step: Callable[[int, Any], object] | None = None
) -> Callable[[Any, Any], Any]:
    """A node that runs functions one after the other.

    The first gets the state, each next one what the one before returned; what the last returns is the node's update.
    A step may take the config as a second argument, and may use `interrupt` and `once` as any node does.

    Args:
        steps: plain or asynchronous functions.
        on_step: called with the index of a step and what it returned, for those who want what is in between.

    Raises:
        TypeError: a step cannot be called, or is a generator.
        ValueError: there is no step.
    """
    if not steps:
        raise ValueError("process_chain needs a step")
    calls = [*map(plain_call, steps)]
    return (_AsyncChain if any(call.is_async for call in calls) else _Chain)(calls, on_step)


def process_conditional(
    predicate: Callable[[Any], Any], then: Callable[..., Any], otherwise: Callable[..., Any] | None = None
) -> Callable[[Any, Any], Any]:
    """A node that runs one of two functions: `then` if the predicate is true of the state, else `otherwise`.

    Args:
        predicate: a function of the state.
        then: an action.
        otherwise: another one; None: no update.

    Raises:
        TypeError: the predicate is asynchronous, or an action cannot be called or is a generator.
    """
    calls = plain_call(then), None if otherwise is None else plain_call(otherwise)
    is_async = any(call is not None and call.is_async for call in calls)
    return (_AsyncChoice if is_async else _Choice)(checked(predicate), *calls)


@dataclasses.dataclass(frozen=True, slots=True)
class _Chain:
    calls: Sequence[Call]
    on_step: Callable[[int, Any], object] | None

    def __call__(self, state: Any, config: Any) -> Any:
        with self._told():
            for index, call in enumerate(self.calls):
                with self._step_told(index):
                    state = run(call, state, config)
                self._tell(index, state)
        return state

    @property
    def name(self) -> str:
        return " > ".join(name_of(call.function) for call in self.calls)

    def _told(self) -> Any:
        return told("chain", chain=self.name, steps=len(self.calls))

    def _step_told(self, index: int) -> Any:
        return told("step", chain=self.name, step=name_of(self.calls[index].function), index=index)

    def _tell(self, index: int, value: Any) -> None:
        if self.on_step is not None:
            self.on_step(index, value)


@final
class _AsyncChain(_Chain):
    __slots__ = ()

    async def __call__(self, state: Any, config: Any) -> Any:
        with self._told():
            for index, call in enumerate(self.calls):
                with self._step_told(index):
                    state = await arun(call, state, config)
                self._tell(index, state)
        return state


@dataclasses.dataclass(frozen=True, slots=True)
class _Choice:
    predicate: Predicate
    then: Call
    otherwise: Call | None

    def __call__(self, state: Any, config: Any) -> Any:
        call = self._chosen(state)
        return None if call is None else run(call, state, config)

    def _chosen(self, state: Any) -> Call | None:
        result = self.predicate(state)
        call = self.then if result else self.otherwise
        route = None if call is None else name_of(call.function)
        note("route.select", predicate_name=self.predicate.name, predicate_result=result, route=route)
        return call


@final
class _AsyncChoice(_Choice):
    __slots__ = ()

    async def __call__(self, state: Any, config: Any) -> Any:
        call = self._chosen(state)
        return None if call is None else await arun(call, state, config)


def process_parallel(
    function: Callable[..., Any],
    items: str | Callable[[Any], Iterable[Any]],
    into: str | Callable[[list[Any]], Any],
    *,
    workers: int | None = None,
    fail_fast: bool = True,
    errors: str | None = None,
) -> Callable[[Any, Any], Any]:
    """A node that calls a function once per item, several at a time, in threads or as tasks if it is asynchronous.

    Args:
        function: called with an item, and the config if it takes a second argument. It may use `once`; `interrupt` is
            refused, since the items come in any order (a map node's may).
        items: the key of the state that has them, or a function of the state that gives them.
        into: the key of the state that gets the results, in the order of the items; or a function that makes the
            node's update of them.
        workers: how many at a time; None: twice the processors, 16 at most. Never more than there are items.
        fail_fast: with the first failure, items that have not begun are not, those that run are waited for (tasks are
            cancelled), and the failure is the node's. False: all items run.
        errors: with `fail_fast` False, the key of the state that gets the failures, by index as text; the results are
            then those of the others. None: the failures are raised together, as an ExceptionGroup.

    Raises:
        TypeError: the function cannot be called, or is a generator.
        ValueError: workers is below one, or `errors` is given with `fail_fast`.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    if errors is not None and fail_fast:
        raise ValueError("errors= collects failures, which fail_fast=True does not; pass fail_fast=False")
    call = plain_call(function)
    return (_AsyncParallel if call.is_async else _Parallel)(call, items, into, workers, fail_fast, errors)


@dataclasses.dataclass(frozen=True, slots=True)
class _Parallel:
    call: Call
    items: str | Callable[[Any], Iterable[Any]]
    into: str | Callable[[list[Any]], Any]
    workers: int | None
    fail_fast: bool
    errors: str | None

    def __call__(self, state: Any, config: Any) -> Any:
        items, workers = self._sized(state)
        failed: list[int] = []
        with self._told(items, workers):
            with ThreadPoolExecutor(workers, "graphkit-parallel") as pool:
                works = [self._work(failed, index, item, config) for index, item in enumerate(items)]
                doing = [pool.submit(copy_context().run, work) for work in works]
                try:
                    wait(doing, return_when=FIRST_EXCEPTION if self.fail_fast else ALL_COMPLETED)
                finally:
                    pool.shutdown(cancel_futures=True)
            return self._update(doing)

    def _sized(self, state: Any) -> tuple[list[Any], int]:
        items = [*(state[self.items] if isinstance(self.items, str) else self.items(state))]
        most = self.workers or min(2 * (os.cpu_count() or 1), _MOST_WORKERS)
        return items, max(1, min(most, len(items)))

    def _told(self, items: list[Any], workers: int) -> AbstractContextManager[None]:
        return told("parallel", items=len(items), workers=workers)

    def _work(self, failed: list[int], index: int, item: Any, config: Any) -> Callable[[], Any]:
        def work() -> Any:
            with self._item(failed, index):
                return run(self.call, item, config)

        return work

    @contextmanager
    def _item(self, failed: list[int], index: int) -> Iterator[None]:
        """One item's turn. Items begin in order, so one that is not begun any more stands after those that failed."""
        if failed and self.fail_fast:
            raise CancelledError
        with told("worker", index=index):
            try:
                yield
            except BaseException as error:
                failed.append(index)
                if isinstance(error, GraphInterrupt):
                    raise _no_interrupt(self.call) from None
                raise

    def _update(self, doing: Sequence[Any]) -> Any:
        """The node's update, of futures or tasks that are done or were cancelled."""
        failed = {index: one.exception() for index, one in enumerate(doing) if not one.cancelled() and one.exception()}
        if failed and self.fail_fast:
            raise next(iter(failed.values()))
        if failed and self.errors is None:
            raise BaseExceptionGroup(f"{len(failed)} of {len(doing)} items failed", [*failed.values()])
        results = [one.result() for index, one in enumerate(doing) if index not in failed]
        update = {self.into: results} if isinstance(self.into, str) else self.into(results)
        if self.errors is None:
            return update
        return {**update, self.errors: {str(index): f"{type(e).__name__}: {e}" for index, e in failed.items()}}


@final
class _AsyncParallel(_Parallel):
    __slots__ = ()

    async def __call__(self, state: Any, config: Any) -> Any:
        import asyncio  # 25 ms to import, and only asynchronous runs need it

        items, workers = self._sized(state)
        failed: list[int] = []
        free = asyncio.Semaphore(workers)
        with self._told(items, workers):
            works = [self._awork(free, failed, index, item, config) for index, item in enumerate(items)]
            doing = [*map(asyncio.create_task, works)]
            try:
                if doing:
                    until = asyncio.FIRST_EXCEPTION if self.fail_fast else asyncio.ALL_COMPLETED
                    await asyncio.wait(doing, return_when=until)
            finally:
                for one in doing:
                    one.cancel()
                await asyncio.gather(*doing, return_exceptions=True)
            return self._update(doing)

    async def _awork(self, free: Any, failed: list[int], index: int, item: Any, config: Any) -> Any:
        async with free:
            with self._item(failed, index):
                return await arun(self.call, item, config)


def _no_interrupt(call: Call) -> GraphRunnerError:
    return GraphRunnerError(f"{name_of(call.function)} called interrupt() inside process_parallel; use a map node")
