"""AgentConfig: what an agent consists of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, final

from graphkit.agents.default_state import DefaultState


@final
@dataclasses.dataclass(kw_only=True)
class AgentConfig:
    """What an agent consists of; `AgentBuilderDirector` builds it."""

    name: str = "agent"
    state_type: Any = DefaultState
    """As the schema of a StateGraph."""
    steps: Sequence[Mapping[str, Any]] = ()
    """Each with a `type`, perhaps a `name`, and the settings of that type of step."""
    checkpointer: Any = None
    """A saver, or an object whose `build()` returns a saver or None."""
    tools: Sequence[Any] = ()
    """What the models of all chat steps may call."""
    mcp_servers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    thread_id: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The strategy for thread ids, and its options."""
