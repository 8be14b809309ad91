"""The size and the names of an open file, by statx where the system has it and by fstat elsewhere."""

import os
import sys

import pytest

from tests.support.disks import FileIO


@pytest.fixture
def opened(tmp_path):
    io = FileIO()
    fd = io.open(str(tmp_path / "file"), write=True, create=True)
    yield io, fd
    io.close(fd)


SYSTEMS = {"here": {}, "not Linux": {"platform": "other"}, "big-endian": {"byteorder": "big"}}


@pytest.mark.parametrize("system", SYSTEMS)
def test_it_is_what_fstat_says(opened, tmp_path, monkeypatch, system):
    for name, value in SYSTEMS[system].items():
        monkeypatch.setattr(sys, name, value)
    io, fd = opened
    for size in (0, 1, 4096, (1 << 33) + 5):
        io.truncate(fd, size)
        assert io.measure(fd) == (size, 1)
    os.link(tmp_path / "file", tmp_path / "second")
    assert io.measure(fd) == (size, 2)
    (tmp_path / "second").unlink()
    (tmp_path / "file").unlink()
    assert io.measure(fd) == (size, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="statx is a call of Linux")
def test_on_linux_it_is_statx(opened, monkeypatch):
    io, fd = opened
    monkeypatch.setattr(io, "fstat", None)
    assert io.measure(fd) == (0, 1)


def test_a_descriptor_that_is_closed_is_an_error(opened):
    io, fd = opened
    other = os.dup(fd)
    os.close(other)
    with pytest.raises(OSError, match="Bad file descriptor"):
        io.measure(other)
