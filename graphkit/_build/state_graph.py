"""StateGraph, which users build and compile.

Ports langgraph4j's StateGraph and MessagesStateGraph.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeAlias, Unpack, overload

from graphkit._build.compile import build_topology, check_subgraph
from graphkit._compiled import CompiledGraph
from graphkit._diagram import GraphRepresentation, draw
from graphkit._options import check_choice, check_count, check_executor, check_list, check_seconds
from graphkit._plan.compile_config import CompileConfig, CompileOptions, parse_options
from graphkit._plan.retry import RetryPolicy, check_retry
from graphkit._plan.schema import DataclassSchema, StateSchema, read_channels
from graphkit._plan.topology import Call, Condition, GraphDefinition, Hook, HookKind, Node, StateItems, parse_node_id
from graphkit._public_names import JavaNames
from graphkit._records.config import END, START, RunnableConfig
from graphkit._records.output import Command
from graphkit._values.channels import Channel
from graphkit._values.frozen import is_pydantic_model, private_copy
from graphkit._values.state import AgentState, MessagesState, StateSerializer, StateT
from graphkit._wording import suggest
from graphkit.errors import GraphStateError

if TYPE_CHECKING:
    from concurrent.futures import Executor

# The functions of a graph as type checkers see them; the names are those of langgraph4j's interfaces. Each
# function may be synchronous or asynchronous.

Update: TypeAlias = Mapping[str, Any] | StateT | Command | None
"""What a node returns: a mapping of updates, an object of the schema, a Command, or None for no update."""
ActionResult: TypeAlias = Update[StateT] | Awaitable[Update[StateT]] | Iterator[Any] | AsyncIterator[Any]
"""What the call of an action returns: an update, an awaitable of one, or chunks."""


NodeAction: TypeAlias = (
    Callable[[StateT], ActionResult[StateT]] | Callable[[StateT, RunnableConfig], ActionResult[StateT]]
)
"""A node: takes the state, or the state and the config of its run."""
EdgeAction: TypeAlias = Callable[[StateT], Any] | Callable[[StateT, RunnableConfig], Any]
"""A condition: returns a key of the mappings, a Command, or an awaitable of either."""
Function = Callable[..., Any]


class StateGraph(JavaNames, Generic[StateT]):
    """A graph under construction: nodes, edges, hooks, and the schema of its state.

    Type checkers read the type of the state from the schema: a TypedDict, a dataclass, a pydantic
    model or an AgentState subclass is the type itself; with a mapping of channels it is AgentState.
    At run time a node receives an AgentState that reads like it.

    Every method that adds something returns the graph. It raises at once if the new part is wrong
    in itself; `compile` reports everything that is wrong with the graph as a whole. A compiled
    graph does not change when its StateGraph does.
    """

    @overload
    def __init__(
        self: StateGraph[AgentState],
        schema: Mapping[str, Channel] | StateSerializer | StateSchema,
        state_factory: StateSerializer | None = None,
    ) -> None: ...
    @overload
    def __init__(self, schema: type[StateT], state_factory: StateSerializer | None = None) -> None: ...
    @overload
    def __init__(self, schema: Callable[[Any], StateT], state_factory: StateSerializer | None = None) -> None: ...
    @overload
    def __init__(self, schema: Any, state_factory: Callable[[Any], StateT]) -> None: ...
    def __init__(self, schema: Any, state_factory: Any = None) -> None:
        """Create an empty graph.

        Args:
            schema: a dict of channels, an AgentState class with a SCHEMA, a TypedDict or a dataclass
                (reducers as Annotated), a pydantic model, a StateSerializer, or only a state factory.
            state_factory: builds the state object that nodes receive, from a mapping; or a
                StateSerializer.

        Raises:
            GraphStateError: the schema is none of these.
        """
        self._schema = parse_schema(schema, state_factory)
        self._definition = GraphDefinition()
        self._inlined_schemas: list[StateSchema] = []
        """The schemas of inlined graphs: their nodes may set their keys."""

    def __repr__(self) -> str:
        """Return the nodes and the edges: `a -> b`, or `a -> ?` where a condition decides."""
        definition = self._definition
        edges: list[str] = []
        for source, targets in definition.edges.items():
            names = ["?"] if isinstance(targets, Condition) else targets
            edges += [f"{source} -> {name}" for name in names]
        return f"StateGraph(nodes: {', '.join(definition.nodes) or 'none'}; edges: {', '.join(edges) or 'none'})"

    if not TYPE_CHECKING:  # or checkers would take every name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Say that a graph runs once it is compiled, or which method has a similar name."""
            hint = suggest(name, dir(type(self)))
            if hasattr(CompiledGraph, name):
                hint = f": app = graph.compile(...) has it, app.{name}"
            raise AttributeError(f"a StateGraph has no {name!r}{hint}")

    # Nodes

    def add_node(
        self,
        id: str | NodeAction[StateT],
        action: NodeAction[StateT] | StateGraph[Any] | CompiledGraph[Any] | None = None,
        *,
        retry: RetryPolicy | None = None,
        executor: Executor | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        destinations: Iterable[str] = (),
    ) -> Self:
        """Add a node.

        Args:
            id: unique in the graph; `add_node(function)` takes the function's name.
            action: callable(state) or callable(state, config), synchronous or asynchronous. It
                returns a mapping of updates, an object of the schema, a Command, or None for no update.
                The run emits the chunks of a generator as they come. A StateGraph is inlined as it is now: its nodes
                become nodes of this graph, named `<id>-<node>`. A CompiledGraph runs as one node.
            retry: when to run a failed action again; None: the policy passed to `compile`.
            executor: where the action runs; None: the run decides.
            timeout: seconds for one attempt; None: the timeout passed to `compile`.
            metadata: the caller's notes on the node; for a StateGraph, on each of its nodes.
            destinations: the nodes (or END) to which the Commands of the node go; they count as
                edges. A Command that goes elsewhere is then an error of the run. Without them a
                Command may go anywhere, but `compile` cannot know its targets and reports nodes
                that no edge leads to.

        Raises:
            GraphStateError: the id is taken or reserved; the action cannot be called; the timeout
                is not above zero; a StateGraph has problems of its own; or the action is a graph
                and a retry, executor, timeout or destinations are given, which belong on its nodes.
        """
        name: Any = id
        if action is None and callable(name):
            action = name
            name = _name_of(id)
        if isinstance(destinations, str) or not isinstance(destinations, Iterable):
            raise GraphStateError(f"the destinations of node {name!r} must be a list of node ids, not {destinations!r}")
        role = f"a destination of node {name!r}"
        targets = tuple(dict.fromkeys(parse_node_id(target, role) for target in destinations))
        if START in targets:
            raise GraphStateError(f"{role} is START, which cannot be the target of an edge")
        node_id = self._parse_new_id(name)
        if isinstance(action, (StateGraph, CompiledGraph)):
            if targets or retry is not None or executor is not None or timeout is not None:
                raise GraphStateError(
                    f"node {name!r} is a graph: put retry, executor, timeout and destinations on its nodes"
                )
            if isinstance(action, CompiledGraph):
                self._definition.nodes[node_id] = Node(id=node_id, graph=action, metadata=dict(metadata or {}))
                return self
            child = action._definition.copy(metadata or {})  # noqa: SLF001 - the same class
            self._definition.nodes[node_id] = check_subgraph(node_id, child)
            self._inlined_schemas += (action._schema, *action._inlined_schemas)  # noqa: SLF001 - the same class
            return self

        node = Node(
            id=node_id,
            action=_parse_call(action, f"the action of node {node_id!r}"),
            interrupt_call=_find_interrupt(action),
            retry=retry,
            executor=executor,
            timeout=timeout,
            metadata=dict(metadata or {}),
            destinations=targets,
        )
        return self._add_action(node)

    def add_sequence(self, nodes: Iterable[NodeAction[StateT] | tuple[str, NodeAction[StateT]]]) -> Self:
        """Add nodes that run one after the other: each one has an edge to the next.

        Args:
            nodes: functions, whose names are the ids, or pairs of id and action.

        Raises:
            GraphStateError: there is no node; or as `add_node`. Those before the wrong one are added.
        """
        ids: list[str] = []
        for node in nodes:
            node_id, action = node if isinstance(node, tuple) else (_name_of(node), node)
            self.add_node(node_id, action)
            ids.append(node_id)
        if not ids:
            raise GraphStateError("add_sequence needs at least one node")
        for source, target in pairwise(ids):
            self.add_edge(source, target)
        return self

    def add_subgraph(self, id: str, graph: StateGraph[Any] | CompiledGraph[Any]) -> Self:
        """Add a graph as a node; as `add_node` with a graph.

        Raises:
            GraphStateError: it is not a graph; or as `add_node`.
        """
        if not isinstance(graph, (StateGraph, CompiledGraph)):
            raise GraphStateError(f"subgraph {id!r} must be a StateGraph or a CompiledGraph, not {graph!r}")
        return self.add_node(id, graph)

    def add_map_node(
        self,
        id: str,
        action: Function,
        items: Function | str,
        *,
        retry: RetryPolicy | None = None,
        executor: Executor | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_concurrency: int | None = None,
        on_error: Literal["raise", "collect"] = "raise",
        failures: str | None = None,
        label: Callable[[Any], str] | None = None,
    ) -> Self:
        """Add a node whose action runs once per item, in parallel.

        The run merges the updates in the order of the items. Streams of mode "custom" get a MapProgress
        for each finished item, and observers an event `parallel.branch`.

        Args:
            id: unique in the graph.
            action: callable(item) or callable(item, config); otherwise as in `add_node`. Wrap
                hooks, retry and timeout apply to each call of it; before and after hooks to the
                whole node.
            items: callable(state) or callable(state, config) that returns the items; or the key of
                the state that holds them.
            retry: as in `add_node`.
            executor: as in `add_node`.
            timeout: seconds for one attempt at one item.
            metadata: the caller's notes on the node.
            max_concurrency: how many items run at the same time, at most; None: limited only by
                the executor.
            on_error: "raise": an item that fails, after its retries, ends the run; the others keep
                their results. "collect": the others are finished, and the failures handed over.
            failures: with "collect", the key of the state that gets a list of MapFailure, in the order
                of the items; an empty one if nothing failed.
            label: callable(item) that returns a short text for those who watch.

        Raises:
            GraphStateError: as in `add_node`; `items` is neither a key nor callable;
                `max_concurrency` is not at least 1; or one of "collect" and `failures` is without
                the other.
        """
        node_id = self._parse_new_id(id)
        if max_concurrency is not None:
            check_count(f"the max_concurrency of node {node_id!r}", max_concurrency, GraphStateError)
        check_choice(f"the on_error of node {node_id!r}", on_error, "raise", "collect", error=GraphStateError)
        if (on_error == "collect") != (failures is not None):
            raise GraphStateError(
                f"node {node_id!r}: on_error='collect' and failures= belong together; failures= is the key of the "
                f"state that gets the list of what failed"
            )
        if isinstance(items, str):  # a key of the state
            items_call = Call(StateItems(itemgetter(items)), takes_config=False)
        else:
            items_call = _parse_call(items, f"the items of node {node_id!r} are not a key of the state, and")
        node = Node(
            id=node_id,
            action=_parse_call(action, f"the action of node {node_id!r}"),
            interrupt_call=_find_interrupt(action),
            retry=retry,
            executor=executor,
            timeout=timeout,
            metadata=dict(metadata or {}),
            items=items_call,
            max_concurrency=max_concurrency,
            label=None if label is None else _parse_call(label, f"the label of node {node_id!r}"),
            failures=None if failures is None else parse_node_id(failures, f"failures= of node {node_id!r}"),
        )
        return self._add_action(node)

    # Edges

    def add_edge(self, source: str, target: str) -> Self:
        """Add an edge from a node (or START) to a node (or END).

        A second edge from the same source makes a fork. The branches of a fork run in parallel,
        from the same state, up to the node (or END) where all of them meet. The run merges their
        updates once, in the order of the edges. END among the targets of a fork is not a branch.

        Raises:
            GraphStateError: the source is END, the target is START, or the source has a
                conditional edge.
        """
        source = self._parse_source(source)
        target = parse_node_id(target, f"the target of {source!r}")
        if target == START:
            raise GraphStateError(f"START cannot be the target of an edge, and that of {source!r} leads to it")

        edges = self._definition.edges.setdefault(source, [])
        if isinstance(edges, Condition):
            raise GraphStateError(f"{source!r} has a conditional edge already; it cannot have a plain one too")

        edges.append(target)
        return self

    def add_conditional_edges(
        self,
        source: str,
        condition: EdgeAction[StateT],
        mappings: Mapping[Any, str] | Sequence[str] | None = None,
    ) -> Self:
        """Add an edge from a node (or START) to the node (or END) that a condition selects.

        Args:
            source: the node.
            condition: callable(state) or callable(state, config), synchronous or asynchronous. It
                returns a key of the mappings, or a Command whose goto is a key. It may return a list of
                keys: their targets are the branches of a fork then, which have to meet.
            mappings: key -> node id; or a sequence of node ids, each its own key. Without them the
                condition returns node ids.

        Raises:
            GraphStateError: the source is END or has an edge already, the mappings are empty or no
                mapping or list, or the condition cannot be called.
        """
        source = self._parse_source(source)
        if source in self._definition.edges:
            raise GraphStateError(f"{source!r} has an edge already; it cannot have a conditional one too")
        if mappings is not None and not mappings:
            raise GraphStateError(f"the mappings of {source!r} are empty; leave them out to return node ids")

        call = _parse_call(condition, f"the condition of {source!r}")
        targets = None
        if mappings is not None:
            check_list(f"the mappings of {source!r}", "node ids, or a mapping", mappings, GraphStateError)
            keys = mappings.items() if isinstance(mappings, Mapping) else zip(mappings, mappings, strict=True)
            targets = {key: parse_node_id(target, f"a mapping of {source!r}") for key, target in keys}
        self._definition.edges[source] = Condition(call=call, mappings=targets)
        return self

    def set_entry_point(self, id: str) -> Self:
        """Add an edge from START to a node."""
        return self.add_edge(START, id)

    def set_finish_point(self, id: str) -> Self:
        """Add an edge from a node to END."""
        return self.add_edge(id, END)

    # Hooks. The hook that was added first is outermost: it runs first before a node and last after it,
    # and wraps the other hooks. Hooks on all nodes are outside the hooks on one node. The hooks are
    # those of langgraph4j 1.9, whose documentation and code disagree about this order.

    def add_before_call_node_hook(self, node_id: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(node_id, state, config) before a node.

        The run merges the update that it returns before the node runs; None: no update. When the graph
        is inlined into another graph, its nodes keep their hooks. `compile` reports a hook on a node
        that the graph does not have, or on an edge without a condition.

        Args:
            node_id: the node; without it, every node, including those of inlined subgraphs.
            hook: a synchronous or asynchronous function.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        return self._add_hook(self._definition.node_hooks, "before", node_id, hook)

    def add_after_call_node_hook(self, node_id: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(node_id, state, config, update) after a node. It returns the update to merge.

        Arguments and errors as `add_before_call_node_hook`.
        """
        return self._add_hook(self._definition.node_hooks, "after", node_id, hook)

    def add_wrap_call_node_hook(self, node_id: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(node_id, state, config, call) instead of a node. It returns the update.

        `call()` runs the node; `call(state)` and `call(state, config)` run it with another state or
        config. A hook on every node leaves out nested graphs, and `compile` reports a hook on one.
        Arguments and errors as `add_before_call_node_hook`.
        """
        return self._add_hook(self._definition.node_hooks, "wrap", node_id, hook)

    def add_before_call_edge_hook(self, source: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(source, state, config) before a condition.

        The run merges the update that it returns before it evaluates the condition; None: no update.

        Args:
            source: the source of the conditional edge, or START; without it, every conditional edge.
            hook: a synchronous or asynchronous function.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        return self._add_hook(self._definition.edge_hooks, "before", source, hook)

    def add_after_call_edge_hook(self, source: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(source, state, config, result) after a condition. It returns the result to use.

        Arguments and errors as `add_before_call_edge_hook`.
        """
        return self._add_hook(self._definition.edge_hooks, "after", source, hook)

    def add_wrap_call_edge_hook(self, source: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(source, state, config, call) instead of a condition. It returns the result.

        `call()` evaluates the condition; `call(state)` and `call(state, config)` evaluate it with
        another state or config. Arguments and errors as `add_before_call_edge_hook`.
        """
        return self._add_hook(self._definition.edge_hooks, "wrap", source, hook)

    # The graph as a whole

    def compile(self, config: CompileConfig | None = None, **options: Unpack[CompileOptions]) -> CompiledGraph[StateT]:
        """Check the graph and return a graph that can be run.

        It may be called again with other options.

        Args:
            config: the options.
            options: fields of CompileConfig; they override those of `config`. `checkpointer` is
                another name of `checkpoint_saver`.

        Raises:
            GraphStateError: everything that is wrong with the graph, in `problems`.
            TypeError: there is no such option; the message names the nearest one.
        """
        config = parse_options(config, options)
        topology, config = build_topology(self._definition, self._schema.allow_keys_of(self._inlined_schemas), config)
        return CompiledGraph(topology, config)

    def get_graph(
        self,
        type: GraphRepresentation.Type | str = GraphRepresentation.Type.MERMAID,
        title: str | None = "Graph Diagram",
        print_conditional_edges: bool = True,
    ) -> GraphRepresentation:
        """Draw the graph as the user wrote it, with subgraphs as clusters. It may be incomplete.

        Args:
            type: MERMAID, PLANTUML or TEXT.
            title: None: no title.
            print_conditional_edges: whether a condition is a shape of its own.

        Raises:
            ValueError: the type is unknown.
        """
        return draw(self._definition, type, title, print_conditional_edges)

    @property
    def channels(self) -> Mapping[str, Channel]:
        """The schema's channels; a copy."""
        return dict(self._schema.channels)

    @property
    def state_factory(self) -> Callable[[Any], AgentState]:
        """The function that builds the state object that nodes receive."""
        return self._schema.state_factory

    @property
    def state_serializer(self) -> StateSerializer | None:
        """The serializer passed as the schema or the state factory; None without one."""
        return self._schema.serializer

    # Helpers

    def _parse_new_id(self, id: str) -> str:
        node_id = parse_node_id(id, "a node id")
        if node_id in (START, END):
            raise GraphStateError(f"{node_id!r} is not a valid node id: it is reserved")
        if node_id in self._definition.nodes:
            raise GraphStateError(f"a node with id {node_id!r} already exists")
        return node_id

    def _add_action(self, node: Node) -> Self:
        check_retry(f"the retry of node {node.id!r}", node.retry, GraphStateError)
        if node.timeout is not None:
            check_seconds(f"the timeout of node {node.id!r}", node.timeout, GraphStateError)
        check_executor(f"the executor of node {node.id!r}", node.executor, GraphStateError)
        self._definition.nodes[node.id] = node
        return self

    def _add_hook(
        self, hooks: list[Hook], kind: HookKind, node_id: str | Function | None, hook: Function | None
    ) -> Self:
        if hook is None and callable(node_id):
            # add_..._hook(function): the function is the hook, on all nodes or conditional edges.
            hook = node_id
            node_id = None
        if not callable(hook):
            raise GraphStateError(f"a {kind} hook cannot be called: {hook!r}")
        if node_id is not None:
            node_id = parse_node_id(node_id, "the node of a hook")
        hooks.append(Hook(kind, node_id, Call(hook, takes_config=True)))
        return self

    def _parse_source(self, source: Any) -> str:
        if source == END:
            raise GraphStateError("an edge cannot leave END")
        if isinstance(source, (list, tuple)):
            raise GraphStateError(
                f"an edge has one source, not {source!r}: add_edge from each of them; the branches of a fork meet in "
                f"the target that they share"
            )
        return parse_node_id(source, "the source of an edge")

    # Java names
    addNode = add_node
    addSequence = add_sequence
    setEntryPoint = set_entry_point
    setFinishPoint = set_finish_point
    addSubgraph = add_subgraph
    addMapNode = add_map_node
    addEdge = add_edge
    addConditionalEdges = add_conditional_edges
    getGraph = get_graph
    addBeforeCallNodeHook = add_before_call_node_hook
    addAfterCallNodeHook = add_after_call_node_hook
    addWrapCallNodeHook = add_wrap_call_node_hook
    addBeforeCallEdgeHook = add_before_call_edge_hook
    addAfterCallEdgeHook = add_after_call_edge_hook
    addWrapCallEdgeHook = add_wrap_call_edge_hook

    def getChannels(self) -> Mapping[str, Channel]:
        return self.channels

    def getStateFactory(self) -> Callable[[Any], AgentState]:
        return self.state_factory

    def getStateSerializer(self) -> StateSerializer | None:
        return self.state_serializer


class MessagesStateGraph(StateGraph[MessagesState]):
    """A StateGraph whose state is a list of messages; see MessagesState."""

    def __init__(self, schema: Any = MessagesState, state_factory: Any = None) -> None:
        super().__init__(schema, state_factory)


# Arguments. Each function raises a GraphStateError that names the argument and its node.


def _name_of(function: Any) -> str:
    """Return the id of a node that is given as a function only."""
    name = getattr(function, "__name__", "<lambda>")
    if name == "<lambda>":
        raise GraphStateError(f"{function!r} has no name to be a node id: write add_node(id, action)")
    return str(name)


def _find_interrupt(action: object) -> Call | None:
    """Return the question of an InterruptableAction."""
    interrupt = getattr(action, "interrupt", None)
    return Call(interrupt) if callable(interrupt) else None


def _parse_call(function: Any, role: str) -> Call:
    try:
        return Call(function)
    except TypeError as error:
        raise GraphStateError(
            f"{role} cannot be called: {function!r}; pass the function itself, not what it returns"
        ) from error


# The schema argument, in each of its forms


def parse_schema(schema: Any, state_factory: Any = None) -> StateSchema:
    """Read a schema argument.

    Args:
        schema: channels, a state class, a TypedDict, a dataclass, a pydantic model, a state factory, a
            serializer, or a StateSchema.
        state_factory: a state factory or a serializer; overrides that of the schema.

    Raises:
        GraphStateError: it is none of these, or an annotation's reducer does not take two values.
    """
    if isinstance(schema, StateSchema):
        parsed = schema
    elif isinstance(schema, StateSerializer):
        parsed = StateSchema({}, serializer=schema)
    elif isinstance(schema, Mapping):
        problems = [
            f"the schema's {key!r} is {channel!r}, which is not a Channel"
            for key, channel in schema.items()
            if not isinstance(channel, Channel)
        ]
        if problems:
            raise GraphStateError(*problems)
        parsed = StateSchema(schema)
    elif isinstance(schema, type):
        parsed = _parse_class(schema)
    elif callable(schema):
        parsed = StateSchema({}, _parse_state_factory(schema))
    else:
        raise GraphStateError(
            f"a schema must be a dict of channels, an AgentState class, a TypedDict or a pydantic model, not {schema!r}"
        )
    if isinstance(state_factory, StateSerializer):
        parsed.serializer = state_factory
    elif state_factory is not None:
        parsed.state_factory = _parse_state_factory(state_factory)
    if parsed.serializer is not None:
        for key in parsed.serializer.transient_attributes:
            parsed.make_transient(key)
    return parsed


def _parse_class(schema: type) -> StateSchema:
    if issubclass(schema, AgentState):
        return StateSchema(schema.SCHEMA, schema)
    if typing.is_typeddict(schema):
        from graphkit._values.codec.type_registry import find_application_types  # loads msgpack

        hints = _read_hints(schema)
        types = find_application_types(hints.values())
        return StateSchema(read_channels(hints), keys=hints, types=types, closed_as=schema.__name__)
    if is_pydantic_model(schema):
        from graphkit._plan.pydantic_schema import PydanticSchema

        return PydanticSchema(schema)
    if dataclasses.is_dataclass(schema):
        return DataclassSchema(schema, _read_hints(schema))
    raise GraphStateError(
        f"{schema.__name__} cannot be a schema: use an AgentState class with a SCHEMA, a TypedDict, a dataclass or a "
        f"pydantic model"
    )


def _read_hints(schema: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(schema, include_extras=True)
    except NameError as error:
        raise GraphStateError(f"an annotation of {schema.__name__} cannot be read: {error}") from error


def _parse_state_factory(state_factory: Any) -> Callable[[Any], AgentState]:
    """Return a state factory that receives copies of mutable application objects.

    An AgentState class makes such copies itself.
    """
    if isinstance(state_factory, type) and issubclass(state_factory, AgentState):
        return state_factory
    if not callable(state_factory):
        raise GraphStateError(f"a state factory must be callable(mapping), not {state_factory!r}")
    return lambda data: state_factory(private_copy(data))
