"""No operation follows a symbolic link below the root: every kind of link, at every place, in every operation.

What the link leads to is outside: its bytes, its names and its modes are the same afterwards, and none of its content
comes out of any operation. What is refused is refused with an error of ours, or reported.
"""

import os
import shutil
import stat
from pathlib import Path

import pytest

from graphkit import Checkpoint, CheckpointFormatError, RunnableConfig
from graphkit.errors import CheckpointerError
from graphkit.transfer import export_threads, import_threads
from savers import FileSystemSaver
from tests.support.logs import locate_thread, namespace_name

if not hasattr(os, "symlink") or os.name != "posix":
    pytest.skip("symbolic links", allow_module_level=True)

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
KINDS = ("directory", "file", "dangling", "copy")


def one(number, text):
    return Checkpoint(id=f"{text[:3]}{number}", node_id="a", next_node_id="b", state={"text": text, "n": number})


def filled(root, text):
    """A store with a thread that has a version, a live log and a namespace with both."""
    saver = FileSystemSaver(root, fsync="never")
    for number, config in enumerate((X, INNER)):
        saver.put(config, one(number, text))
    saver.release(X)
    for number, config in enumerate((X, INNER)):
        saver.put(config, one(number + 2, text))
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


def link(path, kind, outside):
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(exist_ok=True)
    same = outside / path.relative_to(path.parents[len(path.parts) - len(outside.parts) - 1])
    leads = {"directory": outside, "file": outside / "thesis.txt", "dangling": outside / "nothing", "copy": same}[kind]
    path.symlink_to(leads)


def cases(operations, start, *, is_full):
    """Every kind with every operation, or every operation with one kind, which is another one at each place."""
    for number, (name, operation) in enumerate(operations.items(), start):
        kinds = KINDS if is_full else [KINDS[number % len(KINDS)]]
        yield from ((kind, name, operation) for kind in kinds)


@pytest.mark.requirement("promise 5")
@pytest.mark.parametrize("place", PLACES)
def test_no_operation_follows_a_link(place, templates, tmp_path, caplog, sweep):
    lines = (templates / "exported").read_text().splitlines(keepends=True)
    operations = {**OPERATIONS, "import": lambda saver: import_threads(saver, lines, format="logs")}
    start = [*PLACES].index(place)
    links = 0
    refused = 0
    for number, (kind, name, operation) in enumerate(cases(operations, start, is_full=sweep.is_full)):
        root = tmp_path / f"s{number}"
        outside = tmp_path / f"o{number}"
        shutil.copytree(templates / "store", root)
        shutil.copytree(templates / "outside", outside)
        link(root / PLACES[place], kind, outside)
        before = snapshot(outside)
        result = None
        try:
            saver = FileSystemSaver(root, fsync="never", lock_timeout=0)
        except CheckpointerError:
            assert place == "marker"
        else:
            try:
                result = operation(saver)
            except CheckpointerError as error:
                result = error
                refused += 1
            finally:
                saver.close()
        assert snapshot(outside) == before, (kind, name)
        assert SECRET not in repr(result), (kind, name)
        shutil.rmtree(root)
        shutil.rmtree(outside)
        links += 1
    assert links == len(operations) * sweep.count(len(KINDS), 1)
    assert refused >= REFUSED.get(place, 0) * sweep.count(len(KINDS), 1)


def test_these_were_all_links_in_all_operations():
    assert len(PLACES) * (len(OPERATIONS) + 1) == 420
    assert sum(REFUSED.values()) > 420 // 6


def test_a_link_in_place_of_a_thread_is_a_clear_error_and_is_reported(templates, tmp_path, caplog):
    root = tmp_path / "store"
    shutil.copytree(templates / "store", root)
    link(root / THREAD, "copy", templates / "outside")
    saver = FileSystemSaver(root, fsync="never")
    for use in (lambda: saver.get(INNER), lambda: saver.tag(X, 1), lambda: saver.delete("x"), lambda: lock(saver)):
        with pytest.raises(CheckpointFormatError, match="symbolic link"):
            use()
    assert saver.threads() == ["y"]
    assert "is not listed, for it is not a directory" in caplog.text
    report = saver.verify()
    assert [(problem.path, problem.state) for problem in report.problems] == [(THREAD, "foreign")]
    assert "symbolic link" in report.problems[0].reason
    assert [(file.before.path, bool(file.refused)) for file in saver.repair().files] == [(THREAD, True)]
    saver.close()


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
