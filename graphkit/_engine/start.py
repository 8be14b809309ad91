"""RunStart: how a run begins - from an input, from the state of an outer graph, or by a resume.

A resume may bring answers to interrupts: `RunStart` records them as pending writes, where the
journal finds them for `interrupt()`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Any, Final, NamedTuple, Self

from graphkit._engine import subgraph
from graphkit._engine.cursor import (
    CONTINUED_EXECUTION,
    WRITES_TAKEN_FROM,
    Steps,
    checkpoint_not_found,
)
from graphkit._engine.requests import Request
from graphkit._engine.run_state import RunState
from graphkit._engine.subgraph_updates import SUBGRAPH_UPDATES, strip_subgraph_updates
from graphkit._engine.update_codec import pack_if_marked, unpack_if_marked
from graphkit._plan.topology import Node
from graphkit._records.checkpoint import Checkpoint, to_datetime
from graphkit._records.config import START
from graphkit._records.output import GraphResume, When
from graphkit._saver.writes import (
    ANSWER,
    FAILURE,
    INTERRUPT,
    OUTER_EXECUTION,
    SUBGRAPH_INTERRUPT,
    UPDATE,
    interrupts_in,
    next_update_key,
    subgraph_interrupts,
    taken_answers,
    unanswered_interrupts,
)
from graphkit._values.frozen import freeze
from graphkit._wording import message_of
from graphkit.errors import (
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    GraphRunnerError,
    NodeExecutionError,
)

_SOURCES_OF_LOOP: Final = frozenset({"input", "loop"})
"""Values of `source` in the metadata of checkpoints at which a resume still makes the declared
stops; it does not after an update, a fork or an answer."""
_DECLARED_STOPS: Final = frozenset({"before", "after"})
"""Values of `when` of interrupts that the options declare."""


class DeclaredStop(NamedTuple):
    """A stop that `interrupt_before` or `interrupt_after` declares at a position."""

    node_id: str
    when: When


class RunStart(RunState):
    """A run up to its first step."""

    # From an input

    def _start(self, run_input: Mapping[str, Any]) -> Steps:
        if self.outer_execution is not None:
            self._adopt_outer_state(run_input)
        else:
            yield from self._load_and_merge(run_input)
        own = {"run_id": self.metadata.get("run_id") or self._new_id()}
        self.start_id = self.outer_execution or own["run_id"]
        if self.outer_execution is not None:
            own[OUTER_EXECUTION] = self.outer_execution
        self.metadata = self._run_metadata(own, {})
        self.next_node_id = yield from self.follow_edge(START)
        self.mark_position()
        if self.saver is not None and not self.stores_at_exit:
            yield from self.save("input")

    def _load_and_merge(self, run_input: Mapping[str, Any]) -> Steps:
        """Merge the input into the latest state of the thread, or into an initial state."""
        if self.saver is not None:
            self.base, _ = yield from self.load_base(self.requested_config)
            if self.base is None and self.requested_config.checkpoint_id is not None:
                raise self._checkpoint_not_found()
        if self.base is None:
            self.data = self.schema.initial_state()
            self.post_event("state.create", "verbose", START, keys=list(run_input))
        else:
            self._move_to_own_checkpoint(self.base)
            self.events.post_load(self.base)
        try:
            data, ops = self.schema.merge_input(self.data, self.absorb_private(run_input))
        except Exception as error:
            reason = f"the input cannot be merged: {message_of(error)}"
            raise self.make_error(GraphRunnerError, reason, START) from error
        self.set_data(data, ops)

    def _adopt_outer_state(self, outer_state: Mapping[str, Any]) -> None:
        assert self.subgraph_updates is not None
        try:
            self.data = self.schema.adopt(outer_state)
        except Exception as error:
            reason = f"the state of the outer graph does not fit the schema: {message_of(error)}"
            raise self.make_error(GraphRunnerError, reason, START) from error

    # By a resume

    def _resume(self, resume: GraphResume) -> Steps:
        self.resumed_at = to_datetime(self.clock.now() // 1000)
        added = yield from self.accept_resume(resume)
        base = self.base
        assert base is not None
        # An update may have died before it had recorded the writes that it took over.
        writes = self.writes if WRITES_TAKEN_FROM in base.metadata else added
        # A resume of an older checkpoint that only passes a stop leaves nothing to find again.
        brings_something = resume.has_value or resume.update is not None
        if writes and (self.is_latest or brings_something):
            yield from self.record(writes)
        self.events.post_resume(base, self.next_node_id, added)
        if self.next_node_id is None:  # `interrupt_before_edge` left the edge open
            stops_here = self.may_stop and self._find_declared_stop() is not None
            if not stops_here:
                self.next_node_id = yield from self.follow_edge(self.node_id)

    def accept_resume(self, resume: GraphResume) -> Generator[Request, Any, dict[str, Any]]:
        """Move to the position where a resume continues; store nothing yet.

        Returns:
            The pending writes that the resume adds.

        Raises:
            GraphRunnerError: the resume does not match what waits, here or in a nested graph.
        """
        base = yield from self._load_base()
        self._move_to_own_checkpoint(base)
        self.events.post_load(base)
        self._restore_subgraph_updates(base)
        self._restore_position(base)
        recorded = yield from self.load_writes(base)
        if not self.is_latest:  # its interrupts wait again, without their answers
            recorded = {key: value for key, value in recorded.items() if key.startswith(INTERRUPT)}
        was_interrupted = any(key.startswith((INTERRUPT, SUBGRAPH_INTERRUPT)) for key in recorded)
        self._restore_execution(base, was_interrupted=was_interrupted)
        self.writes = recorded
        added = self._writes_of(resume, unanswered_interrupts(recorded))
        stored_by_loop = base.metadata.get("source") in _SOURCES_OF_LOOP
        self.may_stop = stored_by_loop and not was_interrupted
        self.must_emit = False
        if not self.is_latest:
            recorded = _first_open_interrupts(recorded, added)
        added.update(taken_answers({**recorded, **added}))
        if recorded.get(FAILURE) is not None:
            added[FAILURE] = None
            self.mark_unclean()
        self.writes = {**recorded, **added}
        self.mark_position()  # before the merge, as every resume merges the recorded updates again
        self._merge_recorded_updates(added)
        if self.step_updates is not None:
            self.step_updates.clear()  # no node returned these updates
        yield from subgraph.accept_resumes(self, self.topology, self._make_trial_run)
        return added

    def _load_base(self) -> Generator[Request, Any, Checkpoint]:
        """Load the checkpoint to resume, and find out whether it is the latest of the thread."""
        if self.saver is None:
            raise CheckpointerConfigurationError(
                "a resume needs a saver: compile the graph with checkpoint_saver=..., and checkpoint_interval above 0"
            )
        is_outermost = self.outer_execution is None
        base, latest = yield from self.load_base(self.requested_config, is_outermost=is_outermost)
        if base is None:
            raise self._checkpoint_not_found()
        if self.requested_config.checkpoint_id is not None:
            self.is_latest = latest is not None and latest.id == base.id
        return base

    def _move_to_own_checkpoint(self, base: Checkpoint) -> None:
        """Make a stored checkpoint the base of this run.

        Raises:
            GraphRunnerError: the checkpoint belongs to a nested graph, and this run has no outer
                run.
        """
        if self.outer_execution is None and OUTER_EXECUTION in base.metadata:
            raise self.make_error(
                GraphRunnerError,
                f"checkpoint_ns={self.config.checkpoint_ns!r} is the history of a subgraph, which only its outer "
                f"graph runs: leave checkpoint_ns out; a resume passes answers on to the subgraph that waits",
            )
        self.base = base
        self.move_to_checkpoint(base)

    def _restore_subgraph_updates(self, base: Checkpoint) -> None:
        """Take over what a nested graph had collected for its outer graph."""
        collected = self.subgraph_updates
        if collected is None:
            return
        collected.entries = base.state.get(SUBGRAPH_UPDATES, collected.entries)
        if self.changes is None:  # a migration has changed the state
            collected.add_renamed_keys(strip_subgraph_updates(base.state), self.data)

    def _restore_position(self, base: Checkpoint) -> None:
        self.is_saved = True
        self.node_id = base.node_id
        self.next_node_id = base.next_node_id
        if self.next_node_id is not None:
            self.next_node_id = self._require_target(self.next_node_id)

    def _require_target(self, stored: str) -> str:
        """Return the node or fork that a stored next node means in this version of the graph."""
        target = self.topology.resolve_target(stored)
        if target is None:
            raise self.make_error(
                GraphRunnerError,
                f"the stored next node {stored!r} is not a node of this graph; "
                f"add it again, or choose another with update_state(config, {{}}, goto=...)",
                stored,
            )
        return target

    def _restore_execution(self, base: Checkpoint, *, was_interrupted: bool) -> None:
        """Take over the metadata of the run, its step, and the start of the node execution."""
        inherited = self.inherited_metadata(base)
        own = {"run_id": inherited["run_id"]} if "run_id" in inherited else {}
        self.metadata = self._run_metadata(own, inherited)
        self.step = 0 if was_interrupted else base.metadata.get("step", 0)
        self.start_step = self.step
        if self.is_latest:
            self.start_id = base.metadata.get(CONTINUED_EXECUTION, base.id)
        else:
            self.start_id = self._new_id()

    def _new_id(self) -> str:
        return self.clock.new_id(self.clock.now() // 1_000_000)

    def _make_trial_run(self, node: Node) -> Self:
        """Make the run of a nested graph that only checks a resume."""
        nested = self._make_nested_run(self, node, "")
        nested.post = None
        return nested

    # What a resume contains

    def _writes_of(self, resume: GraphResume, waiting: dict[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the pending writes that a resume adds.

        Args:
            resume: what the caller gave.
            waiting: the unanswered interrupts, by id.

        Raises:
            GraphRunnerError: the resume has a value that no interrupt waits for. Nothing is stored.
        """
        own_resume = self._split(resume, waiting)
        # A declared stop is passed by any resume, with or without an answer.
        added: dict[str, Any] = {
            ANSWER + interrupt_id: None
            for interrupt_id, interrupt in waiting.items()
            if interrupt["when"] in _DECLARED_STOPS
        }
        if own_resume.has_value:
            if not waiting:
                raise self.make_error(
                    GraphRunnerError,
                    "nothing waits for an answer here; give GraphResume(update={...}) to change the state",
                )
            for interrupt_id, answer in self._answers_by_id(own_resume.value, waiting).items():
                added[ANSWER + interrupt_id] = answer
        update: Any = own_resume.update
        if update is not None:
            if not isinstance(update, Mapping):
                reason = f"update= must be a mapping, not {type(update).__name__}"
                raise self.make_error(GraphRunnerError, reason)
            added[next_update_key(self.writes)] = self._pack_update(update)
        try:
            return {key: freeze(value) for key, value in added.items()}
        except ValueError as error:
            raise self._cannot_store(error) from error

    def _split(self, resume: GraphResume, waiting: Mapping[str, Any]) -> GraphResume:
        """Return this graph's part of a resume, and keep the parts of its nested graphs."""
        nested = subgraph_interrupts(self.writes)
        try:
            parts = subgraph.split_resume(resume, waiting, nested)
        except ValueError as error:
            raise self.make_error(GraphRunnerError, str(error)) from error
        self.resumes_by_namespace = parts.by_namespace
        return parts.own

    def _answers_by_id(self, value: Any, waiting: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to each interrupt that the value of a resume is for."""
        if isinstance(value, Mapping) and value and all(key in waiting for key in value):
            answers: Mapping[str, Any] = value
        else:
            answers = dict.fromkeys(self._addressed_interrupts(waiting), value)
        checked: dict[str, Any] = {}
        for interrupt_id, answer in answers.items():
            if waiting[interrupt_id]["when"] == "inside":
                checked[interrupt_id] = answer
            else:
                checked[interrupt_id] = self._check_declared_answer(answer)
        return checked

    def _addressed_interrupts(self, waiting: Mapping[str, Any]) -> list[str]:
        """Return the interrupts that an answer without an id is for.

        Returns:
            The id of the `interrupt()` call that waits; without one, the ids of all declared stops.

        Raises:
            GraphRunnerError: several node executions wait at an `interrupt()` call.
        """
        inside = {
            interrupt_id: interrupt for interrupt_id, interrupt in waiting.items() if interrupt["when"] == "inside"
        }
        if not inside:
            return [*waiting]
        executions = {interrupt.get("key", "") for interrupt in inside.values()}
        if len(executions) > 1:
            known = ", ".join(map(repr, waiting))
            reason = f"several interrupts wait: resume with a mapping of id to answer; the ids are {known}"
            raise self.make_error(GraphRunnerError, reason)
        # A node makes one `interrupt()` call after the other: the first is the one that waits.
        return [next(iter(inside))]

    def _check_declared_answer(self, value: Any) -> Mapping[str, Any]:
        """Return the answer to a declared stop as it is recorded: an update of the state."""
        if not isinstance(value, Mapping):
            raise self.make_error(
                GraphRunnerError,
                f"the run stopped at {self.node_id!r} -> {self.next_node_id!r}: resume with a mapping to merge into "
                f"the state, or without a value, not with {type(value).__name__}",
            )
        return self._pack_update(value)

    def _pack_update(self, update: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an update without the transient keys, its markers as plain values."""
        try:
            return pack_if_marked(self.absorb_private(update))
        except ValueError as error:
            raise self._cannot_store(error) from error

    def _cannot_store(self, error: ValueError) -> GraphRunnerError:
        reason = f"the value or update of the resume cannot be stored: {error}"
        return self.make_error(GraphRunnerError, reason)

    def _merge_recorded_updates(self, added: Collection[str]) -> None:
        """Merge answers to declared stops and updates of resumes, in the order of their arrival.

        Args:
            added: the keys of those that this resume brings.
        """
        interrupts = interrupts_in(self.writes)
        for key, value in self.writes.items():
            if not _is_update_write(key, value, interrupts):
                continue
            try:
                self.merge(self.node_id, unpack_if_marked(value))
            except NodeExecutionError as error:
                reason = f"the value or update of the resume cannot be merged: {message_of(error.__cause__ or error)}"
                if key not in added:
                    reason += "; it was stored for this resume, and a rollback to the latest checkpoint drops it"
                raise self.make_error(GraphRunnerError, reason, self.next_node_id) from error.__cause__

    # Declared stops, and errors

    def _find_declared_stop(self) -> DeclaredStop | None:
        """Find the declared stop at the current position."""
        program = self.program
        if self.node_id in program.after:
            return DeclaredStop(program.after[self.node_id], "after")
        if self.next_node_id in program.before:
            return DeclaredStop(program.before[self.next_node_id], "before")
        return None

    def _checkpoint_not_found(self) -> CheckpointNotFoundError:
        hint = "see get_state_history"
        if self.requested_config.checkpoint_id is None:
            hint = "invoke it with an input first"
        return checkpoint_not_found(self.requested_config, hint)


def _is_update_write(key: str, value: Any, interrupts: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a pending write holds an update that a resume merges into the state."""
    if key.startswith(UPDATE):
        return True
    if value is None or not key.startswith(ANSWER):
        return False
    interrupt = interrupts.get(key.removeprefix(ANSWER))
    return interrupt is not None and interrupt["when"] != "inside"


def _first_open_interrupts(recorded: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the interrupts that wait again when an older checkpoint is resumed.

    Args:
        recorded: the interrupts of the checkpoint.
        added: the pending writes that the resume adds, answers among them.

    Returns:
        The interrupts, but of each node execution only those up to its first unanswered one.
    """
    kept: dict[str, Any] = {}
    waiting: set[tuple[str, str]] = set()
    for key, interrupt in recorded.items():
        is_answered = ANSWER + key.removeprefix(INTERRUPT) in added
        if interrupt["when"] == "inside" and not is_answered:
            execution = (interrupt["node_id"], interrupt.get("key", ""))
            if execution in waiting:
                continue
            waiting.add(execution)
        kept[key] = interrupt
    return kept
