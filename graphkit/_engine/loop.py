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
again, because the next node is stored with it. `nodes.py` describes the execution of one node,
and of the branches of a fork.

A run owns its parts. `RunState` is the state as far as its nodes have come. `RunHistory` knows what
is stored: the position, to which a failed step returns, the latest checkpoint, and the pending
writes of the next node's execution. `RunReporter` counts, and makes errors and events. `NodeRunner`
executes nodes on the state. A branch of a fork has a state and a node runner of its own, and shares
the rest.

A declared stop is recorded after its checkpoint. If the process dies in between, the resume finds a
checkpoint of the loop without an interrupt and stops then: a crash cannot skip an approval.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from concurrent.futures import Executor
from typing import Any, final

from graphkit._engine.history import Halt, RunHistory, checkpoint_not_found
from graphkit._engine.nodes import NodeRunner, execute_fork
from graphkit._engine.reporter import note_place
from graphkit._engine.requests import Discard, Emit, Finish, Hold, Load, Release, Request, Steps
from graphkit._engine.resume import merge_updates, post_resume, prepare_resume
from graphkit._engine.routing import follow_edge, resolve_goto
from graphkit._engine.state import EMPTY, strip_subgraph_updates, unpack, unpack_if_marked
from graphkit._plan.checkpoint_when import Step
from graphkit._plan.compile_config import find_savers
from graphkit._plan.topology import Node
from graphkit._records.config import END, START, StreamMode
from graphkit._records.context import ABSENT
from graphkit._records.output import GraphResume, InterruptionMetadata, NodeOutput, StateSnapshot, When
from graphkit._saver.status import WRITES_TAKEN_FROM
from graphkit._saver.writes import ASLEEP, SUBGRAPH_INTERRUPT, SUBGRAPH_TIMER, to_waiting_interrupt, unanswered_stops
from graphkit._values.frozen import FrozenDict, freeze
from graphkit._values.state import AgentState
from graphkit._wording import describe_error
from graphkit.errors import CheckpointerError, CheckpointSerializationError


@final
class Run:
    """One run of a graph; `steps()` is the loop.

    Attributes:
        program: the graph.
        history: what is stored of the run.
        state: the state of the main line.
        reporter: counts, and reports errors and events.
        runner: executes the nodes of the main line.
        control: what other threads and processes ask of the run.
        run_input: the input, a GraphResume, or the state of the outer graph.
        next_node_id: the node or fork that is next; None if an answer decides it.
        may_stop: whether declared stops apply at this position: not at the one that was resumed.
        must_emit: whether the current position still has to be emitted; False right after a resume.
        step_updates: the updates since the last output, by node; None unless the caller wants to see them.
        interrupts: of a nested run: where it has stopped; the outer run emits them with its own.
        nested_interrupts: the interrupts of nested runs.
        nested_resumes: what a resume brought for nested graphs, by namespace.
        keeps_nested_stops: whether a resume passes no declared stop of nested graphs: it answers something
            else, or is that of a worker.
    """

    def __init__(
        self,
        history: RunHistory,
        run_input: Any,
        *,
        executor: Executor | None = None,
        is_by_worker: bool = False,
    ) -> None:
        """Prepare a run.

        Args:
            history: the history that it continues, and the state.
            run_input: the input, a GraphResume, or the state of the outer graph.
            executor: of a nested run: runs nodes that have no executor of their own.
            is_by_worker: whether no human has asked for this resume, so that it passes no declared stop.
        """
        self.program = history.program
        self.history = history
        self.state = history.state
        self.reporter = history.reporter
        self.control = history.control
        self.runner = NodeRunner(history, history.state, executor=executor, run_subgraph=self._run_subgraph)
        self.run_input = run_input
        self.next_node_id: str | None = None
        self.may_stop = True
        self.must_emit = True
        self.step_updates: dict[str, dict[str, Any]] | None = None
        self.interrupts: list[InterruptionMetadata] = []
        self.nested_interrupts: list[InterruptionMetadata] = []
        self.nested_resumes: dict[str, GraphResume] = {}
        self.keeps_nested_stops = is_by_worker

    def steps(self) -> Steps:
        """Run, from the input or the stored checkpoint, to the end or a stop."""
        self.state.set_private_defaults()
        if StreamMode.UPDATES in self.history.config.stream_modes:
            updates: dict[str, dict[str, Any]] = {}
            self.step_updates = updates
            self.state.listeners.append(lambda node_id, update: updates.setdefault(node_id, {}).update(unpack(update)))
        if isinstance(self.run_input, GraphResume):
            is_due = yield from self._resume(self.run_input)
            if not is_due:
                yield Finish()
                state = self.state.schema.state_factory(self.state.data)
                yield Emit(NodeOutput(self.history.position.node_id, state))
                return
        else:
            yield from self._start(self.run_input)
        data = {"run_id": self.history.metadata.run_id, "step": self.reporter.step}
        self.reporter.post_event("graph.start", self.next_node_id, data)
        try:
            yield from self._run_steps()
        except Halt:
            yield from self._stop()
        except CheckpointerError as error:
            if isinstance(error, CheckpointSerializationError):
                yield from self.history.record_refused_value(error, self.next_node_id)
            self._report_failure(error, self.reporter.step)
            raise
        except BaseException as error:
            yield from self._fail(error)
            raise

    # The start

    def _start(self, run_input: Mapping[str, Any]) -> Steps:
        """Start from an input, or from the state of the outer graph."""
        history = self.history
        state = self.state
        if history.outer is not None:
            state.adopt(run_input)
        else:
            # The input is merged into the latest state of the thread, or into an initial state.
            base = None
            if history.saver is not None:
                base = yield from history.load_base()
                if base is None and history.requested_config.checkpoint_id is not None:
                    raise checkpoint_not_found(history.requested_config, "see get_state_history")
            if base is None:
                state.begin()
                self.reporter.post_event("state.create", START, {"keys": list(run_input)})
            else:
                history.go_on_from(base)
            state.merge_input(run_input)
        history.begin()
        self.next_node_id = yield from follow_edge(self.state, START)
        history.mark(START, self.next_node_id)
        if history.saver is not None and not history.stores_at_exit:
            yield from history.save("input")

    def _resume(self, resume: GraphResume) -> Generator[Request, Any, bool]:
        """Go on from the stored checkpoint, and record what the resume brings.

        Returns:
            False if there is nothing to do yet.
        """
        history = self.history
        plan = yield from prepare_resume(history, resume)
        self.next_node_id = plan.next_node_id
        self.may_stop = plan.may_stop
        self.must_emit = plan.submission is not None
        self.nested_resumes = dict(plan.nested)
        if resume.has_value:
            self.keeps_nested_stops = True
        if self.step_updates is not None:
            self.step_updates.clear()  # no node returned the updates of the resume
        # A resume of an older checkpoint that only passes a stop leaves nothing to find again. To
        # record that it passed would need a copy of the checkpoint, without any effect of a node.
        brings_something = resume.has_value or resume.update is not None
        # An update may have died before it had recorded the writes that it took over.
        writes = history.writes if WRITES_TAKEN_FROM in plan.base.metadata else plan.added
        if writes and (history.is_latest or brings_something):
            yield from history.record(writes)
        if plan.submission is not None:
            if not plan.submission.is_due(history.now()):
                return False
            try:
                self.state.merge_input(unpack_if_marked(plan.submission.input))
                merge_updates(self.state, plan)
                if self.step_updates is not None:
                    self.step_updates.clear()
                self.next_node_id = yield from follow_edge(self.state, START)
                history.move_on(START, self.next_node_id)
            except Exception as error:
                # The caller that resumes has not given the input, and may be a worker.
                yield from self._fail(error)
                raise
            # At once, also with durability="exit": the thread would stay queued while its run goes on.
            yield from history.save("input")
            return True
        post_resume(history, plan)
        if self.next_node_id is None:  # `interrupt_before_edge` left the edge open
            stops_here = self.may_stop and self._find_declared_stop() is not None
            if not stops_here:
                yield from history.forget_answered()  # now: the condition may take long, and may fail
                self.next_node_id = yield from follow_edge(self.state, plan.base.node_id)
        return True

    def _find_declared_stop(self) -> tuple[str, When] | None:
        """Find the declared stop at the current position: the node that it names, and where it is."""
        program = self.program
        node_id = self.history.position.node_id
        name = program.find_stop(program.options.interrupt_after, node_id)
        if name is not None:
            return name, "after"
        name = program.find_stop(program.options.interrupt_before, self.next_node_id)
        if name is not None:
            return name, "before"
        return None

    # The steps

    def _run_steps(self) -> Steps:
        # The hot loop. Local names save the attribute lookups that would be repeated at each step.
        topology = self.program.topology
        options = self.program.options
        nodes = topology.nodes
        edges = topology.edges
        history = self.history
        state = self.state
        reporter = self.reporter
        runner = self.runner
        has_saver = history.saver is not None
        is_nested = history.outer is not None
        has_declared_stops = bool(options.interrupt_before or options.interrupt_after)
        leaves_edge_open = options.interrupt_after if options.interrupt_before_edge else ()
        emits_snapshots = has_saver and StreamMode.SNAPSHOTS in history.config.stream_modes
        measures_time = self.program.when is not None
        stores_every_step = history.stores_every_step
        step_updates = self.step_updates
        state_of = state.schema.state_factory
        control = self.control
        control.begin(history.clock)
        measure = history.clock.measure
        node_id = history.position.node_id
        while True:
            if is_nested:
                yield from history.forget_answered()
            stop = None
            if has_declared_stops and self.may_stop:
                stop = self._find_declared_stop()
                if stop is not None:
                    # No human sees the stop of a run that ends as cancelled: its resume stops here.
                    yield from control.look_at_stop()
                    if control.cancellation is None:
                        yield from history.record_interrupt(*stop, "")
            if self.must_emit:
                if runner.dispatched_outputs:
                    yield from runner.emit_all(runner.dispatched_outputs)
                output: NodeOutput
                if emits_snapshots and history.is_saved:
                    assert history.base is not None
                    output = StateSnapshot(history.base, history.config, self._visible_state, lambda _: ())
                else:
                    output = NodeOutput(node_id, state_of(state.data))
                if is_nested:
                    output.is_subgraph = True
                if step_updates is not None:
                    output.update = step_updates.copy()
                    step_updates.clear()
                yield Emit(output)
            # The stop is recorded before the output and takes effect after it, so a caller that reads
            # the output finds the interrupt in the store.
            if stop is not None:
                raise Halt
            self.may_stop = True
            self.must_emit = True
            current = self.next_node_id
            if current == END:
                yield from self._end()
                yield Emit(NodeOutput(END, state_of(state.data), is_subgraph=is_nested))
                return
            if control.must_check and (control.pause_requested or measure() >= control.next_look):
                yield from control.check()
            step = reporter.step
            started = measure() if measures_time else 0.0
            node = nodes.get(current)  # type: ignore[arg-type]
            following: str | None
            if node is None:
                fork = topology.find_fork(current)
                assert fork is not None
                yield from execute_fork(runner, fork, "")
                node_id = fork.id
                following = fork.join
            else:
                node_id = node.id
                goto = yield from runner.execute(node, "")
                if goto is not None:
                    following = resolve_goto(state, node_id, goto)
                elif node_id in leaves_edge_open:
                    following = None
                else:
                    edge = edges.get(node_id)
                    is_plain = edge.__class__ is str
                    following = edge if is_plain else (yield from follow_edge(state, node_id))  # type: ignore[assignment]
                reporter.finished_nodes.append(node_id)
            self.next_node_id = following
            data_before = history.position.data
            # From here on the step has happened: a failure of the save or of an output leads back to
            # this position, and not to the one before the node.
            history.move_on(node_id, following)
            if reporter.post is not None:
                reporter.post_event("edge.transition", node_id, {"target": following})
            if has_saver and (
                stores_every_step
                or following == END
                or following is None
                or self._is_checkpoint_due(step, data_before, started)
            ):
                yield from history.save("loop")

    def _is_checkpoint_due(self, step_before: int, data_before: FrozenDict, started: float) -> bool:
        """Return whether the options ask for a checkpoint here.

        Args:
            step_before: how many nodes were executed before this step.
            data_before: the state before this step.
            started: when it started, in seconds of the run's clock.
        """
        history = self.history
        if history.stores_at_exit:
            return False
        when = self.program.when
        if when is None:
            interval = self.program.options.checkpoint_interval
            # A fork may pass several multiples of the interval at once.
            return step_before // interval != self.reporter.step // interval
        seconds = history.clock.measure() - started
        node_id = history.position.node_id
        # By identity: a merge keeps the objects of the values that it does not change.
        data = self.state.data
        keys = dict.fromkeys((*data_before, *data))
        changed = tuple(key for key in keys if data_before.get(key, ABSENT) is not data.get(key, ABSENT))
        step = Step(
            self.next_node_id,
            seconds,
            changed,
            branches=self._nodes_in_fork(node_id),
            next_branches=self._nodes_in_fork(self.next_node_id),
        )
        return when(node_id, self.state.view(), step)

    def _nodes_in_fork(self, fork_id: str | None) -> frozenset[str]:
        """Return the nodes of the branches of a fork; none if the id is that of a node."""
        fork = self.program.topology.find_fork(fork_id)
        return frozenset() if fork is None else frozenset().union(*fork.branches.values())

    def _run_subgraph(self, runner: NodeRunner, node: Node, key: str) -> Steps:
        """Run a nested graph inside this run, and merge its updates into the state of the runner.

        It starts from that state, or continues where this node execution has stopped before. It is driven
        by the same loop and the same driver. This run keeps the run lock, and emits the interrupts at which
        the nested one has stopped. The checkpoints of the nested run are stored in the namespace `<node id>`,
        below that of this graph, with the node execution that they belong to. So a resume finds out whether
        this execution had begun, and continues inside.

        Raises:
            Halt: the nested graph waits for a human; its interrupts are recorded in this run.
        """
        history = self.history
        yield from history.ensure_stored()  # the nested run refers to the start of this execution
        state = runner.state
        nested = history.open_nested(node.id, state, key)
        namespace = nested.config.checkpoint_ns
        resume = self.nested_resumes.pop(namespace, None)
        if resume is None and self.keeps_nested_stops:
            nested.passable_stops = frozenset()
        run_input: Any = state.data
        if nested.saver is not None:
            if nested.saver is not history.saver:
                yield Hold(nested.saver, nested.config)
            # The namespace has one history for all executions of the node. The latest checkpoint shows
            # which of them it belongs to: to this one, which a crash or an interrupt has stopped inside;
            # or to an earlier one, for instance of the loop's last round, which has nothing to do with
            # this one.
            latest = yield Load(nested.saver, nested.config)
            if latest is not None and nested.is_of_this_execution(latest):
                run_input = resume or GraphResume()
        run = Run(nested, run_input, executor=runner.executor)
        yield from run.steps()
        if run.interrupts:
            self.nested_interrupts += run.interrupts
            stops: dict[str, Any] = {}
            for interrupt in run.interrupts:
                interrupt.is_subgraph = True
                prefix = SUBGRAPH_INTERRUPT if interrupt.due is None else SUBGRAPH_TIMER
                stops[prefix + interrupt.id] = namespace
            if not key and any(interrupt.due is not None for interrupt in run.interrupts):
                stops[ASLEEP] = True
            new = {name: value for name, value in stops.items() if history.writes.get(name) != value}
            if new:  # of a timer that was not due, there is nothing new
                yield from history.record(new)
            raise Halt
        inner = nested.state
        assert inner.subgraph_updates is not None
        # One by one, as the nested nodes returned them: merging the final state instead would apply the
        # reducers of shared keys a second time to what the nested graph started with. With a reducer
        # that adds, a nested graph that begins with {"n": 5} and returns {"n": 1} has {"n": 6}; merged
        # into the outer 5, that would be 11.
        for update in inner.subgraph_updates.for_outer_graph(inner.data):
            # Keys of its own stay in the nested graph, if the outer one has a closed schema.
            state.merge(node.id, state.schema.select_known(update))
        state.set_private({key: value for key, value in inner.private.items() if key in state.transient})

    # A failure

    def _fail(self, error: BaseException) -> Steps:
        """Return to the last position; store it and, if the run has failed, the failure.

        A run that was closed or cancelled has not failed.
        """
        history = self.history
        step = self.reporter.step
        # What the failed step had merged is dropped, and its node runs again on resume. The position
        # itself may not be stored yet, with an interval or at the exit. It is stored now as one that a
        # node execution has begun at, so that the resume repeats the execution under the same name.
        history.return_to_position()
        self.next_node_id = history.position.next_node_id
        failure = error if isinstance(error, Exception) else None
        if history.saver is not None:
            if not history.is_saved:
                yield from history.save("loop", history.execution_mark())
            if history.outer is None:
                yield from self.control.look_at_stop()
            yield from history.record_failure(failure, getattr(failure, "node_id", None) or self.next_node_id)
        if failure is not None:
            self._report_failure(failure, step)

    def _report_failure(self, error: Exception, step: int) -> None:
        """Tell the caller, in a note, and the observers where the run has failed."""
        history = self.history
        if self.control.noted_error is not error:  # else a nested run knows the place better
            self.control.noted_error = error
            node_id = getattr(error, "node_id", None) or self.next_node_id
            note_place(error, history.config, node_id, step, is_stored=history.saver is not None)
        self.reporter.post_event("graph.fail", self.next_node_id, {"error": describe_error(error)})

    # The end

    def _end(self) -> Steps:
        history = self.history
        if history.saver is not None and not history.is_end_stored:
            history.mark(history.position.node_id, END)
            yield from history.save("answer")
        options = self.program.options
        is_outermost = history.outer is None
        if is_outermost and history.saver is not None:  # an outer run may still need what is stored here
            for saver in find_savers(self.program, history.saver):
                if options.release_thread:
                    yield Release(saver, history.config)
                elif not options.preserve:
                    yield Discard(saver, history.config)
        self.reporter.post_event("graph.complete", END, {"nodes": self.reporter.step})
        if is_outermost:
            yield Finish()

    # A stop

    def _stop(self) -> Steps:
        """End a run that waits for a human, or was asked to stop.

        Raises:
            Halt: this is a nested run, and an outer run ends as cancelled, or records the pause.
        """
        history = self.history
        if history.outer is None:
            yield from self.control.look_at_stop()
            if self.control.granted:
                yield from history.record(self.control.granted)
        cancellation = self.control.cancellation
        own_stops = unanswered_stops(history.writes)
        # A nested run in a branch records no pause. The run that has the fork does, once for all branches.
        leaves_pause = history.is_in_branch and not own_stops and not self.nested_interrupts
        if leaves_pause or (cancellation is not None and history.outer is not None):
            yield from history.record({})  # the position, and what was deferred
            raise Halt
        if cancellation is None:
            yield from self._stop_at_interrupts()
            return
        node_id = self.next_node_id or history.position.node_id
        reason = cancellation.get("reason")
        self.reporter.post_event("graph.cancel", node_id, {"reason": reason})
        state = self.state.schema.state_factory(self.state.data)
        output = InterruptionMetadata(node_id, state, when="before", metadata={"reason": reason}, interrupts=())
        output.is_cancelled = True
        yield Finish()
        yield Emit(output)

    def _stop_at_interrupts(self) -> Steps:
        """Emit the interrupts and timers at which the run has stopped; a pause is recorded as one."""
        history = self.history
        yield from history.record_deferred()
        # Also if another branch waits for an answer: neither the answer nor its deadline must end the pause.
        if not history.is_in_branch and self.control.take_left_work():
            node_id = self.next_node_id or history.position.node_id
            yield from history.record_interrupt(node_id, "before", "", metadata={"reason": "pause"})
        state = self.state.schema.state_factory(self.state.data)
        interrupts = [
            self._make_interruption(stop_id, stop, state) for stop_id, stop in unanswered_stops(history.writes).items()
        ]
        interrupts += self.nested_interrupts
        interrupts.sort(key=lambda interrupt: interrupt.due is not None)  # what waits for a human comes first
        for interrupt in interrupts:
            others = [other for other in interrupts if other is not interrupt]
            interrupt.interrupts = (interrupt, *others)
        if isinstance(state, AgentState):
            # Not by setattr: a state is read-only, and a model may have a field of this name.
            questions = [interrupt.waiting for interrupt in interrupts if interrupt.waiting is not None]
            state.__dict__["_interrupts"] = tuple(questions)
        if history.outer is not None:
            self.interrupts = interrupts
            return
        sleeps = any(interrupt.due is not None for interrupt in interrupts)
        if sleeps and history.writes.get(ASLEEP) is None:
            yield from history.record({ASLEEP: True})
        yield Finish()
        yield Emit(interrupts[0])

    # Outputs

    def _make_interruption(
        self, interrupt_id: str, interrupt: Mapping[str, Any], state: AgentState
    ) -> InterruptionMetadata:
        """Return the output for a recorded interrupt."""
        output = InterruptionMetadata(
            interrupt["node_id"],
            state,
            when=interrupt["when"],
            id=interrupt_id,
            payload=interrupt["payload"],
            metadata=interrupt.get("metadata", EMPTY),
        )
        if "due" in interrupt:
            output.due = interrupt["due"]
            output.metadata = freeze({"reason": "timer"})
            return output
        output.waiting = to_waiting_interrupt(self.history.base_config, interrupt_id, interrupt)
        return output

    # Not a lambda in `_run_steps`: its local names would become slower, as those of a closure.
    def _visible_state(self, data: FrozenDict) -> Any:
        return self.state.schema.state_factory(strip_subgraph_updates(data))
