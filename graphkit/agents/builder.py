"""AgentBuilder and AgentFactory: an agent step by step, in code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from graphkit._build.state_graph import StateGraph
from graphkit._compiled import CompiledGraph
from graphkit.agents.agent import Agent
from graphkit.agents.checkpointer_config import parse_checkpointer
from graphkit.agents.configuration import AgentConfig
from graphkit.agents.default_state import DefaultState
from graphkit.agents.director import AgentBuilderDirector
from graphkit.agents.tools import Tool, ToolRegistry
from graphkit.errors import AgentConfigurationError


class AgentBuilder:
    """Collects the parts of an agent. Every method but `build` and `abuild` returns the builder."""

    def __init__(self, state_type: Any = DefaultState, *, name: str = "agent") -> None:
        """Create a builder without steps.

        Args:
            state_type: as the schema of a StateGraph. A chat step adds the channel `messages` if
                the type does not define it.
            name: the name of the agent, for people.
        """
        self._name = name
        self._state_type = state_type
        self._steps: list[dict[str, Any]] = []
        self._tools = ToolRegistry()
        self._mcp_servers: dict[str, Any] = {}
        self._max_iterations: int | None = None
        self._thread_id: dict[str, Any] | None = None
        self._checkpointer: Any = None

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
        for added in tools:
            self._tools.add(added)
        return self

    def with_mcp_servers(self, servers: Mapping[str, Any]) -> Self:
        """Let the models of all chat steps call the tools of MCP servers.

        Args:
            servers: settings by name: `{"command": ..., "args": [...], "env": {...}}` or
                `{"url": ...}`.

        Raises:
            AgentConfigurationError: it is no mapping. The settings are checked by `build`.
        """
        given: object = servers
        if not isinstance(given, Mapping):
            found = type(given).__name__
            raise AgentConfigurationError(f"mcp_servers must be a mapping of names to settings, not {found}")
        self._mcp_servers.update(servers)
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
            ValueError: it is no whole number of at least 1.
        """
        given: object = max_iterations
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise ValueError(f"max_iterations must be a whole number of at least 1, not {given!r}")
        self._max_iterations = max_iterations
        return self

    def with_thread_ids(self, strategy: str, **options: Any) -> Self:
        """Choose how `Agent.new_thread_id` makes ids; as ThreadIDManager."""
        self._thread_id = {"strategy": strategy, **options}
        return self

    def with_checkpointer(self, checkpointer: Any) -> Self:
        """Store every step of the agent.

        Args:
            checkpointer: a saver, a CheckpointerConfig, or a mapping of its fields.

        Raises:
            ValueError: it is none of these, or a field is wrong.
        """
        try:
            self._checkpointer = parse_checkpointer(checkpointer)
        except Exception as error:
            raise ValueError(f"Invalid checkpointer configuration: {error}") from error
        return self

    # Building

    def build(self) -> Agent:
        """Build the agent; as `AgentBuilderDirector.build`."""
        return AgentBuilderDirector(self._make_config()).build()

    async def abuild(self) -> Agent:
        """As `build`, for code on an event loop."""
        return await AgentBuilderDirector(self._make_config()).abuild()

    def _add(self, type_name: str, name: str | None, settings: Mapping[str, Any]) -> Self:
        self._steps.append({"type": type_name, "name": name, **settings})
        return self

    def _make_config(self) -> AgentConfig:
        steps: list[Any] = list(self._steps)
        thread_id: Any = self._thread_id
        return AgentConfig(
            name=self._name,
            state_type=self._state_type,
            steps=steps,
            checkpointer=self._checkpointer,
            tools=list(self._tools),
            mcp_servers=dict(self._mcp_servers),
            max_iterations=self._max_iterations,
            thread_id=thread_id,
        )


class AgentFactory(AgentBuilder):
    """The name under which applications that come from other systems look for AgentBuilder."""
