"""The n-th call of each kind fails: an error of ours or success, and nothing that was there is lost.

Every call that a workload makes fails in turn, once or for good, with EIO, ENOSPC, EINTR or a short write. Afterwards:
each step ended with success or CheckpointStorageError; each history reads as before that step or as after it, and as
before where a put failed to write; what was acknowledged is durable in the disk's own view; once the fault is gone, the
next put works, through the same saver and through a new one.
"""

import errno
import os
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from graphkit import CheckpointStorageError, RunnableConfig
from savers import FileSystemSaver, VersionedMemorySaver
from tests.disk.crashes import config_of, expect_each, fixed, grown, made, open_durable, open_saver, view
from tests.disk.simfs import SimFS
from tests.support.checkpoints import list_numbers, make_checkpoint
from tests.support.disks import HookedIO, failing, noting_calls
from tests.support.fresh_process import unmeasured_environment
from tests.support.logs import locate_log, locate_thread

KINDS = (
    "close", "fdatasync", "fstat", "fsync", "fsync_dir", "listdir", "lock", "mkdir", "open", "read_at", "rename",
    "rmdir", "stat", "truncate", "unlink", "write_at",
)  # fmt: skip
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, "short": errno.ENOSPC}
FIRST = config_of().with_check_point_id(made(0).id)
# Each step is tried with a fault alone, on a store that the steps before it have made without one.
STEPS = (
    ("put", lambda saver: saver.put(config_of(), made(0, text="a" * 300))),
    ("put", lambda saver: saver.put(config_of(), made(1, items=[1, 2]))),
    ("put", lambda saver: saver.put(config_of("t", "inner"), made(2, text="i" * 600))),
    ("put", lambda saver: saver.put_writes(config_of(), {"branch": [1]})),
    ("put", lambda saver: saver.add_tags(config_of(), "kept")),
    ("put", lambda saver: saver.put(FIRST, made(3, id=made(0).id, text="instead"))),
    ("copy", lambda saver: saver.copy("t", "u")),
    ("prune", lambda saver: saver.prune("t", keep_last=1)),
    ("put", lambda saver: saver.put(config_of(), made(4))),
    ("release", lambda saver: saver.release(config_of())),
    ("put", lambda saver: saver.put(config_of(), made(5))),
    ("delete", lambda saver: saver.delete("t")),
    ("put", lambda saver: saver.put(config_of(), made(6))),
)


def prepared(steps, *, warm):
    """A store and an oracle after some steps."""
    fs = SimFS()
    oracle = VersionedMemorySaver()
    saver = open_saver(fs)
    for _, step in STEPS[:steps]:
        step(saver)
        step(oracle)
    if not warm:
        saver.close()
    return fs, saver, oracle


def try_step(steps, kind, number, name, *, warm, sticky):
    what, step = STEPS[steps]
    fs, saver, oracle = prepared(steps, warm=warm)
    before = view(oracle)
    step(oracle)
    after = view(oracle)
    allowed = [before, after]
    if what == "copy":
        allowed.append({**after, "u": {key: one for key, one in after["u"].items() if key[0]}})
    if what == "put" and kind in {"write_at", "truncate"}:
        allowed = [before]
    part = 7 if name == "short" else None
    with failing(fs, kind, ERRORS[name], after=number, times=None if sticky else 1, part=part) as fault:
        try:
            step(saver)
        except CheckpointStorageError:
            pass
        else:
            allowed = [after]
            expect_each(view(open_durable(fs)), allowed)
    assert fault.met
    expect_each(view(saver), allowed)
    expect_each(view(open_saver(fs)), allowed)
    for again, one in enumerate((saver, open_saver(fs)), 900):
        for thread in ("t", "u"):
            one.put(config_of(thread), made(again))
            allowed = [grown(some, thread, "", again) for some in allowed]
        expect_each(view(one), allowed)
    expect_each(view(open_durable(fs)), allowed)
    saver.close()


def faults_in(steps, *, warm):
    """Each call of the next step, and how it fails: its kind, its number, and the name of the error."""
    fs, saver, _ = prepared(steps, warm=warm)
    with noting_calls(fs, KINDS) as calls:
        STEPS[steps][1](saver)
    for kind, count in sorted(Counter(calls).items()):
        for name in ERRORS:
            if name == "short" and kind != "write_at":
                continue
            for number in range(count):
                if name in {"ENOSPC", "EINTR"} and (number + steps) % 2 != (name == "EINTR"):
                    continue  # They take the same way through the saver; by turns.
                yield kind, number, name


@pytest.mark.requirement("promise 4", "H47", "P87")
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("warm", [True, False], ids=["open", "closed"])
@pytest.mark.parametrize("steps", range(len(STEPS)), ids=[f"{number}-{kind}" for number, (kind, _) in enumerate(STEPS)])
def test_any_call_of_a_step_may_fail(steps, warm, sticky, sweep):
    with fixed("io errors"):
        for kind, number, name in sweep.some(faults_in(steps, warm=warm), 5):
            try:
                try_step(steps, kind, number, name, warm=warm, sticky=sticky)
            except Exception as failure:
                failure.add_note(f"step {steps}, call {number} of {kind} fails with {name}")
                raise


def test_these_were_thousands_of_errors():
    with fixed("io errors"):
        faults = [len([*faults_in(steps, warm=warm)]) for steps in range(len(STEPS)) for warm in (True, False)]
    assert 2 * sum(faults) >= 2500


def test_a_directory_that_cannot_be_listed_is_an_error_of_the_storage(tmp_path):
    io = HookedIO()
    saver = FileSystemSaver(tmp_path, io=io)
    saver.put(RunnableConfig("t"), make_checkpoint(1))
    with failing(io, "listdir"):
        for read in (saver.versions_by_thread_id, lambda _: list(saver.list_heads({}))):
            with pytest.raises(CheckpointStorageError):
                read("t")


def test_a_write_that_cannot_even_be_undone_is_set_aside_by_the_next_writer(opener, config, caplog):
    io = HookedIO()
    saver = opener(io=io)
    saver.put(config, make_checkpoint(0))
    with failing(io, ("write_at", "truncate"), part=0.5, times=3, where="/log") as fault:
        with pytest.raises(CheckpointStorageError):
            saver.put(config, make_checkpoint(1))
        assert fault.met == 3
        for reader in (saver, opener()):
            assert list_numbers(reader, config) == [0]
    saver.put(config, make_checkpoint(2))
    for reader in (saver, opener()):
        assert list_numbers(reader, config) == [2, 0]
    directory = locate_log(saver.base_directory).parent
    torn = [*directory.glob("torn-*")]
    assert len(torn) == 1
    assert "set aside" in caplog.text


# A first put that fails


@pytest.mark.parametrize("also", [(), ("unlink",), ("truncate",), ("truncate", "unlink")], ids="+".join)
@pytest.mark.parametrize("thread", ["a b", "plain", "x" * 100])
@pytest.mark.parametrize("namespace", ["", "in ner"])
def test_a_first_put_that_fails_leaves_a_store_that_is_well_or_can_be_made_so(namespace, thread, also, opener):
    """A write is cut short within the header. Some calls that would undo it fail too."""
    opener().put(RunnableConfig("ok"), make_checkpoint(0))
    config = RunnableConfig(thread, checkpoint_ns=namespace)
    io = HookedIO()
    with failing(io, ("write_at", *also), errno.ENOSPC, part=0.1), pytest.raises(CheckpointStorageError):
        opener(io=io).put(config, make_checkpoint(0))
    saver = opener()
    assert saver.threads() == ["ok"]
    if "unlink" in also:
        assert saver.repair().ok
        assert not saver.repair().changed
    assert saver.verify().ok
    saver.put(config, make_checkpoint(1))
    assert list_numbers(opener(), config) == [1]
    assert opener().verify().ok


# The real thing


PROGRAM = """
import resource, signal, sys
from graphkit import Checkpoint, CheckpointStorageError, RunnableConfig
from savers import FileSystemSaver
saver = FileSystemSaver(sys.argv[1])
config = RunnableConfig("t")
if len(sys.argv) > 2:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
for n in range(8):
    try:
        saver.put(config, Checkpoint(node_id="a", next_node_id="b", state={"n": n, "text": "x" * 300}))
    except CheckpointStorageError as error:
        print("refused", n, error.errno, flush=True)
    else:
        print("stored", n, flush=True)
print("there", *[one.state["n"] for one in saver.list(config)], flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


def expect_stored(root, run, *, is_killed=False):
    """What a program says that it has stored is there, and the next put works; return what it says."""
    assert "Traceback" not in run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    stored = [int(line[1]) for line in lines if line[0] == "stored"]
    assert stored
    expected = [*reversed(stored), 100]
    found = list_numbers(FileSystemSaver(root), config_of())
    if is_killed:
        assert run.returncode != 0
        with_one_more = [stored[-1] + 1, *expected]
        assert found in (expected, with_one_more)
    else:
        assert run.returncode == 0, run.stderr
        assert found == expected
        assert lines[-1] == ["there", *map(str, expected)]
    saver = FileSystemSaver(root)
    saver.put(config_of(), made(101))
    assert list_numbers(saver, config_of()) == [101, *found]
    return lines[:-1]


@pytest.mark.requirement("H47")
@pytest.mark.skipif(os.name == "nt", reason="limits of POSIX")
def test_a_real_full_disk(tmp_path, launcher):
    root = tmp_path / "store"
    FileSystemSaver(root).put(config_of(), made(100))
    lines = expect_stored(root, launcher.run("-c", PROGRAM, root, 1000))
    assert ["refused", "7", str(errno.EFBIG)] in lines


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
    lines = expect_stored(root, run, is_killed="KILL" in fault)
    if "error" in fault and not fault.startswith(("pwrite64:error=EINTR", "fsync", "rename")):
        assert any(line[0] == "refused" for line in lines), "the fault was met"
