"""Threads with checkpoints that a retention policy may remove."""

from datetime import UTC, datetime, timedelta

from graphkit import Checkpoint, RunnableConfig


def fill(saver, thread, count=5, next_node="b", days=0):
    """Put checkpoints c0, c1, ... that are some days old."""
    made_at = datetime.now(UTC) - timedelta(days=days)
    for number in range(count):
        state = {"n": number}
        checkpoint = Checkpoint(id=f"c{number}", node_id="a", next_node_id=next_node, state=state, created_at=made_at)
        saver.put(RunnableConfig(thread), checkpoint)


def ids(saver, thread):
    """The ids of the checkpoints of a thread, newest first."""
    return [info.id for info in saver.history(RunnableConfig(thread))]
