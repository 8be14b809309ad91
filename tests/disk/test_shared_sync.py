"""One sync covers pending writes and the put that follows them; the writes never return before they are durable."""

import threading

import pytest

from graphkit import Checkpoint, CheckpointStorageError, RunnableConfig
from graphkit.saver_kit import Codec
from savers import FileSystemSaver
from savers._filesystem import sync
from tests.support.disks import CountingIO, quiet, set_longest_wait

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
    saver.put_packed_writes(ROOT, "a", {name: Codec().pack(1, name)}, expects_put=True)


def put(saver):
    saver.put(ROOT, made("b"), unique=True)


def join(threads):
    """Wait until threads have ended, for much less time than a write waits for its put."""
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def start(call, *arguments):
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    return thread


def test_one_sync_covers_the_writes_and_the_put(saver, io, monkeypatch):
    set_longest_wait(monkeypatch, 60)
    threads = [start(write, saver, f"w{n}") for n in range(2)]
    for _ in threads:
        io.appended.acquire()
    put(saver)
    join(threads)
    assert io.calls.count("fdatasync") == 1
    assert saver.get_writes(ROOT.with_check_point_id("a")) == {"w0": 1, "w1": 1}


def test_a_caller_that_puts_only_after_its_writes_rarely_waits(saver, io, monkeypatch):
    set_longest_wait(monkeypatch, 0)
    waits = []
    wait = sync._Waits.wait
    monkeypatch.setattr(sync._Waits, "wait", lambda self: waits.append(self) or wait(self))
    for n in range(300):
        write(saver, f"w{n}")
        put(saver)
    assert io.calls.count("fdatasync") == 600
    assert 0 < len(waits) <= 11


def test_other_writes_do_not_wait(saver, io, monkeypatch):
    set_longest_wait(monkeypatch, 60)
    saver.put_writes(ROOT.with_check_point_id("a"), {"answer": 1})
    assert io.calls.count("fdatasync") == 1


def test_few_writes_wait_so_that_an_executor_has_threads_for_the_put(saver, io, monkeypatch):
    set_longest_wait(monkeypatch, 60)
    waiting = [start(write, saver, f"w{n}") for n in range(sync._MOST_WAITING)]
    for _ in waiting:
        io.appended.acquire()
    mode = saver._sync_mode
    while mode._waiting < len(waiting):
        pass
    write(saver, "does not wait")
    assert io.calls.count("fdatasync") == 1
    put(saver)
    join(waiting)


def test_if_the_log_cannot_be_rewritten_after_the_failed_sync_the_writes_are_refused_too(saver, io, monkeypatch):
    put_failed = threading.Event()
    monkeypatch.setattr(sync.SyncAlways, "_wait_for_put", lambda *_: put_failed.wait(60))
    failures = []

    def try_write():
        try:
            write(saver)
        except CheckpointStorageError as error:
            failures.append(error)

    def refuse(*_):
        raise OSError(5, "injected")

    thread = start(try_write)
    io.appended.acquire()
    io.fails_in = threading.get_ident()
    with quiet(), monkeypatch.context() as patch:
        patch.setattr(io, "rename", refuse)
        with pytest.raises(CheckpointStorageError):
            put(saver)
        put_failed.set()
        thread.join()
    assert len(failures) == 1, "the system says only once that a sync failed"
    put(saver)
    assert [info.id for info in FileSystemSaver(saver.base_directory).history(ROOT)] == ["b", "a"]
