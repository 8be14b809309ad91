"""LangGraph's checkpointers and ours, opened in the same way."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATABASE = "peer.db"
KEY = bytes(range(32))


@dataclass(frozen=True)
class Contender:
    """One column of the table: a checkpointer and its durability."""

    name: str
    kind: str
    option: str = ""

    def open(self, folder: Path, *, encrypted: bool = False) -> Any:
        """Return a synchronous checkpointer on a folder."""
        options = self._make_encryption() if encrypted else {}
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

    @asynccontextmanager
    async def open_async(self, folder: Path) -> AsyncIterator[Any]:
        """Open a checkpointer that an asynchronous graph can use."""
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
        if self.contender.kind == "sqlite":
            self.saver.conn.close()
        elif self.contender.kind == "graphkit":
            self.saver.store.close()

    def remove(self) -> None:
        """Close the files, and delete them."""
        self.close()
        shutil.rmtree(self.folder)

    def size(self) -> float | None:
        """Return the bytes on the disk after the files were closed; None if there are none."""
        if self.contender.kind == "memory":
            return None
        self.reopen()
        return float(sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()))
