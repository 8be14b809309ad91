"""File systems for a saver to run on, and what this process has open."""

import errno
import logging
import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path

from savers._filesystem import log_bytes, rewrite, sync
from savers._filesystem.io import FileIO as FileIO, preload_modules as preload_modules
from tests.support.forked import exit_code_of_child


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


def _noted(kind):
    def note_and_call(io, *args, **options):
        io.calls.append(kind)
        return getattr(super(CountingIO, io), kind)(*args, **options)

    return note_and_call


for _kind in ("fdatasync", "fstat", "fsync", "fsync_dir", "measure", "open", "stat"):
    setattr(CountingIO, _kind, _noted(_kind))


class HookedIO(FileIO):
    """The real file system. Calls `hook(kind, path)` before each call of `HOOKED`.

    An exception of the hook is the result of the call. Of a write, the hook may return the part that is written: a
    number of bytes, or a fraction.
    """

    def __init__(self, hook=None):
        super().__init__()
        self.hook = hook


HOOKED = (
    "close", "fdatasync", "fstat", "fsync", "fsync_dir", "listdir", "lock", "mkdir", "open", "read_at",
    "rename", "rmdir", "stat", "truncate", "unlink", "unlock", "write_at",
)  # fmt: skip
CHANGES = (
    "fdatasync", "fsync", "fsync_dir", "mkdir", "open", "rename", "rmdir", "truncate", "unlink", "write_at",
)  # fmt: skip
"""The calls that change files, or bring changes to the disk."""


def _hooked(kind):
    def call_hook_first(io, place, *args, **options):
        part = None
        if io.hook is not None:
            part = io.hook(kind, io._paths.get(place, place))
        if part is not None:
            *args, data = args
            args = (*args, take_part(data, part))
        return getattr(super(HookedIO, io), kind)(place, *args, **options)

    return call_hook_first


for _kind in HOOKED:
    setattr(HookedIO, _kind, _hooked(_kind))


def take_part(data, part):
    """Return the first bytes of data: so many, or a fraction of them, but at least one."""
    length = part if isinstance(part, int) else int(len(data) * part)
    return data[: max(1, length)]


class Died(BaseException):
    """The process ends here."""


def die():
    """Let the code under test end here. It can still clean up: a killed process cannot."""
    raise Died


def kill_this_process():
    os.kill(os.getpid(), signal.SIGKILL)


class Fault:
    """A hook under which calls of some kinds fail.

    Args:
        kinds: the kinds of call that count, or one of them.
        error: the number of an OSError, or a function that is called instead, which raises or ends the process.
        after: how many calls come before the first that fails.
        times: how many fail; all that follow, if it is not given.
        where: what stands in the path of the calls that count.
        part: the part of a write that is written, if it is the first call that fails.
    """

    def __init__(self, kinds, error=errno.EIO, *, after=0, times=None, where="", part=None):
        self.kinds = {kinds} if isinstance(kinds, str) else {*kinds}
        self.error = error
        self.after = after
        self.times = times
        self.where = where
        self.part = part
        self.met = 0
        """How many calls have failed."""

    def __call__(self, kind, path):
        if kind not in self.kinds or self.where not in path or self.met == self.times:
            return None
        if self.after:
            self.after -= 1
            return None
        self.met += 1
        if self.met == 1 and kind == "write_at" and self.part is not None:
            return self.part
        if callable(self.error):
            return self.error()
        raise OSError(self.error, os.strerror(self.error), path)


@contextmanager
def failing(io, *args, **options):
    """Let calls of a file system fail meanwhile; see Fault, which is yielded."""
    io.hook = Fault(*args, **options)
    try:
        yield io.hook
    finally:
        io.hook = None


@contextmanager
def noting_calls(io, kinds=HOOKED):
    """Yield a list of the kinds of the calls that are made meanwhile."""
    calls = []
    io.hook = lambda kind, _: calls.append(kind) if kind in kinds else None
    yield calls
    io.hook = None


def is_killed_at(number, operate, kinds=CHANGES, part=None):
    """Operate on a HookedIO in a fork that is killed at one of its calls; return whether it came to that call.

    Args:
        number: how many calls of `kinds` come before.
        operate: called with the HookedIO.
    """
    code = exit_code_of_child(lambda: operate(HookedIO(Fault(kinds, kill_this_process, after=number, part=part))))
    assert code in {0, -signal.SIGKILL}
    return code != 0


def count_calls(operate, kinds=CHANGES):
    """Operate on a HookedIO; return how many calls of some kinds that takes."""
    io = HookedIO()
    with noting_calls(io, kinds) as calls:
        operate(io)
    return len(calls)


@contextmanager
def quiet():
    """Silence the warnings about what is set aside."""
    logger = logging.getLogger("graphkit")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


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


def let_others_reach(directory):
    """Let every user enter the directories of the tests above one."""
    for above in directory.parents[:4]:
        if above.name.startswith(("pytest", "test", "popen")):
            above.chmod(0o755)


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
