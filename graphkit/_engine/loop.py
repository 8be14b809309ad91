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

from collections.abc import Mapping
from typing import Any, final

from graphkit._engine import subgraph
from graphkit._engine.cursor import EMPTY, Steps, told
from graphkit._engine.journal import failure_of
from graphkit._engine.node_runner import Halt
from graphkit._engine.requests import Discard, Emit, Finish, Record, Release
from graphkit._engine.start import RunStart
from graphkit._engine.subgraph_updates import strip_subgraph_updates
from graphkit._engine.update_codec import unpack
from graphkit._plan.checkpoint_when import Step
from graphkit._records.config import END, StreamMode
from graphkit._records.output import GraphResume, InterruptionMetadata, NodeOutput, StateSnapshot
from graphkit._saver.writes import FAILURE, unanswered_interrupts
from graphkit._values.frozen import FrozenDict, freeze
from graphkit._values.state import Changes
from graphkit.errors import CheckpointerError, CheckpointSerializationError


@final
class Run(RunStart):
    """One run of a graph; `steps()` is the loop."""

    def steps(self) -> Steps:
        """Run, from the input or the stored checkpoint, to the end or a stop."""
        if self.transient:
            self.private = self.schema.merge_transient(self.private, {})  # the defaults
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
        state_of = self.schema.state_factory
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
            if control.pause_requested:
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
            self.stand_here()
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
        return frozenset() if fork is None else frozenset().union(*fork.branches.values())

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
            self.stand_here()
            yield from self.save("answer")
        if self.within is None:  # else the graph around it may still have to come for what is here
            yield from self._let_go()
        self.tell("graph.complete", "info", END, nodes=self.step)
        if self.within is None:
            yield Finish()

    def _is_behind(self) -> bool:
        """Whether what is stored is not the end yet: an answer was merged, or an open edge taken, just before it."""
        is_end = self.is_saved and self.base is not None and self.base.next_node_id == END
        return not is_end or self.changes is None or bool(self.changes.ops)

    def _let_go(self) -> Steps:
        """Release or delete what a finished run leaves, if it is to be."""
        if self.saver is None:
            return
        for saver in subgraph.savers_of(self.topology, self.saver):
            if self.options.release_thread:
                yield Release(saver, self.config)
            elif not self.options.preserve:
                yield Discard(saver, self.config)

    def _hand_out_stops(self) -> Steps:
        if self.unrecorded:
            yield from self.record({})
        waiting = unanswered_interrupts(self.writes)
        if not waiting and not self.inner:  # somebody asked for a pause
            yield from self.record_stop(self.next or self.at, "before", "", None, {"reason": "pause"})
            waiting = unanswered_interrupts(self.writes)
        state = self.schema.state_factory(self.data)
        stops = [
            InterruptionMetadata(
                stop["node_id"],
                state,
                when=stop["when"],
                id=key,
                payload=stop["payload"],
                metadata=stop.get("metadata", EMPTY),
            )
            for key, stop in waiting.items()
        ]
        stops += self.inner
        for stop in stops:
            stop.interrupts = (stop, *(other for other in stops if other is not stop))
        if self.within is None:
            yield Finish()
        yield Emit(stops[0])

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
        return self.schema.state_factory(strip_subgraph_updates(data))
