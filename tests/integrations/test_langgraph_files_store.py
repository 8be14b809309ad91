"""FileSystemStore: LangGraph's BaseStore in a file. What faults do to it is in test_langgraph_files_faults.py."""

import asyncio
import hashlib
import os
import shutil
import struct
import sys
import threading
from collections import OrderedDict, UserDict
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from zlib import crc32

import msgpack
import pytest
from langgraph.store.base import GetOp, InvalidNamespaceError, Item, PutOp
from langgraph.store.memory import InMemoryStore

from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointSerializationError,
    CheckpointStorageError,
)
from savers.langgraph import FileSystemCache, FileSystemCheckpointSaver, FileSystemStore
from tests.support.forked import run_in_child
from tests.support.langgraph import append_record
from tests.support.langgraph_checkpoints import put, thread


class Clock:
    """Seconds since 1970, which only the test moves."""

    seconds = 1_800_000_000.0

    def __call__(self):
        return self.seconds

    def advance(self, *, minutes):
        self.seconds += 60 * minutes


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_store(open_entries):
    return partial(open_entries, FileSystemStore)


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.fixture
def log(tmp_path):
    return tmp_path / "data" / "langgraph-store" / "log"


def keys_of(items):
    return [item.key for item in items]


# Items


def test_an_item_comes_back_with_its_times(open_store, clock):
    store = open_store(clock=clock)
    namespace = ("users", "1")
    store.put(namespace, "prefs", {"theme": "dark", "nested": {"list": [1, 2.5, None, True, "ü"]}})
    created = datetime.fromtimestamp(clock.seconds, UTC)
    clock.advance(minutes=1)
    store.put(namespace, "prefs", {"theme": "light"})
    updated = datetime.fromtimestamp(clock.seconds, UTC)
    expected = Item(value={"theme": "light"}, key="prefs", namespace=namespace, created_at=created, updated_at=updated)

    reader = open_store()
    assert reader.get(namespace, "prefs") == expected


class Color(StrEnum):
    RED = "red"


LIST_IN_ITSELF = []
LIST_IN_ITSELF.append(LIST_IN_ITSELF)


class Text(str):
    """A str of another type, such as the text of a LangChain message."""

    __slots__ = ()

    def __str__(self):
        return "something else"


class Ratio(float):
    """A float of another type, such as those of numpy."""


class Unlistable(UserDict):
    def __iter__(self):
        raise TypeError("a secret")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": [1, {2}]}}, "a.b[1]"),
        ({"a": [Unlistable(b=1)]}, "a[0]"),
        ({"a": {1: 2}}, "a[1]"),
        ({"when": datetime(2026, 1, 1, tzinfo=UTC)}, "when"),
        ({"a": Color.RED}, "a"),
        ({"a": 2**64}, "a"),
        ({"a": ["\ud800"]}, "a[0]"),
        ({"a": {"\ud800": 1}}, r"a['\ud800']"),
        ({"a": LIST_IN_ITSELF}, "a" + 99 * "[0]"),
        ([1], ""),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused_with_its_path(store, value, path):
    store.put(("a",), "k", {"x": 1})

    with pytest.raises(CheckpointSerializationError) as caught:
        store.batch([PutOp(("a",), "other", {"x": 1}), PutOp(("a",), "k", value)])

    assert caught.value.path == path
    assert "builtins" not in caught.value.type_name
    assert "secret" not in str(caught.value)
    assert store.get(("a",), "k").value == {"x": 1}
    assert store.get(("a",), "other") is None


def test_mappings_tuples_and_strings_of_other_types_come_back_as_plain_ones(store):
    value = UserDict(a=(1, 2), b=OrderedDict(c=Text("text")), d=b"bytes", e=Ratio("inf"))
    store.put(("a",), "k", value)
    found = store.get(("a",), "k").value
    assert found == {"a": [1, 2], "b": {"c": "text"}, "d": b"bytes", "e": float("inf")}
    assert type(found["b"]["c"]) is str


@pytest.mark.parametrize("ttl", [float("inf"), float("-inf"), float("nan"), 1e12, -1e12])
def test_a_ttl_that_no_time_can_hold_is_refused(store, ttl):
    with pytest.raises(ValueError, match="ttl"):
        store.put(("a",), "k", {"x": 1}, ttl=ttl)
    assert store.search(("a",)) == []


# Searches


@pytest.fixture
def people(store):
    for n, (name, age, city) in enumerate([("ann", 30, "Bonn"), ("bob", 40, None), ("cid", 50, "Aachen")]):
        value = {"name": name, "age": age, "address": {"city": city}, "n": [n], "room": str(9 + n)}
        store.put(("people", name), "card", value)
    store.put(("peoples",), "card", {"name": "not of that namespace"})
    return store


@pytest.mark.parametrize(
    ("filter", "names"),
    [
        ({"age": {"$eq": 40}}, ["bob"]),
        ({"age": {"$ne": 40}}, ["cid", "ann"]),
        ({"age": {"$gte": 30, "$lt": 50}}, ["bob", "ann"]),
        ({"age": {"$lte": "40"}}, ["bob", "ann"]),
        ({"name": {"$gt": "ann"}}, ["cid", "bob"]),
        ({"room": {"$gt": "9"}}, ["cid", "bob"]),
        ({"name": {"$gt": 3}}, []),
        ({"missing": {"$gt": 3}}, []),
        ({"missing": None}, ["cid", "bob", "ann"]),
        ({"address": {"city": {"$ne": None}}}, ["cid", "ann"]),
        ({"address.city": "Bonn"}, ["ann"]),
        ({"name.first": "Bonn"}, []),
        ({"n": [{"$gt": 0}]}, ["cid", "bob"]),
        ({"n": [1, 2]}, []),
        ({"name": "ann", "age": 40}, []),
    ],
)
def test_filters(people, filter, names):
    assert [item.value["name"] for item in people.search(("people",), filter=filter)] == names


@pytest.mark.parametrize("filter", [{"age": {"$like": 1}}, {"a": {"b": {"$like": 1}}}, {"a": {"$gt": 1, "b": 2}}])
def test_an_unknown_operator_is_an_error_even_if_nothing_is_stored(store, filter):
    with pytest.raises(ValueError, match="Unsupported operator"):
        store.search(("people",), filter=filter)


def test_a_search_returns_what_was_put_last_first(store, open_store):
    for n in range(30):
        store.put(("a", str(n % 3)), f"k{n}", {"n": n})

    store.put(("a", "1"), "k1", {"n": 1})
    expected = ["k1", *(f"k{n}" for n in range(29, 1, -1)), "k0"]
    for reader in (store, open_store()):

        def search(*namespace, reader=reader, **options):
            return keys_of(reader.search(namespace, **options))

        assert search(limit=100) == expected
        assert search("a", limit=4, offset=2) == expected[2:6]
        assert search("a", limit=100, offset=29) == ["k0"]
        assert search("a", "1", limit=2) == ["k1", "k28"]
        assert search("a", limit=0) == []


@pytest.mark.parametrize("numbers", [{"limit": -1}, {"offset": -1}])
def test_a_negative_limit_or_offset_is_an_error(store, numbers):
    for read in (lambda: store.search((), **numbers), lambda: store.list_namespaces(**numbers)):
        with pytest.raises(ValueError, match="must not be negative"):
            read()


def test_namespaces_are_listed_as_by_langgraphs_own_store(store):
    memory = InMemoryStore()
    for namespace in [("a",), ("a", "b"), ("a", "b", "c"), ("a", "x", "c"), ("b", "c"), ("ab",)]:
        for opened in (store, memory):
            opened.put(namespace, "k", {})
    for options in (
        {},
        {"suffix": ("*", "c"), "prefix": ("a",)},
        {"max_depth": 2, "limit": 2, "offset": 1},
        {"prefix": ("*",) * 4},
    ):
        assert store.list_namespaces(**options) == memory.list_namespaces(**options), options


# Batches


def test_a_batch_reads_before_it_puts_and_an_unknown_operation_changes_nothing(store):
    put = PutOp(("a",), "k", {"n": 1}, index=["text"])
    ops = [put, GetOp(("a",), "k"), PutOp(("a",), "other", {"n": 2}), PutOp(("a",), "other", None)]
    assert store.batch(ops) == [None] * 4
    assert keys_of(store.search((), query="ignored without an index")) == ["k"]
    with pytest.raises(ValueError, match="Unknown operation"):
        store.batch([PutOp(("a",), "k", {}), "nonsense"])
    assert store.get(("a",), "k").value == {"n": 1}


@pytest.mark.parametrize("namespace", [(), ("langgraph", "x"), ("a.b",), ("",), (1,)])
def test_invalid_namespaces_are_refused(store, namespace):
    with pytest.raises(InvalidNamespaceError):
        store.put(namespace, "k", {})
    assert store.search(()) == []


async def test_puts_of_one_tick_are_one_record_and_one_that_fails_fails_alone(store, log):
    store.put(("a",), "k1", {"n": 0})
    before = log.read_bytes()

    calls = [store.aput(("a",), f"k{n}", {"n": n}) for n in range(20)]
    calls.append(store.aput(("a",), "wrong \ud800", {}))
    calls.append(store.aput(("a",), "wrong", {"x": {1}}))
    calls.append(store.aget(("a",), "k1"))
    *done, wrong_key, wrong_value, found = await asyncio.gather(*calls, return_exceptions=True)

    assert log.read_bytes().removeprefix(before).count(b"\xc1\xf5G2") == 1, "one record"
    assert done == [None] * 20
    assert isinstance(wrong_key, CheckpointSerializationError)
    assert isinstance(wrong_value, CheckpointSerializationError)
    assert found.value == {"n": 0}, "reads come before puts"
    assert len(store.search((), limit=100)) == 20


async def test_a_caller_that_is_cancelled_disturbs_no_other(store):
    cancelled = asyncio.ensure_future(store.aput(("a",), "one", {}))
    other = asyncio.ensure_future(store.aput(("a",), "two", {"n": 2}))
    await asyncio.sleep(0)
    cancelled.cancel()
    await other
    assert (await store.aget(("a",), "two")).value == {"n": 2}


# Items that expire


def test_an_item_is_swept_when_its_minutes_are_over(open_store, clock):
    store = open_store(ttl={"default_ttl": 5}, clock=clock)
    store.put(("a",), "default", {})
    store.put(("a",), "shorter", {}, ttl=1)
    store.put(("a",), "never", {}, ttl=None)
    assert store.sweep_ttl() == 0
    clock.advance(minutes=1)
    assert store.get(("a",), "shorter", refresh_ttl=False) is not None, "expired, and not swept yet"
    assert store.sweep_ttl() == 1
    clock.advance(minutes=4)
    assert asyncio.run(store.asweep_ttl()) == 1
    for reader in (store, open_store()):
        assert keys_of(reader.search(("a",))) == ["never"]


@pytest.mark.parametrize(
    ("config", "refresh_ttl", "is_refreshed"),
    [
        ({}, None, True),
        ({"refresh_on_read": False}, None, False),
        ({"refresh_on_read": False}, True, True),
        ({}, False, False),
    ],
)
@pytest.mark.parametrize(
    "read", [FileSystemStore.get, lambda store, namespace, _, **options: store.search(namespace, **options)]
)
def test_a_read_postpones_the_expiry(open_store, clock, read, config, refresh_ttl, is_refreshed):
    store = open_store(ttl=config, clock=clock)
    store.put(("a",), "k", {}, ttl=10)
    clock.advance(minutes=9)
    read(store, ("a",), "k", refresh_ttl=refresh_ttl)
    clock.advance(minutes=9)
    assert open_store(clock=clock).sweep_ttl() == (not is_refreshed)
    clock.advance(minutes=1)
    assert open_store(clock=clock).sweep_ttl() == is_refreshed


def test_expired_items_are_omitted_if_the_option_is_set(open_store, clock):
    store = open_store(ttl={"omit_expired": True}, clock=clock)
    store.put(("a",), "k", {}, ttl=1)
    store.put(("b",), "k", {})
    clock.advance(minutes=1)
    assert store.get(("a",), "k") is None
    assert [found.namespace for found in store.search(())] == store.list_namespaces() == [("b",)]
    assert store.sweep_ttl() == 1


def test_the_sweeper_sweeps_until_it_is_stopped(open_store, clock):
    store = open_store(clock=clock, ttl={"sweep_interval_minutes": 1e-6})
    swept = threading.Event()
    sweep = store.sweep_ttl

    def note_sweep():
        if sweep():
            swept.set()

    store.sweep_ttl = note_sweep
    store.put(("a",), "k", {}, ttl=1)
    clock.advance(minutes=2)
    future = store.start_ttl_sweeper()
    assert store.start_ttl_sweeper() is future
    assert swept.wait(60)
    assert store.stop_ttl_sweeper(20)
    assert future.done()
    assert store.get(("a",), "k") is None
    store.start_ttl_sweeper().cancel()
    assert store.stop_ttl_sweeper(20)


# Vectors


def embed_letters(texts):
    """How often each text has the letters a, b and c."""
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]


INDEX = {"dims": 3, "embed": embed_letters, "fields": ["text"]}


@pytest.fixture(params=["numpy", "python"])
def arithmetic(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setitem(sys.modules, "numpy", None)
        # LangGraph's store remembers what an earlier test has found.
        monkeypatch.setattr("langgraph.store.memory._check_numpy", lambda: False)


def put_texts(store):
    store.put(("a",), "a", {"text": "aaaa", "abc": 1})
    store.put(("a",), "ab", {"text": "aabb", "abc": 1})
    store.put(("a",), "both", {"text": "c", "other": "ab"}, index=["text", "other"])
    store.put(("a",), "none", {"text": "a"}, index=False)
    store.put(("a",), "zero", {"text": "xyz"})
    return store


@pytest.mark.usefixtures("arithmetic")
def test_a_query_finds_the_nearest_items_also_after_reopening(open_store):
    store = put_texts(open_store(index=INDEX))
    memory = InMemoryStore(index=INDEX)
    put_texts(memory)
    expected = {"ab": 1, "both": 1, "a": 0.5**0.5, "zero": 0, "none": None}

    for reader in (store, open_store(index=INDEX), memory):
        search = partial(reader.search, ("a",), query="ab")
        found = search()

        assert {*keys_of(found[:2])} == {"ab", "both"}
        scores = {item.key: item.score for item in found}
        assert scores == pytest.approx(expected, abs=1e-6)
        assert keys_of(search(filter={"abc": 1})) == ["ab", "a"]
        assert keys_of(search(limit=2, offset=2)) == ["a", "zero"]


@pytest.mark.usefixtures("arithmetic")
async def test_async_embedding_functions_embed(open_store):
    async def embed(texts):
        return embed_letters(texts)

    store = open_store(index={"embed": embed})
    await store.aput(("a",), "x", {"text": "bbbb"})
    await store.aput(("a",), "y", {"text": "cccc"})
    assert keys_of(await store.asearch(("a",), query="c", limit=1)) == ["y"]


def test_wrong_vectors_are_refused_and_nothing_is_stored(open_store):
    with pytest.raises(CheckpointerConfigurationError, match="embed"):
        open_store(index={"dims": 3})
    store = open_store(index={**INDEX, "dims": 4})
    item = (("a",), "k", {"text": "a"})
    with pytest.raises(CheckpointerConfigurationError, match="returned 3 dimensions; index has dims=4"):
        store.put(*item)
    store = open_store(index={**INDEX, "embed": lambda _: []})
    with pytest.raises(CheckpointerConfigurationError, match="0 vectors for 1 texts"):
        store.put(*item)
    assert store.search(()) == []

    open_store(index=INDEX).put(*item)
    other = open_store(index={"embed": lambda texts: [[1.0, 2.0] for _ in texts]})
    with pytest.raises(CheckpointerConfigurationError, match="the query has 2 dimensions"):
        other.search((), query="a")


# Several stores, threads and processes


WRITER = """
import sys
from savers.langgraph import FileSystemStore
directory, name = sys.argv[1:]
store = FileSystemStore(directory, fsync="never")
for n in range(300):
    store.put(("a", name), f"k{n % 100}", {"n": n, "text": "x" * 300})
    assert store.get(("a", name), f"k{n % 100}").value["n"] == n
"""


def test_processes_put_at_once_while_the_log_is_rewritten(log, open_store, launcher):
    store = open_store()
    processes = [launcher.start("-c", WRITER, log.parent.parent, name) for name in ("x", "y")]
    text = "x" * 300
    for n in range(300):
        store.put(("a", "z"), f"k{n % 100}", {"n": n, "text": text})

    for process in processes:
        with process:
            assert process.wait(60) == 0

    for reader in (store, open_store()):
        numbers = [item.value["n"] for item in reader.search((), limit=1000)]
        assert sorted(numbers) == sorted([*range(200, 300)] * 3), "the newest of each"
    assert log.stat().st_size < 900 * 400 * 0.8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_child_of_a_fork_opens_its_own_files(store):
    store.put(("a",), "parent", {"n": 1})

    def put_another():
        store.put(("a",), "child", {"n": 2})
        return len(store.search(())) == 2

    assert run_in_child(put_another)
    store.put(("a",), "later", {"n": 3})
    assert keys_of(store.search(())) == ["later", "child", "parent"]


# One directory for everything


def test_saver_store_and_cache_share_a_directory(tmp_path, open_entries):
    key = (("graph", "node"), "key")
    saver, store, cache = map(open_entries, (FileSystemCheckpointSaver, FileSystemStore, FileSystemCache))
    for name in ("one", "two"):
        put(saver, thread(name), n=1)

    store.put(("memories",), "1", {"n": 1})
    cache.set({key: (2, None)})
    assert saver.store.verify().ok
    assert saver.store.repair() is not None

    saver.prune(["one"], strategy="delete")
    saver.store.compact()
    assert list(saver.store.threads()) == ["two"]
    assert store.get(("memories",), "1").value == {"n": 1}
    assert cache.get([key]) == {key: 2}

    names = {path.name for path in (tmp_path / "data").iterdir() if not path.name.startswith("t-")}
    assert names == {"graphkit.store", "locks", "langgraph-store", "langgraph-cache"}


# Options and errors


def test_a_removed_file_is_an_error_and_not_an_empty_store(store, log):
    store.put(("a",), "k", {"n": 1})
    log.unlink()
    with pytest.raises(CheckpointStorageError, match="removed while it was in use"):
        store.put(("a",), "other", {"n": 1})


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_other_users_can_read_nothing(store, log):
    store.put(("a",), "k", {"n": 1})
    assert log.parent.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in log.parent.iterdir()} == {0o600}


# The format


@pytest.fixture
def golden(tmp_path):
    """A copy of a directory that the first version of the format wrote."""
    return shutil.copytree(Path(__file__).parent / "golden" / "langgraph_1", tmp_path / "golden")


def test_the_items_that_the_first_version_wrote_are_read(golden, clock):
    clock.advance(minutes=1)
    with FileSystemStore(golden, index=INDEX, clock=clock) as store:
        ann = store.get(("users", "ann"), "home")
        assert ann.value == {"city": "Aachen", "text": "aab"}
        assert ann.created_at.timestamp() == 1_800_000_000
        assert ann.updated_at.timestamp() == 1_800_000_060
        (nearest,) = store.search((), query="b", limit=1)
        assert nearest.key == "home"
        nearest, *_ = store.search((), query="aab")
        assert nearest.score == pytest.approx(1)
        assert store.list_namespaces() == [("users", "ann"), ("users", "bob")]
        clock.advance(minutes=89.9)
        assert store.sweep_ttl() == 0
        clock.advance(minutes=0.2)
        assert store.sweep_ttl() == 1, "a read at minute 1 postponed the expiry"


def test_the_cached_values_that_the_first_version_wrote_are_read(golden, clock):
    gone, key, other = (("graph", "node"), "gone"), (("graph", "node"), "key"), (("graph", "other"), "key")
    with FileSystemCache(golden, clock=clock) as cache:
        clock.advance(minutes=1)
        assert cache.get([gone, key, other]) == {key: {"channel": [1, "two"]}, other: b"bytes"}
        clock.advance(minutes=90.1)
        assert cache.get([gone, key, other]) == {other: b"bytes"}


def read_records(data):
    """Yield the type and the payload of each record of a log, by docs/format.md alone."""
    offset = 64
    while offset < len(data):
        length = int.from_bytes(data[offset + 4 : offset + 8], "little")
        begin = offset + 40
        yield data[begin - 1], msgpack.unpackb(data[begin : begin + length])
        offset += length + 45


def test_the_log_of_a_store_is_as_specified(golden):
    log = golden / "langgraph-store" / "log"
    data = log.read_bytes()
    assert data[40:56] == hashlib.blake2b(b"langgraph-store").digest()[:16]

    types, payloads = zip(*read_records(data), strict=True)
    assert types == (1, 1, 5, 5, 5, 5, 5)

    meta, second_meta, *_, batch, touch = payloads
    assert meta == second_meta == {"entries": "langgraph-store"}

    put, delete, content = batch
    created = 1_800_000_000_000_000
    updated = created + 60_000_000
    value = msgpack.packb({"city": "Aachen", "text": "aab"})
    assert content == value + struct.pack("<3f", 2, 1, 0)

    times = [created, updated, None, None]
    vectors = [["text", 3]]
    assert put == [0, ["users", "ann"], "home", *times, vectors, len(value), len(content), crc32(content)]
    assert delete == [1, ["users", "cid"], "home"]
    assert touch == [[2, ["users", "bob"], "home", updated + 90 * 60_000_000], b""]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no array",
        msgpack.packb([[0, ["a"], "k", 1, 1, None, None, None, 1, 2, 3], b"x"]),
        msgpack.packb([[0, ["a"], "k"], b""]),
        msgpack.packb([[0, 7, "k", 1, 1, None, None, None, 0, 0, 0], b""]),
        msgpack.packb([[9, ["a"], "k"], b""]),
        msgpack.packb([b"unnamed"]),
        msgpack.packb([[1, ["a"], "k"], "no bytes"]),
    ],
)
def test_a_record_with_right_checksums_that_holds_nonsense_is_damage(open_store, payload):
    store = open_store()
    store.put(("a",), "k", {"n": 1})
    append_record(store, payload)
    other = open_store()
    for opened in (store, other):
        opened.close()
        with pytest.raises(CheckpointCorruptionError, match="malformed"):
            opened.get(("a",), "k")
    other.repair()
    assert keys_of(other.search(())) == ["k"]
