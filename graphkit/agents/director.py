"""AgentBuilderDirector: builds an agent from its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from graphkit._build.state_graph import StateGraph
from graphkit._records.config import END, START
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.agents.agent import Agent
from graphkit.agents.configuration import AgentConfig
from graphkit.agents.default_state import parse_state_type
from graphkit.agents.steps import STRATEGIES, Step, StepFactory
from graphkit.agents.tools import Tool, ToolRegistry


@final
class AgentBuilderDirector:
    """Builds an agent from an AgentConfig; AgentBuilder, AgentFactory and load_agent use it."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config

    def build(self) -> Agent:
        """Build the agent.

        The steps are compiled once, as a chain from START to END. MCP servers are connected to for
        their lists of tools.

        Raises:
            ValueError: there are no steps; a step is not valid, with its number; there are tools
                and no chat step; or the checkpointer cannot be built.
        """
        nested = {index: AgentBuilderDirector(config).build() for index, config in self._nested_configs()}
        servers = self._make_servers()
        return self._assemble(servers, () if servers is None else servers.tools(), nested)

    async def abuild(self) -> Agent:
        """As `build`, for code on an event loop."""
        nested = {index: await AgentBuilderDirector(config).abuild() for index, config in self._nested_configs()}
        servers = self._make_servers()
        return self._assemble(servers, () if servers is None else await servers.atools(), nested)

    def _make_servers(self) -> Any:
        """Return the MCP servers of the agent; None if it has none."""
        if not self.config.mcp_servers:
            return None
        from graphkit.agents.mcp_servers import McpServers  # type: ignore[import-not-found,unused-ignore]

        return McpServers(self.config.mcp_servers)

    def _nested_configs(self) -> list[tuple[int, AgentConfig]]:
        """Return the steps that are agents by configuration, with their numbers."""
        found: list[tuple[int, AgentConfig]] = []
        steps: Iterable[object] = self.config.steps  # from data, so perhaps not mappings
        for index, settings in enumerate(steps):
            agent = settings.get("agent") if isinstance(settings, Mapping) else None
            if isinstance(agent, AgentConfig):
                found.append((index, agent))
        return found

    def _assemble(self, servers: Any, mcp_tools: Iterable[Tool], nested: Mapping[int, Agent]) -> Agent:
        config = self.config
        if not config.steps:
            raise ValueError("an agent needs at least one step: add one with with_chat() or with_step()")
        tools = ToolRegistry([*config.tools, *mcp_tools])
        steps = [_make_step(index, settings, tools, nested.get(index)) for index, settings in enumerate(config.steps)]
        if len(tools) and not any(step.uses_tools for step in steps):
            raise ValueError(f"the agent has tools ({', '.join(tools.names)}) and no chat step that could call them")
        schema = parse_state_type(config.state_type, with_messages=any(step.needs_messages for step in steps))
        graph = StateGraph(schema)
        for step in steps:
            step.add_to(graph)
        names = [step.name for step in steps]
        graph.add_edge(START, names[0])
        for step, target in zip(steps, [*names[1:], END], strict=True):
            step.connect(graph, target)
        saver = build_saver(config.checkpointer)
        compiled = graph.compile(checkpoint_saver=saver, graph_id=config.name)
        resources = [resource for agent in nested.values() for resource in agent.resources]
        if servers is not None:
            resources.append(servers)
        if saver is not None and saver is not config.checkpointer:
            resources.append(saver)
        return Agent(
            compiled,
            name=config.name,
            generate_thread_id=_make_generator(config.thread_id),
            resources=resources,
        )


def build_saver(checkpointer: Any) -> BaseCheckpointSaver | None:
    """Return the saver that a configuration describes; a saver is returned as it is.

    Raises:
        ValueError: it is neither, or the configuration cannot be built.
    """
    if checkpointer is None or isinstance(checkpointer, BaseCheckpointSaver):
        return checkpointer
    build = getattr(checkpointer, "build", None)
    if build is None:
        raise ValueError(f"a checkpointer must be a saver or a CheckpointerConfig, not {checkpointer!r}")
    saver: BaseCheckpointSaver | None = build()
    return saver


def _make_step(index: int, settings: Any, tools: ToolRegistry, nested: Agent | None) -> Step:
    """Make a step from its settings.

    Raises:
        ValueError: the settings are not valid; the message has the number of the step.
    """
    try:
        return _parse_step(index, settings, tools, nested)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Invalid step {index}: {error}") from error


def _parse_step(index: int, settings: object, tools: ToolRegistry, nested: Agent | None) -> Step:
    if not isinstance(settings, Mapping):
        raise TypeError(f"a step must be a mapping, not {settings!r}")
    options = dict(settings)
    type_name = options.pop("type", None)
    strategy = STRATEGIES.get(type_name) if isinstance(type_name, str) else None
    if strategy is None:
        raise ValueError(f"unknown type {type_name!r}; the types are {', '.join(map(repr, STRATEGIES))}")
    name = options.pop("name", None) or f"{type_name}_step_{index}"
    if type_name == "agent":
        options = _parse_nested(options, nested)
    _check_options(strategy, options)
    return strategy(name, tools, **options)


def _check_options(strategy: StepFactory, options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(strategy).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    unknown = [option for option in options if option not in known]
    if unknown:
        names = ", ".join(map(repr, known))
        raise ValueError(f"unknown setting {unknown[0]!r}; the settings are {names}")


def _parse_nested(options: dict[str, Any], nested: Agent | None) -> dict[str, Any]:
    """Return the settings of a nested agent as AgentStep takes them."""
    agent = options.pop("agent", None) if nested is None else nested
    options.pop("agent", None)
    checkpointer = options.pop("checkpointer", None)
    graph = agent.graph if isinstance(agent, Agent) else agent
    return {**options, "graph": graph, "saver": build_saver(checkpointer)}


def _make_generator(settings: Mapping[str, Any]) -> Callable[..., str] | None:
    if not settings:
        return None
    from graphkit.agents.thread_ids import ThreadIDManager  # type: ignore[import-not-found,unused-ignore]

    generate: Callable[..., str] = ThreadIDManager(**settings).generate
    return generate
