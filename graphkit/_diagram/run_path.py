"""RunPath: the path of a run through a graph, as edges with the steps that took them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import final

from graphkit._plan.topology import Condition, Fork, Targets
from graphkit._records.config import START


@final
class RunPath:
    """The path of a run.

    Attributes:
        nodes: the nodes that the run passed. Within a fork: those that every run passes, and those
            that the caller named.
        steps: by edge, the numbers of the steps that took it.
    """

    def __init__(
        self,
        edges: Mapping[str, Targets],
        forks: Mapping[str, Fork],
        path: Sequence[str],
    ) -> None:
        """Follow a run.

        Args:
            edges: by source, as the user wrote them.
            forks: by id.
            path: the nodes and forks that the run passed, in order.
        """
        self.nodes = set(path)
        self.steps: dict[tuple[str, str], list[int]] = {}
        self._edges = edges
        self._in_branches: set[str] = set()
        for fork in forks.values():
            self._in_branches.update(*fork.branches.values())

        number = 0
        for source, target in pairwise(path):
            if not self._is_step(source, target):
                continue

            number += 1
            if target in forks:
                self._enter_fork(forks[target], number)
            elif source in forks:
                self._leave_fork(forks[source], target, number)
            else:
                self._record(number, source, target)

    def find_jumps(self, known: Iterable[str]) -> list[tuple[str, str]]:
        """Return the steps between known nodes outside forks that follow no edge."""
        outside = set(known) - self._in_branches
        jumps: list[tuple[str, str]] = []
        for source, target in self.steps:
            if not self._has_edge(source, target) and source in outside and target in outside:
                jumps.append((source, target))
        return jumps

    def _is_step(self, source: str, target: str) -> bool:
        """Return whether the run went from one to the other.

        A history contains a node twice after an update of its state, and START before each input.
        """
        if target == START:
            return False
        return source != target or self._has_edge(source, target)

    def _has_edge(self, source: str, target: str) -> bool:
        edge = self._edges.get(source, [])
        if isinstance(edge, Condition):
            return edge.mappings is not None and target in edge.mappings.values()
        return target in edge

    def _enter_fork(self, fork: Fork, number: int) -> None:
        """Record the plain edges from the source of a fork through its branches."""
        # A history has one checkpoint for the whole fork: which nodes ran in the branches is known only
        # where an edge leaves no choice. Nodes after a condition are passed only if the caller named them.
        for head in fork.heads:
            self._record(number, fork.source, head)

        passed = {fork.join, *fork.heads}
        waiting = list(fork.heads)
        while waiting:
            node_id = waiting.pop()
            edge = self._edges.get(node_id)
            if not isinstance(edge, list):
                continue
            for target in edge:
                if target not in passed:
                    self._record(number, node_id, target)
                    passed.add(target)
                    waiting.append(target)

        self.nodes |= passed - {fork.join}

    def _leave_fork(self, fork: Fork, target: str, number: int) -> None:
        """Record the edges from the passed nodes of a fork to the node after it."""
        for branch in fork.branches.values():
            for node_id in sorted(branch & self.nodes):
                if self._has_edge(node_id, target):
                    self._record(number, node_id, target)

    def _record(self, number: int, source: str, target: str) -> None:
        self.steps.setdefault((source, target), []).append(number)
