"""How a run goes on from a stored checkpoint, with what a human answered.

`plan_resume` decides it, and changes nothing. `prepare_resume` loads what that takes, moves the
history and the state there, and checks the nested graphs. It stores nothing: a resume that does not
fit what waits, here or in a nested graph, leaves no trace.

`update_state` corrects a stored state instead: a loop of its own, with the same requests. It runs no node.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from datetime import datetime
from typing import Any, Final

from graphkit._engine.history import ResumePlan, RunHistory, checkpoint_not_found
from graphkit._engine.requests import Request
from graphkit._engine.routing import follow_edge
from graphkit._engine.state import SUBGRAPH_UPDATES, RunState, pack_if_marked, unpack_if_marked
from graphkit._plan.topology import Topology
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.context import ABSENT
from graphkit._records.output import GraphResume
from graphkit._saver.status import CONTINUED_EXECUTION, WRITES_TAKEN_FROM, has_only_requests
from graphkit._saver.writes import (
    ANSWER,
    ASLEEP,
    CANCELLED,
    DECLARED_STOPS,
    FAILURE,
    INTERRUPT,
    OUTER_EXECUTION,
    RESUMED,
    STOP_PREFIXES,
    SUBMIT,
    UPDATE,
    Submission,
    answers_of_time,
    asked_again,
    can_answer,
    first_open_interrupts,
    has_expired,
    is_pause,
    next_update_key,
    stops_in,
    subgraph_interrupts,
    subgraph_namespace,
    taken_answers,
    unanswered_stops,
    writes_of_copy,
)
from graphkit._values.frozen import freeze
from graphkit._wording import message_of
from graphkit.errors import CheckpointerConfigurationError, GraphRunnerError, NodeExecutionError

HOW_TO_ANSWER: Final = "an answer is an input: invoke(GraphResume(answer), thread)"
_SOURCES_THAT_STOP: Final = frozenset({"input", "loop", "fork"})
"""Values of `source` in the metadata of checkpoints at which a resume makes the declared stops if none is
recorded; it does not after an update or an answer. A thread that was forked has no stops at its earlier
checkpoints, to which a rollback may return."""


def prepare_resume(history: RunHistory, resume: GraphResume) -> Generator[Request, Any, ResumePlan]:
    """Move a run to the position where a resume continues; store nothing yet.

    The updates are merged, unless the run has not begun: they come after its input.

    Raises:
        GraphRunnerError: the resume does not match what waits, here or in a nested graph.
        CheckpointNotFoundError: there is nothing to resume.
    """
    if history.saver is None:
        raise CheckpointerConfigurationError(
            "a resume needs a saver: compile the graph with checkpoint_saver=..., and checkpoint_interval above 0"
        )
    base = yield from history.load_base()
    if base is None:
        hint = "invoke it with an input first"
        if history.requested_config.checkpoint_id:
            hint = f"see get_state_history; {HOW_TO_ANSWER}"
        raise checkpoint_not_found(history.requested_config, hint)
    history.go_on_from(base)
    writes = yield from history.load_writes(base)
    state = history.state
    try:
        plan = plan_resume(history, base, writes, resume)
    except GraphRunnerError as error:
        history.reporter.add_place(error, error.node_id, state.data)
        raise
    # The position is the stored state, without the updates that this resume and earlier ones bring:
    # those are pending writes at it. If the next node fails, the run returns to the position, and
    # the next resume merges the updates again, once.
    history.apply(plan)
    if plan.submission is None:
        merge_updates(state, plan)
    yield from _check_nested(history, plan)
    return plan


# The plan


def plan_resume(history: RunHistory, base: Checkpoint, writes: Mapping[str, Any], resume: GraphResume) -> ResumePlan:
    """Decide how a resume goes on from a checkpoint. Changes nothing.

    Args:
        history: the history; of its state, only the graph and the transient keys matter here.
        base: the checkpoint.
        writes: its pending writes.
        resume: what the caller gave.

    Raises:
        GraphRunnerError: the resume does not match what waits; names no place but a node.
    """
    state = history.state
    now = history.now()
    is_latest = history.is_latest
    submission = Submission.find(base.next_node_id, base.metadata)
    next_node_id = base.next_node_id
    if submission is None:
        next_node_id = _resolve_next_node(state.topology, base)

    # What waits at the checkpoint, and which part of the resume is for it.
    recorded = dict(writes)
    if not is_latest:  # its interrupts wait again, without their answers
        recorded = asked_again(recorded, now)
    kept_stops = _find_kept_stops(history, base, recorded, resume)
    passed = {key: value for key, value in recorded.items() if key.removeprefix(INTERRUPT) not in kept_stops}
    was_interrupted = any(key.startswith(STOP_PREFIXES) for key in passed)
    waiting = unanswered_stops(passed, INTERRUPT)
    own, nested = _divide_resume(resume, waiting, subgraph_interrupts(recorded))
    stopped_at = (base.node_id, next_node_id)
    brought, with_private = _read_own_part(state, own, waiting, recorded, stopped_at, now)

    # What the resume records: what it brings, the answers that time has given, which answers the run
    # takes, and that the run no longer rests. The run lock is held, so that no human answers between
    # the look at the clock and the record.
    added = {**answers_of_time(recorded, now), **brought}
    if not is_latest:
        recorded = first_open_interrupts(recorded, added)
    # Answers may have been recorded by `graphkit.operations.answer`, long before this resume. From
    # here on, readers see that a run has taken them.
    added.update(taken_answers({**recorded, **added}))
    # A request to stop stays: it may have come since this run has its lock.
    for key in (FAILURE, CANCELLED):
        if recorded.get(key) is not None:
            added[key] = None
    if added and recorded.get(ASLEEP) is not None:
        added[ASLEEP] = None

    stops_here = base.metadata.get("source") in _SOURCES_THAT_STOP
    return ResumePlan(
        base=base,
        next_node_id=next_node_id,
        submission=submission,
        # A stop for a human starts a new count: the human has seen that the run goes on.
        step=0 if was_interrupted else base.metadata.get("step", 0),
        may_stop=submission is not None or bool(kept_stops) or (stops_here and not was_interrupted),
        recorded=recorded,
        added=added,
        with_private=with_private,
        nested=nested,
    )


def _resolve_next_node(topology: Topology, base: Checkpoint) -> str | None:
    """Return the node or fork of this version of the graph that is next after a checkpoint; None if an edge decides.

    Raises:
        GraphRunnerError: this version of the graph has no such node.
    """
    stored = base.next_node_id
    if stored is None:
        return None
    target = topology.resolve_target(stored)
    if target is None:
        raise GraphRunnerError(
            f"the stored next node {stored!r} is not a node of this graph; "
            f"add it again, or choose another with update_state(config, {{}}, goto=...)",
            node_id=stored,
        )
    return target


def _find_kept_stops(
    history: RunHistory, base: Checkpoint, recorded: Mapping[str, Any], resume: GraphResume
) -> set[str]:
    """Return the ids of the declared stops at which the run stops again, because no human has seen them.

    Those of a nested run, if the outer run has not recorded them, or if the resume answers something else. Those
    of any run, if an update or a rollback has died, so that its checkpoint lacks the stops of the one before.
    """
    stops = {
        stop_id
        for stop_id, stop in unanswered_stops(recorded, INTERRUPT).items()
        if stop["when"] in DECLARED_STOPS and not is_pause(stop)
    }
    if history.passable_stops is not None:
        return stops - history.passable_stops
    was_shown = resume.has_value or not history.is_latest or history.writes_from == base.id
    return set() if was_shown else stops


def _read_own_part(
    state: RunState,
    resume: GraphResume,
    waiting: Mapping[str, Mapping[str, Any]],
    recorded: Mapping[str, Any],
    stopped_at: tuple[str, str | None],
    now: datetime,
) -> tuple[Mapping[str, Any], Mapping[str, Mapping[str, Any]]]:
    """Return what a resume brings for one graph, its nested graphs aside.

    That is the pending writes that it adds; and those updates among them that have transient keys, as they were
    given: what is recorded lacks these keys.

    Args:
        state: its graph, and the transient keys.
        resume: the part of the resume that is for this graph; its value is a mapping of id to answer.
        waiting: the unanswered interrupts, by id.
        recorded: the pending writes.
        stopped_at: the node that has finished and the next one.
        now: the time.

    Raises:
        GraphRunnerError: an answer comes after the deadline, or cannot be merged or stored.
    """
    # A declared stop is passed by any resume, with or without an answer. None says so: without it,
    # a crash of the next node would leave the thread waiting for a human who has already acted.
    writes: dict[str, Any] = {
        ANSWER + interrupt_id: None
        for interrupt_id, interrupt in waiting.items()
        if interrupt["when"] in DECLARED_STOPS
    }
    updates: dict[str, Any] = {}
    if resume.has_value:
        for interrupt_id, answer in resume.value.items():
            when = waiting[interrupt_id]["when"]
            deadline = waiting[interrupt_id].get("deadline")
            if deadline is not None and has_expired(deadline, now):
                raise GraphRunnerError(
                    f"the answer is too late: the deadline of interrupt {interrupt_id} was {deadline.isoformat()}; "
                    f"resume without an answer"
                )
            if not can_answer(when, answer):
                node_id, next_node_id = stopped_at
                raise GraphRunnerError(
                    f"the run stopped at {node_id!r} -> {next_node_id!r}: resume with a mapping to merge into "
                    f"the state, or without a value, not with {type(answer).__name__}"
                )
            part = writes if when == "inside" else updates
            part[ANSWER + interrupt_id] = answer
    update: Any = resume.update
    if update is not None:
        if not isinstance(update, Mapping):
            raise GraphRunnerError(f"update= must be a mapping, not {type(update).__name__}")
        updates[next_update_key(recorded)] = update
    with_private: dict[str, Mapping[str, Any]] = {}
    try:
        for key, given in updates.items():
            public, private = state.split_private(given)
            writes[key] = pack_if_marked(public)
            if private:
                with_private[key] = given
        frozen = {key: freeze(value) for key, value in writes.items()}
    except ValueError as error:
        raise GraphRunnerError(f"the value or update of the resume cannot be stored: {error}") from error
    return frozen, with_private


def _divide_resume(
    resume: GraphResume, waiting: Mapping[str, Any], nested: Mapping[str, str]
) -> tuple[GraphResume, dict[str, GraphResume]]:
    """Divide a resume: return the part of a graph itself, and those of the nested graphs that wait, by namespace.

    The value of the part of the graph itself is a mapping of id to answer.

    Args:
        resume: what the caller gave.
        waiting: the unanswered interrupts of the graph itself, by id.
        nested: the namespaces of the interrupts in nested graphs, by id.

    Raises:
        GraphRunnerError: it is ambiguous what the value or the update is for, or nothing waits for a value.
    """
    asks_itself = not all(map(is_pause, waiting.values()))  # any resume ends a pause
    namespaces = set(nested.values())
    answers: Mapping[str, Any] = {}
    values: dict[str, Any] = {}
    if resume.has_value:
        value = resume.value
        known = dict.fromkeys((*waiting, *nested))
        inside = [interrupt_id for interrupt_id, interrupt in waiting.items() if interrupt["when"] == "inside"]
        executions = {waiting[interrupt_id].get("key", "") for interrupt_id in inside}
        if not known:
            raise GraphRunnerError(
                "nothing waits for an answer here; give GraphResume(update={...}) to change the state"
            )
        if isinstance(value, Mapping) and value and all(key in known for key in value):
            answers = {interrupt_id: answer for interrupt_id, answer in value.items() if interrupt_id in waiting}
            for interrupt_id, answer in value.items():
                if interrupt_id in nested:
                    values.setdefault(nested[interrupt_id], {})[interrupt_id] = answer
        elif len(executions) > 1 or len(namespaces) > 1 or (nested and asks_itself):
            ids = ", ".join(map(repr, known))
            raise GraphRunnerError(f"several interrupts wait: resume with a mapping of id to answer; the ids are {ids}")
        elif nested:
            values = dict.fromkeys(namespaces, value)
        elif inside:
            # A node makes one `interrupt()` call after the other: the first is the one that waits.
            answers = {inside[0]: value}
        else:
            answers = dict.fromkeys(waiting, value)
    # An update is for this graph if it waits itself, and otherwise for the nested graph that does.
    update = resume.update
    updates: dict[str, Mapping[str, Any] | None] = {}
    if nested and update is not None and not asks_itself:
        if len(namespaces) > 1:
            raise GraphRunnerError(
                f"several subgraphs wait ({', '.join(sorted(map(repr, namespaces)))}): "
                f"change the state of one with update_state at its checkpoint_ns"
            )
        updates = dict.fromkeys(namespaces, update)
        update = None
    by_namespace = {
        namespace: GraphResume(values.get(namespace, ABSENT), update=updates.get(namespace))
        for namespace in {*values, *updates}
    }
    return GraphResume(answers or ABSENT, update=update), by_namespace


# The updates


def _find_updates(writes: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the updates among pending writes: those of resumes, and answers to declared stops."""
    interrupts = stops_in(writes, INTERRUPT)
    declared = {ANSWER + stop_id for stop_id, stop in interrupts.items() if stop["when"] != "inside"}
    return {
        key: value for key, value in writes.items() if key.startswith(UPDATE) or (key in declared and value is not None)
    }


def merge_updates(state: RunState, plan: ResumePlan) -> None:
    """Merge the updates into the state, in the order of their arrival."""
    for key, recorded in _find_updates({**plan.recorded, **plan.added}).items():
        update = plan.with_private.get(key) or unpack_if_marked(recorded)
        try:
            state.merge(plan.base.node_id, update)
        except NodeExecutionError as error:
            cause = error.__cause__ or error
            reason = f"the value or update of the resume cannot be merged: {message_of(cause)}"
            if key not in plan.added:
                reason += "; it was stored for this resume, and a rollback to the latest checkpoint drops it"
            raise state.make_error(GraphRunnerError, reason, plan.next_node_id) from error.__cause__


def post_resume(history: RunHistory, plan: ResumePlan) -> None:
    """Post that the run resumes, and with which answers: those of the resume, and those that were stored before."""
    post_event = history.reporter.post_event
    next_node_id = plan.next_node_id
    data = {"run_id": history.metadata.run_id, "checkpoint_node": plan.base.node_id, "resume_node": next_node_id}
    post_event("checkpoint.resume", next_node_id, data)
    for interrupt_id, interrupt in stops_in(plan.recorded, INTERRUPT).items():
        taken = plan.added.get(RESUMED + interrupt_id)
        if taken is None:  # it waits, or an earlier resume took its answer
            continue
        answer = plan.added.get(ANSWER + interrupt_id, plan.recorded.get(ANSWER + interrupt_id))
        if answer is None and interrupt["when"] != "inside":  # a declared stop, passed without an answer
            continue
        by = "deadline" if isinstance(taken, Mapping) else "human"
        post_event("interrupt.answered", next_node_id, {"id": interrupt_id, "by": by})


# Nested graphs


def _check_nested(history: RunHistory, plan: ResumePlan) -> Generator[Request, Any, None]:
    """Check that the nested graphs accept what a resume brings for them, before anything is stored.

    Each of them is prepared as if it were resumed, and then forgotten: only the node execution that
    runs it knows when. Its own nested graphs are checked with it.

    Raises:
        GraphRunnerError: a nested graph refuses it, or no longer waits.
    """
    for node_id in history.program.topology.nested:
        resume = plan.nested.get(subgraph_namespace(history.config.checkpoint_ns, node_id))
        if resume is None:
            continue
        # No key: the node may be in a branch or reached by an edge that is not evaluated yet. Only
        # the start of the execution is compared, which all nodes of this position share.
        nested = history.open_nested(node_id, history.state, "")
        nested.reporter.post = None
        nested_plan = yield from prepare_resume(nested, resume)
        execution = nested_plan.base.metadata.get(OUTER_EXECUTION, "")
        if not execution.startswith(f"{history.execution_start()}/"):
            reason = f"the interrupt in subgraph {node_id!r} was already answered, or the run has moved past it"
            raise history.state.make_error(GraphRunnerError, reason, node_id)


# A correction


def check_update(topology: Topology, as_node: str | None, goto: str | None) -> None:
    """Check what is to be next after an update.

    Raises:
        GraphRunnerError: `as_node` or `goto` cannot be the next node, or both are given.
    """
    if as_node is not None and goto is not None:
        raise GraphRunnerError("give as_node or goto, not both: each says which node comes next")
    for name, value in {"as_node": as_node, "goto": goto}.items():
        candidate: object = value
        if candidate is not None and not isinstance(candidate, str):
            raise GraphRunnerError(f"{name}={value!r} is not a node id: give one node id, a str")
    if as_node is not None and as_node not in topology.edges:
        reason = "has no outgoing edge" if as_node in topology.nodes else "is not a node of the graph"
        raise GraphRunnerError(f"as_node={as_node!r} {reason}", node_id=as_node)
    if goto is not None and topology.resolve_target(goto) is None:
        raise GraphRunnerError(f"goto={goto!r} is not a node of the graph", node_id=goto)


def update_state(
    history: RunHistory,
    values: Mapping[str, Any] | None,
    as_node: str | None,
    goto: str | None,
    *,
    outer_channels: Collection[str],
) -> Generator[Request, Any, RunnableConfig]:
    """Append a child of a checkpoint, with values merged in; see `CompiledGraph.update_state`.

    Decides the next node, and checks everything before it stores anything.

    Args:
        history: the history that it continues.
        values: merged into the state.
        as_node: the node that the values are attributed to; checked by `check_update`.
        goto: the next node; checked likewise.
        outer_channels: the keys that the outer graph has channels for; none without one.

    Returns:
        The config of the new checkpoint.
    """
    state = history.state
    assert history.saver is not None
    base = yield from history.load_base()
    if base is None:
        raise checkpoint_not_found(history.requested_config)
    if SUBGRAPH_UPDATES in base.state:  # the update is one more that the outer graph merges
        state.collect_subgraph_updates(outer_channels)
    history.move_to(base)
    node_id = as_node or base.node_id
    try:
        state.merge(node_id, values)
    except NodeExecutionError as error:  # no node has returned the values: the message blames none
        cause = error.__cause__ or error
        reason = f"the values of update_state cannot be merged: {message_of(cause)}"
        raise state.make_error(NodeExecutionError, reason, node_id) from error.__cause__
    next_node_id = base.next_node_id if goto is None else state.topology.resolve_target(goto)
    if as_node is not None:
        next_node_id = yield from follow_edge(state, as_node)
    writes = yield from history.load_writes(base)
    # Without a node of its own the update leaves the run where it is: the interrupts that wait
    # there, and their answers, remain valid. At an earlier checkpoint that node execution is over:
    # the next node is executed again, as by a resume there. So it is if the base is such an update,
    # and its process died before it had recorded what waits again.
    keeps_position = as_node is None and goto is None
    was_cut_short = history.writes_from != base.id and CONTINUED_EXECUTION not in base.metadata
    continues = history.is_latest and not was_cut_short
    was_interrupted = any(key.startswith(STOP_PREFIXES) for key in writes)
    marks: dict[str, Any] = {}
    if keeps_position:
        if continues:
            marks[CONTINUED_EXECUTION] = base.metadata.get(CONTINUED_EXECUTION, base.id)
        else:
            writes = writes_of_copy(writes, history.now())
        if SUBMIT in base.metadata:
            marks[SUBMIT] = base.metadata[SUBMIT]
        if not has_only_requests(writes):
            # If the process dies before it has recorded the writes, a resume finds them there.
            marks[WRITES_TAKEN_FROM] = history.writes_from
    history.inherit(base, 0 if was_interrupted else base.metadata.get("step", 0))
    history.mark(node_id, next_node_id)
    yield from history.save("update", marks)
    if keeps_position:
        yield from history.record(writes)
    return history.base_config.replace(next_node=next_node_id)
