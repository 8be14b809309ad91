"""Agents from code and YAML: chat models, tools and checkpointers (extra `agents`)."""

from __future__ import annotations

from graphkit._public_names import set_public_module
from graphkit.agents.checkpointer_config import CheckpointerConfig as CheckpointerConfig
from graphkit.agents.checkpointer_yaml import CheckpointerYAMLHandler as CheckpointerYAMLHandler
from graphkit.agents.messages import Message as Message
from graphkit.agents.models import Model as Model, make_model as make_model
from graphkit.agents.tools import Tool as Tool

__all__ = [
    "CheckpointerConfig",
    "CheckpointerYAMLHandler",
    "Message",
    "Model",
    "Tool",
    "make_model",
]

set_public_module(globals(), __name__)
