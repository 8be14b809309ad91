"""Which nodes a LangGraph checkpoint stands between, as far as it tells; for those who list histories.

LangGraph does not store it. What ran is whose `versions_seen` changed; what comes next is who has a trigger that holds
a value. The names of triggers are those that LangGraph's StateGraph gives; other graphs show as running "langgraph".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any, Final

from graphkit import END, START
from savers.langgraph.channels import SEEN

NEXT: Final = "langgraph:"
"""Before the name of the next node: no graph of graphkit's has such a node, so none takes the thread for its own."""
UNKNOWN: Final = "langgraph"

_INPUT: Final = "__start__"
_BRANCH: Final = "branch:to:"
_JOIN: Final = "join:"
_SENDS: Final = "__pregel_tasks"
_NO_NODES: Final = frozenset({"__input__", "__interrupt__"})


def node_of(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], parent: Mapping[str, Any]) -> str:
    """The nodes that made a checkpoint of its parent's state."""
    if metadata.get("source") == "input":
        return START
    ran = [node for node, seen in checkpoint["versions_seen"].items() if parent.get(SEEN + node) != seen]
    names = [START if node == _INPUT else node for node in sorted(ran) if node not in _NO_NODES]
    return ", ".join(names) or UNKNOWN


def next_of(checkpoint: Mapping[str, Any]) -> str:
    """The nodes that come next; END if none does."""
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    if not any(name == _INPUT or name.startswith(_BRANCH) for name in versions):
        return UNKNOWN
    waiting = sorted({node for name, value in values.items() for node in _triggered(name, value)})
    return NEXT + ", ".join(waiting) if waiting else END


def _triggered(name: str, value: Any) -> Iterator[str]:
    if name == _INPUT:
        yield _INPUT
    elif name.startswith(_BRANCH):
        yield name.removeprefix(_BRANCH)
    elif name.startswith(_JOIN) and isinstance(value, Sized):
        starts, _, end = name.removeprefix(_JOIN).rpartition(":")
        if len(value) > starts.count("+"):
            yield end
    elif name == _SENDS and isinstance(value, (list, tuple)):
        yield from (send.node for send in value if hasattr(send, "node"))
