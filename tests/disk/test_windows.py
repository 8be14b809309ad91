"""Lists that drop their first elements and grow at the end cost what is new, and are read back exactly (DROP)."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from graphkit import Checkpoint, RunnableConfig
from savers import Compression, FileSystemSaver
from tests.support.checkpoints import list_states
from tests.support.logs import flip_in_file, locate_log, read_checkpoints, read_records
from tests.support.sweeps import examples

CONFIG = RunnableConfig("t")
PLAIN = {"compression": None}
PACKED = {"compression": Compression(threshold=400)}


def made(number, **state):
    return Checkpoint(id=f"c{number}", node_id="a", next_node_id="b", state=state, metadata={"step": number})


def open_saver(root, **options):
    return FileSystemSaver(root, **{"fsync": "never", **PLAIN, **options})


def message(number):
    return {"role": "user", "content": random.Random(number).randbytes(150).hex()}


NEW = 350
"""Bytes of a message, packed."""
OVER = 160
"""Bytes of a record and its op beside them, at most."""


def growths(root, states, fresh):
    """What each put adds to the log, by type of record; with a fresh saver for each put, or one for all."""
    saver = open_saver(root)
    for number, state in enumerate(states):
        saver.put(CONFIG, made(number, **state))
        if fresh:
            saver.close()
            saver = open_saver(root)
    saver.close()
    return [(record.size, record.is_keyframe) for record in read_checkpoints(locate_log(root))]


@pytest.mark.parametrize("fresh", [False, True], ids=["one saver", "fresh savers"])
@pytest.mark.parametrize("kept", [0, 1], ids=["all move on", "a first one stays"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_window_costs_what_enters_it(tmp_path, fresh, kept, steps):
    system = {"role": "system", "content": "s" * 300}
    states = []
    for first in range(0, 25 * steps, steps):
        messages = [message(number) for number in range(first, first + 40)]
        if kept:
            messages.insert(0, system)
        states.append({"window": messages})
    sizes = growths(tmp_path, states, fresh)[1:]
    changes = [size for size, is_key in sizes if not is_key]
    assert len(changes) > 15
    cost = steps * NEW
    assert max(changes) < cost + OVER
    # A keyframe names the pieces, and costs what it names.
    keyframes = [size for size, is_key in sizes if is_key]
    assert max(keyframes) < cost + 1200
    with open_saver(tmp_path) as saver:
        stored = list_states(saver, CONFIG)
        assert stored[::-1] == states
        assert saver.verify().ok


# Any edit, against a model


ELEMENTS = st.one_of(
    st.integers(-5, 300),
    st.text("ab", max_size=3),
    st.just("x" * 90),
    st.just(["y" * 40, 1]),
    st.binary(min_size=70, max_size=90),
)
EDITS = st.one_of(
    st.tuples(st.just("slide"), st.integers(0, 12), st.lists(ELEMENTS, max_size=6)),
    st.tuples(st.just("slide behind the first"), st.integers(0, 12), st.lists(ELEMENTS, max_size=6)),
    st.tuples(st.just("insert"), st.integers(0, 12), st.lists(ELEMENTS, max_size=3)),
    st.tuples(st.just("remove"), st.integers(0, 12), st.just([])),
    st.tuples(st.just("repeat"), st.integers(0, 2), st.just([])),
    st.tuples(st.just("set"), st.just(0), st.lists(ELEMENTS, max_size=30)),
)


def edited(items, edit):
    kind, at, new = edit
    if kind == "slide":
        return [*items[at:], *new]
    if kind == "slide behind the first":
        return [*items[:1], *items[1 + at :], *new]
    if kind == "insert":
        return [*items[:at], *new, *items[at:]]
    if kind == "remove":
        return items[:at] + items[at + 1 :]
    if kind == "repeat":
        return items * at
    return new


CARE = st.sampled_from(["none", "prune", "remove", "copy", "compact", "repair", "reopen"])


@settings(max_examples=examples(100))
@given(
    start=st.lists(ELEMENTS, max_size=40),
    edits=st.lists(st.tuples(EDITS, EDITS, CARE), min_size=1, max_size=12),
    options=st.sampled_from([PLAIN, PACKED]),
)
def test_random_edits_are_read_back_through_puts_and_rewrites(tmp_path_factory, start, edits, options):
    root = tmp_path_factory.mktemp("window")
    saver = open_saver(root, **options)
    items = start
    others = ["first", *start]
    model = {}

    def expect(one, thread="t"):
        found = {each.id: dict(each.state) for each in reversed(one.list(RunnableConfig(thread)))}
        assert found == model
        assert list(found) == list(model)
        assert one.verify(thread).ok, one.verify(thread).problems

    for number, (edit, other, care) in enumerate(edits):
        items = edited(items, edit)[:400]
        others = edited(others, other)[:400]
        state = {"window": items, "other": others, "n": number}
        saver.put(CONFIG, made(number, **state))
        model[f"c{number}"] = state
        if care == "prune" and len(model) > 3:
            saver.prune("t", keep_last=3)
            model = dict(list(model.items())[-3:])
        elif care == "remove" and len(model) > 2:
            gone = list(model)[len(model) // 2]
            saver.remove(CONFIG, [gone])
            del model[gone]
        elif care == "copy":
            saver.copy("t", f"u{number}")
            expect(saver, f"u{number}")
        elif care == "compact":
            saver.compact("t")
        elif care == "repair":
            path = locate_log(root)
            last = read_records(path)[-1]
            flip_in_file(path, (last.offset + last.end) // 2)
            saver.close()
            saver = open_saver(root, **options)
            assert saver.repair("t").lost == ()
        elif care == "reopen":
            saver.close()
            saver = open_saver(root, **options)
        expect(saver)
    with open_saver(root, **options) as fresh:
        expect(fresh)
    saver.close()
