"""Agents from code and YAML: chat models, tools and checkpointers (extra `agents`)."""

from __future__ import annotations

from graphkit._public_names import set_public_module
from graphkit.agents.agent import Agent as Agent
from graphkit.agents.builder import (
    AgentBuilder as AgentBuilder,
    AgentBuilderDirector as AgentBuilderDirector,
    AgentFactory as AgentFactory,
)
from graphkit.agents.configuration import (
    AgentConfig as AgentConfig,
    CheckpointerConfig as CheckpointerConfig,
    CheckpointerYAMLHandler as CheckpointerYAMLHandler,
)
from graphkit.agents.models import Model as Model, make_model as make_model
from graphkit.agents.state import (
    CheckpointData as CheckpointData,
    DefaultState as DefaultState,
    StateSerializer as StateSerializer,
)
from graphkit.agents.thread_ids import ThreadIDGenerator as ThreadIDGenerator, ThreadIDManager as ThreadIDManager
from graphkit.agents.tools import Tool as Tool, tool as tool
from graphkit.agents.yaml_loader import load_agent as load_agent, load_agent_config as load_agent_config
from graphkit.errors import (
    AgentConfigurationError as AgentConfigurationError,
    McpServerError as McpServerError,
    McpToolError as McpToolError,
    ModelError as ModelError,
    ToolError as ToolError,
)

__all__ = [
    "Agent",
    "AgentBuilder",
    "AgentBuilderDirector",
    "AgentConfig",
    "AgentConfigurationError",
    "AgentFactory",
    "CheckpointData",
    "CheckpointerConfig",
    "CheckpointerYAMLHandler",
    "DefaultState",
    "McpServerError",
    "McpToolError",
    "Model",
    "ModelError",
    "StateSerializer",
    "ThreadIDGenerator",
    "ThreadIDManager",
    "Tool",
    "ToolError",
    "load_agent",
    "load_agent_config",
    "make_model",
    "tool",
]


set_public_module(globals(), __name__)
