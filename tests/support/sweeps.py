"""How much of a long sweep a run does: all of it with --full, else the same evenly spread sample every time.

A sweep repeats one test with many cases: each call at which a process is killed, each state that a power loss may leave
behind, each seed. Every behaviour and every kind of fault has a case in the default run; only repetitions are left out.

- A parametrised test is sampled when it is collected: `@pytest.mark.sweep(10)` keeps ten of its cases, and
  `@pytest.mark.sweep(10, of="seed")` keeps ten values of `seed` for each combination of its other parameters.
- With `in_turn=True`, which values of it are kept differs from one combination and from one test to the next: two tests
  that may be run in four ways run in other ways each.
- A fixture with parameters gives the same arguments to the mark `cell` on them: `@pytest.mark.cell(1, of=("saver", "go"))`.
  It holds for the tests that use the fixture and have no mark `sweep`. `@pytest.mark.sweep(ALL)` keeps all their cases.
- A class that repeats the tests of another one on one more variant is sampled by test: `@pytest.mark.sweep(20, of="tests")`.
- A test that loops over its cases takes the fixture `sweep`: `for case in sweep.some(cases, 10)`.
- A test of Hypothesis asks for its number of examples with `@settings(max_examples=examples(400))`.
"""

import itertools
import sys
import zlib
from collections import defaultdict

import pytest
from hypothesis import settings

FULL_EXAMPLES = 100
"""What a test of Hypothesis runs under --full unless it asks for another number."""

ALL = sys.maxsize
"""`@pytest.mark.sweep(ALL)`: the default run does all cases of a test, whatever its fixtures say."""


def spread(cases, most):
    """At most `most` of the cases, evenly spread, with the first and the last."""
    cases = list(cases)
    if len(cases) <= most:
        return cases
    if most < 2:
        return cases[:most]
    return [cases[number * (len(cases) - 1) // (most - 1)] for number in range(most)]


def examples(full):
    """How many examples a test runs that runs `full` of them under --full."""
    return max(1, full * settings.default.max_examples // FULL_EXAMPLES)


def in_turn(values, *of, most=1):
    """The parameters of a fixture of which the default run takes some in turn for each test; `of` names the fixture."""
    mark = pytest.mark.cell(most, of=of, in_turn=True)
    return [pytest.param(value, marks=mark) for value in values]


class Sweep:
    """What the fixture `sweep` gives."""

    def __init__(self, *, is_full):
        self.is_full = is_full

    def some(self, cases, most):
        """All cases under --full, else at most `most` of them, evenly spread, with the first and the last."""
        return list(cases) if self.is_full else spread(cases, most)

    def count(self, full, sampled):
        """A number of random cases, or the least number that they must come to."""
        return full if self.is_full else sampled


def sampled_items(items):
    """The items to run where not all are run: of a test with the mark `sweep` or `cell`, some."""
    groups = {}
    for item in items:
        mark = item.get_closest_marker("sweep") or item.get_closest_marker("cell")
        if mark is not None:
            of = mark.kwargs.get("of")
            in_turn = mark.kwargs.get("in_turn", False)
            key = _group_of(item, of)
            if key not in groups:
                groups[key] = (mark.args, in_turn, [])
            _, _, group = groups[key]
            group.append(item)
    left_out = set()
    numbers = defaultdict(itertools.count)
    for (test, _), (args, in_turn, group) in groups.items():
        number = next(numbers[test])
        first = 0
        if in_turn:
            first = _first_in_turn(test, number, len(group))
        turned = group[first:] + group[:first]
        chosen = spread(turned, *args)
        left_out |= {*group}.difference(chosen)
    return [item for item in items if item not in left_out]


def _first_in_turn(test, number, count):
    """Which of `count` values the combination with a number begins with, in a test.

    The first combination begins with a value that depends on the name of the test, the same one in every process. One is
    left out after each round. Where `count` is a multiple of the number of values of another parameter, each of those
    meets all of these.
    """
    return (zlib.crc32(test.encode()) + number + number // count) % count


def _group_of(item, of):
    """What an item shares with those that it is sampled with: its test, and the parameters that are not swept; or its class."""
    test, _, _ = item.nodeid.partition("[")
    if of == "tests":
        test_class, _, _ = test.rpartition("::")
        return test_class, ()
    if of is None:
        return test, ()
    swept = {of} if isinstance(of, str) else {*of}
    params = item.callspec.params if hasattr(item, "callspec") else {}
    others = [name for name in params if name not in swept]
    # By identity: a value need not have a hash. pytest numbers each case, not each value of a parameter.
    values = [id(params[name]) for name in others]
    return test, (*others, *values)
