"""A listing of a whole database with a limit looks at few histories, and shows what a whole listing shows first."""

import random
import uuid
from functools import partial

import pytest

pytest.importorskip("langgraph")

from savers.langgraph.histories import LogHistories
from tests.integrations.langgraph_stores import DATABASES, parametrize
from tests.support.langgraph_checkpoints import id_of, put, thread, thread_of

LIMITS = (0, 1, 3, 16, 17, 40, 1 << 70)
FILTERS = [{}, {"group": 3}, {"step": 7}, {"missing": None}]


def put_one(saver, thread_id, namespace="", parent=None, id=None, n=0):
    """Put a checkpoint; return its id."""
    metadata = {"source": "loop", "step": n, "group": n % 5, "list": [n % 3]}
    config = thread(thread_id, namespace, parent)
    return id_of(put(saver, config, metadata, id=id, n=n))


def fill(saver, threads, *, make_id=lambda _: None, seed=5):
    """Put checkpoints into threads in a chance order; return the ids of each history."""
    dice = random.Random(seed)
    ids = {}
    for n in range(4 * threads):
        owner = f"thread {dice.randrange(threads)}", dice.choice(["", "", "", "sub:1"])
        known = ids.setdefault(owner, [])
        known.append(put_one(saver, *owner, known[-1] if known else None, make_id(dice), n))
    return ids


def show(saver, **query):
    return [(found.config, found.checkpoint, found.pending_writes) for found in saver.list(None, **query)]


def check(saver):
    """Check that listings with limits are the beginnings of the whole one."""
    for wanted in FILTERS:
        whole = show(saver, filter=wanted)
        for limit in LIMITS:
            assert show(saver, filter=wanted, limit=limit) == whole[:limit], (wanted, limit)


def list_selected_from(saver, monkeypatch, **query):
    """The threads of the histories that a listing looks at."""
    threads = []
    select = LogHistories.select

    def note_and_select(histories, history, *rest):
        threads.append(history.thread)
        return select(histories, history, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(LogHistories, "select", note_and_select)
        show(saver, **query)
    return threads


def after_first_read(saver, monkeypatch, change):
    """Let another process change the database behind the first statement of a listing."""
    database = saver.store._database
    read = database.read

    def reading(*args):
        rows = read(*args)
        monkeypatch.setattr(database, "read", read)
        change()
        return rows

    monkeypatch.setattr(database, "read", reading)


@parametrize("file", *DATABASES)
def test_few_histories_are_looked_at(opener, monkeypatch):
    saver = opener.new()
    for number in range(60):
        first = put_one(saver, f"thread {number}")
        put_one(saver, f"thread {number}", parent=first, n=1)
    newest = [f"thread {number}" for number in range(59, -1, -1)]

    def select(**query):
        return list_selected_from(saver, monkeypatch, **query)

    assert select(limit=3) == newest[:2]
    assert select(limit=30) == newest[:15]
    assert select(limit=3, filter={"source": "loop"}) == newest[:2]
    assert select(limit=0) == []


MATCHING = [({"step": 4}, 9), ({"step": 4, "group": 4}, 9), ({"step": 4, "group": 1}, 0)]
"""Filters, and how many of 90 histories each finds."""


@parametrize(*DATABASES)
def test_a_filter_leaves_histories_out_by_the_index(opener, monkeypatch):
    saver = opener.new()
    for number in range(90):
        put_one(saver, f"thread {number}", n=number % 10)
    for reader in (saver, opener.reopen(saver)):
        select = partial(list_selected_from, reader, monkeypatch)
        for wanted, count in MATCHING:
            selected = select(filter=wanted)
            assert len(selected) == count
            first = select(limit=3, filter=wanted)
            assert len(first) == min(count, 3)
    # Each may have such metadata, and few do: then all are looked at.
    shown = show(saver, limit=20, filter={"list": [1]})
    assert len(shown) == 20


@parametrize(*DATABASES)
def test_other_ids_than_uuids(opener):
    """In the database their order is another one."""
    makers = {
        "random": lambda dice: str(uuid.UUID(int=dice.getrandbits(128))),
        "16 characters": lambda dice: f"{dice.getrandbits(64):016x}",
    }
    for make_id in makers.values():
        saver = opener.new()
        fill(saver, 30, make_id=make_id)
        check(saver)


@parametrize(*DATABASES)
def test_copies_that_are_not_looked_at_come_before_a_later_thread(opener):
    saver = opener.new()
    first = put_one(saver, "the last one")
    for number in range(20):
        saver.copy_thread("the last one", f"copy {number:02}")
    put_one(saver, "the last one", parent=first, n=1)
    found = [thread_of(config) for config, *_ in show(saver, limit=2)]
    assert found == ["the last one", "copy 00"]
    check(saver)


@parametrize(*DATABASES)
def test_a_history_that_changes_meanwhile(opener, monkeypatch):
    saver = opener.new()
    for number in range(30):
        put_one(saver, f"thread {number}")
    other = opener.reopen(saver)

    def change():
        other.delete_thread("thread 28")
        other.prune(["thread 27"])
        put_one(other, "thread 26", n=1)

    after_first_read(saver, monkeypatch, change)
    found = [thread_of(saved.config) for saved in saver.list(None, limit=5)]
    assert found == [f"thread {number}" for number in (26, 29, 27, 26, 25)]
