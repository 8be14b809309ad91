"""Importing logs: on the disk when it returns, and only into the directory of the thread that it names."""

import itertools
import os
from pathlib import Path

import pytest

from graphkit import CheckpointFormatError, RunnableConfig, ThreadBusyError
from graphkit.transfer import export_threads, import_threads
from tests.support.checkpoints import make_checkpoint
from tests.support.client import start_client
from tests.support.disks import Died
from tests.support.logs import locate_thread, namespace_name

X, INNER = RunnableConfig("x"), RunnableConfig("x", checkpoint_ns="sub")


@pytest.fixture
def lines(opener, tmp_path):
    saver = opener(tmp_path / "old")
    saver.put(X, make_checkpoint(0))
    saver.put(INNER, make_checkpoint(1))
    saver.release(X)
    saver.put(X, make_checkpoint(2))
    return [*export_threads(saver, format="logs")]


@pytest.mark.parametrize("died", [False, True], ids=["first", "after one that died"])
def test_every_directory_that_an_import_makes_is_synced(died, lines, opener, tmp_path, monkeypatch):
    target = opener(tmp_path / "new")
    if died:
        # All directories are made; their names may not be on the disk.
        import_threads(target, lines, format="logs")
    synced, original = [], os.fsync

    def noted(fd):
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        original(fd)

    monkeypatch.setattr(os, "fsync", noted)
    import_threads(target, lines, format="logs")
    root = tmp_path / "new"
    thread = root / locate_thread("x").name
    places = [str(thread / namespace_name("sub")), str(thread), str(root)]
    for outer, inner in zip(places[1:], places, strict=False):
        assert len(synced) - synced[::-1].index(outer) > synced.index(inner), "the name after what it leads to"
    assert synced[-1] == str(root)
    assert synced.count(str(thread)) == 2, "before the root's log takes its place, and after it"
    assert opener(root).get(X).state["n"] == 2


def test_the_log_of_the_root_takes_its_place_last(lines, opener, tmp_path, monkeypatch):
    """An import that was cut short is continued, and until then nothing takes its thread for a whole one."""
    old = opener(tmp_path / "old")
    expected = [*export_threads(old, format="logs")]
    replace = os.replace
    for left in range(4):
        target = opener(tmp_path / str(left))
        done = []

        def dying(*paths, left=left, done=done):
            if len(done) == left:
                raise Died
            done.append(paths)
            replace(*paths)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", dying)
            with pytest.raises(Died):
                import_threads(target, lines, format="logs")
        assert target.get(X) is None
        report = import_threads(target, lines, format="logs")
        assert report.threads == ["x"]
        latest = target.get(X)
        assert latest.state["n"] == 2
        exported = [*export_threads(target, format="logs")]
        assert exported == expected


def test_a_log_that_is_missing_or_under_another_name_is_noticed(lines, opener, tmp_path):
    starts = [number for number, line in enumerate(lines) if line.startswith('{"file"')] + [len(lines) - 1]
    parts = [lines[start:end] for start, end in itertools.pairwise(starts)]
    swapped = [[one[0], *other[1:]] for one, other in zip(parts, reversed(parts), strict=True)]
    for number, changed in enumerate([parts[1:], parts[:-1], swapped]):
        target = opener(tmp_path / str(number))
        with pytest.raises(CheckpointFormatError, match="missing, or were changed"):
            import_threads(target, [*lines[:2], *itertools.chain(*changed), lines[-1]])
        assert target.threads() == []
    # A file of an older version does not say which logs there are.
    older = [*lines[:-1], '{"end": "x"}\n']
    assert import_threads(opener(tmp_path / "new"), older).threads == ["x"]


def test_an_import_takes_the_run_lock_of_the_thread(lines, opener, tmp_path, launcher):
    target = opener(tmp_path / "new", lock_timeout=0)
    with start_client(launcher, target.opener(), "holder", thread="x") as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ThreadBusyError):
            import_threads(target, lines, format="logs")
        assert target.threads() == []
    assert import_threads(target, lines, format="logs").threads == ["x"]
