"""The loop: how a graph runs. A generator that asks for everything and does no I/O itself.

Theory of operation
-------------------
A run walks from node to node. `_Run.steps()` yields requests (`requests.py`): run this node, evaluate this edge, load,
save, record, emit. A driver (`drive.py`) answers each by sending the result or throwing the error, synchronously or
not; the loop cannot tell.

One step: node -> merge its update -> evaluate the outgoing edge -> merge the edge's update -> save (node, next) ->
emit. Nothing of a step is stored before all of it is known, so a node that fails leaves no trace and a resume runs it
again, and a node whose checkpoint is stored never runs again: the next node is stored with it.

Where the run stands is `self.at` (the node just finished) and `self.next`. What is recorded beside the *latest*
checkpoint belongs to the visit of the node that comes next: the stops that wait there, the answers to them, updates
that came with a resume. They disappear from sight when that node's own checkpoint is appended. So a crash in the
middle of an answered node finds the answer again. Writes are put beside the latest checkpoint only: a resume from an
older one starts a visit of its own, on a copy of that checkpoint that is appended once there is something to record.

A declared stop is recorded after its checkpoint. If the process dies in between, the resume finds a checkpoint of the
loop's own without the record and stops then: an approval cannot be lost to a crash.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from graphkit._abc import ANSWER, INTERRUPT, UPDATE, public_metadata, unanswered
from graphkit._checkpoint import Checkpoint, new_id
from graphkit._compile_config import CompileConfig
from graphkit._config import END, START, RunnableConfig, StreamMode
from graphkit._engine.requests import Ask, Emit, Finish, Load, LoadWrites, Record, Request, RunNode, Save
from graphkit._frozen import FrozenDict, freeze, private_copy
from graphkit._output import ABSENT, Command, GraphResume, InterruptionMetadata, NodeOutput, StateSnapshot, When
from graphkit._state import AgentState, Changes
from graphkit._topology import Condition, Node, Topology
from graphkit._visit import GraphInterrupt
from graphkit.errors import (
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointNotFoundError,
    GraphRunnerError,
    MaxIterationsError,
    NodeExecutionError,
)

Steps = Generator[Request, Any, None]
_EMPTY: Final = FrozenDict()
_PATH_LENGTH: Final = 100
KEEPS: Final = "keeps"
"""In the metadata of an update: the id of the checkpoint whose record it took over."""
_OF_ONE_CHECKPOINT: Final = frozenset({"step", "source", "graph", KEEPS})
"""What the metadata of one checkpoint say about it alone; the rest belongs to the whole run."""
_OF_NODES: Final = frozenset({"inside", "action"})
OWN_SOURCES: Final = frozenset({"input", "loop"})
"""Values of the metadata's `source` at which a resume still owes the declared stops; update, fork and answer do not."""


class Stop(BaseException):
    """Thrown in by a driver whose caller closed the stream: save what is unsaved and end."""


class Walk:
    """What a run and an update of a state share: the graph, where it stands, its state, and how an edge is taken."""

    def __init__(self, topology: Topology, options: CompileConfig, config: RunnableConfig) -> None:
        self.topology = topology
        self.schema = topology.schema
        self.options = options
        self.config = config
        self.saver = options.saver
        self.data = _EMPTY
        self.changes: Changes | None = None
        """Against the state of the latest stored checkpoint; None if there is none."""

    def merge(self, node_id: str, update: Any) -> None:
        """Merge what a node or an edge returned."""
        if update is None:
            return
        if not isinstance(update, Mapping) and not hasattr(update, "model_fields_set"):
            raise self.failure(
                NodeExecutionError,
                f"{node_id!r} returned {type(update).__name__}: return a mapping of updates, a Command or None",
                node_id,
            )
        try:
            data, ops = self.schema.merge(self.data, update)
        except Exception as error:
            reason = f"the update of {node_id!r} cannot be merged: {error}"
            raise self.failure(NodeExecutionError, reason, node_id) from error
        self.move_to(data, ops)

    def move_to(self, data: FrozenDict, ops: dict[str, int]) -> None:
        """Take a new state, and note what it changed."""
        self.data = data
        if self.changes is not None and ops:
            self.changes = self.changes.then(ops)

    def follow(self, source: str) -> Generator[Request, Any, str]:
        """Take the outgoing edge of a node; returns the next node's id."""
        edge = self.topology.edges.get(source)
        if edge.__class__ is str:
            return edge
        if edge is None:
            raise self.failure(GraphRunnerError, f"{source!r} has no outgoing edge; add_edge({source!r}, ...)", source)
        return (yield from self._decide(source, edge))  # type: ignore[arg-type]

    def _decide(self, source: str, edge: Condition) -> Generator[Request, Any, str]:
        try:
            result = yield Ask(edge.call, self.state(), self.config)
        except (Exception, GraphInterrupt) as error:  # only nodes can wait for a human
            raise self.failure(NodeExecutionError, f"the edge of {source!r} failed: {_tell(error)}", source) from error
        if isinstance(result, Command):
            self.merge(source, result.update)
            result = result.goto
        target = result if edge.mappings is None else self._mapped(source, edge.mappings, result)
        if not isinstance(target, str) or not self.topology.has_target(target):
            raise self.failure(
                GraphRunnerError,
                f"the edge of {source!r} leads to {target!r}, which is not a node of the graph",
                source,
            )
        return str.__str__(target)  # of a StrEnum, too

    def _mapped(self, source: str, mappings: Mapping[Any, str], key: Any) -> str:
        try:
            return mappings[key]
        except (KeyError, TypeError):
            known = ", ".join(map(repr, mappings))
            reason = f"the edge of {source!r} gave {key!r}, which its mappings do not have (they have {known})"
            raise self.failure(GraphRunnerError, reason, source) from None

    def state(self) -> AgentState:
        """The state as nodes and callers see it."""
        return self.schema.state_of(self.data)

    def failure(self, kind: type[GraphRunnerError], reason: str, node_id: str | None = None) -> GraphRunnerError:
        """An error of this run."""
        thread_id = None if self.saver is None else self.config.thread
        state: Any = private_copy(self.data)  # the saver may hold the objects in it
        return kind(reason, node_id=node_id, thread_id=thread_id, state=state, path=self.path(), config=self.config)

    def recorded(self, base: Checkpoint) -> Generator[Request, Any, dict[str, Any]]:
        """What is recorded beside a checkpoint; also if the process died before an update had taken it over."""
        recorded = dict((yield LoadWrites(self.config.replace(checkpoint_id=base.id))))
        kept = base.metadata.get(KEEPS)
        if not recorded and kept is not None:
            recorded = dict((yield LoadWrites(self.config.replace(checkpoint_id=kept))))
        return recorded

    def carried(self, base: Checkpoint) -> dict[str, Any]:
        """The metadata that a run's next checkpoints share with this one: its run_id, and the caller's keys."""
        metadata = public_metadata(base.metadata)
        return {key: value for key, value in metadata.items() if key not in _OF_ONE_CHECKPOINT}

    def path(self) -> list[str]:
        """The nodes that were finished."""
        return []


class Run(Walk):
    """One run of a graph; `steps()` is the loop."""

    def __init__(self, topology: Topology, options: CompileConfig, config: RunnableConfig, given: Any) -> None:
        super().__init__(topology, options, config.replace(checkpoint_id=None))
        self.given = given
        self.asked_for = config
        self.limit = config.max_iterations or options.max_iterations
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
        self.step = 0
        self.metadata = _EMPTY
        self.finished: list[str] = []
        self.may_stop = True
        """Whether the declared stops hold where the run stands: not for the step that a resume was asked for."""
        self.has_arrived = True
        """Whether where the run stands is news to the caller: not after a resume."""
        self.stand: tuple[FrozenDict, Changes | None] = (_EMPTY, None)
        """The state where the run stands; `data` runs ahead of it within a step."""

    def path(self) -> list[str]:
        return self.finished[-_PATH_LENGTH:]

    # The loop

    def steps(self) -> Steps:
        """Run, from the input or the stored checkpoint, to the end or a stop."""
        if isinstance(self.given, GraphResume):
            yield from self._resume(self.given)
        else:
            yield from self._start(self.given)
        try:
            yield from self._walk()
        except CheckpointerError:
            raise
        except BaseException:
            if self.saver is not None and not self.is_saved:
                self.data, self.changes = self.stand
                yield from self._save("loop")
            raise

    def _walk(self) -> Steps:
        nodes, edges, options = self.topology.nodes, self.topology.edges, self.options
        saver, interval, limit = self.saver, options.checkpoint_interval, self.limit
        snapshots = saver is not None and self.config.stream_mode is StreamMode.SNAPSHOTS
        stops = bool(options.interrupt_before or options.interrupt_after)
        state_of = self.schema.state_of
        while True:
            stop = self._declared_stop() if stops and self.may_stop else None
            if stop is not None:
                yield from self._record_stop(*stop)
            if self.has_arrived:
                is_new = snapshots and self.is_saved
                yield Emit(self._snapshot() if is_new else NodeOutput(self.at, state_of(self.data)))
            if stop is not None:
                yield from self._hand_out_stops()
                return
            self.may_stop = self.has_arrived = True
            if self.next == END:
                if saver is not None and self._is_behind():
                    yield from self._save("answer")
                yield Finish(release=options.release_thread)
                yield Emit(NodeOutput(END, state_of(self.data)))
                return
            node = nodes[self.next]  # type: ignore[index]
            if node.asks is not None and (yield from self._asks_to_stop(node)):
                return
            if self.step >= limit:
                raise self._too_long(node.id)
            state = state_of(self.data)  # the node's own: nobody else sees what it does to it
            try:
                result = yield RunNode(node, state, self._answers() if self.writes else ())
            except GraphInterrupt as interrupt:
                yield from self._record_stop(node.id, "inside", interrupt.payload)
                yield from self._hand_out_stops()
                return
            except Exception as error:
                raise self.failure(NodeExecutionError, f"node {node.id!r} failed: {_tell(error)}", node.id) from error
            goto = None
            if result.__class__ is Command:
                goto, result = result.goto, result.update
            if result is not None and result is not state:
                self.merge(node.id, result)
            self.step += 1
            if goto is not None:
                following: str | None = self._checked(node.id, goto)
            elif options.interrupt_before_edge and node.id in options.interrupt_after:
                following = None
            else:
                edge = edges.get(node.id)
                following = edge if edge.__class__ is str else (yield from self.follow(node.id))
            self.at, self.next, self.is_saved = node.id, following, False
            self.stand = self.data, self.changes
            self.finished.append(node.id)
            if self.writes:
                self.writes = {}
            if saver is not None and (self.step % interval == 0 or following is None or following == END):
                yield from self._save("loop")

    # How a run begins

    def _start(self, given: Mapping[str, Any]) -> Steps:
        if self.saver is not None:
            self.base = yield Load(self.asked_for)
            if self.base is None and self.asked_for.checkpoint_id is not None:
                raise self._no_checkpoint()
        if self.base is None:
            self.data = self.schema.initial()
        else:
            self.data = self.base.state
            self.changes = Changes(self.data, {})
        try:
            self.move_to(*self.schema.begin(self.data, given))
        except Exception as error:
            raise self.failure(GraphRunnerError, f"the input cannot be merged: {error}", START) from error
        self.metadata = self._new_metadata({"run_id": new_id()}, {})
        self.next = yield from self.follow(START)
        if self.saver is not None:
            yield from self._save("input")

    def _resume(self, resume: GraphResume) -> Steps:
        base = yield from self._load_base()
        self.base, self.is_saved = base, True
        self.data, self.at, self.next = base.state, base.node_id, base.next_node_id
        self.changes = Changes(self.data, {})
        if self.next is not None and not self.topology.has_target(self.next):
            raise self.failure(
                GraphRunnerError,
                f"the stored next node {self.next!r} is not a node of this graph; "
                f"add it again, or choose another with update_state(config, {{}}, goto=...)",
                self.next,
            )
        recorded = yield from self.recorded(base)
        if not self.is_latest:  # what waited here waits again, unanswered
            recorded = {key: value for key, value in recorded.items() if key.startswith(INTERRUPT)}
        was_stopped = any(key.startswith(INTERRUPT) for key in recorded)
        carried = self.carried(base)
        self.metadata = self._new_metadata({"run_id": carried["run_id"]} if "run_id" in carried else {}, carried)
        self.step = 0 if was_stopped else base.metadata.get("step", 0)
        self.writes = recorded
        given = self._given(resume, unanswered(recorded))
        owes_stop = not was_stopped and base.metadata.get("source") in OWN_SOURCES
        self.may_stop, self.has_arrived = owes_stop, False
        if not self.is_latest:
            recorded = _asked_once(recorded, given)
        self.writes = {**recorded, **given}
        before = self.data, self.changes
        self._merge_recorded()
        after = self.data, self.changes
        # After an update all of it, in case the update died before it had taken over the record.
        writes = self.writes if KEEPS in base.metadata else given
        # A stop that is only passed by, on a line of its own, is nothing that anybody has to find.
        if writes and (self.is_latest or resume.has_value or resume.update is not None):
            self.data, self.changes = before  # what is recorded is merged again by every resume
            yield from self._record(writes)
            self.data, self.changes = after
        if self.next is None and not (owes_stop and self._declared_stop()):
            self.next = yield from self.follow(self.at)  # what interrupt_before_edge left open

    def _load_base(self) -> Generator[Request, Any, Checkpoint]:
        if self.saver is None:
            raise CheckpointerConfigurationError(
                "a resume needs a saver: compile the graph with checkpoint_saver=..., and checkpoint_interval above 0"
            )
        base: Checkpoint | None = yield Load(self.asked_for)
        if base is None:
            raise self._no_checkpoint()
        if self.asked_for.checkpoint_id is not None:
            latest = yield Load(self.config)
            self.is_latest = latest is not None and latest.id == base.id
        return base

    def _given(self, resume: GraphResume, waiting: dict[str, Mapping[str, Any]]) -> dict[str, Any]:
        """What a resume adds to the record; refuses what nothing waits for, before anything is stored."""
        inside = {key: stop for key, stop in waiting.items() if stop["when"] == "inside"}
        declared = {key: stop for key, stop in waiting.items() if stop["when"] != "inside"}
        given: dict[str, Any] = {}
        if resume.has_value:
            if not waiting:
                raise self.failure(
                    GraphRunnerError,
                    "nothing waits for an answer here; give GraphResume(update={...}) to change the state",
                )
            given = self._to_inside(resume.value, inside) if inside else self._to_declared(resume.value, declared)
        passed = [key for key, stop in declared.items() if stop["when"] != "action" and ANSWER + key not in given]
        given.update({ANSWER + key: None for key in passed})
        if resume.update is not None:
            if not isinstance(resume.update, Mapping):
                raise self.failure(GraphRunnerError, f"update= must be a mapping, not {type(resume.update).__name__}")
            given[f"{UPDATE}{sum(key.startswith(UPDATE) for key in self.writes)}"] = resume.update
        try:
            return {key: freeze(value) for key, value in given.items()}
        except ValueError as error:
            raise self.failure(GraphRunnerError, f"what the resume brought cannot be kept: {error}") from error

    def _to_inside(self, value: Any, inside: Mapping[str, Any]) -> dict[str, Any]:
        by_id = isinstance(value, Mapping) and bool(value) and all(key in inside for key in value)
        if by_id:
            return {ANSWER + key: answer for key, answer in value.items()}
        # A node asks one question after the other: the first is the one that waits.
        return {ANSWER + next(iter(inside)): value}

    def _to_declared(self, value: Any, declared: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise self.failure(
                GraphRunnerError,
                f"the run stopped at {self._place()}: resume with a mapping to merge into the state, "
                f"or without a value, not with {type(value).__name__}",
            )
        return {ANSWER + key: value for key in declared}

    def _merge_recorded(self) -> None:
        """Merge the answers to declared stops and the updates that came with resumes, in the order they came."""
        stops = {key.removeprefix(INTERRUPT): stop for key, stop in self.writes.items() if key.startswith(INTERRUPT)}
        for key, value in self.writes.items():
            answered = stops.get(key.removeprefix(ANSWER)) if key.startswith(ANSWER) and value is not None else None
            if key.startswith(UPDATE) or (answered is not None and answered["when"] != "inside"):
                self._merge_given(value)

    def _merge_given(self, value: Mapping[str, Any]) -> None:
        try:
            self.move_to(*self.schema.merge(self.data, value))
        except Exception as error:
            reason = f"what the resume brought cannot be merged: {error}"
            raise self.failure(GraphRunnerError, reason, self.next) from error

    # Stops

    def _declared_stop(self) -> tuple[str, When, None] | None:
        if self.at in self.options.interrupt_after:
            return self.at, "after", None
        if self.next in self.options.interrupt_before:
            return self.next, "before", None  # type: ignore[return-value]
        return None

    def _asks_to_stop(self, node: Node) -> Generator[Request, Any, bool]:
        try:
            answer = yield Ask(node.asks, node.id, self.state(), self.config)  # type: ignore[arg-type]
        except (Exception, GraphInterrupt) as error:
            reason = f"interrupt() of node {node.id!r} failed: {_tell(error)}"
            raise self.failure(NodeExecutionError, reason, node.id) from error
        if answer is None:
            return False
        payload = None
        if isinstance(answer, InterruptionMetadata):
            answer, payload = answer.metadata, answer.payload
        if not isinstance(answer, Mapping):
            returned = type(answer).__name__
            reason = f"interrupt() of node {node.id!r} returned {returned}: return metadata, a mapping or None"
            raise self.failure(NodeExecutionError, reason, node.id)
        yield from self._record_stop(node.id, "action", payload, answer)
        yield from self._hand_out_stops()
        return True

    def _record_stop(self, node_id: str, when: When, payload: Any, metadata: Mapping[str, Any] = _EMPTY) -> Steps:
        """Store that the run waits here. A stop that waits already is asked again under its id."""
        waiting = unanswered(self.writes)
        again = [key for key, stop in waiting.items() if (stop["node_id"], stop["when"]) == (node_id, when)]
        since = waiting[again[0]]["created_at"] if again else datetime.now(UTC)
        stop = {"node_id": node_id, "when": when, "payload": payload, "metadata": dict(metadata), "created_at": since}
        if self.saver is not None and self.is_saved and when in _OF_NODES:
            # The node may have updated, or released, the thread that runs it.
            latest = yield Load(self.config)
            self.is_latest = latest is not None and latest.id == self.base.id  # type: ignore[union-attr]
        try:
            frozen = freeze(stop)
        except ValueError as error:
            raise self.failure(NodeExecutionError, f"what {node_id!r} asks cannot be kept: {error}", node_id) from error
        yield from self._record({INTERRUPT + (again[0] if again else new_id()): frozen})

    def _hand_out_stops(self) -> Steps:
        state = self.state()
        stops = [
            InterruptionMetadata(
                stop["node_id"], state, when=stop["when"], id=key, payload=stop["payload"], metadata=stop["metadata"]
            )
            for key, stop in unanswered(self.writes).items()
        ]
        for stop in stops:
            stop.interrupts = (stop, *(other for other in stops if other is not stop))
        yield Finish(release=False)
        yield Emit(stops[0])

    def _answers(self) -> tuple[Any, ...]:
        """The answers to `interrupt()` calls of this visit, in the order of the calls."""
        asked = [key for key, stop in self.writes.items() if key.startswith(INTERRUPT) and stop["when"] == "inside"]
        found = [self.writes.get(ANSWER + key.removeprefix(INTERRUPT), ABSENT) for key in asked]
        return tuple(found[: found.index(ABSENT)] if ABSENT in found else found)

    # Storing

    def _save(self, source: str) -> Steps:
        self.base = yield Save(
            self.at,
            self.next,
            self.data,
            parent=self.base,
            metadata=self._stamped(source),
            changes=self.changes,
        )
        self.changes = Changes(self.data, {})
        self.stand = self.data, self.changes
        self.is_saved = self.is_latest = True

    def _stamped(self, source: str) -> FrozenDict:
        stamped = FrozenDict({**self.metadata, "step": self.step, "source": source})
        stamped.kind = self.metadata.kind  # a str and an int do not change it; found out anew it would cost O(keys)
        return stamped

    def _record(self, writes: Mapping[str, Any]) -> Steps:
        """Put values beside where the run stands; without a saver they live as long as the run."""
        if self.saver is not None:
            if not self.is_saved:
                yield from self._save("loop")
            elif not self.is_latest:
                yield from self._save("fork")
                writes = {**self.writes, **writes}
            yield Record(self.config.replace(checkpoint_id=self.base.id), writes)  # type: ignore[union-attr]
        self.writes.update(writes)

    def _is_behind(self) -> bool:
        """Whether what is stored is not the end yet: an answer was merged, or an open edge taken, just before it."""
        assert self.base is not None
        assert self.changes is not None
        return self.base.next_node_id != END or bool(self.changes.ops)

    def _new_metadata(self, own: Mapping[str, Any], carried: Mapping[str, Any]) -> FrozenDict:
        metadata: FrozenDict = freeze({**carried, **self.config.metadata, **own, "graph": self.topology.fingerprint})
        return metadata

    # Small things

    def _snapshot(self) -> StateSnapshot:
        return StateSnapshot(self.base, self.config, self.schema.state_of, lambda _: ())  # type: ignore[arg-type]

    def _checked(self, node_id: str, goto: str) -> str:
        if not self.topology.has_target(goto):
            reason = f"the Command of {node_id!r} goes to {goto!r}, which is not a node of the graph"
            raise self.failure(GraphRunnerError, reason, node_id)
        return str.__str__(goto)

    def _place(self) -> str:
        return f"{self.at!r} -> {self.next!r}"

    def _no_checkpoint(self) -> CheckpointNotFoundError:
        wanted = self.asked_for.checkpoint_id
        what = "a checkpoint" if wanted is None else f"checkpoint {wanted!r}"
        hint = "invoke it with an input first" if wanted is None else "see get_state_history"
        return CheckpointNotFoundError(self.config.thread, what, hint)

    def _too_long(self, node_id: str) -> GraphRunnerError:
        return self.failure(
            MaxIterationsError,
            f"the run has executed {self.limit} nodes, its max_iterations, and would go on with {node_id!r}",
            node_id,
        )


def _asked_once(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What waits again where an old checkpoint is resumed: a node's questions up to its first open one."""
    kept: dict[str, Any] = {}
    asking: set[str] = set()
    for key, stop in recorded.items():
        if stop["when"] == "inside" and ANSWER + key.removeprefix(INTERRUPT) not in given:
            if stop["node_id"] in asking:
                continue
            asking.add(stop["node_id"])
        kept[key] = stop
    return kept


def _tell(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
