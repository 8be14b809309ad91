"""`list` returns what reading every checkpoint one by one would: the plain listing below."""

import itertools
import os
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import merge
from pathlib import Path
from uuid import UUID

import pytest

from graphkit import Checkpoint, CheckpointCorruptionError, RunnableConfig
from graphkit.errors import CheckpointFormatError
from savers import MemorySaver
from savers.langgraph import CheckpointSaver
from savers.langgraph.histories import LogHistories
from tests.integrations.langgraph_stores import DATABASES, parametrize
from tests.support.langgraph import set_listed_directories
from tests.support.langgraph_checkpoints import Listening, again, id_of, put, thread, thread_of, values_of
from tests.support.logs import flip_in_file

MADE_BY = "graphkit:made_by"
START = datetime(2024, 1, 1, tzinfo=UTC)


NUMBERS = itertools.count()


def make_id(created):
    """An id that begins with the time: mostly a UUID, as LangGraph's are."""
    number = next(NUMBERS)
    made = UUID(int=round(created.timestamp() * 1_000_000) << 70 | number)
    return str(made) if number % 5 else f"{made} no UUID"


def put_at(saver, config, created, id=None, metadata=None, **values):
    """Put a checkpoint that was made at a time."""
    return put(saver, config, metadata, id=id or make_id(created), ts=created.isoformat(), **values)


def infos_before(infos, before):
    if before is None:
        return infos
    for position, info in enumerate(infos):
        if info.id == before:
            return infos[position + 1 :]
    return [info for info in infos if info.id < before]


def plain(saver, config, filter=None, before=None, limit=None):
    """List by reading all infos, and then each checkpoint by its id."""
    store = saver.store
    names = (config or {}).get("configurable", {})
    threads = [names["thread_id"]] if config else store.threads()
    before = (before or {}).get("configurable", {}).get("checkpoint_id")
    selected = []
    ranks = {}

    for thread_id in threads:
        for namespace in store.namespaces(thread_id):
            wanted = names.get("checkpoint_ns", namespace)
            if namespace.startswith("#early:") or namespace != wanted:
                continue
            infos = store.history(RunnableConfig(thread_id, checkpoint_ns=namespace))
            # Among the histories, a checkpoint has the place of the lowest id from the newest one to it.
            lowest = itertools.accumulate((info.id for info in infos), min)
            ranks.update(zip(map(id, infos), lowest, strict=True))
            infos = [info for info in infos if info.metadata.get(MADE_BY)]
            infos = infos_before(infos, before)
            if wanted_id := names.get("checkpoint_id"):
                infos = [info for info in infos if info.id == wanted_id]
            selected.append(infos)

    merged = merge(*selected, key=lambda info: ranks[id(info)], reverse=True)
    matching = [info for info in merged if {**info.metadata, **(filter or {})} == info.metadata]
    found = (saver.get_tuple(thread(info.thread_id, info.checkpoint_ns, info.id)) for info in matching[:limit])
    return [checkpoint for checkpoint in found if checkpoint is not None]


def fill(saver, seed, threads=("t", "A thread/with: another name", "u"), count=40):
    """Put checkpoints with every kind of write, while the clock goes back and on."""
    dice = random.Random(seed)
    histories = [*itertools.product(threads, ("", "sub", "sub|x:y"))]
    latest = {}
    messages = defaultdict(list)
    puts = []
    clock = START
    for step in range(count):
        history = dice.choice(histories)
        clock += timedelta(seconds=dice.choice((1, 1, 5, 0, -7, -60)))
        messages[history].append("m" * dice.randrange(300))
        values = {"messages": [*messages[history]], "n": step}
        metadata = {"source": "loop", "step": step % 4, "parents": {}, "list": [step % 3]}
        config = latest.get(history, thread(*history))
        new_id = make_id(clock)
        if dice.random() < 0.15 and history in latest:
            new_id = id_of(config)

        if dice.random() < 0.3:
            own = thread(*history, checkpoint_id=new_id)
            saver.put_writes(own, [("n", step), ("early", [1])], "task", "path")

        stored = put_at(saver, config, clock, new_id, metadata, **values)
        puts.append(stored)
        latest[history] = stored
        if dice.random() < 0.3:
            saver.put_writes(stored, [("n", "late"), ("__error__", "x")], f"task{step}")

        if dice.random() < 0.2:
            saver.put_writes(dice.choice([*latest.values()]), [("later", step)], f"to{step}")

    saver.store.put("graphkit's own", Checkpoint(node_id="a", next_node_id=None, state={"a": 1}))
    return puts


WHOLE_THREAD = {"configurable": {"thread_id": "t"}}
FILTERS = ({}, {"step": 2}, {"list": [1], "source": "loop"}, {"step": "none"})


@pytest.mark.sweep(1, of="seed", in_turn=True)
@pytest.mark.parametrize("seed", range(2))
@parametrize("file", *DATABASES, "ListingSaver")
def test_every_combination_of_arguments(opener, seed):
    saver = opener.new()
    warm = opener.reopen(saver)
    count = 40 if opener.kind == "file" else 20
    puts = fill(saver, seed, count=count)
    elsewhere = thread(checkpoint_id=make_id(START + timedelta(seconds=20)))
    configs = (None, WHOLE_THREAD, thread("u", "sub"), thread("absent"), puts[7])
    befores = (None, puts[count // 2], puts[0], elsewhere)

    for config, wanted, before in itertools.product(configs, FILTERS, befores):
        query = {"filter": wanted, "before": before}
        expected = plain(warm, config, **query)
        for limit in (None, 0, 3, 1 << 80):
            assert list(warm.list(config, **query, limit=limit)) == expected[:limit]
        if before is None:
            assert list(opener.reopen(saver).list(config, **query, limit=3)) == expected[:3]


@pytest.mark.parametrize("limit", [-1, 1.5, "2"])
def test_a_limit_that_is_not_a_number_of_results_is_refused(saver, limit):
    with pytest.raises(ValueError, match="limit must be a whole number"):
        next(saver.list(None, limit=limit))


@pytest.mark.sweep(1, of="seed", in_turn=True)
@pytest.mark.parametrize("seed", range(2))
@parametrize("file", *DATABASES)
def test_what_other_objects_have_changed_since_is_seen(opener, seed):
    """By a listing of the newest, and by the id of a checkpoint."""
    saver = opener.new()
    is_file = opener.kind == "file"
    randomness = random.Random(seed)
    ids = fill(saver, seed, threads=[f"t{number}" for number in range(8)], count=60)
    reader = opener.reopen(saver)
    for step in range(40 if is_file else 12):
        thread_id = f"t{randomness.randrange(9)}"
        made = START + timedelta(seconds=randomness.choice((-5000, 0, 60, 5000)), microseconds=step)
        match randomness.randrange(8):
            case 0:
                saver.delete_thread(thread_id)
            case 1:
                saver.prune([thread_id])
            case 2:
                saver.store.release(RunnableConfig(thread_id))
            case 3 if is_file and path_of(saver, thread_id).exists():
                time = randomness.randrange(2**31)
                os.utime(path_of(saver, thread_id), (time, time))
            case _:
                put_at(saver, thread(thread_id, randomness.choice(("", "sub"))), made, n=step)
        query = {
            "limit": randomness.choice((1, 3, 20)),
            "before": randomness.choice((None, None, ids[step])),
            "filter": randomness.choice(FILTERS),
        }
        fresh = opener.reopen(saver)
        assert list(reader.list(None, **query)) == plain(fresh, None, **query)

        for config in randomness.sample(ids, 3):
            history = fresh.list(history_of(config))
            expected = next((saved for saved in history if saved.config == config), None)
            assert reader.get_tuple(config) == opener.reopen(saver).get_tuple(config) == expected


def history_of(config):
    """Return the config of the history of a checkpoint."""
    names = config["configurable"]
    return thread(names["thread_id"], names["checkpoint_ns"])


def before_each_history(monkeypatch, call):
    """Call a function with each history that a listing selects from, before it does."""
    select = LogHistories.select

    def call_and_select(histories, history, *rest):
        call(history)
        return select(histories, history, *rest)

    monkeypatch.setattr(LogHistories, "select", call_and_select)


def test_a_directory_that_became_a_link_since_the_threads_were_listed(saver, monkeypatch):
    put(saver, thread(), n=1)
    directory = path_of(saver, "t").parent
    moved = directory.rename(directory.parent.parent / "moved")
    directory.symlink_to(moved)
    set_listed_directories(monkeypatch, [directory.name])
    for limit in (None, 1):
        with pytest.raises(CheckpointFormatError, match="symbolic link"):
            list(again(saver).list(None, limit=limit))


def write_to_each(saver, ids):
    for config in ids:
        saver.put_writes(config, [("n", "meanwhile")], "other")


def replace_each(saver, ids):
    for config in ids:
        put_at(saver, history_of(config), START, id_of(config), n="new")


def remove_threads(saver, _):
    saver.delete_thread("u")
    saver.delete_thread("t")


def begin_again(saver, ids):
    saver.delete_thread("t")
    put_at(saver, thread("t"), START, n=1)
    put_at(saver, thread("t"), START, id_of(ids[3]), n="same id")


CHANGES = {
    "put": lambda saver, ids: put_at(saver, ids[-1], START, n=1),
    "writes": write_to_each,
    "replace": replace_each,
    "remove": remove_threads,
    "begin again": begin_again,
    "prune": lambda saver, _: saver.prune(["t", "u"]),
    "release": lambda saver, _: saver.store.release(RunnableConfig("t")),
    "compact": lambda saver, _: saver.store.compact("t"),
}


@pytest.mark.sweep(2, of=("config", "limit"), in_turn=True)
@pytest.mark.parametrize("changing", CHANGES)
@pytest.mark.parametrize("config", [None, WHOLE_THREAD, thread("u")], ids=str)
@pytest.mark.parametrize("limit", [None, 6])
def test_what_changes_while_the_iterator_waits(saver, changing, config, limit):
    ids = fill(saver, 11)
    first, second, *rest = plain(again(saver), config, None, None, limit)
    listing = again(saver).list(config, limit=limit)

    assert next(listing) == first
    assert next(listing) == second

    CHANGES[changing](again(saver), ids)
    left = map(again(saver).get_tuple, (listed.config for listed in rest))

    assert [*listing] == [found for found in left if found]


@pytest.mark.parametrize(
    "change", [lambda saver: put(saver, thread(), {"step": 0}, n=40), lambda saver: saver.delete_for_runs(["39", "37"])]
)
def test_a_history_without_a_log_that_changes_between_two_reads(change, monkeypatch):
    saver = CheckpointSaver(MemorySaver())
    config = thread()
    for number in range(40):
        config = put(saver, config, {"step": number % 2, "run_id": str(number)}, n=number)
    recent = saver.store.recent

    def read_and_change(*args, **options):
        infos = recent(*args, **options)
        monkeypatch.setattr(saver.store, "recent", recent)
        change(saver)
        return infos

    monkeypatch.setattr(saver.store, "recent", read_and_change)
    found = [values_of(one)["n"] for one in saver.list(thread(), limit=15, filter={"step": 0})]
    assert found == [*range(38, 9, -2)]


def path_of(saver, thread_id, ns=""):
    return Path(saver.store._store.locate(thread_id, ns).live_log)


@pytest.mark.parametrize("config", [None, WHOLE_THREAD], ids=str)
def test_a_damaged_thread_is_an_error(saver, config):
    fill(saver, 1)
    path = path_of(saver, "t")
    flip_in_file(path, path.stat().st_size // 2, 0x40)
    with pytest.raises(CheckpointCorruptionError):
        list(again(saver).list(config))
    assert list(again(saver).list(thread("u"))) == plain(again(saver), thread("u"))


def test_a_torn_end_an_unfinished_delete_and_an_incomplete_log_are_as_if_they_were_not_there(saver):
    fill(saver, 2)
    os.truncate(path_of(saver, "t"), path_of(saver, "t").stat().st_size - 3)
    path_of(saver, "u").write_bytes(bytes(100))  # unfinished
    path_of(saver, "t", "sub").write_bytes(b"")  # incomplete
    for config, limit in itertools.product((None, thread("t")), (None, 4)):
        listed = again(saver).list(config, limit=limit)
        assert [*listed] == plain(again(saver), config, limit=limit)


def test_only_the_values_of_checkpoints_that_a_filter_accepts_are_restored(saver):
    for number, step in itertools.product(range(6), range(3)):
        put(saver, thread(f"t{number}"), {"step": step, "user": str(number % 3)}, n=[number, step])
    restored = []
    reader = again(saver, serde=Listening(lambda: restored.append(1)))
    found = reader.list(None, filter={"user": "1", "step": 2})
    assert [values_of(each) for each in found] == [{"n": [4, 2]}, {"n": [1, 2]}]
    assert len(restored) == 4, "of each, the value of the channel and the other fields"


# With a limit, few histories of a whole store are looked at


def put_one(saver, thread_id, parent=None, id=None, n=0):
    """Put a checkpoint; return its id."""
    metadata = {"source": "loop", "step": n, "group": n % 5, "list": [n % 3]}
    return id_of(put(saver, thread(thread_id, checkpoint_id=parent), metadata, id=id, n=n))


def list_selected_from(saver, monkeypatch, **query):
    """The threads of the histories that a listing looks at."""
    threads = []
    with monkeypatch.context() as patch:
        before_each_history(patch, lambda history: threads.append(history.thread))
        list(saver.list(None, **query))
    return threads


@parametrize("file", *DATABASES)
def test_few_histories_are_looked_at(opener, monkeypatch):
    saver = opener.new()

    for number in range(60):
        first = put_one(saver, f"thread {number}")
        put_one(saver, f"thread {number}", parent=first, n=1)

    newest = [f"thread {number}" for number in range(59, -1, -1)]
    select = partial(list_selected_from, saver, monkeypatch)
    assert select(limit=3) == newest[:2]
    assert select(limit=30) == newest[:15]
    assert select(limit=3, filter={"source": "loop"}) == newest[:2]
    assert select(limit=0) == []


@parametrize(*DATABASES)
def test_a_filter_leaves_histories_out_by_the_index(opener, monkeypatch):
    saver = opener.new()

    for number in range(90):
        put_one(saver, f"thread {number}", n=number % 10)

    for reader in (saver, opener.reopen(saver)):
        select = partial(list_selected_from, reader, monkeypatch)
        for wanted, count in (({"step": 4}, 9), ({"step": 4, "group": 4}, 9), ({"step": 4, "group": 1}, 0)):
            all_selected = select(filter=wanted)
            few_selected = select(filter=wanted, limit=3)
            assert len(all_selected) == count
            assert len(few_selected) == min(count, 3)
    # Each may have such metadata, and few do: then all are looked at.
    assert len(list(saver.list(None, limit=20, filter={"list": [1]}))) == 20


@parametrize(*DATABASES)
def test_copies_and_a_checkpoint_that_is_put_again_are_in_their_places(opener):
    saver = opener.new()
    first = put_one(saver, "the last one")
    for number in range(20):
        saver.copy_thread("the last one", f"copy {number:02}")
    put_one(saver, "the last one", parent=first, n=1)
    found = [thread_of(saved.config) for saved in saver.list(None, limit=2)]

    assert found == ["the last one", "copy 00"]

    put_one(saver, "the last one", id=first)
    put_one(saver, "copy 05")
    for wanted in ({}, {"group": 3}, {"step": 7}, {"missing": None}):
        whole = list(saver.list(None, filter=wanted))
        for limit in (0, 1, 3, 16, 17, 40, 1 << 70):
            assert list(saver.list(None, filter=wanted, limit=limit)) == whole[:limit], (wanted, limit)


@parametrize("file", *DATABASES)
def test_what_another_process_changes_after_the_histories_were_found_is_listed_in_its_place(opener, monkeypatch):
    saver = opener.new()
    for number in range(30):
        put_one(saver, f"thread {number}")
    other = opener.reopen(saver)
    changes = iter(["once"])

    def change(_):
        for _ in changes:
            other.delete_thread("thread 28")
            other.prune(["thread 27"])
            put_one(other, "thread 26", n=1)

    before_each_history(monkeypatch, change)
    found = [thread_of(saved.config) for saved in opener.reopen(saver).list(None, limit=5)]
    assert found == [f"thread {number}" for number in (26, 29, 27, 26, 25)]
