"""Past states are the same whether the records of their keyframe are decoded anew or kept."""

import random

import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
from tests.support.logs import keep_no_records

THREAD = RunnableConfig("t")


def name(checkpoint_id):
    return THREAD.replace(checkpoint_id=checkpoint_id)


def fill(saver, randomness, count, state, ids):
    """Put checkpoints whose values grow, shrink, slide, are replaced, go away and come back."""
    for _ in range(count):
        state = dict(state)
        state["log"] = [*state.get("log", ()), randomness.randbytes(randomness.randrange(200)).hex()]
        state["window"] = [*state.get("window", ()), randomness.random()][-20:]
        if randomness.random() < 0.1:
            state["log"] = state["log"][: randomness.randrange(len(state["log"]) + 1)]
        if randomness.random() < 0.1:
            state["text"] = "t" * randomness.randrange(3000)
        if randomness.random() < 0.05:
            state.pop("window")
        if randomness.random() < 0.05:
            state["large"] = randomness.randbytes(60_000).hex() * 2
        new = Checkpoint(node_id="n", next_node_id="m", state=state)
        target = THREAD
        if ids and randomness.random() < 0.1:
            target = name(ids.pop(randomness.randrange(len(ids))))
        saver.put(target, new)
        ids.append(new.id)
    return state


@pytest.fixture
def plain(monkeypatch):
    """A function that reads a state with a saver that keeps nothing."""

    def read(directory, checkpoint_id):
        with monkeypatch.context() as patch:
            keep_no_records(patch)
            return FileSystemSaver(directory).get(name(checkpoint_id)).state

    return read


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_and_while_the_log_grows(seed, tmp_path, plain):
    randomness = random.Random(seed)
    ids = []
    writer = FileSystemSaver(tmp_path, fsync="never")
    reader = FileSystemSaver(tmp_path, fsync="never")
    state = fill(writer, randomness, 120, {}, ids)
    for round_number in range(3):
        order = {0: list(reversed(ids)), 1: list(ids), 2: randomness.sample(ids, len(ids))}[round_number]
        for checkpoint_id in order[:60]:
            expected = plain(tmp_path, checkpoint_id)
            assert reader.get(name(checkpoint_id)).state == expected
            assert list(writer.get(name(checkpoint_id)).state.items()) == list(expected.items())
        state = fill(writer, randomness, 10, state, ids)


def grow(saver, count, make_item):
    """Put checkpoints of a list that grows by an item each time; return their ids."""
    items = []
    ids = []
    for number in range(count):
        items = [*items, make_item(number)]
        new = Checkpoint(node_id="n", next_node_id="m", state={"items": items, "number": number})
        saver.put(THREAD, new)
        ids.append(new.id)
    return ids


def test_the_states_of_a_listing_share_the_items_of_a_growing_list(tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never")
    grow(saver, 40, lambda number: {"id": number, "text": "x" * 50})
    listed = FileSystemSaver(tmp_path, fsync="never").list(THREAD)
    newest = listed[0].state["items"]
    for number, checkpoint in enumerate(listed[:30]):
        items = checkpoint.state["items"]
        assert len(items) == 40 - number
        assert type(items) is type(newest)
        assert items == newest[: 40 - number]
        assert items[3] is newest[3]
        assert items.kind == newest.kind


@pytest.mark.parametrize(
    "make_item",
    [
        lambda number: (number, "x" * 50),
        lambda number: {number, "y" * 40},
        lambda number: b"z" * 50,
        lambda number: [[number] * 9],
    ],
    ids=["tuples", "sets", "bytes", "lists"],
)
def test_items_of_any_type_are_right_in_past_states(tmp_path, make_item, plain):
    ids = grow(FileSystemSaver(tmp_path, fsync="never"), 30, make_item)
    reader = FileSystemSaver(tmp_path, fsync="never")
    for checkpoint_id in [*reversed(ids), *ids]:
        assert reader.get(name(checkpoint_id)).state == plain(tmp_path, checkpoint_id)
