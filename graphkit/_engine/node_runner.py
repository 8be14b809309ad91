"""Strand: what visits one node after another: a run on its main line, and each branch of a fork.

A visit of a node: before-hooks -> the question of an InterruptableAction -> the action, chunk by chunk if it is a
generator -> after-hooks -> merge. A fork, a map and an embedded graph are visits too, made of strands of their own.

A visit that has to wait for a human records the stop and raises Halt; the strand ends there, others go on.

Every visit has a key: where in the run it stands, below the checkpoint it began at. The main line's is "", the second
node of branch `a` is `a.1`, the third item of a map `2`; one inside the other, as `a.1.b.0`. It is the same again when
the visit is repeated, so what was recorded under it is found: finished tasks, answers, results of `once`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final, final

from graphkit._engine.concurrent import run_concurrently
from graphkit._engine.cursor import GraphCursor, Steps, is_update, told
from graphkit._engine.program import Program
from graphkit._engine.requests import Close, Collected, Emit, Ended, Next, Request, RunNode
from graphkit._engine.run_context import RunContext
from graphkit._engine.update_codec import pack, unpack
from graphkit._plan.topology import Call, Fork, Node
from graphkit._records.config import RunnableConfig
from graphkit._records.context import GraphInterrupt, NodeContext
from graphkit._records.output import Command, InterruptionMetadata, NodeOutput, StreamingOutput
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import ITEMS, TASK
from graphkit._values.channels import Channel
from graphkit._values.frozen import FrozenDict, freeze
from graphkit.errors import CheckpointerError, GraphRunnerError, NodeExecutionError

_GENERATORS: Final = frozenset({GeneratorType, AsyncGeneratorType, Collected})


_ADVICE: Final = "Let GraphInterrupt pass: write `except Exception:`, not a bare `except:`, or raise it again"


class Halt(BaseException):
    """Raised in a strand that waits for a human, or was told to pause. What waits is recorded."""


class NodeRunner(GraphCursor):
    """Visits nodes; `run` is the run it belongs to, which counts and records for it."""

    run: RunContext

    def __init__(self, program: Program, config: RunnableConfig, saver: BaseCheckpointSaver | None) -> None:
        super().__init__(program, config, saver)
        self.executor: Executor | None = None
        """Where the nodes run that do not say; None: where the run is."""
        self.dispatched: list[NodeOutput] = []
        """What nodes handed out beside their updates; it goes out once these are stored."""

    # A visit

    def visit(self, node: Node, key: str) -> Generator[Request, Any, str | None]:
        """Visit a node and merge its update; returns where its Command goes, if it returned one with a goto."""
        run = self.run
        if node.before_hooks or node.interrupt_call is not None:
            run.check_limit(node.id)  # else they would run for a node that cannot
            yield from self._approach(node, key)
        run.count(node.id)
        if self.post is not None:
            run.tell_start(node.id, self.data)
        if node.action is None or node.items is not None:
            update = yield from self._parts(node, key)
        else:
            state = self.state()  # the node's own: nobody else sees what it does to it
            update = yield from self.act(node, state, key, self.executor)
            if update is state:
                update = None
        goto = None
        if update.__class__ is Command:
            goto, update = update.goto, update.update
        for hook in node.after_hooks:
            update = yield from self._hooked(node.id, hook, node.id, self.state(), self.config, update)
            if update.__class__ is Command:
                goto, update = update.goto or goto, update.update
        if update is not None:
            self.merge(node.id, update)
        if self.post is not None:
            run.tell_complete(node.id, self.data)
        return goto

    def _approach(self, node: Node, key: str) -> Steps:
        for hook in node.before_hooks:
            self.merge(node.id, (yield from self._hooked(node.id, hook, node.id, self.state(), self.config)))
        if node.interrupt_call is not None:
            yield from self._question(node, node.interrupt_call, key)

    def _parts(self, node: Node, key: str) -> Generator[Request, Any, Any]:
        """A node that merges what it is made of itself: an after-hook gets None for its update."""
        if node.graph is not None:
            yield from self.run.embedded(self, node, key)
        else:
            yield from self._map(node, key)

    def act(
        self, node: Node, argument: Any, key: str, executor: Executor | None, item: int | None = None
    ) -> Generator[Request, Any, Any]:
        """Run a node's action, on an executor unless it has its own; returns what it returned."""
        run = self.run
        assert node.action is not None
        if node.executor is not None or node.action.is_async:  # what is asynchronous runs in the event loop
            executor = node.executor
        if executor is not None and not isinstance(executor, ThreadPoolExecutor):
            yield from self._anchor()
        visit = NodeContext(node.id, run.answers(key) if run.writes else (), run.held, key=key, journal=run.journal)
        try:
            result = yield RunNode(node.action, argument, self.config, visit, executor)
            if result.__class__ in _GENERATORS:
                result = yield from self._chunks(node, result, visit)
        except GraphInterrupt as interrupt:
            yield from run.record_stop(node.id, "inside", key, interrupt.payload)
            yield from self.hand_out(self._outputs(node, visit))
            raise Halt from None
        except CheckpointerError:
            raise  # of `once`, or of a graph that the node ran: it says what to do
        except Exception as error:
            if self.post is not None:
                run.tell_failed(node.id, error)
            raise self._failed(node, item, visit, error) from error
        if visit.interrupt_calls or visit.attempt > 1 or visit.outputs:
            self._finish(node, item, visit)
        return result

    def _finish(self, node: Node, item: int | None, visit: NodeContext) -> None:
        """Take in what a visit has left, once its action has returned."""
        if visit.has_open_interrupt:
            reason = f"{_named(node, item)} caught the GraphInterrupt of its interrupt(), and went on. {_ADVICE}"
            raise self.failure(NodeExecutionError, reason, node.id)
        if visit.attempt > 1:
            self.run.spoil()
        if visit.outputs:
            self.dispatched += self._outputs(node, visit)

    def _failed(self, node: Node, item: int | None, visit: NodeContext, error: Exception) -> GraphRunnerError:
        reason = f"{_named(node, item)} failed: {told(error)}"
        if visit.has_open_interrupt:
            reason += f"; it was raised while interrupt() was stopping the node. {_ADVICE}"
        return self.failure(NodeExecutionError, reason, node.id)

    def _anchor(self) -> Steps:
        """Store where the run stands: what another process records must find it."""
        yield from self.run.settle()
        if self.run.saver is not None and not self.run.is_saved:
            yield from self.run.record({})

    def _hooked(self, node_id: str, hook: Call, *arguments: Any) -> Generator[Request, Any, Any]:
        return (yield from self.ask(node_id, f"a hook of {node_id!r} failed", hook, *arguments))

    def _question(self, node: Node, question: Call, key: str) -> Steps:
        """Put the question of an InterruptableAction: whether a human is to be waited for."""
        sorry = f"interrupt() of node {node.id!r} failed"
        answer = yield from self.ask(node.id, sorry, question, node.id, self.state(), self.config)
        if answer is None:
            return
        payload = None
        if isinstance(answer, InterruptionMetadata):
            answer, payload = answer.metadata, answer.payload
        if not isinstance(answer, Mapping):
            returned = type(answer).__name__
            reason = f"interrupt() of node {node.id!r} returned {returned}: return metadata, a mapping or None"
            raise self.failure(NodeExecutionError, reason, node.id)
        yield from self.run.record_stop(node.id, "action", key, payload, answer)
        raise Halt

    # What a node hands out while it runs

    def _chunks(self, node: Node, source: Any, visit: NodeContext) -> Generator[Request, Any, Any]:
        """Hand out what a generator yields; its update is what it returns, or a Command that it yields last."""
        update: Command | None = None
        is_over = False
        try:
            while True:
                if source.__class__ is Collected:
                    chunk = source.chunks.pop(0) if source.chunks else Ended(source.value)
                else:
                    chunk = yield Next(source, visit)
                if chunk.__class__ is Ended:
                    is_over = True
                    if update is not None and chunk.value is not None:
                        raise TypeError("a generator yields its Command last, or returns its update")  # noqa: TRY301
                    return update if chunk.value is None else chunk.value
                if chunk.__class__ is Command and update is None:
                    update = chunk
                elif update is None:
                    yield Emit(self._output(node, chunk))
                else:
                    raise TypeError("a generator yields its Command last")  # noqa: TRY301 - it is to be closed below
        except GeneratorExit:
            raise
        except BaseException:
            if not is_over and source.__class__ is not Collected:
                yield Close(source)
            raise

    def _output(self, node: Node, chunk: Any) -> NodeOutput:
        if isinstance(chunk, NodeOutput):
            return chunk
        return StreamingOutput(chunk, node.id, self.schema.state_factory(self.data))

    def _outputs(self, node: Node, visit: NodeContext) -> list[NodeOutput]:
        return [self._output(node, output) for output in tuple(visit.outputs)]

    def hand_out(self, outputs: list[NodeOutput]) -> Steps:
        """Hand out, and forget, what was dispatched."""
        while outputs:
            yield Emit(outputs.pop(0))

    # A map

    def _map(self, node: Node, key: str) -> Steps:
        items = yield from self._items(node, key)
        below = f"{key}." if key else ""
        results: list[FrozenDict | None] = [None] * len(items)
        executor = self.executor_of(node.id)
        strands = [self._item(node, item, f"{below}{n}", results, n, executor) for n, item in enumerate(items)]
        yield from self._side_by_side(node.id, strands, node.max_concurrency)
        if any(result is None for result in results):
            raise Halt
        updates = [(str(n), unpack(update)) for n, update in enumerate(results) if update is not None]
        if self.post is not None:
            self._tell_overwritten(node.id, updates)
        for name, update in updates:
            self.merge(node.id, update, f"item {name} of {node.id!r}")

    def _items(self, node: Node, key: str) -> Generator[Request, Any, Collection[Any]]:
        """What is mapped over: decided once, and then recorded, so that a resume finds the same items."""
        run = self.run
        if ITEMS + key in run.writes:
            return run.writes[ITEMS + key]  # type: ignore[no-any-return]
        assert node.items is not None
        sorry = f"what {node.id!r} maps over cannot be listed"
        found = yield from self.ask(node.id, sorry, node.items, self.state(), self.config)
        try:
            items: Collection[Any] = freeze([*found])
        except (Exception, GraphInterrupt) as error:
            raise self.failure(NodeExecutionError, f"{sorry}: {told(error)}", node.id) from error
        yield from run.settle()
        yield from run.note({ITEMS + key: items})
        return items

    def _item(
        self,
        node: Node,
        item: Any,
        key: str,
        results: list[FrozenDict | None],
        n: int,
        executor: Executor | None,
    ) -> Steps:
        run = self.run
        done = run.writes.get(TASK + key)
        if done is None:
            if run.pausing:
                return
            try:
                result = yield from self.act(node, item, key, executor, n)
            except Halt:
                return
            done = {"node": node.id, "update": self._update_of_item(node, result, n)}
            yield from run.note({TASK + key: done})
            if self.dispatched:
                yield from self.hand_out(self.dispatched)
        results[n] = done["update"]
        if self.post is not None:
            run.tell("parallel.branch", "info", node.id, branch=key, nodes=1, index=n, total=len(results))

    def _update_of_item(self, node: Node, result: Any, n: int) -> FrozenDict:
        if result.__class__ is Command:
            if result.goto is not None:
                reason = f"{_named(node, n)} returned a Command that goes to {result.goto!r}: a map cannot go anywhere"
                raise self.failure(GraphRunnerError, reason, node.id)
            result = result.update
        if result is not None and not is_update(result):
            returned = type(result).__name__
            reason = f"{_named(node, n)} returned {returned}: return a mapping of updates, or None"
            raise self.failure(NodeExecutionError, reason, node.id)
        try:
            return pack(self.schema.to_mapping(self.without_private(result or {})))
        except ValueError as error:
            reason = f"the update of {_named(node, n)} cannot be kept: {error}"
            raise self.failure(NodeExecutionError, reason, node.id) from error

    # A fork

    def fork(self, fork: Fork, key: str) -> Steps:
        """Run the branches side by side, and merge what they changed, once, in the order of the edges."""
        yield from self.run.settle()
        below = f"{key}." if key else ""
        branches = [Branch(self, fork, n, f"{below}{_part(head)}") for n, head in enumerate(fork.heads)]
        yield from self._side_by_side(fork.id, [branch.steps() for branch in branches])
        if any(branch.is_halted for branch in branches):
            raise Halt
        if self.post is not None:
            updates = [(head, branch.update_of_all()) for head, branch in zip(fork.heads, branches, strict=True)]
            self._tell_overwritten(fork.id, updates)
        for branch in branches:
            for node_id, update in branch.updates:
                self.merge(node_id, unpack(update))
            given = branch.given_private
            news = {name: value for name, value in branch.private.items() if value is not given.get(name, given)}
            self.private = FrozenDict({**self.private, **news})

    def executor_of(self, place: str) -> Executor | None:
        """Where the branches of the fork out of a node, or the items of a map, run; None: on threads of the run's."""
        given = self.config.executor
        if isinstance(given, Mapping):
            given = given.get(place)
        return given or self.executor or self.options.executor

    def _tell_overwritten(self, node_id: str, updates: list[tuple[str, dict[str, Any]]]) -> None:
        """Tell the observers which keys more than one branch has written of those where the last one wins."""
        writers: dict[str, list[str]] = {}
        for name, update in updates:
            for key in update:
                if not self._reduces(key):
                    writers.setdefault(key, []).append(name)
        for key, names in writers.items():
            if len(names) > 1:
                self.run.tell("parallel.overwrite", "warning", node_id, key=key, branches=names)

    def _reduces(self, key: str) -> bool:
        """Whether a key has a channel that makes something of the old value and the new one."""
        channel = self.schema.channels.get(key)
        return channel is not None and (channel.reducer is not None or type(channel) is not Channel)

    def _side_by_side(self, node_id: str, strands: list[Any], limit: int | None = None) -> Steps:
        run = self.run
        if self.post is not None:
            run.tell("parallel.start", "info", node_id, tasks=len(strands))
        yield from run_concurrently(strands, limit)
        if self.post is not None:
            run.tell("parallel.complete", "info", node_id, tasks=len(strands))


@final
class Branch(NodeRunner):
    """One branch of a fork: from its head to where the branches meet, on a state of its own."""

    def __init__(self, around: NodeRunner, fork: Fork, n: int, key: str) -> None:
        super().__init__(around.program, around.config, around.saver)
        self.run = around.run
        self.around = around
        self.fork_id = fork.id
        self.index, self.total = n, len(fork.heads)
        head = fork.heads[n]
        self.inside = fork.branches[head]
        self.join = fork.join
        self.next = head
        self.key = key
        self.data = around.data
        self.transient = around.transient
        self.private = self.given_private = around.private
        self.post = around.post
        self.executor = around.executor_of(fork.source)
        self.updates: list[tuple[str, FrozenDict]] = []
        self.taps.append(lambda node_id, update: self.updates.append((node_id, update)))
        self.is_halted = False

    def steps(self) -> Steps:
        """Walk to the join, or as far as it goes; every finished node is recorded."""
        n = 0
        try:
            while self.next != self.join:
                self.next = yield from self._step(f"{self.key}.{n}")
                n += 1
        except Halt:
            self.is_halted = True
        else:
            if self.post is not None:
                place = {"index": self.index, "total": self.total}
                self.run.tell("parallel.branch", "info", self.fork_id, branch=self.key, nodes=n, **place)

    def update_of_all(self) -> dict[str, Any]:
        """What its nodes wrote, the last one of each key."""
        return {key: value for _, update in self.updates for key, value in unpack(update).items()}

    def _step(self, key: str) -> Generator[Request, Any, str]:
        run = self.run
        done = run.writes.get(TASK + key)
        if done is not None:
            run.count(done["node"])
            for update in done["updates"]:
                self.merge(done["node"], unpack(update))
            return self._inside(done["node"], done["next"])
        if run.pausing:
            raise Halt
        fork = self.topology.forks.get(self.next)
        if fork is not None:  # what is inside is recorded by its own branches
            yield from self.fork(fork, key)
            return self._inside(fork.id, fork.join)
        before = len(self.updates)
        node = self.topology.nodes[self.next]
        goto = yield from self.visit(node, key)
        following = yield from self._follow(node, goto)
        updates = [update for _, update in self.updates[before:]]
        done = {"node": node.id, "next": following, "updates": updates}
        done |= {"branches": self.total, "ends": following == self.join}  # for those who look how far it is
        yield from run.note({TASK + key: done})
        run.finished.append(node.id)
        if self.dispatched:
            yield from self.hand_out(self.dispatched)
        return following

    def _follow(self, node: Node, goto: str | None) -> Generator[Request, Any, str]:
        if goto is not None:
            return self._inside(node.id, self.checked(node.id, goto))
        if node.id not in self.topology.edges and not node.destinations:  # a branch may just end
            return self.join
        return self._inside(node.id, (yield from self.follow(node.id)))

    def _inside(self, source: str, target: str) -> str:
        fork = self.topology.forks.get(target)
        if target != self.join and (target if fork is None else fork.source) not in self.inside:
            raise self.failure(
                GraphRunnerError,
                f"{source!r} leads to {target!r}, out of its branch of {self.fork_id!r}, whose branches meet in "
                f"{self.join!r}",
                source,
            )
        return target

    def path(self) -> list[str]:
        return self.around.path()


def _named(node: Node, item: int | None) -> str:
    return f"node {node.id!r}" if item is None else f"item {item} of node {node.id!r}"


def _part(head: str) -> str:
    """A node's id as part of a key, in which dots and colons separate."""
    return head.replace("~", "~0").replace(".", "~1").replace(":", "~2")
