"""Derives the nodes before and after a LangGraph checkpoint, for those who list histories.

LangGraph does not store these nodes. A node ran if its `versions_seen` changed; a node comes next if
one of its triggers holds a value. The names of the triggers are those of LangGraph's StateGraph.
Histories of other graphs show "langgraph" as the next node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from functools import lru_cache
from typing import Any, Final

import ormsgpack

from graphkit import END, START

NEXT: Final = "langgraph:"
"""The prefix of the next node. No graph of graphkit has such a node, so none continues it."""
UNKNOWN: Final = "langgraph"

_INPUT: Final = "__start__"
_BRANCH: Final = "branch:to:"
_JOIN: Final = "join:"
_SENDS: Final = "__pregel_tasks"
_MAX_NAMES: Final = 4096
"""How many names of channels are remembered."""
_MAX_GROUPS: Final = 256
"""For how many groups of channels or nodes the names of nodes are remembered."""
_UNPACK_OPTIONS: Final = ormsgpack.OPT_NON_STR_KEYS
_NO_NODES: Final = frozenset({"__input__", "__interrupt__"})


def derive_node(metadata: Mapping[str, Any], changed_nodes: Iterable[str]) -> str:
    """Return the names of the nodes that ran before a checkpoint.

    Args:
        metadata: the metadata of the checkpoint.
        changed_nodes: the nodes whose `versions_seen` differ from those of the parent.
    """
    if metadata.get("source") == "input":
        return START
    return _join_nodes(tuple(changed_nodes))


@lru_cache(maxsize=_MAX_GROUPS)
def _join_nodes(changed_nodes: tuple[str, ...]) -> str:
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
    nodes: set[str] = set()
    for name, value in values.items():
        if _is_trigger(name):
            nodes.update(_iter_triggered(name, value))
    return _join_next(nodes)


@lru_cache(maxsize=_MAX_GROUPS)
def _derive_from_names(channels: tuple[str, ...], with_values: tuple[str, ...]) -> str | None:
    """Return what comes next after a checkpoint; None if that depends on the values of channels.

    Args:
        channels: the names of all channels.
        with_values: the names of those that hold a value.
    """
    if not any(map(_is_start, channels)):
        return UNKNOWN
    triggers = [name for name in with_values if _is_trigger(name)]
    if not all(map(_is_start, triggers)):
        return None
    return _join_next({node for name in triggers for node in _iter_triggered(name, None)})


def _join_next(nodes: set[str]) -> str:
    if not nodes:
        return END
    return NEXT + ", ".join(sorted(nodes))


@lru_cache(maxsize=_MAX_NAMES)
def _is_start(name: str) -> bool:
    """Return whether each StateGraph has a channel of this kind."""
    return name == _INPUT or name.startswith(_BRANCH)


@lru_cache(maxsize=_MAX_NAMES)
def _is_trigger(name: str) -> bool:
    """Return whether the value of a channel may start a node."""
    return name in {_INPUT, _SENDS} or name.startswith((_BRANCH, _JOIN))


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
