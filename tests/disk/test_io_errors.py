"""The n-th call of each kind fails: an error of ours or success, and nothing that was there is lost.

Every call that a workload makes fails in turn, once or for good, with EIO, ENOSPC, EINTR or a short write. Afterwards:
each step ended with success or CheckpointStorageError; each history reads as before that step or as after it, and as
before where a put failed to write; what was acknowledged is durable in the disk's own view; once the fault is gone, the
next put works, through the same saver and through a new one.
"""

import errno
import itertools
import resource
import signal
from collections import Counter

import pytest

from graphkit import CheckpointStorageError, RunnableConfig
from savers import FileSystemSaver
from tests.disk.crashes import (
    STEP_IDS,
    STEPS,
    config_of,
    expect_each,
    fixed,
    grown,
    made,
    open_durable,
    open_saver,
    prepare,
    view,
    views_around,
)
from tests.disk.simfs import SimFS
from tests.support.checkpoints import list_numbers, make_checkpoint
from tests.support.disks import HookedIO, failing, noting_calls
from tests.support.forked import run_in_child
from tests.support.logs import locate_log

KINDS = (
    "close", "fdatasync", "fstat", "fsync", "fsync_dir", "listdir", "lock", "mkdir", "open", "read_at", "rename",
    "rmdir", "stat", "truncate", "unlink", "write_at",
)  # fmt: skip
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, "short": errno.ENOSPC}


def prepared(steps, *, warm):
    """A store and a saver after some steps."""
    fs = SimFS()
    saver = prepare(open_saver(fs), steps)
    if not warm:
        saver.close()
    return fs, saver


def try_step(steps, kind, number, name, *, warm, sticky):
    what, step = STEPS[steps]
    fs, saver = prepared(steps, warm=warm)
    allowed = views_around(steps)
    before, *_, after = allowed
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
    fs, saver = prepared(steps, warm=warm)
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
@pytest.mark.parametrize("steps", range(len(STEPS)), ids=STEP_IDS)
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


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.requirement("H47")
@pytest.mark.parametrize("room", [1000, 4000, 4096, 4097, 6000, 9001])
def test_on_a_real_full_disk_a_put_fits_if_its_own_bytes_do(tmp_path, config, room):
    """Whether its saver extends the log with zeros, or not."""

    def put_all(saver, stored):
        for number in itertools.count():
            saver.put(config, made(number))
            stored.append(number)

    def count_puts(fsync):
        saver = FileSystemSaver(tmp_path / fsync, fsync=fsync)
        stored = []
        with pytest.raises(CheckpointStorageError) as caught:
            put_all(saver, stored)
        assert caught.value.errno == errno.EFBIG
        assert list_numbers(saver, config)[::-1] == stored
        return len(stored)

    def fill_the_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        assert count_puts("always") == count_puts("never") > 3

    assert run_in_child(fill_the_disk)
    for fsync in ("always", "never"):
        with FileSystemSaver(tmp_path / fsync) as saver:
            assert saver.verify().ok
            saver.put(config, made(99))
            assert list_numbers(saver, config)[0] == 99


@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_put_fits_though_the_write_that_extends_its_log_is_refused(tmp_path, config, full):
    io = HookedIO()
    saver = FileSystemSaver(tmp_path, io=io)
    with failing(io, "write_at", full, times=1, where="/log"):
        saver.put(config, made(0))
    assert list_numbers(saver, config) == [0]
    saver.close()
