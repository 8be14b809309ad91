"""Derives the nodes before and after a LangGraph checkpoint, for those who list histories.

LangGraph does not store these nodes. A node ran if its `versions_seen` changed; a node comes next if
one of its triggers holds a value. The names of the triggers are those of LangGraph's StateGraph.
Histories of other graphs show "langgraph" as the next node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any, Final

import ormsgpack

from graphkit import END, START
from savers.langgraph.channels import SEEN

NEXT: Final = "langgraph:"
"""The prefix of the next node. No graph of graphkit has such a node, so none continues it."""
UNKNOWN: Final = "langgraph"

_INPUT: Final = "__start__"
_BRANCH: Final = "branch:to:"
_JOIN: Final = "join:"
_SENDS: Final = "__pregel_tasks"
_NO_NODES: Final = frozenset({"__input__", "__interrupt__"})


def derive_node(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], parent: Mapping[str, Any]) -> str:
    """Return the names of the nodes that ran between the state `parent` and a checkpoint."""
    if metadata.get("source") == "input":
        return START
    names = []
    for node, seen in sorted(checkpoint["versions_seen"].items()):
        if node in _NO_NODES or parent.get(SEEN + node) == seen:
            continue
        names.append(START if node == _INPUT else node)
    return ", ".join(names) or UNKNOWN


def derive_next_node(checkpoint: Mapping[str, Any]) -> str:
    """Return the names of the nodes that come next; END if there are none."""
    versions = checkpoint["channel_versions"]
    if not any(name == _INPUT or name.startswith(_BRANCH) for name in versions):
        return UNKNOWN
    nodes: set[str] = set()
    for name, value in checkpoint["channel_values"].items():
        nodes.update(_iter_triggered(name, value))
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
        _module, _name, (node, *_) = ormsgpack.unpackb(ormsgpack.packb(send), ext_hook=_unpack_fields)
    except (TypeError, ValueError):
        return None
    return str(node)


def _unpack_fields(_code: int, data: bytes) -> Any:
    """Unpack the fields of a msgpack extension, but no extension in them."""
    return ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)
