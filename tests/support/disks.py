"""File systems for a saver to run on, and what this process has open."""

import os
from contextlib import contextmanager, suppress
from pathlib import Path

from savers._filesystem import log_bytes, rewrite, sync
from savers._filesystem.io import FileIO as FileIO, preload_modules as preload_modules


class CountingIO(FileIO):
    """The real file system. Counts the calls, and the bytes that were read and written."""

    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.calls = []
        self.read = 0
        self.written = 0
        self.largest_read = 0

    def read_at(self, fd, offset, length):
        data = super().read_at(fd, offset, length)
        self.calls.append("read")
        self.read += len(data)
        self.largest_read = max(self.largest_read, len(data))
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


class HookedIO(FileIO):
    """The real file system. Calls `hook(kind, path)` before each call of `HOOKED`.

    An exception of the hook is the result of the call. Of a write, the hook may return the part that is written.
    """

    def __init__(self, hook=None):
        super().__init__()
        self.hook = hook


HOOKED = (
    "close", "fdatasync", "fstat", "fsync", "fsync_dir", "listdir", "lock", "mkdir", "open", "read_at", "read_file",
    "rename", "rmdir", "stat", "truncate", "unlink", "unlock", "write_at",
)  # fmt: skip


def _hooked(kind):
    def call_hook_first(io, place, *args, **options):
        part = None
        if io.hook is not None:
            part = io.hook(kind, io._paths.get(place, place))
        if part is not None:
            *args, data = args
            args = (*args, data[: max(1, int(len(data) * part))])
        return getattr(super(HookedIO, io), kind)(place, *args, **options)

    return call_hook_first


for _kind in HOOKED:
    setattr(HookedIO, _kind, _hooked(_kind))


class StopAt:
    """A hook that calls `stop` at the call with a number, and at each later one.

    Args:
        kinds: the calls that count.
        number: the number of the first call at which to stop.
        stop: what to call; it raises, or ends the process.
        part: which part of a write is written, if it is the first call at which to stop.
    """

    def __init__(self, kinds, number, stop, part=None):
        self.kinds = kinds
        self.left = number
        self.stop = stop
        self.part = part

    def __call__(self, kind, path):
        if kind not in self.kinds:
            return None
        self.left -= 1
        if self.left >= 0:
            return None
        if self.left == -1 and kind == "write_at" and self.part is not None:
            return self.part
        return self.stop()


@contextmanager
def as_an_ordinary_user():
    """Root may enter any directory: be somebody else meanwhile."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if me == 0:
            os.seteuid(me)


def count_open_files():
    """Return how many descriptors this process has."""
    return len([*Path("/proc/self/fd").iterdir()])


def list_open_files(directory):
    """Return the files in a directory that this process has open. Other descriptors may come and go meanwhile."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            found.append(str(link.readlink()))
    return [file for file in found if file.startswith(f"{directory}/")]


def set_boot(monkeypatch, get_boot):
    """Let savers believe that the system was started as often as a function says."""
    for module in (log_bytes, rewrite):
        monkeypatch.setattr(module, "boot_number", get_boot)


def set_longest_wait(monkeypatch, seconds):
    """Let pending writes wait so long for the put that follows them."""
    monkeypatch.setattr(sync, "_LONGEST_WAIT", seconds)
