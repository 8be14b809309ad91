"""Checkpoints of LangGraph, for tests that put some."""

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from savers.langgraph import FileSystemCheckpointSaver


def thread(thread_id="t", namespace="", checkpoint_id=None):
    """Return the config of a history, or of one of its checkpoints."""
    names = {"thread_id": thread_id, "checkpoint_ns": namespace}
    if checkpoint_id is not None:
        names["checkpoint_id"] = checkpoint_id
    return {"configurable": names}


def make_checkpoint(*, id=None, ts=None, version="1", metadata=None, **values):
    """Return what a put takes after its config: a checkpoint with these channels, its metadata and its new versions."""
    checkpoint = empty_checkpoint()
    checkpoint["id"] = id or checkpoint["id"]
    checkpoint["ts"] = ts or checkpoint["ts"]
    versions = dict.fromkeys(values, version)
    checkpoint |= {"channel_values": values, "channel_versions": versions}
    return checkpoint, metadata or {"source": "loop", "step": 0}, versions


def put(saver, config=None, metadata=None, **values):
    """Put a checkpoint with these channels after the one that the config names; return its config.

    The id and the time are those that `make_checkpoint` takes.
    """
    version = saver.get_next_version(None, None)
    return saver.put(config or thread(), *make_checkpoint(version=version, metadata=metadata, **values))


def thread_of(config):
    """Return the id of the thread of a config."""
    return config["configurable"]["thread_id"]


def id_of(config):
    """Return the id of the checkpoint of a config."""
    return config["configurable"]["checkpoint_id"]


def values_of(found):
    """Return the values of the channels in what a saver returns."""
    return found.checkpoint["channel_values"]


def again(saver, **options):
    """Return another checkpointer on the files of one, which has read nothing yet."""
    return FileSystemCheckpointSaver(saver.store.base_directory, fsync="never", **options)


class Listening(JsonPlusSerializer):
    """LangGraph's serializer, which calls a function before it restores a value."""

    def __init__(self, listen):
        super().__init__(allowed_msgpack_modules=None)
        self._listen = listen

    def loads_typed(self, data):
        self._listen()
        return super().loads_typed(data)
