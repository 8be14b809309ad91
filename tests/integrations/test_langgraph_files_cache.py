"""FileSystemCache: LangGraph's BaseCache in a file. What faults do to it is in test_langgraph_files_faults.py."""

import asyncio
import dataclasses
from datetime import UTC, datetime
from functools import partial

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graphkit.errors import CheckpointerConfigurationError, CheckpointSerializationError
from savers.langgraph import FileSystemCache

KEY = (("graph", "node"), "key")
OTHER = (("graph", "node"), "other")
ELSEWHERE = (("graph", "elsewhere"), "key")


@dataclasses.dataclass
class Note:
    text: str


@dataclasses.dataclass
class Other:
    text: str


@pytest.fixture
def open_cache(open_entries):
    return partial(open_entries, FileSystemCache)


@pytest.fixture
def cache(open_cache):
    return open_cache()


def test_values_come_back_as_what_they_were(cache, open_cache):
    typed = {"message": AIMessage("text", id="1"), "when": datetime(2026, 1, 1, tzinfo=UTC)}
    values = {KEY: typed, OTHER: ("tuple", [b"bytes", None]), ELSEWHERE: "x" * 20_000}
    cache.set({key: (value, 60) for key, value in values.items()})
    # Tuples come back as LangGraph's serializer returns them.
    expected = values | {OTHER: ["tuple", [b"bytes", None]]}
    for opened in (cache, open_cache()):
        assert opened.get([*values, (("no",), "such key")]) == expected


def test_a_value_expires_after_its_seconds(open_cache):
    seconds = 1_800_000_000.0
    cache = open_cache(clock=lambda: seconds)
    keys = [KEY, OTHER, ELSEWHERE]
    cache.set({KEY: (1, 10), OTHER: (2, None), ELSEWHERE: (3, 11)})
    seconds += 9.9
    assert cache.get(keys) == {KEY: 1, OTHER: 2, ELSEWHERE: 3}

    seconds += 0.1
    assert cache.get(keys) == {OTHER: 2, ELSEWHERE: 3}
    cache.set({KEY: (4, 10)})
    assert cache.get([KEY]) == {KEY: 4}


def test_expired_values_leave_the_file_when_it_is_rewritten(open_cache, tmp_path):
    seconds = 1_800_000_000.0
    cache = open_cache(clock=lambda: seconds)
    for n in range(2000):
        seconds += 1
        cache.set({(("a",), f"k{n}"): ("x" * 100, 5)})
    assert (tmp_path / "data" / "langgraph-cache" / "log").stat().st_size < 140_000
    assert open_cache(clock=lambda: seconds).get([(("a",), "k1999"), (("a",), "k1")]) == {(("a",), "k1999"): "x" * 100}


def test_clear_removes_whole_namespaces(cache, open_cache):
    below = (("graph", "node", "below"), "key")
    keys = [KEY, OTHER, ELSEWHERE, below]
    namespace = ("graph", "node")
    for number, key in enumerate(keys, 1):
        cache.set({key: (number, None)})
    cache.clear([namespace, ("no", "such"), namespace])
    cache.clear([])
    for reader in (cache, open_cache()):
        assert reader.get(keys) == {ELSEWHERE: 3, below: 4}
    cache.clear()
    for reader in (cache, open_cache()):
        assert reader.get(keys) == {}
    cache.set({KEY: (5, None)})
    assert open_cache().get([KEY]) == {KEY: 5}


def test_nothing_is_written_for_nothing(cache, tmp_path):
    cache.set({})
    cache.clear()
    cache.clear([("graph",)])
    assert cache.get([]) == {}
    assert not (tmp_path / "data" / "langgraph-cache" / "log").exists()


async def test_async_methods_do_the_same(cache):
    values = {(("a",), f"k{n}"): n for n in range(50)}

    async with cache:
        await asyncio.gather(*(cache.aset({key: (n, None)}) for key, n in values.items()))
        assert await cache.aget([*values]) == values
        await cache.aclear([("a",)])
        assert await cache.aget([*values]) == {}


def test_types_make_the_list_of_types_strict(cache, open_cache):
    note = Note("text")
    value = {"note": note}
    cache.set({KEY: (value, None), OTHER: (1, None)})
    strict = open_cache(types=[Other])
    refused = {ELSEWHERE: ([note], None)}
    with pytest.raises(CheckpointSerializationError, match=r"add Note there") as caught:
        strict.set(refused)
    assert caught.value.path == "cache['graph', 'elsewhere']['key'][0]"
    with pytest.raises(CheckpointSerializationError) as caught:
        strict.get([KEY])

    assert caught.value.path == "cache['graph', 'node']['key']"
    assert caught.value.type_name.endswith(".Note")
    assert "on_blocked_type" not in str(caught.value)
    assert strict.get([OTHER, ELSEWHERE]) == {OTHER: 1}
    for reader in (cache, open_cache(types=[Note])):
        assert reader.get([KEY]) == {KEY: value}


def test_reading_a_value_imports_nothing_that_it_names(open_cache):
    class Liar(JsonPlusSerializer):
        def dumps_typed(self, obj):
            # What a pickle of os.system("...") would be.
            return "pickle", b"cposix\nsystem\n(S'touch /tmp/graphkit-was-here'\ntR."

    open_cache(serde=Liar()).set({KEY: (1, None)})
    with pytest.raises(NotImplementedError):
        open_cache().get([KEY])


def test_a_value_that_cannot_be_encoded_is_refused_with_its_key_and_nothing_is_stored(cache):
    with pytest.raises(CheckpointSerializationError, match=r"cache\['graph', 'node'\]\['key'\]"):
        cache.set({OTHER: (1, None), KEY: (object(), None)})
    assert cache.get([OTHER]) == {}


@pytest.mark.parametrize("key", [(("node",), 7), (("node",), b"key"), (("node",), None), ((b"node",), "key")])
def test_a_key_that_no_reader_accepts_is_refused_and_the_cache_stays_readable(cache, open_cache, key):
    cache.set({KEY: (1, None)})
    with pytest.raises(CheckpointSerializationError, match="must be text"):
        cache.set({OTHER: (2, None), key: (3, None)})
    assert open_cache().get([KEY, OTHER]) == {KEY: 1}


def test_an_invalid_option_is_refused(open_cache):
    with pytest.raises(CheckpointerConfigurationError, match="fsync"):
        open_cache(fsync=3)
    with pytest.raises(CheckpointerConfigurationError, match="classes"):
        open_cache(types=["Note"])
