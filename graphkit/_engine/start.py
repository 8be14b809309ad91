"""How a run begins: from an input, from the state around an embedded graph, or where it stood, with an answer."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from graphkit._engine import subgraph
from graphkit._engine.cursor import CONTINUED_EXECUTION, WRITES_TAKEN_FROM, Steps, checkpoint_not_found
from graphkit._engine.requests import Load, Request
from graphkit._engine.run_state import RunState
from graphkit._engine.subgraph_updates import EXTRA, strip_subgraph_updates
from graphkit._engine.update_codec import pack_marked, unpack_marked
from graphkit._records.checkpoint import Checkpoint, generate_id
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
    unanswered_interrupts,
)
from graphkit._values.frozen import freeze
from graphkit.errors import (
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    GraphRunnerError,
    NodeExecutionError,
)

OWN_SOURCES: Final = frozenset({"input", "loop"})
"""Values of the metadata's `source` at which a resume still owes the declared stops; update, fork and answer do not."""


class RunStart(RunState):
    """A run up to its first step."""

    def _start(self, given: Mapping[str, Any]) -> Steps:
        if self.within is not None:
            self._adopt(given)
        else:
            yield from self._begin(given)
        own = {"run_id": self.metadata.get("run_id") or generate_id()}
        self.began = self.within or own["run_id"]
        self.metadata = self._new_metadata(own if self.within is None else {**own, OUTER_EXECUTION: self.within}, {})
        self.next = yield from self.follow(START)
        self.stand_here()
        if self.saver is not None and not self.exits:
            yield from self.save("input")

    def _begin(self, given: Mapping[str, Any]) -> Steps:
        if self.saver is not None:
            self.base = yield Load(self.saver, self.asked_for)
            if self.base is None and self.asked_for.checkpoint_id is not None:
                raise self._no_checkpoint()
        if self.base is None:
            self.data = self.schema.initial_state()
            self.tell("state.create", "verbose", START, keys=list(given))
        else:
            self._take(self.base)
            self.tell_load(self.base)
        try:
            self.move_to(*self.schema.merge_input(self.data, self.without_private(given)))
        except Exception as error:
            raise self.failure(GraphRunnerError, f"the input cannot be merged: {error}", START) from error

    def _adopt(self, given: Mapping[str, Any]) -> None:
        """Begin with the state of the graph around this one."""
        assert self.contribution is not None
        try:
            self.data = self.schema.adopt(given)
        except Exception as error:
            reason = f"the state of the graph around it does not fit: {error}"
            raise self.failure(GraphRunnerError, reason, START) from error

    def _resume(self, resume: GraphResume) -> Steps:
        self.resumed_at = datetime.now(UTC)
        given = yield from self.accept(resume)
        base = self.base
        assert base is not None
        # After an update all of it, in case the update died before it had taken over the record.
        writes = self.writes if WRITES_TAKEN_FROM in base.metadata else given
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
                self.contribution.migrated(strip_subgraph_updates(base.state), self.data)
        self.at = base.node_id
        self.next = base.next_node_id
        if self.next is not None:
            self.next = self._still_there(self.next)
        recorded = yield from self.load_writes(base)
        if not self.is_latest:  # what waited here waits again, unanswered
            recorded = {key: value for key, value in recorded.items() if key.startswith(INTERRUPT)}
        was_stopped = any(key.startswith((INTERRUPT, SUBGRAPH_INTERRUPT)) for key in recorded)
        carried = self.carried(base)
        self.metadata = self._new_metadata({"run_id": carried["run_id"]} if "run_id" in carried else {}, carried)
        self.step = self.passed = 0 if was_stopped else base.metadata.get("step", 0)
        self.began = base.metadata.get(CONTINUED_EXECUTION, base.id) if self.is_latest else generate_id()
        self.writes = recorded
        given = self._given(resume, unanswered_interrupts(recorded))
        owes_stop = not was_stopped and base.metadata.get("source") in OWN_SOURCES
        self.may_stop, self.has_arrived = owes_stop, False
        if not self.is_latest:
            recorded = _asked_once(recorded, given)
        if recorded.get(FAILURE) is not None:
            given[FAILURE] = None
            self.spoil()
        self.writes = {**recorded, **given}
        self.stand_here()  # what is recorded is merged again by every resume
        self._merge_recorded()
        if self.updates is not None:
            self.updates.clear()  # those are no node's
        yield from subgraph.accept(self, type(self))
        return given

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

    def _take(self, base: Checkpoint) -> None:
        """Stand where a stored checkpoint stands, if it is of this graph's own history."""
        if self.within is None and OUTER_EXECUTION in base.metadata:
            raise self.failure(
                GraphRunnerError,
                f"checkpoint_ns={self.config.checkpoint_ns!r} is the history of a subgraph, which only the graph "
                f"around it runs: leave checkpoint_ns out, and what a resume brings goes to the one that waits",
            )
        self.base = base
        self.move_to_checkpoint(base)

    def _still_there(self, place: str) -> str:
        found = self.topology.resolve_target(place)
        if found is None:
            raise self.failure(
                GraphRunnerError,
                f"the stored next node {place!r} is not a node of this graph; "
                f"add it again, or choose another with update_state(config, {{}}, goto=...)",
                place,
            )
        return found

    def _given(self, resume: GraphResume, waiting: dict[str, Mapping[str, Any]]) -> dict[str, Any]:
        """What a resume adds to the record; refuses what nothing waits for, before anything is stored."""
        inner = subgraph_interrupts(self.writes)
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
            given[next_update_key(self.writes)] = self._recordable(resume.update)
        try:
            return {key: freeze(value) for key, value in given.items()}
        except ValueError as error:
            raise self.failure(GraphRunnerError, f"what the resume brought cannot be kept: {error}") from error

    def _split(self, resume: GraphResume, waiting: Mapping[str, Any], inner: Mapping[str, str]) -> GraphResume:
        """What of a resume is for this graph; the rest is for the embedded graphs that wait."""
        try:
            mine, self.for_children = subgraph.split(resume, waiting, inner)
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
        return self._recordable(value)

    def _recordable(self, update: Mapping[str, Any]) -> Mapping[str, Any]:
        """An update without the transient keys, its markers as plain values."""
        try:
            return pack_marked(self.without_private(update))
        except ValueError as error:
            raise self.failure(GraphRunnerError, f"what the resume brought cannot be kept: {error}") from error

    def _merge_recorded(self) -> None:
        """Merge the answers to declared stops and the updates that came with resumes, in the order they came."""
        stops = interrupts_in(self.writes)
        for key, value in self.writes.items():
            answered = stops.get(key.removeprefix(ANSWER)) if key.startswith(ANSWER) and value is not None else None
            if key.startswith(UPDATE) or (answered is not None and answered["when"] != "inside"):
                try:
                    self.merge(self.at, unpack_marked(value))
                except NodeExecutionError as error:
                    reason = f"what the resume brought cannot be merged: {error.__cause__}"
                    raise self.failure(GraphRunnerError, reason, self.next) from error.__cause__

    def _declared_stop(self) -> tuple[str, When, str] | None:
        if self.at in self.program.after:
            return self.program.after[self.at], "after", ""
        if self.next in self.program.before:
            return self.program.before[self.next], "before", ""
        return None

    def _place(self) -> str:
        return f"{self.at!r} -> {self.next!r}"

    def _no_checkpoint(self) -> CheckpointNotFoundError:
        is_latest = self.asked_for.checkpoint_id is None
        return checkpoint_not_found(
            self.asked_for, "invoke it with an input first" if is_latest else "see get_state_history"
        )


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
