"""Predicates of a state, and the condition that asks them in order; go-agents-orchestration's, ported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, final

from graphkit._plan.topology import Call
from graphkit.errors import GraphRunnerError
from graphkit.flows.calls import name_of, note, settled


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Predicate:
    """A question to a state, with a name that observers are told."""

    name: str
    test: Callable[[Any], Any]

    def __call__(self, state: Any) -> bool:
        """Whether it is true of a state."""
        return bool(settled(self.test(state), self.name))


def key_exists(key: str) -> Predicate:
    """Whether the state has a key, None included."""
    return Predicate(f"key_exists({key!r})", partial(_has, key))


def key_equals(key: str, value: Any) -> Predicate:
    """Whether the state has a key, with this value."""
    return Predicate(f"key_equals({key!r}, {value!r})", partial(_has_value, key, value))


def not_(predicate: Callable[[Any], Any]) -> Predicate:
    """Whether the other one is false."""
    return Predicate(f"not {name_of(predicate)}", partial(_is_not, checked(predicate)))


def and_(*predicates: Callable[[Any], Any]) -> Predicate:
    """Whether all are true, asked in order until one is not; true of none."""
    return Predicate(f"({' and '.join(map(name_of, predicates))})", partial(_are_all, [*map(checked, predicates)]))


def or_(*predicates: Callable[[Any], Any]) -> Predicate:
    """Whether any is true, asked in order until one is; false of none."""
    return Predicate(f"({' or '.join(map(name_of, predicates))})", partial(_is_any, [*map(checked, predicates)]))


def _true(_state: Any) -> bool:
    return True


def _has(key: str, state: Any) -> bool:
    return key in state


def _has_value(key: str, value: Any, state: Any) -> bool:
    return key in state and bool(state[key] == value)


def _is_not(predicate: Callable[[Any], Any], state: Any) -> bool:
    return not predicate(state)


def _are_all(predicates: Sequence[Callable[[Any], Any]], state: Any) -> bool:
    return all(predicate(state) for predicate in predicates)


def _is_any(predicates: Sequence[Callable[[Any], Any]], state: Any) -> bool:
    return any(predicate(state) for predicate in predicates)


always: Final = Predicate("always", _true)
"""True of every state."""


def checked(predicate: Callable[[Any], Any]) -> Predicate:
    """A function of the state as a Predicate.

    Raises:
        TypeError: it is asynchronous, or cannot be called.
    """
    if isinstance(predicate, Predicate):
        return predicate
    if Call(predicate).is_async:
        raise TypeError(f"{name_of(predicate)} is asynchronous: a predicate is a plain function of the state")
    return Predicate(name_of(predicate), predicate)


@final
class Branch:
    """A condition for `add_conditional_edges`, made by `branch_on`.

    Attributes:
        name: says which predicates it asks, for observers and drawings.
        mappings: the targets, for `add_conditional_edges(source, branch, branch.mappings)`: so that drawings and the
            joins of parallel branches know them.
    """

    __slots__ = ("_otherwise", "_routes", "mappings", "name")

    def __init__(self, routes: Sequence[tuple[Predicate, str]], otherwise: str | None) -> None:
        self._routes = tuple(routes)
        self._otherwise = otherwise
        targets = [target for _, target in routes] + ([] if otherwise is None else [otherwise])
        self.mappings = {target: target for target in targets}
        self.name = f"branch_on({', '.join(predicate.name for predicate, _ in routes)})"

    def __call__(self, state: Any) -> str:
        """The target of the first predicate that is true.

        Raises:
            GraphRunnerError: none is, and there is no otherwise.
        """
        for index, (predicate, target) in enumerate(self._routes):
            result = predicate(state)
            note("route.evaluate", predicate_name=predicate.name, predicate_result=result, edge_index=index)
            if result:
                return target
        if self._otherwise is None:
            names = ", ".join(predicate.name for predicate, _ in self._routes)
            raise GraphRunnerError(f"no valid transition: none of {names} is true; give branch_on an otherwise=")
        return self._otherwise


def branch_on(*routes: tuple[Callable[[Any], Any], str], otherwise: str | None = None) -> Branch:
    """A condition that asks predicates in order and goes where the first true one says.

    Args:
        routes: pairs of a predicate and the id of a node, or END.
        otherwise: where to go if none is true; None: that is an error of the run.

    Raises:
        TypeError: a predicate is asynchronous or cannot be called.
        ValueError: there is nowhere to go.
    """
    if not routes and otherwise is None:
        raise ValueError("branch_on needs a (predicate, target) pair, or otherwise=")
    return Branch([(checked(predicate), target) for predicate, target in routes], otherwise)
