"""CompiledGraph: a graph that can be run, resumed, inspected and corrected.

Ports langgraph4j's class.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import AsyncGenerator, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, TypeAlias, TypedDict, Unpack, final, overload
from weakref import WeakValueDictionary

from graphkit._diagram import GraphRepresentation, draw
from graphkit._engine.driver import STEP_MODES, Driver, aselect_items, select_items
from graphkit._engine.history import RunHistory, checkpoint_not_found
from graphkit._engine.loop import Run
from graphkit._engine.reporter import RunReporter
from graphkit._engine.requests import Request
from graphkit._engine.resume import HOW_TO_ANSWER, check_update, update_state
from graphkit._engine.state import RunState
from graphkit._plan.compile_config import CompileConfig, Program, find_programs
from graphkit._plan.schema import StateSchema
from graphkit._plan.topology import Topology, describe_unknown_node
from graphkit._public_names import JavaNames
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import ConfigLike, RunnableConfig, StreamMode, find_run, with_current_principal
from graphkit._records.output import Command, GraphResume, NodeOutput, StateSnapshot, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import is_cancelled, subgraph_interrupts, waiting_interrupts
from graphkit._to_thread import make_async, run_in_thread
from graphkit._values.state import StateT
from graphkit._wording import check_options, explain_name, name_type, suggest
from graphkit.errors import CheckpointerConfigurationError, DefaultThreadWarning, GraphRunnerError, GraphStateError

Input: TypeAlias = Mapping[str, Any] | StateT | GraphResume | Command | None
"""Starts a run (a mapping or an object of the schema, merged into the state) or resumes one (GraphResume, or None)."""
StepMode: TypeAlias = Literal[
    "values", "updates", "snapshots", StreamMode.VALUES, StreamMode.UPDATES, StreamMode.SNAPSHOTS
]
"""The modes of a stream of outputs."""
Mode: TypeAlias = StreamMode | Literal["values", "updates", "snapshots", "custom"]
Modes: TypeAlias = list[Any] | tuple[Any, ...]


class RunOptions(TypedDict, total=False):
    """The keywords of `invoke` and `stream`: options of `compile` that one run may have of its own."""

    interrupt_before: Collection[str]
    interrupt_after: Collection[str]


_WARNED: Final[WeakValueDictionary[int, BaseCheckpointSaver]] = WeakValueDictionary()
"""The savers that the warning was given for, by id(); not a set, because a saver may be
unhashable."""


@final
class CompiledGraph(JavaNames, Generic[StateT]):
    """A graph that can be run; generic in the type of its state.

    Several threads may use it at the same time. One thread id can have one run at a time.

    Every method that runs nodes raises the errors of the engine: NodeExecutionError (with its
    cause), MaxIterationsError and GraphRunnerError; ThreadBusyError if another run holds the
    thread; and the errors of the saver.
    """

    def __init__(self, topology: Topology, config: CompileConfig) -> None:
        self.program = Program(topology, config)
        """The topology with its options."""
        self._running: set[RunHistory] = set()
        """The runs that have not ended, for `pause`."""
        if config.checkpoint_saver is not None and topology.schema.types:
            config.checkpoint_saver.register_types(*topology.schema.types)

    def __repr__(self) -> str:
        """Return the nodes, and the options that are not at their defaults: the saver, the interrupts."""
        return f"CompiledGraph(nodes: {', '.join(self.topology.nodes)}; {self.compile_config!r})"

    if not TYPE_CHECKING:  # or checkers would take every name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Say how a method of other libraries is called here."""
            hint = explain_name(name) or suggest(name, dir(type(self)))
            raise AttributeError(f"a CompiledGraph has no {name!r}{hint}")

    @property
    def topology(self) -> Topology:
        """The checked graph."""
        return self.program.topology

    @property
    def compile_config(self) -> CompileConfig:
        """The options with which the graph was compiled."""
        return self.program.options

    # Running

    def invoke(self, input: Input[StateT], config: ConfigLike = None, **options: Unpack[RunOptions]) -> StateT:
        """Run the graph to the end or the next stop, and return the state there.

        Args:
            input: a mapping starts a run; it is merged into the latest state of the thread, or that
                of `checkpoint_id`. GraphResume or None resumes the run at the stored next node.
            config: the thread, and options of this run.
        """
        return self.invoke_final(input, config, **options).state

    def invoke_final(
        self, input: Input[StateT], config: ConfigLike = None, **options: Unpack[RunOptions]
    ) -> NodeOutput[StateT]:
        """As `invoke`, but return the last output: InterruptionMetadata if the run stopped."""
        check_options("a run", options, RunOptions.__annotations__)  # stream also takes a mode
        last: NodeOutput[StateT]
        for last in self.stream(input, config, stream_mode=StreamMode.VALUES, **options):  # noqa: B007 - every run has a last output
            pass
        return last

    @overload
    def stream(
        self,
        input: Input[StateT],
        config: ConfigLike = None,
        *,
        stream_mode: StepMode | None = None,
        **options: Unpack[RunOptions],
    ) -> Generator[NodeOutput[StateT], None, None]: ...
    @overload
    def stream(
        self, input: Input[StateT], config: ConfigLike = None, *, stream_mode: Modes, **options: Unpack[RunOptions]
    ) -> Generator[tuple[StreamMode, Any], None, None]: ...
    @overload
    def stream(
        self, input: Input[StateT], config: ConfigLike = None, *, stream_mode: Mode, **options: Unpack[RunOptions]
    ) -> Generator[Any, None, None]: ...
    def stream(
        self, input: Input[StateT], config: ConfigLike = None, *, stream_mode: Any = None, **options: Unpack[RunOptions]
    ) -> Generator[Any, None, None]:
        """Run the graph, and yield START, each node and END as the run reaches them.

        If the run stops, the last output is InterruptionMetadata. The run starts when the caller
        asks for the first output. Closing the iterator stops the run at a node boundary, with
        everything stored. Before the run emits its last output, everything is stored and the run
        lock is released.

        Args:
            input: as in `invoke`.
            config: the thread, and options of this run.
            stream_mode: overrides that of the config, see StreamMode. With "custom", the items are
                what nodes dispatch and yield while they run, and the run goes on in a thread of its
                own. A list of modes yields pairs of a mode and its item.
        """
        if self.topology.asynchronous:
            names = ", ".join(map(repr, self.topology.asynchronous))
            raise GraphRunnerError(
                f"the graph has asynchronous nodes or edges ({names}): run it with astream or ainvoke"
            )
        run = self._make_run(input, config, stream_mode, options)
        outputs = Driver(run.history, self._running).drive(run.steps())
        if run.history.config.stream_mode in STEP_MODES:
            return outputs
        return select_items(outputs, run.history)

    def stream_snapshots(
        self, input: Input[StateT], config: ConfigLike = None
    ) -> Generator[NodeOutput[StateT], None, None]:
        """As `stream`, with a StateSnapshot for every stored checkpoint."""
        return self.stream(input, RunnableConfig.of(config).with_stream_mode(StreamMode.SNAPSHOTS))

    def resume(self, thread: str | ConfigLike = None, checkpoint_id: str | None = None) -> StateT:
        """Continue a thread where its last run stopped; return the state at the end or next stop.

        Args:
            thread: its id, or a config. If no thread with that id has checkpoints: the run id of a
                run on it.
            checkpoint_id: one of its checkpoints; None: the latest.

        Raises:
            CheckpointNotFoundError: the thread, the run or the checkpoint does not exist.
        """
        return self.invoke(None, self._resolve_config(thread, checkpoint_id))

    def submit(
        self,
        input: Mapping[str, Any] | StateT,
        config: ConfigLike = None,
        *,
        at: datetime | None = None,
        key: str | None = None,
    ) -> RunnableConfig:
        """Store a run for a worker to begin, and return; see `graphkit.operations.submit`.

        Args:
            input: as for a start with `invoke`, without transient keys.
            config: the thread, and the metadata of the run; without a thread id, a new thread. The
                other options are those of the process that begins the run.
            at: begin no earlier; aware. None: at once.
            key: makes the call idempotent.

        Returns:
            The config of the thread.

        Raises:
            GraphRunnerError: the input is not one, or has a key that is transient or that the schema
                does not know.
        """
        from graphkit._engine.submit import submit  # which a run does not need

        config = RunnableConfig.of(config)
        saver = self._find_saver(config.replace(checkpoint_ns=""))
        values = parse_submitted(input, self.topology.schema)
        thread = None if config.thread_id is None else config
        return submit(saver, values, thread, graph_id=self.compile_config.graph_id, at=at, key=key)

    def pause(self, thread: str | ConfigLike = None) -> int:
        """Ask runs of this graph to stop at their next node boundary. Does not wait for them.

        Such a run ends as at a declared stop before its next node, with `{"reason": "pause"}` as
        metadata, and can be resumed. Other threads and signal handlers may call this method.

        Args:
            thread: only the run of this thread; None: all runs in this process.

        Returns:
            How many runs were asked.
        """
        # Without a look into the store: the caller may be a signal handler, which has interrupted the saver.
        thread_id = None if thread is None else RunnableConfig.of(thread).thread
        paused = 0
        for run in self._running.copy():
            if thread_id is None or run.config.thread == thread_id:
                run.control.request_pause()
                paused += 1
        return paused

    # Inspecting

    def state_of(self, config: ConfigLike = None) -> StateSnapshot[StateT] | None:
        """Return the snapshot of a checkpoint; None if it does not exist.

        Args:
            config: the thread, and the checkpoint; without one, the latest.
        """
        config = with_current_principal(config)
        checkpoint = self._find_saver(config).get(config)
        if checkpoint is None:
            return None
        return self._make_snapshot(config, checkpoint)

    def get_state(self, config: ConfigLike = None) -> StateSnapshot[StateT]:
        """As `state_of`, but an error if there is none.

        Raises:
            CheckpointNotFoundError: there is none.
        """
        return _require_snapshot(self.state_of(config), config)

    def get_state_history(self, config: ConfigLike = None) -> Sequence[StateSnapshot[StateT]]:
        """Return the snapshots of a thread, newest first; empty for an unknown thread.

        A snapshot decodes its state on access.
        """
        config = with_current_principal(config)
        checkpoints = self._find_saver(config).list(config)
        return [self._make_snapshot(config, checkpoint) for checkpoint in checkpoints]

    def last_state_of(self, config: ConfigLike = None) -> StateSnapshot[StateT] | None:
        """Return the latest snapshot of a thread, or None.

        Args:
            config: the thread; a checkpoint that it names is ignored.
        """
        return self.state_of(RunnableConfig.of(config).with_check_point_id(None))

    # Correcting

    def update_state(
        self,
        config: ConfigLike,
        values: Mapping[str, Any] | None,
        as_node: str | None = None,
        *,
        goto: str | None = None,
    ) -> RunnableConfig:
        """Append a checkpoint with values merged into the state of an earlier one.

        The history is not rewritten: the new checkpoint is a child of the earlier one, and the
        latest of the thread. A resume continues from it.

        Args:
            config: the thread, and the checkpoint to start from; without one, the latest.
            values: merged through the channels.
            as_node: take the edge of this node, as if it had returned the values. It does not run.
            goto: the next node. Without `as_node` and `goto`, the node, the next node and the
                pending interrupts stay as they are. From a checkpoint that is not the latest, the
                next node is then executed again, with all branches, items and nested nodes; its
                interrupts are pending again, without their answers.

        Returns:
            The config of the new checkpoint.

        Raises:
            CheckpointNotFoundError: the checkpoint does not exist.
            GraphRunnerError: as_node or goto is not in the graph, or both are given.
            ThreadBusyError: the thread is running.
        """
        driver, steps = self._make_update(config, values, as_node, goto)
        list(driver.drive(steps))  # an update emits no output
        return driver.result  # type: ignore[no-any-return]

    def set_max_iterations(self, max_iterations: int) -> None:
        """Change how many nodes one run of this graph may execute.

        Raises:
            ValueError: the number is below one.
        """
        options = self.compile_config.replace(max_iterations=max_iterations)
        self.program = Program(self.topology, options)

    # Drawing

    def get_graph(
        self,
        type: GraphRepresentation.Type | str = GraphRepresentation.Type.MERMAID,
        title: str | None = "Graph Diagram",
        print_conditional_edges: bool = True,
        *,
        path: Sequence[str] = (),
    ) -> GraphRepresentation:
        """Draw the graph as text, with the nodes of inlined subgraphs.

        Args:
            type: MERMAID, PLANTUML or TEXT.
            title: None: no title.
            print_conditional_edges: whether a condition is a shape of its own; otherwise only its
                targets are shown.
            path: the ids that a run passed, in order, to highlight:
                `[s.node for s in reversed(history)]`.

        Raises:
            ValueError: the type is unknown.
        """
        return draw(self.topology, type, title, print_conditional_edges, path=path)

    # Async methods

    async def ainvoke(self, input: Input[StateT], config: ConfigLike = None, **options: Unpack[RunOptions]) -> StateT:
        """As `invoke`. Synchronous nodes run in a thread."""
        return (await self.ainvoke_final(input, config, **options)).state

    async def ainvoke_final(
        self, input: Input[StateT], config: ConfigLike = None, **options: Unpack[RunOptions]
    ) -> NodeOutput[StateT]:
        """As `invoke_final`."""
        check_options("a run", options, RunOptions.__annotations__)
        last: NodeOutput[StateT]
        async for last in self.astream(input, config, stream_mode=StreamMode.VALUES, **options):  # noqa: B007
            pass
        return last

    @overload
    def astream(
        self,
        input: Input[StateT],
        config: ConfigLike = None,
        *,
        stream_mode: StepMode | None = None,
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[NodeOutput[StateT], None]: ...
    @overload
    def astream(
        self, input: Input[StateT], config: ConfigLike = None, *, stream_mode: Modes, **options: Unpack[RunOptions]
    ) -> AsyncGenerator[tuple[StreamMode, Any], None]: ...
    @overload
    def astream(
        self, input: Input[StateT], config: ConfigLike = None, *, stream_mode: Mode, **options: Unpack[RunOptions]
    ) -> AsyncGenerator[Any, None]: ...
    def astream(
        self, input: Input[StateT], config: ConfigLike = None, *, stream_mode: Any = None, **options: Unpack[RunOptions]
    ) -> AsyncGenerator[Any, None]:
        """As `stream`. With mode "custom", the run goes on in an asyncio task of its own."""
        run = self._make_run(input, config, stream_mode, options)
        outputs = Driver(run.history, self._running).adrive(run.steps())
        if run.history.config.stream_mode in STEP_MODES:
            return outputs
        return aselect_items(outputs, run.history)

    def astream_snapshots(
        self, input: Input[StateT], config: ConfigLike = None
    ) -> AsyncGenerator[NodeOutput[StateT], None]:
        """As `stream_snapshots`."""
        return self.astream(input, RunnableConfig.of(config).with_stream_mode(StreamMode.SNAPSHOTS))

    async def aresume(self, thread: str | ConfigLike = None, checkpoint_id: str | None = None) -> StateT:
        """As `resume`."""
        config = await run_in_thread(self._resolve_config, thread, checkpoint_id)
        return await self.ainvoke(None, config)

    asubmit = make_async(submit)

    async def astate_of(self, config: ConfigLike = None) -> StateSnapshot[StateT] | None:
        """As `state_of`; the interrupts are read before it returns."""
        config = with_current_principal(config)
        checkpoint = await self._find_saver(config).aget(config)
        if checkpoint is None:
            return None
        snapshot = self._make_snapshot(config, checkpoint)
        # `get` has loaded the state. The interrupts would be read on first use, on the event loop.
        await run_in_thread(getattr, snapshot, "interrupts")
        return snapshot

    async def aget_state(self, config: ConfigLike = None) -> StateSnapshot[StateT]:
        """As `get_state`."""
        return _require_snapshot(await self.astate_of(config), config)

    async def aget_state_history(self, config: ConfigLike = None) -> Sequence[StateSnapshot[StateT]]:
        """As `get_state_history`.

        A snapshot reads its state and its interrupts on first use, which may block the event loop;
        `await aget_state(snapshot.config)` reads them in a thread.
        """
        config = with_current_principal(config)
        checkpoints = await self._find_saver(config).alist(config)
        return [self._make_snapshot(config, checkpoint) for checkpoint in checkpoints]

    async def alast_state_of(self, config: ConfigLike = None) -> StateSnapshot[StateT] | None:
        """As `last_state_of`."""
        return await self.astate_of(RunnableConfig.of(config).with_check_point_id(None))

    async def aupdate_state(
        self,
        config: ConfigLike,
        values: Mapping[str, Any] | None,
        as_node: str | None = None,
        *,
        goto: str | None = None,
    ) -> RunnableConfig:
        """As `update_state`."""
        driver, steps = self._make_update(config, values, as_node, goto)
        [output async for output in driver.adrive(steps)]
        return driver.result  # type: ignore[no-any-return]

    # Helpers

    def _make_run(self, input: Input[StateT], config: ConfigLike, stream_mode: Any, options: RunOptions) -> Run:
        """Prepare a run under the options of its own; without a stream mode, that of the config counts.

        Raises:
            TypeError: there is no such option.
            GraphStateError: a stop names no node of the graph, or an executor is for no fork and no map.
        """
        config = with_current_principal(config)
        if stream_mode is not None:
            config = config.with_stream_mode(stream_mode)
        if isinstance(config.executor, Mapping):
            _check_executors(config.executor, self.topology)
        program = self.program
        if options:
            check_options("a run", options, RunOptions.__annotations__)
            program = Program(self.topology, self.compile_config.replace(**options))
            for name in (*program.options.interrupt_before, *program.options.interrupt_after):
                if name not in self.topology.nodes:
                    raise GraphStateError(f"a stop names {describe_unknown_node(name, self.topology.nodes)}")
        saver = program.options.saver
        if saver is not None and config.thread_id is None:
            _warn_of_default_thread(saver, config)
        run_input = _parse_input(input, program.topology.schema)
        return Run(RunHistory(program, config, saver), run_input)

    def _make_update(
        self,
        config: ConfigLike,
        values: Mapping[str, Any] | None,
        as_node: str | None,
        goto: str | None,
    ) -> tuple[Driver, Generator[Request, Any, RunnableConfig]]:
        config = with_current_principal(config)
        saver = self._find_saver(config)
        *outer, program = self._find_programs(config)
        check_update(program.topology, as_node, goto)
        history = RunHistory(program, config, saver)
        outer_channels = outer[-1].topology.schema.channels if outer else ()
        steps = update_state(history, values, as_node, goto, outer_channels=outer_channels)
        return Driver(history), steps

    def _find_saver(self, config: RunnableConfig) -> BaseCheckpointSaver:
        """Return the saver of the history that a config names.

        Raises:
            CheckpointerConfigurationError: the graph has no saver.
            GraphRunnerError: the graph has no subgraph with this namespace.
        """
        saver = self.compile_config.saver
        if saver is None:
            raise CheckpointerConfigurationError("no saver is configured: compile the graph with checkpoint_saver=...")
        # A nested graph uses the saver of its outer graph unless it has its own.
        for program in self._find_programs(config)[1:]:
            saver = program.options.checkpoint_saver or saver
        return saver

    def _find_programs(self, config: RunnableConfig) -> list[Program]:
        """Return the graph whose history a config names, after those around it.

        Raises:
            GraphRunnerError: the graph has no subgraph with this namespace.
        """
        programs = find_programs(self.program, config.checkpoint_ns)
        if programs is None:
            raise GraphRunnerError(f"the graph has no subgraph at checkpoint_ns={config.checkpoint_ns!r}")
        return programs

    def _resolve_config(self, thread: str | ConfigLike, checkpoint_id: Any) -> RunnableConfig:
        """Return the config of a thread, from a config, a thread id or the id of a run on it.

        Raises:
            TypeError: the id of the checkpoint is none, but perhaps an answer.
        """
        if not isinstance(checkpoint_id, str | None):
            raise TypeError(f"checkpoint_id must be the id of a checkpoint, not {checkpoint_id!r}; {HOW_TO_ANSWER}")
        config = RunnableConfig.of(thread)
        saver = self.compile_config.saver
        if isinstance(thread, str) and saver is not None and saver.get(config) is None:
            with suppress(CheckpointerConfigurationError):  # it cannot list its threads: this is a thread id
                for found in saver.search({"run_id": thread}, limit=1):
                    config = RunnableConfig(found.thread_id)
        if checkpoint_id is None:
            return config
        return config.with_check_point_id(checkpoint_id)

    def _make_snapshot(self, config: RunnableConfig, checkpoint: Checkpoint) -> StateSnapshot[StateT]:
        read_state = partial(self._read_state, config, checkpoint)
        find_waiting = partial(self._find_waiting_interrupts, checkpoint.created_at)
        return StateSnapshot(checkpoint, config, read_state, find_waiting)

    def _read_state(self, config: RunnableConfig, checkpoint: Checkpoint, _stored: Any) -> StateT:
        """Return the state of a checkpoint as nodes receive it: migrated, as a state object."""
        program = self._find_programs(config)[-1]
        state = RunState(program.topology, RunReporter(config, 0, has_saver=False))
        state.move_to(checkpoint, program.options.migrations)
        return state.schema.state_factory(state.data)  # type: ignore[return-value]

    def _find_waiting_interrupts(self, created_at: datetime, config: RunnableConfig) -> Sequence[WaitingInterrupt]:
        """Return the pending interrupts of a checkpoint, and those in nested graphs for which it waits."""
        saver = self._find_saver(config)
        writes = saver.get_writes(config)
        found = waiting_interrupts(config, writes, created_at)
        nested = {} if is_cancelled(writes) else subgraph_interrupts(writes)
        for namespace in dict.fromkeys(nested.values()):
            if find_programs(self.program, namespace) is None:
                continue  # the graph has changed since
            latest = self.state_of(config.replace(checkpoint_ns=namespace, checkpoint_id=None))
            if latest is not None:
                found += [interrupt for interrupt in latest.interrupts if interrupt.id in nested]
        return found

    # Java names
    invokeFinal = invoke_final
    streamSnapshots = stream_snapshots
    stateOf = state_of
    getState = get_state
    getStateHistory = get_state_history
    lastStateOf = last_state_of
    updateState = update_state
    setMaxIterations = set_max_iterations
    getGraph = get_graph
    ainvokeFinal = ainvoke_final
    astreamSnapshots = astream_snapshots
    astateOf = astate_of
    agetState = aget_state
    agetStateHistory = aget_state_history
    alastStateOf = alast_state_of
    aupdateState = aupdate_state

    def compileConfig(self) -> CompileConfig:
        return self.compile_config


def _warn_of_default_thread(saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
    """Warn, once per saver, that all runs without a thread id are stored in the same thread."""
    if not saver.is_durable or id(saver) in _WARNED:
        return
    _WARNED[id(saver)] = saver
    # The warning names the caller of graphkit. The documented way to skip frames, `skip_file_prefixes`, needs
    # Python 3.12.
    frame = sys._getframe()  # noqa: SLF001
    level = 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "graphkit":
        frame = frame.f_back
        level += 1
    warnings.warn(
        f"the run has no thread id, so it continues and is stored in the thread {config.thread!r}, which all "
        f"runs without an id share; give each run its own thread_id: invoke(input, 'order-17')",
        DefaultThreadWarning,
        stacklevel=level,
    )


def _check_executors(executors: Mapping[str, object], topology: Topology) -> None:
    """Check that each executor is for branches or items.

    Raises:
        GraphStateError: one is for a node that neither forks nor is a map, or for none.
    """
    run = find_run()
    if run is not None and run.executor is executors:
        return  # a node passes its config on: the ids are those of the graph that it is in
    known = topology.find_parallel()
    for name in executors:
        if name in known:
            continue
        around = [
            fork.source for fork in topology.forks.values() if any(name in branch for branch in fork.branches.values())
        ]
        if around:
            hint = f"; it is in a branch of {' and of '.join(map(repr, around))}"
        else:
            hint = suggest(str(name), known) or f"; the graph has {', '.join(map(repr, known)) or 'none'}"
        raise GraphStateError(f"executor names {name!r}, which neither forks nor is a map node{hint}")


def _parse_input(input: Any, schema: StateSchema) -> Mapping[str, Any] | GraphResume:
    if input is None:
        return GraphResume()
    if isinstance(input, GraphResume):
        return input
    if isinstance(input, Command) and input.goto is None:  # as LangGraph's users write it
        return GraphResume(input.resume, update=input.update or None)
    values = schema.parse_update(input)
    if values is not None:
        return values
    raise GraphRunnerError(
        f"a run starts with a mapping or resumes with a GraphResume or None, not with {name_type(input)}"
    )


def parse_submitted(input: Any, schema: StateSchema) -> Mapping[str, Any]:
    """Return the input of a run that begins later; what no run could begin with is refused now."""
    values = _parse_input(input, schema)
    if isinstance(values, GraphResume):
        raise GraphRunnerError(f"submit takes the input of a run, not {type(input).__name__}")
    transient = sorted(schema.transient.intersection(values))
    if transient:
        raise GraphRunnerError(f"{', '.join(map(repr, transient))}: a transient key is never stored: leave it out")
    try:
        schema.refuse_unknown_keys(values, {})
    except ValueError as error:
        raise GraphRunnerError(f"the input cannot be merged: {error}") from error
    return values


def _require_snapshot(snapshot: StateSnapshot[StateT] | None, config: ConfigLike) -> StateSnapshot[StateT]:
    if snapshot is None:
        raise checkpoint_not_found(RunnableConfig.of(config))
    return snapshot
