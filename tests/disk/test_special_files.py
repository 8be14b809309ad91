"""FIFOs, sockets, devices and directories in place of each file: a clear error or a report, and never a wait."""

import os
import shutil
import signal
import socket
from contextlib import contextmanager, suppress

import pytest

from graphkit import Checkpoint, CheckpointStorageError, RunnableConfig
from graphkit.errors import CheckpointerError
from savers import FileSystemSaver
from tests.disk.test_links import OPERATIONS, PLACES, THREAD, X, filled, one

DIRECTORIES = {"thread", "namespace", "locks", "deleted thread", "other deleted thread"}
KINDS = ("fifo", "socket", "device", "empty directory", "full directory")


class Waited(BaseException):
    """An operation waits for the other end."""


@contextmanager
def impatient(seconds):
    def wake(*_):
        raise Waited

    before = signal.signal(signal.SIGALRM, wake)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def make(path, kind):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        # The path of a socket is short.
        here = os.open(path.parent, os.O_RDONLY)
        try:
            with socket.socket(socket.AF_UNIX) as one_end:
                one_end.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)
    elif kind == "device":
        try:
            os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    else:
        path.mkdir()
        if kind == "full directory":
            (path / "precious").write_text("mine")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    root = tmp_path_factory.mktemp("template") / "store"
    filled(root, "mine")
    return root


def cases(place, *, is_full):
    """Every kind with every operation, or every operation with one kind, which is another one at each place."""
    for number, operation in enumerate(OPERATIONS.values(), [*PLACES].index(place)):
        for kind in KINDS if is_full else [KINDS[number % len(KINDS)]]:
            if "directory" not in kind or place not in DIRECTORIES:
                yield number, kind, operation


@pytest.mark.parametrize("place", PLACES)
def test_no_operation_waits_for_a_special_file(place, template, tmp_path, caplog, sweep):
    for number, kind, operation in cases(place, is_full=sweep.is_full):
        root = tmp_path / f"{number}-{kind}"
        shutil.copytree(template, root)
        make(root / PLACES[place], kind)
        with impatient(60):
            try:
                saver = FileSystemSaver(root, fsync="never", lock_timeout=0)
            except CheckpointerError:
                assert place == "marker"
            else:
                with saver, suppress(CheckpointerError):
                    operation(saver)
                y = RunnableConfig("y")
                other = FileSystemSaver(root, fsync="never", lock_timeout=0)
                assert other.get(y).state["n"] == 9, "another thread is not concerned"
                other.verify()
                other.close()
        if kind == "full directory":
            assert [*root.rglob("precious")], "what is not the store's is not removed"
        shutil.rmtree(root)


def test_these_were_all_places_in_all_operations():
    assert sum(len([*cases(place, is_full=False)]) for place in PLACES) >= 350
    assert sum(len([*cases(place, is_full=True)]) for place in PLACES) >= 1750


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "full directory"])
def test_a_log_that_is_no_file_is_named_by_every_reader_and_by_verify(kind, template, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(template, root)
    make(root / THREAD / "log", kind)
    saver = FileSystemSaver(root, fsync="never")
    word = {"fifo": "FIFO", "full directory": "directory"}.get(kind, kind)
    for use in (lambda: saver.get(X), lambda: saver.put(X, one(1, "new")), lambda: saver.list(X)):
        with pytest.raises(CheckpointStorageError, match=f"it is a {word} where a file should be"):
            use()
    (problem,) = saver.verify().problems
    assert problem.path == f"{THREAD}/log"
    assert problem.state == "foreign"
    (file,) = saver.repair().files
    assert file.before.path == f"{THREAD}/log"
    assert word in file.refused
    assert saver.threads() == ["x", "y"], "it is listed, so that reading it tells why"
    saver.close()


# A directory in a thread's directory


@pytest.fixture
def saver(opener):
    saver = opener()
    for thread in "xy":
        saver.put(RunnableConfig(thread), Checkpoint(node_id="a", next_node_id="b", state={}))
    return saver


def step():
    return Checkpoint(node_id="a", next_node_id="b", state={})


@pytest.mark.parametrize("inner", ["", "n-sub-xbwfkmqbyzm6guswsvquydog/"])
def test_delete_keeps_a_foreign_directory_and_logs_it_and_blocks_no_operation(inner, saver, opener, tmp_path, caplog):
    saver.put(RunnableConfig("x", checkpoint_ns="sub"), step())
    folder = next((tmp_path / "store").glob("t-x-*")) / inner
    (folder / "lost+found").mkdir()
    (folder / "lost+found" / "precious").write_text("mine")
    assert saver.delete("x")
    assert "lost+found stays" in caplog.text
    assert saver.threads() == ["y"]
    (kept,) = (tmp_path / "store").rglob("precious")
    assert kept.read_text() == "mine"
    assert not [*(tmp_path / "store").glob("*t-x-*/**/log")], "no byte of the history is left"
    for number in range(3):
        other = opener()
        other.put(RunnableConfig(f"new{number}"), step())
        other.put(RunnableConfig("x"), step())
        assert opener().repair().ok
        assert other.verify().leftovers == (kept.parent.parent.name if not inner else kept.parents[2].name,)
        (next((tmp_path / "store").glob("t-x-*")) / "lost+found").mkdir()
        (next((tmp_path / "store").glob("t-x-*")) / "lost+found" / "more").write_text("mine")
        assert other.delete("x"), "a second time, too"
        for more in [*(tmp_path / "store").rglob("more")]:
            shutil.rmtree(more.parents[1])
    assert opener().threads() == ["new0", "new1", "new2", "y"]


def test_a_directory_named_like_a_temporary_file_disturbs_no_operation(saver, opener, tmp_path):
    folder = next((tmp_path / "store").glob("t-x-*"))
    (folder / "tmp-0badcafe").mkdir()
    (folder / "tmp-0badcafe" / "precious").write_text("mine")
    config = RunnableConfig("x")
    for _ in range(3):
        saver.put(config, step())
    assert saver.prune("x", keep_last=1) == 3
    saver.release(config)
    opener().put(config, step())
    assert opener().repair().ok
    assert (folder / "tmp-0badcafe" / "precious").read_text() == "mine"
