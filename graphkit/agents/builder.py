"""AgentBuilder and AgentFactory collect the parts of an agent in code; AgentBuilderDirector builds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Self, final

from graphkit._build.state_graph import StateGraph
from graphkit._compiled import CompiledGraph
from graphkit._records.config import END, START
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.agents.agent import Agent, aclose_all, close_all
from graphkit.agents.configuration import (
    AgentConfig,
    AgentStepSettings,
    CheckpointerConfig,
    LlmStepSettings,
    ThreadIdSettings,
    ToolSettings,
    parse_checkpointer,
    require_object,
)
from graphkit.agents.models import make_model
from graphkit.agents.state import DefaultState, parse_state_type
from graphkit.agents.steps import ChatStep
from graphkit.agents.tools import Tool, collect_tools
from graphkit.errors import AgentConfigurationError, CheckpointerConfigurationError, GraphStateError


class AgentBuilder:
    """Collects the parts of an agent. Every method but `build` and `abuild` returns the builder."""

    def __init__(self, state_type: Any = DefaultState, *, name: str = "agent") -> None:
        """Create a builder without steps.

        Args:
            state_type: as the schema of a StateGraph. A chat step adds the channel `messages` if
                the type does not define it.
            name: the name of the agent, for people.
        """
        self._settings: dict[str, Any] = {
            "name": name,
            "state_type": state_type,
            "steps": [],
            "tools": [],
            "mcp_servers": {},
        }

    # Steps, in the order in which they run

    def with_chat(
        self,
        llm_config: Any = None,
        *,
        name: str | None = None,
        prompt_template: str | None = None,
        system_prompt: str | None = None,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        max_parallel_tools: int | None = None,
    ) -> Self:
        """Add a step in which a model answers the messages.

        Args:
            llm_config: `{"provider": ..., "model": ..., "base_url": ...}`, "provider:model", or a
                function (messages) -> message, synchronous or asynchronous.
            name: the name of the step; `llm_step_<i>` by default.
            prompt_template: formatted with the state and sent as a system message. `{city}` stands
                for the key `city` of the state, and `{input}`, where the state has no such key, for
                the newest message of the user.
            system_prompt: sent before everything else.
            tools: what only the model of this step may call.
            max_parallel_tools: how many calls of one message run at the same time, at most; None: no
                limit.

        Raises:
            ValueError: there is no model.
        """
        if llm_config is None:
            raise ValueError("with_chat() needs a model: with_chat('provider:model') or with_chat(function)")
        settings = {
            "model": dict(llm_config) if isinstance(llm_config, Mapping) else llm_config,
            "prompt_template": prompt_template,
            "system_prompt": system_prompt,
            "tools": list(tools),
            "max_parallel_tools": max_parallel_tools,
        }
        return self._add("llm", name, settings)

    def with_step(self, name: str, function: Callable[..., Any] | Agent | CompiledGraph | StateGraph) -> Self:
        """Add a function as a step, or another agent.

        Args:
            name: the name of the step.
            function: callable(state) or callable(state, config), synchronous or asynchronous, that
                returns an update of the state, as a node of a StateGraph; or an agent or a graph.
        """
        if isinstance(function, Agent | CompiledGraph | StateGraph):
            return self._add("agent", name, {"agent": function})
        return self._add("function", name, {"function": function})

    # What all steps share

    def with_tools(self, *tools: Tool | Callable[..., Any]) -> Self:
        """Let the models of all chat steps call these tools; plain functions become tools.

        Raises:
            TypeError: a function cannot be a tool.
            ValueError: two tools have the same name.
        """
        collected = collect_tools([*self._settings["tools"], *tools])
        self._settings["tools"] = list(collected.values())
        return self

    def with_mcp_servers(self, servers: Mapping[str, Any]) -> Self:
        """Let the models of all chat steps call the tools of MCP servers.

        Args:
            servers: settings by name: `{"command": ..., "args": [...], "env": {...}}` or
                `{"url": ...}`.

        Raises:
            AgentConfigurationError: not a mapping, or a key is unknown, missing or wrong. The message names it.
        """
        self._settings["mcp_servers"].update(AgentConfig.from_dict({"mcp_servers": servers}).mcp_servers)
        return self

    def with_max_iterations(self, max_iterations: int) -> Self:
        """Limit the loop of models and tools.

        A run that has reached the limit and would go on raises MaxIterationsError. What it has done is
        stored. The next input starts a new count; a resume goes on if the limit has been raised.

        Args:
            max_iterations: how many nodes one run executes, at most: each request to a model is one, and
                so are the tool calls of one message, and each other step. 1,000 by default. An agent
                that is a step counts its own nodes, up to the limit of the outer agent, and not to its own.

        Raises:
            AgentConfigurationError: not an int of at least 1.
        """
        self._settings["max_iterations"] = AgentConfig(max_iterations=max_iterations).max_iterations
        return self

    def with_thread_ids(self, strategy: str, **options: Any) -> Self:
        """Choose how `Agent.new_thread_id` makes ids; as ThreadIDManager."""
        self._settings["thread_id"] = {"strategy": strategy, **options}
        return self

    def with_checkpointer(self, checkpointer: Any) -> Self:
        """Store every step of the agent.

        Args:
            checkpointer: a saver, a CheckpointerConfig, or a mapping of its fields.

        Raises:
            ValueError: it is none of these, or a field is wrong.
        """
        try:
            self._settings["checkpointer"] = parse_checkpointer(checkpointer)
        except Exception as error:
            raise ValueError(f"Invalid checkpointer configuration: {error}") from error
        return self

    # Building

    def build(self) -> Agent:
        """Build the agent; as `AgentBuilderDirector.build`."""
        return AgentBuilderDirector(AgentConfig.from_dict(self._settings)).build()

    async def abuild(self) -> Agent:
        """As `build`, for code on an event loop."""
        return await AgentBuilderDirector(AgentConfig.from_dict(self._settings)).abuild()

    def _add(self, type_name: str, name: str | None, settings: Mapping[str, Any]) -> Self:
        self._settings["steps"].append({"type": type_name, "name": name, **settings})
        return self


class AgentFactory(AgentBuilder):
    """The name under which applications that come from other systems look for AgentBuilder."""


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
        assembly = _Assembly(self.config, [])
        try:
            for part in assembly.find_parts():
                with part.placed_errors("mcp_servers"):
                    part.mcp_tools = part.mcp_servers.tools()
            return assembly.finish()
        except BaseException:
            close_all(assembly.resources)
            raise

    async def abuild(self) -> Agent:
        """As `build`, for code on an event loop."""
        assembly = _Assembly(self.config, [])
        try:
            for part in assembly.find_parts():
                with part.placed_errors("mcp_servers"):
                    part.mcp_tools = await part.mcp_servers.atools()
            return assembly.finish()
        except BaseException:
            await aclose_all(assembly.resources)
            raise


def check_agent(config: AgentConfig) -> None:
    """Check what `AgentBuilderDirector.build` does, without a store and without connecting to MCP servers.

    Raises:
        ValueError, MissingDependencyError: as `AgentBuilderDirector.build`.
    """
    _Assembly(config, [], opens_stores=False).finish()


@final
class _Assembly:
    """An agent that is being built, and the agents in it that are described by a configuration.

    Making one opens nothing, and checks that the packages of the stores and of the MCP servers are installed. Only
    the tools of the MCP servers have to be asked for in two ways; `finish` is the same for `build` and `abuild`.

    Attributes:
        resources: what was opened so far for the outermost agent and all agents in it, in the order of opening.
        mcp_servers: the MCP servers of this agent; None if it has none.
        mcp_tools: their tools.
    """

    def __init__(self, config: AgentConfig, resources: list[Any], *, opens_stores: bool = True) -> None:
        """Begin to build.

        Args:
            config: the configuration.
            resources: receives what is opened.
            opens_stores: False: the agent is built without savers.

        Raises:
            ValueError: there are no steps, or the checkpointer is wrong.
            MissingDependencyError: a package is not installed that the agent needs.
        """
        if not config.steps:
            raise ValueError("an agent needs at least one step: add one with with_chat() or with_step()")
        if isinstance(config.checkpointer, CheckpointerConfig):
            config.checkpointer.check()
        self.config = config
        self.resources = resources
        self._opens_stores = opens_stores
        self.mcp_servers: Any = None
        self.mcp_tools: list[Tool] = []
        self._has_chat = any(isinstance(step, LlmStepSettings) for step in config.steps)
        self._nested: dict[int, _Assembly] = {}
        for index, step in enumerate(config.steps):
            if isinstance(step, AgentStepSettings) and isinstance(step.agent, AgentConfig):
                nested = step.agent
                if step.checkpointer is not None:
                    nested = nested.model_copy(update={"checkpointer": step.checkpointer})
                self._nested[index] = _Assembly(nested, resources, opens_stores=opens_stores)
        if config.mcp_servers:
            from graphkit.agents.mcp_servers import McpServers  # imports asyncio, which takes 25 ms

            self.mcp_servers = McpServers(config.mcp_servers)
            self.resources.append(self.mcp_servers)

    def find_parts(self) -> Iterator[_Assembly]:
        """Yield the agents that have MCP servers, the innermost first."""
        for nested in self._nested.values():
            yield from nested.find_parts()
        if self.mcp_servers is not None:
            yield self

    @contextmanager
    def placed_errors(self, *path: str | int) -> Iterator[None]:
        """Let errors without a place name the file of this agent, if it has one, and the key that they may be about."""
        try:
            yield
        except (TypeError, ValueError) as error:
            file = self.config.file
            if file is None or _is_placed(error):
                raise
            raise file.make_error(str(error), (*self.config.path, *path)) from error

    def finish(self) -> Agent:
        """Compile the graph, and return the agent."""
        thread_id = self.config.thread_id or ThreadIdSettings()
        if isinstance(thread_id, str):
            thread_id = ThreadIdSettings(strategy=thread_id)
        require_object(thread_id.generator_func, "thread_id.generator_func")
        with self.placed_errors("checkpointer"):
            graph = self.compile()
        return Agent(
            graph,
            name=self.config.name,
            generate_thread_id=thread_id.make_manager().generate,
            resources=self.resources,
            has_chat=self._has_chat,
        )

    def compile(self) -> CompiledGraph:
        """Make the steps and compile them as a chain from START to END."""
        config = self.config
        options: dict[str, Any] = {}
        if config.max_iterations is not None:
            options["max_iterations"] = config.max_iterations
        with self.placed_errors("steps"):
            graph = self._make_graph()
        saver = self._open_saver(config.checkpointer)
        return graph.compile(checkpoint_saver=saver, graph_id=config.name, **options)

    def _make_graph(self) -> StateGraph:
        # What is opened on the way is noted at once: if a later step is wrong, `build` closes it.
        config = self.config
        tools = collect_tools([*_make_tools(config.tools), *self.mcp_tools])
        if (tools or config.mcp_servers) and not self._has_chat:
            owned = ", ".join(tools) or f"those of the MCP servers {', '.join(config.mcp_servers)}"
            raise ValueError(f"the agent has tools ({owned}) and no chat step that could call them")

        state_type = require_object(config.state_type, "state_type")
        graph = StateGraph(parse_state_type(state_type, with_messages=self._has_chat))
        names = [step.name or f"{step.type}_step_{index}" for index, step in enumerate(config.steps)]
        graph.add_edge(START, names[0])
        for index, (name, target) in enumerate(pairwise([*names, END])):
            try:
                with self.placed_errors("steps", index):
                    action = self._make_action(index, name, tools)
            except (TypeError, ValueError) as error:
                if _is_placed(error):
                    raise
                if index in self._nested and isinstance(error, CheckpointerConfigurationError | GraphStateError):
                    raise  # of the class that the agent in it raises when it is built alone
                raise AgentConfigurationError(f"Invalid step {index}: {error}") from error
            if isinstance(action, ChatStep):
                action.add_to(graph, target)
            else:
                graph.add_node(name, action)
                graph.add_edge(name, target)
        return graph

    def _open_saver(self, checkpointer: Any) -> BaseCheckpointSaver | None:
        """Return the saver that a configuration describes; a saver is returned as it is, and stays the caller's."""
        if not self._opens_stores:
            return None
        parsed = parse_checkpointer(checkpointer)
        if parsed is None or isinstance(parsed, BaseCheckpointSaver):
            return parsed
        saver: BaseCheckpointSaver | None = parsed.build()
        if saver is not None:
            self.resources.append(saver)
        return saver

    def _make_action(self, index: int, name: str, tools: Mapping[str, Tool]) -> Any:
        """Return what a step executes: a ChatStep, a function or a graph.

        Args:
            index: its number.
            name: the name of its node.
            tools: the tools of the agent.

        Raises:
            TypeError, ValueError: the settings are not valid.
        """
        settings: Any = self.config.steps[index]
        if isinstance(settings, LlmStepSettings):
            chat = settings.merge_config()
            model = make_model(chat.model)
            if model is not chat.model:
                self.resources.append(model)
            return ChatStep(name, chat, collect_tools([*tools.values(), *_make_tools(chat.tools)]), model)
        if index in self._nested:
            nested = self._nested[index]
            if nested.config.max_iterations is not None:
                raise ValueError("max_iterations of the agent in it has no effect; set that of the outer agent")
            return nested.compile()
        if isinstance(settings, AgentStepSettings):
            return self._open_graph(name, settings)
        return require_object(settings.function, "function")

    def _open_graph(self, name: str, settings: AgentStepSettings) -> CompiledGraph | StateGraph:
        """Return the graph of a step; a StateGraph with a saver of its own is compiled, and so nested."""
        require_object(settings.file, "file")
        given: Any = settings.agent
        graph: CompiledGraph | StateGraph = getattr(given, "graph", given)
        saver = self._open_saver(settings.checkpointer)
        if saver is None:
            return graph
        if isinstance(graph, CompiledGraph):
            raise ValueError(  # noqa: TRY004 - its type is right, and its checkpointer is not
                f"step {name!r} is built already: give the checkpointer to the agent itself"
            )
        return graph.compile(checkpoint_saver=saver)


def _make_tools(entries: Iterable[Any]) -> list[Any]:
    """Return the tools and functions that entries of a configuration describe."""
    return [
        entry.make_tool() if isinstance(entry, ToolSettings) else require_object(entry, "tools") for entry in entries
    ]


def _is_placed(error: Exception) -> bool:
    """Return whether an error names its place in a file."""
    return isinstance(error, AgentConfigurationError) and error.file is not None
