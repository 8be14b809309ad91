from graphkit import Channels
from graphkit.testing import made
from savers import MemorySaver, VersionedMemorySaver
from tests.support.graphs import CONFIG, make_chain
from tests.support.savers import PutRecorder

SCHEMA = {"list": Channels.appender_with_duplicate()}


def run_nodes(*updates):
    """Return the checkpoints that a run of nodes with these updates puts, the one at START left out."""
    saver = PutRecorder()
    nodes = {f"n{number}": lambda state, update=update: update for number, update in enumerate(updates)}
    make_chain(SCHEMA, **nodes).compile(checkpoint_saver=saver).invoke({}, CONFIG)
    return saver.puts[1:]


def test_a_stored_checkpoint_does_not_hold_its_parents_state():
    saver = MemorySaver()
    for checkpoint in run_nodes({"list": [1]}, {"list": [2]}):
        saver.put(None, checkpoint)
    assert all(stored.checkpoint.changes is None for stored in saver._threads["$default"].live[""].checkpoints)


def test_a_plain_checkpoint_is_handed_out_as_it_is():
    saver = MemorySaver()
    checkpoint = made({"list": [1]})
    saver.put(None, checkpoint)
    assert saver.get().state is checkpoint.state
    assert saver.list()[0] is saver.get()


def test_the_size_counts_versions():
    saver = VersionedMemorySaver()
    saver.put(None, made({"text": "x" * 1000}))
    live = saver.size()
    saver.release()
    assert saver.size() == saver.size("$default") == live > 1000
