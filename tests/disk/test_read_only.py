"""What reads works on a read-only file system, in a read-only directory, and with read-only files."""

import os
import shutil
import subprocess
from functools import partial

import pytest

from graphkit import Checkpoint, CheckpointStorageError, RunnableConfig
from graphkit.transfer import export_threads
from savers import FileSystemSaver
from tests.disk.test_foreign_files import INNER, X, filled, one
from tests.support.checkpoints import make_interrupt
from tests.support.disks import as_an_ordinary_user
from tests.support.readings import READINGS

READERS = {
    **{f"{name} of {at}": partial(read, config=at) for name, read in READINGS.items() for at in (X, INNER)},
    "info": lambda saver: saver.info(X).id,
    "tags_of": lambda saver: saver.tags_of(X),
    "size": lambda saver: saver.size(),
    "verify": lambda saver: saver.verify().ok,
    "wait_for_resume": lambda saver: saver.wait_for_resume("y", 0),
    "export_logs": lambda saver: len(list(export_threads(saver, format="logs"))),
    "export_threads": lambda saver: len(list(export_threads(saver))),
}
WRITERS = {
    "put": lambda saver: saver.put(X, one(8, "new")),
    "put of a new thread": lambda saver: saver.put(RunnableConfig("new"), one(8, "new")),
    "put_writes": lambda saver: saver.put_writes(X, {"key": 2}),
    "add_tags": lambda saver: saver.add_tags(X, "tag"),
    "release": lambda saver: saver.release(X),
    "delete": lambda saver: saver.delete("x"),
    "prune": lambda saver: saver.prune("y", keep_last=1),
    "run_lock": lambda saver: saver.run_lock(X, 0).__enter__(),
}


def made(root):
    filled(root, "mine")
    with FileSystemSaver(root, fsync="never") as saver:
        saver.put_writes(X, {"key": 1, "interrupt:1": make_interrupt()})
        saver.add_tags(X, "kept")
        saver.put(RunnableConfig("y"), one(10, "mine"))
    with FileSystemSaver(root, fsync="never") as saver:
        return {name: read(saver) for name, read in READERS.items()}


def expect_readable(root, expected):
    """Every reader says what it said while the store could be written to."""
    with FileSystemSaver(root) as saver:
        assert {name: read(saver) for name, read in READERS.items()} == expected
    for name, read in READERS.items():
        with FileSystemSaver(root) as saver:
            assert read(saver) == expected[name], name
    assert len(expected) == 35
    assert expected["verify"] is True


def expect_not_writable(root, number):
    for write in WRITERS.values():
        with FileSystemSaver(root, lock_timeout=0) as saver:
            with pytest.raises(CheckpointStorageError) as caught:
                write(saver)
            assert caught.value.errno in number


@pytest.fixture
def mounted(tmp_path):
    """A file system of its own, and a way to make it read-only or not."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting needs root")
    place = tmp_path / "mounted"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not possible here: {done.stderr.strip()}")

    def remount(mode):
        subprocess.run(["mount", "-o", f"remount,{mode}", place], check=True)

    yield place, remount
    subprocess.run(["umount", "-l", place], check=True)


def test_all_of_a_read_only_file_system_can_be_read(mounted):
    place, remount = mounted
    expected = made(place / "store")
    remount("ro")
    expect_readable(place / "store", expected)
    expect_not_writable(place / "store", {30})


@pytest.mark.parametrize("locks", [True, False], ids=["all", "logs only"])
def test_all_of_a_directory_without_write_permission_can_be_read(locks, tmp_path):
    root = tmp_path / "store"
    expected = made(root)
    paths = [root, *root.rglob("*")]
    for path in reversed(paths):
        if locks or path.suffix == ".log" or path.name == "log":
            path.chmod(0o555 if path.is_dir() else 0o444)
        else:
            path.chmod(0o777 if path.is_dir() else 0o666)
    for above in (tmp_path, *tmp_path.parents[:3]):
        if above.stat().st_mode & 0o007 != 0o007 and above.name.startswith(("pytest", "test", "popen")):
            above.chmod(0o777 if above == tmp_path else 0o755)
    with as_an_ordinary_user():
        expect_readable(root, expected)
        if locks:
            expect_not_writable(root, {13})
        else:
            with FileSystemSaver(root, fsync="never") as saver:
                with pytest.raises(CheckpointStorageError, match="Permission denied"):
                    saver.put(X, Checkpoint(node_id="a", next_node_id="b", state={}))
                assert saver.get(X).state["n"] == 2
