"""A thread that has one text wherever a thread can have one, and the files that still have it after an erasure."""

from pathlib import Path

from graphkit import Checkpoint, RunnableConfig

MARKER = "marker-7f3a"


def fill(saver, thread=MARKER, text=MARKER):
    """Store a text in ids, metadata, values, tags and pending writes: short, long, replaced, pruned, released."""
    config = RunnableConfig(thread)
    for number in range(4):
        state = {"n": number, "short": text, "long": text * 3000, text: text}
        metadata = {"user": text, text: number}
        checkpoint = Checkpoint(node_id=f"{text} node", next_node_id="b", state=state, metadata=metadata)
        saver.put(config, checkpoint)
        saver.put_writes(config, {text: text})
        saver.add_tags(config, text)
    nested = config.replace(checkpoint_ns=text)
    checkpoint = Checkpoint(node_id="a", next_node_id="b", state={"x": text})
    saver.put(nested, checkpoint)
    saver.prune(thread, keep_last=2)
    saver.release(config)
    checkpoint = Checkpoint(node_id="a", next_node_id="b", state={"x": text}, metadata={"user": text})
    saver.put(config, checkpoint)
    with saver.run_lock(config):
        pass


def find_files(directory, marker=MARKER):
    """Return the files below a directory that have a text in them or in their names."""
    return [
        str(path.relative_to(directory))
        for path in Path(directory).rglob("*")
        if marker in path.name or (path.is_file() and marker.encode() in path.read_bytes())
    ]
