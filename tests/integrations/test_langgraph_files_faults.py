"""What power loss, death, damage and failing disks do to FileSystemStore and FileSystemCache: they lose nothing that was acknowledged."""

import errno
import random
from functools import partial

import pytest
from langgraph.store.base import PutOp

from graphkit.errors import CheckpointCorruptionError, CheckpointStorageError
from savers.langgraph import FileSystemCache, FileSystemStore
from tests.disk.simfs import Disk, SimFS
from tests.support.disks import CHANGES, Fault, HookedIO, failing, noting_calls
from tests.support.interruptions import find_places, interrupt
from tests.support.langgraph import rewrite_short_logs
from tests.support.logs import flip, flip_in_file

PLACE = "/data"


@pytest.fixture
def store(tmp_path):
    with FileSystemStore(tmp_path, fsync="never") as store:
        yield store


@pytest.fixture
def log(tmp_path):
    return tmp_path / "langgraph-store" / "log"


@pytest.fixture
def early_rewrites(monkeypatch):
    rewrite_short_logs(monkeypatch)


def view(store):
    """Everything that a store holds."""
    return {(item.namespace, item.key): item.value for item in store.search((), limit=1000)}


def open_copy(tmp_path, data):
    """Open a store whose log has these bytes."""
    directory = tmp_path / "copy"
    (directory / "langgraph-store").mkdir(parents=True, exist_ok=True)
    for path in (directory / "langgraph-store").iterdir():
        path.unlink()
    (directory / "langgraph-store" / "log").write_bytes(data)
    return FileSystemStore(directory, fsync="never")


def salvaged(tmp_path):
    """Return the names of the files with the bytes that the store of `open_copy` set aside."""
    return sorted(path.name for path in (tmp_path / "copy" / "langgraph-store").iterdir() if path.suffix == ".bin")


# Torn and damaged


def test_a_put_that_was_cut_at_any_byte_is_as_if_it_had_never_been(tmp_path, store, log, sweep):
    store.put(("a",), "one", {"n": 1})
    first = log.stat().st_size
    store.put(("a",), "two", {"n": 2, "text": "x" * 5000})
    before = view(store)
    next_item = (("b",), "next")
    after = {**before, next_item: {"n": 4}}
    length = log.stat().st_size
    store.batch([PutOp(("a",), "two", {"n": 3, "text": "y" * 700}), PutOp(("b",), "three", {"n": 3})])
    data = log.read_bytes()

    for cut in sweep.some(range(first), 30):
        with open_copy(tmp_path, data[:cut]) as torn:
            assert view(torn) == {}
            torn.put(*next_item, {"n": 4})
            assert view(torn) == {next_item: {"n": 4}}

    copied_log = tmp_path / "copy" / "langgraph-store" / "log"
    for cut in sweep.some(range(length, len(data)), 60):
        # Another store has read the log before a writer died.
        with open_copy(tmp_path, data[:length]) as other, FileSystemStore(tmp_path / "copy") as fresh:
            assert view(other) == before
            copied_log.write_bytes(data[:cut])
            for opened in (other, fresh):
                assert view(opened) == before, cut
            other.put(*next_item, {"n": 4})
            for opened in (other, fresh):
                assert view(opened) == after
        assert salvaged(tmp_path) == ([f"torn-1-{length}.bin"] if cut > length else [])


def test_every_flipped_bit_is_an_error_and_repair_keeps_all_other_records(tmp_path, store, log, sweep):
    for n in range(4):
        store.put(("a",), f"k{n}", {"n": n})
    whole = view(store)
    data = log.read_bytes()
    copied_log = tmp_path / "copy" / "langgraph-store" / "log"
    for bit in sweep.some(range(8 * len(data)), 250):
        damaged = flip(data, bit // 8, 1 << bit % 8)
        with open_copy(tmp_path, damaged) as broken:
            with pytest.raises(CheckpointCorruptionError):
                view(broken)
            with pytest.raises(CheckpointCorruptionError):
                broken.put(("a",), "new", {})
            assert copied_log.read_bytes() == damaged
            assert broken.repair() > 0 or bit < 8 * 64
            found = view(broken)
            assert found.items() <= whole.items()
            assert len(found) >= 3
            (set_aside,) = salvaged(tmp_path)
            assert set_aside.startswith("damaged-")
            broken.put(("a",), "new", {"n": 9})
            assert broken.repair() == 0


def test_damage_of_a_long_value_is_seen_while_the_store_is_open(tmp_path, store, log):
    store.put(("a",), "long", {"text": "x" * 10_000})
    store.put(("a",), "short", {"n": 1})
    assert store.get(("a",), "long") is not None
    flip_in_file(log, log.read_bytes().index(b"xxx") + 500)
    with pytest.raises(CheckpointCorruptionError, match="'long'"):
        store.get(("a",), "long")
    assert store.get(("a",), "short").value == {"n": 1}


# Power loss, and the death of a process


STEPS = [
    lambda store: store.put(("a",), "one", {"n": 1, "text": "o" * 600}),
    lambda store: store.put(("a",), "two", {"text": "x" * 700}),
    lambda store: store.batch([PutOp(("b", str(n)), "k", {"n": n, "text": "y" * 40}) for n in range(8)]),
    lambda store: store.put(("a",), "two", {"text": "z" * 900}, ttl=5),
    lambda store: store.delete(("a",), "one"),
    *[lambda store, n=n: store.put(("c",), "k", {"n": n, "text": "c" * 300}) for n in range(20)],
    lambda store: store.batch([PutOp(("b", "1"), "k", None), PutOp(("a",), "last", {"n": 1})]),
]


def use(store, note):
    """A workload; `note` is called with a number before and after each step, and the view after it."""
    for number, step in enumerate(STEPS):
        note("begin", number)
        step(store)
        note("ack", number)


def views_of_workload():
    """What the store holds before the workload and after each of its steps."""
    views = [{}]
    store = FileSystemStore(PLACE, fsync="never", io=SimFS(record=False), clock=lambda: 1e9)
    use(store, lambda what, _: views.append(view(store)) if what == "ack" else None)
    return views


def explore(fsync, fs, rng, limit):
    """Yield each state of the disk that a power loss may leave, and the numbers of the first and last view allowed."""
    disk = Disk()
    begun = acknowledged = 0
    for op in fs.ops:
        if op[0] == "note":
            if op[1] == "begin":
                begun = op[2] + 1
            elif fsync == "always":
                acknowledged = op[2] + 1
            continue
        disk.apply(op)
        for what, tree in disk.states(rng, limit):
            yield what, tree, acknowledged, begun


@pytest.mark.usefixtures("early_rewrites")
def test_power_loss_keeps_what_was_acknowledged_and_at_most_one_more(sweep):
    views = views_of_workload()
    fs = SimFS()
    store = FileSystemStore(PLACE, io=fs, clock=lambda: 1e9)
    use(store, fs.note)
    assert [op[0] for op in fs.ops].count("rename") >= 2, "the log was rewritten"
    rng = random.Random(1)
    states = nested = 0
    for what, tree, low, high in explore("always", fs, rng, sweep.count(300, 6)):
        states += 1
        fs_of_recovery = SimFS(tree)
        again = FileSystemStore(PLACE, io=fs_of_recovery, clock=lambda: 1e9)
        found = view(again)
        assert found in views[low : high + 1], what
        again.put(("new",), "k", {"n": 1})
        grown = {**found, (("new",), "k"): {"n": 1}}
        assert view(again) == grown, what
        again.close()
        nested += check_second_power_loss(tree, fs_of_recovery, [found, grown], rng)
    assert states >= sweep.count(700, 150)
    assert nested >= states


def check_second_power_loss(tree, fs, views, rng):
    """Let the power fail again at a moment of the recovery; return how many states of the disk there were."""
    disk = Disk(tree)
    for op in fs.ops[: rng.randint(1, len(fs.ops))]:
        disk.apply(op)
    states = 0
    for what, later in disk.states(rng, 3, many=3):
        states += 1
        again = FileSystemStore(PLACE, io=SimFS(later, record=False), clock=lambda: 1e9)
        assert view(again) in views, what
        again.close()
    return states


@pytest.mark.usefixtures("early_rewrites")
def test_who_does_not_wait_loses_the_end_at_most(sweep):
    def open_on(fs):
        return FileSystemStore(PLACE, fsync="never", io=fs, clock=lambda: 1e9)

    views = views_of_workload()
    fs = SimFS()
    use(open_on(fs), fs.note)
    states = [*explore("never", fs, random.Random(2), sweep.count(40, 6))]
    assert len(states) >= sweep.count(700, 150)

    for what, tree, low, high in states:
        with open_on(SimFS(tree, record=False)) as again:
            assert view(again) in views[low : high + 1], what


# Failing disks


@pytest.fixture
def hooked(tmp_path):
    """A file system on which calls can fail, and a store on it."""
    io = HookedIO()
    with FileSystemStore(tmp_path, io=io) as store:
        store.put(("a",), "one", {"n": 1})
        yield io, store
        io.hook = None


ONE = {(("a",), "one"): {"n": 1}}
TWO = {**ONE, (("a",), "two"): {"n": 2}}


@pytest.mark.parametrize("also", [(), ("truncate",)])
def test_a_full_disk_refuses_the_put_and_keeps_the_rest(hooked, tmp_path, log, also):
    io, store = hooked
    length = log.stat().st_size
    for _ in range(2):
        full = failing(io, ("write_at", *also), errno.ENOSPC, part=0.5)
        with full, pytest.raises(CheckpointStorageError) as caught:
            store.put(("a",), "two", {"text": "x" * 3000})
        assert caught.value.errno == errno.ENOSPC
        assert view(store) == ONE
    assert (log.stat().st_size == length) == (not also)

    store.put(("a",), "two", {"n": 2})
    for reader in (store, FileSystemStore(tmp_path)):
        assert view(reader) == TWO


def test_after_a_failed_sync_the_log_is_rewritten_at_once_without_the_put_that_failed(hooked, tmp_path, log):
    io, store = hooked
    before = log.stat().st_ino
    with failing(io, "fdatasync"), pytest.raises(CheckpointStorageError):
        store.put(("a",), "two", {"n": 2})
    assert log.stat().st_ino != before
    for opened in (store, FileSystemStore(tmp_path)):
        assert view(opened) == ONE


@pytest.mark.parametrize("also", ["fsync", "rename", "write_at"])
def test_nothing_is_stored_until_the_log_could_be_rewritten(hooked, tmp_path, log, also):
    io, store = hooked
    with failing(io, ("fdatasync", also)), pytest.raises(CheckpointStorageError):
        store.put(("a",), "two", {"n": 2})
    calls = []
    refuse = Fault(also)
    io.hook = lambda kind, path: calls.append(kind) or refuse(kind, path)
    with pytest.raises(CheckpointStorageError):
        store.put(("a",), "two", {"n": 2})
    assert "fdatasync" not in calls, "a later sync of the same file proves nothing"
    io.hook = None
    store.put(("a",), "two", {"n": 2})
    for opened in (store, FileSystemStore(tmp_path)):
        assert view(opened) == TWO


def test_a_put_waits_for_the_disk_and_a_postponed_expiry_does_not(tmp_path):
    io = HookedIO()
    with FileSystemStore(tmp_path, io=io) as store:
        with noting_calls(io) as calls:
            store.put(("a",), "k", {"n": 1}, ttl=5)
        assert calls.count("fdatasync") == 1
        assert calls.count("fsync_dir") >= 2, "the names of the file and of its directory"
        with noting_calls(io, CHANGES) as calls:
            store.put(("a",), "k", {"n": 2}, ttl=5)
        assert calls == ["write_at", "fdatasync"]
        with noting_calls(io, CHANGES) as calls:
            store.get(("a",), "k")
        assert calls == ["write_at"]
    with FileSystemCache(tmp_path, io=io) as cache, noting_calls(io) as calls:
        cache.set({(("a",), "k"): (1, None)})
    assert calls.count("fdatasync") == 1


# Interrupted operations, and failed syncs beside other processes

USERS = ("users",)


def read(store):
    return {item.key: item.value for item in store.search(USERS, limit=100)}


def rewrite(store):
    """Let the log be rewritten: most of it is of no use any more."""
    for number in range(3):
        store.put(USERS, "long", {"text": "x" * 40_000, "number": number})


@pytest.mark.parametrize(
    ("meanwhile", "stored"),
    [
        (lambda other: other.put(USERS, "other", {"n": 2}), {"other": {"n": 2}}),
        (rewrite, {"long": {"text": "x" * 40_000, "number": 2}}),
    ],
    ids=["put", "rewrite"],
)
def test_a_failed_sync_costs_nothing_that_another_process_has_stored(tmp_path, meanwhile, stored):
    io = HookedIO()
    with FileSystemStore(tmp_path, io=io) as mine, FileSystemStore(tmp_path) as other:
        mine.put(USERS, "before", {"n": 0})
        assert read(other) == {"before": {"n": 0}}

        def write_and_fail():
            meanwhile(other)
            raise OSError(errno.EIO, "disk")

        io.hook = Fault("fdatasync", write_and_fail, times=1)
        with pytest.raises(CheckpointStorageError):
            mine.put(USERS, "mine", {"n": 1})
        with FileSystemStore(tmp_path) as fresh:
            for store in (mine, other, fresh):
                found = read(store)
                assert found.pop("before") == {"n": 0}
                assert found.pop("mine", {"n": 1}) == {"n": 1}  # it may be stored, although it was not acknowledged
                assert found == stored
            mine.put(USERS, "after", {"n": 3})
            assert read(fresh)["after"] == {"n": 3}


@pytest.mark.parametrize(
    ("is_long", "operation"),
    [
        (False, lambda store: store.put(USERS, "b", {"n": 1})),
        (False, lambda store: store.put(USERS, "a", {"n": -1})),
        (False, lambda store: store.delete(USERS, "a")),
        (True, lambda store: store.put(USERS, "a", {"n": 2})),
    ],
    ids=["put", "replace", "delete", "rewrite"],
)
def test_an_interrupted_change_is_done_or_not_done(tmp_path, sweep, is_long, operation):
    numbers = iter(range(1_000_000))

    def open_new():
        path = tmp_path / str(next(numbers))
        opened = FileSystemStore(path)
        opened.put(USERS, "a", {"n": 0})
        if is_long:
            rewrite(opened)
        return opened, path

    for _ in range(2):  # what is imported or noted only once is not counted
        opened, _ = open_new()
        before = read(opened)
        places = find_places(partial(operation, opened))
        after = read(opened)
        opened.close()
    for place in sweep.some(places, 6):
        opened, path = open_new()
        is_interrupted = interrupt(partial(operation, opened), place)
        found = read(opened)
        assert found in ((before, after) if is_interrupted else (after,)), f"interrupted at {place}"
        with opened, FileSystemStore(path) as fresh:
            assert read(fresh) == found, f"interrupted at {place}"
            opened.put(USERS, "next", {"n": 1})
            fresh.put(USERS, "later", {"n": 2})
            assert read(opened) == read(fresh) == {**found, "next": {"n": 1}, "later": {"n": 2}}
