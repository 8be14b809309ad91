"""LangGraph's configs as graphkit's, and back."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from graphkit import RunnableConfig

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig as LangGraphConfig


_MAX_HISTORIES: Final = 1024
"""How many configs of histories are kept: each step of a graph needs one."""


def parse_config(config: LangGraphConfig, checkpoint_id: str | None = None) -> RunnableConfig:
    """Return graphkit's config for the history that LangGraph's config names."""
    names = config["configurable"]
    if checkpoint_id is None:
        return _make_history(str(names["thread_id"]), names.get("checkpoint_ns") or "")
    return RunnableConfig(
        str(names["thread_id"]), checkpoint_ns=names.get("checkpoint_ns") or "", checkpoint_id=checkpoint_id
    )


@lru_cache(maxsize=_MAX_HISTORIES)
def _make_history(thread_id: str, namespace: str) -> RunnableConfig:
    return RunnableConfig(thread_id, checkpoint_ns=namespace)


def make_langgraph_config(thread_id: Any, namespace: str, checkpoint_id: str | None) -> LangGraphConfig:
    """Return LangGraph's config of a checkpoint; of a history without one (None)."""
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def get_checkpoint_id(config: LangGraphConfig | None) -> str | None:
    """Return the checkpoint id of LangGraph's config; None if there is none."""
    if not config:
        return None
    return config.get("configurable", {}).get("checkpoint_id") or None
