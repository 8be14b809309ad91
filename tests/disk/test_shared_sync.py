"""One sync covers pending writes and the put that follows them; the writes never return before they are durable."""

import threading

import pytest

from graphkit import Checkpoint, CheckpointStorageError, RunnableConfig
from savers import FileSystemSaver
from savers._filesystem import sync
from tests.disk import crashes
from tests.disk.conftest import CountingIO

ROOT = RunnableConfig("t")


class GatedIO(CountingIO):
    """The real file system, which says when something was appended, and may fail to sync."""

    def __init__(self):
        super().__init__()
        self.appended = threading.Semaphore(0)
        self.fails_in = None

    def write_at(self, fd, offset, data):
        done = super().write_at(fd, offset, data)
        self.appended.release()
        return done

    def fdatasync(self, fd):
        if self.fails_in == threading.get_ident():
            self.fails_in = None
            raise OSError(5, "injected")
        super().fdatasync(fd)


@pytest.fixture
def io():
    return GatedIO()


@pytest.fixture
def saver(tmp_path, io):
    with FileSystemSaver(tmp_path, io=io) as saver:
        saver.put(ROOT, made("a"))
        io.reset()
        while io.appended.acquire(blocking=False):
            pass
        yield saver


def made(name):
    return Checkpoint(id=name, node_id="n", next_node_id="m", state={"name": name})


def write(saver, name="w"):
    config = ROOT.with_check_point_id("a")
    saver.put_writes(config, {name: 1}, put_follows=True)


def put(saver):
    saver._put_next(ROOT, lambda log: made("b"))


def start(call, *arguments):
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    return thread


def test_one_sync_covers_the_writes_and_the_put(saver, io, monkeypatch):
    monkeypatch.setattr(sync, "_LONGEST_WAIT", 60)
    threads = [start(write, saver, f"w{n}") for n in range(2)]
    for _ in threads:
        io.appended.acquire()
    put(saver)
    for thread in threads:
        thread.join()
    assert io.calls.count("fdatasync") == 1
    assert saver.get_writes(ROOT.with_check_point_id("a")) == {"w0": 1, "w1": 1}


def test_writes_that_no_put_follows_are_synced_after_the_wait(saver, io):
    write(saver)
    assert io.calls.count("fdatasync") == 1


def test_a_caller_that_puts_only_after_its_writes_rarely_waits(saver, io, monkeypatch):
    monkeypatch.setattr(sync, "_LONGEST_WAIT", 0)
    log = saver._store.shared_writer("t", "")
    waits = []
    wait = log.put_arrived.wait
    monkeypatch.setattr(log.put_arrived, "wait", lambda timeout: waits.append(timeout) or wait(timeout))
    for n in range(300):
        write(saver, f"w{n}")
        put(saver)
    assert io.calls.count("fdatasync") == 600
    assert len(waits) <= 11


def test_other_writes_do_not_wait(saver, io, monkeypatch):
    monkeypatch.setattr(sync, "_LONGEST_WAIT", 60)
    saver.put_writes(ROOT.with_check_point_id("a"), {"answer": 1})
    assert io.calls.count("fdatasync") == 1


def test_few_writes_wait_so_that_an_executor_has_threads_for_the_put(saver, io, monkeypatch):
    monkeypatch.setattr(sync, "_LONGEST_WAIT", 60)
    waiting = [start(write, saver, f"w{n}") for n in range(sync._MOST_WAITING)]
    for _ in waiting:
        io.appended.acquire()
    mode = saver._sync_mode
    while mode._waiting < len(waiting):
        pass
    write(saver, "does not wait")
    assert io.calls.count("fdatasync") == 1
    put(saver)
    for thread in waiting:
        thread.join()


def test_if_the_shared_sync_fails_the_writes_are_synced_or_refused(saver, io, monkeypatch):
    monkeypatch.setattr(sync, "_LONGEST_WAIT", 0.2)
    failures = []

    def try_write():
        try:
            write(saver)
        except CheckpointStorageError as error:
            failures.append(error)

    thread = start(try_write)
    io.appended.acquire()
    io.fails_in = threading.get_ident()  # not in the thread above, should its wait have ended
    with crashes.quiet(), pytest.raises(CheckpointStorageError):
        put(saver)
    thread.join()
    fresh = FileSystemSaver(saver.base_directory)
    assert [info.id for info in fresh.history(ROOT)] == ["a"]
    assert fresh.get_writes(ROOT.with_check_point_id("a")) == {"w": 1} or failures
