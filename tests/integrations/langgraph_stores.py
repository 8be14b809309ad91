"""The kinds of stores on which LangGraph's checkpointer is tested."""

import uuid

import pytest

import savers
from savers.langgraph import CheckpointSaver, FileSystemCheckpointSaver, PostgresCheckpointSaver, SqliteCheckpointSaver
from tests.support.savers import ListingSaver

DATABASES = ["sqlite", "postgres"]
MADE = {"MemorySaver": savers.MemorySaver, "ListingSaver": ListingSaver}
"""Savers that are used through the contract; ListingSaver has the defaults for most of it."""
OTHERS = [*DATABASES, *MADE]
"""All kinds but files."""


class Reopened(FileSystemCheckpointSaver):
    """A checkpointer on files that is opened anew for each call."""

    def __getattribute__(self, name):
        if name in {"put", "put_writes", "get_tuple", "list", "get_delta_channel_history"}:
            return getattr(FileSystemCheckpointSaver(self.store.base_directory, serde=self.serde, fsync="never"), name)
        return super().__getattribute__(name)


class Opener:
    """Opens checkpointers on new stores of one kind, and opens a store again.

    Args:
        kind: file, sqlite, postgres, or one of the savers that keep nothing.
        directory: where files are.
        server: the PostgreSQL server, if one is needed.
    """

    def __init__(self, kind, directory, server):
        self.kind = kind
        self.directory = directory
        self.server = server
        self.opened = {}
        self.schemas = set()

    def new(self, **options):
        """A checkpointer on a store of its own."""
        return self.open(uuid.uuid4().hex, **options)

    def open(self, name, **options):
        """A checkpointer on the store with a name."""
        saver = self._open(name, options)
        self.opened[saver] = name
        return saver

    def _open(self, name, options):
        match self.kind:
            case "file":
                return FileSystemCheckpointSaver(self.directory / name, fsync="never", **options)
            case "reopened":
                return Reopened(self.directory / name, fsync="never", **options)
            case "sqlite":
                return SqliteCheckpointSaver(self.directory / f"{name}.db", fsync="never", **options)
            case "postgres":
                schema = f"test {name}"
                self.schemas.add(schema)
                return PostgresCheckpointSaver(self.server.connection_string, schema=schema, **options)
            case _:
                return CheckpointSaver(MADE[self.kind](), **options)

    def reopen(self, saver):
        """Another checkpointer on the store of one."""
        if self.kind in MADE:
            return saver  # it keeps nothing
        return self.open(self.opened[saver])

    def close(self):
        for saver in self.opened:
            saver._close()
        # All tests share one server, and most name their store "a".
        for schema in self.schemas:
            self.server.drop_schema(schema)


def make_opener(request, kind):
    """The opener of a kind; its savers are closed when the test ends."""
    server = request.getfixturevalue("server") if kind == "postgres" else None
    opener = Opener(kind, request.getfixturevalue("tmp_path"), server)
    request.addfinalizer(opener.close)
    return opener


def parametrize(*kinds):
    return pytest.mark.parametrize("opener", kinds, indirect=True)
