"""The metadata of a LangGraph checkpoint, as LangGraph's savers return them: like JSON, without tuples."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from langgraph.checkpoint.base import EXCLUDED_METADATA_KEYS

from graphkit.abc import LANGGRAPH, MADE_BY
from graphkit.values import PLAIN, FrozenDict, freeze

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig as LangGraphConfig
    from langgraph.checkpoint.base import CheckpointMetadata

_EMPTY: Final = FrozenDict()
_MAX_GROUPS: Final = 256
"""For how many groups of keys is remembered which of them are copied."""
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def merge_metadata(config: LangGraphConfig, metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Return the metadata of a checkpoint with those of its config, as LangGraph's own savers do."""
    # `get_checkpoint_metadata` of LangGraph does the same in 2.0 us where this takes 1.2. It is part of each
    # step, and the keys of a config are those of the step before.
    merged: dict[str, Any] = {
        key: value.replace("\0", "") if isinstance(value, str) else value for key, value in metadata.items()
    }
    given: Mapping[str, Any] = config.get("metadata") or _EMPTY
    if isinstance(given, ChainMap):
        # LangGraph passes one. Reading its items takes longer than all of the rest.
        flat: dict[str, Any] = {}
        for mapping in reversed(given.maps):
            flat.update(mapping)
        given = flat
    for part in (given, config.get("configurable") or _EMPTY):
        for key in _list_copied(tuple(part)):
            if key in merged:
                continue
            value = part[key]
            if isinstance(value, str):
                merged[key] = value.replace("\0", "")
            elif isinstance(value, (int, float)):
                merged[key] = value
    return cast("CheckpointMetadata", merged)


@lru_cache(maxsize=_MAX_GROUPS)
def _list_copied(keys: tuple[str, ...]) -> list[str]:
    """Return those of the keys of a config that the metadata of its checkpoints get, too."""
    return [key for key in keys if key not in EXCLUDED_METADATA_KEYS and not key.startswith("__")]


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
            metadata[key] = copy_as_lists(value) if value or value.__class__ is not FrozenDict else {}
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
