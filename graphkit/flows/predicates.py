"""Predicates of a state, and the condition that evaluates them in order.

Ported from go-agents-orchestration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, final

from graphkit._plan.topology import Call
from graphkit.errors import GraphRunnerError
from graphkit.flows.calls import get_name, notify, require_result


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Predicate:
    """A function of the state that returns True or False, with a name for observers."""

    name: str
    test: Callable[[Any], Any]

    def __call__(self, state: Any) -> bool:
        """Return whether it is true of a state."""
        return bool(require_result(self.test(state), self.name))


def key_exists(key: str) -> Predicate:
    """True if the state has a key, even with the value None."""
    return Predicate(f"key_exists({key!r})", partial(_has, key))


def key_equals(key: str, value: Any) -> Predicate:
    """True if the state has a key with this value."""
    return Predicate(f"key_equals({key!r}, {value!r})", partial(_has_value, key, value))


def not_(predicate: Callable[[Any], Any]) -> Predicate:
    """True if the predicate is false."""
    return Predicate(f"not {get_name(predicate)}", partial(_is_not, as_predicate(predicate)))


def and_(*predicates: Callable[[Any], Any]) -> Predicate:
    """True if all predicates are true, or if there are none. Stops at the first that is false."""
    names = " and ".join(map(get_name, predicates))
    return Predicate(f"({names})", partial(_are_all, [*map(as_predicate, predicates)]))


def or_(*predicates: Callable[[Any], Any]) -> Predicate:
    """True if any predicate is true; false if there are none. Stops at the first that is true."""
    names = " or ".join(map(get_name, predicates))
    return Predicate(f"({names})", partial(_is_any, [*map(as_predicate, predicates)]))


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


def as_predicate(predicate: Callable[[Any], Any]) -> Predicate:
    """Return a function of the state as a Predicate.

    Raises:
        TypeError: it is asynchronous, or cannot be called.
    """
    if isinstance(predicate, Predicate):
        return predicate
    if Call(predicate).is_async:
        raise TypeError(f"{get_name(predicate)} is asynchronous: a predicate must be a plain function of the state")
    return Predicate(get_name(predicate), predicate)


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
            notify(
                "route.evaluate",
                predicate_name=predicate.name,
                predicate_result=result,
                edge_index=index,
            )
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
    return Branch([(as_predicate(predicate), target) for predicate, target in routes], otherwise)
