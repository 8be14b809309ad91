"""GraphCursor: where a run, a branch or an update stands in a graph, and how it moves on.

It merges updates, takes edges, and opens stored checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, Final

from graphkit._engine.program import Program
from graphkit._engine.requests import Ask, Clock, Load, LoadWrites, Request
from graphkit._engine.subgraph_updates import strip_subgraph_updates
from graphkit._engine.update_codec import pack
from graphkit._plan.topology import Call, Condition, Node
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.context import GraphInterrupt, Journal
from graphkit._records.output import Command
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.checkpoint_info import public_metadata
from graphkit._saver.incomplete import check_complete
from graphkit._saver.langgraph_writes import MADE_BY
from graphkit._saver.writes import well_formed_writes
from graphkit._values.frozen import FrozenDict, freeze, private_copy
from graphkit._values.state import AgentState, Changes
from graphkit._wording import describe_error, message_of
from graphkit.errors import CheckpointNotFoundError, GraphRunnerError, NodeExecutionError

Steps = Generator[Request, Any, None]
EMPTY: Final = FrozenDict()
WRITES_TAKEN_FROM: Final = "keeps"
"""In the metadata of an update: the id of the checkpoint whose pending writes it took over."""
CONTINUED_EXECUTION: Final = "visit"
"""In the metadata: the start of the node execution that continues after this checkpoint, if it
began before this checkpoint was stored."""
RESUMED_AT: Final = "resumed_at"
"""In the metadata of the first checkpoint after a resume: when the run resumed. Its node ran from
then on, and not since the parent was stored: in between the run waited, had failed, or was not
running at all."""
SCHEMA_VERSION: Final = "schema_version"
"""In the metadata: how many migrations the state has been through; absent for none."""
PER_CHECKPOINT_KEYS: Final = frozenset(
    {
        "step",
        "source",
        "graph",
        WRITES_TAKEN_FROM,
        CONTINUED_EXECUTION,
        RESUMED_AT,
        SCHEMA_VERSION,
    }
)
"""The metadata keys that describe one checkpoint; the other keys belong to the whole run."""

PostEvent = Callable[..., None]
"""Posts an event to the observers; see `graphkit._plan.events.Outbox.post`."""


class GraphCursor:
    """Where a run stands in a graph, and how it moves on."""

    clock: Clock
    """Tells the time and makes ids; see `attach`."""

    def __init__(self, program: Program, config: RunnableConfig, saver: BaseCheckpointSaver | None) -> None:
        self.program = program
        self.topology = program.topology
        self.schema = program.topology.schema
        self.options = program.options
        self.config = config
        self.saver = saver
        self.data = EMPTY
        self.changes: Changes | None = None
        """What changed since the latest stored checkpoint; None if there is no checkpoint, or if
        the difference is not known."""
        self.transient: frozenset[str] = program.topology.schema.transient
        """The keys that are neither stored nor shown: those of the schema and of the outer
        graphs."""
        self.private: FrozenDict = EMPTY
        """The values of the transient keys."""
        self.update_listeners: list[Callable[[str, FrozenDict], None]] = []
        """Called with the node id and the packed update after each merge."""
        self.post: PostEvent | None = None
        self.journal: Journal | None = None

    # Merging

    def merge(self, node_id: str, update: Any, source: str = "") -> None:
        """Merge the update that a node or an edge returned.

        Args:
            node_id: the node.
            update: a mapping, a pydantic model or None.
            source: names what returned the update in an error; the node if empty.
        """
        if update is None:
            return
        if update.__class__ is not dict and not is_update(update):
            raise self.make_error(
                NodeExecutionError,
                f"{node_id!r} returned {type(update).__name__}: return a mapping of updates, a Command or None",
                node_id,
            )
        try:
            if self.transient:
                update = self.absorb_private(update)
            data, ops = self.schema.merge(self.data, update)
            packed = pack(self.schema.normalize_update(update, data)) if self.update_listeners else None
        except Exception as error:
            reason = f"the update of {source or repr(node_id)} cannot be merged: {message_of(error)}"
            raise self.make_error(NodeExecutionError, reason, node_id) from error
        if self.post is not None:
            self.post_event("state.merge", "verbose", node_id, keys=list(ops))
        # `set_data`, in line.
        self.data = data
        if self.changes is not None and ops:
            self.changes = self.changes.compose(ops)
        if packed is not None:
            for listener in self.update_listeners:
                listener(node_id, packed)

    def set_data(self, data: FrozenDict, ops: dict[str, int]) -> None:
        """Set the state, and add `ops` to what changed."""
        self.data = data
        if self.changes is not None and ops:
            self.changes = self.changes.compose(ops)

    def absorb_private(self, update: Mapping[str, Any]) -> Mapping[str, Any]:
        """Merge the transient keys of an update into `private`; return the update without them."""
        if not self.transient:
            return update
        plain = self.schema.to_mapping(update)
        private: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for key, value in plain.items():
            part = private if key in self.transient else others
            part[key] = value
        if not private:
            return plain
        self.private = self.schema.merge_transient(self.private, private)
        return others

    # Edges

    def follow_edge(self, source: str) -> Generator[Request, Any, str]:
        """Take the outgoing edge of a node; return the id of the next node."""
        edge = self.topology.edges.get(source)
        if edge.__class__ is str:
            return edge
        if edge is None:
            raise self._no_edge_error(source)
        return (yield from self._evaluate_edge(source, edge))  # type: ignore[arg-type]

    def _no_edge_error(self, source: str) -> GraphRunnerError:
        reason = f"{source!r} has no outgoing edge, and returned no Command with a goto; add_edge({source!r}, ...)"
        return self.make_error(GraphRunnerError, reason, source)

    def _evaluate_edge(self, source: str, edge: Condition) -> Generator[Request, Any, str]:
        config = self.config
        for hook in edge.before_hooks:
            update = yield from self._call_edge(source, hook, source, self.state(), config)
            self.merge(source, update)
        result = yield from self._call_edge(source, edge.call, self.state(), config)
        for hook in edge.after_hooks:
            state = self.state()
            result = yield from self._call_edge(source, hook, source, state, config, result)
        if isinstance(result, Command):
            self.merge(source, result.update)
            result = result.goto
        return self._resolve_result(source, edge, result)

    def _call_edge(self, source: str, call: Call, *arguments: Any) -> Generator[Request, Any, Any]:
        return (yield from self.call_user(source, f"the edge of {source!r} failed", call, *arguments))

    def _resolve_result(self, source: str, edge: Condition, result: Any) -> str:
        """Find the node that the result of a condition leads to."""
        target = result
        if edge.mappings is not None:
            target = self._look_up_result(source, edge.mappings, result)
        next_node_id = None
        if isinstance(target, str):
            next_node_id = self.topology.resolve_target(target, source)
        elif _is_collection(target):
            raise self._several_targets_error(f"the edge of {source!r} leads", target, source)
        if self.post is not None:
            self.post_event("edge.evaluate", "verbose", source, result=repr(result), target=next_node_id)
        if next_node_id is None:
            reason = f"the edge of {source!r} leads to {target!r}, which is not a node of the graph"
            raise self.make_error(GraphRunnerError, reason, source)
        return next_node_id

    def _look_up_result(self, source: str, mappings: Mapping[Any, str], key: Any) -> str:
        try:
            return mappings[key]
        except (KeyError, TypeError):
            if _is_collection(key):
                raise self._several_targets_error(f"the edge of {source!r} leads", key, source) from None
            known = ", ".join(map(repr, mappings))
            reason = f"the edge of {source!r} gave {key!r}, which its mappings do not have (they have {known})"
            raise self.make_error(GraphRunnerError, reason, source) from None

    def call_user(
        self, node_id: str, failure_message: str, call: Call, *arguments: Any
    ) -> Generator[Request, Any, Any]:
        """Call a hook, a condition or another function of a node or an edge that is no action."""
        try:
            return (yield Ask(call, *arguments))
        except (Exception, GraphInterrupt) as error:  # only actions can interrupt the run
            reason = f"{failure_message}: {describe_error(error)}"
            raise self.make_error(NodeExecutionError, reason, node_id) from error

    def resolve_goto(self, node_id: str, goto: str) -> str:
        """Return the node that the Command of a node goes to."""
        if not isinstance(goto, str):
            raise self._several_targets_error(f"the Command of {node_id!r} goes", goto, node_id)
        target = self.topology.resolve_target(goto, node_id)
        if target is None:
            reason = f"the Command of {node_id!r} goes to {goto!r}, which is not a node of the graph"
            raise self.make_error(GraphRunnerError, reason, node_id)
        node = self.topology.nodes.get(node_id)
        if node is not None and node.destinations and target not in self._allowed_targets(node):
            known = ", ".join(map(repr, node.destinations))
            raise self.make_error(
                GraphRunnerError,
                f"the Command of {node_id!r} goes to {goto!r}, which is not among its destinations ({known}); "
                f"name it in add_node({node_id!r}, ..., destinations=[...])",
                node_id,
            )
        return target

    def _several_targets_error(self, what: str, targets: Any, source: str) -> GraphRunnerError:
        """Make the error of a goto that is not one node id."""
        reason = (
            f"{what} to {targets!r}, but a goto is one node id. "
            f"To run several nodes at the same time, add several plain edges (a fork), or a map node"
        )
        return self.make_error(GraphRunnerError, reason, source)

    def _allowed_targets(self, node: Node) -> Collection[str]:
        """Return the targets of a node that declares destinations: these, and its edges'."""
        edge = self.topology.edges.get(node.id)
        if isinstance(edge, Condition):
            mapped = {} if edge.mappings is None else edge.mappings
            return (*node.destinations, *mapped.values())
        if not edge:
            return node.destinations
        fork = self.topology.forks.get(edge)
        heads = () if fork is None else fork.heads
        return (*node.destinations, edge, *heads)

    # What callers and nodes see

    def state(self) -> AgentState:
        """Return the state as nodes see it, with the transient keys."""
        data = self.data
        if self.private:
            data = FrozenDict({**data, **self.private})
        return self.schema.state_factory(data)

    def make_error(self, kind: type[GraphRunnerError], reason: str, node_id: str | None = None) -> GraphRunnerError:
        """Make an error that describes this run: its thread, state and path."""
        error = kind(reason)
        self.add_place(error, node_id)
        return error

    def add_place(self, error: GraphRunnerError, node_id: str | None) -> None:
        """Write into an error where this run has failed."""
        error.node_id = node_id
        error.thread_id = self.config.thread_id if self.saver is None else self.config.thread
        state: Any = private_copy(self.data)  # the saver may hold the objects in it
        error.state = state
        error.path = tuple(self.path())
        error.config = self.config

    def path(self) -> list[str]:
        """Return the nodes that have finished."""
        return []

    def attach(
        self,
        held_locks: frozenset[object],  # noqa: ARG002 - for runs
        perform: Callable[[Generator[Request, Any, Any]], None],  # noqa: ARG002 - for runs
        clock: Clock,
    ) -> None:
        """Accept what a driver provides to a run: its locks, its hands, its clock.

        Args:
            held_locks: the keys of the run locks that the driver and the outer runs hold.
            perform: answers the requests of a generator at once, on the calling thread.
            clock: tells the time and makes ids.
        """
        self.clock = clock

    def post_event(self, type: str, level: str, node_id: str | None, **data: Any) -> None:
        """Post an event to the observers, if there are any.

        Hot code checks `post` before it calls this, so that a run without observers pays nothing.
        """
        if self.post is not None:
            self.post(
                type,
                level,
                thread_id=self.config.thread,
                node_id=node_id,
                checkpoint_id=None,
                data=data,
            )

    # What is stored

    def load_base(
        self, requested: RunnableConfig, *, is_outermost: bool = True
    ) -> Generator[Request, Any, tuple[Checkpoint | None, Checkpoint | None]]:
        """Load the checkpoint to go on from; check that the thread is complete.

        Args:
            requested: names the checkpoint, or the history.
            is_outermost: whether no outer run has checked the thread.

        Returns:
            The checkpoint and the latest one of its history; None if there is none.

        Raises:
            CheckpointConflictError: the thread is incomplete.
        """
        assert self.saver is not None
        base = yield Load(self.saver, requested)
        latest = base
        if requested.checkpoint_id is not None:
            latest = yield Load(self.saver, requested.with_check_point_id(None))
        root = None
        if requested.checkpoint_ns and is_outermost:
            root = yield Load(self.saver, requested.replace(checkpoint_id=None, checkpoint_ns=""))
        for checkpoint in (latest, root):
            if checkpoint is not None:
                check_complete(requested.thread, checkpoint.metadata)
        return base, latest

    def move_to_checkpoint(self, base: Checkpoint) -> None:
        """Take over the state of a stored checkpoint, migrated to this version of the graph."""
        other_engine = base.metadata.get(MADE_BY)
        if other_engine is not None:
            raise self.make_error(
                GraphRunnerError,
                f"thread {self.config.thread!r} belongs to {other_engine}: run it there, "
                f"or choose another thread_id here",
            )
        self.data = strip_subgraph_updates(base.state)
        self.changes = Changes(base.state, {})
        version = base.metadata.get(SCHEMA_VERSION, 0)
        migrations = self.options.migrations
        if version > len(migrations):
            raise self.make_error(
                GraphRunnerError,
                f"checkpoint {base.id!r} has schema version {version}, but this graph knows {len(migrations)}: "
                f"run the newer code, or pass all migrations to compile(migrations=...)",
            )
        for migrate in migrations[version:]:
            try:
                self.data = freeze(dict(migrate(dict(self.data))))
            except Exception as error:
                reason = f"the migration of checkpoint {base.id!r} failed: {describe_error(error)}"
                raise self.make_error(GraphRunnerError, reason) from error
            self.changes = None

    def load_writes(self, base: Checkpoint) -> Generator[Request, Any, dict[str, Any]]:
        """Load the pending writes of a checkpoint.

        An update takes over the pending writes of its parent. If the process died before it had
        done so, they are loaded from the parent. Malformed writes are left out: a run can neither
        use them nor record them again.

        Raises:
            CheckpointConflictError: the thread is incomplete: only its release is missing.
        """
        assert self.saver is not None
        writes = dict((yield LoadWrites(self.saver, self.config.replace(checkpoint_id=base.id))))
        check_complete(self.config.thread, writes)
        taken_from = base.metadata.get(WRITES_TAKEN_FROM)
        if not writes and taken_from is not None:
            parent = self.config.replace(checkpoint_id=taken_from)
            writes = dict((yield LoadWrites(self.saver, parent)))
        return dict(well_formed_writes(writes, self.config.thread))

    def inherited_metadata(self, base: Checkpoint) -> dict[str, Any]:
        """Return the metadata that later checkpoints inherit: run_id and the caller's keys."""
        metadata = public_metadata(base.metadata)
        return {key: value for key, value in metadata.items() if key not in PER_CHECKPOINT_KEYS}

    def graph_metadata(self) -> dict[str, Any]:
        """Return the metadata that describe the graph which makes a checkpoint."""
        metadata: dict[str, Any] = {"graph": self.topology.fingerprint}
        version = len(self.options.migrations)
        if version:
            metadata[SCHEMA_VERSION] = version
        return metadata


def checkpoint_not_found(config: RunnableConfig, hint: str = "") -> CheckpointNotFoundError:
    """Make the error of a config that names a missing checkpoint, or a thread without any."""
    checkpoint_id = config.checkpoint_id
    what = "a checkpoint" if checkpoint_id is None else f"checkpoint {checkpoint_id!r}"
    return CheckpointNotFoundError(config.thread, what, hint)


def is_update(value: Any) -> bool:
    """Return whether a value can be merged: a mapping, or a pydantic model."""
    return value.__class__ is dict or isinstance(value, Mapping) or hasattr(value, "model_fields_set")


def _is_collection(target: Any) -> bool:
    """Return whether a condition returned several targets, as other libraries allow."""
    return isinstance(target, (list, tuple, set, frozenset))
