"""Savers that tests use: the four methods of the contract on lists, and one that keeps what the engine puts."""

from contextlib import contextmanager

from graphkit import BaseCheckpointSaver, RunnableConfig, Tag
from savers import FileSystemSaver, MemorySaver, SaverWrapper, SqliteSaver

SAVER_KINDS = ("memory", "four-methods", "file", "sqlite", "wrapped")
"""What `open_kind` opens: savers that differ in what they know of runs, pending writes and watching."""


@contextmanager
def open_kind(kind, directory, *, four_methods=None, **options):
    """Open a saver of one of the kinds, in a directory.

    `four_methods` makes the one with the four methods only; `options` are those of the savers that have a store.
    """
    if kind == "memory":
        yield MemorySaver()
    elif kind == "four-methods":
        yield (four_methods or ListSaver)()
    elif kind == "sqlite":
        with SqliteSaver(directory / "runs.db", fsync="never", **options) as saver:
            yield saver
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
    """Implements the four methods on plain lists, newest last; all else is the contract's own."""

    def __init__(self):
        self.histories = {}

    def _history_of(self, config):
        return self.histories.setdefault((config.thread, config.checkpoint_ns), [])

    def list(self, config=None):
        return self._history_of(RunnableConfig.of(config))[::-1]

    def get(self, config=None):
        wanted = RunnableConfig.of(config).checkpoint_id
        return next((checkpoint for checkpoint in self.list(config) if wanted in {None, checkpoint.id}), None)

    def put(self, config, checkpoint):
        config = RunnableConfig.of(config)
        history = self._history_of(config)
        if config.checkpoint_id is None:
            history.append(checkpoint)
            return config.with_check_point_id(checkpoint.id)
        ids = [stored.id for stored in history]
        history[ids.index(config.checkpoint_id)] = checkpoint
        return config

    def release(self, config=None):
        config = RunnableConfig.of(config)
        history = self.histories.pop((config.thread, config.checkpoint_ns), [])
        return Tag(config.thread, tuple(history[::-1]))


class ListingSaver(ListSaver):
    """The four methods, and a list of the threads."""

    def threads(self, *, released=False):
        return sorted({thread for (thread, _), history in self.histories.items() if history})


class PutRecorder(MemorySaver):
    """Keeps the checkpoints as the engine puts them, with what they know of their parents."""

    def __init__(self):
        super().__init__()
        self.puts = []

    def put(self, config, checkpoint):
        self.puts.append(checkpoint)
        return super().put(config, checkpoint)
