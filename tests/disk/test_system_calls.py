"""The calls of the system: the size and the names of an open file, and writing that begins before the wait for it."""

import errno
import os
import sys
from pathlib import Path

import pytest

from graphkit import END, START, RunnableConfig, StateGraph
from savers import FileSystemSaver
from tests.support.disks import CountingIO, FileIO


@pytest.fixture
def opened(tmp_path):
    io = FileIO()
    fd = io.open(str(tmp_path / "file"), write=True, create=True)
    yield io, fd
    io.close(fd)


def test_a_failure_is_an_error_with_the_path(opened, tmp_path):
    io, fd = opened
    io.close(fd)
    io._paths[fd] = str(tmp_path / "file")
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        io.start_writing(fd)
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(tmp_path / "file"))
    assert io.open(str(tmp_path / "file"), write=True) == fd


def test_a_file_that_does_not_have_the_call_is_no_error(opened):
    # A pipe refuses it (ESPIPE), as some file systems do.
    io, _ = opened
    ends = os.pipe()
    try:
        io.start_writing(ends[1])
    finally:
        for end in ends:
            os.close(end)


def test_a_system_without_the_call_does_nothing(monkeypatch):
    monkeypatch.setattr(sys, "platform", "other")
    FileIO().start_writing(-1)


@pytest.mark.parametrize(("fsync", "started"), [("always", True), ("never", False), (3600, False)])
def test_only_a_saver_that_waits_for_each_put_starts_the_writing(tmp_path, fsync, started):
    class Noted(CountingIO):
        def start_writing(self, fd):
            self.calls.append("start")
            super().start_writing(fd)

    io = Noted()
    with FileSystemSaver(tmp_path, io=io, fsync=fsync) as saver:
        graph = StateGraph({}).add_node("count", lambda state: {"n": state["n"] + 1}).add_edge(START, "count")
        graph.add_conditional_edges("count", lambda state: END if state["n"] == 30 else "count")
        app = graph.compile(checkpoint_saver=saver)
        io.reset()
        app.invoke({"n": 0}, RunnableConfig("t"))
        order = [call for call in io.calls if call in {"write", "start", "fdatasync"}]
    if started:
        assert order.count("start") > 25
        assert "".join(call[0] for call in order).count("wsf") == order.count("start")
    else:
        assert "start" not in order


# The size and the names, by statx where the system has it and by fstat elsewhere


SYSTEMS = {"here": {}, "not Linux": {"platform": "other"}, "big-endian": {"byteorder": "big"}}


@pytest.mark.parametrize("system", SYSTEMS)
def test_it_is_what_fstat_returns_or_an_error(opened, tmp_path, monkeypatch, system):
    for name, value in SYSTEMS[system].items():
        monkeypatch.setattr(sys, name, value)
    io, fd = opened
    for size in (0, 1, 4096, (1 << 33) + 5):
        io.truncate(fd, size)
        assert io.measure(fd) == (size, 1)
    file = tmp_path / "file"
    second = tmp_path / "second"
    os.link(file, second)
    assert io.measure(fd) == (size, 2)
    second.unlink()
    file.unlink()
    assert io.measure(fd) == (size, 0)
    other = os.dup(fd)
    os.close(other)
    with pytest.raises(OSError, match="Bad file descriptor"):
        io.measure(other)


def test_a_new_file_may_lose_its_name_to_another_process_at_once(tmp_path, monkeypatch):
    io = FileIO()
    make = os.open

    def make_and_lose(path, *arguments):
        fd = make(path, *arguments)
        Path(path).unlink()
        return fd

    monkeypatch.setattr(os, "open", make_and_lose)
    fd = io.open(str(tmp_path / "tmp-marker"), write=True, create=True)
    assert io.fstat(fd).st_nlink == 0
    io.close(fd)
