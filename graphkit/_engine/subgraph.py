"""A nested graph: a node that is a graph, run inside the outer run, in a namespace of its own.

It is driven by the same loop. Its requests go to the driver of the outer run, with two exceptions:
it does not release the run lock, and its outputs are flagged. Its checkpoints are stored in the
namespace `<node id>`, below that of the outer graph, with the node execution that they belong to.
So a resume finds out whether this execution had begun, and continues inside.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Any, Final

from graphkit._engine.history import RunHistory, Steps
from graphkit._engine.requests import Emit, Finish, Hold, Load, LoadWrites, Record, Request, Save
from graphkit._engine.state import RunState
from graphkit._records.output import GraphResume, InterruptionMetadata
from graphkit._saver.writes import OUTER_EXECUTION, SUBGRAPH_INTERRUPT, subgraph_interrupts, unanswered_interrupts

_BEFORE_FIRST_STEP: Final = (Load, LoadWrites, Hold, Record, Save)
"""The requests of a nested run while an answer to it may not be stored yet."""


def find_input(
    outer: RunHistory, nested: RunHistory, state: RunState, resume: GraphResume | None
) -> Generator[Request, Any, Any]:
    """Return what a nested run starts from.

    Args:
        outer: the history of the outer run.
        nested: the history of the nested graph.
        state: the state of the outer graph.
        resume: what the resume of the outer run brought for the nested graph.

    Returns:
        A GraphResume if this very node execution has begun before; else the state.
    """
    if nested.saver is None:
        return state.data
    if nested.saver is not outer.saver:
        yield Hold(nested.saver, nested.config)
    # The namespace has one history for all executions of the node. The latest checkpoint shows which
    # of them it belongs to: to this one, which a crash or an interrupt has stopped inside; or to an
    # earlier one, for instance of the loop's last round, which has nothing to do with this one.
    latest = yield Load(nested.saver, nested.config)
    if latest is not None and latest.metadata.get(OUTER_EXECUTION) == nested.outer_execution:
        return resume or GraphResume()
    return state.data


def relay_requests(
    outer: RunHistory, nested: RunHistory, steps: Steps
) -> Generator[Request, Any, list[InterruptionMetadata]]:
    """Pass the requests of a nested run to the driver; return the interrupts of its stop.

    An interrupt in the nested graph is recorded in both histories. When the run goes on, its answer
    is recorded in the nested one first, and only then does the outer one forget the interrupt: a
    crash in between finds it waiting in the outer history and answered in the nested one, and a
    resume goes on. The first request that is not a read or a record shows that the answer is stored.
    """
    namespace = nested.config.checkpoint_ns
    recorded = subgraph_interrupts(outer.writes).items()
    waiting = [interrupt_id for interrupt_id, waits_in in recorded if waits_in == namespace]
    interrupts: list[InterruptionMetadata] = []
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return interrupts
        answer = None
        error = None
        try:
            if waiting and not isinstance(request, _BEFORE_FIRST_STEP):
                waiting = yield from _clear_answered(outer, nested, waiting)
            if isinstance(request, Finish):  # the outer run keeps the run lock
                continue
            # The outer run emits the interrupts, with its own, when its other branches have stopped.
            output = request.output if isinstance(request, Emit) else None
            if isinstance(output, InterruptionMetadata):
                interrupts = list(output.interrupts)
                for interrupt in interrupts:
                    interrupt.is_subgraph = True
                continue
            if output is not None:
                output.is_subgraph = True
            answer = yield request
        except BaseException as raised:  # noqa: BLE001 - the nested run handles it
            error = raised


def _clear_answered(
    outer: RunHistory, nested: RunHistory, recorded: Collection[str]
) -> Generator[Request, Any, list[str]]:
    """Record in the outer run which interrupts of a nested run no longer wait; return the others."""
    waiting = {*unanswered_interrupts(nested.writes), *subgraph_interrupts(nested.writes)}
    answered = [interrupt_id for interrupt_id in recorded if interrupt_id not in waiting]
    if answered:
        yield from outer.record({SUBGRAPH_INTERRUPT + interrupt_id: None for interrupt_id in answered})
    return [interrupt_id for interrupt_id in recorded if interrupt_id in waiting]


def merge_nested(state: RunState, nested: RunState, node_id: str) -> None:
    """Merge the updates of a nested graph that has ended into the outer graph's state."""
    assert nested.subgraph_updates is not None
    # One by one, as the nested nodes returned them: merging the final state instead would apply the
    # reducers of shared keys a second time to what the nested graph started with.
    for update in nested.subgraph_updates.for_outer_graph(nested.data):
        # Keys of its own stay in the nested graph, if the outer one has a closed schema.
        state.merge(node_id, state.schema.select_known(update))
    state.set_private({key: value for key, value in nested.private.items() if key in state.transient})
