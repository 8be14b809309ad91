"""Finds the join of each fork: the node where its branches meet.

A branch consists of all nodes that can be reached from its head before the join: chains,
conditional edges, loops and further forks. The join is the nearest node that is on every path from
every head. A path that just ends (in a node without an outgoing edge) does not count, and END among
the targets of a fork is not a branch, as in langgraph4j. What happens at the
join, when a run reaches it, is in `graphkit._engine.nodes`.

The search takes a shortest path from the fork to the sink, and walks along it. From each node on
the path it follows every edge that leaves the path, and notes the furthest node at which such a
detour returns to it. A node on the path that no detour bypasses is on every path. The first such
node that is not a head is the join. The cost of a fork is one search for the path, and the edges
between the fork and its join.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, final

from graphkit._plan.topology import Condition, Fork, Node, Targets, fork_id
from graphkit._records.config import END
from graphkit.errors import GraphStateError

Successors = Mapping[str, Sequence[str]]
"""Node -> the nodes to which it may lead."""

_SINK: Final = ""
"""The node in which every path ends; no node of a graph has this id."""


def find_forks(edges: Mapping[str, Targets], nodes: Mapping[str, Node]) -> tuple[dict[str, Fork], list[str]]:
    """Return the forks of a graph by id, and a sentence for each problem with them.

    Args:
        edges: by source. The forks have the order of their sources.
        nodes: by id; the destinations that they declare count as edges.
    """
    successors = find_successors(edges, nodes)
    forks: dict[str, Fork] = {}
    problems: list[str] = []
    for source, edge in edges.items():
        is_fork = isinstance(edge, list) and len(edge) == len(set(edge)) > 1
        if not is_fork:
            continue
        try:
            fork = _JoinSearch(source, edges, successors).find_fork()
        except GraphStateError as error:
            problems += error.problems
        else:
            forks[fork.id] = fork

    for fork in forks.values():
        problems += _find_nesting_problems(fork, forks)
    return forks, problems


def find_chosen_fork(
    edges: Mapping[str, Targets], nodes: Mapping[str, Node], source: str, heads: Sequence[str]
) -> Fork:
    """Return the fork of several targets of a condition.

    Raises:
        GraphStateError: the branches do not meet.
    """
    chosen = {**edges, source: list(heads)}
    return _JoinSearch(source, chosen, find_successors(chosen, nodes)).find_fork()


def find_successors(edges: Mapping[str, Targets], nodes: Mapping[str, Node]) -> Successors:
    """Return where each node may lead, by its edge and its Commands: to `_SINK`, no node, if it may be anywhere."""
    successors = {source: _targets_of(edge) for source, edge in edges.items()}
    for node in nodes.values():
        every = (*successors.get(node.id, ()), *node.destinations)
        successors[node.id] = tuple(dict.fromkeys(every))
    return successors


def _targets_of(edge: Targets) -> tuple[str, ...]:
    """Return where an edge may lead. Without mappings, a condition may lead to the sink."""
    if isinstance(edge, Condition):
        if edge.mappings is None:
            return (_SINK,)
        return tuple(dict.fromkeys(edge.mappings.values()))
    targets = tuple(dict.fromkeys(edge))
    if len(targets) > 1:
        return tuple(target for target in targets if target != END)
    return targets


def _find_nesting_problems(outer: Fork, forks: Mapping[str, Fork]) -> list[str]:
    """Return a sentence for each fork within a branch whose branches lead out of that branch."""
    problems: list[str] = []
    for branch in outer.branches.values():
        for node_id in sorted(branch):
            inner = forks.get(fork_id(node_id))
            # Where the inner fork joins follows: its last nodes lead to a node of the branch, or to the outer join.
            if inner is not None and not all(nodes <= branch for nodes in inner.branches.values()):
                problems.append(
                    f"the branches out of {inner.source!r} lead past {outer.join!r}, "
                    f"where those out of {outer.source!r} meet",
                )
    return problems


@final
class _JoinSearch:
    """The search for the join of one fork."""

    def __init__(self, source: str, edges: Mapping[str, Targets], successors: Successors) -> None:
        self.source = source
        self.edges = edges
        self.successors = successors
        self.heads = _targets_of(edges[source])
        self.excluded = set(self.heads)
        """The heads of this fork and of forks in its branches.

        Branches begin there, so none of them is the join.
        """
        self.dead_ends: Collection[str] = ()
        """Nodes without an outgoing edge to which several branches lead; one may be the join."""

    def find_fork(self) -> Fork:
        """Return the fork with its join and its branches.

        Raises:
            GraphStateError: the branches do not meet.
        """
        path = self._find_path()
        if path is None:
            # No branch leads to END. The branches may still meet in a node that just ends: one without an
            # outgoing edge that several of them reach. With a single head, its branch is enough.
            counts: Counter[str] = Counter()
            for head in self.heads:
                reached = find_reachable(head, self._next)
                counts.update(node_id for node_id in reached if not self._next(node_id))
            required = min(2, len(self.heads))
            common = {node_id for node_id, count in counts.items() if count >= required}
            self.dead_ends = common.difference(self.heads)
            path = self._find_path()
        join = None if path is None else self._find_join(path)
        if join is None:
            raise self._make_error(self._explain_missing_join())
        return Fork(
            id=fork_id(self.source),
            source=self.source,
            heads=self.heads,
            join=join,
            branches=self._find_branches(join),
        )

    def _next(self, node_id: str) -> Sequence[str]:
        """Return where a path goes on from a node.

        END and the source of the fork lead to the sink, as do nodes that may lead anywhere.
        """
        if node_id in (END, self.source) or node_id in self.dead_ends:
            return (_SINK,)
        return self.successors.get(node_id, ())

    def _next_before_join(self, node_id: str) -> Sequence[str]:
        """Like `_next`, and rule out the heads of a nested fork as joins."""
        edge = self.edges.get(node_id)
        if isinstance(edge, list) and len(edge) > 1:
            self.excluded.update(_targets_of(edge))
        return self._next(node_id)

    def _find_path(self) -> list[str] | None:
        """Return a shortest path from a head to the sink, without the sink; None without a path."""
        # Node -> the node before it; the sink for a head.
        previous = dict.fromkeys(self.heads, _SINK)
        waiting = deque(self.heads)
        while waiting:
            node_id = waiting.popleft()
            for successor in self._next(node_id):
                if successor == _SINK:
                    path = [node_id]
                    while previous[path[-1]] != _SINK:
                        path.append(previous[path[-1]])
                    return path[::-1]
                if successor not in previous:
                    previous[successor] = node_id
                    waiting.append(successor)
        return None

    def _find_join(self, path: list[str]) -> str | None:
        """Return the first node on the path that no detour bypasses and that is not a head."""
        # The fork a -> (b, c) with b -> (d or j), d -> j, c -> j, j -> END has the path [b, j, END], and
        # the positions b 0, j 1, END 2. From the heads: b is on the path, c returns at j, so `furthest`
        # is 1. b, at 0, is bypassed by the detour over c. From b: the detour over d returns at j, too.
        # At j, `furthest` is 1, its own position: no path has passed it, and it is the join.
        #
        # A node off the path is searched once, however many detours lead through it: where it returns
        # is in `furthest` already, which never decreases.
        positions = {node_id: index for index, node_id in enumerate(path)}
        positions[_SINK] = len(path)
        seen: set[str] = set()

        # `furthest` is where the last of the detours from all nodes before the current one returns.
        furthest = self._find_return(self.heads, positions, seen)
        for index, node_id in enumerate(path):
            if furthest == index and node_id not in self.excluded:
                return node_id
            following = self._next_before_join(node_id)
            position = self._find_return(following, positions, seen)
            furthest = max(furthest, position)
        return None

    def _find_return(self, starts: Iterable[str], positions: Mapping[str, int], seen: set[str]) -> int:
        """Return the furthest position at which the detours from some nodes return to the path.

        Args:
            starts: where the detours begin; a node on the path is its own return.
            positions: node on the path -> its position.
            seen: nodes off the path that an earlier detour visited; they are skipped, and this
                detour's nodes are added.
        """
        furthest = 0
        waiting = list(starts)
        while waiting:
            node_id = waiting.pop()
            if node_id in positions:
                furthest = max(furthest, positions[node_id])
            elif node_id not in seen:
                seen.add(node_id)
                waiting.extend(self._next_before_join(node_id))
        return furthest

    def _find_branches(self, join: str) -> dict[str, frozenset[str]]:
        """Return head -> the nodes of its branch.

        Raises:
            GraphStateError: two branches meet before the join, or one never ends.
        """
        branches: dict[str, frozenset[str]] = {}
        owners: dict[str, str] = {}  # node -> the head of the branch that contains it
        for head in self.heads:
            branch = find_reachable(head, self._next, join)

            # Branches run in parallel, so no node may be part of two of them.
            shared = [node_id for node_id in branch if node_id in owners]
            if shared:
                raise self._make_error(self._explain_meeting(shared, owners, head, join))

            # A branch reaches the join, or a node where it just ends.
            ways_on = [self._next(node_id) for node_id in branch]
            if not any(not following or join in following or _SINK in following for following in ways_on):
                raise self._make_error(
                    f"no path leads from the branch {head!r} to {join!r}, where the other branches meet",
                )

            owners.update(dict.fromkeys(branch, head))
            branches[head] = frozenset(branch)
        return branches

    def _make_error(self, reason: str) -> GraphStateError:
        return GraphStateError(f"the branches out of {self.source!r} cannot be joined: {reason}")

    def _explain_meeting(self, shared: list[str], owners: Mapping[str, str], head: str, join: str) -> str:
        """Return why a branch may not contain nodes of an earlier one.

        Args:
            shared: those nodes.
            owners: node -> the head of the earlier branch that contains it.
            head: the head of the branch.
            join: where all branches meet.
        """
        for node_id in shared:
            if node_id == head:
                return _explain_edge_between(owners[node_id], head)
            if node_id in self.heads:
                return _explain_edge_between(head, node_id)
        first = shared[0]
        return f"{owners[first]!r} and {head!r} meet in {first!r}, before all of them meet in {join!r}"

    def _explain_missing_join(self) -> str:
        for head in self.heads:
            branch = find_reachable(head, self._next)
            for node_id in branch:
                edge = self.edges.get(node_id)
                if isinstance(edge, Condition) and edge.mappings is None:
                    return (
                        f"{node_id!r}, in the branch {head!r}, has a conditional edge without mappings, "
                        f"so its targets are unknown; pass mappings to add_conditional_edges"
                    )
            if self.source in branch:
                return f"the branch {head!r} leads back to {self.source!r} on some paths but not on all"
            for node_id in branch:
                if node_id in self.heads and node_id != head:
                    return _explain_edge_between(head, node_id)
        return f"no node is on every path out of {', '.join(map(repr, self.heads))}, and neither is END"


def _explain_edge_between(head: str, other: str) -> str:
    return f"the branch {head!r} leads to {other!r}, which is a branch itself; remove one of the two edges"


def find_reachable(start: str, following: Callable[[str], Sequence[str]], join: str = END) -> list[str]:
    """Return all nodes that can be reached from a node before the join, itself first."""
    found: dict[str, None] = {}
    waiting = [start]
    while waiting:
        node_id = waiting.pop()
        if node_id in found or node_id in (join, _SINK):
            continue
        found[node_id] = None
        waiting.extend(following(node_id))
    return list(found)
