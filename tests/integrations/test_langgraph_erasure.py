"""A person is erased from LangGraph's threads, store and cache, while others go on."""

import threading

import pytest
from langgraph.store.memory import InMemoryStore

from graphkit.operations import ErasureReport, erase_where
from savers import FileSystemSaver
from savers.langgraph import FileSystemCache, FileSystemCheckpointSaver, FileSystemStore
from tests.support.erasure import MARKER, find_files
from tests.support.langgraph_checkpoints import put, thread

pytestmark = pytest.mark.requirement("P73")

PERSON = {"user": MARKER}


@pytest.fixture
def store(tmp_path):
    with FileSystemStore(tmp_path, fsync="never") as store:
        yield store


@pytest.fixture
def cache(tmp_path):
    with FileSystemCache(tmp_path, fsync="never") as cache:
        yield cache


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


def test_a_person_is_erased_from_threads_store_and_cache(tmp_path, store, cache):
    checkpointer = FileSystemCheckpointSaver(tmp_path, fsync="never")
    put(checkpointer, thread("t"), secret=MARKER, metadata=PERSON)
    put(checkpointer, thread("u"), secret="bob", metadata={"user": "bob"})
    remember(store)
    cache_key = (("graph", "node"), "key")
    cache.set({cache_key: ({"text": MARKER}, None)})
    assert len(find_files(tmp_path)) >= 3
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        reports = erase_where(saver, PERSON, stores=[store, cache])
        for report, thread_id in zip(reports, ["t", None, None], strict=True):
            assert report.thread_id == thread_id
            assert report.ok
        assert saver.threads() == ["u"]
    assert find_files(tmp_path) == []
    found = {(item.namespace[-1], item.key): item.value for item in store.search(())}
    assert found == {
        ("orders", "2"): {"user": "bob", "item": "lamp"},
        ("bob", "likes"): {"text": "coffee"},
    }
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
    remember(store)
    cache.set({(("graph", "node"), "key"): ("value", None)})
    for stored in (store, cache):
        with pytest.raises(ValueError, match="must not be empty"):
            stored.erase_where({})
    assert len(store.search(())) == 5
    assert cache.get([(("graph", "node"), "key")])


def test_torn_bytes_go_and_copies_of_a_repair_are_reported(store, tmp_path):
    remember(store)
    directory = tmp_path / "langgraph-store"
    with (directory / "log").open("ab") as log:
        log.write(MARKER.encode())
    (directory / "damaged-1.bin").write_text(MARKER)
    (reason,) = store.erase_where(PERSON)
    assert "damaged-1.bin was made by a repair" in reason
    assert find_files(tmp_path) == ["langgraph-store/damaged-1.bin"]


def test_a_damaged_store_and_one_of_others_are_reported(store, tmp_path):
    remember(store)
    store.close()
    path = tmp_path / "langgraph-store" / "log"
    data = bytearray(path.read_bytes())
    data[300] ^= 255
    path.write_bytes(data)
    with FileSystemSaver(tmp_path / "threads", fsync="never") as saver:
        damaged, foreign = erase_where(saver, PERSON, stores=[store, InMemoryStore()])
    assert isinstance(damaged, ErasureReport)
    assert "nothing was erased from it" in damaged.remaining[0]
    assert foreign.remaining == ("InMemoryStore cannot erase: delete what it has of this person",)


def test_others_go_on_while_a_person_is_erased(store, tmp_path):
    remember(store)
    is_over = threading.Event()
    stored = []

    def write():
        with FileSystemStore(tmp_path, fsync="never") as other:
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
