"""Hooks: what a StateGraph lets its users call before, after and around nodes and conditional edges.

Ports the hooks of langgraph4j 1.9. There the documentation and the code disagree about the order; here the hook that
was added first is outermost: it runs first before a node, last after it, and its wrap is around the others. Those on
all nodes are outside those on one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from graphkit._java_names import JavaNames
from graphkit._plan.definition import GraphDefinition, Hook, HookKind
from graphkit._plan.topology import Call, parse_node_id
from graphkit.errors import GraphStateError

Function = Callable[..., Any]


class Hooks(JavaNames):
    """The hooks of a graph under construction. They go with its nodes where it is merged into another graph.

    A name that the graph does not have, and an edge without a condition, are problems that `compile` reports.
    """

    _definition: GraphDefinition

    def add_before_call_node_hook(self, node_id: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(node_id, state, config) before a node; the update that it returns, or None, is merged first.

        Args:
            node_id: the node; left out: every node, those of merged subgraphs too.
            hook: synchronous or not.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        self._definition.node_hooks.append(_hook("before", node_id, hook))
        return self

    def add_after_call_node_hook(self, node_id: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(node_id, state, config, update) after a node; what it returns is the update.

        Args:
            node_id: the node; left out: every node, those of merged subgraphs too.
            hook: synchronous or not.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        self._definition.node_hooks.append(_hook("after", node_id, hook))
        return self

    def add_wrap_call_node_hook(self, node_id: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(node_id, state, config, call) in place of a node; `call()` runs it; returns the update.

        `call(state)` and `call(state, config)` run it with others than the hook was given.

        Args:
            node_id: the node; left out: every node, those of merged subgraphs too, but no compiled graph.
            hook: synchronous or not.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        self._definition.node_hooks.append(_hook("wrap", node_id, hook))
        return self

    def add_before_call_edge_hook(self, source: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(source, state, config) before a condition; the update that it returns, or None, is merged first.

        Args:
            source: the node that the conditional edge leaves, or START; left out: every conditional edge.
            hook: synchronous or not.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        self._definition.edge_hooks.append(_hook("before", source, hook))
        return self

    def add_after_call_edge_hook(self, source: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(source, state, config, result) after a condition; what it returns is the result.

        Args:
            source: the node that the conditional edge leaves, or START; left out: every conditional edge.
            hook: synchronous or not.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        self._definition.edge_hooks.append(_hook("after", source, hook))
        return self

    def add_wrap_call_edge_hook(self, source: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(source, state, config, call) in place of a condition; `call()` runs it; returns the result.

        `call(state)` and `call(state, config)` run it with others than the hook was given.

        Args:
            source: the node that the conditional edge leaves, or START; left out: every conditional edge.
            hook: synchronous or not.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        self._definition.edge_hooks.append(_hook("wrap", source, hook))
        return self

    # Java names
    addBeforeCallNodeHook = add_before_call_node_hook
    addAfterCallNodeHook = add_after_call_node_hook
    addWrapCallNodeHook = add_wrap_call_node_hook
    addBeforeCallEdgeHook = add_before_call_edge_hook
    addAfterCallEdgeHook = add_after_call_edge_hook
    addWrapCallEdgeHook = add_wrap_call_edge_hook


def _hook(kind: HookKind, place: str | Function | None, hook: Function | None) -> Hook:
    if hook is None and callable(place):
        place, hook = None, place
    if not callable(hook):
        raise GraphStateError(f"a {kind} hook cannot be called: {hook!r}")
    return Hook(kind, None if place is None else parse_node_id(place, "what a hook is on"), Call(hook, takes_config=True))
