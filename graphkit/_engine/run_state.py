"""RunState: everything that a run keeps between two steps, and how it is stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Any, Final, Self

from graphkit._engine import journal, subgraph
from graphkit._engine.cursor import CONTINUED_EXECUTION, EMPTY, RESUMED_AT, Steps
from graphkit._engine.fork import execute_fork
from graphkit._engine.journal import RunJournal
from graphkit._engine.map import MapExecution
from graphkit._engine.node_runner import NodeRunner
from graphkit._engine.position import Position
from graphkit._engine.program import Program
from graphkit._engine.requests import Clock, Load, Record, Request, Save
from graphkit._engine.run_control import RunControl
from graphkit._engine.run_events import RunEvents
from graphkit._engine.subgraph_updates import SubgraphUpdates
from graphkit._plan.topology import Fork, Node
from graphkit._records.checkpoint import Checkpoint, to_datetime
from graphkit._records.config import START, RunnableConfig
from graphkit._records.output import GraphResume, InterruptionMetadata, When
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import (
    INTERRUPT,
    subgraph_namespace,
    unanswered_interrupts,
)
from graphkit._values.frozen import FrozenDict, freeze
from graphkit._values.state import Changes
from graphkit.errors import MaxIterationsError, NodeExecutionError

_PATH_LENGTH: Final = 100
_RAISED_BY_NODES: Final = frozenset({"inside", "action"})
"""Values of `when` of the interrupts that a node raises; the others are declared stops."""


class RunState(NodeRunner, ABC):
    """A run: implements `RunContext` for its node runners."""

    position: Position
    perform: Callable[[Steps], None]
    """Answers the requests of a generator at once, on any thread; see `attach`."""

    def __init__(  # noqa: PLR0915 - a list of fields
        self,
        program: Program,
        config: RunnableConfig,
        run_input: Any,
        *,
        saver: BaseCheckpointSaver | None = None,
    ) -> None:
        config_of_latest = config.replace(checkpoint_id=None)
        super().__init__(program, config_of_latest, saver or program.options.saver)
        self.run = self
        self.run_input = run_input
        """The input, a GraphResume, or the state of the outer graph."""
        self.requested_config = config
        """The config of the caller, which may name a checkpoint; `config` never does."""
        options = program.options
        self.limit = config.max_iterations or options.max_iterations
        self.stores_at_exit = options.durability == "exit"
        """Whether nothing is stored before the run stops."""

        # The position
        self.node_id: str = START
        """The node that has just finished."""
        self.next_node_id: str | None = None
        self.step = 0
        """How many nodes were executed."""
        self.may_stop = True
        """Whether declared stops apply at this position: not at the one that was resumed."""
        self.must_emit = True
        """Whether the current position still has to be emitted; False right after a resume."""

        # What is stored
        self.base: Checkpoint | None = None
        """The latest stored checkpoint on this run's line."""
        self.loop_metadata: FrozenDict | None = None
        """The metadata of `base`, if those of the next step differ from it only in `step`."""
        self.is_saved = False
        """Whether `base` is the run's position."""
        self.is_latest = True
        """Whether `base` is the latest checkpoint of the thread, so that writes may be recorded."""
        self.writes: dict[str, Any] = {}
        """The pending writes at the run's position."""
        self.deferred_writes: dict[str, Any] = {}
        """Pending writes that are not recorded yet; see `defer`."""
        self.metadata = EMPTY
        """The metadata that every checkpoint of this run has."""
        self.resumed_at: datetime | None = None
        """When this run resumed; None once a checkpoint says so, and after a start."""

        # The node execution on the main line; see `execution_start`
        self.start_id = ""
        """The id of `base` when the execution began, or of the execution that it continues."""
        self.start_step = 0
        """The value of `step` at `base`."""

        # The outer run and nested runs
        self.outer_execution: str | None = None
        """Identifies the node of the outer run that this run is; None if there is no outer run."""
        self.subgraph_updates: SubgraphUpdates | None = None
        """Of a nested run: what it passes to the outer graph."""
        self.nested_interrupts: list[InterruptionMetadata] = []
        """The interrupts of nested runs, as these emitted them."""
        self.resumes_by_namespace: dict[str, GraphResume] = {}
        """What a resume contains for nested graphs."""

        # Outputs, events and control
        self.finished_nodes: list[str] = []
        self.events = RunEvents(self)
        self.step_updates: list[tuple[str, FrozenDict]] | None = None
        """The updates since the last output; None unless the caller wants to see them."""
        self.journal: RunJournal = RunJournal(self)
        self.control = RunControl()
        self.held_locks: frozenset[object] = frozenset()
        """The keys of the run locks that this run and the outer runs hold."""
        self.mark_position()

    @abstractmethod
    def steps(self) -> Steps:
        """Run from `run_input` to the end or a stop."""

    @abstractmethod
    def accept_resume(self, resume: GraphResume) -> Generator[Request, Any, dict[str, Any]]:
        """Move to the position where a resume continues."""

    def path(self) -> list[str]:
        """Return the last nodes that have finished, 100 at most."""
        return self.finished_nodes[-_PATH_LENGTH:]

    def attach(
        self,
        held_locks: frozenset[object],
        perform: Callable[[Steps], None],
        clock: Clock,
    ) -> None:
        """Accept what a driver provides; see `GraphCursor.attach`."""
        self.held_locks = held_locks
        self.perform = perform
        self.clock = clock

    @property
    def is_pausing(self) -> bool:
        """Whether the run was asked to stop at the next node boundary."""
        return self.control.pause_requested

    # The number of nodes

    def check_limit(self, node_id: str) -> None:
        """Check that one more node may be executed.

        Raises:
            MaxIterationsError: the run has executed as many nodes as it may.
        """
        if self.step >= self.limit:
            thread = self.config.thread
            error = self.make_error(
                MaxIterationsError,
                f"the run of thread {thread!r} has reached its max_iterations, {self.limit}, and would go on with "
                f"{node_id!r}: resume it with a higher limit, or send new input, which starts a new count",
                node_id,
            )
            error.thread_id = thread
            raise error

    def count_execution(self, node_id: str) -> None:
        """Count one more executed node.

        Raises:
            MaxIterationsError: the run has executed as many nodes as it may.
        """
        if self.step >= self.limit:
            self.check_limit(node_id)
        self.step += 1

    # The position, and the checkpoint that stores it

    @property
    def stores_every_step(self) -> bool:
        """Whether a checkpoint is stored at every position of this run."""
        options = self.options
        return self.program.when is None and options.checkpoint_interval == 1 and not self.stores_at_exit

    def stores_directly_after(self, node: Node) -> bool:
        """Return whether the updates of a node are stored as soon as they are merged."""
        has_fixed_edge = isinstance(self.topology.edges.get(node.id), str)
        return self.stores_every_step and has_fixed_edge and not node.after_hooks

    def mark_position(self) -> None:
        """Make the current state the run's position, to which a failed step returns."""
        updates = self.subgraph_updates
        position = Position()
        position.node_id = self.node_id
        position.next_node_id = self.next_node_id
        position.data = self.data
        position.changes = self.changes
        position.step = self.step
        position.subgraph_entries = None if updates is None else updates.entries
        self.position = position

    def save(self, source: str, continued: str | None = None) -> Steps:
        """Store the run's position as a checkpoint.

        Args:
            source: the `source` in its metadata.
            continued: identifies the node execution that has begun at this position, if one has.
        """
        assert self.saver is not None
        position = self.position
        data = position.data
        changes = position.changes
        if self.subgraph_updates is not None:
            assert position.subgraph_entries is not None
            data, changes = self.subgraph_updates.include_in(data, changes, position.subgraph_entries)
        step = position.step
        is_loop = source == "loop" and continued is None and self.resumed_at is None
        earlier = self.loop_metadata
        if is_loop and earlier is not None and step != self.start_step:
            metadata = _with_step(earlier, step)
        else:
            earlier = None
            metadata = self._checkpoint_metadata(source, step, continued)
        now = self.clock.now()
        # By position: a run does this at every step, and keywords would take as long again.
        checkpoint = Checkpoint._create(  # noqa: SLF001 - the engine's own way to make a checkpoint
            self.clock.new_id(now // 1_000_000),
            position.node_id,
            position.next_node_id,
            None if self.base is None else self.base.id,
            now // 1000,
            metadata,
            data,
            changes,
            earlier,
        )
        saved = yield Save(self.saver, self.config, checkpoint)
        if saved is None:
            return
        if source != "fork":  # a fork is a copy of the resumed checkpoint: no node has run yet
            self.resumed_at = None
        self.base = saved
        self.loop_metadata = metadata if is_loop else None
        self.start_id = continued or saved.id
        self.start_step = step
        unchanged = Changes(data, {})
        if self.data is position.data:
            self.changes = unchanged
        elif self.changes is None or self.changes.base is not data:
            self.changes = None  # the run is ahead of the checkpoint, by an unknown difference
        position.changes = unchanged
        self.is_saved = True
        self.is_latest = True
        if self.post is not None:
            self.events.post_save(saved, source)

    def mark_unclean(self) -> None:
        """Mark later checkpoints as not clean: an earlier attempt failed and was retried."""
        if self.metadata.get("clean", True):
            self.metadata = freeze({**self.metadata, "clean": False})
            self.loop_metadata = None

    def _run_metadata(self, own: Mapping[str, Any], inherited: Mapping[str, Any]) -> FrozenDict:
        """Combine the metadata that every checkpoint of this run has."""
        metadata: FrozenDict = freeze({**inherited, **self.config.metadata, **own, **self.graph_metadata()})
        return metadata

    def _checkpoint_metadata(self, source: str, step: int, continued: str | None) -> FrozenDict:
        metadata = FrozenDict({**self.metadata, "step": step, "source": source})
        # A str and an int do not change the kind; finding it out again would cost O(keys).
        metadata.kind = self.metadata.kind
        if continued is not None:
            metadata._set_frozen(CONTINUED_EXECUTION, continued)  # noqa: SLF001
        if self.resumed_at is not None:
            metadata._set_frozen(RESUMED_AT, self.resumed_at.isoformat())  # noqa: SLF001
        return metadata

    # Pending writes

    def ensure_stored(self) -> Steps:
        """Make sure that pending writes can be recorded at the run's position."""
        if self.saver is None or self.stores_at_exit:
            return
        is_copy = yield from self._store_position()
        if is_copy and self.writes:
            yield Record(self.saver, self._base_config(), self.writes)

    def _store_position(self) -> Generator[Request, Any, bool]:
        """Store the run's position as the latest checkpoint, unless it is that already.

        Returns:
            Whether a copy of an older checkpoint was stored. The pending writes of the original do
            not belong to the copy.
        """
        is_copy = self.is_saved and not self.is_latest
        if is_copy:
            yield from self.save("fork", self.execution_start())
        elif not self.is_saved:
            yield from self.save("loop", self.execution_start())
        return is_copy

    def record(self, writes: Mapping[str, Any]) -> Steps:
        """Record pending writes at the run's position; without a saver, keep them in memory."""
        if self.saver is not None:
            is_copy = yield from self._store_position()
            if is_copy:
                writes = {**self.writes, **writes}
            if self.is_saved:
                combined = {**self.deferred_writes, **writes}
                yield Record(self.saver, self._base_config(), combined)
                # A branch may have deferred more in the meantime.
                self.deferred_writes = {
                    key: value for key, value in self.deferred_writes.items() if key not in combined
                }
        self.writes.update(writes)

    def record_or_defer(self, writes: Mapping[str, Any]) -> Steps:
        """Record pending writes; with `durability="exit"`, only when the run stops."""
        if self.stores_at_exit:
            self.defer(writes)
        else:
            yield from self.record(writes)

    def defer(self, writes: Mapping[str, Any]) -> None:
        """Keep pending writes in memory until the next record, or until the run stops.

        They are dropped if the run's position is stored before that.
        """
        self.writes.update(writes)
        self.deferred_writes.update(writes)

    def record_deferred(self) -> Steps:
        """Record the deferred writes now, unless they have to wait until the run stops."""
        if self.deferred_writes and not self.stores_at_exit:
            yield from self.record({})

    def _base_config(self) -> RunnableConfig:
        """Return the config of `base`."""
        assert self.base is not None
        return self.config.replace(checkpoint_id=self.base.id)

    def record_interrupt(
        self,
        node_id: str,
        when: When,
        key: str,
        *,
        payload: Any = None,
        metadata: Mapping[str, Any] = EMPTY,
    ) -> Steps:
        """Record that the run waits for a human.

        An interrupt that is recorded already, and not answered, keeps its id and creation time.

        Args:
            node_id: the node that raised the interrupt or was declared as a stop.
            when: where the run stops, relative to the node.
            key: the key of the node execution.
            payload: what `interrupt(payload)` was given.
            metadata: what an InterruptableAction returned.
        """
        waiting = unanswered_interrupts(self.writes)
        known_id = _find_interrupt(waiting, node_id, when, key)
        now = self.clock.now()
        created_at = to_datetime(now // 1000)
        if known_id is not None:
            created_at = waiting[known_id]["created_at"]
        interrupt = {
            "node_id": node_id,
            "when": when,
            "payload": payload,
            "metadata": dict(metadata),
            "created_at": created_at,
        }
        if key:
            interrupt["key"] = key
        if self.saver is not None and self.is_saved and when in _RAISED_BY_NODES:
            # The node may have updated, or released, the thread that it runs in.
            latest = yield Load(self.saver, self.config)
            self.is_latest = latest is not None and latest.id == self.base.id  # type: ignore[union-attr]
        try:
            frozen = freeze(interrupt)
        except ValueError as error:
            reason = f"the interrupt of {node_id!r} cannot be stored: {error}"
            raise self.make_error(NodeExecutionError, reason, node_id) from error
        interrupt_id = known_id or self.clock.new_id(now // 1_000_000)
        yield from self.record({INTERRUPT + interrupt_id: frozen})
        self.post_event("interrupt.raised", "info", node_id, id=interrupt_id, when=when)

    def find_answers(self, key: str) -> tuple[Any, ...]:
        """Return the answers to the `interrupt()` calls of a node execution."""
        # A copy, because other branches record writes, from other threads too.
        return journal.find_answers(self.writes.copy(), key)

    # The node execution on the main line

    def execution_start(self) -> str:
        """Identify the start of the current node execution: a checkpoint id plus the steps since.

        It is the same when the execution is repeated, although the execution may have made the run
        store its position in the meantime.
        """
        steps = self.position.step - self.start_step
        return f"{self.start_id}+{steps}" if steps else self.start_id

    def idempotency_key(self, key: str, node_id: str) -> str:
        """Return the unique name of a node execution; it is the same after a crash."""
        config = self.config
        return f"{config.thread}/{config.checkpoint_ns}/{self.execution_start()}/{key}/{node_id}"

    # Forks, maps and nested graphs

    def execute_fork(self, runner: NodeRunner, fork: Fork, key: str) -> Steps:
        """Run the branches of a fork."""
        return execute_fork(runner, fork, key)

    def execute_map(self, runner: NodeRunner, node: Node, key: str) -> Steps:
        """Run a node once for each item."""
        return MapExecution(runner, node, key).steps()

    def execute_subgraph(self, runner: NodeRunner, node: Node, key: str) -> Steps:
        """Run a nested graph."""
        yield from self.ensure_stored()  # the nested run refers to the start of this execution
        nested = self._make_nested_run(runner, node, key)
        yield from subgraph.execute(runner, node.id, nested)

    def _make_nested_run(self, runner: NodeRunner, node: Node, key: str) -> Self:
        """Make the run of a nested graph.

        Args:
            runner: the node runner that has reached the node; a branch has a state of its own.
            node: the node that is a graph.
            key: the key of the node execution.
        """
        program = subgraph.program_of(node)
        namespace = subgraph_namespace(self.config.checkpoint_ns, node.id)
        config = self.config.replace(checkpoint_ns=namespace)
        saver = None
        if program.options.checkpoint_interval:
            saver = program.options.checkpoint_saver or self.saver
        nested = type(self)(program, config, None, saver=saver)
        nested._enter_outer_run(self, runner, key)  # noqa: SLF001 - of its own class
        return nested

    def _enter_outer_run(self, outer: RunState, runner: NodeRunner, key: str) -> None:
        """Take from the outer run what a nested run shares with it, or receives from it."""
        self.outer_execution = f"{outer.execution_start()}/{key}"
        self.limit = outer.limit
        self.stores_at_exit = outer.stores_at_exit
        self.control = outer.control
        self.perform = outer.perform
        self.clock = outer.clock
        self.post = outer.post
        self.executor = runner.executor
        if "run_id" in outer.metadata:
            self.metadata = FrozenDict({"run_id": outer.metadata["run_id"]})
        self.transient |= runner.transient
        self.private = runner.private
        self.subgraph_updates = SubgraphUpdates(runner.schema.channels)
        self.update_listeners.append(self.subgraph_updates.add)
        self.held_locks = outer.held_locks
        if self.saver is not None:
            lock = self.saver.run_lock_key(self.config)
            self.held_locks |= {lock, (lock, self.config.checkpoint_ns)}

    # Events

    def post_event(self, type: str, level: str, node_id: str | None, **data: Any) -> None:
        """Post an event to the observers, if there are any."""
        if self.post is not None:
            checkpoint_id = None if self.base is None else self.base.id
            self.post(
                type,
                level,
                thread_id=self.config.thread,
                node_id=node_id,
                checkpoint_id=checkpoint_id,
                data=data,
            )


def _with_step(earlier: FrozenDict, step: int) -> FrozenDict:
    """Return metadata with another number of the step."""
    metadata = FrozenDict(earlier)
    metadata.kind = earlier.kind  # as in `_checkpoint_metadata`
    dict.__setitem__(metadata, "step", step)
    return metadata


def _find_interrupt(interrupts: Mapping[str, Mapping[str, Any]], node_id: str, when: When, key: str) -> str | None:
    """Find the id of an interrupt of a node execution; None if there is none."""
    wanted = (node_id, when, key)
    for interrupt_id, interrupt in interrupts.items():
        if (interrupt["node_id"], interrupt["when"], interrupt.get("key", "")) == wanted:
            return interrupt_id
    return None
