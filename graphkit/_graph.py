"""StateGraph: the builder. Ports langgraph4j's StateGraph and MessagesStateGraph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from graphkit._abc import StateSerializer
from graphkit._channels import Channel
from graphkit._compile_config import CompileConfig
from graphkit._compiled import CompiledGraph
from graphkit._config import END, START
from graphkit._names import JavaNames
from graphkit._schema_forms import schema_of
from graphkit._state import AgentState, MessagesState
from graphkit._topology import Condition, Edge, Node, Topology, plain_id, problems_of
from graphkit.errors import GraphStateError


class StateGraph(JavaNames):
    """A graph under construction: nodes, edges, and the schema of the state that flows through them.

    Every method that adds something returns the graph, and refuses at once what is wrong in itself; `compile` reports
    everything that is wrong with the whole. A compiled graph does not change when its StateGraph does.
    """

    def __init__(self, schema: Any, state_factory: Any = None) -> None:
        """Start a graph.

        Args:
            schema: a dict of channels, an AgentState class with a SCHEMA, a TypedDict (reducers as Annotated), a
                pydantic model, a StateSerializer, or just a state factory.
            state_factory: makes the state object that nodes see, from a mapping; or a StateSerializer.

        Raises:
            GraphStateError: the schema is none of these.
        """
        self._schema = schema_of(schema, state_factory)
        self._nodes: dict[str, Node] = {}
        self._edges: dict[str, list[str] | Condition] = {}

    def add_node(self, id: str, action: Any, *, metadata: Mapping[str, Any] | None = None) -> Self:
        """Add a node.

        Args:
            id: unique in the graph.
            action: callable(state) or callable(state, config), synchronous or not; returns a mapping of updates, a
                Command, or None for no update.
            metadata: the caller's notes on the node.

        Raises:
            GraphStateError: the id is taken or reserved, or the action cannot be called.
        """
        id = plain_id(id, "a node id")  # noqa: A001
        if id in (START, END):
            raise GraphStateError(f"{id!r} is not a valid node id: it is reserved")
        if id in self._nodes:
            raise GraphStateError(f"a node with id {id!r} already exists")
        if isinstance(action, (StateGraph, CompiledGraph)):
            raise GraphStateError(f"node {id!r} is a graph: subgraphs are not in this version")
        if not callable(action):
            raise GraphStateError(f"the action of node {id!r} cannot be called: {action!r}")
        self._nodes[id] = Node(id, action, metadata)
        return self

    def add_edge(self, source: str, target: str) -> Self:
        """Lead from a node (or START) to a node (or END).

        Raises:
            GraphStateError: the source is END, the target is START, or the source has a conditional edge.
        """
        source = self._checked_source(source)
        target = plain_id(target, f"the target of {source!r}")
        if target == START:
            raise GraphStateError(f"the edge of {source!r} leads to START, which nothing leads to")
        edges = self._edges.setdefault(source, [])
        if isinstance(edges, Condition):
            raise GraphStateError(f"{source!r} has a conditional edge already; it cannot have a plain one too")
        edges.append(target)
        return self

    def add_conditional_edges(
        self, source: str, condition: Callable[..., Any], mappings: Mapping[Any, str] | Sequence[str] | None = None
    ) -> Self:
        """Lead from a node (or START) to where a condition says.

        Args:
            source: the node.
            condition: callable(state) or callable(state, config), synchronous or not; returns a key of the mappings,
                or a Command whose goto is one.
            mappings: key -> node id; a sequence of node ids stands for themselves. Without: the condition returns
                node ids.

        Raises:
            GraphStateError: the source is END or has an edge already, the mappings are empty, or the condition cannot
                be called.
        """
        source = self._checked_source(source)
        if source in self._edges:
            raise GraphStateError(f"{source!r} has an edge already; it cannot have a conditional one too")
        if mappings is not None and not mappings:
            raise GraphStateError(f"the mappings of {source!r} are empty; leave them out to return node ids")
        if not callable(condition):
            raise GraphStateError(f"the condition of {source!r} cannot be called: {condition!r}")
        if mappings is not None:
            pairs = mappings.items() if isinstance(mappings, Mapping) else [(target, target) for target in mappings]
            mappings = {key: plain_id(target, f"a mapping of {source!r}") for key, target in pairs}
        self._edges[source] = Condition(condition, mappings)
        return self

    def compile(self, config: CompileConfig | None = None, **options: Any) -> CompiledGraph:
        """Check the graph and make it runnable. May be called again, with other options.

        Args:
            config: the options; or
            options: the fields of CompileConfig, over those of `config`.

        Raises:
            GraphStateError: everything that is wrong with the graph, in `problems`.
        """
        if config is None:
            config = CompileConfig(**options)
        elif options:
            config = config.replace(**options)
        stops = [("interrupt_before", node_id) for node_id in config.interrupt_before]
        stops += [("interrupt_after", node_id) for node_id in config.interrupt_after]
        problems = problems_of(self._nodes, self._edges, stops)
        if problems:
            raise GraphStateError(*problems)
        edges: dict[str, Edge] = {
            source: edge if isinstance(edge, Condition) else edge[0] for source, edge in self._edges.items()
        }
        return CompiledGraph(Topology(self._nodes, edges, self._schema), config)

    @property
    def channels(self) -> Mapping[str, Channel]:
        """The schema's channels; a copy."""
        return dict(self._schema.channels)

    @property
    def state_factory(self) -> Callable[[Any], AgentState]:
        """What makes the state object that nodes see."""
        return self._schema.state_of

    @property
    def state_serializer(self) -> StateSerializer | None:
        """The serializer that was given, if one was."""
        return self._schema.serializer

    def _checked_source(self, source: str) -> str:
        if source == END:
            raise GraphStateError("an edge cannot leave END")
        return plain_id(source, "the source of an edge")

    # Java names
    addNode = add_node
    addEdge = add_edge
    addConditionalEdges = add_conditional_edges

    def getChannels(self) -> Mapping[str, Channel]:
        return self.channels

    def getStateFactory(self) -> Callable[[Any], AgentState]:
        return self.state_factory

    def getStateSerializer(self) -> StateSerializer | None:
        return self.state_serializer


class MessagesStateGraph(StateGraph):
    """A StateGraph over a list of messages; see MessagesState."""

    def __init__(self, schema: Any = MessagesState, state_factory: Any = None) -> None:
        super().__init__(schema, state_factory)
