"""Topology: the checked, frozen picture of a graph that a run walks; and the list of what is wrong with one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from graphkit._config import END, START
from graphkit._schema import StateSchema
from graphkit.errors import GraphStateError


@final
class Call:
    """A node's action or an edge's condition, with how it wants to be called.

    Attributes:
        function: what the caller gave.
        takes_config: whether it takes the config after the state.
        is_async: whether calling it gives an awaitable.
    """

    __slots__ = ("function", "is_async", "takes_config")

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"{function!r} cannot be called")
        self.function = function
        self.takes_config = _takes_two(function)
        self.is_async = _is_coroutine_function(function)


@final
class Node:
    """A node: its id, its action, and `asks`, the question an InterruptableAction is asked before it runs."""

    __slots__ = ("action", "asks", "id", "metadata")

    def __init__(self, node_id: str, action: Callable[..., Any], metadata: Mapping[str, Any] | None = None) -> None:
        self.id = node_id
        self.action = Call(action)
        asks = getattr(action, "interrupt", None)
        self.asks = Call(asks) if callable(asks) else None
        self.metadata = dict(metadata or {})


@final
class Condition:
    """A conditional edge: its condition, and what the condition's results mean.

    Attributes:
        call: the condition.
        mappings: result -> node id; None: the condition returns node ids.
    """

    __slots__ = ("call", "mappings")

    def __init__(self, call: Callable[..., Any], mappings: Mapping[Any, str] | None) -> None:
        self.call = Call(call)
        self.mappings = None if mappings is None else dict(mappings)


Edge = str | Condition
"""What leads out of a node: the next node's id, or a condition."""


@final
class Topology:
    """The nodes and edges of a compiled graph. Never changes.

    Attributes:
        nodes: by id, in the order they were added.
        edges: by source, START included.
        fingerprint: tells two graphs apart: nodes, edges and the schema's keys.
    """

    def __init__(self, nodes: Mapping[str, Node], edges: Mapping[str, Edge], schema: StateSchema) -> None:
        self.nodes = dict(nodes)
        self.edges = dict(edges)
        self.schema = schema
        self.fingerprint = _fingerprint(self)
        self.asynchronous = [
            *(node.id for node in nodes.values() if node.action.is_async or (node.asks and node.asks.is_async)),
            *(source for source, edge in edges.items() if isinstance(edge, Condition) and edge.call.is_async),
        ]
        """The nodes, and the sources of edges, that a synchronous run cannot execute."""

    def has_target(self, node_id: str | None) -> bool:
        """Whether a run may go to this node."""
        return node_id == END or node_id in self.nodes


def plain_id(node_id: Any, role: str) -> str:
    """A node id as it is stored: a member of a StrEnum becomes its text.

    Raises:
        GraphStateError: it is no text, or empty.
    """
    if not isinstance(node_id, str) or not node_id:
        raise GraphStateError(f"{role} is a non-empty str, not {node_id!r}")
    return str.__str__(node_id)


def problems_of(
    nodes: Mapping[str, Node], edges: Mapping[str, list[str] | Condition], stops: Iterable[tuple[str, str]]
) -> list[str]:
    """Everything that is wrong with a graph, one sentence each.

    Args:
        nodes: by id.
        edges: by source: the targets of plain edges, or a condition.
        stops: (option, node id) pairs of the nodes at which a run is to stop.
    """
    problems: list[str] = []
    if START not in edges:
        problems.append("the graph has no entry point: add_edge(START, ...)")
    for source, edge in edges.items():
        if source != START and source not in nodes:
            problems.append(f"an edge leaves {source!r}, which is not a node of the graph")
        if isinstance(edge, Condition):
            problems += _of_condition(source, edge, nodes)
        else:
            problems += _of_targets(source, edge, nodes)
    unknown = [(option, node_id) for option, node_id in stops if node_id not in nodes]
    problems += [f"{option} names {node_id!r}, which is not a node of the graph" for option, node_id in unknown]
    return problems


def _of_condition(source: str, edge: Condition, nodes: Mapping[str, Node]) -> list[str]:
    return [
        f"the conditional edge of {source!r} maps {key!r} to {target!r}, which is not a node of the graph"
        for key, target in (edge.mappings or {}).items()
        if target != END and target not in nodes
    ]


def _of_targets(source: str, targets: list[str], nodes: Mapping[str, Node]) -> list[str]:
    problems = [
        f"the edge of {source!r} leads to {target!r}, which is not a node of the graph"
        for target in dict.fromkeys(targets)
        if target != END and target not in nodes
    ]
    twice = sorted({target for target in targets if targets.count(target) > 1})
    if twice:
        problems.append(f"the edges of {source!r} lead to {', '.join(map(repr, twice))} more than once")
    elif len(targets) > 1:
        problems.append(
            f"{source!r} has several edges, to {', '.join(map(repr, targets))}: "
            f"parallel branches are not in this version"
        )
    return problems


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a callable takes the config: a second parameter that must be given, or one named `config`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a builtin that tells nothing
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) and len(positional) < 2:  # noqa: PLR2004 - state and config
        return True
    return len(positional) > 1 and (positional[1].default is inspect.Parameter.empty or positional[1].name == "config")


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _fingerprint(topology: Topology) -> str:
    from hashlib import blake2b

    edges = {
        source: edge if isinstance(edge, str) else sorted(map(repr, (edge.mappings or {}).items()))
        for source, edge in topology.edges.items()
    }
    by_source = sorted(edges.items(), key=lambda item: item[0])
    picture = repr((sorted(topology.nodes), by_source, sorted(topology.schema.keys)))
    return blake2b(picture.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
