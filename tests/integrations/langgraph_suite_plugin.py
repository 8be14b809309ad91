"""Puts graphkit's checkpointer, store and cache into LangGraph's own tests.

A pytest plugin for the process that runs a suite of LangGraph; `langgraph_suites.py` starts it. The end of the suite's
`conftest.py` calls `make_fixtures`, whose fixtures replace those of the suite, and `replace_savers`. This module imports
nothing of graphkit's tests, because the package `tests` is LangGraph's in that process.
"""

import importlib
import os
import tempfile
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from savers.langgraph import (
    FileSystemCache,
    FileSystemCheckpointSaver,
    FileSystemStore,
    PostgresCheckpointSaver,
    SqliteCheckpointSaver,
)

CHECKPOINTER_FIXTURES = {"sync_checkpointer", "async_checkpointer"}
STORE_FIXTURES = {"sync_store", "async_store", "cache"}

VARIANTS = {
    "default": {},
    "never": {"fsync": "never"},
    "lenient": {"serde": JsonPlusSerializer()},
    "sqlite": {},
    "postgres": {},
}
"""Options of the checkpointer, which keeps files except in the variants that are named for a database.

LangGraph's savers take its serializer in the lenient mode.
"""

TIMED = {"test_imp_nested", "test_stream_buffering_single_node", "test_stream_subgraphs_during_execution"}
"""LangGraph's tests that expect a task or a chunk within 10 to 100 ms. On a busy machine they fail with any saver."""

CONNECTION_STRING = "GRAPHKIT_SUITE_DATABASE"
"""The environment variable that names the database of the variant `postgres`."""


class _Made:
    """What the tests of this process make of ours, and how many a test has made."""

    count = 0


def new_directory():
    """An empty directory for one of ours."""
    _Made.count += 1
    return tempfile.mkdtemp(prefix="graphkit-")


def pytest_addoption(parser):
    parser.addoption("--graphkit", choices=VARIANTS, default="default", help="the options of the checkpointer")
    parser.addoption("--take", choices=["checkpointer", "store", "neither"], help="run tests that take such a fixture")


def pytest_configure(config):
    _Made.variant = config.getoption("graphkit")
    _Made.options = VARIANTS[_Made.variant]


def pytest_collection_modifyitems(config, items):
    kind = config.getoption("take")
    if kind is not None:
        config.hook.pytest_deselected(items=[item for item in items if _kind_of(item) != kind])
        items[:] = [item for item in items if _kind_of(item) == kind]


def _kind_of(item):
    fixtures = {*item.fixturenames}
    if fixtures & CHECKPOINTER_FIXTURES:
        return "checkpointer"
    return "store" if fixtures & STORE_FIXTURES else "neither"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    _Made.count = 0
    if item.originalname in TIMED:
        item.add_marker(pytest.mark.flaky(retries=3))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    finally:
        item.user_properties.append(("made", _Made.count))


# What a test takes as a fixture --------------------------------------------------------------------------------------


def make_checkpointer():
    with open_checkpointer(new_directory()) as checkpointer:
        yield checkpointer


def open_checkpointer(directory):
    match _Made.variant:
        case "sqlite":
            return SqliteCheckpointSaver(f"{directory}/runs.db", fsync="never", **_Made.options)
        case "postgres":
            # No new UUID: some tests count them.
            schema = Path(directory).name
            return PostgresCheckpointSaver(os.environ[CONNECTION_STRING], schema=schema, **_Made.options)
        case _:
            return FileSystemCheckpointSaver(directory, **_Made.options)


def make_store():
    with FileSystemStore(new_directory()) as store:
        yield store


def make_cache():
    with FileSystemCache(new_directory()) as cache:
        yield cache


def make_fixtures():
    """The fixtures that replace those of a suite, by their name."""
    makers = dict.fromkeys(CHECKPOINTER_FIXTURES, make_checkpointer)
    makers |= {"sync_store": make_store, "async_store": make_store, "cache": make_cache}
    return {name: pytest.fixture(maker, name=name, params=["graphkit"]) for name, maker in makers.items()}


# What a test makes for itself ----------------------------------------------------------------------------------------


class MadeCheckpointer(FileSystemCheckpointSaver):
    """For InMemorySaver and SqliteSaver."""

    def __init__(self, *, serde=None, factory=None):
        options = _Made.options if serde is None else _Made.options | {"serde": serde}
        super().__init__(new_directory(), **options)

    @classmethod
    @contextmanager
    def from_conn_string(cls, conn_string):
        with cls() as checkpointer:
            yield checkpointer


class MadeAsyncCheckpointer(MadeCheckpointer):
    """For AsyncSqliteSaver."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, conn_string):
        async with cls() as checkpointer:
            yield checkpointer


def as_base_store(index, ttl):
    """The options of a SqliteStore in the words and with the defaults that BaseStore documents."""
    if index is not None and "text_fields" in index:
        index = index | {"fields": index["text_fields"]}
    if ttl is not None:
        ttl = {"refresh_on_read": False} | ttl
    return {"index": index, "ttl": ttl}


class MadeStore(FileSystemStore):
    """For InMemoryStore and SqliteStore."""

    def __init__(self, **options):
        super().__init__(new_directory(), **options)

    @classmethod
    @contextmanager
    def from_conn_string(cls, conn_string, *, index=None, ttl=None):
        with cls(**as_base_store(index, ttl)) as store:
            yield store


class MadeAsyncStore:
    """For AsyncSqliteStore, whose methods for items that expire are asynchronous."""

    def __init__(self, store):
        self._store = store

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, conn_string, *, index=None, ttl=None):
        async with MadeStore(**as_base_store(index, ttl)) as store:
            yield cls(store)

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def sweep_ttl(self):
        return self._store.sweep_ttl()

    async def start_ttl_sweeper(self):
        return self._store.start_ttl_sweeper()

    async def stop_ttl_sweeper(self):
        return self._store.stop_ttl_sweeper()


class MadeCache(FileSystemCache):
    """For RedisCache."""

    def __init__(self, client, *, prefix):
        super().__init__(new_directory())


def replace_savers():
    """From here on, who imports a saver of LangGraph imports ours."""
    replace("langgraph.checkpoint.memory", InMemorySaver=MadeCheckpointer, MemorySaver=MadeCheckpointer)
    replace("langgraph.checkpoint.sqlite", SqliteSaver=MadeCheckpointer)
    replace("langgraph.checkpoint.sqlite.aio", AsyncSqliteSaver=MadeAsyncCheckpointer)
    replace("langgraph.store.memory", InMemoryStore=MadeStore)
    replace("langgraph.store.sqlite", SqliteStore=MadeStore, AsyncSqliteStore=MadeAsyncStore)
    replace("langgraph.store.sqlite.aio", AsyncSqliteStore=MadeAsyncStore)
    replace("langgraph.cache.redis", RedisCache=MadeCache)
    replace("redis", Redis=Mock)  # a client whose server is there: the tests are skipped without one


def replace(module, **classes):
    """Replace classes of a module that must be there."""
    imported = importlib.import_module(module)
    for name, replacement in classes.items():
        assert hasattr(imported, name), f"{module} has no {name}"
        setattr(imported, name, replacement)
