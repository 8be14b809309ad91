"""The ten faults that LangGraph's conformance suite does not see: a check for each, and the saver it fails on.

Each check passes on the saver as it is and fails on one that is altered in that way.
"""

import itertools

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command

from graphkit import CheckpointNotFoundError
from savers.langgraph import FileSystemCheckpointSaver, encoding
from tests.integrations.langgraph_graphs import three_questions
from tests.support.langgraph_checkpoints import id_of, put, thread, thread_of


class Counting(JsonPlusSerializer):
    """LangGraph's serializer, and what it was asked to store."""

    def __init__(self):
        super().__init__(allowed_msgpack_modules=None)
        self.stored = []

    def dumps_typed(self, obj):
        self.stored.append(obj)
        return super().dumps_typed(obj)


def values_of(saver, config):
    return [value for _, _, value in saver.get_tuple(config).pending_writes]


# The checks


def check_writes_come_in_order(saver):
    config = put(saver, a=1)
    order = itertools.permutations([("", "z"), ("~a", "b"), ("~b", "a")])
    for number, tasks in enumerate(order):
        config = put(saver, config, a=number)
        for path, task in tasks:
            saver.put_writes(config, [("a", path + task + "0"), ("a", path + task + "1")], task, path)
        assert values_of(saver, config) == ["z0", "z1", "~ab0", "~ab1", "~ba0", "~ba1"]


def check_special_writes_are_replaced(saver):
    config = put(saver, a=1)
    for channel in ("__error__", "__interrupt__", "__resume__", "__scheduled__"):
        saver.put_writes(config, [(channel, "old")], "task")
        saver.put_writes(config, [(channel, "new")], "task")
    assert values_of(saver, config) == ["new"] * 4


def check_every_question_gets_its_own_answer(saver):
    graph = three_questions().compile(checkpointer=saver)
    graph.invoke({"answers": []}, thread())
    for answer in "abc":
        final = graph.invoke(Command(resume=answer), thread())
    assert final == {"answers": ["a", "b", "c"]}


def check_special_writes_have_places_of_their_own(saver):
    config = put(saver, a=1)
    saver.put_writes(config, [("a", "result")], "task")
    saver.put_writes(config, [("__error__", "wrong")], "task")
    assert values_of(saver, config) == ["wrong", "result"]


def check_versions_of_two_branches_differ(saver):
    first = saver.get_next_version(None, None)
    one, other = saver.get_next_version(first, None), saver.get_next_version(first, None)
    assert first < one != other > first
    assert max(one, other) < saver.get_next_version(min(one, other), None)
    assert saver.get_next_version(41, None) > "00000000000000000000000000000041"


def check_writes_may_come_before_their_checkpoint(saver):
    first = put(saver, a=1)
    checkpoint = empty_checkpoint()
    here = thread(checkpoint_id=checkpoint["id"])
    saver.put_writes(here, [("a", "early"), ("a", "too")], "task", "~path")
    saver.put_writes(here, [("__interrupt__", "old")], "task")
    saver.put_writes(here, [("__interrupt__", "new")], "task")
    assert saver.get_tuple(here) is None
    assert saver.get_tuple(thread()).config == first
    assert len(list(saver.list(None))) == 1
    saver.put(first, checkpoint, {"source": "loop", "step": 1}, {})
    saver.put_writes(here, [("a", "late")], "task", "~path")
    assert values_of(saver, here) == ["new", "early", "too"]
    assert saver.get_tuple(here).parent_config == first


def check_of_ordinary_writes_the_first_stays(saver):
    config = put(saver, a=1)
    saver.put_writes(config, [("a", "first")], "task")
    saver.put_writes(config, [("a", "again"), ("b", "more")], "task")
    assert values_of(saver, config) == ["first", "more"]


def check_a_copy_has_its_parents(saver):
    configs = [put(saver, a=0)]
    for n in range(1, 4):
        configs.append(put(saver, configs[-1], a=n))
    saver.put_writes(configs[1], [("delta", "d")], "task")
    saver.copy_thread("t", "copy")
    ids = [id_of(config) for config in reversed(configs)]
    found = list(saver.list({"configurable": {"thread_id": "copy"}}))
    assert [id_of(one.config) for one in found] == ids
    parents = [one.parent_config and id_of(one.parent_config) for one in found]
    assert parents == [*ids[1:], None]
    history = saver.get_delta_channel_history(config=thread("copy"), channels=["delta"])
    assert history == {"delta": {"writes": [("task", "delta", "d")]}}


def check_all_threads_can_be_listed(saver):
    for n in range(5):
        put(saver, thread(f"t{n}"), a=n)
    found = [thread_of(one.config) for one in saver.list(None)]
    assert found == ["t4", "t3", "t2", "t1", "t0"]


def check_what_a_checkpoint_has_beside_its_channels_stays(saver):
    checkpoint = empty_checkpoint()
    checkpoint.update(updated_channels=["a", "b"], versions_seen={"n": {"a": "1"}}, newer="field")
    config = saver.put(thread(), checkpoint, {}, {})
    assert saver.get_tuple(config).checkpoint == {key: value for key, value in checkpoint.items()}  # noqa: C416


def check_only_what_changed_is_stored(saver):
    saver.serde = Counting()
    big = ["x" * 1000] * 100
    config = put(saver, big=big, n=0)
    saver.serde.stored.clear()
    before = saver.store.size("t")
    for n in range(1, 11):
        checkpoint = empty_checkpoint()
        versions = saver.get_tuple(config).checkpoint["channel_versions"]
        checkpoint["channel_values"] = {"big": big, "n": n}
        checkpoint["channel_versions"] = {**versions, "n": saver.get_next_version(versions["n"], None)}
        new = {"n": checkpoint["channel_versions"]["n"]}
        config = saver.put(config, checkpoint, {"source": "loop", "step": n}, new)
    assert big not in saver.serde.stored
    assert saver.store.size("t") - before < 10_000
    assert saver.get_tuple(config).checkpoint["channel_values"] == {"big": big, "n": 10}


# The faults


class Disorder(FileSystemCheckpointSaver):
    def get_tuple(self, config):
        found = super().get_tuple(config)
        return found and found._replace(pending_writes=found.pending_writes[::-1])


class WholeNumbers(FileSystemCheckpointSaver):
    def get_next_version(self, current, channel=None):
        return f"{int(current or 0) + 1:032}"


class WithoutParents(FileSystemCheckpointSaver):
    def copy_thread(self, source_thread_id, target_thread_id):
        for found in reversed(list(self.list({"configurable": {"thread_id": source_thread_id}}))):
            versions = found.checkpoint["channel_versions"]
            config = self.put(thread(target_thread_id), found.checkpoint, found.metadata, versions)
            for task, channel, value in found.pending_writes:
                self.put_writes(config, [(channel, value)], task)


class Unlisted(FileSystemCheckpointSaver):
    def list(self, config, **options):
        return super().list(dict(config), **options)


class Forgetful(FileSystemCheckpointSaver):
    def put(self, config, checkpoint, metadata, new_versions):
        return super().put(config, {**checkpoint, "updated_channels": None}, metadata, new_versions)


class Everything(FileSystemCheckpointSaver):
    def put(self, config, checkpoint, metadata, new_versions):
        return super().put(config, checkpoint, metadata, checkpoint["channel_versions"])


class Refusing(FileSystemCheckpointSaver):
    def put_writes(self, config, writes, task_id, task_path=""):
        if self.get_tuple(config) is None:
            raise CheckpointNotFoundError("t")
        super().put_writes(config, writes, task_id, task_path)


class FirstStays(FileSystemCheckpointSaver):
    stays = True


class LastStays(FileSystemCheckpointSaver):
    stays = False


class NoPlaces(FileSystemCheckpointSaver):
    places = {}


CASES = [
    (check_writes_come_in_order, Disorder),
    (check_special_writes_are_replaced, FirstStays),
    (check_every_question_gets_its_own_answer, FirstStays),
    (check_special_writes_have_places_of_their_own, NoPlaces),
    (check_versions_of_two_branches_differ, WholeNumbers),
    (check_writes_may_come_before_their_checkpoint, Refusing),
    (check_of_ordinary_writes_the_first_stays, LastStays),
    (check_a_copy_has_its_parents, WithoutParents),
    (check_all_threads_can_be_listed, Unlisted),
    (check_what_a_checkpoint_has_beside_its_channels_stays, Forgetful),
    (check_only_what_changed_is_stored, Everything),
]


@pytest.mark.parametrize("check", [check for check, _ in CASES])
def test_the_saver_does_not_have_the_fault(check, tmp_path):
    check(FileSystemCheckpointSaver(tmp_path, fsync="never"))


@pytest.mark.parametrize(("check", "altered"), CASES, ids=[altered.__name__ for _, altered in CASES])
def test_the_check_sees_the_fault(check, altered, tmp_path, monkeypatch):
    if hasattr(altered, "stays"):
        monkeypatch.setattr(encoding, "is_ordinary", lambda _: altered.stays)
    if hasattr(altered, "places"):
        monkeypatch.setattr(encoding, "WRITES_IDX_MAP", altered.places)
    with pytest.raises((AssertionError, TypeError, CheckpointNotFoundError)):
        check(altered(tmp_path, fsync="never"))
