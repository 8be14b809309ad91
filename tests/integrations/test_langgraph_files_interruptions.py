"""LangGraph's store and cache in files: interrupted operations, and failed syncs beside other processes."""

import errno
from functools import partial

import pytest

from graphkit.errors import CheckpointStorageError
from savers.langgraph import FileSystemCache, FileSystemStore
from tests.support.interruptions import find_places, interrupt
from tests.support.langgraph import FileIO

USERS = ("users",)


class FailingSync(FileIO):
    """A sync that fails once, after another process has written."""

    meanwhile = None

    def fdatasync(self, fd):
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
            raise OSError(errno.EIO, "disk")
        super().fdatasync(fd)


def read(store):
    return {item.key: item.value for item in store.search(USERS, limit=100)}


def rewrite(store):
    """Let the log be rewritten: most of it is of no use any more."""
    for number in range(3):
        store.put(USERS, "long", {"text": "x" * 40_000, "number": number})


@pytest.mark.parametrize("meanwhile", ["put", "rewrite"])
def test_a_failed_sync_costs_nothing_that_another_process_has_stored(tmp_path, meanwhile):
    io = FailingSync()
    mine = FileSystemStore(tmp_path, io=io)
    other = FileSystemStore(tmp_path)
    mine.put(USERS, "before", {"n": 0})
    assert read(other) == {"before": {"n": 0}}
    io.meanwhile = (lambda: other.put(USERS, "other", {"n": 2})) if meanwhile == "put" else lambda: rewrite(other)
    with pytest.raises(CheckpointStorageError):
        mine.put(USERS, "mine", {"n": 1})
    expected = {"other": {"n": 2}} if meanwhile == "put" else {"long": {"text": "x" * 40_000, "number": 2}}
    fresh = FileSystemStore(tmp_path)
    for store in (mine, other, fresh):
        found = read(store)
        assert found.pop("before") == {"n": 0}
        assert found.pop("mine", {"n": 1}) == {"n": 1}  # it may be stored, although it was not acknowledged
        assert found == expected
    mine.put(USERS, "after", {"n": 3})
    assert read(fresh)["after"] == {"n": 3}
    for store in (mine, other, fresh):
        store.close()


OPERATIONS = {
    "put the first": lambda store: store.put(("new",), "a", {"n": 1}),
    "put": lambda store: store.put(USERS, "b", {"n": 1}),
    "replace": lambda store: store.put(USERS, "a", {"n": -1}),
    "delete": lambda store: store.delete(USERS, "a"),
    "rewrite": lambda store: store.put(USERS, "a", {"n": 2}),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_interrupted_change_of_the_store_is_done_or_not_done(tmp_path, sweep, name):
    numbers = iter(range(1_000_000))

    def prepare():
        path = tmp_path / str(next(numbers))
        store = FileSystemStore(path)
        store.put(USERS, "a", {"n": 0})
        store.put(USERS, "kept", {"n": 7})
        if name == "rewrite":
            rewrite(store)
        return store, path

    def observe(store):
        return read(store), [item.value for item in store.search(("new",))]

    def close(*stores):
        for store in stores:
            store.close()

    operation = OPERATIONS[name]
    for _ in range(2):  # what is imported or noted only once is not counted
        store, _ = prepare()
        before = observe(store)
        places = find_places(partial(operation, store))
        after = observe(store)
        close(store)
    for number, place in enumerate(sweep.some(places, 6)):
        store, path = prepare()
        is_interrupted = interrupt(partial(operation, store), place)
        found = observe(store)
        fresh = FileSystemStore(path)
        next_number = {"n": number}
        assert found in ((before, after) if is_interrupted else (after,)), f"interrupted at {place}"
        assert observe(fresh) == found, f"interrupted at {place}"
        store.put(USERS, "next", next_number)
        fresh.put(USERS, "later", next_number)
        for reader in (store, fresh):
            assert read(reader) == {**found[0], "next": next_number, "later": next_number}
        close(store, fresh)


def test_an_interrupted_change_of_the_cache_is_done_or_not_done(tmp_path, sweep):
    key = (USERS, "a")
    old = ({"n": 0}, None)
    new = ({"n": 1}, None)

    def prepare(number):
        cache = FileSystemCache(tmp_path / str(number))
        cache.set({key: old})
        return cache

    for number in range(2):
        cache = prepare(f"count-{number}")
        places = find_places(partial(cache.set, {key: new}))
        cache.close()
    for number, place in enumerate(sweep.some(places, 6)):
        cache = prepare(number)
        is_interrupted = interrupt(partial(cache.set, {key: new}), place)
        fresh = FileSystemCache(tmp_path / str(number))
        found = cache.get([key])[key]
        assert found in ((old[0], new[0]) if is_interrupted else (new[0],)), f"interrupted at {place}"
        assert fresh.get([key])[key] == found, f"interrupted at {place}"
        cache.set({key: ({"n": 2}, None)})
        assert fresh.get([key]) == cache.get([key]) == {key: {"n": 2}}
        cache.close()
        fresh.close()
