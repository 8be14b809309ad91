"""Tool: a function that a model may call, with the JSON schema of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from graphkit._plan.retry import RetryPolicy


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that a model may call."""

    name: str
    """The name that the model calls it by."""
    description: str
    """What it does, in words for the model."""
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments."""
    function: Callable[..., Any]
    """What runs, with keyword arguments."""
    is_async: bool
    """True if `function` returns an awaitable."""
    requires_approval: bool = False
    """True if a human must approve each call."""
    retry: RetryPolicy | None = None
    """When a failed call runs again."""
    timeout: float | None = None
    """How long a call may take, in seconds."""
    on_error: Literal["model", "raise"] = "model"
    """Whether an error goes back to the model or stops the run."""
