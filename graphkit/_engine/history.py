"""RunHistory: what is stored of a run, and what is recorded with it until the next checkpoint.

The pending writes of the *latest* checkpoint belong to the execution of the next node: the interrupts
that wait there, their answers, updates that came with a resume, finished branches, results of
`once`. They are no longer seen once that node's own checkpoint is appended. So a crash in the middle
of an answered node finds the answer again. Pending writes are recorded at the latest checkpoint
only. A resume of an older checkpoint starts a node execution of its own, on a copy of that
checkpoint, which is appended as soon as there is something to record.

`RunControl` is what others ask of a run, to pause or to end. `RunMetadata` is what the engine adds to
the metadata of each checkpoint. The history also fixes when the timers and deadlines of its interrupts
are due.

The history is also the journal of its nodes: `interrupt()` finds its answers here, and `once` and
`idempotency_key` their results and names. A node calls them on its own thread, while other branches
go on; so the thread of a node may store the run's position, too. The keys of interrupts, answers,
updates and finished tasks are in `graphkit._saver.writes`, because savers list them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Generator, Mapping
from datetime import datetime, timedelta
from math import inf
from typing import Any, Final, final

from graphkit._engine.reporter import RunReporter, make_failure
from graphkit._engine.requests import Clock, Load, LoadWrites, Position, Record, Request, Save, Steps
from graphkit._engine.state import EMPTY, SCHEMA_VERSION, RunState, include_subgraph_updates
from graphkit._plan.compile_config import Program
from graphkit._records.checkpoint import Checkpoint, to_datetime
from graphkit._records.config import END, START, RunnableConfig
from graphkit._records.context import ABSENT, Expired, Journal, NodeContext, StopTerms
from graphkit._records.output import GraphResume, When
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.incomplete import check_complete
from graphkit._saver.status import (
    CANCEL_REQUEST,
    CONTINUED_EXECUTION,
    LOOK_INTERVAL,
    PAUSE_REQUEST,
    RESUMED_AT,
    SLOT_NANOSECONDS,
    WRITES_TAKEN_FROM,
    has_only_requests,
    public_metadata,
    taken_over,
)
from graphkit._saver.writes import (
    ANSWER,
    ASLEEP,
    CANCELLED,
    FAILURE,
    INTERRUPT,
    OUTER_EXECUTION,
    RESUMED,
    RETRIED,
    SUBGRAPH_INTERRUPT,
    SUBGRAPH_TIMER,
    SUBMIT,
    TIMER,
    Submission,
    is_expired,
    stops_in,
    subgraph_interrupts,
    subgraph_namespace,
    subgraph_stops,
    unanswered_stops,
)
from graphkit._values.frozen import FrozenDict, freeze
from graphkit.errors import CheckpointerError, CheckpointNotFoundError, GraphRunnerError, NodeExecutionError

# What other threads and processes ask of a run, to pause or to end as cancelled

_LOG: Final = logging.getLogger("graphkit.engine")
_REST: Final = 20
"""A look that takes long makes the next one later, so that looks take a twentieth of the run's time at most.
A map of 10,000 items records its results where requests are recorded, and a look reads them all."""


class Halt(BaseException):
    """Raised where a run waits for a human, or was asked to pause or to end; the reason is recorded."""


@final
class RunControl:
    """What other threads and processes ask of a run; shared with its nested runs.

    Requests of other processes are in the store, at the run's mailboxes (see
    `graphkit._saver.status`). The run looks for them at node boundaries, at most every
    `LOOK_INTERVAL` seconds.

    Attributes:
        saver: where the outermost run is stored; None if nothing is.
        config: names its history.
        must_check: whether a node boundary has to call `check`. False without a saver, until the run is
            asked to pause: so a run without a saver pays for one attribute at each step.
        next_look: when the run looks into the store again, in seconds of its clock; 0 before `begin`.
        pause_requested: stop at the next node boundary. Only ever set to True, from any thread or
            signal handler.
        granted: the pending writes with which the requests take effect that the run has found: each is withdrawn,
            so that a resume from there does not find it again.
        cancellation: why the run is cancelled, {reason, at}; None if it is not.
        mailboxes: the checkpoints at which requests may have been recorded since the last look.
        noted_error: the error that has a note about the node where it was raised.
    """

    def __init__(self, saver: BaseCheckpointSaver | None, config: RunnableConfig) -> None:
        self.saver = saver
        self.config = config
        self.must_check = saver is not None
        self._measure: Callable[[], float] = lambda: 0.0
        """That of the clock of the run; no time passes before `begin`."""
        self.next_look = 0.0
        self._settled_at = inf
        """When the first look is due. A run that ends before that looks for nothing: who asks it to stop
        waits for longer, and finds that it has ended."""
        self.pause_requested = False
        self._has_left_work = False
        self.granted: dict[str, Any] = {}
        self.cancellation: Mapping[str, Any] | None = None
        self.mailboxes: list[str] = []
        self.noted_error: BaseException | None = None

    def begin(self, clock: Clock) -> None:
        """Note when the first step begins; the steps of nested runs begin later, and change nothing."""
        self._measure = clock.measure
        if self.saver is not None and self.next_look == 0:
            self.next_look = clock.measure() + LOOK_INTERVAL
            self._settled_at = self.next_look

    def request_pause(self) -> None:
        """Ask the run to stop at its next node boundary."""
        self.pause_requested = True
        self.must_check = True

    def check(self) -> Steps:
        """Stop the run if it was asked to.

        Raises:
            Halt: it was.
        """
        if not self.pause_requested and self._measure() >= self.next_look:
            count = yield from self._read_mailboxes()
            # Requests may still be recorded at the newest one.
            del self.mailboxes[: max(0, count - 1)]
        if self.pause_requested:
            self._has_left_work = True
            raise Halt

    def take_left_work(self) -> bool:
        """Return whether a pause has kept a node from running that waits for nothing else; True only once."""
        has_left_work = self._has_left_work
        self._has_left_work = False  # else an outer run would record the pause again
        return has_left_work

    def look(self) -> Steps:
        """Look for requests, if that is due; may be called by the thread of any node."""
        if self._measure() >= self.next_look:
            yield from self._read_mailboxes()

    def look_at_stop(self) -> Steps:
        """Look for requests although the run stops anyway, so that a worker does not resume it."""
        if self._measure() >= self._settled_at:
            yield from self._read_mailboxes()

    def _read_mailboxes(self) -> Generator[Request, Any, int]:
        """Read the mailboxes; return how many of them, from the oldest on."""
        now = self._measure()
        # Before the first request, so that other threads do not read at the same time.
        self.next_look = now + LOOK_INTERVAL
        if self.cancellation is not None:
            return 0
        assert self.saver is not None
        checkpoint_ids = tuple(self.mailboxes)
        for checkpoint_id in checkpoint_ids:
            try:
                writes = yield LoadWrites(self.saver, self.config.with_check_point_id(checkpoint_id))
            except (CheckpointerError, OSError) as error:
                # The run goes on, and looks again. If the store is broken, its next save ends the run.
                _LOG.warning("the run of thread %r cannot see whether it was cancelled: %s", self.config.thread, error)
                return 0
            cancellation = writes.get(CANCEL_REQUEST)
            if isinstance(cancellation, Mapping):
                self.cancellation = cancellation
                self.granted |= {CANCEL_REQUEST: None, CANCELLED: cancellation}
            if writes.get(PAUSE_REQUEST) is not None:
                self.granted[PAUSE_REQUEST] = None
            if self.granted:
                self.request_pause()
        self.next_look = max(self.next_look, self._measure() + _REST * (self._measure() - now))
        return len(checkpoint_ids)


# What is stored

_ONCE: Final = "once:"
"""Prefix: `once:<key of the node execution>:<key>` -> the result of a side effect."""
_PER_CHECKPOINT_KEYS: Final = frozenset(
    {
        "step",
        "source",
        "graph",
        WRITES_TAKEN_FROM,
        CONTINUED_EXECUTION,
        RESUMED_AT,
        SCHEMA_VERSION,
        SUBMIT,
    }
)
"""The metadata keys that describe one checkpoint; the other keys belong to the whole run."""
_OF_ENGINE: Final = _PER_CHECKPOINT_KEYS | {OUTER_EXECUTION, "run_id"}
"""The metadata keys by which a resume decides. A caller's value for one of them would mislead it."""
_RAISED_BY_NODES: Final = frozenset({"inside", "action"})
"""Values of `when` of the interrupts that a node raises; the others are declared stops."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan:
    """How a resume goes on from a stored checkpoint. Nothing of it is stored yet."""

    base: Checkpoint
    next_node_id: str | None
    """The node or fork that is next in this version of the graph; START if the run has not begun."""
    submission: Submission | None
    """What was submitted, if the run has not begun."""
    step: int
    """How many executed nodes count towards the limit."""
    may_stop: bool
    """Whether the declared stops at this position apply."""
    recorded: Mapping[str, Any]
    """The pending writes that the execution of the next node finds."""
    added: Mapping[str, Any]
    """Those that the resume adds."""
    with_private: Mapping[str, Mapping[str, Any]]
    """The updates among these that have transient keys, which are never stored: as they were given."""
    nested: Mapping[str, GraphResume]
    """What the resume brings for nested graphs, by namespace."""


@final
class RunMetadata:
    """The metadata of the checkpoints of one run.

    The steps of a loop have metadata that differ only in the number of the step. A save then copies
    those of the step before and passes both to the saver, which encodes the number alone.

    Attributes:
        common: what every checkpoint of the run has.
        resumed_at: when the run resumed; None once a checkpoint says so, and after a start.
    """

    def __init__(self, program: Program, config: RunnableConfig, run_id: str | None) -> None:
        self.common = EMPTY if run_id is None else FrozenDict({"run_id": run_id})
        self.resumed_at: datetime | None = None
        self._callers = callers_metadata(config)
        self._graph: dict[str, Any] = {"graph": program.topology.fingerprint}
        version = len(program.options.migrations)
        if version:
            self._graph[SCHEMA_VERSION] = version
        self._latest: FrozenDict | None = None
        """Those that were made last, if those of the next step differ only in `step`. A saver that has not stored
        them does not find them at its latest checkpoint, and encodes all of the next ones."""

    @property
    def run_id(self) -> str | None:
        """The id of the run; None before it has begun."""
        return self.common.get("run_id")

    def begin(self, own: Mapping[str, Any], inherited: Mapping[str, Any] = EMPTY) -> None:
        """Decide what every checkpoint of the run has, from its own keys and those of the run before."""
        self.common = freeze({**inherited, **self._callers, **own, **self._graph})

    def mark_unclean(self) -> None:
        """Mark later checkpoints as not clean: an earlier attempt failed and was retried."""
        if self.common.get("clean", True):
            self.common = freeze({**self.common, "clean": False})
            self._latest = None

    def make(self, source: str, step: int, marks: Mapping[str, Any]) -> tuple[FrozenDict, FrozenDict | None]:
        """Return the metadata of the next checkpoint, and those that differ only in `step`, if known."""
        latest = self._latest
        is_plain = source == "loop" and not marks and self.resumed_at is None
        if is_plain and latest is not None and latest["step"] != step:
            metadata = FrozenDict(latest)
            dict.__setitem__(metadata, "step", step)
        else:
            latest = None
            metadata = FrozenDict({**self.common, "step": step, "source": source})
        # A str and an int do not change the kind; finding it out again would cost O(keys).
        metadata.kind = self.common.kind
        for key, value in marks.items():
            metadata._set_frozen(key, value)  # noqa: SLF001
        if self.resumed_at is not None:
            metadata._set_frozen(RESUMED_AT, self.resumed_at.isoformat())  # noqa: SLF001
        self._latest = metadata if is_plain else None
        return metadata, latest

    def note_stored(self, source: str) -> None:
        """Note that the checkpoint with the metadata that were made last is stored."""
        if source != "fork":  # a fork is a copy of the resumed checkpoint: no node has run yet
            self.resumed_at = None


@final
class RunHistory(Journal):
    """The stored history of a run, of a nested run or of an update; the journal of its nodes.

    Attributes:
        program: the graph.
        config: names the history; never a checkpoint.
        requested_config: what the caller gave, which may name a checkpoint.
        saver: where the history is stored; None if nothing is.
        reporter: the counts and reports of the run.
        state: the state of its main line.
        control: what other threads and processes ask of the run.
        position: where the run stands: what a save stores.
        base: the latest stored checkpoint on this run's line.
        is_saved: whether `base` is the run's position.
        is_latest: whether `base` is the latest checkpoint of the thread, so that writes may be
            recorded.
        writes: the pending writes at the run's position.
        writes_from: the id of the checkpoint that `load_writes` has read them from.
        metadata: the metadata of its checkpoints.
        stores_at_exit: whether nothing is stored before the run stops.
        outer: the history of the outer run, if this is a nested run; else None.
        outer_execution: identifies the node of the outer run that this run is.
        is_in_branch: whether an outer run has it in a branch, and records a pause for all branches.
        passable_stops: of a nested run, the ids of its declared stops that a resume passes: those that the
            outer runs have recorded, so that a caller may have seen them; None if there is no outer run.
        stops_in_outer: the keys of the stops of this run that the outer one has recorded.
        held_locks: the keys of the run locks that this run and the outer runs hold.
    """

    clock: Clock
    perform: Callable[[Steps], None]
    """Answers the requests of a generator at once, on any thread; see `attach`."""

    def __init__(
        self,
        program: Program,
        config: RunnableConfig,
        saver: BaseCheckpointSaver | None,
        *,
        outer: RunHistory | None = None,
        outer_state: RunState | None = None,
    ) -> None:
        """Prepare the history of a run; nothing is loaded yet.

        Args:
            program: the graph.
            config: names the thread, and perhaps the checkpoint to go on from.
            saver: stores the history; None: nothing is stored.
            outer: the history of the outer run, if this is that of a nested run.
            outer_state: the state of the outer graph, which may be that of a branch.
        """
        self.program = program
        self.requested_config = config
        self.config: RunnableConfig = config.with_check_point_id(None)
        self.saver = saver
        self.outer = outer
        self.control: RunControl = RunControl(saver, self.config) if outer is None else outer.control
        limit = config.max_iterations or program.options.max_iterations
        self.reporter = RunReporter(self.config, limit, has_saver=saver is not None)
        self.state = RunState(program.topology, self.reporter, outer=outer_state)
        self.stores_at_exit = program.options.durability == "exit"
        self.base: Checkpoint | None = None
        self.is_saved = False
        self.is_latest = True
        self.writes: dict[str, Any] = {}
        self.writes_from = ""
        self._deferred: dict[str, Any] = {}
        """Pending writes that are not recorded yet; see `record_or_defer`."""
        self.metadata: RunMetadata = RunMetadata(program, config, None if outer is None else outer.metadata.run_id)
        self._start_id = ""
        """The id of `base` when the node execution began, or of the execution that it continues."""
        self._start_step = 0
        """The number of executed nodes at `base`."""
        self._slot = -1
        """The slot of time in which the latest checkpoint was made; its first one is a mailbox. -1 until the
        run has stored a checkpoint that is no copy of the one that it resumed: each until then is a mailbox."""
        self.outer_execution = ""
        self.is_in_branch = False
        self.passable_stops: frozenset[str] | None = None
        self.stops_in_outer: list[str] = []
        self.held_locks: frozenset[object] = frozenset()
        self.listener: Callable[[Any], None] | None = None
        """Called with each output that a node dispatches; None if the stream waits for the end of the node."""
        self.mark(START, None)

    def attach(self, held_locks: frozenset[object], perform: Callable[[Steps], None], clock: Clock) -> None:
        """Accept what a driver provides to a run: its locks, its hands, its clock.

        Args:
            held_locks: the keys of the run locks that the driver and the outer runs hold.
            perform: answers the requests of a generator at once, on the calling thread.
            clock: returns the time and new ids.
        """
        self.held_locks = held_locks
        self.perform = perform
        self.clock = clock

    def open_nested(self, node_id: str, state: RunState, key: str) -> RunHistory:
        """Return the history of a nested graph, in a namespace below this one's.

        Args:
            node_id: the node that is a graph.
            state: the state that it starts from; that of a branch is not `self.state`.
            key: the key of the node execution.
        """
        program = self.program.topology.nested[node_id].program
        namespace = subgraph_namespace(self.config.checkpoint_ns, node_id)
        saver = program.find_saver(self.saver)
        config = self.config.replace(checkpoint_ns=namespace)
        nested = RunHistory(program, config, saver, outer=self, outer_state=state)
        nested.outer_execution = f"{self.execution_start()}/{key}"
        nested.is_in_branch = self.is_in_branch or key != ""
        writes = self.writes.copy()  # other branches record, from other threads too
        recorded = frozenset(subgraph_interrupts(writes))
        nested.passable_stops = recorded if self.passable_stops is None else recorded & self.passable_stops
        nested.stops_in_outer = [
            key
            for key, waits_in in writes.items()
            if key.startswith((SUBGRAPH_INTERRUPT, SUBGRAPH_TIMER)) and waits_in == namespace
        ]
        nested.stores_at_exit = self.stores_at_exit
        nested.reporter.limit = self.reporter.limit
        nested.reporter.post = self.reporter.post
        nested.listener = self.listener
        held_locks = self.held_locks
        if saver is not None:
            lock = saver.run_lock_key(nested.config)
            held_locks |= {lock, (lock, namespace)}
        nested.attach(held_locks, self.perform, self.clock)
        return nested

    def is_of_this_execution(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint of a nested graph is of the node execution that this run is."""
        return checkpoint.metadata.get(OUTER_EXECUTION) == self.outer_execution

    def listen(self, listener: Callable[[Any], None]) -> None:
        """Call a function with each output as nodes dispatch it, from the threads of the nodes."""
        self.listener = listener

    def dispatch(self, output: Any) -> bool:
        """Pass an output to the listener; False without one."""
        if self.listener is None:
            return False
        self.listener(output)
        return True

    def now(self) -> datetime:
        """Return the time."""
        return to_datetime(self.clock.now() // 1000)

    def new_id(self) -> str:
        """Return a new id."""
        return self.clock.new_id(self.clock.now() // 1_000_000)

    # Loading

    def load_base(self) -> Generator[Request, Any, Checkpoint | None]:
        """Load the checkpoint to go on from; None if it does not exist.

        Raises:
            CheckpointConflictError: the thread is incomplete.
        """
        assert self.saver is not None
        requested = self.requested_config
        base = yield Load(self.saver, requested)
        latest = base
        if requested.checkpoint_id is not None:
            latest = yield Load(self.saver, self.config)
        root = None
        if requested.checkpoint_ns and self.outer is None:  # else the outer run has checked it
            root = yield Load(self.saver, self.config.replace(checkpoint_ns=""))
        for checkpoint in (latest, root):
            if checkpoint is not None:
                check_complete(requested.thread, checkpoint.metadata)
        # By id: a saver may return another object for the same checkpoint.
        self.is_latest = base is None or (latest is not None and latest.id == base.id)
        if latest is not None and self.outer is None:
            self.control.mailboxes = [latest.id]
        return base  # type: ignore[no-any-return]

    def go_on_from(self, base: Checkpoint) -> None:
        """Let a run go on from a stored checkpoint.

        Raises:
            GraphRunnerError: the checkpoint belongs to a nested graph, and this run has no outer
                run; or its state cannot be taken over.
        """
        if self.outer is None and OUTER_EXECUTION in base.metadata:
            raise self.state.make_error(
                GraphRunnerError,
                f"checkpoint_ns={self.config.checkpoint_ns!r} is the history of a subgraph, which only its outer "
                f"graph runs: leave checkpoint_ns out; a resume passes answers on to the subgraph that waits",
            )
        self.move_to(base)
        self.reporter.post_load(base)

    def move_to(self, base: Checkpoint) -> None:
        """Make a stored checkpoint the base of a run or an update, and its state the state.

        Raises:
            GraphRunnerError: its state cannot be taken over.
        """
        # The base first: an error of the state is reported with the checkpoint that it came from.
        self.base = base
        self.reporter.checkpoint_id = base.id
        self.state.move_to(base, self.program.options.migrations)

    def load_writes(self, base: Checkpoint) -> Generator[Request, Any, dict[str, Any]]:
        """Load the pending writes of a checkpoint.

        An update takes over the pending writes of its parent. If the process died before it had
        done so, they are loaded from where they are; `writes_from` is the id of that checkpoint.

        Raises:
            CheckpointConflictError: the thread is incomplete: only its release is missing.
        """
        assert self.saver is not None
        loaded = yield LoadWrites(self.saver, self.config.with_check_point_id(base.id))
        writes = dict(loaded)
        check_complete(self.config.thread, writes)
        self.writes_from = base.id
        taken_from = base.metadata.get(WRITES_TAKEN_FROM)
        if taken_from is not None and has_only_requests(writes):
            parent = self.config.with_check_point_id(taken_from)
            writes_of_parent = yield LoadWrites(self.saver, parent)
            writes = {**taken_over(writes_of_parent, base), **writes}
            self.writes_from = taken_from
        return writes

    # The position, and the checkpoint that stores it

    def begin(self) -> None:
        """Begin a run that starts from an input."""
        own = {"run_id": self.metadata.run_id or self.new_id()}
        self._start_id = self.outer_execution or own["run_id"]
        if self.outer is not None:
            own[OUTER_EXECUTION] = self.outer_execution
        self.metadata.begin(own)

    def apply(self, plan: ResumePlan) -> None:
        """Move to the position where a resume continues: the checkpoint that `go_on_from` was given."""
        base = plan.base
        self.metadata.resumed_at = self.now()
        # A submitted run begins with this resume; any other resume goes on with a run that has an id.
        run_id = None if plan.submission is None else self.new_id()
        self.inherit(base, plan.step, run_id)
        if not plan.recorded.keys().isdisjoint({FAILURE, RETRIED}):
            self.metadata.mark_unclean()
        self._start_step = plan.step
        if self.is_latest:
            self._start_id = base.metadata.get(CONTINUED_EXECUTION, base.id)
        else:
            self._start_id = self.new_id()
        self.writes = {**plan.recorded, **plan.added}
        self.is_saved = True
        self.mark(base.node_id, plan.next_node_id)

    def inherit(self, base: Checkpoint, step: int, run_id: str | None = None) -> None:
        """Take over the metadata of a checkpoint, with its run id unless there is a new one; count on from `step`."""
        metadata = public_metadata(base.metadata)
        inherited = {key: value for key, value in metadata.items() if key not in _PER_CHECKPOINT_KEYS}
        run_id = run_id or inherited.get("run_id")
        self.metadata.begin({} if run_id is None else {"run_id": run_id}, inherited)
        self.reporter.step = step

    def mark(self, node_id: str, next_node_id: str | None) -> None:
        """Make the state the run's position, to which a failed step returns.

        Args:
            node_id: the node that has just finished.
            next_node_id: the node that is next; None if an answer decides it.
        """
        state = self.state
        updates = state.subgraph_updates
        position = Position()
        position.node_id = node_id
        position.next_node_id = next_node_id
        position.data = state.data
        position.changes = state.changes
        position.step = self.reporter.step
        position.stored = None
        position.subgraph_entries = None if updates is None else updates.entries
        self.position = position

    def move_on(self, node_id: str, next_node_id: str | None) -> None:
        """Mark a new position, which is not stored yet and has no pending writes."""
        self.is_saved = False
        self.mark(node_id, next_node_id)
        if self.writes:
            self.writes = {}
            self._deferred = {}

    def return_to_position(self) -> None:
        """Drop what a failed step has changed."""
        self.reporter.step = self.position.step
        self.state.restore(self.position)

    def save(self, source: str, marks: Mapping[str, Any] = EMPTY) -> Steps:
        """Store the run's position as a checkpoint.

        Args:
            source: the `source` in its metadata.
            marks: further metadata of this checkpoint, frozen; see `execution_mark`.
        """
        assert self.saver is not None
        position = self.position
        data = position.data
        changes = position.changes
        if position.subgraph_entries is not None:
            data, changes = include_subgraph_updates(data, changes, position.subgraph_entries)
        step = position.step
        metadata, metadata_base = self.metadata.make(source, step, marks)
        now = self.clock.now()
        checkpoint = Checkpoint.from_stored(
            id=self.clock.new_id(now // 1_000_000),
            node_id=position.node_id,
            next_node_id=position.next_node_id,
            parent_id=None if self.base is None else self.base.id,
            created_us=now // 1000,
            metadata=metadata,
            state=data,
            changes=changes,
            metadata_base=metadata_base,
        )
        saved = yield Save(self.saver, self.config, checkpoint, position)
        if saved is None:
            return
        slot = now // SLOT_NANOSECONDS
        # As other processes find it in the history, see `find_mailboxes`. After the copy that a resume of an older
        # checkpoint makes (a "fork"), the next checkpoint is a mailbox in any case: it has RESUMED_AT, as the copy.
        if slot != self._slot:
            if source != "fork":
                self._slot = slot
            if self.outer is None:
                self.control.mailboxes.append(saved.id)
        self.metadata.note_stored(source)
        self.base = saved
        self._start_id = marks.get(CONTINUED_EXECUTION, saved.id)
        self._start_step = step
        # While the request was answered, the thread of another branch may have changed the state. The
        # state then counts its changes from this checkpoint only if it knows the difference.
        position.changes = self.state.note_stored(data, position.data)
        self.is_saved = True
        self.is_latest = True
        reporter = self.reporter
        if reporter.post is not None:
            reporter.checkpoint_id = saved.id
            reporter.post_save(saved, source)

    @property
    def is_end_stored(self) -> bool:
        """Whether the latest checkpoint is the end of the run.

        It is not if an answer was merged, or an open edge taken, since.
        """
        changes = self.state.changes
        is_at_end = self.is_saved and self.base is not None and self.base.next_node_id == END
        return is_at_end and changes is not None and not changes.ops

    # Pending writes

    def ensure_stored(self) -> Steps:
        """Make sure that pending writes can be recorded at the run's position."""
        is_stored = self.is_saved and self.is_latest
        if self.saver is not None and not self.stores_at_exit and not is_stored:
            yield from self.record({})

    def record(self, writes: Mapping[str, Any]) -> Steps:
        """Record pending writes at the run's position, which is stored first; without a saver, keep them in memory."""
        if self.saver is not None:
            # Three cases. The run has moved on without a save, because of an interval or of `durability="exit"`:
            # the position becomes a checkpoint. The run has resumed an older checkpoint: pending writes recorded
            # there would be seen by a reader of the older one, so they need a copy that is the latest, and those
            # of the original do not belong to the copy. The base is the latest checkpoint: nothing to do.
            if not self.is_saved:
                yield from self.save("loop", self.execution_mark())
            elif not self.is_latest:
                yield from self.save("fork", self.execution_mark())
                writes = {**self.writes, **writes}
            combined = {**self._deferred, **writes}
            if combined and self.is_saved:  # else the save failed, and the options say to go on
                yield Record(self.saver, self.base_config, combined)
                # Not a new dict: a branch may have deferred more in the meantime, and may just be about to.
                for key in combined:
                    self._deferred.pop(key, None)
        self.writes.update(writes)

    def record_or_defer(self, writes: Mapping[str, Any], *, may_wait: bool = False) -> Steps:
        """Record pending writes, or keep them in memory until the next record, or until the run stops.

        They are dropped if the run moves on before that: its next checkpoint contains what they are for.

        Args:
            writes: the pending writes. With `durability="exit"`, they are recorded only when the run stops.
            may_wait: whether they may also wait otherwise; see the maps in `nodes.py`.
        """
        if may_wait or self.stores_at_exit:
            self.writes.update(writes)
            self._deferred.update(writes)
        else:
            yield from self.record(writes)

    def record_deferred(self) -> Steps:
        """Record the deferred writes now."""
        if self._deferred:
            yield from self.record({})

    def record_interrupt(
        self,
        node_id: str,
        when: When,
        key: str,
        *,
        payload: Any = None,
        metadata: Mapping[str, Any] = EMPTY,
        terms: StopTerms | None = None,
    ) -> Steps:
        """Record that the run waits for a human, or for a time.

        An interrupt that is recorded already, and not answered, keeps its id and creation time.

        Args:
            node_id: the node that raised the interrupt or was declared as a stop.
            when: where the run stops, relative to the node.
            key: the key of the node execution.
            payload: what `interrupt(payload)` was given.
            metadata: what an InterruptableAction returned.
            terms: of a call in a node: its number, and its times.
        """
        is_timer = terms is not None and terms.due is not None
        recorded_writes = self.writes.copy()  # other branches record, from other threads too
        waiting = unanswered_stops(recorded_writes, TIMER if is_timer else INTERRUPT)
        known_id = None
        known: Mapping[str, Any] = EMPTY
        for interrupt_id, recorded in waiting.items():
            if (recorded["node_id"], recorded["when"], recorded.get("key", "")) == (node_id, when, key):
                known_id = interrupt_id
                known = recorded
                break
        interrupt = {
            "node_id": node_id,
            "when": when,
            "payload": payload,
            "metadata": dict(metadata),
            "created_at": known.get("created_at") or self.now(),
        }
        if key:
            interrupt["key"] = key
        if terms is not None:
            interrupt |= self._resolve_terms(terms, key, known)
        if self.saver is not None and self.is_saved and when in _RAISED_BY_NODES:
            # The node may have updated, or released, the thread that it runs in. The interrupt would
            # then be recorded at a checkpoint that no reader looks at.
            latest = yield Load(self.saver, self.config)
            self.is_latest = latest is not None and latest.id == self.base.id  # type: ignore[union-attr]
            if not self.is_latest:
                self.position.stored = None  # the position is stored again
        try:
            frozen = freeze(interrupt)
        except ValueError as error:
            reason = f"the interrupt of {node_id!r} cannot be stored: {error}"
            raise self.state.make_error(NodeExecutionError, reason, node_id) from error
        interrupt_id = known_id or self.new_id()
        if is_timer:
            writes = {TIMER + interrupt_id: frozen}
            if not key:  # on the main line, this is the stop of the run
                writes[ASLEEP] = True
            yield from self.record(writes)
            self.reporter.post_event("timer.set", node_id, {"id": interrupt_id, "due": frozen["due"]})
            return
        yield from self.record({INTERRUPT + interrupt_id: frozen})
        self.reporter.post_event("interrupt.raised", node_id, {"id": interrupt_id, "when": when})

    def _resolve_terms(self, terms: StopTerms, key: str, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a record has of the terms of a call.

        Args:
            terms: the terms.
            key: the key of the node execution.
            known: the record, if the call was recorded before; its times stay as they are.
        """
        resolved: dict[str, Any] = {}
        # Calls are counted, and a record normally belongs to the first call that has no answer. It has a
        # number only if calls before it are not recorded: timers whose time had passed at once.
        if terms.call != len(self.find_answers(key)):
            resolved["call"] = terms.call
        if "call" in known:
            resolved["call"] = known["call"]
        now = self.now()
        for name, moment in (("due", terms.due), ("deadline", terms.deadline)):
            if isinstance(moment, timedelta):
                resolved[name] = known.get(name) or now + moment
            elif moment is not None:
                resolved[name] = moment
        if terms.default is not ABSENT:
            resolved["default"] = terms.default
        if terms.reminders:
            times = [now + each if isinstance(each, timedelta) else each for each in terms.reminders]
            resolved["reminders"] = known.get("reminders") or sorted(times)
        return resolved

    def forget_answered(self) -> Steps:
        """Let the outer histories forget the stops of this nested run for which it no longer waits.

        Such a stop is recorded in both histories. Its answer is recorded in the nested one first, and only
        then does the outer one forget the stop: a crash in between finds it waiting in the outer history and
        answered in the nested one, and a resume goes on.
        """
        outer = self.outer
        # Mostly there are none. The pending writes of the outer run may be many, and other branches of it record.
        if outer is None or not self.stops_in_outer:
            return
        open_ids = {*unanswered_stops(self.writes), *subgraph_stops(self.writes)}
        answered = [key for key in self.stops_in_outer if key.partition(":")[2] not in open_ids]
        if answered:
            forgotten = dict.fromkeys(answered)
            if outer.writes.get(ASLEEP):  # no more: if the process dies now, a worker takes it at once
                forgotten[ASLEEP] = None
            yield from outer.record(forgotten)
            self.stops_in_outer = [key for key in self.stops_in_outer if key not in forgotten]
            yield from outer.forget_answered()

    def record_failure(self, failure: Exception | None, node_id: str | None) -> Steps:
        """Record the deferred writes, and the failure or the cancel that ended the run, if one did."""
        writes = dict(self.control.granted) if self.outer is None else {}
        # An older checkpoint gets no failure: the run that continued from it did not fail.
        if failure is not None and self.is_latest:
            writes[FAILURE] = make_failure(failure, node_id, self.now())
        if writes or self._deferred:
            yield from self.record(writes)

    def record_refused_value(self, error: Exception, next_node_id: str | None) -> Steps:
        """Record that the run failed because a value cannot be stored; the store itself works."""
        base = self.base
        if base is None or not self.is_latest:
            return
        if base.metadata.get("run_id") != self.metadata.run_id:
            return
        assert self.saver is not None
        node_id = next_node_id if self.is_saved else self.position.node_id
        yield Record(self.saver, self.base_config, {FAILURE: make_failure(error, node_id, self.now())})

    @property
    def base_config(self) -> RunnableConfig:
        """Names the latest stored checkpoint on this run's line; no checkpoint without one."""
        return self.config if self.base is None else self.config.with_check_point_id(self.base.id)

    # What depends on how much is stored

    @property
    def stores_every_step(self) -> bool:
        """Whether a checkpoint is stored at every position of this run."""
        program = self.program
        return program.when is None and program.options.checkpoint_interval == 1 and not self.stores_at_exit

    # The journal

    def execution_start(self) -> str:
        """Identify the start of the current node execution: a checkpoint id plus the steps since.

        It is the same when the execution is repeated, although the execution may have made the run
        store its position in the meantime.
        """
        # Steps since the base, because not every step is stored: with checkpoint_interval=3, the two
        # executions after a checkpoint c are "c+1" and "c+2". A crash leads back to c and repeats
        # them under the same names. When something is recorded within "c+2", the run stores its
        # position first, and the metadata of that checkpoint keep "c+2" for a resume.
        steps = self.position.step - self._start_step
        return f"{self._start_id}+{steps}" if steps else self._start_id

    def execution_mark(self) -> Mapping[str, Any]:
        """Return the metadata of a position at which the current node execution has begun."""
        return {CONTINUED_EXECUTION: self.execution_start()}

    def find_answers(self, key: str) -> tuple[Any, ...]:
        """Return the answers to the calls of a node execution that can stop it; see NodeContext.

        They are in the order of the calls, and end before the first call that has no answer yet.

        Raises:
            Halt: that call is a timer that is not due, so the code before it need not run again.
        """
        # A node calls `interrupt()`, which was answered "yes"; then it sleeps, for a time that had passed at once, so
        # that nothing was recorded; then it calls `interrupt()` again, which waits and has the number 2, because the
        # calls before it have one record less. The answers are ("yes", ABSENT), and with its own answer "no" they are
        # ("yes", ABSENT, "no").
        writes = self.writes.copy()  # other branches record, from other threads too
        answers: list[Any] = []
        for stop_id, stop in stops_in(writes).items():
            if stop["when"] != "inside" or stop.get("key", "") != key:
                continue
            call = stop.get("call", len(answers))
            answers += [ABSENT] * (call - len(answers))
            answer = writes.get(ANSWER + stop_id, ABSENT)
            if answer is ABSENT:
                if "due" in stop:
                    raise Halt
                break
            if is_expired(writes.get(RESUMED + stop_id)):
                answer = Expired(stop["deadline"])
            answers[call : call + 1] = [answer]
        return tuple(answers)

    def name_execution(self, context: NodeContext) -> str:
        """Return the unique name of a node execution."""
        config = self.config
        return f"{config.thread}/{config.checkpoint_ns}/{self.execution_start()}/{context.key}/{context.node_id}"

    def idempotency_key(self, context: NodeContext) -> str:
        """Return the unique name of a node execution; it is the same after a crash.

        The items of a map are recorded first, because the name of an item's execution has its index.
        """
        if not self.stores_at_exit:
            self.perform(self.record_deferred())
        return self.name_execution(context)

    def find_result(self, context: NodeContext, key: str) -> tuple[bool, Any]:
        """Return whether `once` has recorded a result under a key, and the result."""
        result = self.writes.get(name_result(context, key), ABSENT)
        return result is not ABSENT, result

    def record_result(self, context: NodeContext, key: str, value: Any) -> Any:
        """Record a result at once, on the thread that the node runs on."""
        try:
            frozen = freeze(value)
        except ValueError as error:
            raise GraphRunnerError(f"the result of once({key!r}) cannot be stored: {error}") from error
        # Not a request of the node's own run: the node has not returned yet. The driver answers it on
        # this thread, and holds the lock under which the run itself stores.
        self.perform(self.record({name_result(context, key): frozen}))
        return frozen

    def is_cancelled(self) -> bool:
        """Return whether the run was asked to end as cancelled; reads the store if that is due."""
        control = self.control
        if control.saver is not None and control.cancellation is None:
            self.perform(control.look())
        return control.cancellation is not None

    def post_event(self, context: NodeContext, type: str, data: dict[str, Any]) -> None:
        """Post an event of a node to the observers of the run."""
        self.reporter.post_event(type, context.node_id or None, data)


def name_result(context: NodeContext, key: str) -> str:
    """Name the pending write with a result of `once`."""
    return f"{_ONCE}{context.key}:{key}"


def callers_metadata(config: RunnableConfig) -> dict[str, Any]:
    """Return the caller's keys of a config that checkpoints have: not those which say something to the engine."""
    return {key: value for key, value in config.metadata.items() if key not in _OF_ENGINE}


def checkpoint_not_found(config: RunnableConfig, hint: str = "") -> CheckpointNotFoundError:
    """Make the error of a config that names a missing checkpoint, or a thread without any."""
    checkpoint_id = config.checkpoint_id
    what = "a checkpoint" if checkpoint_id is None else f"checkpoint {checkpoint_id!r}"
    return CheckpointNotFoundError(config.thread, what, hint)
