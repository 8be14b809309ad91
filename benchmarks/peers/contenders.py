"""LangGraph's checkpointers and ours, opened in the same way."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.peers.own_api import OwnApi
from benchmarks.peers.postgres import PROGRAMS, drop_schema, execute, find_server, measure_schema

DATABASE = "peer.db"
KEY = bytes(range(32))
_CONNECTS_LATER = frozenset({"own-sqlite", "own-postgres", "graphkit-sqlite", "graphkit-postgres"})
"""Ours, which connect at their first use; LangGraph's are given an open connection."""


@dataclass(frozen=True)
class Contender:
    """One column of the table: a checkpointer and its durability."""

    name: str
    kind: str
    option: str = ""

    def open(self, folder: Path, *, encrypted: bool = False) -> Any:
        """Return a synchronous checkpointer on a folder; a database is connected."""
        saver = self._open(folder, encrypted=encrypted)
        if self.kind in _CONNECTS_LATER:
            saver.get_tuple({"configurable": {"thread_id": "unknown", "checkpoint_ns": ""}})
        return saver

    def _open(self, folder: Path, *, encrypted: bool) -> Any:
        options = self._make_encryption() if encrypted else {}
        if self.is_on_postgres:
            return self._open_postgres(folder)
        if self.kind.startswith("own"):
            return self._open_own(folder)
        if self.kind == "graphkit-sqlite":
            from savers.langgraph import SqliteCheckpointSaver

            return SqliteCheckpointSaver(folder / DATABASE, fsync=self.option)
        if self.kind == "graphkit":
            from savers.langgraph import FileSystemCheckpointSaver

            return FileSystemCheckpointSaver(folder, fsync=self.option, **options)
        if self.kind == "memory":
            from langgraph.checkpoint.memory import InMemorySaver

            return InMemorySaver(**options)
        from langgraph.checkpoint.sqlite import SqliteSaver

        saver = SqliteSaver(sqlite3.connect(folder / DATABASE, check_same_thread=False), **options)
        saver.setup()
        saver.conn.execute(f"PRAGMA synchronous={self.option}")
        return saver

    @property
    def is_on_postgres(self) -> bool:
        """Whether its stores are on a server; `option` then says whether that one waits for the disk."""
        return self.kind.endswith("postgres")

    def _open_own(self, folder: Path) -> OwnApi:
        import savers

        if self.kind == "own":
            return OwnApi(savers.FileSystemSaver(folder, fsync=self.option))
        return OwnApi(savers.SqliteSaver(folder / DATABASE, fsync=self.option))

    def _open_postgres(self, folder: Path) -> Any:
        schema = name_schema(folder)
        server = find_server(self.option)
        if self.kind == "own-postgres":
            import savers

            return OwnApi(savers.PostgresSaver(server, schema=schema))
        if self.kind == "graphkit-postgres":
            from savers.langgraph import PostgresCheckpointSaver

            return PostgresCheckpointSaver(server, schema=schema)
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row

        own_server = _select_schema(server, schema)
        saver = PostgresSaver(psycopg.connect(own_server, autocommit=True, prepare_threshold=0, row_factory=dict_row))
        saver.setup()
        return saver

    def explain_missing(self) -> str | None:
        """Return why the contender cannot be measured; None if it can."""
        import savers.langgraph

        name = {"graphkit-sqlite": "SqliteCheckpointSaver", "graphkit-postgres": "PostgresCheckpointSaver"}.get(
            self.kind
        )
        if name is not None and not hasattr(savers.langgraph, name):
            return f"savers.langgraph has no {name}"
        if self.is_on_postgres and not PROGRAMS:
            return "PostgreSQL is not installed"
        package = {"sqlite": "langgraph.checkpoint.sqlite", "postgres": "langgraph.checkpoint.postgres"}.get(self.kind)
        if package is not None and find_spec(package) is None:
            return f"{package} is not installed"
        return None

    @asynccontextmanager
    async def open_async(self, folder: Path) -> AsyncIterator[Any]:
        """Open a checkpointer that an asynchronous graph can use."""
        if self.kind == "postgres":
            from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

            own_server = _select_schema(find_server(self.option), name_schema(folder))
            async with AsyncPostgresSaver.from_conn_string(own_server) as saver:
                await saver.setup()
                yield saver
            return
        if self.kind != "sqlite":
            yield self.open(folder)
            return
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(str(folder / DATABASE)) as saver:
            await saver.setup()
            await saver.conn.execute(f"PRAGMA synchronous={self.option}")
            yield saver

    def _make_encryption(self) -> dict[str, Any]:
        """Return the options of an encrypted checkpointer: `cipher` for ours, else a serializer."""
        if self.kind == "graphkit":
            return {"cipher": {"key-1": KEY}}
        try:
            import Crypto  # noqa: F401 - LangGraph's own message would not name the module
        except ImportError as error:
            raise ImportError(str(error), name="pycryptodome") from error
        from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

        return {"serde": EncryptedSerializer.from_pycryptodome_aes(key=KEY)}


CONTENDERS = (
    Contender("InMemorySaver", "memory"),
    Contender("SqliteSaver OFF", "sqlite", "OFF"),
    Contender("SqliteSaver FULL", "sqlite", "FULL"),
    Contender("ours, never", "graphkit", "never"),
    Contender("ours, always", "graphkit", "always"),
)


def name_schema(folder: Path) -> str:
    """Return the name of the schema that takes the place of a folder on a server."""
    return f"bench_{folder.name}".lower()


def _select_schema(server: str, schema: str) -> str:
    """Return the connection string of a schema, which is created."""
    execute(server, f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    return f"{server} options='-c search_path={schema}'"


class Store:
    """A folder, and the checkpointer that is open on it."""

    def __init__(self, contender: Contender, folder: Path, *, encrypted: bool = False) -> None:
        self.contender = contender
        self.folder = folder
        self.encrypted = encrypted
        self.saver = contender.open(folder, encrypted=encrypted)

    def reopen(self) -> Any:
        """Return a new checkpointer, which knows only what the files say; memory keeps its own."""
        if self.contender.kind != "memory":
            self.close()
            self.saver = self.contender.open(self.folder, encrypted=self.encrypted)
        return self.saver

    def close(self) -> None:
        """Close the files; SQLite also moves its write-ahead log into the database."""
        if self.contender.kind in {"sqlite", "postgres"}:
            self.saver.conn.close()
        elif self.contender.kind != "memory":
            self.saver.store.close()

    def remove(self) -> None:
        """Close the files, and delete them."""
        self.close()
        if self.contender.is_on_postgres:
            drop_schema(find_server(self.contender.option), name_schema(self.folder))
        shutil.rmtree(self.folder)

    def size(self) -> float | None:
        """Return the bytes on the disk after the files were closed; None if there are none."""
        if self.contender.kind == "memory":
            return None
        self.reopen()
        if self.contender.is_on_postgres:
            return measure_schema(find_server(self.contender.option), name_schema(self.folder))
        return float(sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()))
