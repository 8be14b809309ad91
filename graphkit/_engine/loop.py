"""The loop: how a graph runs. A generator that asks for everything and does no I/O itself.

Theory of operation
-------------------
A run walks from node to node. `Run.steps()` yields requests (`requests.py`): run this node, evaluate this edge, load,
save, record, emit. A driver (`drive.py`) answers each by sending the result or throwing the error, synchronously or
not; the loop cannot tell.

One step: node -> merge its update -> evaluate the outgoing edge -> merge the edge's update -> save (node, next) ->
emit. Nothing of a step is stored before all of it is known, so a node that fails leaves no trace and a resume runs it
again, and a node whose checkpoint is stored never runs again: the next node is stored with it. How one node is visited
is in `strand.py`; a fork is a visit made of branches, which are strands of their own and report to this run.

Where the run stands is `self.at` (the node just finished), `self.next`, and `self.stand` (the state there; `data` runs
ahead of it within a step). What is recorded beside the *latest* checkpoint belongs to the visit of the node that comes
next: the stops that wait there, the answers to them, updates that came with a resume, finished branches, results of
`once`. They disappear from sight when that node's own checkpoint is appended. So a crash in the middle of an answered
node finds the answer again. Writes are put beside the latest checkpoint only: a resume from an older one starts a visit
of its own, on a copy of that checkpoint that is appended once there is something to record.

A declared stop is recorded after its checkpoint. If the process dies in between, the resume finds a checkpoint of the
loop's own without the record and stops then: an approval cannot be lost to a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, final

from graphkit._abc import (
    ANSWER,
    FAILURE,
    INNER,
    INTERRUPT,
    UPDATE,
    WITHIN,
    BaseCheckpointSaver,
    inner_stops,
    unanswered,
)
from graphkit._checkpoint import Checkpoint, new_id
from graphkit._config import END, START, RunnableConfig, StreamMode
from graphkit._engine import embedded
from graphkit._engine.contribution import EXTRA, Contribution, visible
from graphkit._engine.journal import RunJournal, answers_of, failure_of
from graphkit._engine.packed import unpack
from graphkit._engine.program import Program
from graphkit._engine.requests import Discard, Emit, Finish, Load, Record, Release, Request, Save
from graphkit._engine.strand import Halt, Strand
from graphkit._engine.walk import EMPTY, KEEPS, VISIT, Steps, told
from graphkit._frozen import FrozenDict, FrozenList, freeze
from graphkit._output import GraphResume, InterruptionMetadata, NodeOutput, StateSnapshot, When
from graphkit._state import Changes
from graphkit._topology import Node
from graphkit.errors import (
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    GraphRunnerError,
    MaxIterationsError,
    NodeExecutionError,
)
from graphkit.when import Step

_PATH_LENGTH: Final = 100
_OF_NODES: Final = frozenset({"inside", "action"})
OWN_SOURCES: Final = frozenset({"input", "loop"})
"""Values of the metadata's `source` at which a resume still owes the declared stops; update, fork and answer do not."""


Stand = tuple[str, str | None, FrozenDict, Changes | None, int, FrozenList | None]
"""Where a run stands, whatever has been tried since: at, next, data, changes, step, and an embedded graph's entries."""


class Control:
    """What others may ask of a run; shared with the graphs embedded in it."""

    __slots__ = ("pausing",)

    def __init__(self) -> None:
        self.pausing = False
        """Stop at the next node boundary. Only ever set to true, from any thread or a signal handler."""


@final
class Run(Strand):
    """One run of a graph; `steps()` is the loop."""

    def __init__(
        self, program: Program, config: RunnableConfig, given: Any, *, saver: BaseCheckpointSaver | None = None
    ) -> None:
        super().__init__(program, config.replace(checkpoint_id=None), saver or program.options.saver)
        self.run = self
        self.given = given
        self.asked_for = config
        options = program.options
        self.limit = config.max_iterations or options.max_iterations
        self.exits = options.durability == "exit"
        """Nothing is stored before the run stands still."""
        self.at: str = START
        self.next: str | None = None
        self.base: Checkpoint | None = None
        """The latest stored checkpoint of this run's line."""
        self.is_saved = False
        """Whether `base` is where the run stands."""
        self.is_latest = True
        """Whether `base` is the latest of the thread, so that writes may be put beside it."""
        self.writes: dict[str, Any] = {}
        """What is recorded beside where the run stands."""
        self.unrecorded: dict[str, Any] = {}
        """What is to be, once the run stands still; see `exits`."""
        self.step = 0
        """How many nodes were executed."""
        self.began = ""
        """Names the visit that began at `base`; see `root`."""
        self.passed = 0
        """How many of the nodes were executed before that."""
        self.metadata = EMPTY
        self.finished: list[str] = []
        self.may_stop = True
        """Whether the declared stops hold where the run stands: not for the step that a resume was asked for."""
        self.has_arrived = True
        """Whether where the run stands is news to the caller: not after a resume."""
        self.stand: Stand = (START, None, EMPTY, None, 0, None)
        self.control = Control()
        self.journal: RunJournal = RunJournal(self)
        self.contribution: Contribution | None = None
        self.within: str | None = None
        """The visit that this run is, in the run around it; None if there is none."""
        self.inner: list[InterruptionMetadata] = []
        """What waits in embedded graphs, as they handed it out."""
        self.for_children: dict[str, GraphResume] = {}
        """What a resume brought for embedded graphs, by namespace."""
        self.updates: list[tuple[str, FrozenDict]] | None = None
        """What was merged since the last output, if the caller is to see it."""
        self.visits: Counter[str] = Counter()
        # Set by the driver.
        self.held: frozenset[object] = frozenset()
        """The run locks that the run holds."""
        self.perform: Callable[[Steps], None]
        """Answers requests at once, from any thread."""
        self.clock: Callable[[], float]
        """Seconds."""

    def path(self) -> list[str]:
        return self.finished[-_PATH_LENGTH:]

    def attach(self, held: frozenset[object], perform: Callable[[Steps], None], clock: Callable[[], float]) -> None:
        self.held, self.perform, self.clock = held, perform, clock

    @property
    def pausing(self) -> bool:
        """Whether somebody asked the run to stop at the next node boundary."""
        return self.control.pausing

    # The loop

    def steps(self) -> Steps:
        """Run, from the input or the stored checkpoint, to the end or a stop."""
        if self.transient:
            self.private = self.schema.merge_private(self.private, {})  # the defaults
        self.updates = self._updates_of_steps()
        if isinstance(self.given, GraphResume):
            yield from self._resume(self.given)
        else:
            yield from self._start(self.given)
        self.tell("graph.start", "info", self.next, run_id=self.metadata.get("run_id"), step=self.step)
        try:
            yield from self._walk()
        except Halt:
            yield from self._hand_out_stops()
        except CheckpointerError as error:
            if isinstance(error, CheckpointSerializationError):
                yield from self._refused(error)
            self.tell("graph.fail", "error", self.next, error=told(error))
            raise
        except BaseException as error:
            yield from self._fail(error)
            raise

    def _walk(self) -> Steps:
        nodes, edges, options = self.topology.nodes, self.topology.edges, self.options
        saver, before, after = self.saver, self.program.before, self.program.after
        snapshots = saver is not None and self.config.stream_mode is StreamMode.SNAPSHOTS
        updates = self.updates
        stops = bool(before or after)
        state_of = self.schema.state_of
        control = self.control
        measures = self.program.when is not None
        while True:
            stop = self._declared_stop() if stops and self.may_stop else None
            if stop is not None:
                yield from self.record_stop(*stop)
            if self.has_arrived:
                if self.dispatched:
                    yield from self.hand_out(self.dispatched)
                is_new = snapshots and self.is_saved
                output = self._snapshot() if is_new else NodeOutput(self.at, state_of(self.data))
                if updates is not None:
                    output.update = self._update_of_step(updates)
                yield Emit(output)
            if stop is not None:
                raise Halt
            self.may_stop = self.has_arrived = True
            place = self.next
            if place == END:
                yield from self._end()
                yield Emit(NodeOutput(END, state_of(self.data)))
                return
            if control.pausing:
                raise Halt
            step, started = self.step, self.clock() if measures else 0.0
            node = nodes.get(place)  # type: ignore[arg-type]
            if node is None:
                fork = self.topology.forks[place]  # type: ignore[index]
                yield from self.fork(fork, "")
                at, following = fork.id, fork.join
            else:
                at = node.id
                goto = yield from self.visit(node, "")
                if goto is not None:
                    following: str | None = self.checked(at, goto)  # type: ignore[no-redef]
                elif options.interrupt_before_edge and at in after:
                    following = None
                else:
                    edge = edges.get(at)
                    following = edge if edge.__class__ is str else (yield from self.follow(at))
                self.finished.append(at)
            self.at, self.next, self.is_saved = at, following, False
            last = self.stand[3]
            self._stand_here()
            if self.writes:
                self.writes, self.unrecorded = {}, {}
            if self.post is not None:
                self.tell("edge.transition", "verbose", at, target=following)
            if saver is not None and (following == END or following is None or self._is_due(at, step, last, started)):
                yield from self.save("loop")

    def _is_due(self, at: str, step: int, last: Changes | None, started: float) -> bool:
        """Whether a checkpoint is to be stored here, where nothing else asks for one."""
        when, interval = self.program.when, self.options.checkpoint_interval
        if self.exits:
            return False
        if when is None:
            return interval == 1 or step // interval != self.step // interval  # a fork may pass several at once
        before = {} if last is None else last.ops
        ops = {} if self.changes is None else self.changes.ops
        changed = tuple(key for key in ops if key not in before or ops[key] != before[key])
        seconds = self.clock() - started
        inside = {"branches": self._inside(at), "next_branches": self._inside(self.next)}
        return when(at, self.state(), Step(self.next, seconds, changed, **inside))

    def _inside(self, place: str | None) -> frozenset[str]:
        """The nodes of the branches of a fork; none of any other place."""
        fork = self.topology.forks.get(place or "")
        return frozenset() if fork is None else frozenset().union(*fork.inside.values())

    def count(self, node_id: str) -> None:
        """One more node is executed.

        Raises:
            MaxIterationsError: it would be one too many.
        """
        if self.step >= self.limit:
            raise self.failure(
                MaxIterationsError,
                f"the run has executed {self.limit} nodes, its max_iterations, and would go on with {node_id!r}",
                node_id,
            )
        self.step += 1

    def _stand_here(self) -> None:
        entries = None if self.contribution is None else self.contribution.entries
        self.stand = (self.at, self.next, self.data, self.changes, self.step, entries)

    def _fail(self, error: BaseException) -> Steps:
        """Store where the run stands, and why it ended, if it did not end by somebody's wish."""
        self.at, self.next, self.data, self.changes, self.step, entries = self.stand
        if self.contribution is not None and entries is not None:
            self.contribution.entries = entries
        failure = error if isinstance(error, Exception) else None
        if self.saver is not None:
            if not self.is_saved:
                yield from self.save("loop", self.root())
            yield from self._keep_failure(failure)
        if failure is not None:
            self.tell("graph.fail", "error", self.next, error=told(failure))

    def _refused(self, error: CheckpointSerializationError) -> Steps:
        """Record beside what is stored of this run that it failed over a value: the store itself works."""
        base = self.base
        if base is not None and self.is_latest and base.metadata.get("run_id") == self.metadata.get("run_id"):
            failure = freeze(failure_of(error, self.next if self.is_saved else self.at))
            yield Record(self.saver, self._here(), {FAILURE: failure})  # type: ignore[arg-type]

    def _keep_failure(self, failure: Exception | None) -> Steps:
        writes = dict(self.unrecorded)
        # Beside an older checkpoint nothing is recorded: its own run did not fail.
        if failure is not None and self.is_latest:
            writes[FAILURE] = freeze(failure_of(failure, getattr(failure, "node_id", None) or self.next))
        if writes:
            yield from self.record(writes)

    def _end(self) -> Steps:
        if self.saver is not None and self._is_behind():
            self._stand_here()
            yield from self.save("answer")
        if self.within is None:  # else the graph around it may still have to come for what is here
            yield from self._let_go()
        self.tell("graph.complete", "info", END, nodes=self.step)
        if self.within is None:
            yield Finish()

    def _let_go(self) -> Steps:
        """Release or delete what a finished run leaves, if it is to be."""
        if self.saver is None:
            return
        for saver in embedded.savers_of(self.topology, self.saver):
            if self.options.release_thread:
                yield Release(saver, self.config)
            elif not self.options.preserve:
                yield Discard(saver, self.config)

    # How a run begins

    def _start(self, given: Mapping[str, Any]) -> Steps:
        if self.within is not None:
            self._adopt(given)
        else:
            yield from self._begin(given)
        own = {"run_id": self.metadata.get("run_id") or new_id()}
        self.began = self.within or own["run_id"]
        self.metadata = self._new_metadata(own if self.within is None else {**own, WITHIN: self.within}, {})
        self.next = yield from self.follow(START)
        self._stand_here()
        if self.saver is not None and not self.exits:
            yield from self.save("input")

    def _begin(self, given: Mapping[str, Any]) -> Steps:
        if self.saver is not None:
            self.base = yield Load(self.saver, self.asked_for)
            if self.base is None and self.asked_for.checkpoint_id is not None:
                raise self._no_checkpoint()
        if self.base is None:
            self.data = self.schema.initial()
            self.tell("state.create", "verbose", START, keys=list(given))
        else:
            self._take(self.base)
            self.tell_load(self.base)
        try:
            self.move_to(*self.schema.begin(self.data, self.without_private(given)))
        except Exception as error:
            raise self.failure(GraphRunnerError, f"the input cannot be merged: {error}", START) from error

    def _take(self, base: Checkpoint) -> None:
        """Stand where a stored checkpoint stands, if it is of this graph's own history."""
        if self.within is None and WITHIN in base.metadata:
            raise self.failure(
                GraphRunnerError,
                f"checkpoint_ns={self.config.checkpoint_ns!r} is the history of a subgraph, which only the graph "
                f"around it runs: leave checkpoint_ns out, and what a resume brings goes to the one that waits",
            )
        self.base = base
        self.opened(base)

    def _adopt(self, given: Mapping[str, Any]) -> None:
        """Begin with the state of the graph around this one."""
        assert self.contribution is not None
        try:
            self.data = self.schema.adopt(given)
        except Exception as error:
            reason = f"the state of the graph around it does not fit: {error}"
            raise self.failure(GraphRunnerError, reason, START) from error

    def accept(self, resume: GraphResume) -> Generator[Request, Any, dict[str, Any]]:
        """Stand where a resume goes on; returns what it adds to the record. Nothing is stored yet.

        Raises:
            GraphRunnerError: what it brings is not what is waited for, here or in an embedded graph.
        """
        base = yield from self._load_base()
        self._take(base)
        self.tell_load(base)
        self.is_saved = True
        if self.contribution is not None:
            self.contribution.entries = base.state.get(EXTRA, self.contribution.entries)
            if self.changes is None:
                self.contribution.migrated(visible(base.state), self.data)
        self.at = base.node_id
        self.next = base.next_node_id
        if self.next is not None:
            self.next = self._still_there(self.next)
        recorded = yield from self.loaded_writes(base)
        if not self.is_latest:  # what waited here waits again, unanswered
            recorded = {key: value for key, value in recorded.items() if key.startswith(INTERRUPT)}
        was_stopped = any(key.startswith((INTERRUPT, INNER)) for key in recorded)
        carried = self.carried(base)
        self.metadata = self._new_metadata({"run_id": carried["run_id"]} if "run_id" in carried else {}, carried)
        self.step = self.passed = 0 if was_stopped else base.metadata.get("step", 0)
        self.began = base.metadata.get(VISIT, base.id) if self.is_latest else new_id()
        self.writes = recorded
        given = self._given(resume, unanswered(recorded))
        owes_stop = not was_stopped and base.metadata.get("source") in OWN_SOURCES
        self.may_stop, self.has_arrived = owes_stop, False
        if not self.is_latest:
            recorded = _asked_once(recorded, given)
        if recorded.get(FAILURE) is not None:
            given[FAILURE] = None
            self.spoil()
        self.writes = {**recorded, **given}
        self._stand_here()  # what is recorded is merged again by every resume
        self._merge_recorded()
        if self.updates is not None:
            self.updates.clear()  # those are no node's
        yield from embedded.accept(self, Run)
        return given

    def _resume(self, resume: GraphResume) -> Steps:
        given = yield from self.accept(resume)
        base = self.base
        assert base is not None
        # After an update all of it, in case the update died before it had taken over the record.
        writes = self.writes if KEEPS in base.metadata else given
        # A stop that is only passed by, on a line of its own, is nothing that anybody has to find.
        if writes and (self.is_latest or resume.has_value or resume.update is not None):
            yield from self.record(writes)
        ran = {"run_id": self.metadata.get("run_id"), "checkpoint_node": base.node_id, "resume_node": self.next}
        self.tell("checkpoint.resume", "info", self.next, **ran)
        for key, answer in given.items():
            if key.startswith(ANSWER) and answer is not None:
                self.tell("interrupt.answered", "info", self.next, id=key.removeprefix(ANSWER))
        if self.next is None and not (self.may_stop and self._declared_stop()):
            self.next = yield from self.follow(self.at)  # what interrupt_before_edge left open

    def _still_there(self, place: str) -> str:
        found = self.topology.target(place)
        if found is None:
            raise self.failure(
                GraphRunnerError,
                f"the stored next node {place!r} is not a node of this graph; "
                f"add it again, or choose another with update_state(config, {{}}, goto=...)",
                place,
            )
        return found

    def _load_base(self) -> Generator[Request, Any, Checkpoint]:
        if self.saver is None:
            raise CheckpointerConfigurationError(
                "a resume needs a saver: compile the graph with checkpoint_saver=..., and checkpoint_interval above 0"
            )
        base: Checkpoint | None = yield Load(self.saver, self.asked_for)
        if base is None:
            raise self._no_checkpoint()
        if self.asked_for.checkpoint_id is not None:
            latest = yield Load(self.saver, self.config)
            self.is_latest = latest is not None and latest.id == base.id
        return base

    # What a resume brings

    def _given(self, resume: GraphResume, waiting: dict[str, Mapping[str, Any]]) -> dict[str, Any]:
        """What a resume adds to the record; refuses what nothing waits for, before anything is stored."""
        inner = inner_stops(self.writes)
        resume = self._split(resume, waiting, inner)
        given: dict[str, Any] = {}
        if resume.has_value:
            if not waiting:
                raise self.failure(
                    GraphRunnerError,
                    "nothing waits for an answer here; give GraphResume(update={...}) to change the state",
                )
            given = {ANSWER + key: answer for key, answer in self._answers(resume.value, waiting).items()}
        passed = [ANSWER + key for key, stop in waiting.items() if stop["when"] in {"before", "after"}]
        given = {**dict.fromkeys(passed), **given}
        if resume.update is not None:
            if not isinstance(resume.update, Mapping):
                raise self.failure(GraphRunnerError, f"update= must be a mapping, not {type(resume.update).__name__}")
            given[f"{UPDATE}{sum(key.startswith(UPDATE) for key in self.writes)}"] = self.without_private(resume.update)
        try:
            return {key: freeze(value) for key, value in given.items()}
        except ValueError as error:
            raise self.failure(GraphRunnerError, f"what the resume brought cannot be kept: {error}") from error

    def _split(self, resume: GraphResume, waiting: Mapping[str, Any], inner: Mapping[str, str]) -> GraphResume:
        """What of a resume is for this graph; the rest is for the embedded graphs that wait."""
        try:
            mine, self.for_children = embedded.split(resume, waiting, inner)
        except ValueError as error:
            raise self.failure(GraphRunnerError, str(error)) from error
        return mine

    def _answers(self, value: Any, waiting: Mapping[str, Any]) -> dict[str, Any]:
        """What each stop is answered, by id."""
        by_id = isinstance(value, Mapping) and bool(value) and all(key in waiting for key in value)
        answers = value if by_id else dict.fromkeys(self._asked(waiting), value)
        return {
            key: answer if waiting[key]["when"] == "inside" else self._to_declared(answer)
            for key, answer in answers.items()
        }

    def _asked(self, waiting: Mapping[str, Any]) -> list[str]:
        """The stops that an answer is for which names none: the question that waits, or all declared stops."""
        inside = {key: stop for key, stop in waiting.items() if stop["when"] == "inside"}
        if not inside:
            return [*waiting]
        if len({stop.get("key", "") for stop in inside.values()}) > 1:
            known = ", ".join(map(repr, waiting))
            raise self.failure(
                GraphRunnerError, f"several questions wait: resume with a mapping of id to answer; the ids are {known}"
            )
        # A node asks one question after the other: the first is the one that waits.
        return [next(iter(inside))]

    def _to_declared(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self.failure(
                GraphRunnerError,
                f"the run stopped at {self._place()}: resume with a mapping to merge into the state, "
                f"or without a value, not with {type(value).__name__}",
            )
        return self.without_private(value)

    def _merge_recorded(self) -> None:
        """Merge the answers to declared stops and the updates that came with resumes, in the order they came."""
        stops = {key.removeprefix(INTERRUPT): stop for key, stop in self.writes.items() if key.startswith(INTERRUPT)}
        for key, value in self.writes.items():
            answered = stops.get(key.removeprefix(ANSWER)) if key.startswith(ANSWER) and value is not None else None
            if key.startswith(UPDATE) or (answered is not None and answered["when"] != "inside"):
                try:
                    self.merge(self.at, value)
                except NodeExecutionError as error:
                    reason = f"what the resume brought cannot be merged: {error.__cause__}"
                    raise self.failure(GraphRunnerError, reason, self.next) from error.__cause__

    # Stops

    def _declared_stop(self) -> tuple[str, When, str] | None:
        if self.at in self.program.after:
            return self.program.after[self.at], "after", ""
        if self.next in self.program.before:
            return self.program.before[self.next], "before", ""
        return None

    def record_stop(
        self,
        node_id: str,
        when: When,
        key: str,
        payload: Any = None,
        metadata: Mapping[str, Any] = EMPTY,
    ) -> Steps:
        """Store that the run waits here. A stop that waits already is asked again under its id."""
        waiting = unanswered(self.writes)
        again = [
            known
            for known, stop in waiting.items()
            if (stop["node_id"], stop["when"], stop.get("key", "")) == (node_id, when, key)
        ]
        since = waiting[again[0]]["created_at"] if again else datetime.now(UTC)
        stop = {"node_id": node_id, "when": when, "payload": payload, "metadata": dict(metadata), "created_at": since}
        if key:
            stop["key"] = key
        if self.saver is not None and self.is_saved and when in _OF_NODES:
            # The node may have updated, or released, the thread that runs it.
            latest = yield Load(self.saver, self.config)
            self.is_latest = latest is not None and latest.id == self.base.id  # type: ignore[union-attr]
        try:
            frozen = freeze(stop)
        except ValueError as error:
            raise self.failure(NodeExecutionError, f"what {node_id!r} asks cannot be kept: {error}", node_id) from error
        id = again[0] if again else new_id()  # noqa: A001
        yield from self.record({INTERRUPT + id: frozen})
        self.tell("interrupt.raised", "info", node_id, id=id, when=when)

    def _hand_out_stops(self) -> Steps:
        if self.unrecorded:
            yield from self.record({})
        waiting = unanswered(self.writes)
        if not waiting and not self.inner:  # somebody asked for a pause
            yield from self.record_stop(self.next or self.at, "before", "", None, {"reason": "pause"})
            waiting = unanswered(self.writes)
        state = self.schema.state_of(self.data)
        stops = [
            InterruptionMetadata(
                stop["node_id"], state, when=stop["when"], id=key, payload=stop["payload"], metadata=stop["metadata"]
            )
            for key, stop in waiting.items()
        ]
        stops += self.inner
        for stop in stops:
            stop.interrupts = (stop, *(other for other in stops if other is not stop))
        if self.within is None:
            yield Finish()
        yield Emit(stops[0])

    def answers(self, key: str) -> tuple[Any, ...]:
        """The answers to `interrupt()` calls of a visit, in the order of the calls."""
        return answers_of(self.writes.copy(), key)  # other branches record, from threads too

    # Storing

    def save(self, source: str, visit: str | None = None) -> Steps:
        """Store where the run stands; `visit` names the one that is under way there, if one is."""
        assert self.saver is not None
        at, following, seen, changes, step, entries = self.stand
        data = seen
        if self.contribution is not None:
            assert entries is not None
            data, changes = self.contribution.stored(data, changes, entries)
        saved = yield Save(
            self.saver,
            self.config,
            at,
            following,
            data,
            parent=self.base,
            metadata=self._stamped(source, step, {} if visit is None else {VISIT: visit}),
            changes=changes,
        )
        if saved is None:
            return
        self.base = saved
        self.began, self.passed = visit or saved.id, step
        now = Changes(data, {})
        if self.data is seen:
            self.changes = now
        elif self.changes is None or self.changes.base is not data:
            self.changes = None  # the run is ahead of what is stored, by what nobody has counted
        self.stand = (at, following, seen, now, step, entries)
        self.is_saved = self.is_latest = True
        if self.post is not None:
            ran = {"run_id": self.metadata.get("run_id"), "node": at, "next": following, "source": source}
            self.tell("checkpoint.save", "info", at, id=saved.id, **ran)

    def spoil(self) -> None:
        """Mark what is stored from here on as not clean: something failed before it, though it was mended."""
        if self.metadata.get("clean", True):
            self.metadata = freeze({**self.metadata, "clean": False})

    def _stamped(self, source: str, step: int, visit: Mapping[str, str]) -> FrozenDict:
        stamped = FrozenDict({**self.metadata, "step": step, "source": source, **visit})
        stamped.kind = self.metadata.kind  # a str and an int do not change it; found out anew it would cost O(keys)
        return stamped

    def settle(self) -> Steps:
        """Make sure that values can be recorded beside where the run stands."""
        if self.saver is None or self.exits:
            return
        if not self.is_saved:
            yield from self.save("loop", self.root())
        elif not self.is_latest:
            yield from self._fork_off()

    def _fork_off(self) -> Steps:
        yield from self.save("fork", self.root())
        if self.writes:
            yield Record(self.saver, self._here(), self.writes)  # type: ignore[arg-type]

    def record(self, writes: Mapping[str, Any]) -> Steps:
        """Put values beside where the run stands; without a saver they live as long as the run."""
        if self.saver is not None:
            if not self.is_saved:
                yield from self.save("loop", self.root())
            elif not self.is_latest:
                yield from self.save("fork", self.root())
                writes = {**self.writes, **writes}
            if self.is_saved:
                together = {**self.unrecorded, **writes}
                yield Record(self.saver, self._here(), together)
                # A branch may have left more in the meantime.
                self.unrecorded = {key: value for key, value in self.unrecorded.items() if key not in together}
        self.writes.update(writes)

    def note(self, writes: Mapping[str, Any]) -> Steps:
        """As `record`, but only when the run stands still if nothing is to be stored before."""
        if not self.exits:
            yield from self.record(writes)
            return
        self.writes.update(writes)
        self.unrecorded.update(writes)

    def _here(self) -> RunnableConfig:
        return self.config.replace(checkpoint_id=self.base.id)  # type: ignore[union-attr]

    def _is_behind(self) -> bool:
        """Whether what is stored is not the end yet: an answer was merged, or an open edge taken, just before it."""
        is_end = self.is_saved and self.base is not None and self.base.next_node_id == END
        return not is_end or self.changes is None or bool(self.changes.ops)

    def _new_metadata(self, own: Mapping[str, Any], carried: Mapping[str, Any]) -> FrozenDict:
        metadata: FrozenDict = freeze({**carried, **self.config.metadata, **own, **self.stamp()})
        return metadata

    def place(self, key: str, node_id: str) -> str:
        """Names a visit: the same again when it is repeated after a crash, and no other's."""
        return f"{self.config.thread}/{self.config.checkpoint_ns}/{self.root()}/{key}/{node_id}"

    def root(self) -> str:
        """Names where on the main line the visit that goes on here began: a checkpoint, and the steps since.

        The same when the visit is repeated, though it may have made the run store where it stands in the meantime.
        """
        steps = self.stand[4] - self.passed
        return f"{self.began}+{steps}" if steps else self.began

    # Embedded graphs

    def embedded(self, strand: Strand, node: Node, key: str) -> Steps:
        """Visit a node that is a graph."""
        yield from embedded.visit(strand, node, key, partial(_run_at, strand.executor))

    # Small things

    def tell(self, type: str, level: str, node_id: str | None, **data: Any) -> None:
        if self.post is not None:
            checkpoint_id = None if self.base is None else self.base.id
            self.post(
                type, level, thread_id=self.config.thread, node_id=node_id, checkpoint_id=checkpoint_id, data=data
            )

    def tell_load(self, base: Checkpoint) -> None:
        """A checkpoint was read."""
        run_id = base.metadata.get("run_id")
        self.tell("checkpoint.load", "info", base.node_id, run_id=run_id, node=base.node_id, id=base.id)

    def tell_start(self, node_id: str, data: FrozenDict) -> None:
        """A node is about to run."""
        self.visits[node_id] += 1
        if self.visits[node_id] > 1:
            self.tell("cycle.detected", "info", node_id, visit_count=self.visits[node_id])
        self.tell("node.start", "info", node_id, step=self.step)
        self.tell("node.state", "verbose", node_id, input=data)

    def tell_complete(self, node_id: str, data: FrozenDict) -> None:
        """A node has run."""
        self.tell("node.state", "verbose", node_id, output=data)
        self.tell("node.complete", "info", node_id, step=self.step, error=False)

    def tell_failed(self, node_id: str, error: BaseException) -> None:
        """A node has failed."""
        self.tell("node.complete", "warning", node_id, step=self.step, error=True, reason=str(error))

    def _updates_of_steps(self) -> list[tuple[str, FrozenDict]] | None:
        if self.config.stream_mode is not StreamMode.UPDATES:
            return None
        updates: list[tuple[str, FrozenDict]] = []
        self.taps.append(lambda node_id, update: updates.append((node_id, update)))
        return updates

    def _update_of_step(self, updates: list[tuple[str, FrozenDict]]) -> Mapping[str, Any]:
        by_node: dict[str, dict[str, Any]] = {}
        for node_id, update in updates:
            by_node.setdefault(node_id, {}).update(unpack(update))
        updates.clear()
        return by_node

    def _snapshot(self) -> StateSnapshot:
        return StateSnapshot(self.base, self.config, self._shown, lambda _: ())  # type: ignore[arg-type]

    def _shown(self, data: FrozenDict) -> Any:
        return self.schema.state_of(visible(data))

    def _place(self) -> str:
        return f"{self.at!r} -> {self.next!r}"

    def _no_checkpoint(self) -> CheckpointNotFoundError:
        wanted = self.asked_for.checkpoint_id
        what = "a checkpoint" if wanted is None else f"checkpoint {wanted!r}"
        hint = "invoke it with an input first" if wanted is None else "see get_state_history"
        return CheckpointNotFoundError(self.config.thread, what, hint)


def _run_at(executor: Executor | None, *given: Any, saver: BaseCheckpointSaver | None) -> Run:
    """A run whose nodes run where the branch does that it is part of."""
    run = Run(*given, saver=saver)
    run.executor = executor
    return run


def _asked_once(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What waits again where an old checkpoint is resumed: a node's questions up to its first open one."""
    kept: dict[str, Any] = {}
    asking: set[tuple[str, str]] = set()
    for key, stop in recorded.items():
        if stop["when"] == "inside" and ANSWER + key.removeprefix(INTERRUPT) not in given:
            asked = stop["node_id"], stop.get("key", "")
            if asked in asking:
                continue
            asking.add(asked)
        kept[key] = stop
    return kept
