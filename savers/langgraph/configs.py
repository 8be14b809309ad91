"""LangGraph's configs as graphkit's, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphkit import RunnableConfig

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig as LangGraphConfig


def parse_config(config: LangGraphConfig, checkpoint_id: str | None = None) -> RunnableConfig:
    """Return graphkit's config for the history that LangGraph's config names."""
    names = config["configurable"]
    return RunnableConfig(
        str(names["thread_id"]), checkpoint_ns=names.get("checkpoint_ns") or "", checkpoint_id=checkpoint_id
    )


def make_langgraph_config(thread_id: Any, namespace: str, checkpoint_id: str | None) -> LangGraphConfig:
    """Return LangGraph's config of a checkpoint; of a history without one (None)."""
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def get_checkpoint_id(config: LangGraphConfig | None) -> str | None:
    """Return the checkpoint id of LangGraph's config; None if there is none."""
    if not config:
        return None
    return config.get("configurable", {}).get("checkpoint_id") or None
