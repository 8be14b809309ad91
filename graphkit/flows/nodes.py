"""Nodes made of functions: chains and choices.

Each of them is one node, so after a crash inside it all of it runs again. Nodes of their own, or
`add_map_node`, keep each finished part. An action is asynchronous if one of its functions is, and
pickles if its functions do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, final

from graphkit._plan.topology import Call
from graphkit.flows.calls import (
    arun_call,
    get_name,
    make_call,
    notify,
    notify_start_and_end,
    run_call,
)
from graphkit.flows.predicates import Predicate, as_predicate


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
    calls = [make_call(step) for step in steps]
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
    then_call = make_call(then)
    otherwise_call = None if otherwise is None else make_call(otherwise)
    is_async = then_call.is_async or (otherwise_call is not None and otherwise_call.is_async)
    choice = _AsyncChoice if is_async else _Choice
    return choice(as_predicate(predicate), then_call, otherwise_call)


@dataclasses.dataclass(frozen=True, slots=True)
class _Chain:
    calls: Sequence[Call]
    on_step: Callable[[int, Any], object] | None

    def __call__(self, state: Any, config: Any) -> Any:
        with self._notify_chain():
            for index, call in enumerate(self.calls):
                with self._notify_step(index):
                    state = run_call(call, state, config)
                self._pass_result(index, state)
        return state

    @property
    def name(self) -> str:
        return " > ".join(get_name(call.function) for call in self.calls)

    def _notify_chain(self) -> AbstractContextManager[None]:
        return notify_start_and_end("chain", chain=self.name, steps=len(self.calls))

    def _notify_step(self, index: int) -> AbstractContextManager[None]:
        step = get_name(self.calls[index].function)
        return notify_start_and_end("step", chain=self.name, step=step, index=index)

    def _pass_result(self, index: int, result: Any) -> None:
        if self.on_step is not None:
            self.on_step(index, result)


@final
class _AsyncChain(_Chain):
    __slots__ = ()

    async def __call__(self, state: Any, config: Any) -> Any:
        with self._notify_chain():
            for index, call in enumerate(self.calls):
                with self._notify_step(index):
                    state = await arun_call(call, state, config)
                self._pass_result(index, state)
        return state


@dataclasses.dataclass(frozen=True, slots=True)
class _Choice:
    predicate: Predicate
    then: Call
    otherwise: Call | None

    def __call__(self, state: Any, config: Any) -> Any:
        call = self._choose(state)
        return None if call is None else run_call(call, state, config)

    def _choose(self, state: Any) -> Call | None:
        result = self.predicate(state)
        call = self.then if result else self.otherwise
        notify(
            "route.select",
            predicate_name=self.predicate.name,
            predicate_result=result,
            route=None if call is None else get_name(call.function),
        )
        return call


@final
class _AsyncChoice(_Choice):
    __slots__ = ()

    async def __call__(self, state: Any, config: Any) -> Any:
        call = self._choose(state)
        return None if call is None else await arun_call(call, state, config)
