"""Two writers of one history, and writers that die between two objects, on two file systems of fsspec."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from uuid import uuid4

import fsspec
import pytest

from graphkit import END, START, Checkpoint, RunnableConfig, StateGraph
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointStorageError,
)
from savers import ObjectStoreSaver
from tests.support.buckets import act_beside, die_at, replace_operation
from tests.support.disks import Died

CONFIG = RunnableConfig("t")


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    return f"memory://{uuid4().hex}" if request.param == "memory" else f"file://{tmp_path}/bucket"


@pytest.fixture
def saver(url):
    return ObjectStoreSaver(url)


@pytest.fixture
def other(url):
    """A saver of another process, as it were."""
    return ObjectStoreSaver(url)


def make(number, **more):
    return Checkpoint(node_id="a", next_node_id="b", state={"n": number, **more})


def put_numbers(saver, count):
    for number in range(count):
        saver.put(CONFIG, make(number))


def numbers(checkpoints):
    return [checkpoint.state["n"] for checkpoint in checkpoints]


@pytest.mark.requirement("H49")
def test_the_slower_of_two_runs_is_refused_and_has_changed_nothing(url, saver):
    elsewhere = ObjectStoreSaver(url)

    def disturb(state):
        # Run locks hold within a process; another process has none of them.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(elsewhere.put, CONFIG, make(99)).result()
        return {"n": 1}

    graph = StateGraph({}).add_node("a", disturb).add_edge(START, "a").add_edge("a", END)
    with pytest.raises(CheckpointConflictError, match="another process"):
        graph.compile(checkpoint_saver=saver).invoke({"n": 0}, CONFIG)
    assert 99 in numbers(saver.list(CONFIG))
    assert 1 not in numbers(saver.list(CONFIG))


def test_a_run_that_releases_its_thread_goes_on_in_all_namespaces(saver):
    nested = CONFIG.replace(checkpoint_ns="sub")
    with saver.run_lock(CONFIG):
        saver.put(nested, make(1))
        saver.release(CONFIG)
        saver.put(nested, make(2))
    assert numbers(saver.list(nested)) == [2]


CHANGES = {
    "put": lambda saver: saver.put(CONFIG, make(9)),
    "prune": lambda saver: saver.prune("t", keep_last=2),
    "release": lambda saver: saver.release(CONFIG),
    "delete": lambda saver: saver.delete("t"),
}


@pytest.mark.parametrize("disturbance", ["prune", "release", "delete"])
def test_what_is_put_beside_other_changes_is_lost_only_by_a_delete(url, disturbance):
    changes = {**CHANGES, "prune": lambda saver: saver.prune("t", keep_last=1000)}
    together = Barrier(3)

    def put(offset):
        saver = ObjectStoreSaver(url)
        together.wait()
        for number in range(offset, offset + 12):
            saver.put(CONFIG, make(number))

    def disturb():
        saver = ObjectStoreSaver(url)
        together.wait()
        for _ in range(4):
            changes[disturbance](saver)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(put, 0), pool.submit(put, 100), pool.submit(disturb)]:
            done.result()
    saver = ObjectStoreSaver(url)
    found = numbers(saver.list(CONFIG))
    for version in saver.versions_by_thread_id("t"):
        found += numbers(saver.tag(CONFIG, version).checkpoints)
    assert len(found) == len(set(found))
    if disturbance != "delete":
        assert sorted(found) == [*range(12), *range(100, 112)]
    saver.delete("t")
    assert (saver.size("t"), saver.list(CONFIG), saver.threads(released=True)) == (0, [], [])


def test_a_late_writer_of_a_replaced_log_is_refused_at_any_place(other, saver):
    """The names of the old log are free again, except the first; the log after it is what counts."""
    saver.put(CONFIG, make(0))
    for number in range(1, 4):
        other.put(CONFIG, make(number))
    other.prune("t", keep_last=1)
    other.put(CONFIG, make(4))
    saver.put(CONFIG, make(5))
    assert numbers(other.list(CONFIG)) == [5, 4, 3]
    other.delete("t")
    saver.put(CONFIG, make(6))
    assert numbers(other.list(CONFIG)) == [6]


@pytest.mark.parametrize("is_stored", [False, True])
def test_an_id_is_appended_again_though_the_log_is_replaced_meanwhile(url, monkeypatch, is_stored, other):
    """The rewrite comes just before the object of the late writer, or just after it and takes the record along."""
    late = ObjectStoreSaver(url)
    first = make(1)
    again = first.with_state(make(3).state)
    for checkpoint in (make(0), first, make(2)):
        late.put(CONFIG, checkpoint)
    keep_last = 3 if is_stored else 2
    act_beside(monkeypatch, "create", lambda: other.prune("t", keep_last=keep_last), is_done=is_stored)
    late.put(CONFIG, again)

    for saver in (late, other):
        assert numbers(saver.list(CONFIG)) == [3, 2, 1]


def test_a_checkpoint_that_a_release_took_along_is_not_put_again(monkeypatch, saver, other):
    saver.put(CONFIG, make(0))

    def release_twice():
        for number in (2, 3):
            other.release(CONFIG)
            other.put(CONFIG, make(number))

    act_beside(monkeypatch, "create", release_twice, is_done=True)
    saver.put(CONFIG, make(1))
    assert find_everywhere(saver, CONFIG) == [0, 1, 2, 3]


@pytest.mark.parametrize("operation", ["create", "empty", "remove"])
@pytest.mark.parametrize("count", range(8))
@pytest.mark.parametrize("change", CHANGES)
def test_a_writer_may_die_before_any_object(url, monkeypatch, operation, count, change, saver):
    child = RunnableConfig("t", checkpoint_ns="child")
    for number in range(4):
        saver.put(CONFIG, make(number))
        saver.put(child, make(number))
    with monkeypatch.context() as patch:
        die_at(patch, count, [operation])
        with suppress(Died):
            CHANGES[change](saver)
    after = ObjectStoreSaver(url)
    assert change == "delete" or after.threads(released=True) == ["t"]
    after.put(CONFIG, make(10))
    left = numbers(after.list(CONFIG))
    allowed = {
        "put": ([10, 3, 2, 1, 0], [10, 9, 3, 2, 1, 0]),
        "prune": ([10, 3, 2, 1, 0], [10, 3, 2]),
        "release": ([10, 3, 2, 1, 0], [10]),
        "delete": ([10, 3, 2, 1, 0], [10]),
    }
    assert left in allowed[change]

    if change == "release":
        assert find_everywhere(after, child) == [0, 1, 2, 3]
        versions = [numbers(after.tag(CONFIG, each).checkpoints) for each in after.versions_by_thread_id("t")]
        assert versions == ([[3, 2, 1, 0]] if left == [10] else [])
    after.delete("t")
    assert (after.size("t"), after.threads(released=True)) == (0, [])


def test_a_repeated_request_meets_its_own_object(url, monkeypatch, saver):
    """A client that gets no answer sends a request again, and its own object is there."""

    def twice(create):
        return lambda *args: (create(*args), create(*args))

    replace_operation(monkeypatch, "create", twice)
    put_numbers(saver, 3)
    saver.prune("t", keep_last=2)
    assert numbers(ObjectStoreSaver(url).list(CONFIG)) == [2, 1]


def test_a_put_whose_place_was_taken_and_is_free_again_is_put_again(url, monkeypatch, saver):
    """Another writer's object was there, and a delete has removed it since."""

    def refuse():
        raise FileExistsError

    act_beside(monkeypatch, "create", refuse)
    saver.put(CONFIG, make(1))
    assert numbers(ObjectStoreSaver(url).list(CONFIG)) == [1]


@pytest.mark.parametrize("wrong", ["", None, 3, "nonsense://x", "memory://a*b"])
def test_a_wrong_url_is_refused(wrong):
    with pytest.raises(CheckpointerConfigurationError):
        ObjectStoreSaver(wrong)


def test_storage_that_refuses_is_named(tmp_path):
    (tmp_path / "bucket").write_text("no directory")
    with pytest.raises(CheckpointStorageError, match="bucket"):
        ObjectStoreSaver(f"file://{tmp_path}/bucket").put(CONFIG, make(1))


SEGMENT = "00000001.00000000000000000000"


@pytest.mark.parametrize(
    "name",
    [
        *("README", "t/README", "t/~/notes.txt", "t/~/00000001.old", "other/file"),
        *(SEGMENT, f"t/{SEGMENT}", f"t/~/{SEGMENT}.old/file", "t/~/directory/file"),
        *(f"t/~/{SEGMENT[:-1]}1/file", f".{'0' * 32}/file"),
    ],
)
def test_objects_of_others_are_passed_over(url, name, saver):
    saver.put(CONFIG, make(1))
    with fsspec.open(f"{url}/{name}", "wb", auto_mkdir=True) as foreign:
        foreign.write(b"text")
    assert saver.threads() == ["t"]
    assert saver.erase_deleted(full=True) == ()
    saver.put(CONFIG, make(2))
    assert numbers(saver.release(CONFIG).checkpoints) == [2, 1]
    assert (saver.delete("t"), saver.delete("t")) == (True, False)
    with fsspec.open(f"{url}/{name}", "rb") as foreign:
        assert foreign.read() == b"text"


def test_what_was_written_before_a_run_is_no_conflict(saver, other):
    nested = CONFIG.replace(checkpoint_ns="n")
    saver.put(nested, make(0))
    saver.put(CONFIG, make(1))
    other.put(nested, make(2))
    with saver.run_lock(CONFIG):
        saver.put(nested, make(3))
        other.put(CONFIG, make(4))
        with pytest.raises(CheckpointConflictError):
            saver.put(CONFIG, make(5))
    other.release(CONFIG)
    for config in (CONFIG, nested):
        other.put(RunnableConfig("u", checkpoint_ns=config.checkpoint_ns), make(6))
    saver.copy("u", "t")
    assert numbers(saver.list(nested)) == [6]


def test_a_version_of_a_deleted_thread_is_not_taken_for_a_new_one(saver, other):
    for number in range(2):
        saver.put(CONFIG, make(number))
        released = saver.release(CONFIG)
        assert numbers(released.checkpoints) == numbers(other.tag(CONFIG, 1).checkpoints) == [number]
        saver.delete("t")


def test_a_copy_whose_source_is_deleted_as_it_begins_finds_none(url, monkeypatch, saver):
    saver.put(CONFIG, make(0))
    read = ObjectStoreSaver.list

    def delete_and_list(saver, config):
        ObjectStoreSaver(url).delete("t")
        return read(saver, config)

    monkeypatch.setattr(ObjectStoreSaver, "list", delete_and_list)
    with pytest.raises(CheckpointNotFoundError):
        saver.copy("t", "u")
    assert saver.threads() == []


def test_the_key_of_a_log_that_is_replaced_as_it_is_read(url, monkeypatch, saver):
    put_numbers(saver, 2)
    act_beside(monkeypatch, "read", lambda: ObjectStoreSaver(url).prune("t", keep_last=1))
    assert saver.own_key(CONFIG) is None


@pytest.mark.parametrize("change", [None, "prune", "compact"])
@pytest.mark.parametrize("count", range(1, 4))
def test_what_changes_a_thread_finishes_a_release_first(url, monkeypatch, count, change, saver, other):
    put_numbers(saver, 3)
    other.put_writes(CONFIG, {"w": 1})
    other.put_writes(CONFIG, {"w": 2})
    with monkeypatch.context() as patch, suppress(Died):
        die_at(patch, count, ["create"])
        saver.release(CONFIG)
    assert other.list(CONFIG) == []
    if change == "prune":
        other.prune("t", keep_last=1)
    elif change == "compact":
        other.compact("t")
    other.put(CONFIG, make(9))
    for after in (other, ObjectStoreSaver(url)):
        assert numbers(after.list(CONFIG)) == [9]
        assert after.versions_by_thread_id("t") == [1]
        assert numbers(after.tag(CONFIG, 1).checkpoints) == [2, 1, 0]


def find_everywhere(saver, config):
    """The numbers of all checkpoints of a history, live and released, in order."""
    found = numbers(saver.list(config))
    for version in saver.versions_by_thread_id("t"):
        found += numbers(saver.tag(config, version).checkpoints)
    return sorted(found)


def remove_oldest(saver, config, oldest):
    saver.remove(config, [oldest.id])


def finish_and_go_on(saver, config, oldest):
    for each in (CONFIG, config, CONFIG.replace(checkpoint_ns="new")):
        saver.put(each, make(3))


@pytest.mark.parametrize("change", [remove_oldest, finish_and_go_on])
@pytest.mark.parametrize("operation", ["create", "exists", "scan"])
@pytest.mark.parametrize("count", range(12))
def test_a_nested_history_is_in_one_place_after_a_release_beside_a_writer(
    monkeypatch, operation, count, change, other, saver
):
    nested = CONFIG.replace(checkpoint_ns="sub")
    for number in range(3):
        saver.put(CONFIG, make(number))
        saver.put(nested, make(number))
    oldest = saver.list(nested)[-1]
    with monkeypatch.context() as patch:
        calls = act_beside(patch, operation, lambda: change(other, nested, oldest), count)
        saver.release(CONFIG)
    if next(calls) <= count:
        change(other, nested, oldest)
    allowed = {remove_oldest: ([0, 1, 2], [1, 2]), finish_and_go_on: ([0, 1, 2, 3],)}

    for again in (other, saver):
        assert find_everywhere(again, nested) in allowed[change]

    if change is finish_and_go_on:
        assert numbers(other.list(CONFIG)) == numbers(other.list(CONFIG.replace(checkpoint_ns="new")))
    saver.put(nested, make(4))

    assert 4 in numbers(other.list(nested))


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_damaged_nested_history_does_not_keep_its_thread_from_a_release(tmp_path, is_cut):
    saver = ObjectStoreSaver(f"file://{tmp_path}/bucket")
    nested = CONFIG.replace(checkpoint_ns="sub")
    for config in (CONFIG, nested):
        saver.put(config, make(1))
    (segment,) = (tmp_path / "bucket" / "t" / "sub").iterdir()
    segment.write_bytes(b"" if is_cut else b"garbage")
    again = ObjectStoreSaver(f"file://{tmp_path}/bucket")
    assert numbers(again.release(CONFIG).checkpoints) == [1]
    again.put(CONFIG, make(2))
    assert (again.namespaces("t"), again.versions_by_thread_id("t")) == ([""], [1])


def test_a_list_may_lack_what_was_created_while_it_was_made(url, monkeypatch, saver):
    put_numbers(saver, 3)
    lacks = iter([True])

    def scan_slowly(scan):
        def operate(bucket, directory):
            found = scan(bucket, directory)
            if directory == "t/~":
                for _ in lacks:
                    del found[1]
            return found

        return operate

    replace_operation(monkeypatch, "scan", scan_slowly)
    assert numbers(ObjectStoreSaver(url).list(CONFIG)) == [2, 1, 0]


def test_a_damaged_history_hides_no_other(tmp_path):
    saver = ObjectStoreSaver(f"file://{tmp_path}/bucket")
    for thread in ("a", "b"):
        saver.put(thread, make(1))
    damaged = next(path for path in (tmp_path / "bucket" / "a").rglob("*") if path.is_file())
    damaged.write_bytes(b"garbage")

    again = ObjectStoreSaver(f"file://{tmp_path}/bucket")
    assert again.threads() == ["a", "b"]
    assert numbers(again.list("b")) == [1]
    with pytest.raises(CheckpointCorruptionError):
        again.list("a")
    assert list(again.interrupts()) == []
