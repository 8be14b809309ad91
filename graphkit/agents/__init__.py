"""Agents from code and YAML: chat models, tools and checkpointers (extra `agents`)."""

from __future__ import annotations

from graphkit._public_names import set_public_module
from graphkit.agents.checkpoint_data import CheckpointData as CheckpointData
from graphkit.agents.checkpointer_config import CheckpointerConfig as CheckpointerConfig
from graphkit.agents.checkpointer_yaml import CheckpointerYAMLHandler as CheckpointerYAMLHandler
from graphkit.agents.messages import Message as Message
from graphkit.agents.models import Model as Model, make_model as make_model
from graphkit.agents.state_serializer import StateSerializer as StateSerializer
from graphkit.agents.thread_ids import (
    ThreadIDGenerator as ThreadIDGenerator,
    ThreadIDManager as ThreadIDManager,
    check_thread_id as check_thread_id,
)
from graphkit.agents.tools import Tool as Tool

__all__ = [
    "CheckpointData",
    "CheckpointerConfig",
    "CheckpointerYAMLHandler",
    "Message",
    "Model",
    "StateSerializer",
    "ThreadIDGenerator",
    "ThreadIDManager",
    "Tool",
    "check_thread_id",
    "make_model",
]

set_public_module(globals(), __name__)
