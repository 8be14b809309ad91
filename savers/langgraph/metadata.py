"""LangGraph's configs as graphkit's, the metadata of its checkpoints, and the nodes before and after one.

LangGraph's savers return metadata as JSON does: without tuples.

LangGraph does not store these nodes; they are derived for those who list histories. A node ran if its
`versions_seen` changed; a node comes next if one of its triggers holds a value. The names of the
triggers are those of LangGraph's StateGraph. Histories of other graphs show "langgraph" as the next
node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from copy import deepcopy
from functools import lru_cache
from typing import Any, Final

import ormsgpack
from langchain_core.runnables import RunnableConfig as LangGraphConfig

from graphkit import END, START, RunnableConfig
from graphkit.saver_kit import LANGGRAPH, MADE_BY, PLAIN, FrozenDict, freeze

NEXT: Final = "langgraph:"
"""The prefix of the next node. No graph of graphkit has such a node, so none continues it."""
UNKNOWN: Final = "langgraph"

_INPUT: Final = "__start__"
_BRANCH: Final = "branch:to:"
_JOIN: Final = "join:"
_SENDS: Final = "__pregel_tasks"
_MAX_GROUPS: Final = 256
"""For how many groups of channels or nodes the names of nodes are remembered."""
_UNPACK_OPTIONS: Final = ormsgpack.OPT_NON_STR_KEYS
_NO_NODES: Final = frozenset({"__input__", "__interrupt__"})

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


# The nodes before and after a checkpoint


def derive_node(metadata: Mapping[str, Any], changed_nodes: Iterable[str]) -> str:
    """Return the names of the nodes that ran before a checkpoint.

    Args:
        metadata: the metadata of the checkpoint.
        changed_nodes: the nodes whose `versions_seen` differ from those of the parent.
    """
    if metadata.get("source") == "input":
        return START
    names: list[str] = []
    for node in sorted(changed_nodes):
        if node == _INPUT:
            names.append(START)
        elif node not in _NO_NODES:
            names.append(node)
    return ", ".join(names) or UNKNOWN


def derive_next_node(checkpoint: Mapping[str, Any]) -> str:
    """Return the names of the nodes that come next; END if there are none."""
    values = checkpoint["channel_values"]
    # This is part of each put, and nearly always the names alone tell.
    known = _derive_from_names(tuple(checkpoint["channel_versions"]), tuple(values))
    if known is not None:
        return known
    return _join_next(values.items())


@lru_cache(maxsize=_MAX_GROUPS)
def _derive_from_names(channels: tuple[str, ...], with_values: tuple[str, ...]) -> str | None:
    """Return what comes next after a checkpoint; None if that depends on the values of channels.

    Args:
        channels: the names of all channels.
        with_values: the names of those that hold a value.
    """
    if not any(name == _INPUT or name.startswith(_BRANCH) for name in channels):
        return UNKNOWN  # each StateGraph has such channels
    if any(name == _SENDS or name.startswith(_JOIN) for name in with_values):
        return None
    return _join_next((name, None) for name in with_values)


def _join_next(values: Iterable[tuple[str, Any]]) -> str:
    """Return the names of the nodes that channels with these values trigger."""
    nodes = {node for name, value in values for node in _iter_triggered(name, value)}
    if not nodes:
        return END
    return NEXT + ", ".join(sorted(nodes))


def _iter_triggered(name: str, value: Any) -> Iterator[str]:
    """Yield the nodes that a channel with this value triggers."""
    if name == _INPUT:
        yield _INPUT
    elif name.startswith(_BRANCH):
        yield name.removeprefix(_BRANCH)
    elif name.startswith(_JOIN) and isinstance(value, Sized):
        starts, _, end = name.removeprefix(_JOIN).rpartition(":")
        if len(value) > starts.count("+"):
            yield end
    elif name == _SENDS and isinstance(value, (list, tuple)):
        for send in value:
            node = _get_send_node(send)
            if node is not None:
                yield node


def _get_send_node(send: Any) -> str | None:
    """Return the node that a Send starts; None for a value that is no Send.

    In an import, which creates no objects, a Send is a msgpack extension.
    """
    if not isinstance(send, ormsgpack.Ext):
        return getattr(send, "node", None)
    try:
        # An Ext does not show its content, but packing and unpacking it does.
        fields = ormsgpack.unpackb(ormsgpack.packb(send), ext_hook=lambda _, data: data)
        _module, _name, (node, *_) = ormsgpack.unpackb(fields, ext_hook=ormsgpack.Ext, option=_UNPACK_OPTIONS)
    except (TypeError, ValueError):
        return None
    return str(node)
