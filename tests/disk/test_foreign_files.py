"""What is no file of ours stands where one should be: of every kind, at every place, in every operation.

No operation follows a symbolic link below the root. What the link leads to is outside: its bytes, its names and its
modes are the same afterwards, and none of its content comes out of any operation. No operation waits for a FIFO, a
socket or a device, or removes what is in a directory. What is refused is refused with an error of ours, or reported.
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from graphkit import Checkpoint, CheckpointConflictError, CheckpointStorageError, RunnableConfig
from graphkit.errors import CheckpointerError
from graphkit.transfer import export_threads, import_threads
from savers import FileSystemSaver
from tests.support.checkpoints import make_checkpoint, make_interrupt
from tests.support.disks import as_an_ordinary_user, let_others_reach
from tests.support.logs import locate_thread, namespace_name
from tests.support.readings import READINGS

SECRET = "the secret of another store"
X = RunnableConfig("x")
INNER = RunnableConfig("x", checkpoint_ns="sub")
THREAD = locate_thread("x").name
NAMESPACE = namespace_name("sub")
STRIPE = f"{locate_thread('x').stripe:02x}"
PLACES = {
    "thread": THREAD,
    "namespace": f"{THREAD}/{NAMESPACE}",
    "log": f"{THREAD}/log",
    "log of a namespace": f"{THREAD}/{NAMESPACE}/log",
    "version": f"{THREAD}/v000001.log",
    "version of a namespace": f"{THREAD}/{NAMESPACE}/v000001.log",
    "run lock": f"{THREAD}/run.lock",
    "locks": "locks",
    "short lock": f"locks/{STRIPE}",
    "marker": "graphkit.store",
    "new log": f"{THREAD}/tmp-0badcafe",
    "deleted thread": f"tmp-{THREAD}",
    "other deleted thread": "tmp-" + locate_thread("gone").name,
    "torn": f"{THREAD}/torn-1-64.bin",
    "release": "r-" + THREAD.removeprefix("t-"),
}
DIRECTORIES = {"thread", "namespace", "locks", "deleted thread", "other deleted thread"}
"""The places at which a directory may be."""
HARMLESS = {"new log", "deleted thread", "other deleted thread"}
"""The places at which nothing disturbs an operation."""
LINKS = ("link to a directory", "link to a file", "dangling link", "link to a copy")
FILES = ("FIFO", "socket", "device", "empty directory", "full directory")


def one(number, text):
    return Checkpoint(id=f"{text[:3]}{number}", node_id="a", next_node_id="b", state={"text": text, "n": number})


def filled(root, text):
    """A store with a thread that has a version, a live log and a namespace with both."""
    saver = FileSystemSaver(root, fsync="never")
    saver.put(X, one(0, text))
    saver.put(INNER, one(1, text))
    saver.release(X)
    saver.put(X, one(2, text))
    saver.put(INNER, one(3, text))
    saver.put(RunnableConfig("y"), one(9, "mine"))
    saver.close()


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    base = tmp_path_factory.mktemp("templates")
    filled(base / "store", "mine")
    filled(base / "outside", SECRET)
    (base / "outside" / "thesis.txt").write_text(SECRET)
    (base / "outside" / THREAD / "notes.txt").write_text(SECRET)
    exported = FileSystemSaver(base / "store", fsync="never")
    (base / "exported").write_text("".join(export_threads(exported, ["x"], format="logs")))
    exported.close()
    return base


def snapshot(directory):
    """Every name below a directory with what it is, and its bytes."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_mode, status.st_ino, content)
    return found


def follow(saver):
    with saver.watch(latest=True) as changes:
        return [changes.get(0) for _ in range(4)]


def lock(saver):
    with saver.run_lock(X, 0):
        pass


OPERATIONS = {
    "put": lambda saver: saver.put(X, one(5, "new")),
    "put in a namespace": lambda saver: saver.put(INNER, one(5, "new")),
    "put_writes": lambda saver: saver.put_writes(INNER, {"key": 1}),
    "get": lambda saver: (saver.get(X), saver.get(INNER)),
    "list": lambda saver: [[*map(repr, saver.list(config))] for config in (X, INNER)],
    "history": lambda saver: [saver.history(config) for config in (X, INNER)],
    "summary": lambda saver: [saver.summary(config) for config in (INNER, X)],
    "tag": lambda saver: [repr(saver.tag(config, 1).checkpoints[0].state) for config in (X, INNER)],
    "versions": lambda saver: saver.versions_by_thread_id("x"),
    "release": lambda saver: repr(saver.release(X)),
    "delete": lambda saver: saver.delete("x"),
    "copy from": lambda saver: saver.copy("x", "z"),
    "copy to": lambda saver: saver.copy("y", "x"),
    "prune": lambda saver: saver.prune(keep_last=1),
    "compact": lambda saver: saver.compact(),
    "verify": lambda saver: saver.verify(),
    "repair": lambda saver: saver.repair(),
    "size": lambda saver: saver.size("x"),
    "size of all": lambda saver: saver.size(),
    "threads": lambda saver: saver.threads(released=True),
    "namespaces": lambda saver: saver.namespaces("x"),
    "interrupts": lambda saver: saver.interrupts(),
    "search": lambda saver: saver.search({}),
    "watch": follow,
    "run lock": lock,
    "export": lambda saver: list(export_threads(saver, ["x"], format="logs")),
    "another first put": lambda saver: saver.put(RunnableConfig("w"), one(1, "new")),
}
REFUSED = {
    "thread": 17, "namespace": 9, "log": 14, "log of a namespace": 15, "version": 3, "version of a namespace": 3,
    "run lock": 6, "locks": 10, "short lock": 8,
}  # fmt: skip
"""How many operations refuse a link of one kind, at least."""


@contextmanager
def impatient(seconds):
    """Fail if something waits for the other end of a special file."""

    def wake(*_):
        pytest.fail("it waits")

    before = signal.signal(signal.SIGALRM, wake)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def put_in_place(path, kind, outside=None):
    """Put something of a kind in place of what is at a path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    match kind:
        case "link to a directory":
            path.symlink_to(outside)
        case "link to a file":
            path.symlink_to(outside / "thesis.txt")
        case "dangling link":
            path.symlink_to(outside / "nothing")
        case "link to a copy":
            root = path.parents[len(path.parts) - len(outside.parts) - 1]
            path.symlink_to(outside / path.relative_to(root))
        case "FIFO":
            os.mkfifo(path)
        case "socket":
            # The path of a socket is short.
            here = os.open(path.parent, os.O_RDONLY)
            with socket.socket(socket.AF_UNIX) as one_end:
                one_end.bind(f"/proc/self/fd/{here}/{path.name}")
            os.close(here)
        case "device":
            try:
                os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
            except PermissionError:
                pytest.skip("only root makes devices")
        case _:
            path.mkdir()
            if kind == "full directory":
                (path / "precious").write_text("mine")


def cases(operations, place, kinds, *, is_full):
    """Every kind with every operation, or every operation with one kind, which is another one at each place."""
    for number, (name, operation) in enumerate(operations.items(), [*PLACES].index(place)):
        for kind in kinds if is_full else [kinds[number % len(kinds)]]:
            if "directory" not in kind or kind in LINKS or place not in DIRECTORIES:
                yield kind, name, operation


def operate(root, place, operation):
    """Open the store and operate on it; return the result, or the error of ours that refuses it."""
    try:
        saver = FileSystemSaver(root, fsync="never", lock_timeout=0)
    except CheckpointerError:
        assert place == "marker"
        return None
    with saver:
        try:
            return operation(saver)
        except CheckpointerError as error:
            return error


@pytest.mark.requirement("promise 5")
@pytest.mark.parametrize("kinds", [LINKS, FILES], ids=["links", "special files"])
@pytest.mark.parametrize("place", PLACES)
def test_no_operation_follows_a_link_or_waits_for_a_special_file(place, kinds, templates, tmp_path, sweep):
    lines = (templates / "exported").read_text().splitlines(keepends=True)
    operations = {**OPERATIONS, "import": lambda saver: import_threads(saver, lines, format="logs")}
    refused = 0
    for kind, name, operation in cases(operations, place, kinds, is_full=sweep.is_full):
        case = (kind, name)
        copy = shutil.copytree(templates, tmp_path / "copy")
        root = copy / "store"
        outside = copy / "outside"
        put_in_place(root / PLACES[place], kind, outside)
        before = snapshot(outside)
        with impatient(60):
            result = operate(root, place, operation)
            if place != "marker":
                with FileSystemSaver(root, fsync="never", lock_timeout=0) as other:
                    assert other.get(RunnableConfig("y")).state["n"] == 9, case
                    other.verify()
        refused += isinstance(result, CheckpointerError)
        assert snapshot(outside) == before, case
        assert SECRET not in repr(result), case
        if place in HARMLESS and isinstance(result, CheckpointerError):
            assert isinstance(result, CheckpointConflictError), "the target of a copy or an import is not empty"
        if kind == "full directory":
            assert [*root.rglob("precious")], "what is not the store's is not removed"
        shutil.rmtree(copy)
    if kinds is LINKS:
        assert refused >= REFUSED.get(place, 0) * sweep.count(len(LINKS), 1)


@pytest.mark.parametrize("fsync", ["always", "never"])
def test_the_root_may_be_a_link(fsync, tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "store").symlink_to(real)
    with FileSystemSaver(tmp_path / "store", fsync=fsync) as saver:
        saver.put(X, one(1, "mine"))
        saver.release(X)
        saver.put(X, one(2, "mine"))
        with saver.run_lock(X):
            pass
        assert saver.get(X).state["n"] == 2
        assert saver.versions_by_thread_id("x") == [1]
        assert saver.verify().ok
        assert not saver.repair().changed
        assert saver.delete("x")
    assert Path(real, "graphkit.store").exists()


@pytest.mark.parametrize("kind", ["FIFO", "socket", "device", "full directory"])
def test_a_log_that_is_no_file_is_named_by_every_reader_and_by_verify(kind, templates, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(templates / "store", root)
    put_in_place(root / THREAD / "log", kind)
    saver = FileSystemSaver(root, fsync="never")
    word = kind.removeprefix("full ")
    for name in ("get", "put", "list"):
        operation = OPERATIONS[name]
        with pytest.raises(CheckpointStorageError, match=f"it is a {word} where a file should be"):
            operation(saver)
    (problem,) = saver.verify().problems
    assert problem.path == f"{THREAD}/log"
    assert problem.state == "foreign"
    (file,) = saver.repair().files
    assert file.before.path == f"{THREAD}/log"
    assert word in file.refused
    assert saver.threads() == ["x", "y"], "it is listed, so that reading it tells why"
    saver.close()


# A directory in a thread's directory


def put_foreign_file(directory, name):
    foreign = directory / "lost+found"
    foreign.mkdir()
    (foreign / name).write_text("mine")


@pytest.fixture
def saver(opener):
    saver = opener()
    for thread in "xy":
        saver.put(RunnableConfig(thread), make_checkpoint(0))
    return saver


@pytest.mark.parametrize("inner", ["", "n-sub-xbwfkmqbyzm6guswsvquydog/"])
def test_delete_keeps_a_foreign_directory_and_logs_it_and_blocks_no_operation(inner, saver, opener, tmp_path, caplog):
    root = tmp_path / "store"
    saver.put(INNER, make_checkpoint(0))
    put_foreign_file(next(root.glob("t-x-*")) / inner, "precious")
    assert saver.delete("x")
    assert "lost+found stays" in caplog.text
    assert saver.threads() == ["y"]
    (kept,) = root.rglob("precious")
    assert kept.read_text() == "mine"
    leftover, *_ = kept.relative_to(root).parts
    assert not [*root.glob("*t-x-*/**/log")], "no byte of the history is left"
    for number in range(3):
        other = opener()
        other.put(RunnableConfig(f"new{number}"), make_checkpoint(0))
        other.put(RunnableConfig("x"), make_checkpoint(0))
        assert opener().repair().ok
        assert other.verify().leftovers == (leftover,)
        put_foreign_file(next(root.glob("t-x-*")), "more")
        assert other.delete("x"), "a second time, too"
        for more in [*root.rglob("more")]:
            shutil.rmtree(more.parents[1])
    assert opener().threads() == ["new0", "new1", "new2", "y"]


# What reads works on a read-only file system, in a read-only directory, and with read-only files


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


def fill_readable(root):
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
    expected = fill_readable(place / "store")
    remount("ro")
    expect_readable(place / "store", expected)
    expect_not_writable(place / "store", {30})
    with FileSystemSaver(place / "store") as saver:
        latest = saver.get(X).id
        with pytest.raises(CheckpointStorageError, match="Read-only file system"):
            saver.put(X, one(8, "new"))
        remount("rw")
        assert saver.get(X).id == latest
        saver.put(X, one(8, "new"))
        assert saver.get(X).state["n"] == 8


@pytest.mark.parametrize("locks", [True, False], ids=["all", "logs only"])
def test_all_of_a_directory_without_write_permission_can_be_read(locks, tmp_path):
    root = tmp_path / "store"
    expected = fill_readable(root)
    paths = [root, *root.rglob("*")]
    for path in reversed(paths):
        if locks or path.suffix == ".log" or path.name == "log":
            path.chmod(0o555 if path.is_dir() else 0o444)
        else:
            path.chmod(0o777 if path.is_dir() else 0o666)
    let_others_reach(root)
    with as_an_ordinary_user():
        expect_readable(root, expected)
        if locks:
            expect_not_writable(root, {13})
        else:
            with FileSystemSaver(root, fsync="never") as saver:
                with pytest.raises(CheckpointStorageError, match="Permission denied"):
                    saver.put(X, Checkpoint(node_id="a", next_node_id="b", state={}))
                assert saver.get(X).state["n"] == 2
