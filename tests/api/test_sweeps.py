"""How sweeps are sampled: evenly, the same every time, and nothing of them under --full."""

from types import SimpleNamespace

from tests.support.sweeps import Sweep, sampled_items


def test_a_full_run_takes_all_cases_and_the_full_number():
    full, default = Sweep(is_full=True), Sweep(is_full=False)
    assert full.some(iter(range(100)), 3) == [*range(100)]
    assert default.some(iter(range(101)), 3) == [0, 50, 100]
    assert default.some(range(10), 1) == [0]
    assert (full.count(100, 3), default.count(100, 3)) == (100, 3)


class Item:
    """A collected test as far as it matters here; without arguments it carries no mark."""

    def __init__(self, name, *args):
        self.nodeid = name
        self.marks = {"cell": None, "sweep": SimpleNamespace(args=args, kwargs={}) if args else None}

    def get_closest_marker(self, name):
        return self.marks[name]


def kept(*items):
    return [item.nodeid for item in sampled_items(items)]


def test_of_a_marked_test_some_cases_are_kept_and_all_of_the_others():
    other = [Item(f"other[{number}]") for number in range(3)]
    marked = [Item(f"marked[{number}]", 2) for number in range(5)]
    assert kept(*other, *marked) == ["other[0]", "other[1]", "other[2]", "marked[0]", "marked[4]"]
