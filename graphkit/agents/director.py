"""AgentBuilderDirector: builds an agent from its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

from graphkit._build.state_graph import StateGraph
from graphkit._records.config import END, START
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.agents.agent import Agent, aclose_all, close_all
from graphkit.agents.checkpointer_config import parse_checkpointer
from graphkit.agents.configuration import AgentConfig
from graphkit.agents.default_state import parse_state_type
from graphkit.agents.settings import check_limit
from graphkit.agents.steps import STRATEGIES, ChatStep, Step, StepFactory
from graphkit.agents.tools import Tool, ToolRegistry

if TYPE_CHECKING:
    from graphkit.agents.mcp_servers import McpServers


@final
class InvalidStepError(ValueError):
    """A step of an agent is not valid.

    Attributes:
        reason: why.
        numbers: the number of the step, after those of the steps whose agents contain it.
    """

    def __init__(self, reason: str, *numbers: int) -> None:
        super().__init__(reason, *numbers)
        self.reason = reason
        self.numbers = numbers

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
        raise InvalidStepError(error.reason, number, *error.numbers) from error.__cause__


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
    """Return the steps that are agents by configuration, with their numbers.

    Raises:
        ValueError: one of them sets a limit, which would have no effect.
    """
    found: list[tuple[int, AgentConfig]] = []
    steps: Iterable[object] = config.steps  # from data, so perhaps not mappings
    for index, settings in enumerate(steps):
        if not isinstance(settings, Mapping):
            continue
        agent = settings.get("agent")
        if isinstance(agent, AgentConfig):
            _refuse_own_limit(index, agent)
            found.append((index, agent))
    return found


def _refuse_own_limit(index: int, agent: AgentConfig) -> None:
    if agent.max_iterations is not None:
        reason = "max_iterations of the agent in it has no effect; set that of the outer agent"
        raise InvalidStepError(reason, index)


@final
class _Assembly:
    """An agent that is being built.

    Attributes:
        resources: what was opened for it so far, in this order.
    """

    def __init__(self, config: AgentConfig) -> None:
        """Begin to build.

        Raises:
            ValueError: there are no steps, or the limit is no whole number of at least 1.
        """
        if not config.steps:
            raise ValueError("an agent needs at least one step: add one with with_chat() or with_step()")
        if config.max_iterations is not None:
            check_limit("max_iterations", config.max_iterations)
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
        tools = ToolRegistry([*config.tools, *mcp_tools])
        steps = self._make_steps(tools)
        for step in steps:
            self.resources += step.resources
        graph = self._make_graph(steps)
        saver = self._open_saver(config.checkpointer)
        compiled = graph.compile(checkpoint_saver=saver, graph_id=config.name, **self._graph_options())
        has_chat = any(isinstance(step, ChatStep) for step in steps)
        return Agent(
            compiled,
            name=config.name,
            generate_thread_id=_make_generator(config.thread_id),
            resources=self.resources,
            has_chat=has_chat,
        )

    def _graph_options(self) -> dict[str, Any]:
        """Return the options of the graph that the configuration sets."""
        options: dict[str, Any] = {}
        if self.config.max_iterations is not None:
            options["max_iterations"] = self.config.max_iterations
        return options

    def _make_steps(self, tools: ToolRegistry) -> list[Step]:
        steps = [self._make_step(index, settings, tools) for index, settings in enumerate(self.config.steps)]
        uses_tools = any(step.uses_tools for step in steps)
        if len(tools) and not uses_tools:
            names = ", ".join(tools.names)
            raise ValueError(f"the agent has tools ({names}) and no chat step that could call them")
        return steps

    def _make_graph(self, steps: Sequence[Step]) -> StateGraph:
        """Return the steps as a chain from START to END."""
        needs_messages = any(step.needs_messages for step in steps)
        schema = parse_state_type(self.config.state_type, with_messages=needs_messages)
        graph = StateGraph(schema)
        for step in steps:
            step.add_to(graph)
        _connect(graph, steps)
        return graph

    def _open_saver(self, checkpointer: Any) -> BaseCheckpointSaver | None:
        saver = build_saver(checkpointer)
        if saver is not None and saver is not checkpointer:
            self.resources.append(saver)
        return saver

    def _make_step(self, index: int, settings: Any, tools: ToolRegistry) -> Step:
        """Make a step from its settings.

        Raises:
            InvalidStepError: the settings are not valid.
        """
        try:
            return self._parse_step(index, settings, tools)
        except (TypeError, ValueError) as error:
            raise InvalidStepError(str(error), index) from error

    def _parse_step(self, index: int, settings: object, tools: ToolRegistry) -> Step:
        if not isinstance(settings, Mapping):
            raise TypeError(f"a step must be a mapping, not {settings!r}")
        options = dict(settings)
        type_name = options.pop("type", None)
        strategy = _find_strategy(type_name)
        name = options.pop("name", None) or f"{type_name}_step_{index}"
        if type_name == "agent":
            options = self._parse_nested(index, options)
        _check_options(strategy, options)
        return strategy(name, tools, **options)

    def _parse_nested(self, index: int, options: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a nested agent as AgentStep takes them."""
        given = options.pop("agent", None)
        agent = self._nested.get(index, given)
        graph = agent.graph if isinstance(agent, Agent) else agent
        checkpointer = options.pop("checkpointer", None)
        saver = self._open_saver(checkpointer)
        return {**options, "graph": graph, "saver": saver}


def _connect(graph: StateGraph, steps: Sequence[Step]) -> None:
    """Add the edges from START through all steps to END."""
    first = steps[0]
    last = steps[-1]
    graph.add_edge(START, first.name)
    for step, following in pairwise(steps):
        step.connect(graph, following.name)
    last.connect(graph, END)


def _find_strategy(type_name: object) -> StepFactory:
    """Return the class for a type of step.

    Raises:
        ValueError: there is none.
    """
    if isinstance(type_name, str) and type_name in STRATEGIES:
        return STRATEGIES[type_name]
    known = ", ".join(map(repr, STRATEGIES))
    raise ValueError(f"unknown type {type_name!r}; the types are {known}")


def build_saver(checkpointer: Any) -> BaseCheckpointSaver | None:
    """Return the saver that a configuration describes; a saver is returned as it is.

    Raises:
        CheckpointerConfigurationError: it is neither, or the configuration cannot be built.
    """
    parsed = parse_checkpointer(checkpointer)
    if parsed is None or isinstance(parsed, BaseCheckpointSaver):
        return parsed
    saver: BaseCheckpointSaver | None = parsed.build()
    return saver


def _check_options(strategy: StepFactory, options: Mapping[str, Any]) -> None:
    """Check that the settings of a step are keyword-only parameters of its class."""
    known: list[str] = []
    for parameter in inspect.signature(strategy).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return  # it checks them itself
        if parameter.kind is parameter.KEYWORD_ONLY:
            known.append(parameter.name)
    for option in options:
        if option not in known:
            names = ", ".join(map(repr, known))
            raise ValueError(f"unknown setting {option!r}; the settings are {names}")


def _make_generator(settings: Mapping[str, Any]) -> Callable[..., str] | None:
    if not settings:
        return None
    from graphkit.agents.thread_ids import ThreadIDManager

    generate: Callable[..., str] = ThreadIDManager(**settings).generate
    return generate
