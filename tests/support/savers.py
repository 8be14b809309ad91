"""Savers that tests use, opened by their kind; and one that has the four methods of the contract on lists."""

import threading
import uuid
from contextlib import contextmanager

import pytest

from graphkit import BaseCheckpointSaver, CheckpointNotFoundError, RunnableConfig, Tag
from savers import FileSystemSaver, MemorySaver, PostgresSaver, SaverWrapper, SqliteSaver
from tests.support.sweeps import in_turn

SAVER_KINDS = ("memory", "four-methods", "file", "sqlite", "wrapped")
"""What `open_kind` opens: savers that differ in what they know of runs, pending writes and watching."""


def saver_fixture(kinds=SAVER_KINDS, *, most=1, **options):
    """Return a fixture that opens a saver of each of the kinds in turn, to be called `saver`."""

    @pytest.fixture(params=in_turn(kinds, "saver", most=most))
    def saver(request, tmp_path):
        server = request.getfixturevalue("server") if request.param == "postgres" else None
        with open_kind(request.param, tmp_path, server=server, **options) as saver:
            yield saver

    return saver


@contextmanager
def open_kind(kind, directory, *, four_methods=None, server=None, **options):
    """Open a saver of one of the kinds, in a directory, or of "postgres", in a schema of its own on a server.

    `four_methods` makes the one with the four methods only; `options` are those of the savers that have a store.
    """
    if kind == "memory":
        yield MemorySaver()
    elif kind == "four-methods":
        yield (four_methods or ListSaver)()
    elif kind == "sqlite":
        with SqliteSaver(directory / "runs.db", fsync="never", **options) as saver:
            yield saver
    elif kind == "postgres":
        schema = f"test {uuid.uuid4().hex}"
        with PostgresSaver(server.connection_string, schema=schema, **options) as saver:
            yield saver
        server.drop_schema(schema)
    else:
        with FileSystemSaver(directory / "runs", fsync="never", **options) as saver:
            yield saver if kind == "file" else SaverWrapper(saver)


def contents(saver, thread="t"):
    """Return all checkpoints of a thread, of nested graphs too, each with its pending writes."""
    found = []
    for namespace in saver.namespaces(thread):
        config = RunnableConfig(thread, checkpoint_ns=namespace)
        found += [(each, dict(saver.get_writes(config.replace(checkpoint_id=each.id)))) for each in saver.list(config)]
    return found


class ListSaver(BaseCheckpointSaver):
    """The four methods on plain lists, newest last: as short as a saver can be. docs/writing-a-saver.md explains one like it."""

    def __init__(self):
        self.histories = {}
        self.lock = threading.Lock()

    def key(self, config):
        config = RunnableConfig.of(config)
        return config.thread, config.checkpoint_ns

    def list(self, config=None):
        with self.lock:
            return self.histories.get(self.key(config), [])[::-1]

    def get(self, config=None):
        wanted = RunnableConfig.of(config).checkpoint_id
        return next((checkpoint for checkpoint in self.list(config) if wanted in (None, checkpoint.id)), None)

    def put(self, config, checkpoint):
        config = RunnableConfig.of(config)
        key = self.key(config)
        with self.lock:
            history = [*self.histories.get(key, [])]
            if config.checkpoint_id is None:
                self.histories[key] = [*history, checkpoint]
                return config.replace(checkpoint_id=checkpoint.id)
            for position in reversed(range(len(history))):
                if history[position].id == config.checkpoint_id:
                    history[position] = checkpoint
                    self.histories[key] = history
                    return config
            raise CheckpointNotFoundError(config.thread, f"checkpoint {config.checkpoint_id}")

    def release(self, config=None):
        thread, _ = self.key(config)
        with self.lock:
            root = self.histories.get((thread, ""), [])[::-1]
            self.histories = {key: history for key, history in self.histories.items() if key[0] != thread}
        return Tag(thread, root)


class ListingSaver(ListSaver):
    """Overrides what a saver must know to list its threads and namespaces; everything else is by default."""

    def threads(self, *, released=False):
        with self.lock:
            return list({thread for thread, _ in self.histories})

    def namespaces(self, thread=None):
        thread_id = thread if isinstance(thread, str) else RunnableConfig.of(thread).thread
        with self.lock:
            return [namespace for thread, namespace in self.histories if thread == thread_id]
