"""Checkpoints of LangGraph, for tests that put some."""

from langgraph.checkpoint.base import empty_checkpoint

from savers.langgraph import FileSystemCheckpointSaver


def thread(thread_id="t", namespace="", checkpoint_id=None):
    """Return the config of a history, or of one of its checkpoints."""
    names = {"thread_id": thread_id, "checkpoint_ns": namespace}
    if checkpoint_id is not None:
        names["checkpoint_id"] = checkpoint_id
    return {"configurable": names}


def put(saver, config=None, metadata=None, *, id=None, **values):
    """Put a checkpoint with these channels after the one that the config names; return its config."""
    checkpoint = empty_checkpoint()
    checkpoint["id"] = id or checkpoint["id"]
    versions = dict.fromkeys(values, saver.get_next_version(None, None))
    checkpoint |= {"channel_values": values, "channel_versions": versions}
    return saver.put(config or thread(), checkpoint, metadata or {"source": "loop", "step": 0}, versions)


def thread_of(config):
    """Return the id of the thread of a config."""
    return config["configurable"]["thread_id"]


def id_of(config):
    """Return the id of the checkpoint of a config."""
    return config["configurable"]["checkpoint_id"]


def values_of(found):
    """Return the values of the channels in what a saver returns."""
    return found.checkpoint["channel_values"]


def again(saver):
    """Return another checkpointer on the files of one, which has read nothing yet."""
    return FileSystemCheckpointSaver(saver.store.base_directory, fsync="never")
