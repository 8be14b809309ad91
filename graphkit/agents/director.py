"""AgentBuilderDirector: builds an agent from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

from graphkit._build.state_graph import StateGraph
from graphkit._records.config import END, START
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._values.state import AgentState
from graphkit.agents.agent import Agent, aclose_all, close_all
from graphkit.agents.checkpointer_config import parse_checkpointer
from graphkit.agents.configuration import (
    AgentConfig,
    AgentStepSettings,
    FunctionStepSettings,
    LlmStepSettings,
    ThreadIdSettings,
    ToolSettings,
)
from graphkit.agents.default_state import parse_state_type
from graphkit.agents.plain_data import Path
from graphkit.agents.steps import STRATEGIES, AgentStep, ChatStep, FunctionStep, Step
from graphkit.agents.thread_ids import ThreadIDManager
from graphkit.agents.tools import Tool, ToolRegistry

if TYPE_CHECKING:
    from graphkit.agents.mcp_servers import McpServers


@final
class InvalidStepError(ValueError):
    """A step of an agent is not valid.

    Attributes:
        reason: why.
        numbers: the number of the step, after those of the steps whose agents contain it.
        key: the path from the step to the key that is wrong.
    """

    def __init__(self, reason: str, *numbers: int, key: Path = ()) -> None:
        super().__init__(reason, *numbers)
        self.reason = reason
        self.numbers = numbers
        self.key = key

    def __str__(self) -> str:
        """Return the reason, after the number of each step."""
        places = [f"Invalid step {number}: " for number in self.numbers]
        return "".join(places) + self.reason


@final
class AgentBuilderDirector:
    """Builds an agent from an AgentConfig; AgentBuilder, AgentFactory and load_agent use it."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config

    def build(self) -> Agent:
        """Build the agent.

        The steps are compiled once, as a chain from START to END. MCP servers are connected to for
        their lists of tools. What was opened for an agent that cannot be built is closed.

        Raises:
            ValueError: there are no steps; a step is not valid, with its number; there are tools
                and no chat step; or the checkpointer cannot be built.
            RuntimeError: there are MCP servers, and an event loop is running in this thread.
        """
        if self.config.mcp_servers:
            _refuse_running_loop()
        assembly = _Assembly(self.config)
        try:
            for index, config in _find_nested(self.config):
                with _in_step(index):
                    assembly.add_nested(index, AgentBuilderDirector(config).build())
            servers = assembly.open_servers()
            tools = [] if servers is None else servers.tools()
            return assembly.finish(tools)
        except BaseException:
            close_all(assembly.resources)
            raise

    async def abuild(self) -> Agent:
        """As `build`, for code on an event loop."""
        assembly = _Assembly(self.config)
        try:
            for index, config in _find_nested(self.config):
                with _in_step(index):
                    assembly.add_nested(index, await AgentBuilderDirector(config).abuild())
            servers = assembly.open_servers()
            tools = [] if servers is None else await servers.atools()
            return assembly.finish(tools)
        except BaseException:
            await aclose_all(assembly.resources)
            raise


@contextmanager
def _in_step(number: int) -> Iterator[None]:
    """Add the number of a step to the errors of the steps of its agent."""
    try:
        yield
    except InvalidStepError as error:
        raise InvalidStepError(error.reason, number, *error.numbers, key=error.key) from error.__cause__


def _refuse_running_loop() -> None:
    import asyncio  # 25 ms to import, and only agents with MCP servers need it

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "build() cannot connect to MCP servers while an event loop is running in this thread: await abuild() "
        "instead; for a file, await AgentBuilderDirector(load_agent_config(path)).abuild()"
    )


def _find_nested(config: AgentConfig) -> list[tuple[int, AgentConfig]]:
    """Return the steps that are agents by configuration, with their numbers and the savers of the steps.

    Raises:
        ValueError: one of them sets a limit, which would have no effect.
    """
    found: list[tuple[int, AgentConfig]] = []
    for index, step in enumerate(config.steps):
        if not isinstance(step, AgentStepSettings) or not isinstance(step.agent, AgentConfig):
            continue
        agent = step.agent
        if agent.max_iterations is not None:
            raise InvalidStepError(
                "max_iterations of the agent in it has no effect; set that of the outer agent", index
            )
        if step.checkpointer is not None:
            agent = agent.model_copy(update={"checkpointer": step.checkpointer})
        found.append((index, agent))
    return found


@final
class _Assembly:
    """An agent that is being built.

    Attributes:
        resources: what was opened for it so far, in this order.
    """

    def __init__(self, config: AgentConfig) -> None:
        """Begin to build.

        Raises:
            ValueError: there are no steps.
        """
        if not config.steps:
            raise ValueError("an agent needs at least one step: add one with with_chat() or with_step()")
        self.config = config
        self.resources: list[Any] = []
        self._nested: dict[int, Agent] = {}

    def add_nested(self, index: int, agent: Agent) -> None:
        """Add the agent of a step that is one by configuration."""
        self._nested[index] = agent
        self.resources += agent.resources

    def open_servers(self) -> McpServers | None:
        """Return the MCP servers of the agent; None if it has none."""
        if not self.config.mcp_servers:
            return None
        from graphkit.agents.mcp_servers import McpServers  # imports asyncio

        servers = McpServers(self.config.mcp_servers)
        self.resources.append(servers)
        return servers

    def finish(self, mcp_tools: Iterable[Tool]) -> Agent:
        """Make the steps, compile the graph, and return the agent."""
        config = self.config
        steps = self._make_steps(ToolRegistry([*_make_tools(config.tools), *mcp_tools]))
        for step in steps:
            self.resources += step.resources
        graph = self._make_graph(steps)
        saver = self._open_saver(config.checkpointer)
        options: dict[str, Any] = {}
        if config.max_iterations is not None:
            options["max_iterations"] = config.max_iterations
        compiled = graph.compile(checkpoint_saver=saver, graph_id=config.name, **options)
        has_chat = any(isinstance(step, ChatStep) for step in steps)
        return Agent(
            compiled,
            name=config.name,
            generate_thread_id=_make_generator(config.thread_id),
            resources=self.resources,
            has_chat=has_chat,
        )

    def _make_steps(self, tools: ToolRegistry) -> list[Step]:
        steps = [self._make_step(index, settings, tools) for index, settings in enumerate(self.config.steps)]
        uses_tools = any(step.uses_tools for step in steps)
        if len(tools) and not uses_tools:
            names = ", ".join(tools.names)
            raise ValueError(f"the agent has tools ({names}) and no chat step that could call them")
        return steps

    def _make_graph(self, steps: Sequence[Step]) -> StateGraph[AgentState]:
        """Return the steps as a chain from START to END."""
        needs_messages = any(step.needs_messages for step in steps)
        graph = StateGraph(parse_state_type(self.config.state_type, with_messages=needs_messages))
        for step in steps:
            step.add_to(graph)
        graph.add_edge(START, steps[0].name)
        for step, following in pairwise(steps):
            step.connect(graph, following.name)
        steps[-1].connect(graph, END)
        return graph

    def _open_saver(self, checkpointer: Any) -> BaseCheckpointSaver | None:
        """Return the saver that a configuration describes; a saver is returned as it is, and stays the caller's."""
        parsed = parse_checkpointer(checkpointer)
        if parsed is None or isinstance(parsed, BaseCheckpointSaver):
            return parsed
        saver: BaseCheckpointSaver | None = parsed.build()
        if saver is not None:
            self.resources.append(saver)
        return saver

    def _make_step(self, index: int, settings: Any, tools: ToolRegistry) -> Step:
        """Make a step from its settings.

        Raises:
            InvalidStepError: the settings are not valid.
        """
        name = settings.name or f"{settings.type}_step_{index}"
        if settings.type not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise InvalidStepError(f"there is no type {settings.type!r}; the types are {known}", index, key=("type",))
        try:
            if isinstance(settings, LlmStepSettings):
                return _make_chat(name, tools, settings.merge_config())
            if isinstance(settings, FunctionStepSettings):
                return FunctionStep(name, tools, function=settings.function)
            if isinstance(settings, AgentStepSettings):
                return self._make_agent_step(name, index, settings)
            return STRATEGIES[settings.type](name, tools, **settings.model_extra)
        except (TypeError, ValueError) as error:
            raise InvalidStepError(str(error), index) from error

    def _make_agent_step(self, name: str, index: int, settings: AgentStepSettings) -> Step:
        agent = self._nested.get(index)
        if agent is not None:
            return AgentStep(name, graph=agent.graph)
        given: Any = settings.agent
        graph = given.graph if isinstance(given, Agent) else given
        return AgentStep(name, graph=graph, saver=self._open_saver(settings.checkpointer))


def _make_chat(name: str, agent_tools: ToolRegistry, settings: LlmStepSettings) -> ChatStep:
    return ChatStep(
        name,
        agent_tools,
        model=settings.model,
        prompt_template=settings.prompt_template,
        system_prompt=settings.system_prompt,
        tools=_make_tools(settings.tools),
        max_parallel_tools=settings.max_parallel_tools,
    )


def _make_tools(entries: Iterable[Any]) -> list[Any]:
    """Return the tools and functions that entries of a configuration describe."""
    return [entry.make_tool() if isinstance(entry, ToolSettings) else entry for entry in entries]


def _make_generator(thread_id: ThreadIdSettings | str | None) -> Callable[..., str] | None:
    if thread_id is None:
        return None
    if isinstance(thread_id, str):
        return ThreadIDManager(thread_id).generate
    return thread_id.make_manager().generate
