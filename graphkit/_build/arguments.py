"""Reads and checks the arguments with which nodes and edges are added to a StateGraph.

Each function raises a GraphStateError that names the argument and its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from graphkit._option_checks import check_count, check_seconds
from graphkit._plan.retry import RetryPolicy
from graphkit._plan.topology import Call, Node, StateItems, parse_node_id
from graphkit._records.config import START
from graphkit.errors import GraphStateError

if TYPE_CHECKING:
    from concurrent.futures import Executor

Function = Callable[..., Any]


def make_node(
    node_id: str,
    action: Any,
    *,
    retry: RetryPolicy | None,
    executor: Executor | None,
    timeout: float | None,
    metadata: Mapping[str, Any] | None,
) -> Node:
    """Return a node; `destinations` and the fields of map nodes are added by the caller."""
    interrupt = getattr(action, "interrupt", None)
    return Node(
        id=node_id,
        action=parse_call(action, f"the action of node {node_id!r}"),
        interrupt_call=Call(interrupt) if callable(interrupt) else None,
        retry=_parse_retry(retry, node_id),
        timeout=_parse_timeout(timeout, node_id),
        executor=_parse_executor(executor, node_id),
        metadata=dict(metadata or {}),
    )


def parse_call(function: Any, role: str) -> Call:
    """Return a function as a Call; `role` names it in the message."""
    try:
        return Call(function)
    except TypeError as error:
        raise GraphStateError(f"{role} cannot be called: {function!r}") from error


def _parse_retry(retry: Any, node_id: str) -> RetryPolicy | None:
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise GraphStateError(f"the retry of node {node_id!r} must be a RetryPolicy, not {type(retry).__name__}")
    return retry


def _parse_executor(executor: Any, node_id: str) -> Executor | None:
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise GraphStateError(f"the executor of node {node_id!r} has no submit(): {executor!r}")
    return executor  # type: ignore[no-any-return]


def _parse_timeout(timeout: Any, node_id: str) -> float | None:
    if timeout is not None:
        check_seconds(f"the timeout of node {node_id!r}", timeout, GraphStateError)
    return timeout  # type: ignore[no-any-return]


def parse_destinations(destinations: Iterable[str], node_id: str) -> tuple[str, ...]:
    """Return the destinations of a node without repetitions."""
    if isinstance(destinations, str) or not isinstance(destinations, Iterable):
        raise GraphStateError(
            f"the destinations of node {node_id!r} must be a list of node ids, not {destinations!r}",
        )

    role = f"a destination of node {node_id!r}"
    targets = [parse_node_id(target, role) for target in destinations]
    if START in targets:
        raise GraphStateError(f"{role} is START, which cannot be the target of an edge")
    return tuple(dict.fromkeys(targets))


def parse_items(items: Function | str, node_id: str) -> Call:
    """Return what reads the items of a map node: a key of the state, or a function."""
    if isinstance(items, str):
        return Call(StateItems(itemgetter(items)), takes_config=False)
    if not callable(items):
        raise GraphStateError(f"the items of node {node_id!r} must be a key of the state or a callable, not {items!r}")
    return parse_call(items, f"the items of node {node_id!r}")


def parse_max_concurrency(limit: Any, node_id: str) -> int | None:
    """Return a limit of at least 1; None: no limit."""
    if limit is not None:
        check_count(f"the max_concurrency of node {node_id!r}", limit, GraphStateError)
    return limit  # type: ignore[no-any-return]


def parse_mappings(mappings: Mapping[Any, str] | Sequence[str], source: str) -> dict[Any, str]:
    """Return key -> node id; the ids in a sequence are their own keys."""
    role = f"a mapping of {source!r}"
    if isinstance(mappings, Mapping):
        return {key: parse_node_id(target, role) for key, target in mappings.items()}
    return {target: parse_node_id(target, role) for target in mappings}
