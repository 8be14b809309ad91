"""The faults that LangGraph's conformance suite does not see in a checkpointer."""

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from tests.support.langgraph_checkpoints import put, thread, values_of


class Counting(JsonPlusSerializer):
    """LangGraph's serializer, and what it was asked to store."""

    def __init__(self):
        super().__init__(allowed_msgpack_modules=None)
        self.stored = []

    def dumps_typed(self, obj):
        self.stored.append(obj)
        return super().dumps_typed(obj)


def test_versions_of_two_branches_differ(saver):
    first = saver.get_next_version(None, None)
    one, other = saver.get_next_version(first, None), saver.get_next_version(first, None)
    assert first < one != other > first
    assert max(one, other) < saver.get_next_version(min(one, other), None)
    assert saver.get_next_version(41, None) > "00000000000000000000000000000041"


def test_what_a_checkpoint_has_beside_its_channels_stays(saver):
    checkpoint = empty_checkpoint()
    checkpoint.update(updated_channels=["a", "b"], versions_seen={"n": {"a": "1"}}, newer="field")
    given = dict(checkpoint)
    config = saver.put(thread(), checkpoint, {}, {})
    assert saver.get_tuple(config).checkpoint == given


def test_only_what_changed_is_stored(saver):
    saver.serde = Counting()
    big = ["x" * 1000] * 100
    config = put(saver, big=big, n=0)
    saver.serde.stored.clear()
    before = saver.store.size("t")
    for n in range(1, 11):
        old = saver.get_tuple(config).checkpoint["channel_versions"]
        next_version = saver.get_next_version(old["n"], None)
        new = {"n": next_version}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"big": big, "n": n}
        checkpoint["channel_versions"] = {**old, **new}
        metadata = {"source": "loop", "step": n}
        config = saver.put(config, checkpoint, metadata, new)
    assert big not in saver.serde.stored
    assert saver.store.size("t") - before < 10_000
    assert values_of(saver.get_tuple(config)) == {"big": big, "n": 10}
