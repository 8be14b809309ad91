"""Logs over bytes in memory."""

import pytest

from graphkit import Checkpoint
from graphkit.saver_kit import Codec
from savers.log import Log, MemoryLogBytes, ThreadIdentity, digest_thread


def new_log(key_ring=None):
    """Return a log of thread "t", which nothing is known of yet."""
    identity = ThreadIdentity(("t", ""), digest_thread("t"), key_ring, is_opaque=False)
    return Log(MemoryLogBytes(), identity, Codec(), None, None)


def open_again(log):
    """Return another log over the same bytes, open."""
    other = log.make_copy(MemoryLogBytes(data=log.frames.bytes.data))
    assert other.refresh()
    return other


def put(log, target=None, *, id=None, **state):
    """Append a checkpoint; return its id."""
    new = Checkpoint(id=id, node_id="n", next_node_id="m", state=state)
    log.writer.put(new, target)
    return new.id


@pytest.fixture
def log():
    return new_log()
