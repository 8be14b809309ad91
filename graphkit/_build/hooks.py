"""Hooks: the methods of a StateGraph that add hooks before, after and around nodes and conditions.

Ports the hooks of langgraph4j 1.9, whose documentation and code disagree about the order. Here the
hook that was added first is outermost: it runs first before a node and last after it, and wraps the
other hooks. Hooks on all nodes are outside the hooks on one node.
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
    """The hooks of a graph under construction.

    When the graph is inlined into another graph, its nodes keep its hooks. `compile` reports a hook
    on a node that the graph does not have, or on an edge without a condition.
    """

    _definition: GraphDefinition

    def add_before_call_node_hook(self, node_id: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(node_id, state, config) before a node.

        The run merges the update that it returns before the node runs; None: no update.

        Args:
            node_id: the node; without it, every node, including those of inlined subgraphs.
            hook: a synchronous or asynchronous function.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        self._definition.node_hooks.append(_hook("before", node_id, hook))
        return self

    def add_after_call_node_hook(self, node_id: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(node_id, state, config, update) after a node. It returns the update to merge.

        Args:
            node_id: the node; without it, every node, including those of inlined subgraphs.
            hook: a synchronous or asynchronous function.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        self._definition.node_hooks.append(_hook("after", node_id, hook))
        return self

    def add_wrap_call_node_hook(self, node_id: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(node_id, state, config, call) instead of a node. It returns the update.

        `call()` runs the node; `call(state)` and `call(state, config)` run it with another state or
        config.

        Args:
            node_id: the node; without it, every node, including those of inlined subgraphs but not
                nested graphs.
            hook: a synchronous or asynchronous function.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        self._definition.node_hooks.append(_hook("wrap", node_id, hook))
        return self

    def add_before_call_edge_hook(self, source: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(source, state, config) before a condition.

        The run merges the update that it returns before it evaluates the condition; None: no
        update.

        Args:
            source: the source of the conditional edge, or START; without it, every conditional
                edge.
            hook: a synchronous or asynchronous function.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        self._definition.edge_hooks.append(_hook("before", source, hook))
        return self

    def add_after_call_edge_hook(self, source: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(source, state, config, result) after a condition. It returns the result to use.

        Args:
            source: the source of the conditional edge, or START; without it, every conditional
                edge.
            hook: a synchronous or asynchronous function.

        Raises:
            GraphStateError: the hook cannot be called.
        """
        self._definition.edge_hooks.append(_hook("after", source, hook))
        return self

    def add_wrap_call_edge_hook(self, source: str | Function | None = None, hook: Function | None = None) -> Self:
        """Call hook(source, state, config, call) instead of a condition. It returns the result.

        `call()` evaluates the condition; `call(state)` and `call(state, config)` evaluate it with
        another state or config.

        Args:
            source: the source of the conditional edge, or START; without it, every conditional
                edge.
            hook: a synchronous or asynchronous function.

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


def _hook(kind: HookKind, node_id: str | Function | None, hook: Function | None) -> Hook:
    if hook is None and callable(node_id):
        # add_..._hook(function): the function is the hook, on all nodes or conditional edges.
        hook = node_id
        node_id = None
    if not callable(hook):
        raise GraphStateError(f"a {kind} hook cannot be called: {hook!r}")
    if node_id is not None:
        node_id = parse_node_id(node_id, "the node of a hook")
    return Hook(kind, node_id, Call(hook, takes_config=True))
