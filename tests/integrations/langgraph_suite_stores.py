"""What LangGraph's tests get for its stores and caches. `langgraph_suite_plugin.py` says how."""

from contextlib import asynccontextmanager, contextmanager

from langgraph_suite_plugin import new_directory

from savers.langgraph import FileSystemCache, FileSystemStore


def make_store():
    with FileSystemStore(new_directory()) as store:
        yield store


def make_cache():
    with FileSystemCache(new_directory()) as cache:
        yield cache


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

    async def setup(self):
        await self._store.setup()

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


class RedisClient:
    """A client whose server is there: the tests of RedisCache are skipped without one."""

    def __init__(self, **options):
        pass

    def ping(self):
        return True

    def flushdb(self):
        return True
