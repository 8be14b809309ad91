"""The n-th call of each kind fails: an error of ours or success, and nothing that was there is lost.

Every call that a workload makes fails in turn, once or for good, with EIO, ENOSPC, EINTR or a short write. Afterwards:
each step ended with success or CheckpointStorageError; each history reads as before that step or as after it, and as
before where a put failed to write; what was acknowledged is durable in the disk's own view; once the fault is gone, the
next put works, through the same saver and through a new one.
"""

import errno
import shutil
import subprocess
import sys

import pytest

from graphkit import CheckpointStorageError
from savers import FileSystemSaver, VersionedMemorySaver
from tests.disk.crashes import PLACE, config_of, expect_each, fixed, grown, made, view
from tests.disk.simfs import Disk, SimFS
from tests.support.checkpoints import list_numbers
from tests.support.fresh_process import unmeasured_environment
from tests.support.logs import locate_thread

KINDS = (
    "close", "fdatasync", "fstat", "fsync", "fsync_dir", "listdir", "lock", "mkdir", "open", "read_at", "rename",
    "rmdir", "stat", "truncate", "unlink", "write_at",
)  # fmt: skip
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, "short": None}


class Broken:
    """Calls of one kind fail from the n-th on: once, or for good."""

    def __init__(self, kind, number, error, *, sticky):
        self.kind = kind
        self.number = number
        self.error = error
        self.sticky = sticky
        self.met = 0
        self.over = False

    def __call__(self, kind, number, place):
        if kind != self.kind or self.over or number < self.number or (self.met and not self.sticky):
            return None
        self.met += 1
        if self.error is None and self.met == 1:
            return 7
        raise OSError(self.error or errno.ENOSPC, "injected", place)


STEPS = (
    ("put", lambda saver: saver.put(config_of(), made(0, text="a" * 300))),
    ("put", lambda saver: saver.put(config_of(), made(1, items=[1, 2]))),
    ("put", lambda saver: saver.put(config_of("t", "inner"), made(2, text="i" * 600))),
    ("put", lambda saver: saver.put_writes(config_of(), {"branch": [1]})),
    ("put", lambda saver: saver.add_tags(config_of(), "kept")),
    (
        "put",
        lambda saver: saver.put(config_of().with_check_point_id(made(0).id), made(3, id=made(0).id, text="instead")),
    ),
    ("copy", lambda saver: saver.copy("t", "u")),
    ("prune", lambda saver: saver.prune("t", keep_last=1)),
    ("put", lambda saver: saver.put(config_of(), made(4))),
    ("release", lambda saver: saver.release(config_of())),
    ("put", lambda saver: saver.put(config_of(), made(5))),
    ("delete", lambda saver: saver.delete("t")),
    ("put", lambda saver: saver.put(config_of(), made(6))),
)
# Each step is tried with a fault alone, on a store that the steps before it have made without one.


def prepared(steps):
    """A store and an oracle after some steps."""
    fs = SimFS()
    oracle = VersionedMemorySaver()
    saver = FileSystemSaver(PLACE, lock_timeout=0, io=fs)
    for _, step in STEPS[:steps]:
        step(saver)
        step(oracle)
    return fs, saver, oracle


def calls_of(steps, *, warm):
    """How often the next step calls each kind."""
    fs, saver, _ = prepared(steps)
    if not warm:
        saver.close()
    before = dict(fs.counts)
    STEPS[steps][1](saver)
    return before, {kind: fs.counts.get(kind, 0) - before.get(kind, 0) for kind in KINDS}


def durable(fs):
    disk = Disk()
    for op in fs.ops:
        disk.apply(op)
    return disk.durable()


def try_step(steps, broken, *, warm):
    kind, step = STEPS[steps]
    fs, saver, oracle = prepared(steps)
    before = view(oracle)
    step(oracle)
    after = view(oracle)
    between = [before, after]
    if kind == "copy":
        between.append({**after, "u": {key: one for key, one in after["u"].items() if key[0]}})
    if not warm:
        saver.close()
    fs.hook = broken
    try:
        step(saver)
    except CheckpointStorageError:
        done = False
    else:
        done = True
    if done:
        expect_each(view(FileSystemSaver(PLACE, io=SimFS(durable(fs)))), [after])
    fs.hook = None
    allowed = [after] if done else [before] if kind == "put" and broken.kind in {"write_at", "truncate"} else between
    expect_each(view(saver), allowed)
    expect_each(view(FileSystemSaver(PLACE, lock_timeout=0, io=fs)), allowed)
    for number, one in enumerate((saver, FileSystemSaver(PLACE, lock_timeout=0, io=fs)), 900):
        for thread in ("t", "u"):
            one.put(config_of(thread), made(number))
            allowed = [grown(some, thread, "", number) for some in allowed]
        expect_each(view(one), allowed)
    expect_each(view(FileSystemSaver(PLACE, io=SimFS(durable(fs)))), allowed)
    saver.close()


def faults_in(steps, *, warm):
    """Each call of the next step, and how it fails: its kind, its number, and the name of the error."""
    before, calls = calls_of(steps, warm=warm)
    for kind, count in calls.items():
        for name in ERRORS:
            if name == "short" and kind != "write_at":
                continue
            for number in range(count):
                if name in {"ENOSPC", "EINTR"} and (number + steps) % 2 != (name == "EINTR"):
                    continue  # They take the same way through the saver; by turns.
                yield kind, before.get(kind, 0) + number, name


@pytest.mark.requirement("promise 4", "H47", "P87")
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("warm", [True, False], ids=["open", "closed"])
@pytest.mark.parametrize("steps", range(len(STEPS)), ids=[f"{number}-{kind}" for number, (kind, _) in enumerate(STEPS)])
def test_any_call_of_a_step_may_fail(steps, warm, sticky, sweep):
    with fixed("io errors"):
        for kind, number, name in sweep.some(faults_in(steps, warm=warm), 5):
            broken = Broken(kind, number, ERRORS[name], sticky=sticky)
            try:
                try_step(steps, broken, warm=warm)
            except Exception as failure:
                message = f"step {steps}, call {number} of {kind} fails with {name}"
                raise AssertionError(f"{message}: {type(failure).__name__}: {failure}") from failure
            assert broken.met, (kind, number)


def test_these_were_thousands_of_errors():
    with fixed("io errors"):
        faults = [len([*faults_in(steps, warm=warm)]) for steps in range(len(STEPS)) for warm in (True, False)]
    assert 2 * sum(faults) >= 2500


# The real thing


PROGRAM = """
import sys
from graphkit import Checkpoint, CheckpointStorageError, RunnableConfig
from savers import FileSystemSaver
saver = FileSystemSaver(sys.argv[1])
config = RunnableConfig("t")
for n in range(8):
    try:
        saver.put(config, Checkpoint(node_id="a", next_node_id="b", state={"n": n, "text": "x" * 300}))
    except CheckpointStorageError as error:
        print("refused", n, error.errno, flush=True)
    else:
        print("stored", n, flush=True)
print("there", *[one.state["n"] for one in saver.list(config)], flush=True)
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(
    "fault",
    [
        "fdatasync:error=EIO:when=3",
        "fdatasync:error=EIO:when=1",
        "fdatasync:error=ENOSPC:when=2+2",
        "pwrite64:error=ENOSPC:when=2+2",
        "pwrite64:error=EINTR:when=2+3",
        "fsync:error=EIO:when=1",
        "fdatasync:signal=KILL:when=4",
        "pwrite64:signal=KILL:when=4",
        "rename:error=EIO:when=1",
    ],
)
def test_faults_in_a_process_that_knows_nothing_of_them(fault, tmp_path):
    """The kernel's answers are changed on their way into an unmodified process."""
    root = tmp_path / "store"
    home = root / locate_thread("t").name
    FileSystemSaver(root).put(config_of(), made(100))
    command = ["strace", "-f", "-o", tmp_path / "trace", "-P", home / "log", "-P", home, "-e", f"inject={fault}"]
    run = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, root],
        capture_output=True,
        text=True,
        check=False,
        env=unmeasured_environment(),
    )
    if "PTRACE" in run.stderr:
        pytest.skip("tracing is not allowed here")
    lines = [line.split() for line in run.stdout.splitlines()]
    stored = [int(line[1]) for line in lines if line[0] == "stored"]
    assert stored
    assert "Traceback" not in run.stderr
    found = list_numbers(FileSystemSaver(root), config_of())
    if "KILL" in fault:
        assert run.returncode != 0
        assert found in ([*reversed(stored), 100], [stored[-1] + 1, *reversed(stored), 100])
    else:
        assert run.returncode == 0, run.stderr
        assert found == [int(n) for n in lines[-1][1:]] == [*reversed(stored), 100]
        assert len(stored) < 8 or fault.startswith(("pwrite64:error=EINTR", "fsync", "rename")), "the fault was met"
    saver = FileSystemSaver(root)
    saver.put(config_of(), made(101))
    assert list_numbers(saver, config_of()) == [101, *found]
