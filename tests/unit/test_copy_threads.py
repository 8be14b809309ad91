"""copy_threads between any two savers: nothing lost, resumable after any failure, verified, and refused where it would lose something."""

import errno
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from threading import Barrier

import pytest

from graphkit import END, START, Checkpoint, RunnableConfig
from graphkit.errors import (
    AccessDeniedError,
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    CheckpointStorageError,
    ThreadBusyError,
)
from graphkit.saver_kit import Codec, FrozenDict, FrozenList, IncomingThread
from graphkit.testing import ScriptedSaver
from graphkit.transfer import copy_threads, export_threads, import_threads
from savers import AccessControlledSaver, FileSystemSaver, MemorySaver, SaverWrapper, VersionedMemorySaver
from tests.support.checkpoints import make_interrupt, with_lazy_state
from tests.support.graphs import pending_ids
from tests.support.savers import ListSaver
from tests.support.terminal import checkpoint, damage
from tests.support.threads import MAKERS, TYPES, assert_same, everything, exact, made

T = RunnableConfig("t")
SUB = RunnableConfig("t", checkpoint_ns="sub")


def put_one(saver, thread="t", node="a", number=1):
    return saver.put(RunnableConfig(thread), checkpoint(number, START, node, {"n": number}))


def with_versions(saver):
    """Thread t with two versions and an active history; thread u with a version only, which has a nested graph."""
    everything(saver)
    saver.release(T)
    saver.put(T, checkpoint(7, START, "sub", {"log": ["new"]}))
    saver.put(SUB, checkpoint(9, START, "a", {"inner": 1}))
    saver.release(T)
    everything(saver)
    other = RunnableConfig("u")
    saver.put(other, checkpoint(8, START, "a", {"n": 1}))
    saver.put(other.replace(checkpoint_ns="sub"), checkpoint(9, START, "a", {"inner": 1}))
    saver.release(other)
    return saver


def assert_versions_same(one, two, thread="t"):
    assert list(one.versions_by_thread_id(thread)) == list(two.versions_by_thread_id(thread))
    for version in one.versions_by_thread_id(thread):
        for namespace in ("", "sub"):
            config = RunnableConfig(thread, checkpoint_ns=namespace)
            first, second = one.tag(config, version).checkpoints, two.tag(config, version).checkpoints
            assert [exact(each) for each in first] == [exact(each) for each in second]


@pytest.mark.sweep(2, of="kind", in_turn=True)
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("origin", MAKERS)
def test_everything_comes_along_between_any_savers(tmp_path, origin, kind):
    source, target = everything(made(origin, tmp_path / "a")), made(kind, tmp_path / "b")
    done = copy_threads(source, target, plaintext=True)
    assert done == (["t"], [], 5, 0, 0, 0)
    assert_same(source, target)
    assert pending_ids(target) == pending_ids(source)
    again = copy_threads(source, target, plaintext=True)
    assert again == (["t"], ["t"], 0, 5, 0, 0)


@pytest.mark.parametrize("kind", ["file", "versioned"])
@pytest.mark.parametrize("origin", ["file", "versioned"])
def test_versions_come_along(tmp_path, origin, kind):
    source = with_versions(made(origin, tmp_path / "a"))
    target = made(kind, tmp_path / "b")
    done = copy_threads(source, target)
    assert (sorted(done.threads), done.checkpoints, done.versions) == (["t", "u"], 14, 3)
    assert_versions_same(source, target)
    assert_versions_same(source, target, "u")
    assert_same(source, target)
    again = copy_threads(source, target)
    assert (again.checkpoints, again.versions) == (0, 0)
    assert (again.skipped_checkpoints, again.skipped_versions) == (14, 3)


def test_without_versions_the_active_history_is_copied(tmp_path):
    source, target = with_versions(made("file", tmp_path / "a")), MemorySaver()
    target.register_types(*TYPES)
    with pytest.raises(CheckpointerConfigurationError, match=r"keeps no versions, and thread .*versions=False"):
        copy_threads(source, target)
    assert list(target.threads()) == []
    assert copy_threads(source, target, versions=False) == (["t"], [], 5, 0, 0, 0)
    assert_same(source, target)


def test_only_the_chosen_threads_are_copied():
    source, target = MemorySaver(), MemorySaver()
    for thread in "abc":
        put_one(source, thread)
    steps = []
    copy_threads(source, target, ["c", "a", "c"], progress=lambda *args: steps.append(args))

    assert steps == [(1, 2, "c"), (2, 2, "a")]

    with pytest.raises(CheckpointNotFoundError, match="'x'"):
        copy_threads(source, target, ["b", "x"])

    guarded = AccessControlledSaver(source, lambda _, __, thread, ___: thread != "x")
    with pytest.raises(AccessDeniedError, match="may not namespaces thread 'x'"):
        copy_threads(guarded, target, ["b", "x"])

    assert sorted(target.threads()) == ["a", "c"]


def test_a_saver_that_cannot_list_its_threads_copies_those_that_are_named():
    source, target = everything(ListSaver()), MemorySaver()
    target.register_types(*TYPES)
    with pytest.raises(CheckpointerConfigurationError, match="cannot list its threads"):
        copy_threads(source, target)
    assert copy_threads(source, target, ["t"]).checkpoints == 4
    assert exact(target.get(T)) == exact(source.get(T))


# Continuing


def test_what_was_added_to_the_source_is_appended():
    source, target = everything(made("memory")), made("memory")
    copy_threads(source, target)
    old = source.list(T)[2].id
    source.put_writes(T.with_check_point_id(old), {"later": 1})
    source.add_tags(T.with_check_point_id(old), "new tag")
    source.put(T, checkpoint(30, "d", END, {"n": float("nan")}))
    source.put(RunnableConfig("t", checkpoint_ns="other"), checkpoint(31, "d", END, {"n": 31}))
    source.put(RunnableConfig("v"), checkpoint(32, "d", END, {"n": 32}))
    done = copy_threads(source, target)

    assert (done.checkpoints, done.skipped_checkpoints, done.skipped_threads) == (3, 5, [])
    assert_same(source, target)


def test_an_answer_that_comes_while_the_thread_is_copied_comes_along():
    source, inner = MemorySaver(), MemorySaver()
    put_one(source)
    target = ScriptedSaver(inner).on("put", lambda: source.put_writes(T, {"answer:q": "yes"}), late=True)
    copy_threads(source, target)
    assert inner.get_writes(T) == {"answer:q": "yes"}


# Conflicts


def changed(number, **fields):
    """Put all checkpoints of `everything`, one of them with other fields."""

    def put_all(saver):
        for stored in reversed(everything(made("memory")).list(T)):
            names = ("id", "node_id", "next_node_id", "state", "parent_id", "created_at", "metadata")
            own = {name: getattr(stored, name) for name in names}
            saver.put(T, Checkpoint(**own | (fields if stored.id.endswith(f"{number:012d}") else {})))

    return put_all


def changed_after(change):
    """Put all checkpoints of `everything`, and change the second one, or the thread."""

    def put_all(saver):
        changed(0)(saver)
        change(saver, T.with_check_point_id("00000000-0000-7000-8000-000000000002"))

    return put_all


EXTRA = checkpoint(99, "z", END, {})
LATER = checkpoint(1, "", "", {}).created_at.replace(microsecond=1)


DIFFERENCES = {
    "id": (changed(2, id="other"), "checkpoint other: the source has .*02 in its place"),
    "node": (changed(2, node_id="z"), "its node differs"),
    "next": (changed(3, next_node_id="z"), "its next node differs"),
    "parent": (changed(3, parent_id=None), "its parent differs"),
    "time": (changed(1, created_at=LATER), "its time of creation differs"),
    "metadata": (changed(1, metadata={"run_id": "run-1"}), "its metadata differs"),
    "value": (changed(1, state={"log": ["one"], "gone": 1, "n": True}), "its state at 'n' differs"),
    "dropped": (changed(2, state={"log": ["one", "two"], "gone": 1, "n": True}), "its state at 'gone' differs"),
    "order": (changed(3, state={"log": ["two"], "n": 1.0}), "its state at the order of its keys differs"),
    "writes": (changed_after(lambda saver, at: saver.put_writes(at, {"x": 1})), "its pending write 'x' differs"),
    "tags": (changed_after(lambda saver, at: saver.add_tags(at, "kept")), "its tags differ"),
    "longer": (changed_after(lambda saver, at: saver.put(T, EXTRA)), "99: it is not in the source"),
    "namespace": (
        lambda saver: saver.put(SUB.replace(checkpoint_ns="more"), EXTRA),
        "namespace 'more', checkpoint .*99",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_target_that_differs_is_refused_and_not_changed(name):
    put_all, message = DIFFERENCES[name]
    source, inner = everything(made("memory")), made("memory")
    put_all(inner)
    target = ScriptedSaver(inner)

    with pytest.raises(CheckpointConflictError, match=f"thread 't': .*{message}"):
        copy_threads(source, target)
    for method in ("put", "put_writes", "add_tags", "release"):
        assert target.count(method) == 0


@pytest.mark.parametrize("kind", ["file", "versioned"])
def test_versions_that_differ_are_refused(tmp_path, kind):
    source, target = with_versions(made("file", tmp_path / "a")), made(kind, tmp_path / "b")
    target.put(T, checkpoint(99, "z", END, {}))

    with pytest.raises(CheckpointConflictError, match="in its place"):
        copy_threads(source, target, ["t"])
    target.release(T)
    with pytest.raises(CheckpointConflictError, match=r"in its place|missing in version 1"):
        copy_threads(source, target, ["t"])
    other = with_versions(made(kind, tmp_path / "c"))
    other.release(T)
    everything(other)
    with pytest.raises(CheckpointConflictError, match=r"the versions \[1, 2, 3\]"):
        copy_threads(source, other, ["t"])


# Threads that cannot be copied


def make_threads(count, *, lock_timeout=0):
    """A store with the threads t00, t01, ..."""
    saver = MemorySaver(lock_timeout=lock_timeout)
    for number in range(count):
        put_one(saver, f"t{number:02}")
    return saver


def test_a_thread_that_cannot_be_copied_does_not_stop_the_others():
    source, target = make_threads(5), MemorySaver(lock_timeout=0)
    target.put(RunnableConfig("t01"), checkpoint(7, "z", END, {}))
    done = []
    with (
        ThreadPoolExecutor(1) as pool,
        source.run_lock(RunnableConfig("t03")),
        pytest.raises(CheckpointConflictError) as caught,
    ):
        pool.submit(copy_threads, source, target, progress=lambda *step: done.append(step)).result()

    message = str(caught.value)

    assert message.endswith(" (cannot copy t01, t03; all others are done)")
    assert caught.value.thread_id == "t01"
    assert str(pickle.loads(pickle.dumps(caught.value))) == message
    assert str(caught.value.__cause__) == message.partition(" (cannot copy")[0]
    assert done == [(number + 1, 5, f"t{number:02}") for number in range(5)]
    assert sorted(target.threads()) == ["t00", "t01", "t02", "t04"]
    assert [each.node_id for each in target.list(RunnableConfig("t01"))] == ["z"]

    target.delete("t01")
    assert copy_threads(source, target).skipped_threads == ["t00", "t02", "t04"]


def test_the_runs_of_many_threads_are_not_waited_for_one_after_the_other():
    source, target = make_threads(6), ScriptedSaver(MemorySaver())

    with ThreadPoolExecutor(1) as pool, ExitStack() as runs:
        for number in (1, 3, 4):
            runs.enter_context(source.run_lock(RunnableConfig(f"t{number:02}")))
        with pytest.raises(ThreadBusyError, match=r"t01, t03, t04; all others are done\); wait for that run to end"):
            pool.submit(copy_threads, source, target).result()

    locks = [call.args for call in target.calls if call.method == "run_lock"]
    timeouts = {config.thread: timeout for config, timeout in locks if config.thread in target.threads()}
    assert timeouts == {"t00": None, "t02": 0, "t05": 0}


@pytest.mark.parametrize("named", [None, ["b", "c", "a", "d"]])
def test_a_damaged_thread_is_left_out_of_a_copy_and_an_export(tmp_path, named):
    source, target = FileSystemSaver(tmp_path, fsync="never"), MemorySaver()
    for name in "abcd":
        for number in range(3):
            source.put(RunnableConfig(name), checkpoint(number, "n", "n", {"text": f"{number} " * 100}))
    source.close()
    damage(tmp_path, "b", -400)
    (log,) = tmp_path.glob("t-c-*/log")
    log.unlink()
    log.mkdir()
    with pytest.raises(CheckpointCorruptionError, match=r"\(cannot copy b, c; all others are done\)") as caught:
        copy_threads(source, target, named)

    assert caught.value.path == str(*tmp_path.glob("t-b-*/log"))
    assert sorted(target.threads()) == ["a", "d"]

    lines = []
    with pytest.raises(CheckpointCorruptionError, match=r"\(cannot export b, c; all others are done\)"):
        lines.extend(export_threads(source, named))
    assert import_threads(MemorySaver(), lines).threads == ["a", "d"]
    failures = []
    raw = "".join(export_threads(source, named, format="logs", on_failure=failures.append))
    assert [thread for thread in "abcd" if f'"end": "{thread}"' in raw] == ["a", "b", "d"]
    assert "cannot export c;" in str(failures)


def test_a_version_without_checkpoints_does_not_stop_the_copy_of_other_threads():
    source = VersionedMemorySaver()
    IncomingThread(source, "a", "x").begin([""], FrozenDict())  # and then its process dies
    source.release("a")
    put_one(source, "a")
    put_one(source, "b")
    target = VersionedMemorySaver()
    with pytest.raises(CheckpointConflictError, match="version 1 has no checkpoints"):
        copy_threads(source, target)
    assert [*target.threads()] == ["b"]


@pytest.mark.parametrize(
    "error", [CheckpointStorageError("runs", "write", OSError(errno.ENOSPC, "no space")), ConnectionResetError("lost")]
)
def test_a_store_that_cannot_be_used_ends_the_copy(error):
    target = ScriptedSaver(MemorySaver()).fail("put", error, skip=1)
    with pytest.raises(OSError, match=r"no space|lost") as caught:
        copy_threads(make_threads(4), target)
    assert caught.value is error
    assert list(target.threads()) == ["t00"]


@pytest.mark.parametrize(
    ("method", "lose", "message"),
    [
        ("put", lambda put, config, one: put(config, one.with_metadata(FrozenDict())), "its metadata differs"),
        ("put", lambda put, config, one: put(config, one.with_state(FrozenDict({"n": 0}))), "its state at 'n' differs"),
        ("put", lambda put, config, one: config if one.id.endswith("2") else put(config, one), "it is not stored"),
        ("put_writes", lambda *_: None, "pending write 'interrupt:q', pending write 'answer:q': not stored"),
        ("add_tags", lambda *_: None, "tag 'golden', tag 'kept': not stored"),
    ],
)
def test_what_the_target_loses_is_an_error(monkeypatch, method, lose, message):
    source = MemorySaver()
    here = put_one(source)
    source.put_writes(here, {"interrupt:q": make_interrupt(), "answer:q": 1})
    source.add_tags(here, "golden", "kept")
    put_one(source, number=2)
    target = MemorySaver()
    losing = partial(lose, getattr(target, method))
    monkeypatch.setattr(target, method, losing)
    with pytest.raises(CheckpointConflictError, match=f"thread 't': namespace '', checkpoint .*0[12]: {message}"):
        copy_threads(source, target)


# What is refused


def test_source_and_target_must_be_two_stores(tmp_path):
    one, two = FileSystemSaver(tmp_path, fsync="never"), FileSystemSaver(tmp_path / ".", fsync="never")
    memory = MemorySaver()
    for source, target in ((one, two), (memory, SaverWrapper(memory))):
        with pytest.raises(CheckpointerConfigurationError, match="the same store"):
            copy_threads(source, target)


def test_plaintext_of_a_sealed_source_must_be_asked_for(tmp_path):
    source = everything(made("sealed", tmp_path / "a"))
    target = made("file", tmp_path / "b")
    with pytest.raises(CheckpointerConfigurationError, match=r"source is sealed.*export --raw.*plaintext=True"):
        copy_threads(source, target)
    assert list(target.threads()) == []

    other = FileSystemSaver(tmp_path / "c", fsync="never", types=TYPES, cipher={"other": b"o" * 32})
    copy_threads(source, other)
    assert_same(source, other)


# Locks


@pytest.mark.parametrize(("number", "is_copied"), [(errno.EROFS, True), (errno.EACCES, True), (errno.EIO, False)])
def test_a_source_that_may_only_be_read_is_copied_without_its_lock(number, is_copied):
    refused = CheckpointStorageError("run.lock", "lock", OSError(number, "refused"))
    source, target = make_threads(1), MemorySaver()
    with pytest.raises(CheckpointStorageError):
        copy_threads(source, ScriptedSaver(target).fail("run_lock", refused))
    with nullcontext() if is_copied else pytest.raises(CheckpointStorageError):
        copy_threads(ScriptedSaver(source).fail("run_lock", refused), target)
    assert len(target.threads()) == is_copied


def test_both_stores_are_held_while_a_thread_is_copied():
    source, inner = make_threads(1), MemorySaver(lock_timeout=0)
    refused = []

    def try_to_run():
        for saver in (source, inner):
            with pytest.raises(ThreadBusyError):
                saver.run_lock("t00").__enter__()
            refused.append(saver)

    with ThreadPoolExecutor(1) as pool:
        copy_threads(source, ScriptedSaver(inner).on("put", lambda: pool.submit(try_to_run).result()))
    assert refused == [source, inner]


def test_copies_in_opposite_directions_do_not_wait_for_each_other():
    one, two = make_threads(1, lock_timeout=60), make_threads(1, lock_timeout=60)
    together = Barrier(2)

    def copy(source, target):
        together.wait(60)
        for _ in range(50):
            copy_threads(source, target)

    with ThreadPoolExecutor(2) as pool:
        for done in (pool.submit(copy, one, two), pool.submit(copy, two, one)):
            assert done.result(120) is None


# Costs


def test_a_growing_history_costs_what_it_grew_by(tmp_path, monkeypatch):
    unpacked = 0
    original = Codec.unpack

    def counting(codec, data, path=""):
        nonlocal unpacked
        unpacked += len(data)
        return original(codec, data, path)

    source, target = FileSystemSaver(tmp_path / "a", fsync="never"), FileSystemSaver(tmp_path / "b", fsync="never")
    log = FrozenList()
    for number in range(500):
        log = FrozenList([*log, f"message {number} " + "x" * 100])
        source.put(T, checkpoint(number, "a", "a", {"log": log}))
    monkeypatch.setattr(Codec, "unpack", counting)
    copy_threads(source, target)
    assert target.size() <= source.size() * 1.02
    assert unpacked < source.size() * 12  # one state after another would be 125 times the last one


@dataclass(eq=False)
class Tracked:
    n: int


class Loads(MemorySaver):
    """Makes states whose values are counted while they are in memory."""

    def __init__(self):
        super().__init__()
        self.alive = weakref.WeakSet()
        self.most = 0

    def list(self, config=None):
        return [with_lazy_state(each, partial(self._load, each)) for each in super().list(config)]

    def _load(self, checkpoint):
        gc.collect(1)
        value = Tracked(checkpoint.state["n"])
        self.alive.add(value)
        self.most = max(self.most, len(self.alive))
        return FrozenDict({"x": value})


def test_one_state_is_in_memory_at_a_time():
    source, target = Loads(), MemorySaver()
    target.register_types(Tracked)
    for n in range(12):
        source.put(T, checkpoint(n, "a", "b", {"n": n}))
    copy_threads(source, target)
    assert [each.state["x"].n for each in target.list(T)] == [*range(11, -1, -1)]
    assert 1 <= source.most <= 3


def test_threads_that_cannot_be_copied_keep_no_states_in_memory():
    """The target does not know the type of an object in them."""
    source = Loads()
    for thread in ("\n", *(f"t{number:02}" for number in range(22))):
        put_one(source, thread)
    target = MemorySaver()
    with pytest.raises(CheckpointSerializationError, match=r"Tracked.*'\\n', t00, .*t18 and 3 more; no other is done"):
        copy_threads(source, target)
    assert 1 <= source.most <= 3
    target.register_types(Tracked)
    assert len(copy_threads(source, target).threads) == 23
