"""NodeRunner: executes one node after another, on the main line of a run or in a branch of a fork.

An execution of a node: before-hooks -> the question of an InterruptableAction -> the action, chunk
by chunk if it is a generator -> after-hooks -> merge. Forks, maps and nested graphs consist of node
runners or runs of their own: see `fork.py`, `map.py` and `subgraph.py`.

A node execution that has to wait for a human records the interrupt and raises Halt. Its node runner
ends there; the node runners of other branches go on.

Every node execution has a key: its position in the run, relative to the checkpoint that it began
at. The main line's key is "", that of the second node of branch `a` is `a.1`, and that of the third
item of a map is `2`; nested positions are joined, as in `a.1.b.0`. The key is the same when the
execution is repeated. What was recorded under it is found again: finished tasks, answers, results
of `once`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final, Protocol

from graphkit._engine.concurrent import run_concurrently
from graphkit._engine.cursor import EMPTY, GraphCursor, PostEvent, Steps
from graphkit._engine.journal import RunJournal
from graphkit._engine.program import Program
from graphkit._engine.requests import Close, Collected, Emit, Ended, Next, Request, RunNode
from graphkit._engine.run_events import RunEvents
from graphkit._plan.topology import Call, Fork, Node
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.context import GraphInterrupt, NodeContext
from graphkit._records.output import (
    Command,
    GraphResume,
    InterruptionMetadata,
    NodeOutput,
    StreamingOutput,
    When,
)
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._values.channels import Channel
from graphkit._wording import describe_error
from graphkit.errors import CheckpointerError, GraphRunnerError, NodeExecutionError

_GENERATORS: Final = frozenset({GeneratorType, AsyncGeneratorType, Collected})
_INTERRUPT_ADVICE: Final = "Let GraphInterrupt pass: write `except Exception:`, not a bare `except:`, or raise it again"


class Halt(BaseException):
    """Raised where a run waits for a human or was asked to pause; the reason is recorded."""


class RunContext(Protocol):
    """A run, as its node runners see it: it counts, records and posts events for all of them.

    `RunState` implements it, and describes its attributes.
    """

    config: RunnableConfig
    saver: BaseCheckpointSaver | None
    post: PostEvent | None
    events: RunEvents
    journal: RunJournal
    base: Checkpoint | None
    is_saved: bool
    held_locks: frozenset[object]
    writes: dict[str, Any]
    finished_nodes: list[str]
    nested_interrupts: list[InterruptionMetadata]
    resumes_by_namespace: dict[str, GraphResume]

    @property
    def is_pausing(self) -> bool:
        """Whether the run was asked to stop at the next node boundary."""
        ...

    def check_limit(self, node_id: str) -> None:
        """Raise MaxIterationsError if no further node may be executed."""
        ...

    def count_execution(self, node_id: str) -> None:
        """Count one more executed node."""
        ...

    def find_answers(self, key: str) -> tuple[Any, ...]:
        """Return the answers to the `interrupt()` calls of a node execution."""
        ...

    def mark_unclean(self) -> None:
        """Mark later checkpoints as not clean."""
        ...

    def execution_start(self) -> str:
        """Identify the start of the node execution on the main line."""
        ...

    def ensure_stored(self) -> Steps:
        """Make sure that pending writes can be recorded at the run's position."""
        ...

    def record(self, writes: Mapping[str, Any]) -> Steps:
        """Record pending writes at the run's position."""
        ...

    def record_or_defer(self, writes: Mapping[str, Any]) -> Steps:
        """Record pending writes; with `durability="exit"`, when the run stops."""
        ...

    def defer(self, writes: Mapping[str, Any]) -> None:
        """Keep pending writes in memory until the next record, or until the run stops."""
        ...

    def record_deferred(self) -> Steps:
        """Record the deferred writes now, unless they have to wait until the run stops."""
        ...

    def stores_directly_after(self, node: Node) -> bool:
        """Return whether the updates of a node are stored as soon as they are merged."""
        ...

    def record_interrupt(
        self,
        node_id: str,
        when: When,
        key: str,
        *,
        payload: Any = None,
        metadata: Mapping[str, Any] = EMPTY,
    ) -> Steps:
        """Record that the run waits for a human."""
        ...

    def execute_fork(self, runner: NodeRunner, fork: Fork, key: str) -> Steps:
        """Run the branches of a fork."""
        ...

    def execute_map(self, runner: NodeRunner, node: Node, key: str) -> Steps:
        """Run a node once for each item."""
        ...

    def execute_subgraph(self, runner: NodeRunner, node: Node, key: str) -> Steps:
        """Run a nested graph."""
        ...

    def make_error(self, kind: type[GraphRunnerError], reason: str, node_id: str | None = None) -> GraphRunnerError:
        """Make an error that describes the run."""
        ...

    def post_event(self, type: str, level: str, node_id: str | None, **data: Any) -> None:
        """Post an event to the observers, if there are any."""
        ...


class NodeRunner(GraphCursor):
    """Executes nodes; `run` is the run that they belong to."""

    run: RunContext

    def __init__(self, program: Program, config: RunnableConfig, saver: BaseCheckpointSaver | None) -> None:
        super().__init__(program, config, saver)
        self.executor: Executor | None = None
        """Runs the nodes that have no executor of their own; None: they run where the run does."""
        self.dispatched_outputs: list[NodeOutput] = []
        """What nodes dispatched in addition to their updates; emitted once the updates are
        stored."""

    # A node execution

    def execute(self, node: Node, key: str) -> Generator[Request, Any, str | None]:
        """Execute a node and merge its update; return where its Command goes, if it has a goto."""
        run = self.run
        if node.before_hooks or node.interrupt_call is not None:
            run.check_limit(node.id)  # else they would run for a node that may not run
            yield from self._prepare(node, key)
        run.count_execution(node.id)
        if self.post is not None:
            run.events.post_node_start(node.id, self.data)
        update: Any = None
        if node.graph is not None:
            yield from run.execute_subgraph(self, node, key)
        elif node.items is not None:
            yield from run.execute_map(self, node, key)
        else:
            # This node's own copy, so that changing it has no effect elsewhere.
            state = self.state() if self.private else self.schema.state_factory(self.data)
            update = yield from self.run_action(node, state, key, self.executor)
            if update is state:
                update = None
        goto = None
        if update.__class__ is Command:
            goto = update.goto
            update = update.update
        if node.after_hooks:
            goto, update = yield from self._call_after_hooks(node, goto, update)
        if update is not None:
            self.merge(node.id, update)
        if self.post is not None:
            run.events.post_node_complete(node.id, self.data)
        return goto

    def _prepare(self, node: Node, key: str) -> Steps:
        """Call the before-hooks of a node, and ask an InterruptableAction whether to stop."""
        for hook in node.before_hooks:
            arguments = (node.id, self.state(), self.config)
            update = yield from self._call_hook(node.id, hook, *arguments)
            self.merge(node.id, update)
        if node.interrupt_call is not None:
            yield from self._ask_action(node, node.interrupt_call, key)

    def _call_after_hooks(
        self, node: Node, goto: str | None, update: Any
    ) -> Generator[Request, Any, tuple[str | None, Any]]:
        """Call the after-hooks of a node; return the goto and the update that they leave."""
        for hook in node.after_hooks:
            arguments = (node.id, self.state(), self.config, update)
            update = yield from self._call_hook(node.id, hook, *arguments)
            if update.__class__ is Command:
                goto = update.goto or goto
                update = update.update
        return goto, update

    def _call_hook(self, node_id: str, hook: Call, *arguments: Any) -> Generator[Request, Any, Any]:
        failure_message = f"a hook of {node_id!r} failed"
        return (yield from self.call_user(node_id, failure_message, hook, *arguments))

    def _ask_action(self, node: Node, interrupt: Call, key: str) -> Steps:
        """Call `interrupt` of an InterruptableAction; stop the run if it returns metadata."""
        failure_message = f"interrupt() of node {node.id!r} failed"
        arguments = (node.id, self.state(), self.config)
        metadata = yield from self.call_user(node.id, failure_message, interrupt, *arguments)
        if metadata is None:
            return
        payload = None
        if isinstance(metadata, InterruptionMetadata):
            payload = metadata.payload
            metadata = metadata.metadata
        if not isinstance(metadata, Mapping):
            returned = type(metadata).__name__
            reason = f"interrupt() of node {node.id!r} returned {returned}: return metadata, a mapping or None"
            raise self.make_error(NodeExecutionError, reason, node.id)
        yield from self.run.record_interrupt(node.id, "action", key, payload=payload, metadata=metadata)
        raise Halt

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
        run = self.run
        assert node.action is not None
        if node.executor is not None or node.action.is_async:
            executor = node.executor
        if executor is not None and not isinstance(executor, ThreadPoolExecutor):
            yield from self._store_for_other_process()
        answers = run.find_answers(key) if run.writes else ()
        context = NodeContext(node.id, answers, run.held_locks, key, run.journal)
        try:
            result = yield RunNode(node.action, argument, self.config, context, executor)
            if result.__class__ in _GENERATORS:
                result = yield from self._emit_chunks(node, result, context)
        except GraphInterrupt as interrupt:
            yield from run.record_interrupt(node.id, "inside", key, payload=interrupt.payload)
            yield from self.emit_all(self._dispatched_by(node, context))
            raise Halt from None
        except CheckpointerError:
            raise  # raised by `once`, or by a graph that the node ran: it names the remedy itself
        except Exception as error:
            if self.post is not None:
                run.events.post_node_failed(node.id, error)
            failure = self._action_error(node, item, context, error)
            if failure is error:
                raise
            raise failure from error
        if context.interrupt_calls or context.attempt > 1 or context.outputs:
            self._finish_action(node, item, context)
        return result

    def _store_for_other_process(self) -> Steps:
        """Store the run's position: another process can record writes only at a checkpoint."""
        run = self.run
        yield from run.ensure_stored()
        if run.saver is not None and not run.is_saved:
            yield from run.record({})
        yield from run.record_deferred()

    def _finish_action(self, node: Node, item: int | None, context: NodeContext) -> None:
        """Take over what the node context holds after the action has returned."""
        if context.has_open_interrupt:
            name = describe_node(node, item)
            reason = f"{name} caught the GraphInterrupt of its interrupt(), and went on. {_INTERRUPT_ADVICE}"
            raise self.make_error(NodeExecutionError, reason, node.id)
        if context.attempt > 1:
            self.run.mark_unclean()
        if context.outputs:
            self.dispatched_outputs += self._dispatched_by(node, context)

    def _action_error(self, node: Node, item: int | None, context: NodeContext, error: Exception) -> GraphRunnerError:
        # An error of a subclass, such as ModelError, ends the run itself: callers catch it by its class.
        if isinstance(error, NodeExecutionError) and type(error) is not NodeExecutionError:
            self.add_place(error, node.id)
            return error
        reason = f"{describe_node(node, item)} failed: {describe_error(error)}"
        if context.has_open_interrupt:
            reason += f"; it was raised while interrupt() was stopping the node. {_INTERRUPT_ADVICE}"
        return self.make_error(NodeExecutionError, reason, node.id)

    # Outputs of a node while it runs

    def _emit_chunks(self, node: Node, source: Any, context: NodeContext) -> Generator[Request, Any, Any]:
        """Emit the chunks of a generator; return its update."""
        command: Command | None = None
        is_over = False
        try:
            while True:
                if source.__class__ is not Collected:
                    chunk = yield Next(source, context)
                elif source.chunks:
                    chunk = source.chunks.pop(0)
                else:
                    chunk = Ended(source.value)
                if chunk.__class__ is Ended:
                    is_over = True
                    return _update_of_generator(command, chunk.value)
                if command is not None:
                    raise TypeError("a generator yields its Command last")  # noqa: TRY301 - closed below
                if chunk.__class__ is Command:
                    command = chunk
                else:
                    yield Emit(self._make_output(node, chunk))
        except GeneratorExit:
            raise
        except BaseException:
            if not is_over and source.__class__ is not Collected:
                yield Close(source)
            raise

    def _make_output(self, node: Node, chunk: Any) -> NodeOutput:
        if isinstance(chunk, NodeOutput):
            return chunk
        return StreamingOutput(chunk, node.id, self.schema.state_factory(self.data))

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
        executor = self.config.executor
        if isinstance(executor, Mapping):
            executor = executor.get(name)
        return executor or self.executor or self.options.executor

    def run_parallel(self, node_id: str, parts: list[Steps], limit: int | None = None) -> Steps:
        """Run the branches of a fork or the items of a map, at most `limit` at the same time."""
        run = self.run
        if self.post is not None:
            run.post_event("parallel.start", "info", node_id, tasks=len(parts))
        yield from run_concurrently(parts, limit)
        if self.post is not None:
            run.post_event("parallel.complete", "info", node_id, tasks=len(parts))

    def post_overwrites(self, node_id: str, updates: list[tuple[str, dict[str, Any]]]) -> None:
        """Post which keys several branches have written although only the last value is kept.

        Args:
            node_id: the fork or the map node.
            updates: the name and the update of each branch or item.
        """
        writers: dict[str, list[str]] = {}
        for name, update in updates:
            for key in update:
                if not self._has_reducer(key):
                    writers.setdefault(key, []).append(name)
        for key, names in writers.items():
            if len(names) > 1:
                self.run.post_event("parallel.overwrite", "warning", node_id, key=key, branches=names)

    def _has_reducer(self, key: str) -> bool:
        """Return whether the channel of a key combines the old value and the new one."""
        channel = self.schema.channels.get(key)
        return channel is not None and (channel.reducer is not None or type(channel) is not Channel)


def _update_of_generator(command: Command | None, returned: Any) -> Any:
    """Return the update of a generator: its last yielded Command, or its return value."""
    if command is None:
        return returned
    if returned is not None:
        raise TypeError("a generator yields its Command last, or returns its update")
    return command


def describe_node(node: Node, item: int | None) -> str:
    """Name a node, or an item of a map node, in a message."""
    return f"node {node.id!r}" if item is None else f"item {item} of node {node.id!r}"
