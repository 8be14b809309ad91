"""Agent: a graph of steps with the calls that an application makes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Self, final, overload

from graphkit._compiled import CompiledGraph, Input
from graphkit._records.config import RunnableConfig
from graphkit._records.context import setting
from graphkit._records.output import GraphResume, NodeOutput, StateSnapshot
from graphkit._to_thread import run_in_thread
from graphkit._values.state import AgentState
from graphkit.agents.messages import check_messages, make_sendable
from graphkit.agents.state import MESSAGES
from graphkit.agents.steps import IS_TEXT_READ
from graphkit.agents.thread_ids import ThreadIDManager, check_thread_id
from graphkit.errors import CheckpointerConfigurationError, GraphRunnerError

AgentInput = Input | str
"""As the input of a run; a text is a message of the user."""


@final
class Agent:
    """A graph of steps, as AgentBuilder and AgentFactory build it.

    Every method that runs steps raises the errors of `CompiledGraph.invoke`. Several threads of
    execution may use one agent; a thread id can have one run at a time.
    """

    def __init__(
        self,
        graph: CompiledGraph[AgentState] | None = None,
        *,
        name: str = "agent",
        generate_thread_id: Callable[..., str] | None = None,
        resources: Sequence[Any] = (),
        has_chat: bool = False,
    ) -> None:
        """Create an agent.

        Args:
            graph: the compiled graph; without one, the agent raises RuntimeError when it is used.
            name: for messages.
            generate_thread_id: makes thread ids; None: random UUIDs.
            resources: what `close` closes, by its method `close`, and `aclose` by `aclose` if it
                has that.
            has_chat: whether a model reads the messages, so that their form is checked.
        """
        self._graph = graph
        self.name = name
        self._generate_thread_id = generate_thread_id or ThreadIDManager().generate
        self._has_chat = has_chat
        self.resources = tuple(resources)
        """What the builder has opened for this agent."""

    @property
    def graph(self) -> CompiledGraph[AgentState]:
        """The graph. Its methods use the thread `$default` where a config names none.

        Raises:
            RuntimeError: the agent was not built.
        """
        return self._require_graph("graph")

    def new_thread_id(self, **options: Any) -> str:
        """Return a new thread id, made by the strategy of the agent.

        Args:
            options: of the strategy, such as `user_id`; they override those of the agent.

        Raises:
            ValueError: the strategy has no such option, or needs one.
        """
        return self._generate_thread_id(**options)

    # Running

    def run(self, state: AgentInput, thread_id: str | None = None, checkpoint_id: str | None = None) -> AgentState:
        """Run the steps to the end or the next stop, and return the state there.

        Args:
            state: a mapping, which is merged into the state of the thread; a text, which is appended
                as a message of the user; None, which resumes the run; or a GraphResume, which
                answers and resumes.
            thread_id: the thread; required if the agent has a checkpointer.
            checkpoint_id: the checkpoint of the thread to start from; None: the latest.

        Raises:
            RuntimeError: the agent was not built.
            ValueError: the thread id is missing or not valid (see `check_thread_id`), or a message has a wrong
                form. Nothing was stored.
            CheckpointerConfigurationError: the agent has no checkpointer, and so nothing to resume.
            GraphRunnerError: steps or tools are asynchronous: use `arun`; or a step failed.
        """
        graph, given, config = self._prepare("run", state, thread_id, checkpoint_id)
        with setting(IS_TEXT_READ, False):
            return graph.invoke(given, config)

    async def arun(
        self, state: AgentInput, thread_id: str | None = None, checkpoint_id: str | None = None
    ) -> AgentState:
        """As `run`. Synchronous steps run in threads."""
        graph, given, config = self._prepare("arun", state, thread_id, checkpoint_id)
        with setting(IS_TEXT_READ, False):
            return await graph.ainvoke(given, config)

    @overload
    def stream(
        self, state: AgentInput, thread_id: str | None = None, checkpoint_id: str | None = None
    ) -> Generator[NodeOutput, None, None]: ...
    @overload
    def stream(
        self, state: AgentInput, thread_id: str | None = None, checkpoint_id: str | None = None, *, stream_mode: Any
    ) -> Generator[Any, None, None]: ...
    def stream(
        self,
        state: AgentInput,
        thread_id: str | None = None,
        checkpoint_id: str | None = None,
        *,
        stream_mode: Any = None,
    ) -> Generator[Any, None, None]:
        """As `run`, but yield each output: pieces of text, finished nodes, and the end or the stop.

        A piece of text is a StreamingOutput whose `chunk` is a str. The last output of a run that
        waits for a human is InterruptionMetadata. Closing the iterator stops the run.

        Args:
            state: as in `run`.
            thread_id: as in `run`.
            checkpoint_id: as in `run`.
            stream_mode: as in `CompiledGraph.stream`; "custom" yields the pieces of text alone.
        """
        graph, given, config = self._prepare("stream", state, thread_id, checkpoint_id)
        return graph.stream(given, config, stream_mode=stream_mode)

    @overload
    def astream(
        self, state: AgentInput, thread_id: str | None = None, checkpoint_id: str | None = None
    ) -> AsyncGenerator[NodeOutput, None]: ...
    @overload
    def astream(
        self, state: AgentInput, thread_id: str | None = None, checkpoint_id: str | None = None, *, stream_mode: Any
    ) -> AsyncGenerator[Any, None]: ...
    def astream(
        self,
        state: AgentInput,
        thread_id: str | None = None,
        checkpoint_id: str | None = None,
        *,
        stream_mode: Any = None,
    ) -> AsyncGenerator[Any, None]:
        """As `stream`."""
        graph, given, config = self._prepare("astream", state, thread_id, checkpoint_id)
        return graph.astream(given, config, stream_mode=stream_mode)

    # Inspecting and correcting

    def get_state(self, thread_id: str, checkpoint_id: str | None = None) -> StateSnapshot:
        """Return the latest checkpoint of a thread, or the one that is named.

        Raises:
            CheckpointNotFoundError: it does not exist.
            CheckpointerConfigurationError: the agent has no checkpointer.
        """
        graph = self._require_checkpointer("get_state")
        return graph.get_state(RunnableConfig(thread_id, checkpoint_id))

    def get_state_history(self, thread_id: str) -> Sequence[StateSnapshot]:
        """Return the checkpoints of a thread, newest first; empty for an unknown thread.

        Raises:
            CheckpointerConfigurationError: the agent has no checkpointer.
        """
        graph = self._require_checkpointer("get_state_history")
        return graph.get_state_history(RunnableConfig(thread_id))

    def update_state(
        self,
        thread_id: str,
        values: Mapping[str, Any] | None,
        checkpoint_id: str | None = None,
        as_node: str | None = None,
    ) -> RunnableConfig:
        """Append a checkpoint with values merged into the state; as `CompiledGraph.update_state`.

        Args:
            thread_id: the thread.
            values: merged through the channels of the state.
            checkpoint_id: the checkpoint to start from; None: the latest.
            as_node: continue as if this node had returned the values.

        Returns:
            The config of the new checkpoint.
        """
        graph = self._require_checkpointer("update_state")
        config = RunnableConfig(thread_id, checkpoint_id)
        return graph.update_state(config, values, as_node)

    # Closing

    def close(self) -> None:
        """Close what the builder has opened: savers and connections to models made from a configuration.

        A saver or a model that the application passed in stays open. Connections to MCP servers belong to an
        event loop; `aclose` closes them.
        """
        close_all(self.resources)

    async def aclose(self) -> None:
        """As `close`; also close the connections to MCP servers of the running event loop."""
        await aclose_all(self.resources)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Helpers

    def _require_graph(self, method: str) -> CompiledGraph[AgentState]:
        if self._graph is None:
            raise RuntimeError(
                f"{method}() called before build(): build the agent with AgentBuilder, AgentFactory or load_agent"
            )
        return self._graph

    def _require_checkpointer(self, what: str) -> CompiledGraph[AgentState]:
        graph = self._require_graph(what)
        if graph.compile_config.saver is None:
            raise CheckpointerConfigurationError(
                f"agent {self.name!r} has no checkpointer, which {what} needs: "
                "add one with with_checkpointer(), or the key checkpointer in a file"
            )
        return graph

    def _prepare(
        self, method: str, state: AgentInput, thread_id: str | None, checkpoint_id: str | None
    ) -> tuple[CompiledGraph[AgentState], Input[AgentState], RunnableConfig]:
        """Return the graph, its input and its config for a method that runs it."""
        graph = self._require_graph(method)
        # Before the input is looked at, so that nothing is stored: in the middle of a run, the first steps would be.
        names = ", ".join(map(repr, graph.topology.asynchronous))
        if names and method in {"run", "stream"}:
            raise GraphRunnerError(
                f"agent {self.name!r} has asynchronous models, functions or tools (in {names}): "
                f"call a{method}() instead"
            )
        if thread_id:
            check_thread_id(thread_id)
        elif checkpoint_id is not None:
            raise ValueError(f"checkpoint_id {checkpoint_id!r} needs the thread_id of its thread")
        elif graph.compile_config.saver is not None:
            raise ValueError(
                f"agent {self.name!r} has a checkpointer, so a run needs a thread_id: "
                f"agent.new_thread_id() makes one for a new conversation"
            )
        return graph, self._parse_input(graph, state), RunnableConfig(thread_id, checkpoint_id)

    def _parse_input(self, graph: CompiledGraph[AgentState], state: AgentInput) -> Input[AgentState]:
        """Return the input of the graph; a text becomes a message of the user.

        Raises:
            GraphRunnerError: it is no input.
            ValueError: it is a text, and the state of the agent has no messages; or a message has a
                wrong form.
            CheckpointerConfigurationError: it resumes, and the agent has no checkpointer.
        """
        if isinstance(state, str):
            if MESSAGES not in graph.topology.schema.keys:
                raise ValueError("the state of this agent has no messages: run it with a mapping instead of a text")
            return {MESSAGES: [{"role": "user", "content": make_sendable(state)}]}
        if state is None or isinstance(state, GraphResume):
            self._require_checkpointer("a resume")
            return state
        given: object = state
        if not isinstance(given, Mapping):
            found = type(given).__name__
            raise GraphRunnerError(f"an agent is run with a text, a mapping, a GraphResume or None, not with {found}")
        if self._has_chat:
            check_messages(given.get(MESSAGES, ()))
        return state


def close_all(resources: Sequence[Any]) -> None:
    """Close resources, the last first. All are closed; the error of one that fails is raised."""
    with ExitStack() as stack:
        for resource in resources:
            close = getattr(resource, "close", None)
            if close is not None:
                stack.callback(close)


async def aclose_all(resources: Sequence[Any]) -> None:
    """As `close_all`, and before that, close what belongs to the running event loop."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(run_in_thread, close_all, resources)
        for resource in resources:
            aclose = getattr(resource, "aclose", None)
            if aclose is not None:
                stack.push_async_callback(aclose)
