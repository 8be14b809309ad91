"""Agents from code and YAML: chat models, tools and checkpointers (extra `agents`)."""

from __future__ import annotations

from graphkit._public_names import set_public_module
from graphkit.agents.tools import Tool as Tool

__all__ = [
    "Tool",
]

set_public_module(globals(), __name__)
