"""Nodes and edges made of functions: predicates, chains, choices and parallel items.

Each node made here is one node, so after a crash inside it all of it runs again. Nodes of their own,
or `add_map_node`, keep each finished part. An action is asynchronous if one of its functions is, and
pickles if its functions do.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Final, final

from graphkit._options import check_count
from graphkit._plan.topology import Call, require_result
from graphkit._records.context import GraphInterrupt, post_event
from graphkit._to_thread import finish_in_thread
from graphkit._wording import describe_error
from graphkit.errors import GraphRunnerError

_MAX_WORKERS: Final = 16
_Quantify = Callable[[Iterable[bool]], bool]
"""`all` or `any`."""
_ADVICE: Final = "define it with async def, and run the graph with ainvoke"


# Predicates


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Predicate:
    """A function of the state that returns True or False, with a name for observers."""

    name: str
    test: Callable[[Any], Any]

    def __call__(self, state: Any) -> bool:
        """Return whether it is true of a state."""
        return bool(require_result(self.test(state), self.name, _ADVICE))


def key_exists(key: str) -> Predicate:
    """True if the state has a key, even with the value None."""
    return Predicate(f"key_exists({key!r})", partial(_has, key))


def key_equals(key: str, value: Any) -> Predicate:
    """True if the state has a key with this value."""
    return Predicate(f"key_equals({key!r}, {value!r})", partial(_has_value, key, value))


def not_(predicate: Callable[[Any], Any]) -> Predicate:
    """True if the predicate is false."""
    return Predicate(f"not {_get_name(predicate)}", partial(_is_not, _as_predicate(predicate)))


def and_(*predicates: Callable[[Any], Any]) -> Predicate:
    """True if all predicates are true, or if there are none. Stops at the first that is false."""
    return _combine(all, " and ", predicates)


def or_(*predicates: Callable[[Any], Any]) -> Predicate:
    """True if any predicate is true; false if there are none. Stops at the first that is true."""
    return _combine(any, " or ", predicates)


def _combine(quantify: _Quantify, word: str, predicates: Sequence[Callable[[Any], Any]]) -> Predicate:
    names = word.join(map(_get_name, predicates))
    return Predicate(f"({names})", partial(_ask_each, quantify, [*map(_as_predicate, predicates)]))


def _true(_state: Any) -> bool:
    return True


def _has(key: str, state: Any) -> bool:
    return key in state


def _has_value(key: str, value: Any, state: Any) -> bool:
    return key in state and bool(state[key] == value)


def _is_not(predicate: Callable[[Any], Any], state: Any) -> bool:
    return not predicate(state)


def _ask_each(quantify: _Quantify, predicates: Sequence[Predicate], state: Any) -> bool:
    return quantify(predicate(state) for predicate in predicates)


always: Final = Predicate("always", _true)
"""True of every state."""


def _as_predicate(predicate: Callable[[Any], Any]) -> Predicate:
    """Return a function of the state as a Predicate.

    Raises:
        TypeError: it is asynchronous, or cannot be called.
    """
    if isinstance(predicate, Predicate):
        return predicate
    if Call(predicate).is_async:
        raise TypeError(f"{_get_name(predicate)} is asynchronous: a predicate must be a plain function of the state")
    return Predicate(_get_name(predicate), predicate)


@final
class Branch:
    """A condition for `add_conditional_edges`, created by `branch_on`.

    Attributes:
        name: contains the names of its predicates, for observers and diagrams.
        mappings: the targets, for `add_conditional_edges(source, branch, branch.mappings)`, so that
            diagrams and the joins of parallel branches include them.
    """

    __slots__ = ("_otherwise", "_routes", "mappings", "name")

    def __init__(self, routes: Sequence[tuple[Predicate, str]], otherwise: str | None) -> None:
        self._routes = tuple(routes)
        self._otherwise = otherwise
        targets = [target for _, target in routes]
        if otherwise is not None:
            targets.append(otherwise)
        self.mappings = {target: target for target in targets}
        self.name = f"branch_on({', '.join(predicate.name for predicate, _ in routes)})"

    def __call__(self, state: Any) -> str:
        """Return the target of the first predicate that is true.

        Raises:
            GraphRunnerError: none is true, and there is no `otherwise`.
        """
        for index, (predicate, target) in enumerate(self._routes):
            result = predicate(state)
            data = {"predicate_name": predicate.name, "predicate_result": result, "edge_index": index}
            post_event("route.evaluate", data)
            if result:
                return target
        if self._otherwise is not None:
            return self._otherwise
        names = ", ".join(predicate.name for predicate, _ in self._routes)
        raise GraphRunnerError(f"no valid transition: none of {names} is true; pass otherwise= to branch_on")


def branch_on(*routes: tuple[Callable[[Any], Any], str], otherwise: str | None = None) -> Branch:
    """Return a condition that leads to the target of the first predicate that is true.

    Args:
        routes: pairs of a predicate and the id of a node, or END.
        otherwise: the target if no predicate is true; None: that is an error of the run.

    Raises:
        TypeError: a predicate is asynchronous or cannot be called.
        ValueError: there is no target.
    """
    if not routes and otherwise is None:
        raise ValueError("branch_on needs a (predicate, target) pair, or otherwise=")
    return Branch([(_as_predicate(predicate), target) for predicate, target in routes], otherwise)


# Nodes


def process_chain(
    *steps: Callable[..., Any], on_step: Callable[[int, Any], object] | None = None
) -> Callable[[Any, Any], Any]:
    """Return an action that calls functions one after the other.

    The first function receives the state, each further one the result of the one before. The result
    of the last one is the update of the node. A step may take the config as a second argument. It
    may use `interrupt` and `once`, as any node.

    Args:
        steps: plain or asynchronous functions.
        on_step: called with the index of a step and its result, to observe intermediate results.

    Raises:
        TypeError: a step cannot be called, or is a generator.
        ValueError: there is no step.
    """
    if not steps:
        raise ValueError("process_chain needs a step")
    calls = [_make_call(step) for step in steps]
    if any(call.is_async for call in calls):
        return _AsyncChain(calls, on_step)
    return _Chain(calls, on_step)


def process_conditional(
    predicate: Callable[[Any], Any], then: Callable[..., Any], otherwise: Callable[..., Any] | None = None
) -> Callable[[Any, Any], Any]:
    """Return an action that calls one of two functions, as the predicate decides.

    Args:
        predicate: a function of the state.
        then: the action if the predicate is true.
        otherwise: the action if it is false; None: no update.

    Raises:
        TypeError: the predicate is asynchronous, or an action cannot be called or is a generator.
    """
    calls = [_make_call(then), _make_call(_change_nothing if otherwise is None else otherwise)]
    choice = _AsyncChoice if any(call.is_async for call in calls) else _Choice
    return choice(_as_predicate(predicate), *calls)


def _change_nothing(_state: Any) -> None:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class _Chain:
    calls: Sequence[Call]
    on_step: Callable[[int, Any], object] | None

    def __call__(self, state: Any, config: Any) -> Any:
        with _notify_start_and_end("chain", chain=self.name, steps=len(self.calls)):
            for index, call in enumerate(self.calls):
                with self._notify_step(index):
                    state = _run_call(call, state, config)
                self._pass_result(index, state)
        return state

    @property
    def name(self) -> str:
        return " > ".join(_get_name(call.function) for call in self.calls)

    def _notify_step(self, index: int) -> AbstractContextManager[None]:
        step = _get_name(self.calls[index].function)
        return _notify_start_and_end("step", chain=self.name, step=step, index=index)

    def _pass_result(self, index: int, result: Any) -> None:
        if self.on_step is not None:
            self.on_step(index, result)


@final
class _AsyncChain(_Chain):
    __slots__ = ()

    async def __call__(self, state: Any, config: Any) -> Any:
        with _notify_start_and_end("chain", chain=self.name, steps=len(self.calls)):
            for index, call in enumerate(self.calls):
                with self._notify_step(index):
                    state = await _arun_call(call, state, config)
                self._pass_result(index, state)
        return state


@dataclasses.dataclass(frozen=True, slots=True)
class _Choice:
    predicate: Predicate
    then: Call
    otherwise: Call

    def __call__(self, state: Any, config: Any) -> Any:
        return _run_call(self._choose(state), state, config)

    def _choose(self, state: Any) -> Call:
        result = self.predicate(state)
        call = self.then if result else self.otherwise
        route = None if call.function is _change_nothing else _get_name(call.function)
        data = {"predicate_name": self.predicate.name, "predicate_result": result, "route": route}
        post_event("route.select", data)
        return call


@final
class _AsyncChoice(_Choice):
    __slots__ = ()

    async def __call__(self, state: Any, config: Any) -> Any:
        return await _arun_call(self._choose(state), state, config)


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
    if workers is not None:
        check_count("workers", workers)
    if errors is not None and fail_fast:
        raise ValueError("errors= collects failures, which fail_fast=True does not; pass fail_fast=False")
    call = _make_call(function)
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
                return _run_call(self.call, item, config)

        with _notify_start_and_end("parallel", items=len(items), workers=workers):
            with ThreadPoolExecutor(workers, "graphkit-parallel") as pool:
                # Each item sees the context of the node, and so its observers and `once`.
                futures = [pool.submit(copy_context().run, run_item, index, item) for index, item in enumerate(items)]
                # A thread cannot be cancelled: items that run already are waited for, at the end of the
                # `with`. Ctrl-C drops those that have not started; after a failure, `_run_item` ends them.
                try:
                    wait(futures)
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

    @contextmanager
    def _run_item(self, index: int, failed: list[int]) -> Iterator[None]:
        """Run one item, unless an earlier one failed and `fail_fast` is set.

        Items start in order, so an item that does not start any more comes after the failed ones.

        Args:
            index: of the item.
            failed: the indices of the items that failed; shared by all items.
        """
        # Also seen by items whose thread or task was about to start when the first one failed.
        if failed and self.fail_fast:
            raise CancelledError
        with _notify_start_and_end("worker", index=index):
            try:
                yield
            except GraphInterrupt:
                failed.append(index)
                name = _get_name(self.call.function)
                reason = f"{name} called interrupt() inside process_parallel; use a map node"
                raise GraphRunnerError(reason) from None
            except BaseException:
                failed.append(index)
                raise

    def _make_update(self, futures: Sequence[Any]) -> Any:
        """Return the update of the node.

        Args:
            futures: futures or tasks that are done or were cancelled, in the order of the items.
        """
        # The errors of those that failed, by index; cancelled ones did not fail.
        failures: dict[int, BaseException] = {}
        for index, future in enumerate(futures):
            error = None if future.cancelled() else future.exception()
            if error is not None:
                failures[index] = error
        if failures and self.errors is None:
            errors = [*failures.values()]
            if self.fail_fast:
                raise errors[0]
            raise BaseExceptionGroup(f"{len(errors)} of {len(futures)} items failed", errors)

        results = [future.result() for index, future in enumerate(futures) if index not in failures]
        update = {self.into: results} if isinstance(self.into, str) else self.into(results)
        if self.errors is None:
            return update

        texts = {str(index): describe_error(error) for index, error in failures.items()}
        return {**update, self.errors: texts}


@final
class _AsyncParallel(_Parallel):
    __slots__ = ()

    async def __call__(self, state: Any, config: Any) -> Any:
        import asyncio  # 25 ms to import, and only asynchronous runs need it

        items = self._read_items(state)
        workers = self._count_workers(items)
        failed: list[int] = []
        # A task for each item, of which `workers` run at the same time, in the order of the items. One that
        # gets its turn after another has failed ends with a CancelledError in `_run_item`.
        free_workers = asyncio.Semaphore(workers)

        async def run_item(index: int, item: Any) -> Any:
            async with free_workers:
                with self._run_item(index, failed):
                    return await _arun_call(self.call, item, config)

        until = asyncio.FIRST_EXCEPTION if self.fail_fast else asyncio.ALL_COMPLETED
        with _notify_start_and_end("parallel", items=len(items), workers=workers):
            tasks = [asyncio.create_task(run_item(index, item)) for index, item in enumerate(items)]
            try:
                if tasks:
                    await asyncio.wait(tasks, return_when=until)
            finally:
                # After FIRST_EXCEPTION, or if the node itself is cancelled. A task that is done ignores it.
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            return self._make_update(tasks)


# Calls


def _get_name(function: Callable[..., Any]) -> str:
    """Return the name of a function for events and messages: its `name` or its `__name__`."""
    name = getattr(function, "name", None) or getattr(function, "__name__", None)
    if isinstance(name, str):
        return name
    return type(function).__name__


def _make_call(function: Callable[..., Any]) -> Call:
    """Return a Call for a function that returns once.

    Raises:
        TypeError: it cannot be called, or is a generator.
    """
    call = Call(function)
    if call.is_generator:
        raise TypeError(f"{_get_name(function)} is a generator: add it to the graph as a node")
    return call


def _run_call(call: Call, value: Any, config: Any) -> Any:
    """Call a function, with the config if it takes one."""
    return require_result(call.run(value, config), _get_name(call.function), _ADVICE)


async def _arun_call(call: Call, value: Any, config: Any) -> Any:
    """Call a function, in a thread if it is synchronous, and await its result."""
    if call.is_async:
        result = call.run(value, config)
    else:
        result = await finish_in_thread(call.run, value, config)
    if inspect.isawaitable(result):
        return await result
    return result


@contextmanager
def _notify_start_and_end(subject: str, **data: Any) -> Iterator[None]:
    """Send `<subject>.start` and, at the end, `<subject>.complete` with the error.

    After a stop for a human nothing has completed, so only the start is sent.
    """
    post_event(f"{subject}.start", data)
    try:
        yield
    except Exception as error:
        post_event(f"{subject}.complete", {**data, "error": describe_error(error)})
        raise
    post_event(f"{subject}.complete", {**data, "error": None})
