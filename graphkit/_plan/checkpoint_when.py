"""When to store a checkpoint: presets for `CompileConfig.checkpoint_when`.

A predicate is called after each step, as (node_id, state) or as (node_id, state, step), and a checkpoint is stored if
it says so. START, stops, failures and the end are stored whatever it says. What is not stored runs again after a crash.

    graph.compile(checkpoint_saver=saver, checkpoint_when=any_of(before("charge"), slower_than(30)))

The presets pickle and compare. They stand for hive's smart selection and go-agents-orchestration's conditional
checkpoints; hive's checkpoint at a node's start is the one `before` it, for the next node is stored with each.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection
from typing import Any, final

Predicate = Callable[..., bool]
"""Called with (node_id, state), or with (node_id, state, step)."""


@final
class Step:
    """A step that has been taken; the third argument of a predicate that takes three.

    Attributes:
        next: the place that comes next, a node or a fork; None if an answer decides it.
        seconds: how long the node, or the fork, took.
        changed: the keys that it changed.
        branches: the nodes in the branches, if the step was a fork.
        next_branches: the nodes in the branches of the fork that comes next, if one does.
    """

    __slots__ = ("branches", "changed", "next", "next_branches", "seconds")

    def __init__(
        self,
        next: str | None,
        seconds: float,
        changed: Collection[str],
        *,
        branches: Collection[str] = (),
        next_branches: Collection[str] = (),
    ) -> None:
        self.next = next
        self.seconds = seconds
        self.changed = changed
        self.branches = branches
        self.next_branches = next_branches


@final
@dataclasses.dataclass(frozen=True, slots=True)
class When:
    """A preset. Made by the functions below; immutable."""

    test: Callable[..., bool]
    """Called with the three arguments of a predicate, and those of the preset."""
    arguments: tuple[Any, ...]

    def __call__(self, node_id: str, state: Any, step: Step) -> bool:
        return self.test(node_id, state, step, *self.arguments)

    def __repr__(self) -> str:
        return f"{self.test.__name__.removeprefix('_')}({', '.join(map(repr, self.arguments))})"


def after(*node_ids: str) -> When:
    """After these nodes, and after a fork with one of them in a branch.

    Raises:
        ValueError: no node is named.
        TypeError: a node id is no text.
    """
    return When(_after, _ids("after", node_ids))


def before(*node_ids: str) -> When:
    """Before these nodes, which are risky: when one of them, or a fork with one of them in a branch, comes next.

    Raises:
        ValueError: no node is named.
        TypeError: a node id is no text.
    """
    return When(_before, _ids("before", node_ids))


def slower_than(seconds: float = 30.0) -> When:
    """After a step that took more than so many seconds.

    Raises:
        ValueError: the number is negative.
    """
    return When(_slower_than, (_limit("seconds", seconds),))


def changed_more_than(keys: int = 10) -> When:
    """After a step that changed more than so many keys of the state.

    Raises:
        ValueError: the number is negative.
    """
    return When(_changed_more_than, (_limit("keys", keys),))


def any_of(*predicates: Predicate) -> When:
    """When one of these, presets or your own predicates, says so. They are asked in order, up to the first that does.

    Raises:
        ValueError: there is none.
        TypeError: one cannot be called.
    """
    return When(_any_of, _all("any_of", predicates))


def all_of(*predicates: Predicate) -> When:
    """When all of these say so. They are asked in order, up to the first that does not.

    Raises:
        ValueError: there is none.
        TypeError: one cannot be called.
    """
    return When(_all_of, _all("all_of", predicates))


def not_of(predicate: Predicate) -> When:
    """When this does not say so.

    Raises:
        TypeError: it cannot be called.
    """
    return When(_not_of, _all("not_of", (predicate,)))


def takes_step(predicate: Predicate) -> bool:
    """Whether a predicate takes the step: a third parameter that must be given, or one named `step`."""
    try:
        parameters = list(inspect.signature(predicate).parameters.values())
    except ValueError:  # a builtin that tells nothing
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    third = positional[2:3]
    if not third:
        return any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return third[0].default is inspect.Parameter.empty or third[0].name == "step"


def find_node_ids(predicate: Predicate) -> frozenset[str]:
    """The nodes that presets name in a predicate, so that a graph without one of them can be refused."""
    if not isinstance(predicate, When):
        return frozenset()
    if predicate.test in (_after, _before):
        return frozenset(predicate.arguments)
    return frozenset().union(*map(find_node_ids, predicate.arguments))


def _after(node_id: str, _state: Any, step: Step, *node_ids: str) -> bool:
    return node_id in node_ids or any(one in node_ids for one in step.branches)


def _before(_node_id: str, _state: Any, step: Step, *node_ids: str) -> bool:
    return step.next in node_ids or any(one in node_ids for one in step.next_branches)


def _slower_than(_node_id: str, _state: Any, step: Step, seconds: float) -> bool:
    return step.seconds > seconds


def _changed_more_than(_node_id: str, _state: Any, step: Step, keys: int) -> bool:
    return len(step.changed) > keys


def _any_of(node_id: str, state: Any, step: Step, *predicates: Predicate) -> bool:
    return any(predicate(node_id, state, step) for predicate in predicates)


def _all_of(node_id: str, state: Any, step: Step, *predicates: Predicate) -> bool:
    return all(predicate(node_id, state, step) for predicate in predicates)


def _not_of(node_id: str, state: Any, step: Step, predicate: Predicate) -> bool:
    return not predicate(node_id, state, step)


def _without_step(node_id: str, state: Any, _step: Step, predicate: Predicate) -> bool:
    return predicate(node_id, state)


def _ids(preset: str, node_ids: tuple[str, ...]) -> tuple[str, ...]:
    if not node_ids:
        raise ValueError(f"{preset}() names no node: say which")
    for node_id in node_ids:
        given: object = node_id
        if not isinstance(given, str):
            raise TypeError(f"{preset}() takes node ids, not {given!r}")
    return node_ids


def _all(preset: str, predicates: tuple[Predicate, ...]) -> tuple[Predicate, ...]:
    if not predicates:
        raise ValueError(f"{preset}() is given no predicate")
    for predicate in predicates:
        given: object = predicate
        if not callable(given):
            raise TypeError(f"{preset}() takes predicates of (node_id, state) or (node_id, state, step), not {given!r}")
    # Found out once, not at every step.
    return tuple(one if takes_step(one) else When(_without_step, (one,)) for one in predicates)


def _limit(name: str, number: float) -> float:
    if not number >= 0:
        raise ValueError(f"{name} must be 0 or more, not {number!r}")
    return number
