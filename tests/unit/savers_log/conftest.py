"""Logs over bytes in memory."""

import pytest

from graphkit import Checkpoint
from graphkit.saver_kit import Codec
from savers.log import Log, MemoryLogBytes, ThreadIdentity, digest_thread


def new_log(medium=None, *, key_ring=None, serializer=None, compression=None, namespace=""):
    """Return a log of thread "t", which nothing is known of yet."""
    is_opaque = serializer is not None
    identity = ThreadIdentity(("t", namespace), digest_thread("t"), key_ring, is_opaque=is_opaque)
    return Log(medium or MemoryLogBytes(), identity, Codec(), serializer, compression)


def open_again(log):
    """Return another log over the same bytes, open."""
    other = log.make_copy(MemoryLogBytes(data=log.frames.bytes.data))
    assert other.refresh()
    return other


def put(log, target=None, *, id=None, metadata=None, parent=None, **state):
    """Append a checkpoint; return its id."""
    new = Checkpoint(
        id=id, node_id="n", next_node_id="m", parent_id=parent, metadata=metadata or {}, state=state or {"n": 1}
    )
    log.writer.put(new, target)
    return new.id


@pytest.fixture
def log():
    return new_log()
