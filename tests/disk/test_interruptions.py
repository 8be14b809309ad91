"""An exception at any line of a writing operation costs nothing that was acknowledged, and leaves no lock behind."""

import gc
import itertools
import threading
from datetime import UTC, datetime
from functools import partial

import pytest

from graphkit import RunnableConfig
from graphkit.errors import CheckpointStorageError
from graphkit.operations import erase
from graphkit.saver_kit import Codec, FrozenDict, freeze, get_held_run_locks
from savers import FileSystemSaver, MemorySaver, ObjectStoreSaver, SqliteSaver, VersionedMemorySaver
from savers._filesystem import lifecycle, store as file_store
from savers._filesystem.lock import WriteLock
from tests.support.checkpoints import apply_update, list_ids, make_following
from tests.support.contents import describe, read_all
from tests.support.interruptions import count_signal_points, find_places, interrupt, interrupt_signal_point, run_apart

ROOT = RunnableConfig("t")
CHILD = RunnableConfig("t", checkpoint_ns="child")
KEYS = {"current": bytes(range(32))}
LONG = ["item " * 40] * 60


class Thread:
    """A thread with a version, and three checkpoints, the last of which a run has just put: it knows what changed."""

    def __init__(self, saver):
        saver.put(ROOT, make_following(0, freeze({"released": True})))
        saver.release(ROOT)
        state = FrozenDict()
        for number in range(3):
            state, checkpoint = self.follow(
                state, number, {"n": number, "items": [*LONG, number], "text": "x" * number}
            )
            saver.put(ROOT, checkpoint)
        self.state = state
        saver.put(CHILD, make_following(0, freeze({"child": 1})))
        saver.put_writes(ROOT, {"answer": 42})
        saver.add_tags(ROOT, "kept")

    @staticmethod
    def follow(state, number, update):
        new, changes = apply_update(state, update)
        return new, make_following(number, new, changes)

    def next(self, update):
        return self.follow(self.state, 3, update)[1]


OPERATIONS = {
    "put": lambda saver, thread: saver.put(ROOT, thread.next({"n": 3})),
    "put a long value": lambda saver, thread: saver.put(ROOT, thread.next({"more": [str(n) * 50 for n in range(400)]})),
    "put another key order": lambda saver, thread: saver.put(ROOT, make_following(3, freeze({"text": "", "n": 1}))),
    "put the first": lambda saver, thread: saver.put(RunnableConfig("new"), make_following(0, freeze({"n": 1}))),
    "replace": lambda saver, thread: saver.put(ROOT.with_check_point_id("c1"), make_following(1, freeze({"n": -1}))),
    "put_writes": lambda saver, thread: saver.put_writes(ROOT, {"more": [1, 2]}),
    "add_tags": lambda saver, thread: saver.add_tags(ROOT.with_check_point_id("c1"), "new"),
    "remove_tags": lambda saver, thread: saver.remove_tags(ROOT, "kept"),
    "release": lambda saver, thread: saver.release(ROOT),
    "delete": lambda saver, thread: saver.delete("t"),
    "copy": lambda saver, thread: saver.copy("t", "copy"),
    "prune": lambda saver, thread: saver.prune("t", keep_last=1),
    "run_lock": lambda saver, thread: hold_run_lock(saver),
    "compact": lambda saver, thread: getattr(saver, "compact", lambda thread: None)("t"),
    "erase": lambda saver, thread: erase(saver, "t"),
}


def hold_run_lock(saver):
    with saver.run_lock(ROOT):
        saver.add_tags(ROOT, "in a run")


SEALING = ["put", "put a long value", "replace", "put_writes"]
"""What seals records; the other operations do on a sealed log what they do on a plain one."""
SYNCING = ["put", "put the first", "put_writes", "release", "copy"]
"""What waits for the disk: a record that is appended, a new log, and files that are renamed."""
VERSIONED = ["release", "delete", "copy"]
"""What a VersionedMemorySaver does in its own way."""
CASES = [
    *((kind, name) for kind in ("file", "sqlite", "memory") for name in OPERATIONS),
    *(("file-always", name) for name in SYNCING),
    *(("versioned", name) for name in VERSIONED),
    *(("sealed", name) for name in SEALING),
]


def open_saver(kind, path):
    if kind in {"memory", "versioned"}:
        return (MemorySaver if kind == "memory" else VersionedMemorySaver)(lock_timeout=1)
    options = {"lock_timeout": 1, "fsync": "always" if kind == "file-always" else "never"}
    if kind == "sqlite":
        return SqliteSaver(path / "store.db", **options)
    if kind == "sealed":
        options["cipher"] = KEYS
    return FileSystemSaver(path / "store", **options)


class Store:
    """Opens savers on one new store."""

    def __init__(self, kind, path):
        self.kind = kind
        self.open = partial(open_saver, kind, path)
        self.saver = self.open()

    def other(self):
        """Another saver on the same store; in memory, there is none."""
        return self.saver if self.kind in {"memory", "versioned"} else self.open()

    def check(self, expected):
        """Check what the same and another saver read, and that both can write."""
        found = read_all(self.saver)
        latest = self.saver.get(RunnableConfig("copy"))
        if latest is not None and "graphkit:incomplete" in latest.metadata:
            found = {name: history for name, history in found.items() if name[0] != "copy"}
        assert found in expected
        for (thread, namespace, version), history in found.items():
            config = RunnableConfig(thread, checkpoint_ns=namespace)
            for checkpoint_id, text in history if version is None else ():
                got = self.saver.get(config.with_check_point_id(checkpoint_id))
                assert describe(self.saver, config, got) == text
        other = self.other()
        found_by_other = read_all(other)
        assert {name: found_by_other[name] for name in found} == found
        for number, saver in ((8, self.saver), (9, other)):
            state = freeze({"n": number, "items": [*LONG, number]})
            saver.put(ROOT, make_following(number, state))
            for reader in {self.saver, other}:
                assert dict(reader.get(ROOT).state) == dict(state)
        with other.run_lock(ROOT):
            pass
        before = [checkpoint_id for checkpoint_id, _ in found.get(("t", "", None), [])]
        assert list_ids(other, ROOT) == ["c9", "c8", *before]
        if hasattr(other, "verify"):
            assert other.verify().ok
        for saver in {self.saver, other}:
            if hasattr(saver, "close"):
                saver.close()


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_an_interrupted_operation_is_done_or_not_done(tmp_path, sweep, kind, name):
    operation = OPERATIONS[name]
    numbers = itertools.count()

    def prepare():
        # Not mktemp: to number a directory, it looks at all of the session, and here are tens of thousands.
        store = Store(kind, tmp_path / str(next(numbers)))
        return store, Thread(store.saver)

    store, thread = prepare()
    operation(store.saver, thread)  # what is imported or noted only once
    store, thread = prepare()
    before = read_all(store.saver)
    places = find_places(partial(operation, store.saver, thread))
    after = read_all(store.saver)
    for place in sweep.some(places, 3):
        store, thread = prepare()
        is_interrupted = interrupt(partial(operation, store.saver, thread), place)
        try:
            store.check([before, after] if is_interrupted else [after])
        except BaseException as error:
            error.add_note(f"interrupted at {place}, one of {len(places)} places")
            raise


@pytest.mark.parametrize("kind", ["file", "sqlite", "memory"])
def test_a_run_lock_that_a_signal_interrupts_at_any_point_is_free(tmp_path, kind):
    """Once the exception is gone, which an ExitStack leaves to the garbage collector: its frames keep the lock."""
    saver = open_saver(kind, tmp_path)

    def hold():
        with saver.run_lock(ROOT):
            pass

    hold()
    held_before = get_held_run_locks()  # what interrupted tests of this process have left in this context
    count = count_signal_points(hold)
    assert count > 30
    for number in range(1, count + 1):
        interrupt_signal_point(hold, number)
        gc.collect(1)
        run_apart(hold, f"interrupted at {number} of {count}")
        assert get_held_run_locks() <= held_before, f"interrupted at {number} of {count}"
        hold()


@pytest.mark.parametrize("kind", ["file", "sqlite", "memory"])
def test_a_watch_that_a_signal_interrupts_at_any_point_goes_on(tmp_path, kind):
    saver = open_saver(kind, tmp_path)
    watch = saver.watch("t", interval=0.01)

    def find(checkpoint_id):
        while watch.get(10).checkpoint.id != checkpoint_id:
            pass  # what was interrupted is reported once more

    number = 1
    while interrupt_signal_point(partial(watch.get, 0), number) is not None:
        saver.put(ROOT, make_following(number, freeze({})))
        run_apart(partial(find, f"c{number}"), f"interrupted at {number}")
        number += 1
    assert number > 10
    watch.close()


def test_a_signal_at_any_point_of_writes_and_the_put_that_follows_keeps_no_later_one_waiting(tmp_path):
    """So LangGraph puts, and one sync covers both."""
    saver = FileSystemSaver(tmp_path)
    numbers = itertools.count()

    def step():
        number = next(numbers)
        saver.put_packed_writes(ROOT, None, {"k": Codec().pack(number)}, expects_put=True)
        saver.put(ROOT, make_following(number, freeze({})))

    saver.put(ROOT, make_following(next(numbers), freeze({})))
    step()
    count = count_signal_points(step)
    for point in range(1, count + 1):
        interrupt_signal_point(step, point)
        run_apart(step, f"interrupted at {point} of {count}")


def test_after_a_signal_at_any_point_a_put_outside_a_run_reads_what_is_new(tmp_path):
    """While a run holds its lock through the saver, what another process puts is a conflict."""
    saver, other = (ObjectStoreSaver(f"file://{tmp_path}") for _ in range(2))

    def hold():
        with saver.run_lock(ROOT):
            pass

    number = 1
    while interrupt_signal_point(hold, number) is not None:
        other.put(ROOT, make_following(number, freeze({"other": number})))
        saver.put(ROOT, make_following(number, freeze({})))
        number += 1
    assert number > 100


@pytest.mark.parametrize("name", ["put", "release", "delete", "copy", "prune", "replace"])
@pytest.mark.parametrize("number", range(3))
def test_a_signal_when_a_write_lock_is_left_does_not_keep_it(tmp_path, monkeypatch, name, number):
    saver, other = (FileSystemSaver(tmp_path, fsync="never", lock_timeout=0) for _ in range(2))
    thread = Thread(saver)
    leave = WriteLock.__exit__
    calls = itertools.count()
    raised = []  # keeps the frames, so that nothing is cleaned up because it is garbage

    def interrupt_or_leave(lock, *error):
        if next(calls) == number:
            raise KeyboardInterrupt
        leave(lock, *error)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(WriteLock, "__exit__", interrupt_or_leave)
        try:
            OPERATIONS[name](saver, thread)
        except KeyboardInterrupt as error:
            raised.append(error)
    for n, writer in ((8, other), (9, saver)):
        writer.put(ROOT, make_following(n, {}))
    assert list_ids(saver, ROOT)[:2] == ["c9", "c8"]


def test_a_lock_that_was_freed_on_the_way_out_is_not_taken_from_the_next_writer(tmp_path, monkeypatch):
    """Ctrl-C in a call within a delete frees the lock of that, which another thread of execution has waited for."""
    saver, other = (FileSystemSaver(tmp_path, fsync="never", lock_timeout=0) for _ in range(2))
    Thread(saver)
    lock = saver._store.write_lock(saver._store.locate("t"))
    is_entered, may_leave = threading.Event(), threading.Event()

    def write():
        with lock:
            is_entered.set()
            may_leave.wait(10)

    def interrupt_look(*_):
        if lock.is_mine:
            writer.start()
            raise KeyboardInterrupt
        return True

    def free_and_wait(store):
        free_write_locks(store)
        assert is_entered.wait(10)

    writer = threading.Thread(target=write)
    free_write_locks = file_store.Store.free_write_locks
    monkeypatch.setattr(lifecycle, "is_idle", interrupt_look)
    monkeypatch.setattr(file_store.Store, "free_write_locks", free_and_wait)
    with pytest.raises(KeyboardInterrupt):
        saver.delete_idle(idle_since=datetime.now(UTC))
    with pytest.raises(CheckpointStorageError, match="another writer kept it"):
        other.put(ROOT, make_following(8, {}))
    may_leave.set()
    writer.join()
    for number, each in ((8, other), (9, saver)):
        each.put(ROOT, make_following(number, {}))
    assert list_ids(other, ROOT)[:2] == ["c9", "c8"]
