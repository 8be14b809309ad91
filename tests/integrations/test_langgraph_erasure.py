"""A person is erased from LangGraph's threads, store and cache, while others go on."""

import threading

import pytest
from langgraph.store.memory import InMemoryStore

from graphkit.operations import ErasureReport, erase_where
from savers import MemorySaver
from savers.langgraph import FileSystemCache, FileSystemCheckpointSaver, FileSystemStore
from tests.support.erasure import MARKER, find_files
from tests.support.langgraph_checkpoints import put, thread
from tests.support.logs import flip_in_file

pytestmark = pytest.mark.requirement("P73")

PERSON = {"user": MARKER}


@pytest.fixture
def store(open_entries):
    return open_entries(FileSystemStore)


@pytest.fixture
def cache(open_entries):
    return open_entries(FileSystemCache)


def remember(store):
    orders = ("orders",)
    of_bob = {"user": "bob", "item": "lamp"}
    store.put(("users", MARKER), "likes", {"text": "tea"})
    store.put(("users", MARKER, "notes"), "long", {"text": "x" * 50_000})
    store.put(orders, "1", {"user": MARKER, "item": "lamp"})
    store.put(orders, "2", of_bob)
    store.put(("users", "bob"), "likes", {"text": "coffee"})
    # Replaced and deleted: bytes of a log that no reader reaches.
    store.put(orders, "2", {"user": MARKER})
    store.put(orders, "2", of_bob)
    store.put(orders, "3", {"user": MARKER})
    store.delete(orders, "3")


def test_a_person_is_erased_from_threads_store_and_cache(tmp_path, store, cache, open_entries):
    checkpointer = open_entries(FileSystemCheckpointSaver)
    put(checkpointer, thread("t"), secret=MARKER, metadata=PERSON)
    put(checkpointer, thread("u"), secret="bob", metadata={"user": "bob"})
    remember(store)
    cache_key = (("graph", "node"), "key")
    cache.set({cache_key: ({"text": MARKER}, None)})
    assert len(find_files(tmp_path)) >= 3

    reports = erase_where(checkpointer.store, PERSON, stores=[store, cache])
    assert [(report.thread_id, report.ok) for report in reports] == [("t", True), (None, True), (None, True)]
    assert checkpointer.store.threads() == ["u"]
    assert find_files(tmp_path) == []

    found = {(item.namespace[-1], item.key): item.value for item in store.search(())}
    assert found == {("orders", "2"): {"user": "bob", "item": "lamp"}, ("bob", "likes"): {"text": "coffee"}}
    assert cache.get([cache_key]) == {}
    assert store.verify().ok


def test_items_need_all_of_the_metadata(store):
    store.put(("users", MARKER), "1", {"tenant": "x"})
    store.put(("x", MARKER), "2", {})
    store.put(("other",), "3", {"user": MARKER, "tenant": "x"})
    store.put(("other",), MARKER, {"user": "bob", "tenant": "x"})
    assert store.erase_where({"user": MARKER, "tenant": "x"}) == []
    assert sorted(item.key for item in store.search(())) == ["1", MARKER]


def test_no_metadata_are_refused_and_a_store_without_a_file_has_nothing(store, cache):
    for stored in (store, cache):
        assert stored.erase_where(PERSON) == []
        with pytest.raises(ValueError, match="must not be empty"):
            stored.erase_where({})


def test_torn_bytes_go_and_copies_of_a_repair_are_reported(store, tmp_path):
    remember(store)
    directory = tmp_path / "data" / "langgraph-store"
    with (directory / "log").open("ab") as log:
        log.write(MARKER.encode())
    (directory / "damaged-1.bin").write_text(MARKER)
    (reason,) = store.erase_where(PERSON)
    assert "damaged-1.bin was made by a repair" in reason
    assert find_files(directory) == ["damaged-1.bin"]


def test_a_damaged_store_and_one_of_others_are_reported(store, tmp_path):
    remember(store)
    store.close()
    flip_in_file(tmp_path / "data" / "langgraph-store" / "log", 300, 255)
    damaged, foreign = erase_where(MemorySaver(), PERSON, stores=[store, InMemoryStore()])
    assert isinstance(damaged, ErasureReport)
    assert "nothing was erased from it" in damaged.remaining[0]
    assert foreign.remaining == ("InMemoryStore cannot erase: delete what it has of this person",)


def test_others_go_on_while_a_person_is_erased(store, open_entries, tmp_path):
    remember(store)
    other = open_entries(FileSystemStore)
    is_over = threading.Event()
    stored = []

    def write():
        while not is_over.is_set():
            other.put(("users", "bob"), f"{len(stored)}", {"text": "x" * 1000})
            stored.append(other.get(("users", "bob"), f"{len(stored)}").key)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            remember(store)
            assert store.erase_where(PERSON) == []
    finally:
        is_over.set()
        writer.join()
    assert find_files(tmp_path) == []
    assert {item.key for item in store.search(("users", "bob"), limit=10**6)} == {"likes", *stored}
