"""Joins: where the branches of a fork meet, and why they cannot.

A branch is all that can be reached from its head before the join: chains, conditional edges, loops and further forks.
The join is the nearest place that every way from every head passes. A way that just ends (a node without an outgoing
edge) is left out, and END among the targets of a fork is no branch, as in langgraph4j.

How it is found: take any one way from the fork to its goal, and walk along it. From each place on it, look around
through everything that is not on it, and note how far ahead that comes back to it. A place that nothing jumps over is
passed by every way; the first that is no head is the join. Each fork costs what lies between it and its join, and one
search for the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, final

from graphkit._plan.topology import Condition, Fork, Node, Targets, fork_id
from graphkit._records.config import END

Leads = Mapping[str, Sequence[str]]
"""Node -> where it may lead."""

_GOAL: Final = ""
"""What every way ends at; no node has this id."""
_NO_NODES: Final[Mapping[str, Node]] = {}


def find_forks(
    edges: Mapping[str, Targets], nodes: Mapping[str, Node] = _NO_NODES
) -> tuple[dict[str, Fork], list[str]]:
    """The forks of a graph, by id, in the order of their sources; and a sentence for each that has no join.

    Args:
        edges: by source.
        nodes: by id; those that declare destinations lead there, too.
    """
    leads = {source: _leads(edge) for source, edge in edges.items()}
    for node in nodes.values():
        if node.destinations:
            leads[node.id] = tuple(dict.fromkeys((*leads.get(node.id, ()), *node.destinations)))
    forks: dict[str, Fork] = {}
    problems: list[str] = []
    for source, edge in edges.items():
        if isinstance(edge, list) and len(edge) == len(set(edge)) > 1:
            found = _Search(source, edges, leads).fork()
            if isinstance(found, str):
                problems.append(f"the branches out of {source!r} cannot be joined: {found}")
            else:
                forks[found.id] = found
    return forks, problems + [sentence for fork in forks.values() for sentence in _not_within(fork, forks)]


def _not_within(outer: Fork, forks: Mapping[str, Fork]) -> list[str]:
    """A sentence for each fork in a branch that does not end where the branch does, at the latest."""
    return [
        f"the branches out of {inner.source!r} lead past {outer.join!r}, where those out of {outer.source!r} meet"
        for branch in outer.branches.values()
        for inner in [forks[fork_id(place)] for place in sorted(branch) if fork_id(place) in forks]
        if inner.join not in branch | {outer.join} or not branch.issuperset(frozenset().union(*inner.branches.values()))
    ]


def _leads(edge: Targets) -> tuple[str, ...]:
    if isinstance(edge, Condition):
        return (_GOAL,) if edge.mappings is None else tuple(dict.fromkeys(edge.mappings.values()))
    targets = tuple(dict.fromkeys(edge))
    return tuple(target for target in targets if target != END) if len(edge) > 1 else targets


@final
class _Search:
    """The search for the join of one fork."""

    def __init__(self, source: str, edges: Mapping[str, Targets], leads: Leads) -> None:
        self.source = source
        self.edges = edges
        self.leads = leads
        self.heads = _leads(edges[source])
        self.barred = set(self.heads)
        """Heads of this fork and of those in its branches: their branches begin there, so it cannot join there."""
        self.dead_ends: Collection[str] = ()
        """Nodes without an outgoing edge that several branches lead to: they may be the join."""

    def fork(self) -> Fork | str:
        """The fork, or what is wrong with it."""
        way = self._way()
        if way is None:
            self.dead_ends = self._common_dead_ends()
            way = self._way() or []
        join = self._join(way)
        return self._no_join() if join is None else self._fork(join)

    def _next(self, place: str) -> Sequence[str]:
        """Where a way goes on: the goal lies behind END, the fork's own source, and what may lead anywhere."""
        if place in (END, self.source) or place in self.dead_ends:
            return (_GOAL,)
        return self.leads.get(place, ())

    def _way(self) -> list[str] | None:
        """A shortest way from the fork to the goal."""
        came_from = dict.fromkeys(self.heads, _GOAL)
        waiting = deque(self.heads)
        while waiting:
            place = waiting.popleft()
            for following in self._next(place):
                if following == _GOAL:
                    return _traced(place, came_from)
                if following not in came_from:
                    came_from[following] = place
                    waiting.append(following)
        return None

    def _join(self, way: list[str]) -> str | None:
        """The first place on the way that nothing jumps over, and that is no head."""
        position = {place: i for i, place in enumerate([*way, _GOAL])}
        seen: set[str] = set()
        furthest = self._furthest(self.heads, position, seen)
        for i, place in enumerate(way):
            if furthest == i and place not in self.barred:
                return place
            furthest = max(furthest, self._furthest(self._past(place), position, seen))
        return None

    def _furthest(self, places: Iterable[str], position: Mapping[str, int], seen: set[str]) -> int:
        """How far ahead on the way one comes from these places, off the way."""
        furthest = 0
        waiting = list(places)
        while waiting:
            place = waiting.pop()
            if place in position:
                furthest = max(furthest, position[place])
            elif place not in seen:
                seen.add(place)
                waiting.extend(self._past(place))
        return furthest

    def _past(self, place: str) -> Sequence[str]:
        """Where a way goes on from a place that comes before the join."""
        edge = self.edges.get(place)
        if isinstance(edge, list) and len(edge) > 1:
            self.barred.update(_leads(edge))
        return self._next(place)

    def _common_dead_ends(self) -> set[str]:
        reached = [_reached(head, self._next) for head in self.heads]
        ends = {place for places in reached for place in places if not self._next(place)}
        shared = min(2, len(self.heads))
        return {end for end in ends.difference(self.heads) if sum(end in places for places in reached) >= shared}

    def _fork(self, join: str) -> Fork | str:
        inside: dict[str, frozenset[str]] = {}
        owner: dict[str, str] = {}
        for head in self.heads:
            branch = _reached(head, self._next, join)
            met = [place for place in branch if place in owner]
            if met:
                return self._meeting(met, owner, head, join)
            if not self._may_end(branch, join):
                return f"no way leads from the branch {head!r} to {join!r}, where the others meet"
            owner |= dict.fromkeys(branch, head)
            inside[head] = frozenset(branch)
        return Fork(id=fork_id(self.source), source=self.source, heads=tuple(self.heads), join=join, branches=inside)

    def _may_end(self, branch: Iterable[str], join: str) -> bool:
        """Whether a branch can come to the join, or to a node where it just ends."""
        following = [self._next(place) for place in branch]
        return any(not places or join in places or _GOAL in places for places in following)

    def _meeting(self, met: list[str], owner: Mapping[str, str], head: str, join: str) -> str:
        target = next((place for place in met if place in self.heads), None)
        if target is None:
            return f"{owner[met[0]]!r} and {head!r} meet in {met[0]!r}, before all of them meet in {join!r}"
        return _leads_into(owner[target] if target == head else head, target)

    def _no_join(self) -> str:
        for head in self.heads:
            branch = _reached(head, self._next)
            unknown = next((place for place in branch if self._may_lead_anywhere(place)), None)
            if unknown is not None:
                return (
                    f"{unknown!r}, in the branch {head!r}, has a conditional edge without mappings, "
                    f"so it is not known where it leads; give add_conditional_edges its mappings"
                )
            if self.source in branch:
                return f"the branch {head!r} leads back to {self.source!r}, and not every way does"
            other = next((place for place in branch if place in self.heads and place != head), None)
            if other is not None:
                return _leads_into(head, other)
        return f"no node is passed by every way out of {', '.join(map(repr, self.heads))}, and neither is END"

    def _may_lead_anywhere(self, place: str) -> bool:
        edge = self.edges.get(place)
        return isinstance(edge, Condition) and edge.mappings is None


def _leads_into(branch: str, other: str) -> str:
    return f"the branch {branch!r} leads to {other!r}, which is a branch itself; take out one of the two edges"


def _traced(place: str, came_from: Mapping[str, str]) -> list[str]:
    way = [place]
    while came_from[way[-1]] != _GOAL:
        way.append(came_from[way[-1]])
    return way[::-1]


def _reached(start: str, following: Callable[[str], Sequence[str]], join: str = END) -> dict[str, None]:
    """All that can be reached from a node, itself first; up to the join."""
    found: dict[str, None] = {}
    waiting = [start]
    while waiting:
        place = waiting.pop()
        if place not in found and place not in (join, _GOAL):
            found[place] = None
            waiting.extend(following(place))
    return found
