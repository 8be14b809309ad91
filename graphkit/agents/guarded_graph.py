"""GuardedGraph: a StateGraph whose nodes and tools fail without showing the values of variables.

What a node raises is recorded as the failure of the run and posted to observers; the error of a tool
becomes a message. Therefore the values are hidden where the error is raised, inside of retries.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from graphkit._build.state_graph import StateGraph
from graphkit._plan.topology import Call, Node
from graphkit.agents.tools import Tool
from graphkit.agents.variables import Variables


class GuardedGraph(StateGraph):
    """A StateGraph whose nodes and conditions raise errors without the values of variables."""

    def __init__(self, schema: Any, variables: Variables) -> None:
        super().__init__(schema)
        self._variables = variables

    def _add(self, node: Node) -> Self:
        guarded = dataclasses.replace(
            node,
            action=self._guard(node.action),
            interrupt_call=self._guard(node.interrupt_call),
            items=self._guard(node.items),
        )
        return super()._add(guarded)

    def add_conditional_edges(
        self, source: str, condition: Callable[..., Any], mappings: Mapping[Any, str] | Sequence[str] | None = None
    ) -> Self:
        """As in StateGraph."""
        super().add_conditional_edges(source, condition, mappings)
        edge: Any = self._definition.edges[source]
        self._definition.edges[source] = dataclasses.replace(edge, call=self._guard(edge.call))
        return self

    def _guard(self, call: Call | None) -> Call | None:
        if call is None:
            return None
        guarded = copy.copy(call)
        guarded.function = self._variables.guard(call.function)
        guarded.async_form = self._guard(call.async_form)
        return guarded


def guard_tool(tool: Tool, variables: Variables) -> Tool:
    """Return a tool whose errors do not show the values of variables."""
    return dataclasses.replace(tool, function=variables.guard(tool.function))
