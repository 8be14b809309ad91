"""LangGraph's store and cache in files: interrupted operations, and failed syncs beside other processes."""

import errno
from functools import partial

import pytest

from graphkit.errors import CheckpointStorageError
from savers.langgraph import FileSystemCache, FileSystemStore
from tests.support.disks import Fault, HookedIO
from tests.support.interruptions import find_places, interrupt

USERS = ("users",)


def read(store):
    return {item.key: item.value for item in store.search(USERS, limit=100)}


def rewrite(store):
    """Let the log be rewritten: most of it is of no use any more."""
    for number in range(3):
        store.put(USERS, "long", {"text": "x" * 40_000, "number": number})


@pytest.mark.parametrize(
    ("meanwhile", "stored"),
    [
        (lambda other: other.put(USERS, "other", {"n": 2}), {"other": {"n": 2}}),
        (rewrite, {"long": {"text": "x" * 40_000, "number": 2}}),
    ],
    ids=["put", "rewrite"],
)
def test_a_failed_sync_costs_nothing_that_another_process_has_stored(tmp_path, meanwhile, stored):
    io = HookedIO()
    with FileSystemStore(tmp_path, io=io) as mine, FileSystemStore(tmp_path) as other:
        mine.put(USERS, "before", {"n": 0})
        assert read(other) == {"before": {"n": 0}}

        def write_and_fail():
            meanwhile(other)
            raise OSError(errno.EIO, "disk")

        io.hook = Fault("fdatasync", write_and_fail, times=1)
        with pytest.raises(CheckpointStorageError):
            mine.put(USERS, "mine", {"n": 1})
        with FileSystemStore(tmp_path) as fresh:
            for store in (mine, other, fresh):
                found = read(store)
                assert found.pop("before") == {"n": 0}
                assert found.pop("mine", {"n": 1}) == {"n": 1}  # it may be stored, although it was not acknowledged
                assert found == stored
            mine.put(USERS, "after", {"n": 3})
            assert read(fresh)["after"] == {"n": 3}


def set_all(cache, number):
    cache.set({(USERS, "a"): ({"n": number}, None)})


def observe_store(store):
    return read(store), [item.value for item in store.search(("new",))]


def observe_cache(cache):
    return cache.get([(USERS, "a")])


def fill_store(store):
    store.put(USERS, "a", {"n": 0})
    store.put(USERS, "kept", {"n": 7})


def fill_long_store(store):
    fill_store(store)
    rewrite(store)


OPERATIONS = {
    "put the first": (fill_store, lambda store: store.put(("new",), "a", {"n": 1})),
    "put": (fill_store, lambda store: store.put(USERS, "b", {"n": 1})),
    "replace": (fill_store, lambda store: store.put(USERS, "a", {"n": -1})),
    "delete": (fill_store, lambda store: store.delete(USERS, "a")),
    "rewrite": (fill_long_store, lambda store: store.put(USERS, "a", {"n": 2})),
    "set": (partial(set_all, number=0), partial(set_all, number=1)),
}
"""What there is before each operation."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_interrupted_change_is_done_or_not_done(tmp_path, sweep, name):
    numbers = iter(range(1_000_000))
    prepare, operation = OPERATIONS[name]
    kind, observe = (FileSystemCache, observe_cache) if name == "set" else (FileSystemStore, observe_store)

    def open_new():
        path = tmp_path / str(next(numbers))
        opened = kind(path)
        prepare(opened)
        return opened, path

    for _ in range(2):  # what is imported or noted only once is not counted
        opened, _ = open_new()
        before = observe(opened)
        places = find_places(partial(operation, opened))
        after = observe(opened)
        opened.close()
    for place in sweep.some(places, 6):
        opened, path = open_new()
        is_interrupted = interrupt(partial(operation, opened), place)
        found = observe(opened)
        assert found in ((before, after) if is_interrupted else (after,)), f"interrupted at {place}"
        with opened, kind(path) as fresh:
            assert observe(fresh) == found, f"interrupted at {place}"
            if name == "set":
                set_all(opened, 2)
                assert observe(fresh) == observe(opened) == {(USERS, "a"): {"n": 2}}
                continue
            opened.put(USERS, "next", {"n": 1})
            fresh.put(USERS, "later", {"n": 2})
            assert read(opened) == read(fresh) == {**found[0], "next": {"n": 1}, "later": {"n": 2}}
