"""FileSystemCheckpointSaver where LangGraph's own savers behave alike: what a user who switches would notice."""

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from enum import Enum
from importlib import import_module
from pathlib import Path

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from graphkit import CheckpointerConfigurationError, CheckpointSerializationError
from graphkit.saver_kit import freeze
from savers.langgraph import FileSystemCheckpointSaver, checkpointer
from tests.integrations import langgraph_graphs as graphs
from tests.integrations.langgraph_graphs import Note
from tests.support.langgraph_checkpoints import again, id_of, put, thread, thread_of, values_of


def test_one_id_in_place_of_a_list_of_ids_is_refused_and_nothing_is_removed(saver):
    for name in "ab":
        put(saver, thread(name), {"run_id": name}, a=1)
    for refuse in (
        lambda: saver.prune("ab", strategy="delete"),
        lambda: saver.prune("ab"),
        lambda: saver.delete_for_runs("ab"),
        lambda: saver.prune(b"ab"),
    ):
        with pytest.raises(TypeError, match=r"a list of ids.*\[b?'ab'\]"):
            refuse()
    assert [thread_of(saved.config) for saved in saver.list(None)] == ["b", "a"]


@pytest.mark.parametrize("wrong", [None, 7, b"task", ("~", "pull")])
def test_writes_of_a_task_whose_id_or_path_is_no_text_are_refused(saver, wrong):
    config = put(saver, thread(), {}, a=1)
    for task in ((wrong,), ("task", wrong)):
        with pytest.raises(CheckpointSerializationError, match="must be a str"):
            saver.put_writes(config, [("a", 2)], *task)
    assert saver.get_tuple(config).pending_writes == []


@pytest.mark.parametrize("ts", ["", "yesterday", None, "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
def test_a_ts_that_is_no_time_is_kept_and_the_put_is_dated_by_the_clock(saver, ts):
    before = datetime.now(UTC)
    config = saver.put(thread(), {**empty_checkpoint(), "ts": ts}, {}, {})
    assert saver.get_tuple(config).checkpoint["ts"] == ts
    (info,) = saver.store.history(config)
    assert info.created_at >= before
    assert [saved.checkpoint["ts"] for saved in saver.list(None)] == [ts]


# Opening and closing


def has_open_files(directory):
    return any(directory in link.resolve().parents for link in Path("/proc/self/fd").iterdir())


def test_the_saver_is_a_context_manager_that_closes_its_files_at_the_end(tmp_path):
    opened = FileSystemCheckpointSaver(tmp_path, fsync="never")
    app = graphs.loop(1).compile(checkpointer=opened)

    with opened as saver:
        assert saver is opened
        saver.setup()
        app.invoke({"n": 0}, thread())
        assert has_open_files(tmp_path)
    assert not has_open_files(tmp_path)

    async def use_again():
        async with opened as saver:
            assert saver is opened
            await saver.setup()
            await app.ainvoke({"n": 0}, thread())
            assert has_open_files(tmp_path)

    asyncio.run(use_again())
    assert not has_open_files(tmp_path)


# As LangGraph's Agent Server opens it


async def run_on_server():
    async with checkpointer() as saver:
        await graphs.loop().compile(checkpointer=saver).ainvoke({"log": [], "n": 0}, thread())
        return saver


def test_a_server_finds_it_by_its_dotted_path():
    """As langgraph-api 0.16 does: in the dictionary of the module."""
    assert import_module("savers.langgraph").__dict__["checkpointer"] is checkpointer


def test_it_opens_the_directory_of_the_variable_and_closes_it(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    monkeypatch.setenv("GRAPHKIT_DIR", str(runs))
    saver = asyncio.run(run_on_server())
    assert isinstance(saver, FileSystemCheckpointSaver)
    assert saver.store.base_directory == str(runs)
    assert not has_open_files(tmp_path)
    assert len(FileSystemCheckpointSaver(runs).store.history(thread())) > 5


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"GRAPHKIT_DIR is not set.*langgraph\.json"),
        ("", r"GRAPHKIT_DIR is not set.*langgraph\.json"),
        ("file", r"GRAPHKIT_DIR=.*file' cannot be used.*is a file"),
        ("memory:x", r"GRAPHKIT_DIR='memory:x'.*needs a directory"),
    ],
)
def test_what_is_no_directory_is_refused_by_the_name_of_the_variable(tmp_path, monkeypatch, value, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("content")
    monkeypatch.delenv("GRAPHKIT_DIR", raising=False)
    if value is not None:
        monkeypatch.setenv("GRAPHKIT_DIR", value)
    with pytest.raises(CheckpointerConfigurationError, match=message):
        asyncio.run(run_on_server())
    assert [path.read_text() for path in tmp_path.iterdir()] == ["content"]


def test_the_servers_word_for_deleting_is_understood_too(saver):
    """langgraph-api 0.16 calls `aprune(ids, strategy="delete_all")`."""
    for name in "ab":
        put(saver, thread(name), n=1)
    asyncio.run(saver.aprune(["a"], strategy="delete_all"))
    assert saver.store.threads() == ["b"]
    with pytest.raises(ValueError, match="everything"):
        saver.prune(["b"], strategy="everything")
    assert saver.store.threads() == ["b"]


# Errors


class Refusing(JsonPlusSerializer):
    """Refuses the value "bad" with a ValueError, as an encrypting or a validating serializer might."""

    def dumps_typed(self, obj):
        if obj == "bad":
            raise ValueError("the key is too short")
        return super().dumps_typed(obj)


def test_a_value_error_of_the_serializer_is_still_one_and_names_the_channel(tmp_path):
    saver = FileSystemCheckpointSaver(tmp_path, serde=Refusing(), fsync="never")
    config = put(saver, a=1)
    for store in (lambda: put(saver, a="bad"), lambda: saver.put_writes(config, [("a", "bad")], "task")):
        with pytest.raises(ValueError, match="the key is too short") as caught:
            store()
        error = caught.value
        assert isinstance(error, CheckpointSerializationError)
        assert error.path == "a"
        assert isinstance(error.__cause__, ValueError)

        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied)) == (type(error), str(error))
    (found,) = saver.list(None)
    assert found.pending_writes == []


# Metadata


GIVEN = {"pair": (1, 2), "nested": {"deep": [(1, (2,)), {"x": ()}]}, "step": 1}
READ = {"pair": [1, 2], "nested": {"deep": [[1, [2]], {"x": []}]}, "step": 1}


def test_tuples_in_metadata_become_lists_and_a_filter_finds_them_by_either(saver):
    config = put(saver, None, GIVEN, a=1)
    put(saver, None, {"pair": [2, 1], "step": 2}, a=2)

    for reader in (saver, again(saver)):
        assert reader.get_tuple(config).metadata == READ
        for wanted in ({"pair": (1, 2)}, {"pair": [1, 2]}, {"nested": READ["nested"]}):
            (found,) = reader.list(None, filter=wanted)
            assert found.config == config
        (info,) = reader.store.search({"pair": [1, 2]})
        assert info.id == id_of(config)


def test_tuples_that_an_earlier_version_stored_are_read_as_lists(saver):
    config = put(saver, None, {"pair": "placeholder"}, a=1)
    stored = saver.store.get(config)
    saver.store.put(config, stored.with_metadata(freeze({**stored.metadata, "pair": (1, 2)})))
    assert saver.store.get(config).metadata["pair"] == (1, 2)
    assert saver.get_tuple(config).metadata == {"pair": [1, 2]}
    assert len(list(saver.list(None, filter={"pair": [1, 2]}))) == 1


def test_metadata_that_contain_themselves_are_refused(saver):
    items = []
    items.append((items,))
    with pytest.raises(ValueError, match="contains itself"):
        put(saver, None, {"items": items}, a=1)
    assert list(saver.list(None)) == []


# Pruning


WHOLE_THREAD = {"configurable": {"thread_id": "t"}}
"""The config of a thread whose namespaces LangGraph chooses."""


@pytest.mark.parametrize(("has_memory", "before", "after"), [(None, 4, {""}), (True, 2, {"", "inner"})])
def test_keep_latest_removes_the_subgraph_calls_that_started_from_a_removed_checkpoint(
    saver, has_memory, before, after
):
    """A subgraph with a memory of its own has one namespace for all calls, and keeps it."""

    def namespaces(reader):
        return {saved.config["configurable"]["checkpoint_ns"] for saved in reader.list(WHOLE_THREAD)}

    inner = graphs.chain(graphs.Log, first=lambda state: {"log": ["first"], "n": state["n"] + 1})
    graph = graphs.chain(graphs.Log, inner=inner.compile(checkpointer=has_memory))
    graph.add_node("ask", lambda _: {"log": [interrupt("go on?")]})
    graph.add_conditional_edges("inner", lambda state: "inner" if state["n"] < 3 else "ask", ["inner", "ask"])
    app = graph.compile(checkpointer=saver)
    app.invoke({"n": 0}, WHOLE_THREAD)
    assert len(namespaces(saver)) == before

    latest = app.get_state(WHOLE_THREAD)
    saver.prune(["t"])
    assert len([*saver.list(WHOLE_THREAD)]) == len(after)

    for reader in (saver, again(saver)):
        assert namespaces(reader) == {*reader.store.namespaces("t")} - {"#early:"} == after

    assert app.get_state(WHOLE_THREAD) == latest
    assert app.invoke(Command(resume="yes"), WHOLE_THREAD)["log"][-1] == "yes"
    assert saver.store.verify().ok


# Types of the application


class Color(Enum):
    RED = "red"


class Person(BaseModel):
    name: str


PEOPLE = [Person(name="ada"), Person(name="bob"), Color.RED]


@pytest.mark.parametrize(
    "options", [{"types": ["Note"]}, {"types": [Note], "serde": object()}, {"on_blocked_type": "ignore"}]
)
def test_types_that_cannot_be_allowed_are_refused(tmp_path, options):
    with pytest.raises(CheckpointerConfigurationError, match=next(iter(options))):
        FileSystemCheckpointSaver(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def test_a_type_that_a_strict_serializer_of_langgraph_blocks_is_an_error_unless_plain_data_are_asked_for(tmp_path):
    serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    strict = FileSystemCheckpointSaver(tmp_path, fsync="never", serde=serde)
    plain = FileSystemCheckpointSaver(tmp_path, on_blocked_type="plain")
    config = put(strict, fine=1, people=PEOPLE)
    people = [{"name": "ada"}, {"name": "bob"}, "red"]
    assert values_of(plain.get_tuple(config))["people"] == people
    permissive = FileSystemCheckpointSaver(tmp_path, serde=JsonPlusSerializer())
    allowing = strict.with_allowlist([(__name__, "Person"), (__name__, "Color")])
    for saver in (permissive, allowing):
        assert values_of(saver.get_tuple(config))["people"] == PEOPLE
    for read in (
        lambda: strict.get_tuple(config),
        lambda: list(strict.list(None)),
        lambda: asyncio.run(strict.aget(config)),
    ):
        with pytest.raises(
            CheckpointSerializationError, match=r"Person: add Person to types=.* add Color to"
        ) as caught:
            read()
        assert caught.value.path == "people"
        assert caught.value.type_name == f"{__name__}.Person, {__name__}.Color"
        assert caught.value.raw == people
    waiting = put(strict, thread("waiting"), fine=1)
    strict.put_writes(waiting, [("color", Color.RED)], "task")
    with pytest.raises(CheckpointSerializationError) as caught:
        strict.get_tuple(waiting)
    assert (caught.value.path, caught.value.raw) == ("color", "red")


def test_threads_that_read_at_once_see_only_their_own_blocked_types(tmp_path):
    bad = put(FileSystemCheckpointSaver(tmp_path, fsync="never"), thread("bad"), a=[Color.RED] * 500)
    saver = FileSystemCheckpointSaver(tmp_path, fsync="never", types=[Person])
    good = put(saver, thread("good"), a=[1] * 500)

    def read(number):
        if number % 2:
            return values_of(saver.get_tuple(good))["a"] == [1] * 500
        with pytest.raises(CheckpointSerializationError):
            saver.get_tuple(bad)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(60)))
