"""Topology: the checked, frozen picture of a graph that a run walks; and the list of what is wrong with one."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, final

from graphkit._plan.schema import StateSchema
from graphkit._records.config import END, START
from graphkit.errors import GraphStateError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from graphkit._plan.retry import RetryPolicy


@final
class Call:
    """A node's action, an edge's condition or a hook, with how it wants to be called.

    Attributes:
        function: what the caller gave.
        takes_config: whether it takes the config after the state.
        is_async: whether calling it gives an awaitable or an asynchronous generator.
        is_generator: whether it hands out chunks while it runs: a generator function, asynchronous or not.
    """

    __slots__ = ("function", "is_async", "is_generator", "takes_config")

    def __init__(self, function: Callable[..., Any], *, takes_config: bool | None = None) -> None:
        """Look at a callable.

        Args:
            function: the callable.
            takes_config: None: found out from its signature.

        Raises:
            TypeError: it cannot be called.
        """
        if not callable(function):
            raise TypeError(f"{function!r} cannot be called")
        self.function = function
        self.takes_config = _takes_two(function) if takes_config is None else takes_config
        self.is_async = _is(inspect.iscoroutinefunction, function) or _is(inspect.isasyncgenfunction, function)
        self.is_generator = _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function)

    def run(self, argument: Any, config: Any) -> Any:
        """Call it, with the config if it takes one; what it gives may have to be awaited, or be a generator."""
        return self.function(argument, config) if self.takes_config else self.function(argument)


class NestedGraph(Protocol):
    """What a node needs to know of a compiled graph that stands in it."""

    @property
    def topology(self) -> Topology:
        """Its picture."""
        ...


@final
@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Node:
    """A node. Exactly one of `action` and `graph` is there."""

    id: str
    action: Call | None = None
    """What runs; in a Topology with its wrap hooks, retries and timeout around it."""
    graph: NestedGraph | None = None
    """The compiled graph that runs instead."""
    interrupt_call: Call | None = None
    """The question an InterruptableAction is asked before it runs."""
    items: Call | None = None
    """Of a map node: what gives the items that the action is run with, one by one, instead of the state."""
    retry: RetryPolicy | None = None
    timeout: float | None = None
    """Seconds for one attempt."""
    executor: Executor | None = None
    """Where the action runs; None: where the run says."""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    destinations: tuple[str, ...] = ()
    """Where its Commands may go, besides its edges; empty: not declared, so anywhere."""
    max_concurrency: int | None = None
    """Of a map node: how many items run at the same time; None: all that the executor takes."""
    before_hooks: tuple[Call, ...] = ()
    """Hooks to call before it, in this order."""
    after_hooks: tuple[Call, ...] = ()
    """Hooks to call after it, in this order."""
    wrap_hooks: tuple[Call, ...] = ()
    """Hooks around it, outermost first."""
    local_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Of a node of a merged subgraph: what its own graph calls a place -> the place."""


@final
@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Condition:
    """A conditional edge: its condition, and what the condition's results mean."""

    call: Call
    """The condition; in a Topology with its wrap hooks around it."""
    mappings: Mapping[Any, str] | None = None
    """Result -> node id; None: the condition returns node ids."""
    before_hooks: tuple[Call, ...] = ()
    """Hooks to call before it, in this order."""
    after_hooks: tuple[Call, ...] = ()
    """Hooks to call after it, in this order."""
    wrap_hooks: tuple[Call, ...] = ()
    """Hooks around it, outermost first."""


@final
@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fork:
    """Several edges out of one node: branches that run in parallel, up to the place where they meet."""

    id: str
    """What outputs and checkpoints call it: `__PARALLEL__(<source>)`."""
    source: str
    heads: tuple[str, ...]
    """The first node of each branch, in the order of the edges."""
    join: str
    """Where the branches meet: a node, or END."""
    branches: Mapping[str, frozenset[str]]
    """Head -> the nodes of its branch."""


Targets = list[str] | Condition
"""What leads out of a node as it was written: the targets of its plain edges, or a condition."""

Edge = str | Condition
"""What leads out of a node or a fork in a Topology: the next place's id, or a condition."""


@final
class Topology:
    """The nodes, forks and edges of a compiled graph. Never changes.

    Attributes:
        nodes: by id, in the order they were added; those of merged subgraphs among them.
        forks: by id.
        edges: by source, START and forks included. The edge of a forking node leads to its fork.
        aliases: the id of a merged subgraph -> the node that a run enters it by.
        fingerprint: tells two graphs apart: nodes, edges, forks, embedded graphs and the schema's keys.
    """

    def __init__(
        self,
        nodes: Mapping[str, Node],
        forks: Mapping[str, Fork],
        edges: Mapping[str, Edge],
        schema: StateSchema,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.nodes = dict(nodes)
        self.forks = dict(forks)
        self.edges = dict(edges)
        self.schema = schema
        self.aliases = dict(aliases or {})
        self.fingerprint = _fingerprint(self)
        self.asynchronous = [
            *(name for node in nodes.values() for name in _asynchronous(node)),
            *(source for source, edge in edges.items() if isinstance(edge, Condition) and _any_async(edge, edge.call)),
        ]
        """The nodes, and the sources of edges, that a synchronous run cannot execute; `a/b` is `b` of the graph `a`."""

    def has_target(self, node_id: str | None) -> bool:
        """Whether a run may go to this place: END, a node or a fork."""
        return node_id == END or node_id in self.nodes or node_id in self.forks

    def resolve_target(self, name: str, source: str | None = None) -> str | None:
        """The place that a Command or a condition without mappings means.

        Args:
            name: a node id, END, or the id of a merged subgraph.
            source: the node that says so. In a merged subgraph, the names of its own graph come first, END included.

        Returns:
            The place to go to; None if there is none of this name.
        """
        node = None if source is None else self.nodes.get(source)
        place = self.aliases.get(name, name) if node is None or name not in node.local_names else node.local_names[name]
        return str.__str__(place) if self.has_target(place) else None  # of a StrEnum, too

    def stops_before(self, names: Iterable[str]) -> dict[str, str]:
        """Where a run stops if it is to stop before these nodes: place -> name.

        The place is the node itself and, for a node in a branch, the fork: a run stops before it, not within.
        """
        places: dict[str, str] = {}
        for name in names:
            for place in (name, *self._forks_around(name)):
                places.setdefault(place, name)
        return places

    def stops_after(self, names: Iterable[str]) -> dict[str, str]:
        """Where a run stops if it is to stop after these nodes: place -> name; as `stops_before`."""
        return self.stops_before(names)

    def _forks_around(self, name: str) -> list[str]:
        return [fork.id for fork in self.forks.values() if any(name in inside for inside in fork.branches.values())]


def fork_id(source: str) -> str:
    """What the fork out of a node is called."""
    return f"__PARALLEL__({source})"


def parse_node_id(node_id: Any, role: str) -> str:
    """A node id as it is stored: a member of a StrEnum becomes its text.

    Raises:
        GraphStateError: it is no text, or empty.
    """
    if not isinstance(node_id, str) or not node_id:
        raise GraphStateError(f"{role} is a non-empty str, not {node_id!r}")
    return str.__str__(node_id)


def find_problems(
    nodes: Mapping[str, Node], edges: Mapping[str, Targets], stops: Iterable[tuple[str, str]] = ()
) -> list[str]:
    """What is wrong with the nodes and edges of a graph, one sentence each. Forks are judged by `_joins`.

    Args:
        nodes: by id.
        edges: by source.
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
    problems += [
        f"a destination of {node.id!r} is {target!r}, which is not a node of the graph"
        for node in nodes.values()
        for target in node.destinations
        if target != END and target not in nodes
    ]
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


def _is(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004


def _any_async(hooked: Node | Condition, *calls: Call | None) -> bool:
    return any(call.is_async for call in (*calls, *hooked.before_hooks, *hooked.after_hooks) if call is not None)


def _asynchronous(node: Node) -> list[str]:
    inner = [] if node.graph is None else [f"{node.id}/{name}" for name in node.graph.topology.asynchronous]
    return [node.id, *inner] if _any_async(node, node.action, node.interrupt_call, node.items) else inner


def _fingerprint(topology: Topology) -> str:
    from hashlib import blake2b

    edges = {
        source: edge if isinstance(edge, str) else sorted(map(repr, (edge.mappings or {}).items()))
        for source, edge in topology.edges.items()
    }
    by_source = sorted(edges.items(), key=lambda item: item[0])
    parts: list[Any] = [sorted(topology.nodes), by_source, sorted(topology.schema.keys)]
    # Left out where there are none: the fingerprints that older versions stored hold on.
    if topology.forks:
        parts.append(sorted((fork.id, fork.heads) for fork in topology.forks.values()))
    if graphs := [(node.id, node.graph.topology.fingerprint) for node in topology.nodes.values() if node.graph]:
        parts.append(sorted(graphs))
    return blake2b(repr(tuple(parts)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
