"""File systems for a saver to run on, and what this process has open."""

from contextlib import suppress
from pathlib import Path

from savers._filesystem import durability, rewrite, sync
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


def _count(name):
    call = getattr(FileIO, name)

    def count_and_call(io, *args, **options):
        io.calls.append(name)
        return call(io, *args, **options)

    setattr(CountingIO, name, count_and_call)


for _name in ("fstat", "measure", "stat", "open", "fdatasync", "fsync", "fsync_dir"):
    _count(_name)


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
    for module in (durability, rewrite):
        monkeypatch.setattr(module, "boot_number", get_boot)


def set_longest_wait(monkeypatch, seconds):
    """Let pending writes wait so long for the put that follows them."""
    monkeypatch.setattr(sync, "_LONGEST_WAIT", seconds)
