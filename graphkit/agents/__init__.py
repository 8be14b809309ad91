"""Agents from code and YAML: chat models, tools and checkpointers (extra `agents`)."""

from __future__ import annotations

from graphkit._public_names import set_public_module
from graphkit.agents.agent import Agent
from graphkit.agents.builder import AgentBuilder, AgentBuilderDirector, AgentFactory
from graphkit.agents.configuration import AgentConfig, CheckpointerConfig, CheckpointerYAMLHandler
from graphkit.agents.models import Model, make_model
from graphkit.agents.state import CheckpointData, DefaultState, StateSerializer
from graphkit.agents.thread_ids import ThreadIDGenerator, ThreadIDManager
from graphkit.agents.tools import Tool, tool
from graphkit.agents.yaml_loader import load_agent, load_agent_config
from graphkit.errors import AgentConfigurationError, McpServerError, McpToolError, ModelError, ToolError

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
