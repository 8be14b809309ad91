"""Agents from code and YAML: chat models, tools and checkpointers (extra `agents`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphkit._public_names import set_public_module
from graphkit.agents.agent import Agent as Agent
from graphkit.agents.builder import (
    AgentBuilder as AgentBuilder,
    AgentBuilderDirector as AgentBuilderDirector,
    AgentFactory as AgentFactory,
)
from graphkit.agents.checkpointer_config import (
    CheckpointerConfig as CheckpointerConfig,
    CheckpointerYAMLHandler as CheckpointerYAMLHandler,
)
from graphkit.agents.configuration import AgentConfig as AgentConfig
from graphkit.agents.default_state import DefaultState as DefaultState
from graphkit.agents.messages import Message as Message
from graphkit.agents.models import Model as Model, make_model as make_model
from graphkit.agents.state_data import CheckpointData as CheckpointData, StateSerializer as StateSerializer
from graphkit.agents.steps import Step as Step, register_step as register_step
from graphkit.agents.thread_ids import (
    ThreadIDGenerator as ThreadIDGenerator,
    ThreadIDManager as ThreadIDManager,
    check_thread_id as check_thread_id,
)
from graphkit.agents.tools import (
    Tool as Tool,
    ToolArgumentsError as ToolArgumentsError,
    ToolRegistry as ToolRegistry,
    tool as tool,
)
from graphkit.agents.yaml_loader import load_agent as load_agent, load_agent_config as load_agent_config
from graphkit.errors import (
    AgentConfigurationError as AgentConfigurationError,
    McpServerError as McpServerError,
    McpToolError as McpToolError,
    ModelError as ModelError,
    ToolError as ToolError,
)

if TYPE_CHECKING:
    from graphkit.agents.mcp_servers import McpServers as McpServers

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
    "McpServers",
    "McpToolError",
    "Message",
    "Model",
    "ModelError",
    "StateSerializer",
    "Step",
    "ThreadIDGenerator",
    "ThreadIDManager",
    "Tool",
    "ToolArgumentsError",
    "ToolError",
    "ToolRegistry",
    "check_thread_id",
    "load_agent",
    "load_agent_config",
    "make_model",
    "register_step",
    "tool",
]


def __getattr__(name: str) -> Any:
    """Import McpServers when it is first used: it needs asyncio, which takes 25 ms to import."""
    if name != "McpServers":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from graphkit.agents.mcp_servers import McpServers

    set_public_module({"__all__": [name], name: McpServers}, __name__)
    globals()[name] = McpServers
    return McpServers


def __dir__() -> list[str]:
    """List the public names, even before their first use."""
    return sorted({*globals(), *__all__})


set_public_module(globals(), __name__)
