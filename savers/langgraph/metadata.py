"""LangGraph's configs as graphkit's, and the metadata of its checkpoints.

LangGraph's savers return metadata as JSON does: without tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any, Final

from langchain_core.runnables import RunnableConfig as LangGraphConfig

from graphkit import RunnableConfig
from graphkit.saver_kit import LANGGRAPH, MADE_BY, PLAIN, FrozenDict, freeze

_EMPTY: Final = FrozenDict()
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_MAX_HISTORIES: Final = 1024
"""How many configs of histories are kept: each step of a graph needs one."""


def parse_config(config: LangGraphConfig, checkpoint_id: str | None = None) -> RunnableConfig:
    """Return graphkit's config for the history that LangGraph's config names."""
    names = config["configurable"]
    parsed = _make_history(str(names["thread_id"]), names.get("checkpoint_ns") or "")
    if checkpoint_id is not None:
        parsed = RunnableConfig(parsed.thread_id, checkpoint_ns=parsed.checkpoint_ns, checkpoint_id=checkpoint_id)
    if "principal" in names:
        parsed = parsed.with_principal(names["principal"])
    return parsed


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


def pack_metadata(metadata: Mapping[str, Any]) -> FrozenDict:
    """Return the metadata to store: tuples become lists, and MADE_BY is added.

    Raises:
        ValueError: a value contains itself, or is nested too deeply.
    """
    plain = _freeze_plain(metadata)
    if plain is not None:
        return plain
    frozen: FrozenDict = freeze({**metadata, MADE_BY: LANGGRAPH})
    if _contains_tuple(frozen):
        lists: dict[str, Any] = copy_as_lists(frozen)
        frozen = freeze(lists)
    return frozen


def _freeze_plain(metadata: Mapping[str, Any]) -> FrozenDict | None:
    """Return frozen metadata whose values are scalars or empty dicts; None if they are not.

    Those of nearly every step are, and need no walk.
    """
    frozen = FrozenDict(metadata)
    for key, value in metadata.items():
        if value.__class__ is dict and not value:
            # One object for all: comparing it with that of the last checkpoint costs nothing.
            dict.__setitem__(frozen, key, _EMPTY)
        elif value.__class__ not in _SCALARS or key.__class__ is not str:
            return None
    dict.__setitem__(frozen, MADE_BY, LANGGRAPH)
    frozen.kind = PLAIN
    return frozen


def unpack_metadata(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of stored metadata that the caller may change.

    Earlier versions stored tuples; they are returned as lists, too.
    """
    metadata = dict(stored)
    metadata.pop(MADE_BY, None)
    for key, value in metadata.items():
        if value.__class__ not in _SCALARS:
            metadata[key] = copy_as_lists(value)
    return metadata


def matches(metadata: Mapping[str, Any], filter: Mapping[str, Any]) -> bool:
    """Return whether the metadata of a checkpoint have these keys and values.

    Args:
        metadata: the stored metadata. A tuple in them equals a list.
        filter: keys and values, as `copy_as_lists` returns them.
    """
    for key, value in filter.items():
        stored = metadata.get(key)
        if stored.__class__ not in _SCALARS:
            stored = copy_as_lists(stored)
        if stored != value:
            return False
    return True


def _contains_tuple(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_contains_tuple, value.values()))
    if isinstance(value, list):
        return any(map(_contains_tuple, value))
    return isinstance(value, tuple)


def copy_as_lists(value: Any) -> Any:
    """Return a copy of a value in which lists replace tuples, at any depth."""
    # Nearly all values are numbers and strings; `deepcopy` takes ten times as long to see that.
    if value.__class__ in _SCALARS:
        return value
    if isinstance(value, dict):
        return {key: copy_as_lists(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [copy_as_lists(item) for item in value]
    return deepcopy(value)
