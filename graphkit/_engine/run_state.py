"""What a run keeps: where it stands, what of it is stored, and what is recorded beside that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

from graphkit._engine import subgraph
from graphkit._engine.cursor import CONTINUED_EXECUTION, EMPTY, RESUMED_AT, Steps
from graphkit._engine.journal import RunJournal, answers_of
from graphkit._engine.node_runner import NodeRunner
from graphkit._engine.program import Program
from graphkit._engine.requests import Load, Record, Request, Save
from graphkit._engine.subgraph_updates import SubgraphUpdates
from graphkit._plan.topology import Node
from graphkit._records.checkpoint import Checkpoint, generate_id
from graphkit._records.config import START, RunnableConfig
from graphkit._records.output import GraphResume, InterruptionMetadata, When
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import INTERRUPT, unanswered_interrupts
from graphkit._values.frozen import FrozenDict, FrozenList, freeze
from graphkit._values.state import Changes
from graphkit.errors import MaxIterationsError, NodeExecutionError

_PATH_LENGTH: Final = 100
_OF_NODES: Final = frozenset({"inside", "action"})

Stand = tuple[str, str | None, FrozenDict, Changes | None, int, FrozenList | None]
"""Where a run stands, whatever has been tried since: at, next, data, changes, step, and an embedded graph's entries."""


class Control:
    """What others may ask of a run; shared with the graphs embedded in it."""

    __slots__ = ("pause_requested",)

    def __init__(self) -> None:
        self.pause_requested = False
        """Stop at the next node boundary. Only ever set to true, from any thread or a signal handler."""


class RunState(NodeRunner):
    """A run, as its strands see it: it counts, records and tells for whatever belongs to it. See `keeper.py`."""

    perform: Callable[[Steps], None]
    """Answers requests at once, from any thread; set by the driver, as `held` is."""
    clock: Callable[[], float]
    """Seconds; the same."""

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
        self.contribution: SubgraphUpdates | None = None
        self.within: str | None = None
        """The visit that this run is, in the run around it; None if there is none."""
        self.resumed_at: datetime | None = None
        """When this run resumed; None once a checkpoint says so, and for a run that started from an input."""
        self.inner: list[InterruptionMetadata] = []
        """What waits in embedded graphs, as they handed it out."""
        self.for_children: dict[str, GraphResume] = {}
        """What a resume brought for embedded graphs, by namespace."""
        self.updates: list[tuple[str, FrozenDict]] | None = None
        """What was merged since the last output, if the caller is to see it."""
        self.visits: Counter[str] = Counter()
        self.held: frozenset[object] = frozenset()
        """The run locks that the run holds."""

    def path(self) -> list[str]:
        return self.finished[-_PATH_LENGTH:]

    def attach(self, held: frozenset[object], perform: Callable[[Steps], None], clock: Callable[[], float]) -> None:
        self.held, self.perform, self.clock = held, perform, clock

    @property
    def pausing(self) -> bool:
        """Whether somebody asked the run to stop at the next node boundary."""
        return self.control.pause_requested

    def check_limit(self, node_id: str) -> None:
        """See that one more node may be executed.

        Raises:
            MaxIterationsError: it would be one too many.
        """
        if self.step >= self.limit:
            thread = self.config.thread
            error = self.failure(
                MaxIterationsError,
                f"the run of thread {thread!r} has executed {self.limit} nodes, its max_iterations, "
                f"and would go on with {node_id!r}",
                node_id,
            )
            error.thread_id = thread
            raise error

    def count(self, node_id: str) -> None:
        """One more node is executed.

        Raises:
            MaxIterationsError: it would be one too many.
        """
        if self.step >= self.limit:
            self.check_limit(node_id)
        self.step += 1

    def answers(self, key: str) -> tuple[Any, ...]:
        """The answers to `interrupt()` calls of a visit, in the order of the calls."""
        return answers_of(self.writes.copy(), key)  # other branches record, from threads too

    def stand_here(self) -> None:
        entries = None if self.contribution is None else self.contribution.entries
        self.stand = (self.at, self.next, self.data, self.changes, self.step, entries)

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
            metadata=self._stamped(source, step, {} if visit is None else {CONTINUED_EXECUTION: visit}),
            changes=changes,
        )
        if saved is None:
            return
        if source != "fork":  # a copy of the checkpoint that was resumed: no node has run yet
            self.resumed_at = None
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
        resumed = {} if self.resumed_at is None else {RESUMED_AT: self.resumed_at.isoformat()}
        stamped = FrozenDict({**self.metadata, "step": step, "source": source, **visit, **resumed})
        stamped.kind = self.metadata.kind  # a str and an int do not change it; found out anew it would cost O(keys)
        return stamped

    def settle(self) -> Steps:
        """Make sure that values can be recorded beside where the run stands."""
        if self.saver is None or self.exits:
            return
        if (yield from self._catch_up()) and self.writes:
            yield Record(self.saver, self._here(), self.writes)

    def _catch_up(self) -> Generator[Request, Any, bool]:
        """Store where the run stands, as the latest; whether that is a copy, which what was recorded is not beside."""
        is_copy = self.is_saved and not self.is_latest
        if not self.is_saved or is_copy:
            yield from self.save("fork" if is_copy else "loop", self.root())
        return is_copy

    def record(self, writes: Mapping[str, Any]) -> Steps:
        """Put values beside where the run stands; without a saver they live as long as the run."""
        if self.saver is not None:
            if (yield from self._catch_up()):
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

    def record_stop(
        self,
        node_id: str,
        when: When,
        key: str,
        payload: Any = None,
        metadata: Mapping[str, Any] = EMPTY,
    ) -> Steps:
        """Store that the run waits here. A stop that waits already is asked again under its id."""
        waiting = unanswered_interrupts(self.writes)
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
        id = again[0] if again else generate_id()  # noqa: A001
        yield from self.record({INTERRUPT + id: frozen})
        self.tell("interrupt.raised", "info", node_id, id=id, when=when)

    def _new_metadata(self, own: Mapping[str, Any], carried: Mapping[str, Any]) -> FrozenDict:
        metadata: FrozenDict = freeze({**carried, **self.config.metadata, **own, **self.stamp()})
        return metadata

    def idempotency_key(self, key: str, node_id: str) -> str:
        """Names a visit: the same again when it is repeated after a crash, and no other's."""
        return f"{self.config.thread}/{self.config.checkpoint_ns}/{self.root()}/{key}/{node_id}"

    def root(self) -> str:
        """Names where on the main line the visit that goes on here began: a checkpoint, and the steps since.

        The same when the visit is repeated, though it may have made the run store where it stands in the meantime.
        """
        steps = self.stand[4] - self.passed
        return f"{self.began}+{steps}" if steps else self.began

    def embedded(self, strand: NodeRunner, node: Node, key: str) -> Steps:
        """Visit a node that is a graph."""
        yield from subgraph.visit(strand, node, key, partial(self._another, strand.executor))

    def _another(self, executor: Executor | None, *given: Any, saver: BaseCheckpointSaver | None) -> Self:
        """A run of the same kind, whose nodes run where those of its branch do."""
        run = type(self)(*given, saver=saver)
        run.executor = executor
        return run

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
