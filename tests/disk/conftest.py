"""Tools for looking behind the file saver's back."""

import os
import struct
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
from savers._filesystem import layout, log_bytes
from savers._filesystem.io import FileIO
from savers._log import frame, history, records, writer
from savers._log.frame import HEADER_SIZE


@pytest.fixture(autouse=True)
def short_logs_are_extended(monkeypatch):
    """The logs of these tests are short, and are extended ahead as if they were long."""
    monkeypatch.setattr(log_bytes, "_SHORT", 0)


def step(n, **state):
    return Checkpoint(node_id=f"n{n}", next_node_id=f"n{n + 1}", state={"n": n, **state}, metadata={"step": n})


def log_of(root, thread="t", namespace=""):
    return Path(root, layout.locate_thread(thread).name, layout.namespace_name(namespace), "log")


def frames_of(path):
    """All records of a log, read by the specification's own words rather than by the code under test."""
    data = Path(path).read_bytes()
    frames, at = [], 64
    # Zeros follow the last record of a log that a writer has extended ahead; every marker begins with C1.
    while at < len(data) and data[at]:
        length = struct.unpack_from("<I", data, at + 4)[0]
        size, overhead = 40, 45
        flags, back, key, seq, fid, unsynced, boot, zeros, _, type_ = struct.unpack_from("<BIIIIHHHIB", data, at + 12)
        frames.append(
            SimpleNamespace(
                offset=at, end=at + length + overhead, type=type_, flags=flags, back=back, key=key, seq=seq, fid=fid,
                unsynced=unsynced, boot=boot, zeros=zeros, payload=data[at + size : at + size + length], size=size,
            )
        )  # fmt: skip
        at += length + overhead
    return frames


class CountingIO(FileIO):
    """The real file system, and how often and how much it was asked."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.read = 0
        self.written = 0

    def reset(self):
        self.calls, self.read, self.written = [], 0, 0

    def read_at(self, fd, offset, length):
        data = super().read_at(fd, offset, length)
        self.calls.append("read")
        self.read += len(data)
        return data

    def write_at(self, fd, offset, data):
        self.calls.append("write")
        self.written += len(data)
        return super().write_at(fd, offset, data)

    def fstat(self, fd):
        self.calls.append("fstat")
        return super().fstat(fd)

    def measure(self, fd):
        self.calls.append("measure")
        return super().measure(fd)

    def stat(self, path):
        self.calls.append("stat")
        return super().stat(path)

    def open(self, path, **options):
        self.calls.append("open")
        return super().open(path, **options)

    def fdatasync(self, fd):
        self.calls.append("fdatasync")
        super().fdatasync(fd)

    def fsync(self, fd):
        self.calls.append("fsync")
        super().fsync(fd)

    def fsync_dir(self, path):
        self.calls.append("fsync_dir")
        super().fsync_dir(path)


def open_files():
    """How many descriptors this process has."""
    return len([*Path("/proc/self/fd").iterdir()])


def open_files_in(directory):
    """The files in a directory that this process has open. Others of the process may come and go meanwhile."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            found.append(str(link.readlink()))
    return [file for file in found if file.startswith(f"{directory}/")]


@pytest.fixture(autouse=True)
def ended_flushers():
    """Ends the threads that sync every so many seconds, of savers whose process is said to have died."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        arguments = getattr(thread, "_args", ())  # a thread that ends meanwhile has lost them
        if thread.name == "graphkit-flush" and arguments:
            (stop,) = arguments
            stop.set()
            thread.join()


@pytest.fixture
def disk():
    """The tools, in one place."""
    return SimpleNamespace(
        step=step,
        log_of=log_of,
        open_files=open_files,
        open_files_in=open_files_in,
        frames_of=frames_of,
        CountingIO=CountingIO,
        header=HEADER_SIZE,
        layout=layout,
    )


MAX_PAYLOAD = 1 << 16
"""The most bytes of a record's payload, where the tests make records short."""


@pytest.fixture
def short_records(monkeypatch):
    """A record has at most 64 KiB, not 1 GiB."""
    for module in (frame, history, records):
        monkeypatch.setattr(module, "MAX_PAYLOAD", MAX_PAYLOAD)
    monkeypatch.setattr(log_bytes.FileLogBytes, "max_payload", MAX_PAYLOAD)
    monkeypatch.setattr(writer, "_SPILL_LENGTH", 64)


@pytest.fixture
def config():
    return RunnableConfig(thread_id="t")


@pytest.fixture
def opener(tmp_path):
    """Opens savers on one store, and closes them all at the end."""
    opened = []

    def open_saver(path=None, **options):
        options = {"fsync": "never", **options}
        opened.append(FileSystemSaver(path or tmp_path / "store", **options))
        return opened[-1]

    yield open_saver
    for saver in opened:
        saver.close()


@pytest.fixture
def odd_umask():
    """A umask that would leave nothing to the owner's group, nor to the owner."""
    before = os.umask(0o777)
    yield
    os.umask(before)
