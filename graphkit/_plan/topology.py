"""A graph: GraphDefinition, as the user wrote it; Topology, checked, as a run uses it; the checks of its edges."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, final

from graphkit._options import is_of_kind
from graphkit._plan.schema import StateSchema
from graphkit._records.config import END, START
from graphkit._wording import suggest
from graphkit.errors import GraphRunnerError, GraphStateError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from graphkit._compiled import CompiledGraph
    from graphkit._plan.retry import RetryPolicy


@final
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TwoForms:
    """The action of a node in two forms: sync runs call it, async runs await it.

    Async runs, too, call the sync form on an executor and inside a wrap hook that is sync.
    """

    function: Callable[..., Any]
    async_function: Callable[..., Any]


@final
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StateItems:
    """Finds the items of a map in the state, without any effect: a resume finds the same ones again."""

    function: Callable[[Any], Any]

    def __call__(self, state: Any) -> Any:
        """Return the items."""
        return self.function(state)


@final
class Call:
    """A node's action, an edge's condition or a hook, and how to call it.

    Attributes:
        function: the callable that the user passed.
        takes_config: whether it takes the config after the state.
        is_async: whether calling it returns an awaitable or an asynchronous generator.
        is_generator: whether it yields chunks: a generator function, asynchronous or not.
        async_form: what an async run awaits instead of calling the function on a thread; None if
            there is only the function.
    """

    __slots__ = ("async_form", "function", "is_async", "is_generator", "takes_config")

    def __init__(self, function: Callable[..., Any] | TwoForms, *, takes_config: bool | None = None) -> None:
        """Inspect a callable.

        Args:
            function: the callable.
            takes_config: whether it takes the config; None: read from its signature.

        Raises:
            TypeError: it cannot be called.
        """
        self.async_form: Call | None = None
        if isinstance(function, TwoForms):
            self.async_form = Call(function.async_function, takes_config=takes_config)
            function = function.function
        self.function = function
        if takes_config is None:
            takes_config = takes_argument(function, 1, "config")
        self.takes_config = takes_config
        self.is_async = is_of_kind(function, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        self.is_generator = is_of_kind(function, inspect.isgeneratorfunction, inspect.isasyncgenfunction)

    def run(self, argument: Any, config: Any) -> Any:
        """Call the function, with the config if it takes one.

        Returns:
            Its result; an awaitable or a generator for the other kinds of functions.
        """
        if self.takes_config:
            return self.function(argument, config)
        return self.function(argument)


def require_result(result: Any, what: str, advice: str, node_id: str | None = None) -> Any:
    """Return the result of a synchronous call.

    Args:
        result: what user code returned.
        what: the code, for the error.
        advice: what to do if it is asynchronous.
        node_id: the node, if that is the code.

    Raises:
        GraphRunnerError: the result is awaitable, or an async generator.
    """
    if not inspect.isawaitable(result) and not inspect.isasyncgen(result):
        return result
    if inspect.iscoroutine(result):
        result.close()  # nothing will await it, and Python would warn about it
    if node_id is not None:
        what = f"{what} {node_id!r}"
    raise GraphRunnerError(f"{what} is asynchronous: {advice}", node_id=node_id)


@final
@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Node:
    """A node. Exactly one of `action` and `graph` is set."""

    id: str
    action: Call | None = None
    """The function to run; in a Topology, wrapped in the wrap hooks, retries and timeout."""
    graph: CompiledGraph[Any] | None = None
    """The compiled graph to run instead of an action."""
    interrupt_call: Call | None = None
    """The `interrupt` method of an InterruptableAction, called before the action."""
    items: Call | None = None
    """Of a map node: returns the items. The action receives one item instead of the state."""
    retry: RetryPolicy | None = None
    timeout: float | None = None
    """Seconds for one attempt."""
    executor: Executor | None = None
    """Where the action runs; None: the run decides."""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    destinations: tuple[str, ...] = ()
    """Where its Commands may go, in addition to its edges; empty: not declared, so anywhere."""
    max_concurrency: int | None = None
    """Of a map node: how many items run at the same time; None: limited only by the executor."""
    label: Call | None = None
    """Of a map node: returns the label of an item for those who watch."""
    failures: str | None = None
    """Of a map node: the key under which it hands over what failed; None: a failure ends the run."""
    before_hooks: tuple[Call, ...] = ()
    """Hooks to call before the node, in this order."""
    after_hooks: tuple[Call, ...] = ()
    """Hooks to call after the node, in this order."""
    wrap_hooks: tuple[Call, ...] = ()
    """Hooks around the node, outermost first."""
    local_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Of a node of an inlined subgraph: id in its own graph -> id in this graph, END included."""


@final
@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Condition:
    """A conditional edge: its condition, and the nodes that the condition's results stand for."""

    call: Call
    """The condition; in a Topology, wrapped in the wrap hooks."""
    mappings: Mapping[Any, str] | None = None
    """Result -> node id; None: the condition returns node ids."""
    before_hooks: tuple[Call, ...] = ()
    """Hooks to call before the condition, in this order."""
    after_hooks: tuple[Call, ...] = ()
    """Hooks to call after the condition, in this order."""
    wrap_hooks: tuple[Call, ...] = ()
    """Hooks around the condition, outermost first."""


@final
@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fork:
    """Several edges out of one node: branches that run in parallel until they meet in the join."""

    id: str
    """The id in outputs and checkpoints: `__PARALLEL__(<source>)`."""
    source: str
    heads: tuple[str, ...]
    """The first node of each branch, in the order of the edges."""
    join: str
    """Where the branches meet: a node, or END."""
    branches: Mapping[str, frozenset[str]]
    """Head -> the nodes of its branch."""


Targets = list[str] | Condition
"""The way out of a node in a graph definition: the targets of its plain edges, or a condition."""

Edge = str | Condition
"""The way out of a node or a fork in a Topology: the id of what is next, or a condition."""


@final
class Topology:
    """The nodes, forks and edges of a compiled graph. Immutable.

    Attributes:
        nodes: by id, in the order in which they were added; includes those of inlined subgraphs.
        nested: the graphs that are nodes, by the node's id.
        forks: by id.
        edges: by source, START and forks included. The edge of a forking node leads to its fork.
        aliases: the id of an inlined subgraph -> the node at which a run enters it.
        fingerprint: identifies the graph: a hash of its nodes, edges, forks, nested graphs and the
            keys of its schema.
        asynchronous: the nodes, and the sources of edges, that a synchronous run cannot execute;
            `a/b` is `b` of the nested graph `a`.

    A condition may choose several of its targets. They make a fork that is not among `forks`: it is
    built when it is first chosen, or found in a stored checkpoint by its id,
    `__PARALLEL__(<source> -> <head>, <head>)`.
    """

    def __init__(
        self,
        nodes: Mapping[str, Node],
        forks: Mapping[str, Fork],
        edges: Mapping[str, Edge],
        schema: StateSchema,
        aliases: Mapping[str, str],
        *,
        choose: Callable[[str, Sequence[str]], Fork],
    ) -> None:
        self._choose = choose
        self._chosen: dict[str, Fork] = {}
        self.nodes = dict(nodes)
        self.nested = {node.id: node.graph for node in self.nodes.values() if node.graph is not None}
        self.forks = dict(forks)
        self.edges = dict(edges)
        self.schema = schema
        self.aliases = dict(aliases)
        self.fingerprint = _fingerprint(self)
        self.asynchronous = _find_asynchronous(self)

    def find_fork(self, node_id: str | None) -> Fork | None:
        """Return the fork with this id, also one that a condition has chosen; None if there is none."""
        if node_id is None:
            return None
        fork = self.forks.get(node_id) or self._chosen.get(node_id)
        if fork is not None or not node_id.startswith(fork_id("")[:-1]):
            return fork
        # A stored checkpoint names a fork that was chosen in another process: its id has the source and the heads.
        for source in {**self.edges, **self.nodes}:
            start = fork_id(f"{source}{_CHOSEN}")[:-1]
            if not node_id.startswith(start):
                continue
            heads = _split_heads(node_id[len(start) : -1], self.declared_targets(source))
            if heads:
                return self.choose(source, heads)
        return None

    def declared_targets(self, source: str) -> list[str]:
        """Return the targets that a condition or the Commands of a node may choose from, in their order."""
        edge = self.edges.get(source)
        node = self.nodes.get(source)
        targets: list[str] = []
        if isinstance(edge, Condition):
            targets += (edge.mappings or {}).values()
        if node is not None:
            targets += node.destinations
        end = self.end_of(source)
        return [target for target in dict.fromkeys(targets) if target != end]

    def end_of(self, source: str) -> str:
        """Return what END is in the graph of a node: of an inlined subgraph, the target of the edge out of it."""
        node = self.nodes.get(source)
        return END if node is None else node.local_names.get(END, END)

    def find_parallel(self) -> list[str]:
        """Return the ids at which branches or items may begin, in this graph and in its nested graphs."""
        found = [fork.source for fork in self.forks.values()]
        found += [source for source in {**self.edges, **self.nodes} if len(self.declared_targets(source)) > 1]
        found += [node.id for node in self.nodes.values() if node.items is not None]
        for graph in self.nested.values():
            found += graph.topology.find_parallel()
        return list(dict.fromkeys(found))

    def choose(self, source: str, heads: Sequence[str]) -> Fork:
        """Return the fork of those targets that a condition has chosen.

        Args:
            source: the source of the conditional edge.
            heads: several different targets, END not among them, in the order of the edge's mappings.

        Raises:
            GraphStateError: the branches do not meet.
        """
        name = fork_id(f"{source}{_CHOSEN}{', '.join(heads)}")
        if name not in self._chosen:
            self._chosen[name] = dataclasses.replace(self._choose(source, heads), id=name)
        return self._chosen[name]

    def resolve_target(self, name: str, source: str | None = None) -> str | None:
        """Return the id that a Command, or a condition without mappings, names.

        Args:
            name: a node id, END, or the id of an inlined subgraph.
            source: the node that returned the name. In an inlined subgraph, the names of its own
                graph take precedence, END included.

        Returns:
            The node, the fork or END to go to; None if nothing has this name.
        """
        # A graph S with a node `check` was inlined, so that node is `S-check` here. A Command(goto="check")
        # of another node of S means `S-check`; the same of a node outside S means a node `check` of this
        # graph. END within S is where the edge out of S leads.
        node = None if source is None else self.nodes.get(source)
        if node is not None and name in node.local_names:
            target = node.local_names[name]
        else:
            target = self.aliases.get(name, name)

        is_target = target == END or target in self.nodes or self.find_fork(target) is not None
        if not is_target:
            return None
        return str.__str__(target)  # a member of a StrEnum becomes its text


_CHOSEN: Final = " -> "
"""Between the source and the heads in the id of a fork that a condition has chosen."""


def _split_heads(text: str, targets: Sequence[str]) -> list[str]:
    """Return the heads in the id of a chosen fork, all of them different targets; none if it has others."""
    # The id of a node may contain the separator.
    for target in targets:
        if text.startswith(f"{target}, "):
            others = [other for other in targets if other != target]
            following = _split_heads(text[len(target) + 2 :], others)
            if following:
                return [target, *following]
    return [text] if text in targets else []


def fork_id(source: str) -> str:
    """Return the id of the fork out of a node."""
    return f"__PARALLEL__({source})"


def parse_node_id(node_id: Any, role: str) -> str:
    """Return a node id as it is stored; a member of a StrEnum becomes its text.

    Args:
        node_id: what the caller passed.
        role: what it is, for the message.

    Raises:
        GraphStateError: it is not a str, or is empty.
    """
    if not isinstance(node_id, str) or not node_id:
        raise GraphStateError(f"{role} must be a non-empty str, not {node_id!r}")
    return str.__str__(node_id)


def find_problems(
    nodes: Mapping[str, Node], edges: Mapping[str, Targets], stops: Iterable[tuple[str, str]]
) -> list[str]:
    """Return what is wrong with the nodes and edges of a graph, one sentence each.

    `graphkit._build.joins` reports the problems of forks.

    Args:
        nodes: by id.
        edges: by source.
        stops: (option, node id) pairs, for options of the graph that name nodes.
    """

    def find_unknown(what: str, targets: Iterable[str]) -> list[str]:
        unknown = [target for target in targets if target != END and target not in nodes]
        return [f"{what} {describe_unknown_node(target, nodes)}" for target in unknown]

    problems: list[str] = []
    if START not in edges:
        problems.append("the graph has no entry point: add_edge(START, ...)")
    for source, edge in edges.items():
        if source != START and source not in nodes:
            problems.append(f"an edge leaves {describe_unknown_node(source, nodes)}")
        if isinstance(edge, Condition):
            for key, target in (edge.mappings or {}).items():
                problems += find_unknown(f"the conditional edge of {source!r} maps {key!r} to", [target])
            continue
        problems += find_unknown(f"the edge of {source!r} leads to", dict.fromkeys(edge))
        repeated = sorted({target for target in edge if edge.count(target) > 1})
        if repeated:
            names = ", ".join(map(repr, repeated))
            problems.append(f"the edges of {source!r} lead to {names} more than once")

    for node in nodes.values():
        problems += find_unknown(f"a destination of {node.id!r} is", node.destinations)

    for option, node_id in stops:
        if node_id not in nodes:
            problems.append(f"{option} names {describe_unknown_node(node_id, nodes)}")
    return problems


def describe_unknown_node(node_id: object, nodes: Iterable[str]) -> str:
    """Return the name of a node that does not exist as messages show it, with the nodes that resemble it."""
    reason = f"{node_id!r}, which is not a node of the graph"
    if node_id in ("__start__", "__end__"):
        return f"{reason}; import START and END from graphkit: LangGraph's are other texts"
    if node_id == "*":
        return f"{reason}; list the nodes"
    return reason + suggest(str(node_id), [*nodes])


def takes_argument(function: Callable[..., Any], position: int, name: str) -> bool:
    """Return whether a callable takes an argument that graphkit may pass or leave out.

    Args:
        function: the callable.
        position: the position of the argument, from 0. A required parameter there takes it.
        name: a parameter of this name at that position takes it, too, if it has a default.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a builtin without a signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) <= position:
        return any(p.kind is p.VAR_POSITIONAL for p in parameters)
    parameter = positional[position]
    return parameter.name == name or parameter.default is inspect.Parameter.empty


def _find_asynchronous(topology: Topology) -> list[str]:
    names: list[str] = []
    for node in topology.nodes.values():
        if _has_async_call(node, node.action, node.interrupt_call, node.items, node.label):
            names.append(node.id)
        if node.graph is not None:
            inner = node.graph.topology.asynchronous
            names += [f"{node.id}/{name}" for name in inner]

    for source, edge in topology.edges.items():
        if isinstance(edge, Condition) and _has_async_call(edge, edge.call):
            names.append(source)
    return names


def _has_async_call(part: Node | Condition, *calls: Call | None) -> bool:
    """Return whether one of these calls, or a before or after hook, is asynchronous.

    The wrap hooks do not count: they are part of the action or the condition.
    """
    every = (*calls, *part.before_hooks, *part.after_hooks)
    return any(call.is_async for call in every if call is not None)


def _fingerprint(topology: Topology) -> str:
    """Hash a graph. Checkpoints store the result, so it must not change between versions."""
    from hashlib import blake2b

    edges: dict[str, str | list[str]] = {}
    for source, edge in topology.edges.items():
        if isinstance(edge, Condition):
            mappings = edge.mappings or {}
            edges[source] = sorted(map(repr, mappings.items()))
        else:
            edges[source] = edge

    parts: list[Any] = [
        sorted(topology.nodes),
        sorted(edges.items(), key=itemgetter(0)),
        sorted(topology.schema.keys),
    ]

    # A graph without forks or nested graphs has no entry for them, so that its fingerprint
    # equals the one that older versions stored.
    if topology.forks:
        parts.append(sorted((fork.id, fork.heads) for fork in topology.forks.values()))
    if topology.nested:
        parts.append(sorted((node_id, graph.topology.fingerprint) for node_id, graph in topology.nested.items()))

    content = repr(tuple(parts)).encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=8).hexdigest()


HookKind = Literal["before", "after", "wrap"]


@final
class Hook(NamedTuple):
    """A hook as the user added it."""

    kind: HookKind
    node_id: str | None
    """The node, or the source of the conditional edge; None: all of them."""
    call: Call


@final
@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class GraphDefinition:
    """A graph as the user wrote it."""

    nodes: dict[str, Node | GraphDefinition] = dataclasses.field(default_factory=dict)
    """By id. A GraphDefinition among them is a subgraph to inline; it had no problems when it was added."""
    edges: dict[str, Targets] = dataclasses.field(default_factory=dict)
    """By source."""
    node_hooks: list[Hook] = dataclasses.field(default_factory=list)
    """In the order in which they were added."""
    edge_hooks: list[Hook] = dataclasses.field(default_factory=list)
    """The hooks of conditional edges, in the same order."""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of a subgraph to inline, the caller's notes on all its nodes."""

    def copy(self, metadata: Mapping[str, Any]) -> GraphDefinition:
        """Return a copy of the graph, with notes on its nodes."""
        return GraphDefinition(
            nodes=dict(self.nodes),
            edges={source: edge if isinstance(edge, Condition) else [*edge] for source, edge in self.edges.items()},
            node_hooks=[*self.node_hooks],
            edge_hooks=[*self.edge_hooks],
            metadata=dict(metadata),
        )
