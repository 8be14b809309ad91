from datetime import datetime, timedelta

import pytest

from graphkit.testing import made
from savers import MemorySaver, VersionedMemorySaver
from tests.support.graphs import CONFIG, log_node, make_chain


def test_a_stored_checkpoint_does_not_hold_its_parents_state():
    saver = MemorySaver()
    make_chain(a=log_node("a"), b=log_node("b")).compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert [stored.checkpoint.changes for stored in saver._threads["t"].live[""].checkpoints] == [None] * 3


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keep_tags", "release"),  # would be seven tags of one letter each
        ("keep_tags", b"release"),
        ("keep_tags", [1]),
        ("keep_last", True),
        ("keep_last", "1"),
        ("keep_last", 1.5),
        ("older_than", datetime(2030, 1, 1)),  # noqa: DTZ001
        ("older_than", timedelta(days=30)),
    ],
)
def test_prune_refuses_options_of_another_type_and_removes_nothing(name, value):
    saver = MemorySaver()
    saver.put("t", made({}))
    saver.add_tags("t", "release")
    saver.put("t", made({}))
    options = {"keep_last": 1, name: value}
    with pytest.raises(ValueError, match=name):
        saver.prune("t", **options)
    assert len(saver.list("t")) == 2
