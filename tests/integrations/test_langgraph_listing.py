"""`list` returns what reading every checkpoint one by one would: the plain listing below."""

import gc
import itertools
import os
import random
import sys
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import islice
from pathlib import Path
from uuid import UUID

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from graphkit import Checkpoint, CheckpointCorruptionError, RunnableConfig
from graphkit.errors import CheckpointFormatError
from savers._filesystem import catalog, containment, history_views
from savers._log import packed_states, scanned_log
from savers.langgraph import FileSystemCheckpointSaver, listing, packed_checkpoints
from savers.langgraph.writes import Write

EARLY = "#early:"
MADE_BY = "graphkit:made_by"
START = datetime(2024, 1, 1, tzinfo=UTC)


def again(saver):
    """Another object on the same store, which has read nothing yet."""
    return FileSystemCheckpointSaver(saver.store.base_directory, fsync="never")


def thread(thread_id="t", ns="", **more):
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, **more}}


NUMBERS = itertools.count()


def make_id(created):
    """An id that begins with the time: mostly a UUID, as LangGraph's are."""
    number = next(NUMBERS)
    made = UUID(int=round(created.timestamp() * 1_000_000) << 70 | number)
    return str(made) if number % 5 else f"{made} no UUID"


def put(saver, config, created=None, id=None, metadata=None, **values):
    checkpoint = empty_checkpoint()
    checkpoint["id"] = id or (make_id(created) if created else str(uuid6()))
    checkpoint["ts"] = (created or datetime.now(UTC)).isoformat()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = {name: saver.get_next_version(None, None) for name in values}
    return saver.put(config, checkpoint, metadata or {"source": "loop", "step": 0}, checkpoint["channel_versions"])


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
            if namespace.startswith(EARLY) or names.get("checkpoint_ns") not in {None, namespace}:
                continue
            infos = store.history(RunnableConfig(thread_id, checkpoint_ns=namespace))
            # Among the histories, a checkpoint has the place of the lowest id from the newest one to it.
            lowest = itertools.accumulate((info.id for info in infos), min)
            ranks.update(zip(map(id, infos), lowest, strict=True))
            infos = [info for info in infos if info.metadata.get(MADE_BY)]
            infos = infos_before(infos, before)
            selected.append([info for info in infos if names.get("checkpoint_id") in {None, info.id}])
    merged = merge(*selected, key=lambda info: ranks[id(info)], reverse=True)
    wanted = (filter or {}).items()
    matching = (info for info in merged if all(info.metadata.get(key) == value for key, value in wanted))
    found = []
    for info in islice(matching, None if limit is None else min(limit, sys.maxsize)):
        one = saver.get_tuple(thread(info.thread_id, info.checkpoint_ns, checkpoint_id=info.id))
        if one is not None:
            found.append(one)
    return found


def fill(saver, seed, threads=("t", "A thread/with: another name", "u"), count=40):
    """Put checkpoints with every kind of write, while the clock goes back and on."""
    randomness = random.Random(seed)
    configs = [thread(thread_id, ns) for thread_id in threads for ns in ("", "sub", "sub|x:y")]
    last = {}
    messages = {}
    ids = []
    clock = START
    for step in range(count):
        number = randomness.randrange(len(configs))
        clock += timedelta(seconds=randomness.choice((1, 1, 5, 0, -7, -60)))
        messages.setdefault(number, []).append("m" * randomness.randrange(300))
        config = last.get(number, configs[number])
        values = {"messages": list(messages[number]), "n": step}
        replaced = None
        if randomness.random() < 0.15 and number in last:
            replaced = last[number]["configurable"]["checkpoint_id"]
        new_id = replaced or make_id(clock)
        names = configs[number]["configurable"]
        target = thread(names["thread_id"], names["checkpoint_ns"], checkpoint_id=new_id)
        if randomness.random() < 0.3:
            saver.put_writes(target, [("n", step), ("early", [1])], "task", "path")
        metadata = {"source": "loop", "step": step % 4, "parents": {}, "list": [step % 3]}
        last[number] = put(saver, config, clock, new_id, metadata, **values)
        if randomness.random() < 0.3:
            saver.put_writes(last[number], [("n", "late"), ("__error__", "x")], f"task{step}")
        if randomness.random() < 0.2:
            saver.put_writes(random.Random(step).choice(list(last.values())), [("later", step)], f"to{step}")
        ids.append(last[number])
    saver.store.put(RunnableConfig("graphkit's own"), Checkpoint(node_id="a", next_node_id=None, state={"a": 1}))
    return ids


@pytest.fixture
def saver(tmp_path):
    return FileSystemCheckpointSaver(tmp_path / "store", fsync="never")


FILTERS = ({}, {"step": 2}, {"list": [1], "source": "loop"}, {"step": "none"})


@pytest.mark.parametrize("seed", range(2))
def test_every_combination_of_arguments(saver, seed):
    ids = fill(saver, seed)
    elsewhere = thread(checkpoint_id=make_id(START + timedelta(seconds=20)))
    befores = (None, ids[-1], ids[len(ids) // 2], ids[0], elsewhere)
    configs = (None, {"configurable": {"thread_id": "t"}}, thread("t"), thread("u", "sub"), thread("absent"), ids[7])
    warm = again(saver)
    for config, wanted, before, limit in itertools.product(configs, FILTERS, befores, (None, 0, 1, 3, 20, 1 << 80)):
        expected = plain(warm, config, wanted, before, limit)
        assert list(warm.list(config, filter=wanted, before=before, limit=limit)) == expected
        if limit in {None, 3}:
            assert list(again(saver).list(config, filter=wanted, before=before, limit=limit)) == expected


@pytest.mark.parametrize("limit", [-1, 1.5, "2"])
def test_a_limit_that_is_not_a_number_of_results_is_refused(saver, limit):
    with pytest.raises(ValueError, match="limit must be a whole number"):
        next(saver.list(None, limit=limit))


def test_a_long_history_with_replaced_checkpoints(saver):
    ids = fill(saver, 5, threads=("t",), count=300)
    for config, limit in itertools.product((thread("t"), None), (None, 1, 15, 16, 17, 64, 65, 300)):
        expected = plain(saver, config, None, None, limit)
        assert list(saver.list(config, limit=limit)) == expected
        assert list(again(saver).list(config, limit=limit)) == expected
    for before in ids[::37]:
        expected = plain(saver, thread("t"), None, before, 5)
        assert list(again(saver).list(thread("t"), before=before, limit=5)) == expected


@pytest.mark.parametrize("seed", range(2))
def test_the_newest_of_all_threads_while_other_processes_change_them(saver, seed):
    randomness = random.Random(seed)
    ids = fill(saver, seed, threads=[f"t{number}" for number in range(8)], count=60)
    reader = again(saver)
    for step in range(40):
        thread_id = f"t{randomness.randrange(9)}"
        made = START + timedelta(seconds=randomness.choice((-5000, 0, 60, 5000)), microseconds=step)
        kind = randomness.randrange(8)
        if kind == 0:
            saver.delete_thread(thread_id)
        elif kind == 1:
            saver.prune([thread_id])
        elif kind == 2:
            saver.store.release(RunnableConfig(thread_id))
        elif kind == 3:
            path = path_of(saver, thread_id)
            if path.exists():
                os.utime(path, (randomness.randrange(2**31),) * 2)
        else:
            put(saver, thread(thread_id, randomness.choice(("", "sub"))), made, n=step)
        limit = randomness.choice((1, 3, 20))
        before = randomness.choice((None, None, ids[step]))
        wanted = randomness.choice(FILTERS)
        expected = plain(again(saver), None, wanted, before, limit)
        assert list(reader.list(None, filter=wanted, before=before, limit=limit)) == expected


@pytest.mark.parametrize("kept", [0, 4 << 20])
def test_only_the_logs_with_the_newest_checkpoints_are_read_again(saver, monkeypatch, kept):
    monkeypatch.setattr(listing, "_MAX_KEPT_BETWEEN", kept)
    for number in range(30):
        put(saver, thread(f"t{number}"), START + timedelta(seconds=number % 7), n=number)
    first = list(saver.list(None, limit=3))
    opened = []
    read_file = history_views.ScannedView._read_file
    monkeypatch.setattr(
        history_views.ScannedView,
        "_read_file",
        lambda view, **options: opened.append(view.thread_id) or read_file(view, **options),
    )
    assert list(saver.list(None, limit=3)) == first
    assert len(opened) == (0 if kept else 3)
    assert {*opened} <= {"t13", "t20", "t27", "t6"}


def test_a_new_object_reads_only_the_ends_of_the_other_logs(saver, monkeypatch):
    for number in range(30):
        config = put(saver, thread(f"t{number}", "sub" if number == 7 else ""), START + timedelta(seconds=number), n=0)
        saver.put_writes(config, [("n", 1)], "task")
    scanned = []
    monkeypatch.setattr(listing, "scan_log", lambda _, log, **__: scanned.append(log.thread_id))
    found = list(again(saver).list(None, limit=2))
    assert scanned == ["t29", "t28"]
    assert found == plain(saver, None, limit=2)


@pytest.mark.parametrize("links", [0, 2])
def test_namespaces_are_found_whether_the_file_system_counts_directories_or_not(saver, monkeypatch, links):
    monkeypatch.setattr(history_views, "_OWN_LINKS", links)
    listed = []
    listdir = containment.DirectoryGuard.listdir_unchecked
    monkeypatch.setattr(
        containment.DirectoryGuard, "listdir_unchecked", lambda io, path: listed.append(path) or listdir(io, path)
    )
    for number in range(5):
        put(saver, thread(f"t{number}"), n=number)
    assert len(list(again(saver).list(None))) == 5
    has_links = saver.store._store.io.stat(saver.store.base_directory).st_nlink == 5 + 1 + 2
    assert bool(listed) is (links == 0 or not has_links)
    reader = again(saver)
    for limit in (None, 9):
        assert list(reader.list(None, limit=limit)) == plain(saver, None, limit=limit)
    put(saver, thread("t3", "sub"), n=7)
    for limit in (None, 9):
        assert list(reader.list(None, limit=limit)) == plain(saver, None, limit=limit)
        assert len(list(again(saver).list(None, limit=limit))) == 6


def test_a_log_that_is_written_between_two_looks_at_it_is_in_its_place(saver, monkeypatch):
    for number in range(5):
        put(saver, thread(f"t{number}"), START + timedelta(seconds=number), n=number)
    reader = again(saver)
    list(reader.list(None, limit=2))
    other = again(saver)
    open_views = listing.KnownLogs.open_views
    changes = iter([START + timedelta(seconds=100)])

    def open_after_change(*args, **options):
        for made in changes:
            put(other, thread("t3"), made, n="new")
        return open_views(*args, **options)

    monkeypatch.setattr(listing.KnownLogs, "open_views", open_after_change)
    found = list(reader.list(None, limit=3))
    assert found == plain(again(saver), None, limit=3)


def test_a_directory_that_became_a_link_since_the_threads_were_listed(saver, monkeypatch):
    put(saver, thread(), n=1)
    directory = path_of(saver, "t").parent
    moved = directory.rename(directory.parent.parent / "moved")
    directory.symlink_to(moved)
    directories = catalog.ThreadDirectories([directory.name], set(), 1)
    monkeypatch.setattr(catalog, "find_directories", lambda _: directories)
    for limit in (None, 1):
        with pytest.raises(CheckpointFormatError, match="symbolic link"):
            list(again(saver).list(None, limit=limit))


CHANGES = {}


def change(function):
    CHANGES[function.__name__] = function
    return function


@change
def a_checkpoint_is_put(saver, ids):
    put(saver, ids[-1], START, n=1)


@change
def every_checkpoint_gets_a_write(saver, ids):
    for config in ids:
        saver.put_writes(config, [("n", "meanwhile")], "other")


@change
def every_checkpoint_is_replaced(saver, ids):
    for config in ids:
        names = config["configurable"]
        put(saver, thread(names["thread_id"], names["checkpoint_ns"]), START, names["checkpoint_id"], n="new")


@change
def threads_are_removed(saver, _):
    saver.delete_thread("u")
    saver.delete_thread("t")


@change
def a_thread_is_removed_and_begun_again(saver, ids):
    saver.delete_thread("t")
    put(saver, thread("t"), START, n=1)
    put(saver, thread("t"), START, ids[3]["configurable"]["checkpoint_id"], n="same id")


@change
def threads_are_pruned(saver, _):
    saver.prune(["t", "u"])


@change
def a_thread_is_released(saver, _):
    saver.store.release(RunnableConfig("t"))


@change
def the_log_is_written_anew(saver, _):
    saver.store.compact("t")


@pytest.mark.parametrize("changing", CHANGES)
@pytest.mark.parametrize("config", [None, {"configurable": {"thread_id": "t"}}, thread("u")], ids=str)
@pytest.mark.parametrize("limit", [None, 6])
def test_what_changes_while_the_iterator_waits(saver, changing, config, limit):
    ids = fill(saver, 11)
    reader = again(saver)
    order = plain(reader, config, None, None, limit)
    listing = reader.list(config, limit=limit)
    found = [next(listing), next(listing)]
    assert found == order[:2]
    CHANGES[changing](again(saver), ids)
    one_by_one = [again(saver).get_tuple(one.config) for one in order[2:]]
    assert list(listing) == [one for one in one_by_one if one is not None]


def test_a_look_at_a_log_holds_for_a_tenth_of_a_millisecond(saver, monkeypatch):
    now = [0]
    monkeypatch.setattr(packed_checkpoints, "perf_counter_ns", lambda: now[0])
    for number in range(4):
        put(saver, thread(), n=number)
    order = list(again(saver).list(None))
    listing = again(saver).list(None)
    assert next(listing) == order[0]
    again(saver).delete_thread("t")
    now[0] += 99_999
    assert next(listing) == order[1]
    now[0] += 1
    assert list(listing) == [], "the thread was removed"


def path_of(saver, thread_id, ns=""):
    return Path(saver.store._store.directory(thread_id, ns)) / "log"


@pytest.mark.parametrize("config", [None, thread("t"), {"configurable": {"thread_id": "t"}}], ids=str)
def test_a_damaged_thread_is_an_error(saver, config):
    fill(saver, 1)
    path = path_of(saver, "t")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(CheckpointCorruptionError):
        list(again(saver).list(config))
    with pytest.raises(CheckpointCorruptionError):
        plain(again(saver), config)
    assert list(again(saver).list(thread("u"))) == plain(again(saver), thread("u"))


def test_a_torn_end_is_as_if_it_was_not_there(saver):
    fill(saver, 1)
    path = path_of(saver, "t")
    os.truncate(path, path.stat().st_size - 3)
    for config in (None, thread("t")):
        assert list(again(saver).list(config)) == plain(again(saver), config)


def test_an_unfinished_delete_and_an_incomplete_log(saver):
    fill(saver, 2)
    path_of(saver, "u").write_bytes(b"\0" * 100)
    path_of(saver, "t", "sub").write_bytes(b"")
    for limit in (None, 4):
        assert list(again(saver).list(None, limit=limit)) == plain(again(saver), None, limit=limit)


def test_many_logs_do_not_stay_in_memory(saver, monkeypatch):
    ids = fill(saver, 3)
    assert ids
    monkeypatch.setattr("savers.langgraph.listing._MAX_KEPT", 3000)
    assert list(saver.list(None)) == plain(saver, None)


def test_what_is_remembered_of_logs_is_right_after_they_change(saver):
    other = again(saver)
    for number in range(12):
        put(other, thread(f"t{number % 5}"), n=number, metadata={"source": "loop", "step": number % 3})
        if number % 4 == 3:
            put(other, thread(f"t{number % 5}", "sub"), n=-number)
        for arguments in ({}, {"filter": {"step": 1}}, {"limit": 3}, {"limit": 2, "filter": {"step": 2}}):
            assert list(saver.list(None, **arguments)) == plain(again(saver), None, **arguments)


def test_a_log_that_ends_in_zeros_over_which_records_are_written(saver, monkeypatch):
    put(saver, thread(), n=1)
    path = path_of(saver, "t")
    first = path.read_bytes()
    put(saver, thread(), n=2)
    second = path.read_bytes()
    status = path.stat()

    def write(data):
        # As a writer that extends a log ahead, within one tick of the file system's clock.
        path.write_bytes(data + bytes(len(second) + 300 - len(data)))
        os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))

    write(first)
    reader = again(saver)
    for module in (history_views, listing):
        monkeypatch.setattr(module, "get_file_state", lambda status: (1, 1, status.st_size, status.st_mtime_ns, 1))
    monkeypatch.setattr(history_views, "time_ns", lambda: status.st_mtime_ns + 1000)
    assert [found.checkpoint["channel_values"]["n"] for found in reader.list(None)] == [1]
    write(second)
    assert [found.checkpoint["channel_values"]["n"] for found in reader.list(None)] == [2, 1]
    monkeypatch.setattr(history_views, "time_ns", lambda: status.st_mtime_ns + 10**9)
    assert len(list(reader.list(None))) == len(list(reader.list(None, limit=2))) == 2


def test_the_end_of_a_log_is_read_again_if_a_record_may_be_written_over_its_zeros(saver, monkeypatch):
    put(saver, thread(), START, n=1)
    put(saver, thread("other"), START + timedelta(seconds=5), n=2)
    path = path_of(saver, "t")
    first = path.read_bytes()
    put(saver, thread(), START + timedelta(seconds=9), n=3)
    second = path.read_bytes()
    path.write_bytes(first + bytes(len(second) - len(first) + 64))
    for module in (history_views, listing):
        monkeypatch.setattr(module, "get_file_state", lambda status: (1, 1, status.st_size, 1, 1))
    monkeypatch.setattr(history_views, "time_ns", lambda: 0)
    reader = again(saver)
    assert [found.checkpoint["channel_values"]["n"] for found in reader.list(None, limit=1)] == [2]
    path.write_bytes(second + bytes(64))
    assert [found.checkpoint["channel_values"]["n"] for found in reader.list(None, limit=1)] == [3]


def test_early_writes_of_an_earlier_version_that_appear_after_a_listing(saver):
    config = put(saver, thread(), START, n=1)
    reader = again(saver)
    for limit in (None, 1):
        assert next(reader.list(None, limit=limit)).pending_writes == []
    checkpoint_id = config["configurable"]["checkpoint_id"]
    early = RunnableConfig("t", checkpoint_ns=EARLY)
    saver.store.put(early, Checkpoint(id=checkpoint_id, node_id="a", next_node_id=None, state={}))
    write = Write("", "task", 0, "n", "msgpack", b"\7")
    saver.store.put_writes(early.replace(checkpoint_id=checkpoint_id), {write.key: list(write)})
    for limit in (None, 1):
        for one in (reader, again(saver)):
            assert next(one.list(None, limit=limit)).pending_writes == [("task", "n", 7)]


@pytest.mark.parametrize("seed", range(3))
def test_states_of_short_logs_are_those_that_the_general_way_reads(saver, seed, monkeypatch):
    randomness = random.Random(seed)
    messages = []
    config = thread()
    for number in range(90):
        messages = [*messages, {"id": str(number), "text": "x" * randomness.randrange(90)}][
            -randomness.choice([3, 40]) :
        ]
        values = {"messages": messages, "n": number, "text": "t" * randomness.randrange(200)}
        if randomness.random() < 0.2:
            values.pop("text")
        if number == 50:
            values["large"] = "l" * (200_000 if seed else 2000)
        config = put(saver, thread(checkpoint_id=config["configurable"].get("checkpoint_id")), **values)
    used = []
    replay_states = scanned_log.replay_states
    monkeypatch.setattr(scanned_log, "replay_states", lambda *args: used.append(replay_states(*args)) or used[-1])
    monkeypatch.setattr(scanned_log, "_EARLY_ROOM", 0)
    found = list(again(saver).list(None))
    assert len(found) == 90
    assert bool(used[0]) is (seed == 0), "a compressed value is read in the general way"
    monkeypatch.setattr(scanned_log, "_EARLY_ROOM", 100)
    assert list(again(saver).list(None)) == found
    assert len(used) == 1, "the states were made when the log was scanned"
    monkeypatch.setattr(scanned_log, "_EARLY_ROOM", 0)
    monkeypatch.setattr(packed_states, "_MAX_BYTES", 0)
    assert list(again(saver).list(None)) == found
    assert used[-1] == {}


def test_a_filter_makes_states_only_of_logs_that_have_a_match(saver, monkeypatch):
    for number in range(6):
        for step in range(3):
            metadata = {"source": "loop", "step": step, "user": str(number % 3)}
            put(saver, thread(f"t{number}"), metadata=metadata, n=step)
    made = []
    replay_contents = scanned_log.replay_contents

    def replay_and_count(*args):
        states = replay_contents(*args)
        made.append(len(states))
        return states

    monkeypatch.setattr(scanned_log, "replay_contents", replay_and_count)
    monkeypatch.setattr(scanned_log, "replay_states", lambda *_: pytest.fail("a log was decoded twice"))
    found = list(again(saver).list(None, filter={"user": "1", "step": 2}))
    assert [(one.config["configurable"]["thread_id"], one.checkpoint["channel_values"]) for one in found] == [
        ("t4", {"n": 2}),
        ("t1", {"n": 2}),
    ]
    assert made == [1, 1], "one state of each log that matches"


def test_states_that_a_filter_did_not_want_are_made_later(saver):
    for step in range(4):
        put(saver, thread("t"), metadata={"source": "loop", "step": step, "parents": {}}, n=step)
    reader = again(saver)
    assert [one.metadata["step"] for one in reader.list(None, filter={"step": 1})] == [1]
    for step in (2, 1, 3):
        (found,) = reader.list(None, filter={"step": step})
        assert found.checkpoint["channel_values"] == {"n": step}
    values = [one.checkpoint["channel_values"] for one in reader.list(None)]
    assert values == [{"n": 3}, {"n": 2}, {"n": 1}, {"n": 0}]


def test_no_descriptor_stays_open(saver):
    fill(saver, 4)
    reader = again(saver)
    list(reader.list(None))
    gc.collect()  # savers of earlier tests close theirs when they are collected
    before = set(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        list(reader.list(None))
        next(reader.list(None))
    gc.collect()
    assert set(Path("/proc/self/fd").iterdir()) <= before
