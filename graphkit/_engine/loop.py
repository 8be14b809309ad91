"""The loop: how a graph runs. A generator that yields requests and does no I/O itself.

Theory of operation
-------------------
A run goes from node to node. `Run.steps()` yields requests (`requests.py`): run this node, evaluate
this edge, load, save, record, emit. A driver (`driver.py`) answers each request by sending the
result or throwing the error. Whether it does so with calls or with awaits makes no difference to
the loop.

One step: node -> merge its update -> evaluate the outgoing edge -> merge the edge's update -> save
(node, next node) -> emit. Nothing of a step is stored before all of it is known. A node that fails
therefore leaves no trace, and a resume runs it again. A node whose checkpoint is stored never runs
again, because the next node is stored with it. `node_runner.py` describes the execution of one
node. A fork is an execution made of branches, which are node runners themselves and report to this
run.

The run stands at `self.node_id` (the node that has just finished) and `self.next_node_id`. Within a
step, `data` runs ahead of `self.position`, to which a failed step returns. The pending writes of
the *latest* checkpoint belong to the execution of the next node: the interrupts that wait there,
their answers, updates that came with a resume, finished branches, results of `once`. They are no
longer seen once that node's own checkpoint is appended. So a crash in the middle of an answered
node finds the answer again. Pending writes are recorded at the latest checkpoint only. A resume of
an older checkpoint starts a node execution of its own, on a copy of that checkpoint, which is
appended as soon as there is something to record.

A declared stop is recorded after its checkpoint. If the process dies in between, the resume finds a
checkpoint of the loop without an interrupt and stops then: a crash cannot skip an approval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from graphkit._engine import subgraph
from graphkit._engine.cursor import EMPTY, Steps
from graphkit._engine.journal import failure_record
from graphkit._engine.node_runner import Halt
from graphkit._engine.requests import Discard, Emit, Finish, Record, Release
from graphkit._engine.start import RunStart
from graphkit._engine.subgraph_updates import strip_subgraph_updates
from graphkit._engine.update_codec import unpack
from graphkit._plan.checkpoint_when import Step
from graphkit._records.checkpoint import to_datetime
from graphkit._records.config import END, StreamMode
from graphkit._records.output import GraphResume, InterruptionMetadata, NodeOutput, StateSnapshot
from graphkit._saver.writes import FAILURE, unanswered_interrupts
from graphkit._values.frozen import FrozenDict, freeze
from graphkit._values.state import AgentState, Changes
from graphkit._wording import describe_error
from graphkit.errors import CheckpointerError, CheckpointSerializationError


@final
class Run(RunStart):
    """One run of a graph; `steps()` is the loop."""

    def steps(self) -> Steps:
        """Run, from the input or the stored checkpoint, to the end or a stop."""
        if self.transient:
            self.private = self.schema.merge_transient(self.private, {})  # sets the defaults
        if self.config.stream_mode is StreamMode.UPDATES:
            self._collect_updates()
        if isinstance(self.run_input, GraphResume):
            yield from self._resume(self.run_input)
        else:
            yield from self._start(self.run_input)
        run_id = self.metadata.get("run_id")
        self.post_event("graph.start", "info", self.next_node_id, run_id=run_id, step=self.step)
        try:
            yield from self._run_steps()
        except Halt:
            yield from self._emit_interrupts()
        except CheckpointerError as error:
            if isinstance(error, CheckpointSerializationError):
                yield from self._record_refused_value(error)
            self._post_failure(error)
            raise
        except BaseException as error:
            yield from self._fail(error)
            raise

    def _run_steps(self) -> Steps:
        # The hot loop. Local names save the attribute lookups that would be repeated at each step.
        nodes = self.topology.nodes
        edges = self.topology.edges
        saver = self.saver
        has_declared_stops = bool(self.program.before or self.program.after)
        leaves_edge_open = self.program.after if self.options.interrupt_before_edge else ()
        emits_snapshots = saver is not None and self.config.stream_mode is StreamMode.SNAPSHOTS
        measures_time = self.program.when is not None
        stores_every_step = self.stores_every_step
        step_updates = self.step_updates
        state_of = self.schema.state_factory
        control = self.control
        while True:
            stop = None
            if has_declared_stops and self.may_stop:
                stop = self._find_declared_stop()
                if stop is not None:
                    yield from self.record_interrupt(stop.node_id, stop.when, "")
            if self.must_emit:
                if self.dispatched_outputs:
                    yield from self.emit_all(self.dispatched_outputs)
                output: NodeOutput
                if emits_snapshots and self.is_saved:
                    output = self._make_snapshot()
                else:
                    output = NodeOutput(self.node_id, state_of(self.data))
                if step_updates is not None:
                    output.update = _take_updates_by_node(step_updates)
                yield Emit(output)
            if stop is not None:
                raise Halt
            self.may_stop = True
            self.must_emit = True
            current = self.next_node_id
            if current == END:
                yield from self._end()
                yield Emit(NodeOutput(END, state_of(self.data)))
                return
            if control.pause_requested:
                raise Halt
            step = self.step
            started = self.clock.measure() if measures_time else 0.0
            node = nodes.get(current)  # type: ignore[arg-type]
            following: str | None
            if node is None:
                fork = self.topology.forks[current]  # type: ignore[index]
                yield from self.execute_fork(self, fork, "")
                node_id = fork.id
                following = fork.join
            else:
                node_id = node.id
                goto = yield from self.execute(node, "")
                if goto is not None:
                    following = self.resolve_goto(node_id, goto)
                elif node_id in leaves_edge_open:
                    following = None
                else:
                    edge = edges.get(node_id)
                    if edge.__class__ is str:
                        following = edge
                    elif edge is None:
                        raise self._no_edge_error(node_id)
                    else:
                        following = yield from self._evaluate_edge(node_id, edge)  # type: ignore[arg-type]
                self.finished_nodes.append(node_id)
            self.node_id = node_id
            self.next_node_id = following
            self.is_saved = False
            earlier_changes = self.position.changes
            self.mark_position()
            if self.writes:
                self.writes = {}
                self.deferred_writes = {}
            if self.post is not None:
                self.post_event("edge.transition", "verbose", node_id, target=following)
            if saver is not None and (
                stores_every_step
                or following == END
                or following is None
                or self._is_checkpoint_due(node_id, step, earlier_changes, started)
            ):
                yield from self.save("loop")

    def _is_checkpoint_due(
        self, node_id: str, step_before: int, earlier_changes: Changes | None, started: float
    ) -> bool:
        """Return whether the options ask for a checkpoint here.

        Args:
            node_id: the node or fork that has finished.
            step_before: the value of `step` before it.
            earlier_changes: what had changed before it since the latest checkpoint.
            started: when it started, in seconds of the run's clock.
        """
        if self.stores_at_exit:
            return False
        when = self.program.when
        if when is None:
            interval = self.options.checkpoint_interval
            # A fork may pass several multiples of the interval at once.
            return step_before // interval != self.step // interval
        seconds = self.clock.measure() - started
        step = Step(
            self.next_node_id,
            seconds,
            self._keys_changed_since(earlier_changes),
            branches=self._nodes_in_fork(node_id),
            next_branches=self._nodes_in_fork(self.next_node_id),
        )
        return when(node_id, self.state(), step)

    def _keys_changed_since(self, earlier: Changes | None) -> tuple[str, ...]:
        """Return the keys that changed after `earlier`; both count from the latest checkpoint."""
        if self.changes is None:
            return ()
        ops = self.changes.ops
        if earlier is None:
            return tuple(ops)
        before = earlier.ops
        return tuple(key for key in ops if key not in before or ops[key] != before[key])

    def _nodes_in_fork(self, fork_id: str | None) -> frozenset[str]:
        """Return the nodes of the branches of a fork; none if the id is that of a node."""
        fork = self.topology.forks.get(fork_id or "")
        return frozenset() if fork is None else frozenset().union(*fork.branches.values())

    # A failure

    def _fail(self, error: BaseException) -> Steps:
        """Return to the last position; store it and, if the run has failed, the failure.

        A run that was closed or cancelled has not failed.
        """
        self._return_to_position()
        failure = error if isinstance(error, Exception) else None
        if self.saver is not None:
            if not self.is_saved:
                yield from self.save("loop", self.execution_start())
            yield from self._record_failure(failure)
        if failure is not None:
            self._post_failure(failure)

    def _return_to_position(self) -> None:
        position = self.position
        self.node_id = position.node_id
        self.next_node_id = position.next_node_id
        self.data = position.data
        self.changes = position.changes
        self.step = position.step
        if self.subgraph_updates is not None and position.subgraph_entries is not None:
            self.subgraph_updates.entries = position.subgraph_entries

    def _record_failure(self, failure: Exception | None) -> Steps:
        """Record the deferred writes, and the failure if there is one."""
        writes = dict(self.deferred_writes)
        # An older checkpoint gets no failure: the run that continued from it did not fail.
        if failure is not None and self.is_latest:
            node_id = getattr(failure, "node_id", None) or self.next_node_id
            writes[FAILURE] = freeze(failure_record(failure, node_id, to_datetime(self.clock.now() // 1000)))
        if writes:
            yield from self.record(writes)

    def _record_refused_value(self, error: CheckpointSerializationError) -> Steps:
        """Record that the run failed because a value cannot be stored; the store itself works."""
        base = self.base
        if base is None or not self.is_latest:
            return
        if base.metadata.get("run_id") != self.metadata.get("run_id"):
            return
        assert self.saver is not None
        node_id = self.next_node_id if self.is_saved else self.node_id
        failure = freeze(failure_record(error, node_id, to_datetime(self.clock.now() // 1000)))
        yield Record(self.saver, self._base_config(), {FAILURE: failure})

    def _post_failure(self, error: Exception) -> None:
        self.post_event("graph.fail", "error", self.next_node_id, error=describe_error(error))

    # The end

    def _end(self) -> Steps:
        if self.saver is not None and not self._is_end_stored():
            self.mark_position()
            yield from self.save("answer")
        is_outermost = self.outer_execution is None  # an outer run may still need what is stored here
        if is_outermost:
            yield from self._release_thread()
        self.post_event("graph.complete", "info", END, nodes=self.step)
        if is_outermost:
            yield Finish()

    def _is_end_stored(self) -> bool:
        """Return whether the latest checkpoint is the end of the run.

        It is not if an answer was merged, or an open edge taken, since.
        """
        is_at_end = self.is_saved and self.base is not None and self.base.next_node_id == END
        return is_at_end and self.changes is not None and not self.changes.ops

    def _release_thread(self) -> Steps:
        """Release or delete the thread of a finished run, as the options say."""
        if self.saver is None:
            return
        for saver in subgraph.iter_savers(self.topology, self.saver):
            if self.options.release_thread:
                yield Release(saver, self.config)
            elif not self.options.preserve:
                yield Discard(saver, self.config)

    # A stop

    def _emit_interrupts(self) -> Steps:
        """Emit the interrupts at which the run has stopped; a pause is recorded as one."""
        if self.deferred_writes:
            yield from self.record({})
        waiting = unanswered_interrupts(self.writes)
        if not waiting and not self.nested_interrupts:  # the run was asked to pause
            node_id = self.next_node_id or self.node_id
            yield from self.record_interrupt(node_id, "before", "", metadata={"reason": "pause"})
            waiting = unanswered_interrupts(self.writes)
        state = self.schema.state_factory(self.data)
        interrupts = [_make_output(interrupt_id, interrupt, state) for interrupt_id, interrupt in waiting.items()]
        interrupts += self.nested_interrupts
        for interrupt in interrupts:
            others = [other for other in interrupts if other is not interrupt]
            interrupt.interrupts = (interrupt, *others)
        if self.outer_execution is None:
            yield Finish()
        yield Emit(interrupts[0])

    # Outputs

    def _collect_updates(self) -> None:
        """Keep the updates of each step, as its output has to contain them."""
        updates: list[tuple[str, FrozenDict]] = []
        self.step_updates = updates
        self.update_listeners.append(lambda node_id, update: updates.append((node_id, update)))

    def _make_snapshot(self) -> StateSnapshot:
        """Return the output for a stored position."""
        assert self.base is not None
        return StateSnapshot(self.base, self.config, self._visible_state, lambda _: ())

    def _visible_state(self, data: FrozenDict) -> Any:
        return self.schema.state_factory(strip_subgraph_updates(data))


def _take_updates_by_node(updates: list[tuple[str, FrozenDict]]) -> Mapping[str, Any]:
    """Return the updates of a step by node, and empty the list."""
    by_node: dict[str, dict[str, Any]] = {}
    for node_id, update in updates:
        by_node.setdefault(node_id, {}).update(unpack(update))
    updates.clear()
    return by_node


def _make_output(interrupt_id: str, interrupt: Mapping[str, Any], state: AgentState) -> InterruptionMetadata:
    """Return the output for a recorded interrupt."""
    return InterruptionMetadata(
        interrupt["node_id"],
        state,
        when=interrupt["when"],
        id=interrupt_id,
        payload=interrupt["payload"],
        metadata=interrupt.get("metadata", EMPTY),
    )
