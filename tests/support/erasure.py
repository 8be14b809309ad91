"""A thread that has one text wherever a thread can have one, and the files that still have it after an erasure."""

from pathlib import Path

from graphkit import RunnableConfig
from graphkit.testing import made

MARKER = "marker-7f3a"


def fill(saver, thread=MARKER, text=MARKER):
    """Store a text in ids, metadata, values, tags and pending writes: short, long, replaced, pruned, released."""
    config = RunnableConfig(thread)
    for number in range(4):
        state = {"n": number, "short": text, "long": text * 3000, text: text}
        metadata = {"user": text, text: number}
        saver.put(config, made(state, node_id=f"{text} node", metadata=metadata))
        saver.put_writes(config, {text: text})
        saver.add_tags(config, text)
    saver.put(config.replace(checkpoint_ns=text), made({"x": text}))
    saver.prune(thread, keep_last=2)
    saver.release(config)
    saver.put(config, made({"x": text}, metadata={"user": text}))
    with saver.run_lock(config):
        pass


def find_files(directory, marker=MARKER):
    """Return the files below a directory that have a text in them or in their names."""
    return [
        str(path.relative_to(directory))
        for path in Path(directory).rglob("*")
        if marker in path.name or (path.is_file() and marker.encode() in path.read_bytes())
    ]
