"""SIGKILL at each call that changes a file, of every operation: each history is whole, and the next process goes on.

`test_crash_states.py` takes the power away. Examples are killed at random in tests/api.
"""

import shutil
from functools import partial

import pytest

from graphkit import RunnableConfig
from graphkit.operations import erase, erase_where
from graphkit.transfer import copy_threads
from savers import FileSystemSaver
from tests.disk.crashes import (
    STEP_IDS,
    STEPS,
    config_of,
    expect_each,
    expect_whole,
    grown,
    made,
    prepare,
    view,
    views_around,
)
from tests.support import erasure, sealed
from tests.support.checkpoints import make_checkpoint
from tests.support.contents import read_all
from tests.support.disks import count_calls, is_killed_at, quiet
from tests.support.terminal import checkpoint
from tests.support.threads import TYPES, assert_same, everything, exact

# Since 3.12 a fork beside other threads warns; none of them is in the middle of anything here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
T = config_of()


def kill_at_each_call(store, operate, sweep, most):
    """Let copies of a store be operated on by processes that are killed; yield each copy, and the number of the call.

    A write is killed half-way. One more copy comes first: on it the operation ends.

    Args:
        store: the directory of the store.
        operate: called with a directory and the file system to use there.
        sweep: the fixture.
        most: how many calls the default run takes.
    """
    whole = shutil.copytree(store, store.with_name("whole"))
    change = partial(operate, whole)
    calls = count_calls(change)
    yield None, whole
    for number in sweep.some(range(calls), most):
        root = shutil.copytree(store, store.with_name(f"killed {number}"))
        change = partial(operate, root)
        assert is_killed_at(number, change, part=0.4), number
        yield number, root
        shutil.rmtree(root)


# Changes of one thread


def make_step(root, steps, io):
    _, step = STEPS[steps]
    step(FileSystemSaver(root, lock_timeout=0, io=io))


@pytest.mark.requirement("promise 2", "H8")
@pytest.mark.parametrize("steps", range(len(STEPS)), ids=STEP_IDS)
def test_killed_at_any_call_it_leaves_what_was_there_or_what_was_wanted(steps, tmp_path, sweep):
    """For savers that had the store open all along, and for those that come afterwards. Either goes on first."""
    views = views_around(steps)
    for number in sweep.some(range(count_kills(tmp_path / "counted", steps)), 5):
        root = tmp_path / str(number)
        saver = prepare(FileSystemSaver(root, fsync="never"), steps)
        watcher = FileSystemSaver(root, fsync="never")
        before = views[:1]
        expect_whole(view(watcher), before)
        change = partial(make_step, root, steps)
        assert is_killed_at(number, change, part=0.4)
        other = FileSystemSaver(root, fsync="never")
        expect_each(view(other), views)
        found = view(watcher)
        expect_each(found, views)
        live = {thread for thread in found if any(version is None for _, version in found[thread])}
        assert {*other.threads()} - {"u"} == live - {"u"}, "an unfinished copy is a thread"
        allowed = views
        savers = [other, saver, watcher] if number % 2 else [saver, watcher, other]
        histories = [("t", ""), ("u", ""), ("t", "inner"), ("u", "inner"), ("t", "")]
        for turn, (thread, namespace) in enumerate(histories, 900):
            writer = savers[turn % 3]
            writer.put(config_of(thread, namespace), made(turn))
            allowed = [grown(expected, thread, namespace, turn) for expected in allowed]
            of_thread = [{thread: expected[thread]} for expected in allowed]
            expect_each(view(watcher, [thread]), of_thread)
        with FileSystemSaver(root) as fresh:
            found = view(fresh)
            expect_whole(found, allowed)
            for reader in savers:
                assert view(reader) == found
        for thread in ("t", "u"):
            assert other.delete(thread)
            found = view(watcher, [thread])
            assert found == {thread: {}}
        for used in savers:
            used.close()


def count_kills(root, steps):
    prepare(FileSystemSaver(root, fsync="never"), steps).close()
    return count_calls(partial(make_step, root, steps))


def test_these_were_hundreds_of_kills(tmp_path):
    assert sum(count_kills(tmp_path / str(steps), steps) for steps in range(len(STEPS))) >= 150


# Operations on many threads


@pytest.mark.requirement("P73")
def test_an_erasure_that_was_killed_is_completed_by_a_second_one(tmp_path, sweep):
    store = tmp_path / "store"
    with FileSystemSaver(store, compression=None, fsync="never") as saver:
        erasure.fill(saver)
        saver.put(RunnableConfig("other"), make_checkpoint(1))
    states = set()
    numbers = []

    def erase_thread(root, io):
        erase(FileSystemSaver(root, compression=None, io=io), erasure.MARKER)

    for number, root in kill_at_each_call(store, erase_thread, sweep, 25):
        numbers.append(number)
        states.add(tuple(sorted(name[:3] for name in erasure.find_files(root))))
        with FileSystemSaver(root, compression=None) as again:
            if len(numbers) % 2:
                assert erase(again, erasure.MARKER).ok
            else:
                # A thread whose delete was begun is not found any more.
                assert all(report.ok for report in erase_where(again, {"user": erasure.MARKER}))
                assert again.erase_deleted() == []
            assert erasure.find_files(root) == [], f"killed at call {number}"
            assert again.get("other").state["n"] == 1
            assert again.verify().ok
    assert len(numbers) > 20
    assert len(states) > 3, states


def test_a_copy_that_was_killed_is_continued(tmp_path, sweep):
    source = everything(FileSystemSaver(tmp_path / "source", fsync="never", types=TYPES))
    source.release(T)
    everything(source)
    source.put(RunnableConfig("u"), checkpoint(8, "a", "b", {"n": 1}))
    (tmp_path / "store").mkdir()
    seen = set()

    def copy_all(root, io):
        copy_threads(source, FileSystemSaver(root, fsync="never", types=TYPES, io=io))

    for _, root in kill_at_each_call(tmp_path / "store", copy_all, sweep, 16):
        target = FileSystemSaver(root, fsync="never", types=TYPES)
        before = set()
        for thread in target.threads():
            config = RunnableConfig(thread)
            for copy in target.list(config):
                if "graphkit:incomplete" not in copy.metadata:
                    before.add(copy.id)
            infos = target.history(config)
            if infos and infos[0].status != "incomplete":
                assert_same(source, target, thread, thread)
        copied = copy_threads(source, target)
        assert copied.checkpoints + copied.skipped_checkpoints == 11
        assert copied.versions + copied.skipped_versions == 1
        assert copied.skipped_checkpoints >= len(before)
        seen.add(copied.skipped_checkpoints)
        assert_same(source, target)
        assert_same(source, target, "u", "u")
        for namespace in ("", "sub"):
            config = config_of("t", namespace)
            released = source.tag(config, 1).checkpoints
            copied = target.tag(config, 1).checkpoints
            assert [*map(exact, copied)] == [*map(exact, released)]
        assert target.verify().ok
        target.close()
    assert len(seen) > 4
    source.close()


def open_sealed(root, cipher, **options):
    return FileSystemSaver(root, fsync="never", lock_timeout=0, cipher=cipher, **options)


def read_sealed(root, cipher):
    with open_sealed(root, cipher) as saver:
        assert saver.verify().ok
        return read_all(saver)


def test_a_rotation_that_was_killed_loses_nothing_and_goes_on(tmp_path, sweep):
    store = tmp_path / "store"
    sealed.fill_rotatable(partial(open_sealed, store))
    before = read_sealed(store, sealed.BOTH)

    def rotate(root, io):
        open_sealed(root, sealed.BOTH, io=io).rotate()

    for number, root in kill_at_each_call(store, rotate, sweep, 20):
        assert read_sealed(root, sealed.BOTH) == before, number
        with open_sealed(root, sealed.BOTH) as saver, quiet():
            saver.rotate()
        # Without the old key: no record is sealed by it any more.
        assert read_sealed(root, sealed.NEW) == before, number
        assert not [*root.rglob("tmp-*")]
