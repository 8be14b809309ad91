"""When to store a checkpoint: presets for `CompileConfig.checkpoint_when`.

A run calls the predicate after each step, as (node_id, state) or as (node_id, state, step), and
stores a checkpoint if it returns True. START, stops, failures and the end are always stored. A step
without a checkpoint runs again after a crash.

    graph.compile(checkpoint_saver=saver, checkpoint_when=any_of(before("charge"), slower_than(30)))

The presets pickle and compare. They replace hive's smart selection and go-agents-orchestration's
conditional checkpoints. A checkpoint at the start of a node, as in hive, is the one `before` it,
because each checkpoint stores the next node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, final

from graphkit._options import check_function
from graphkit._plan.topology import takes_argument

Predicate = Callable[..., bool]
"""Called with (node_id, state), or with (node_id, state, step)."""


@final
@dataclasses.dataclass(slots=True, eq=False)
class Step:
    """A step that has ended; the third argument of a predicate that takes three."""

    next: str | None
    """The node or fork that is next; None if an answer decides it."""
    seconds: float
    """How long the node or the fork took."""
    changed: Collection[str]
    """The keys that the step changed."""
    _: dataclasses.KW_ONLY
    branches: Collection[str] = ()
    """The nodes in the branches, if the step was a fork."""
    next_branches: Collection[str] = ()
    """The nodes in the branches of the next fork, if a fork is next."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class When:
    """A preset, created by the functions of this module. Immutable."""

    test: Callable[..., bool]
    """Called with the three arguments of a predicate, followed by `arguments`."""
    arguments: tuple[Any, ...]
    """The arguments of the preset."""

    def __call__(self, node_id: str, state: Any, step: Step) -> bool:
        return self.test(node_id, state, step, *self.arguments)

    def __repr__(self) -> str:
        return f"{self.test.__name__.removeprefix('_')}({', '.join(map(repr, self.arguments))})"


def after(*node_ids: str) -> When:
    """Store after these nodes, and after a fork with one of them in a branch.

    Raises:
        ValueError: no node is named.
        TypeError: a node id is not a str.
    """
    return When(_after, _check_ids("after", node_ids))


def before(*node_ids: str) -> When:
    """Store before these nodes, which are risky.

    That is, after a step before one of them, or before a fork with one of them in a branch.

    Raises:
        ValueError: no node is named.
        TypeError: a node id is not a str.
    """
    return When(_before, _check_ids("before", node_ids))


def slower_than(seconds: float = 30.0) -> When:
    """Store after a step that took longer than this number of seconds.

    Raises:
        ValueError: the number is negative.
    """
    return When(_slower_than, (_check_limit("seconds", seconds),))


def changed_more_than(keys: int = 10) -> When:
    """Store after a step that changed more than this number of keys of the state.

    Raises:
        ValueError: the number is negative.
    """
    return When(_changed_more_than, (_check_limit("keys", keys),))


def any_of(*predicates: Predicate) -> When:
    """Store if one of these predicates returns True: presets or your own.

    They are called in order, up to the first that returns True.

    Raises:
        ValueError: there is no predicate.
        TypeError: a predicate cannot be called, or is asynchronous.
    """
    if not predicates:
        raise ValueError("any_of() has no predicate: pass at least one")
    for predicate in predicates:
        check_function("a predicate of any_of()", predicate)
    # The signatures are read here, once, and not at every step.
    return When(_any_of, tuple(map(adapt_predicate, predicates)))


def adapt_predicate(predicate: Predicate) -> Predicate:
    """Return a predicate of three arguments. One takes the step as a required third parameter, or as `step`."""
    if takes_argument(predicate, 2, "step"):
        return predicate
    return When(_without_step, (predicate,))


def find_node_ids(predicate: Predicate | None) -> frozenset[str]:
    """Return the nodes that the presets in a predicate name, so that `compile` can check them."""
    if not isinstance(predicate, When):
        return frozenset()
    if predicate.test in (_after, _before):
        return frozenset(predicate.arguments)
    return frozenset().union(*map(find_node_ids, predicate.arguments))


# The tests of the presets. Functions of the module, because a preset pickles by their names and is shown by
# them: before('charge').


def _after(node_id: str, _state: Any, step: Step, *node_ids: str) -> bool:
    return node_id in node_ids or any(branch in node_ids for branch in step.branches)


def _before(_node_id: str, _state: Any, step: Step, *node_ids: str) -> bool:
    return step.next in node_ids or any(branch in node_ids for branch in step.next_branches)


def _slower_than(_node_id: str, _state: Any, step: Step, seconds: float) -> bool:
    return step.seconds > seconds


def _changed_more_than(_node_id: str, _state: Any, step: Step, keys: int) -> bool:
    return len(step.changed) > keys


def _any_of(node_id: str, state: Any, step: Step, *predicates: Predicate) -> bool:
    return any(predicate(node_id, state, step) for predicate in predicates)


def _without_step(node_id: str, state: Any, _step: Step, predicate: Predicate) -> bool:
    return predicate(node_id, state)


def _check_ids(preset: str, node_ids: tuple[Any, ...]) -> tuple[str, ...]:
    if not node_ids:
        raise ValueError(f"{preset}() names no node: pass the ids of nodes")
    for node_id in node_ids:
        if not isinstance(node_id, str):
            raise TypeError(f"{preset}() takes node ids, not {node_id!r}")
    return node_ids


def _check_limit(name: str, number: float) -> float:
    if not number >= 0:  # also refuses NaN
        raise ValueError(f"{name} must be 0 or more, not {number!r}")
    return number
