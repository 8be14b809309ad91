"""Walk: what a run, a branch and an update of a state share: where they stand, merging, and taking an edge."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, Final

from graphkit._engine.program import Program
from graphkit._engine.requests import Ask, LoadWrites, Request
from graphkit._engine.subgraph_updates import strip_subgraph_updates
from graphkit._engine.update_codec import pack
from graphkit._plan.topology import Call, Condition, Node
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.context import GraphInterrupt, Journal
from graphkit._records.output import Command
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.checkpoint_info import public_metadata
from graphkit._saver.writes import well_formed_writes
from graphkit._values.frozen import FrozenDict, freeze, private_copy
from graphkit._values.state import AgentState, Changes
from graphkit.errors import CheckpointNotFoundError, GraphRunnerError, NodeExecutionError

Steps = Generator[Request, Any, None]
EMPTY: Final = FrozenDict()
WRITES_TAKEN_FROM: Final = "keeps"
"""In the metadata of an update: the id of the checkpoint whose record it took over."""
CONTINUED_EXECUTION: Final = "visit"
"""In the metadata: the name of the visit that goes on here, where it did not begin at this very checkpoint."""
RESUMED_AT: Final = "resumed_at"
"""In the metadata of the first checkpoint after a resume: when the run resumed. Its node ran from then on, and not
since its parent was stored: between the two the run waited, had failed, or was not running at all."""
SCHEMA_VERSION: Final = "schema_version"
"""In the metadata: how many migrations the state has been through; absent for none."""
MADE_BY: Final = "graphkit:made_by"
"""In the metadata of a thread that is another engine's: its name."""
PER_CHECKPOINT_KEYS: Final = frozenset(
    {"step", "source", "graph", WRITES_TAKEN_FROM, CONTINUED_EXECUTION, RESUMED_AT, SCHEMA_VERSION}
)
"""What the metadata of one checkpoint say about it alone; the rest belongs to the whole run."""

Post = Callable[..., None]
"""Tells the observers; see `graphkit._plan.events.Outbox.post`."""


class GraphCursor:
    """Where a run stands in a graph, and how it moves on."""

    def __init__(self, program: Program, config: RunnableConfig, saver: BaseCheckpointSaver | None) -> None:
        self.program = program
        self.topology = program.topology
        self.schema = program.topology.schema
        self.options = program.options
        self.config = config
        self.saver = saver
        self.data = EMPTY
        self.changes: Changes | None = None
        """Against the state of the latest stored checkpoint; None if there is none, or nothing is known."""
        self.transient: frozenset[str] = program.topology.schema.transient
        """The keys that nothing stores or shows: those of the schema, and of the graphs around this one."""
        self.private: FrozenDict = EMPTY
        """What nodes see under them."""
        self.taps: list[Callable[[str, FrozenDict], None]] = []
        """Told of every update that was merged, packed."""
        self.post: Post | None = None
        self.journal: Journal | None = None

    # Merging

    def merge(self, node_id: str, update: Any, whose: str = "") -> None:
        """Merge what a node or an edge returned; `whose` names it in an error, where the id alone does not."""
        if update is None:
            return
        if not is_update(update):
            raise self.failure(
                NodeExecutionError,
                f"{node_id!r} returned {type(update).__name__}: return a mapping of updates, a Command or None",
                node_id,
            )
        try:
            if self.transient:
                update = self.without_private(update)
            data, ops = self.schema.merge(self.data, update)
            packed = pack(self.schema.normalize_update(update, data)) if self.taps else None
        except Exception as error:
            reason = f"the update of {whose or repr(node_id)} cannot be merged: {error}"
            raise self.failure(NodeExecutionError, reason, node_id) from error
        if self.post is not None:
            self.tell("state.merge", "verbose", node_id, keys=list(ops))
        self.move_to(data, ops)
        if packed is not None:
            for tap in self.taps:
                tap(node_id, packed)

    def move_to(self, data: FrozenDict, ops: dict[str, int]) -> None:
        """Take a new state, and note what it changed."""
        self.data = data
        if self.changes is not None and ops:
            self.changes = self.changes.compose(ops)

    def without_private(self, update: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take the transient keys out of an update, into what lives in memory only."""
        if not self.transient:
            return update
        update = self.schema.to_mapping(update)
        private = {key: value for key, value in update.items() if key in self.transient}
        if not private:
            return update
        self.private = self.schema.merge_transient(self.private, private)
        return {key: value for key, value in update.items() if key not in private}

    # Edges

    def follow(self, source: str) -> Generator[Request, Any, str]:
        """Take the outgoing edge of a node; returns the next node's id."""
        edge = self.topology.edges.get(source)
        if edge.__class__ is str:
            return edge
        if edge is None:
            raise self._has_no_edge(source)
        return (yield from self._decide(source, edge))  # type: ignore[arg-type]

    def _has_no_edge(self, source: str) -> GraphRunnerError:
        reason = f"{source!r} has no outgoing edge, and returned no Command with a goto; add_edge({source!r}, ...)"
        return self.failure(GraphRunnerError, reason, source)

    def _decide(self, source: str, edge: Condition) -> Generator[Request, Any, str]:
        for hook in edge.before_hooks:
            self.merge(source, (yield from self._ask_edge(source, hook, source, self.state(), self.config)))
        result = yield from self._ask_edge(source, edge.call, self.state(), self.config)
        for hook in edge.after_hooks:
            result = yield from self._ask_edge(source, hook, source, self.state(), self.config, result)
        if isinstance(result, Command):
            self.merge(source, result.update)
            result = result.goto
        target = result if edge.mappings is None else self._mapped(source, edge.mappings, result)
        found = None
        if isinstance(target, str):
            found = self.topology.resolve_target(target, source)
        elif _is_several(target):
            raise self._several(f"the edge of {source!r} leads", target, source)
        if self.post is not None:
            self.tell("edge.evaluate", "verbose", source, result=repr(result), target=found)
        if found is None:
            raise self.failure(
                GraphRunnerError,
                f"the edge of {source!r} leads to {target!r}, which is not a node of the graph",
                source,
            )
        return found

    def _ask_edge(self, source: str, call: Call, *arguments: Any) -> Generator[Request, Any, Any]:
        return (yield from self.ask(source, f"the edge of {source!r} failed", call, *arguments))

    def ask(self, node_id: str, sorry: str, call: Call, *arguments: Any) -> Generator[Request, Any, Any]:
        """Call what belongs to a node or an edge, and is no action; `sorry` says what it means if that fails."""
        try:
            return (yield Ask(call, *arguments))
        except (Exception, GraphInterrupt) as error:  # only nodes can wait for a human
            raise self.failure(NodeExecutionError, f"{sorry}: {told(error)}", node_id) from error

    def _mapped(self, source: str, mappings: Mapping[Any, str], key: Any) -> str:
        try:
            return mappings[key]
        except (KeyError, TypeError):
            if _is_several(key):
                raise self._several(f"the edge of {source!r} leads", key, source) from None
            known = ", ".join(map(repr, mappings))
            reason = f"the edge of {source!r} gave {key!r}, which its mappings do not have (they have {known})"
            raise self.failure(GraphRunnerError, reason, source) from None

    def checked(self, node_id: str, goto: str) -> str:
        """Where a node's Command goes."""
        if not isinstance(goto, str):
            raise self._several(f"the Command of {node_id!r} goes", goto, node_id)
        target = self.topology.resolve_target(goto, node_id)
        if target is None:
            reason = f"the Command of {node_id!r} goes to {goto!r}, which is not a node of the graph"
            raise self.failure(GraphRunnerError, reason, node_id)
        node = self.topology.nodes.get(node_id)
        if node is not None and node.destinations and target not in self._declared_by(node):
            known = ", ".join(map(repr, node.destinations))
            raise self.failure(
                GraphRunnerError,
                f"the Command of {node_id!r} goes to {goto!r}, which is not among its destinations ({known}); "
                f"name it in add_node({node_id!r}, ..., destinations=[...])",
                node_id,
            )
        return target

    def _several(self, what: str, targets: Any, source: str) -> GraphRunnerError:
        """The error of a goto that is not one node id."""
        reason = (
            f"{what} to {targets!r}: that is one node id. To run several nodes at the same time, add several plain "
            f"edges (a fork), or a map node"
        )
        return self.failure(GraphRunnerError, reason, source)

    def _declared_by(self, node: Node) -> Collection[str]:
        """Where a node that declares destinations may go: there, and where its edges lead."""
        edge = self.topology.edges.get(node.id)
        if isinstance(edge, Condition):
            return (*node.destinations, *(edge.mappings or {}).values())
        fork = self.topology.forks.get(edge or "")
        heads = () if fork is None else fork.heads
        return (*node.destinations, edge, *heads) if edge else node.destinations

    # What callers and nodes see

    def state(self) -> AgentState:
        """The state as nodes see it, the transient keys included."""
        return self.schema.state_factory(FrozenDict({**self.data, **self.private}) if self.private else self.data)

    def failure(self, kind: type[GraphRunnerError], reason: str, node_id: str | None = None) -> GraphRunnerError:
        """An error of this run."""
        thread_id = self.config.thread_id if self.saver is None else self.config.thread
        state: Any = private_copy(self.data)  # the saver may hold the objects in it
        return kind(reason, node_id=node_id, thread_id=thread_id, state=state, path=self.path(), config=self.config)

    def path(self) -> list[str]:
        """The nodes that were finished."""
        return []

    def attach(
        self,
        held: frozenset[object],
        perform: Callable[[Generator[Request, Any, Any]], None],
        clock: Callable[[], float],
    ) -> None:
        """Take what a driver has for those that run nodes: the locks it holds, its hands, and its clock in seconds."""

    def tell(self, type: str, level: str, node_id: str | None, **data: Any) -> None:
        """Tell the observers, if there are any; asked for where it matters, so that a run without them pays nothing."""
        if self.post is not None:
            self.post(type, level, thread_id=self.config.thread, node_id=node_id, checkpoint_id=None, data=data)

    # What is stored

    def move_to_checkpoint(self, base: Checkpoint) -> None:
        """Stand where a stored checkpoint stands, in the shape that this version of the graph knows."""
        other = base.metadata.get(MADE_BY)
        if other is not None:
            raise self.failure(
                GraphRunnerError,
                f"thread {self.config.thread!r} belongs to {other}: run it there, or choose another thread_id here",
            )
        self.data, self.changes = strip_subgraph_updates(base.state), Changes(base.state, {})
        version = base.metadata.get(SCHEMA_VERSION, 0)
        migrations = self.options.migrations
        if version > len(migrations):
            raise self.failure(
                GraphRunnerError,
                f"checkpoint {base.id!r} is of schema version {version}, and this graph knows {len(migrations)}: "
                f"run the newer code, or give compile(migrations=...) what it had",
            )
        for migrate in migrations[version:]:
            try:
                self.data = freeze(dict(migrate(dict(self.data))))
            except Exception as error:
                reason = f"the migration of checkpoint {base.id!r} failed: {told(error)}"
                raise self.failure(GraphRunnerError, reason) from error
            self.changes = None

    def load_writes(self, base: Checkpoint) -> Generator[Request, Any, dict[str, Any]]:
        """What is recorded beside a checkpoint; also if the process died before an update had taken it over.

        Without what is malformed, which a run can neither use nor record again.
        """
        assert self.saver is not None
        recorded = dict((yield LoadWrites(self.saver, self.config.replace(checkpoint_id=base.id))))
        kept = base.metadata.get(WRITES_TAKEN_FROM)
        if not recorded and kept is not None:
            recorded = dict((yield LoadWrites(self.saver, self.config.replace(checkpoint_id=kept))))
        return dict(well_formed_writes(recorded, self.config.thread))

    def carried(self, base: Checkpoint) -> dict[str, Any]:
        """The metadata that a run's next checkpoints share with this one: its run_id, and the caller's keys."""
        metadata = public_metadata(base.metadata)
        return {key: value for key, value in metadata.items() if key not in PER_CHECKPOINT_KEYS}

    def stamp(self) -> dict[str, Any]:
        """What every checkpoint says of the graph that made it."""
        version = len(self.options.migrations)
        return {"graph": self.topology.fingerprint, **({SCHEMA_VERSION: version} if version else {})}


def checkpoint_not_found(config: RunnableConfig, hint: str = "") -> CheckpointNotFoundError:
    """The error of a config that names a checkpoint which there is not, or a thread without any."""
    wanted = config.checkpoint_id
    return CheckpointNotFoundError(config.thread, "a checkpoint" if wanted is None else f"checkpoint {wanted!r}", hint)


def is_update(value: Any) -> bool:
    """Whether it can be merged: a mapping, or a pydantic model."""
    return value.__class__ is dict or isinstance(value, Mapping) or hasattr(value, "model_fields_set")


def _is_several(target: Any) -> bool:
    """Whether a condition named several places, as it may elsewhere."""
    return isinstance(target, (list, tuple, set, frozenset))


def told(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
