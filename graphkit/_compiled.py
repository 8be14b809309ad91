"""CompiledGraph: a graph that can be run, resumed, inspected and corrected. Ports langgraph4j's class."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast, final

from graphkit._diagram.render import GraphRepresentation, draw
from graphkit._engine import subgraph
from graphkit._engine.cursor import GraphCursor, checkpoint_not_found, is_update
from graphkit._engine.default_thread import warn_of_default_thread
from graphkit._engine.driver import Driver
from graphkit._engine.loop import Run
from graphkit._engine.program import Program
from graphkit._engine.update import Update
from graphkit._java_names import JavaNames
from graphkit._plan.compile_config import CompileConfig
from graphkit._plan.topology import Topology
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import ConfigLike, RunnableConfig, StreamMode
from graphkit._records.output import GraphResume, InterruptionMetadata, NodeOutput, StateSnapshot, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import waiting_interrupts
from graphkit._values.state import AgentState
from graphkit.errors import CheckpointerConfigurationError, GraphRunnerError

Input = Mapping[str, Any] | GraphResume | None
"""What starts a run (a mapping, merged into the state) or resumes one (GraphResume, or None)."""


@final
class CompiledGraph(JavaNames):
    """A graph ready to run. May be used from any number of threads at once, on one thread id by one run at a time.

    Every method that runs nodes raises what the engine raises: NodeExecutionError (the cause chained),
    MaxIterationsError, GraphRunnerError; ThreadBusyError if another run holds the thread; and the saver's errors.
    """

    def __init__(self, topology: Topology, config: CompileConfig) -> None:
        self.program = Program(topology, config)
        """The graph and its options, as a run takes them."""
        self._running: dict[int, Run] = {}
        """The runs under way, for `pause`."""
        if config.checkpoint_saver is not None and topology.schema.types:
            config.checkpoint_saver.register_types(*topology.schema.types)

    @property
    def topology(self) -> Topology:
        """The checked picture of the graph."""
        return self.program.topology

    @property
    def compile_config(self) -> CompileConfig:
        """The options it was compiled with."""
        return self.program.options

    # Running

    def invoke(self, input: Input, config: ConfigLike = None) -> AgentState | None:
        """Run to the end or the next stop; returns the state there.

        Args:
            input: a mapping starts a run: merged into the thread's latest state (or that of `checkpoint_id`).
                GraphResume or None resumes: at the stored next node.
            config: the thread, and options of this run.
        """
        final = self.invoke_final(input, config)
        return None if final is None else final.state

    def invoke_final(self, input: Input, config: ConfigLike = None) -> NodeOutput | InterruptionMetadata | None:
        """As `invoke`, but returns the last output: InterruptionMetadata if the run stopped for a human."""
        last = None
        for last in self.stream(input, config):  # noqa: B007 - the last one is wanted
            pass
        return last

    def stream(self, input: Input, config: ConfigLike = None) -> Iterator[NodeOutput]:
        """Run, handing out START, each node and END as they are reached; InterruptionMetadata last if the run stopped.

        Nothing runs before the first item is asked for. Closing the iterator stops at the node boundary, with
        everything saved. Before the last item is handed out, all is stored and the thread is free again.
        """
        self._refuse_async()
        run = self._run(input, config)
        return Driver(run, active_runs=self._running).drive(run.steps())

    def stream_snapshots(self, input: Input, config: ConfigLike = None) -> Iterator[NodeOutput]:
        """As `stream`, with a StateSnapshot for every checkpoint that was stored."""
        return self.stream(input, RunnableConfig.of(config).with_stream_mode(StreamMode.SNAPSHOTS))

    def resume(self, thread: str | ConfigLike = None, checkpoint_id: str | None = None) -> AgentState | None:
        """Go on where a thread stands; returns the state at the end or the next stop.

        Args:
            thread: its id, a config, or the run id of a run on it: where no thread of that id has checkpoints.
            checkpoint_id: one of its checkpoints; None: the latest.

        Raises:
            CheckpointNotFoundError: there is no such thread, run or checkpoint.
        """
        return self.invoke(None, self._address(thread, checkpoint_id))

    def pause(self, thread: str | ConfigLike = None) -> int:
        """Ask runs of this graph to stop at their next node boundary; returns how many were asked. Waits for none.

        Such a run ends as at a declared stop before its next node, with `{"reason": "pause"}` as metadata; a resume
        goes on. May be called from another thread, and from a signal handler.

        Args:
            thread: of one thread; None: all that run in this process.
        """
        wanted = None if thread is None else self._address(thread, None).thread
        asked = [run for run in self._running.copy().values() if wanted in (None, run.config.thread)]
        for run in asked:
            run.control.pause_requested = True
        return len(asked)

    # Looking

    def state_of(self, config: ConfigLike = None) -> StateSnapshot | None:
        """The snapshot of the checkpoint that the config names, or of the latest; None if there is none."""
        at = RunnableConfig.of(config)
        checkpoint = self._at(at)[1].get(at)
        return None if checkpoint is None else self._snapshot(at, checkpoint)

    def get_state(self, config: ConfigLike = None) -> StateSnapshot:
        """As `state_of`.

        Raises:
            CheckpointNotFoundError: there is none.
        """
        return _found(self.state_of(config), config)

    def get_state_history(self, config: ConfigLike = None) -> Sequence[StateSnapshot]:
        """The snapshots of a thread, newest first; empty for an unknown thread. States are decoded when looked at."""
        at = RunnableConfig.of(config)
        return [self._snapshot(at, checkpoint) for checkpoint in self._at(at)[1].list(at)]

    def last_state_of(self, config: ConfigLike = None) -> StateSnapshot | None:
        """The latest snapshot of the thread, whatever checkpoint the config names; None if there is none."""
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
        """Append a checkpoint with values merged into the state of the one that the config names, or the latest.

        History is never rewritten: the new checkpoint is a child, and the thread's latest. Resume to go on from it.

        Args:
            config: the thread, and the checkpoint to start from.
            values: merged through the channels.
            as_node: as if this node had returned the values: the next node is where its edge leads. It does not run.
            goto: the next node, outright. Without either, node, next node and what waits there stay.

        Returns:
            The config of the new checkpoint.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint.
            GraphRunnerError: as_node or goto is not in the graph, or both are given.
            ThreadBusyError: the thread is running.
        """
        driver, update = self._update(config, values, as_node, goto)
        list(driver.drive(update.steps()))  # an update hands out nothing
        return driver.result  # type: ignore[no-any-return]

    def set_max_iterations(self, max_iterations: int) -> None:
        """Change how many nodes one run of this graph may execute.

        Raises:
            ValueError: below one.
        """
        self.program = self.program.with_options(self.compile_config.replace(max_iterations=max_iterations))

    # Drawing

    def get_graph(
        self,
        type: GraphRepresentation.Type | str = GraphRepresentation.Type.MERMAID,
        title: str | None = "Graph Diagram",
        print_conditional_edges: bool = True,
        *,
        path: Sequence[str] = (),
    ) -> GraphRepresentation:
        """The graph as text, merged subgraphs taken apart.

        Args:
            type: MERMAID or PLANTUML.
            title: None leaves it out.
            print_conditional_edges: show what decides, too, and not only where it may lead.
            path: the ids that a run passed, in order, to be drawn over it: `[s.node for s in reversed(history)]`.
        """
        return draw(self.topology, type, title, print_conditional_edges, path=path)

    # Async twins

    async def ainvoke(self, input: Input, config: ConfigLike = None) -> AgentState | None:
        """As `invoke`. Synchronous nodes run in a thread."""
        final = await self.ainvoke_final(input, config)
        return None if final is None else final.state

    async def ainvoke_final(self, input: Input, config: ConfigLike = None) -> NodeOutput | InterruptionMetadata | None:
        """As `invoke_final`."""
        last = None
        async for last in self.astream(input, config):  # noqa: B007
            pass
        return last

    def astream(self, input: Input, config: ConfigLike = None) -> AsyncIterator[NodeOutput]:
        """As `stream`."""
        run = self._run(input, config)
        return Driver(run, active_runs=self._running).adrive(run.steps())

    def astream_snapshots(self, input: Input, config: ConfigLike = None) -> AsyncIterator[NodeOutput]:
        """As `stream_snapshots`."""
        return self.astream(input, RunnableConfig.of(config).with_stream_mode(StreamMode.SNAPSHOTS))

    async def aresume(self, thread: str | ConfigLike = None, checkpoint_id: str | None = None) -> AgentState | None:
        """As `resume`."""
        import asyncio

        return await self.ainvoke(None, await asyncio.to_thread(self._address, thread, checkpoint_id))

    async def astate_of(self, config: ConfigLike = None) -> StateSnapshot | None:
        """As `state_of`."""
        at = RunnableConfig.of(config)
        checkpoint = await self._at(at)[1].aget(at)
        return None if checkpoint is None else self._snapshot(at, checkpoint)

    async def aget_state(self, config: ConfigLike = None) -> StateSnapshot:
        """As `get_state`."""
        return _found(await self.astate_of(config), config)

    async def aget_state_history(self, config: ConfigLike = None) -> Sequence[StateSnapshot]:
        """As `get_state_history`."""
        at = RunnableConfig.of(config)
        return [self._snapshot(at, checkpoint) for checkpoint in await self._at(at)[1].alist(at)]

    async def alast_state_of(self, config: ConfigLike = None) -> StateSnapshot | None:
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
        driver, update = self._update(config, values, as_node, goto)
        [output async for output in driver.adrive(update.steps())]
        return driver.result  # type: ignore[no-any-return]

    # Parts

    def _run(self, input: Input, config: ConfigLike) -> Run:
        at = RunnableConfig.of(config)
        warn_of_default_thread(self.compile_config.saver, at)
        return Run(self.program, at, _given(input))

    def _update(
        self, config: ConfigLike, values: Mapping[str, Any] | None, as_node: str | None, goto: str | None
    ) -> tuple[Driver, Update]:
        at = RunnableConfig.of(config)
        program, saver, around = self._at(at)
        outer_channels = () if around is None else around.topology.schema.channels
        update = Update(program, at, saver, values=values, as_node=as_node, goto=goto, outer_channels=outer_channels)
        return Driver(update, runs_nodes=False), update

    def _at(self, config: RunnableConfig) -> tuple[Program, BaseCheckpointSaver, Program | None]:
        """The graph whose history a config names, where that is kept, and the graph around it."""
        saver = self.compile_config.saver
        if saver is None:
            raise CheckpointerConfigurationError("no saver is configured: compile the graph with checkpoint_saver=...")
        programs = subgraph.find_programs(self.program, config.checkpoint_ns)
        if programs is None:
            raise GraphRunnerError(f"the graph has no subgraph at checkpoint_ns={config.checkpoint_ns!r}")
        for program in programs[1:]:
            saver = program.options.checkpoint_saver or saver
        return programs[-1], saver, programs[-2] if len(programs) > 1 else None

    def _address(self, thread: str | ConfigLike, checkpoint_id: str | None) -> RunnableConfig:
        at = RunnableConfig(thread) if isinstance(thread, str) else RunnableConfig.of(thread)
        saver = self.compile_config.saver
        if isinstance(thread, str) and saver is not None and saver.get(at) is None:
            at = _thread_of_run(saver, thread) or at
        return at if checkpoint_id is None else at.with_check_point_id(checkpoint_id)

    def _snapshot(self, config: RunnableConfig, checkpoint: Checkpoint) -> StateSnapshot:
        return StateSnapshot(checkpoint, config, partial(self._shown, config, checkpoint), self._waiting)

    def _shown(self, config: RunnableConfig, checkpoint: Checkpoint, _stored: Any) -> AgentState:
        cursor = GraphCursor(self._at(config)[0], config, None)
        cursor.move_to_checkpoint(checkpoint)
        return cursor.schema.state_factory(cursor.data)

    def _waiting(self, config: RunnableConfig) -> Sequence[WaitingInterrupt]:
        return waiting_interrupts(config, self._at(config)[1].get_writes(config))

    def _refuse_async(self) -> None:
        if self.topology.asynchronous:
            names = ", ".join(map(repr, self.topology.asynchronous))
            raise GraphRunnerError(
                f"the graph has asynchronous nodes or edges ({names}): run it with astream or ainvoke"
            )

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


def _given(given: Any) -> Mapping[str, Any] | GraphResume:
    if given is None:
        return GraphResume()
    if isinstance(given, GraphResume) or is_update(given):
        return cast("Mapping[str, Any] | GraphResume", given)
    raise GraphRunnerError(
        f"a run starts with a mapping or resumes with a GraphResume or None, not with {type(given).__name__}"
    )


def _thread_of_run(saver: BaseCheckpointSaver, run_id: str) -> RunnableConfig | None:
    try:
        found = saver.search({"run_id": run_id}, limit=1)
    except CheckpointerConfigurationError:  # it cannot list its threads, so it was a thread id after all
        return None
    return RunnableConfig(found[0].thread_id) if found else None


def _found(snapshot: StateSnapshot | None, config: ConfigLike) -> StateSnapshot:
    if snapshot is None:
        raise checkpoint_not_found(RunnableConfig.of(config))
    return snapshot
