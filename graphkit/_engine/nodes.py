"""NodeRunner: executes one node after another, on the main line of a run or in a branch of a fork.

An execution of a node: before-hooks -> the question of an InterruptableAction -> the action, chunk
by chunk if it is a generator -> after-hooks -> merge.

A node execution that has to wait for a human records the interrupt and raises Halt. Its node runner
ends there; the node runners of other branches go on.

Every node execution has a key: its position in the run, relative to the checkpoint that it began
at. The main line's key is "", that of the second node of branch `a` is `a.1`, and that of the third
item of a map is `2`; nested positions are joined, as in `a.1.b.0`. The key is the same when the
execution is repeated. What was recorded under it is found again: finished tasks, answers, results
of `once`.

Forks and maps consist of node executions of their own, which a `Scheduler` advances. They are
in this module because each may contain the others: a branch may pass a map, and another fork.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final, final

from graphkit._engine.concurrent import Scheduler, run_elsewhere
from graphkit._engine.history import Halt, RunHistory
from graphkit._engine.reporter import describe_cause, find_user_traceback
from graphkit._engine.requests import Close, Collected, Emit, Next, Request, RunNode, Steps
from graphkit._engine.routing import call_hook, call_user, follow_edge, resolve_goto
from graphkit._engine.state import RunState, keys_of, pack, unpack
from graphkit._plan.calls import Ended
from graphkit._plan.topology import Call, Fork, Node, StateItems
from graphkit._records.context import ABSENT, GraphInterrupt, NodeContext
from graphkit._records.output import Command, InterruptionMetadata, MapProgress, NodeOutput, StreamingOutput
from graphkit._saver.writes import ANSWER, ITEMS, RETRIED, TASK, stops_in
from graphkit._values.channels import Channel
from graphkit._values.frozen import PLAIN, FrozenDict, freeze, kind_of
from graphkit._values.state import MapFailure
from graphkit._wording import describe_error, message_of
from graphkit.errors import CheckpointerError, GraphRunnerError, NodeExecutionError

_GENERATORS: Final = frozenset({GeneratorType, AsyncGeneratorType, Collected})
_INTERRUPT_ADVICE: Final = "Let GraphInterrupt pass: write `except Exception:`, not a bare `except:`, or raise it again"


Goto = str | Sequence[str] | None
"""Where the Command of a node goes: one of its destinations or several; None: the edges decide."""


@final
class NodeRunner:
    """Executes nodes on one state: that of the main line, or that of a branch.

    Attributes:
        history: what is stored of the run.
        state: the state.
        control: what other threads and processes ask of the run.
        executor: runs the nodes that have no executor of their own; None: they run where the run
            does.
        run_subgraph: runs a nested graph, given the runner that has reached it; the loop does.
        dispatched_outputs: what nodes dispatched in addition to their updates; emitted once the
            updates are stored.
    """

    def __init__(
        self,
        history: RunHistory,
        state: RunState,
        *,
        executor: Executor | None,
        run_subgraph: Callable[[NodeRunner, Node, str], Steps],
    ) -> None:
        self.history = history
        self.state = state
        self.reporter = history.reporter
        self.control = history.control
        self.executor = executor
        self.run_subgraph = run_subgraph
        self.dispatched_outputs: list[NodeOutput] = []

    # A node execution

    def execute(self, node: Node, key: str) -> Generator[Request, Any, Goto]:
        """Execute a node and merge its update; return where its Command goes, if it has a goto."""
        reporter = self.reporter
        state = self.state
        if node.before_hooks or node.interrupt_call is not None:
            reporter.check_limit(node.id, state.data)  # else they would run for a node that may not run
            yield from self._prepare(node, key)
        reporter.count_execution(node.id, state.data)
        if reporter.post is not None:
            reporter.post_node_start(node.id, state.data)
        update: Any = None
        if node.graph is not None:
            yield from self.run_subgraph(self, node, key)
        elif node.items is not None:
            yield from _MapExecution(self, node, key).steps()
        else:
            # This node's own view, so that changing it has no effect elsewhere. A node that returns
            # the view unchanged has no update.
            argument = state.view() if state.private else state.schema.state_factory(state.data)
            update = yield from self.run_action(node, argument, key, self.executor)
            if update is argument:
                update = None
        goto = None
        if update.__class__ is Command:
            goto = update.goto
            update = update.update
        if node.after_hooks:  # a loop over none would be 0.4 % of each step
            for hook in node.after_hooks:
                update = yield from self._call_hook(node.id, hook, update)
                if update.__class__ is Command:
                    goto = update.goto or goto
                    update = update.update
        if update is not None:
            state.merge(node.id, update)
        if reporter.post is not None:
            reporter.post_node_complete(node.id, state.data)
        return goto

    def _prepare(self, node: Node, key: str) -> Steps:
        """Call the before-hooks of a node; ask an InterruptableAction, which stops the run by returning metadata."""
        self.history.find_answers(key)  # may halt: before the hooks, and not only before the action
        for hook in node.before_hooks:
            update = yield from self._call_hook(node.id, hook)
            self.state.merge(node.id, update)
        if node.interrupt_call is None:
            return
        failure_message = f"interrupt() of node {node.id!r} failed"
        metadata = yield from call_hook(self.state, node.id, failure_message, node.interrupt_call)
        if metadata is None:
            return
        payload = None
        if isinstance(metadata, InterruptionMetadata):
            payload = metadata.payload
            metadata = metadata.metadata
        if not isinstance(metadata, Mapping):
            returned = type(metadata).__name__
            reason = f"interrupt() of node {node.id!r} returned {returned}: return metadata, a mapping or None"
            raise self.state.make_error(NodeExecutionError, reason, node.id)
        yield from self.history.record_interrupt(node.id, "action", key, payload=payload, metadata=metadata)
        raise Halt

    def _call_hook(self, node_id: str, hook: Call, *more: Any) -> Generator[Request, Any, Any]:
        return (yield from call_hook(self.state, node_id, f"a hook of {node_id!r} failed", hook, *more))

    # Its action

    def run_action(
        self, node: Node, argument: Any, key: str, executor: Executor | None, item: int | None = None
    ) -> Generator[Request, Any, Any]:
        """Run the action of a node; return what it returned.

        Args:
            node: the node.
            argument: the state, or the item of a map.
            key: the key of this node execution.
            executor: runs the action, unless the node has an executor of its own or the action is
                asynchronous.
            item: the number of the item of a map.
        """
        history = self.history
        assert node.action is not None
        # An async action belongs to the event loop, so the executor of the fork or the run does not
        # apply. One that the node names itself is passed on, and the pool refuses it with a message.
        if node.executor is not None or node.action.is_async:
            executor = node.executor
        is_remote = executor is not None and not isinstance(executor, ThreadPoolExecutor)
        if is_remote and not (history.is_saved and history.stores_at_exit):
            # Another process can record writes only at a checkpoint.
            yield from history.record({})
        answers = history.find_answers(key) if history.writes else ()
        context = NodeContext(node.id, answers, history.held_locks, key, history)
        # The order of the handlers decides what a stop is. An interrupt is recorded, and what the node
        # had dispatched before it is emitted now, since the repetition dispatches it again. A failure
        # of the saver is no failure of the node, and keeps its class.
        try:
            task = RunNode(context, executor, node.action, argument, history.config)
            is_alone = executor is None and not key and not history.is_in_branch
            result = (yield task) if is_alone else (yield from run_elsewhere(task))
            if result.__class__ in _GENERATORS:
                result = yield from self._emit_chunks(node, result, context)
        except GraphInterrupt as interrupt:
            yield from history.record_interrupt(
                node.id, "inside", key, payload=interrupt.payload, terms=interrupt.terms
            )
            yield from self.emit_all(self._dispatched_by(node, context))
            raise Halt from None
        except CheckpointerError:
            raise  # raised by `once`, or by a graph that the node ran: it names the remedy itself
        except Exception as error:
            self.reporter.post_node_failed(node.id, error)
            # An error of a subclass, such as ModelError, ends the run itself: callers catch it by its class.
            if isinstance(error, NodeExecutionError) and type(error) is not NodeExecutionError:
                self.reporter.add_place(error, node.id, self.state.data)
                raise
            reason = f"{describe_node(node, item)} failed: {describe_error(error)}"
            if context.has_open_interrupt:
                reason += f"; it was raised while interrupt() was stopping the node. {_INTERRUPT_ADVICE}"
            failure = self.state.make_error(NodeExecutionError, reason, node.id)
            # The traceback of the failure ends where the user's code raised, and not here.
            raise failure.with_traceback(find_user_traceback(error)) from error
        if context.interrupt_calls and context.has_open_interrupt:
            name = describe_node(node, item)
            reason = f"{name} caught the GraphInterrupt of its interrupt(), and went on. {_INTERRUPT_ADVICE}"
            raise self.state.make_error(NodeExecutionError, reason, node.id)
        if context.attempt > 1:
            history.metadata.mark_unclean()
            # The run may stop before its next checkpoint, and resume in another process.
            yield from history.record_or_defer({RETRIED: True}, may_wait=True)
        if context.outputs:
            self.dispatched_outputs += self._dispatched_by(node, context)
        return result

    # Outputs of a node while it runs

    def _emit_chunks(self, node: Node, source: Any, context: NodeContext) -> Generator[Request, Any, Any]:
        """Emit the chunks of a generator; return its update."""
        command: Command | None = None
        is_over = False
        is_alone = not context.key and not self.history.is_in_branch
        try:
            while True:
                if source.__class__ is Collected:
                    chunk = source.chunks.pop(0)
                else:
                    task = Next(context, None, source)
                    chunk = (yield task) if is_alone else (yield from run_elsewhere(task))
                if chunk.__class__ is Ended:
                    is_over = True
                    if command is not None and chunk.value is not None:
                        raise TypeError("a generator yields its Command last, or returns its update")  # noqa: TRY301
                    return chunk.value if command is None else command
                if command is not None:
                    raise TypeError("a generator yields its Command last")  # noqa: TRY301 - closed below
                if chunk.__class__ is Command:
                    command = chunk
                else:
                    yield Emit(self._make_output(node, chunk))
        except GeneratorExit:  # the loop itself is closed: it can make no more requests
            raise
        except BaseException:
            # The caller has closed the stream, or the output could not be emitted. The generator must
            # not wait for its next chunk forever, with the resources that it holds.
            if not is_over and source.__class__ is not Collected:
                yield Close(source)
            raise

    def _make_output(self, node: Node, chunk: Any) -> NodeOutput:
        output = chunk
        if not isinstance(chunk, NodeOutput):
            output = StreamingOutput(chunk, node.id, self.state.schema.state_factory(self.state.data))
        if self.history.outer is not None:
            output.is_subgraph = True
        return output  # type: ignore[no-any-return]

    def _dispatched_by(self, node: Node, context: NodeContext) -> list[NodeOutput]:
        # A copy first, because a thread that the node has started may still append.
        return [self._make_output(node, output) for output in tuple(context.outputs)]

    def emit_all(self, outputs: list[NodeOutput]) -> Steps:
        """Emit outputs, and remove each from the list."""
        while outputs:
            yield Emit(outputs.pop(0))

    # What forks and maps share

    def find_executor(self, name: str) -> Executor | None:
        """Find the executor for the branches of a fork or the items of a map.

        Args:
            name: the source of the fork, or the map node.

        Returns:
            The executor; None: they run on threads of the run's own pool.
        """
        executor = self.history.config.executor
        if isinstance(executor, Mapping):
            executor = executor.get(name)
        return executor or self.executor or self.history.program.options.executor

    def run_parallel(self, node_id: str, parts: list[Steps], limit: int | None = None) -> Steps:
        """Run the branches of a fork or the items of a map.

        Args:
            node_id: the fork or the map node.
            parts: the branches or items.
            limit: how many of them run at the same time, at most; the config of the run may allow fewer.
        """
        limits = (limit, self.history.config.max_concurrency, len(parts))
        self.reporter.post_event("parallel.start", node_id, {"tasks": len(parts)})
        yield from Scheduler(parts, min(number for number in limits if number is not None)).steps()
        self.reporter.post_event("parallel.complete", node_id, {"tasks": len(parts)})

    def post_overwrites(self, node_id: str, updates: Mapping[str, Sequence[FrozenDict]]) -> None:
        """Post which keys several branches have written although only the last value is kept.

        Args:
            node_id: the fork or the map node.
            updates: those of each branch or item, packed, by its name.
        """
        channels = self.state.schema.channels
        writers: dict[str, list[str]] = {}
        for name, packed in updates.items():
            keys = dict.fromkeys(key for update in packed for key in keys_of(update))
            for key in keys:
                channel = channels.get(key)
                # A plain channel without a reducer keeps the last value, and so does a key without a channel.
                if channel is None or (type(channel) is Channel and channel.reducer is None):
                    writers.setdefault(key, []).append(name)
        for key, names in writers.items():
            if len(names) > 1:
                self.reporter.post_event("parallel.overwrite", node_id, {"key": key, "branches": names})


def describe_node(node: Node, item: int | None) -> str:
    """Name a node, or an item of a map node, in a message."""
    return f"node {node.id!r}" if item is None else f"item {item} of node {node.id!r}"


# Forks


def execute_fork(runner: NodeRunner, fork: Fork, key: str) -> Steps:
    """Run the branches concurrently, then merge their updates once, in the order of the edges.

    Args:
        runner: the node runner that has reached the fork.
        fork: the fork.
        key: the key of this execution of the fork.

    Raises:
        Halt: a branch waits for a human, or was asked to pause.
    """
    # Before any branch begins, so that two branches which find nothing stored do not both store it.
    yield from runner.history.ensure_stored()
    prefix = f"{key}." if key else ""
    branches: list[_Branch] = []
    for index, head in enumerate(fork.heads):
        # Dots and colons separate the parts of a key, and may be in the id of a node.
        name = head.replace("~", "~0").replace(".", "~1").replace(":", "~2")
        branches.append(_Branch(runner, fork, index, prefix + name))
    yield from runner.run_parallel(fork.id, [branch.steps() for branch in branches])
    if any(branch.is_halted for branch in branches):
        raise Halt
    if runner.reporter.post is not None:
        updates = {branch.head: [update for _, update in branch.updates] for branch in branches}
        runner.post_overwrites(fork.id, updates)
    # The updates, and not the final state of a branch: a reducer combines them with what the other
    # branches wrote. Transient keys have no recorded updates; of those, the last change wins.
    for branch in branches:
        for node_id, update in branch.updates:
            runner.state.merge(node_id, unpack(update))
        runner.state.set_private(branch.changed_private())


@final
class _Branch:
    """One branch of a fork: from its head to the join, on a state of its own.

    Attributes:
        head: its first node.
        updates: its updates so far, packed, each with its node.
        is_halted: whether it waits for a human, or was asked to pause.
    """

    def __init__(self, parent: NodeRunner, fork: Fork, index: int, key: str) -> None:
        self.fork = fork
        self.index = index
        self.head = fork.heads[index]
        self.key = key
        self.initial_private = parent.state.private
        self.state = parent.state.copy_for_branch()
        self.runner = NodeRunner(
            parent.history,
            self.state,
            executor=parent.find_executor(fork.source),
            run_subgraph=parent.run_subgraph,
        )
        self.updates: list[tuple[str, FrozenDict]] = []
        updates = self.updates
        self.state.listeners.append(lambda node_id, update: updates.append((node_id, update)))
        self.is_halted = False

    def steps(self) -> Steps:
        """Run to the join, or until the branch has to stop; record every finished node."""
        count = 0
        next_node_id = self.head
        try:
            while next_node_id != self.fork.join:
                next_node_id = yield from self._take_step(next_node_id, f"{self.key}.{count}")
                count += 1
        except Halt:
            self.is_halted = True
            return
        data = {"branch": self.key, "nodes": count, "index": self.index, "total": len(self.fork.heads)}
        self.runner.reporter.post_event("parallel.branch", self.fork.id, data)

    def changed_private(self) -> dict[str, Any]:
        """Return the transient keys that have another value than at the branch's start."""
        initial = self.initial_private
        return {key: value for key, value in self.state.private.items() if value is not initial.get(key, ABSENT)}

    def _take_step(self, node_id: str, key: str) -> Generator[Request, Any, str]:
        """Execute the next node or fork, unless its result is recorded; return what follows it."""
        runner = self.runner
        history = runner.history
        topology = self.state.topology
        # The key is the position in the branch, and not the node: in a loop inside a branch, the same
        # node has a record for each time it was executed.
        task = history.writes.get(TASK + key)
        if task is not None:  # its node has finished: merge what it returned
            node_id = task["node"]
            runner.reporter.count_execution(node_id, self.state.data)
            for update in task["updates"]:
                self.state.merge(node_id, unpack(update))
            return self._require_inside(node_id, task["next"])
        if runner.control.must_check:
            yield from runner.control.check()
        node = topology.nodes.get(node_id)
        if node is None:  # a fork: its own branches record what they do
            fork = topology.find_fork(node_id)
            assert fork is not None
            yield from execute_fork(runner, fork, key)
            return self._require_inside(fork.id, fork.join)
        first = len(self.updates)
        goto = yield from runner.execute(node, key)
        next_node_id = yield from self._find_next(node, goto)
        task = {
            "node": node.id,
            "next": next_node_id,
            "updates": [update for _, update in self.updates[first:]],
            # For readers that show the progress of a fork:
            "branches": len(self.fork.heads),
            "ends": next_node_id == self.fork.join,
        }
        yield from history.record_or_defer({TASK + key: task})
        runner.reporter.finished_nodes.append(node.id)
        yield from runner.emit_all(runner.dispatched_outputs)
        return next_node_id

    def _find_next(self, node: Node, goto: Goto) -> Generator[Request, Any, str]:
        if goto is not None:
            return self._require_inside(node.id, resolve_goto(self.state, node.id, goto))
        if node.id not in self.state.topology.edges and not node.destinations:  # a branch may just end
            return self.fork.join
        return self._require_inside(node.id, (yield from follow_edge(self.state, node.id)))

    def _require_inside(self, source: str, target: str) -> str:
        """Return the target of an edge.

        Raises:
            GraphRunnerError: the target is neither in this branch nor its join.
        """
        if target == self.fork.join:
            return target
        fork = self.state.topology.find_fork(target)
        node_id = target if fork is None else fork.source
        if node_id not in self.fork.branches[self.head]:
            raise self.state.make_error(
                GraphRunnerError,
                f"{source!r} leads to {target!r}, out of its branch of {self.fork.id!r}, whose branches meet in "
                f"{self.fork.join!r}",
                source,
            )
        return target


# Maps
#
# The list of the items and the update of each finished item are pending writes, so that a resume after a
# crash finds the same items and runs only the unfinished ones. Each record costs a sync. Without exceptions,
# an agent whose model calls one tool at a time would wait for the disk four times in each turn:
#
#     node          record                      waits
#     the model     checkpoint
#     the tools     items: -> [call]            for the first record that depends on it
#                   task:0 -> {update: ...}     for the checkpoint
#                   checkpoint
#
# Two of these records may wait in memory (`may_wait`), which leaves the two checkpoints:
#
# * The list of a single item that is found in the state. A crash loses it, and the resume finds the same
#   item in the state of the checkpoint. It is recorded with what depends on it: the item's update, its
#   interrupt or a result of `once`. For `idempotency_key`, and for another process, it is recorded by
#   itself. The list of several items does not wait: readers see how many there are before the first has
#   finished. Nor does an item that is not plain: the saver may refuse it, and must do so before it runs.
# * The update of the item that finishes last, if only the merge of the updates comes before the checkpoint
#   or the record of the branch, which contains it: no hook, no condition, no emitted output, no interval.
#   A crash in between repeats the item, as a crash just before its end does. If the merge fails, the update
#   is recorded with the failure.


@final
class _MapExecution:
    """One execution of a map node.

    Attributes:
        runner: the node runner that has reached the map node.
        node: the map node.
        key: the key of this execution.
        updates: the packed update of each item; None while it is not finished.
        failures: what failed, by the number of the item, if failures are collected.
        waiting: the keys of the items that still wait for an answer while others were answered.
    """

    def __init__(self, runner: NodeRunner, node: Node, key: str) -> None:
        self.runner = runner
        self.history = runner.history
        self.state = runner.state
        self.node = node
        self.key = key
        self.executor = runner.find_executor(node.id)
        has_fixed_edge = isinstance(self.state.topology.edges.get(node.id), str)
        self.is_stored_next = self.history.stores_every_step and has_fixed_edge and not node.after_hooks
        """Whether the updates are stored as soon as they are merged."""
        self.updates: list[FrozenDict | None] = []
        self.failures: dict[int, MapFailure] = {}
        self.waiting: set[str] = set()
        self.unfinished = 0
        """How many items have not returned an update yet."""

    def steps(self) -> Steps:
        """Run the node for all items concurrently, then merge their updates in the items' order.

        Raises:
            Halt: an item waits for a human, or the run was asked to pause.
        """
        # A map `m` of three items on the main line has the executions "0", "1" and "2". The process dies
        # after the second item, with these pending writes at the checkpoint before `m`:
        #
        #   items: -> [a, b, c]     task:1 -> {node: m, update: {...}}
        #
        # The resume finds the items there and not in the state, runs 0 and 2, and merges all three updates
        # in the order of the items. If item 0 asks a human, its interrupt has the key "0", and its answer
        # reaches the same item again.
        runner = self.runner
        items = yield from self._resolve_items()
        self.updates = [None] * len(items)
        self.unfinished = len(items)
        self.waiting = self._find_waiting(len(items))
        parts = [self._run_item(index, item) for index, item in enumerate(items)]
        yield from runner.run_parallel(self.node.id, parts, self.node.max_concurrency)
        updates = [update for update in self.updates if update is not None]
        if len(updates) < len(items):
            raise Halt
        node_id = self.node.id
        if runner.reporter.post is not None:
            runner.post_overwrites(node_id, {str(index): [update] for index, update in enumerate(updates)})
        for index, update in enumerate(updates):
            source = f"item {index} of {node_id!r}"
            self.state.merge(node_id, unpack(update), source)
        if self.node.failures is not None:
            failed = [self.failures[index] for index in sorted(self.failures)]
            self.state.merge(node_id, {self.node.failures: failed})

    def _find_waiting(self, count: int) -> set[str]:
        """Return the keys of the items that need not run again, since only others were answered.

        There are none if no item was answered: a resume without any answer runs them all, since their code may
        have changed.
        """
        writes = self.history.writes.copy()  # other branches record, from other threads too
        answered: set[str] = set()
        waiting: set[str] = set()
        for stop_id, stop in stops_in(writes).items():
            keys = answered if ANSWER + stop_id in writes else waiting
            keys.add(stop.get("key", ""))
        items = {self._key_of(index) for index in range(count)}
        unfinished = {key for key in items if TASK + key not in writes}
        return set() if unfinished.isdisjoint(answered) else waiting & unfinished

    def _key_of(self, index: int) -> str:
        return f"{self.key}.{index}" if self.key else str(index)

    def _resolve_items(self) -> Generator[Request, Any, Sequence[Any]]:
        """Return the items; they are recorded once, so that a resume finds the same items."""
        history = self.history
        state = self.state
        node = self.node
        recorded: Sequence[Any] | None = history.writes.get(ITEMS + self.key)
        if recorded is not None:
            return recorded
        assert node.items is not None
        failure_message = f"what {node.id!r} maps over cannot be listed"
        arguments = (state.view(), history.config)
        listed = yield from call_user(state, node.id, failure_message, node.items, *arguments)
        try:
            items: Sequence[Any] = freeze([*listed])
        except (Exception, GraphInterrupt) as error:
            reason = f"{failure_message}: {describe_error(error)}"
            raise state.make_error(NodeExecutionError, reason, node.id) from error
        yield from history.ensure_stored()
        is_in_state = isinstance(node.items.function, StateItems)
        may_wait = is_in_state and len(items) <= 1 and kind_of(items) == PLAIN
        yield from history.record_or_defer({ITEMS + self.key: items}, may_wait=may_wait)
        return items

    def _run_item(self, index: int, item: Any) -> Steps:
        """Run the node for one item, unless its result is recorded."""
        runner = self.runner
        node = self.node
        key = self._key_of(index)
        task = self.history.writes.get(TASK + key)
        if task is not None:
            self.unfinished -= 1
        else:
            if key in self.waiting:
                return
            try:
                if runner.control.must_check:
                    yield from runner.control.check()
                result = yield from runner.run_action(node, item, key, self.executor, index)
                task = {"node": node.id, "update": self._pack_result(index, result)}
            except Halt:
                return
            except NodeExecutionError as error:
                if node.failures is None:
                    raise
                task = {"node": node.id, "update": pack({}), "failed": describe_cause(error)}
            self.unfinished -= 1
            # The caller may close the stream at any output that is emitted before the checkpoint.
            may_wait = self.is_stored_next and self.unfinished == 0 and not runner.dispatched_outputs
            yield from self.history.record_or_defer({TASK + key: task}, may_wait=may_wait)
            yield from runner.emit_all(runner.dispatched_outputs)
        self.updates[index] = task["update"]
        if "failed" in task:
            self.failures[index] = MapFailure(index, item, task["failed"])
        # Observers and the stream learn that the item has finished, also if that was before a resume.
        label = None
        if node.label is not None:
            failure_message = f"the label of {describe_node(node, index)} failed"
            config = self.history.config
            label = yield from call_user(self.state, node.id, failure_message, node.label, item, config)
        total = len(self.updates)
        finished = total - self.unfinished
        data = {"branch": key, "nodes": 1, "index": index, "total": total, "label": label}
        runner.reporter.post_event("parallel.branch", node.id, data)
        progress = MapProgress(node.id, index, finished, total, label)
        self.history.dispatch(progress)

    def _pack_result(self, index: int, result: Any) -> FrozenDict:
        """Return the update of an item as it is recorded."""
        state = self.state
        node_id = self.node.id
        name = describe_node(self.node, index)
        if result.__class__ is Command:
            if result.goto is not None:
                reason = f"{name} returned a Command that goes to {result.goto!r}: a map cannot go anywhere"
                raise state.make_error(GraphRunnerError, reason, node_id)
            result = result.update
        try:
            update = {} if result is None else state.schema.parse_update(result)
            if update is not None:
                return pack(state.absorb_private(update))
        except Exception as error:
            reason = f"the update of {name} cannot be stored: {message_of(error)}"
            raise state.make_error(NodeExecutionError, reason, node_id) from error
        reason = f"{name} returned {type(result).__name__}: return a mapping of updates, or None"
        raise state.make_error(NodeExecutionError, reason, node_id)
