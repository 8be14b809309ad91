"""More threads than logs may be open: how many, and what is brought to the disk how often (D4)."""

import resource
import shutil
from weakref import WeakKeyDictionary

import pytest

from graphkit import CheckpointStorageError, RunnableConfig
from savers import FileSystemSaver
from savers._filesystem import store as store_module
from savers._log import catalogue
from tests.support.checkpoints import list_numbers, make_checkpoint
from tests.support.disks import CountingIO, HookedIO, failing, list_open_files, noting_calls
from tests.support.logs import limit_cache, locate_log

T = RunnableConfig("t")
THREADS = 60
TURNS = 3


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(catalogue, "_max_descriptors", lambda: 80)
    assert catalogue._max_open_logs() <= 20


def put_in_turns(saver, namespace=""):
    for turn in range(TURNS):
        for number in range(THREADS):
            saver.put(RunnableConfig(f"thread-{number}", checkpoint_ns=namespace), make_checkpoint(turn))


@pytest.mark.parametrize("fsync", ["always", 3600.0])
def test_the_directories_of_a_log_are_synced_once_however_often_it_is_opened(fsync, tmp_path):
    io = CountingIO()
    saver = FileSystemSaver(tmp_path, fsync=fsync, io=io)
    io.reset()
    put_in_turns(saver)
    saver.flush()
    # Of each thread its own directory and the root; one for the marker.
    assert io.calls.count("fsync_dir") == 2 * THREADS + 1
    if fsync == "always":
        assert io.calls.count("fdatasync") == TURNS * THREADS
    saver.close()
    io.reset()
    saver.put(RunnableConfig("thread-1"), make_checkpoint(9))
    assert io.calls.count("fsync_dir") == 0, "closing the saver does not take the names back"
    saver.close()


@pytest.mark.parametrize("change", ["delete", "release", "restored", "prune"])
def test_a_log_that_takes_the_place_of_another_has_its_names_synced(change, tmp_path):
    io = CountingIO()
    saver = FileSystemSaver(tmp_path / "store", io=io)
    config = RunnableConfig("t")
    saver.put(config, make_checkpoint(0))
    saver.put(config, make_checkpoint(1))
    saver.close()
    match change:
        case "delete":
            saver.delete("t")
        case "release":
            saver.release(config)
        case "prune":
            saver.prune("t", keep_last=1)
        case "restored":
            home = locate_log(tmp_path / "store").parent
            shutil.copytree(home, tmp_path / "backup")
            shutil.rmtree(home)
            shutil.copytree(tmp_path / "backup", home)
    io.reset()
    saver.put(config, make_checkpoint(2))
    assert io.calls.count("fsync_dir") == 2
    saver.close()


def test_names_whose_sync_failed_are_not_taken_for_synced(tmp_path):
    io = HookedIO()
    saver = FileSystemSaver(tmp_path, io=io)
    saver.put(RunnableConfig("other"), make_checkpoint(0))
    # That of the thread, and both of the rewritten log.
    with failing(io, "fsync_dir", times=3), pytest.raises(CheckpointStorageError):
        saver.put(RunnableConfig("t"), make_checkpoint(0))
    with noting_calls(io) as calls:
        saver.put(RunnableConfig("t"), make_checkpoint(1))
    assert calls.count("fsync_dir") >= 2
    saver.close()


def test_only_so_many_names_are_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "KNOWN_IDS", 7)
    saver = FileSystemSaver(tmp_path)
    for number in range(30):
        saver.put(RunnableConfig(f"thread-{number}"), make_checkpoint(0))
    assert len(saver._store._synced_names) <= 7
    saver.close()


@pytest.mark.parametrize(
    ("soft", "logs"), [(64, 16), (1024, 256), (4000, 1000), (1 << 20, 4096), (resource.RLIM_INFINITY, 4096)]
)
def test_the_number_of_open_logs_follows_the_limit_of_descriptors(soft, logs, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert catalogue._max_open_logs() == logs


def test_savers_share_what_may_be_open_and_leave_each_other_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "_max_open_logs", lambda: 100)
    monkeypatch.setattr(catalogue, "_ALL_OPEN_LOGS", WeakKeyDictionary())
    savers = {name: FileSystemSaver(tmp_path / name, fsync="never") for name in ("small", "large", "other")}

    def use(name, threads):
        for number in range(threads):
            savers[name].put(RunnableConfig(f"thread-{number}"), make_checkpoint(0))
        return [sum(file.endswith("/log") for file in list_open_files(tmp_path / each)) for each in savers]

    assert use("small", 10) == [10, 0, 0]
    assert use("large", 200) == [10, 90, 0]
    assert use("other", 200) == [10, 90, 45]
    assert use("large", 200) == [10, 45, 45]
    assert use("small", 200) == [33, 45, 45]
    for saver in savers.values():
        saver.close()


def test_one_state_may_be_larger_than_the_cache(opener, monkeypatch):
    limit_cache(monkeypatch, 1000)
    saver = opener()
    for number in range(4):
        text = "x" * 5000 + str(number)
        saver.put(T, make_checkpoint(number, text=text))
    assert list_numbers(saver, T) == [3, 2, 1, 0]
    past = saver.list(T)[2]
    older = T.with_check_point_id(past.id)
    saver.put_writes(older, {"key": 1})
    saver.add_tags(T, "tag")
    assert saver.tags_of(T) == ("tag",)
    assert saver.get_writes(older) == {"key": 1}


FEW = """
import resource, sys
from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
soft = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
savers = [FileSystemSaver(f"{sys.argv[1]}/{number}", fsync="never") for number in range(int(sys.argv[3]))]
held = []
for turn in range(2):
    for number in range(90):
        for saver in savers:
            config = RunnableConfig(f"u{number}")
            saver.put(config, Checkpoint(node_id="a", next_node_id="b", state={"n": turn}))
            saver.get(config)
for saver in savers:
    assert len(saver.threads()) == 90
    saver.release(RunnableConfig("u0"))
    assert saver.prune(keep_last=1) == 89
    assert saver.interrupts() == []
    assert saver.verify().ok
    saver.copy("u1", "copied")
    with saver.run_lock(RunnableConfig("u2")):
        saver.delete("u2")
print("fine")
"""


@pytest.mark.parametrize(("soft", "savers"), [(64, 1), (96, 2)])
def test_a_process_that_may_open_few_files_closes_idle_ones(soft, savers, launcher, tmp_path):
    run = launcher.run("-c", FEW, tmp_path, soft, savers)
    assert (run.stdout, run.stderr) == ("fine\n", "")
