"""Joins: the shapes of forks that have one, where it is and what is inside; and the message for each shape that has none."""

import random

import pytest

from graphkit import END, START
from graphkit._build.joins import find_forks
from graphkit._plan.topology import Call, Condition


def to(**mappings):
    """A conditional edge; without mappings it may lead anywhere."""
    return Condition(
        call=Call(lambda state: None),
        mappings={key: END if to == "END" else to for key, to in mappings.items()} or None,
    )


SHAPES = {
    "up to END": ({"A": ["B", "C"], "B": [END], "C": [END]}, END, {"B": "B", "C": "C"}),
    "out of START": ({START: ["B", "C"], "B": ["D"], "C": ["D"], "D": [END]}, "D", {"B": "B", "C": "C"}),
    "a branch that just ends": ({"A": ["B", "C", "E"], "B": ["D"], "C": ["D"], "D": [END]}, "D", {"B": "B", "C": "C", "E": "E"}),
    "a way that just ends": (
        {"A": ["B", "C"], "B": to(x="D", y="E"), "C": ["D"], "D": [END]}, "D", {"B": "BE", "C": "C"},
    ),
    "all but one just end": ({"A": ["B", "C"], "B": ["D"], "D": ["E"], "E": [END]}, "D", {"B": "B", "C": "C"}),
    "a join that leads nowhere": ({"A": ["B", "C", "E"], "B": ["D"], "C": ["D"]}, "D", {"B": "B", "C": "C", "E": "E"}),
    "a join that may lead anywhere": ({"A": ["B", "C"], "B": ["D"], "C": ["D"], "D": to()}, "D", {"B": "B", "C": "C"}),
    "END is no branch": ({"A": ["B", END], "B": ["C"], "C": [END]}, "C", {"B": "B"}),
    "END is no branch, and then END": ({"A": [END, "B"], "B": [END]}, END, {"B": "B"}),
    "END is no branch, and a last node": ({"A": ["B", END], "B": ["C"]}, "C", {"B": "B"}),
    "one branch with a condition": (
        {"A": ["B", END], "B": to(x="C", y="D"), "C": ["E"], "D": ["E"], "E": [END]}, "E", {"B": "BCD"},
    ),
    "a target that is not there": ({"A": ["B", "C"], "B": ["D"], "C": ["D"], "D": ["Z"]}, "D", {"B": "B", "C": "C"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_join(name):
    """Besides those of the random graphs below, in which no place just ends, and START and END are no targets of a fork."""
    edges, join, inside = SHAPES[name]
    forks, problems = find_forks(edges, {})
    assert problems == []
    (fork,) = forks.values()
    assert tuple(fork.branches) == fork.heads
    assert fork.join == join
    assert {head: "".join(sorted(nodes)) for head, nodes in fork.branches.items()} == inside


def test_branches_do_not_meet_where_a_branch_of_a_fork_in_them_begins():
    forks, problems = find_forks({"A": ["B", "C"], "B": ["D", END], "C": ["D"], "D": [END]}, {})
    assert list(forks) == ["__PARALLEL__(B)"]
    assert ["'B' and 'C' meet in 'D', before all of them meet in '__END__'" in problem for problem in problems] == [
        True
    ]


def test_a_fork_in_a_branch_joins_within_it_or_where_the_branch_ends():
    _, problems = find_forks({"A": ["B", END], "B": [END, "C"], "C": to(x="B", y="D")}, {})
    assert problems == ["the branches out of 'B' lead past 'D', where those out of 'A' meet"]


REFUSED = {
    "two meet before all do": (
        {"A": ["B", "C", "D"], "B": ["X"], "C": ["X"], "X": ["Y"], "D": ["Y"], "Y": [END]},
        "'B' and 'C' meet in 'X', before all of them meet in 'Y'",
    ),
    "a condition without mappings": (
        {"A": ["B", "C"], "B": ["E"], "E": to(), "C": ["D"], "D": [END]},
        "'E', in the branch 'B', has a conditional edge without mappings",
    ),
    "a target that is the join": ({"A": ["B", "C"], "B": ["C"], "C": [END]}, "the branch 'B' leads to 'C', which is a branch"),
    "the same, the other way round": ({"A": ["C", "B"], "B": ["C"], "C": [END]}, "the branch 'B' leads to 'C', which is a branch"),
    "the same, and nothing behind it": ({"A": ["B", "C"], "B": ["C"]}, "the branch 'B' leads to 'C', which is a branch"),
    "a branch leads back": ({"A": ["B", "C"], "B": to(x="A", y="D"), "C": ["D"], "D": [END]}, "the branch 'B' leads back to 'A'"),
    "the source is a branch": ({"A": ["A", "B"], "B": [END]}, "the branch 'A' leads back to 'A'"),
    "all just end": ({"A": ["B", "C"]}, "no node is on every path out of 'B', 'C'"),
    "one ends where others do not": (
        {"A": ["B", "C", "E"], "B": ["D"], "C": ["D"], "D": to(x="X", y="Y"), "E": ["X"], "X": [END]},
        "'B' and 'C' meet in 'D', before all of them meet in 'X'",
    ),
    "two ends": ({"A": ["B", "C", "E", "F"], "B": ["X"], "C": ["X"], "E": ["Y"], "F": ["Y"]}, "no node is on every path"),
    "a branch that never ends": (
        {"A": ["B", "C"], "B": ["D"], "D": [END], "C": ["E"], "E": ["C"]}, "no path leads from the branch 'C' to 'D', where the other branches meet",
    ),
    "only END": ({"A": ["B", END]}, "no node is on every path out of 'B'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_shapes_that_do_not_join_and_their_messages(name):
    edges, words = REFUSED[name]
    forks, problems = find_forks(edges, {})
    assert not forks
    assert len(problems) == 1
    assert problems[0].startswith("the branches out of 'A' cannot be joined: ")
    assert words in problems[0]


# An independent model: try every place, and look at all that can be reached without it


def reachable(start, leads, without):
    found, waiting = set(), [start]
    while waiting:
        place = waiting.pop()
        if place not in found and place != without:
            found.add(place)
            waiting.extend(leads.get(place, ()))
    return found


def is_join(place, heads, leads, source):
    """Whether the branches up to here are apart, and none of them goes on elsewhere."""
    branches = [reachable(head, leads, place) for head in heads]
    together = [each for branch in branches for each in branch]
    escapes = {END, source} - {place}
    return len(together) == len(set(together)) and not escapes & set(together)


def random_graph(seed):
    dice = random.Random(seed)
    names = "BCDEFGH"[: dice.randint(3, 7)]
    edges = {"A": list(dict.fromkeys(dice.choices(names, k=dice.randint(2, 3))))}
    for name in names:
        goals = [dice.choice([*names, *names, END, "A"]) for _ in range(dice.choice([1, 1, 1, 2]))]
        edges[name] = goals if len(goals) == 1 else to(**{f"k{n}": goal for n, goal in enumerate(goals)})
    return edges


def test_against_trying_every_place(sweep):
    joined = 0

    for seed in range(sweep.count(3000, 800)):
        edges = random_graph(seed)
        if len(edges["A"]) < 2:
            continue
        leads = {}
        for source, edge in edges.items():
            leads[source] = list(edge.mappings.values()) if isinstance(edge, Condition) else edge
        heads = edges["A"]
        ahead = [reachable(head, leads, None) for head in heads]
        joins = set()
        # A branch that goes round in itself never comes to a join.
        if all(END in places or "A" in places for places in ahead):
            for place in set.intersection(*ahead).difference(heads):
                if is_join(place, heads, leads, "A"):
                    joins.add(place)
        forks, _ = find_forks(edges, {})
        assert bool(forks) == bool(joins), (seed, edges)
        if forks:
            joined += 1
            fork = forks["__PARALLEL__(A)"]
            inside = {head: reachable(head, leads, fork.join) for head in heads}
            assert fork.join in joins, (seed, edges)
            assert fork.branches == inside, (seed, edges)
            for places in inside.values():
                assert joins.isdisjoint(places), "a nearer one"

    assert joined > sweep.count(100, 20)
