"""The service with two tenants: it tells its story, and is killed at random while it works and erases."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphkit.errors import CheckpointErasedError
from savers import AuditLog, FileSystemSaver, KeyFile
from tests.support.command_process import CommandProcess
from tests.support.erasure import find_files

pytest.importorskip("cryptography")
pytestmark = [
    pytest.mark.requirement("P71", "P72", "P73"),
    pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX"),
]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tenant_service.py"
NAME = "Ann Lee"
KEY_ID = "acme-17"
"""Stands in each record that the key of the person has sealed, unsealed."""
WHOLE = {f"globex/{number}" for number in range(1, 9)} | {"acme/2", "acme/4"}


def run(*arguments):
    command = [sys.executable, "-W", "error", str(EXAMPLE), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def start(launcher, runs):
    return CommandProcess(launcher, "work", "--runs", runs, "--pause", 0.002, code=(str(EXAMPLE),))


def kill_somewhere(launcher, dice, runs, lines):
    """Kill the worker a moment after one of the first lines that it prints, or while it erases, which takes 7 ms."""
    worker = start(launcher, runs)
    last = dice.choice([dice.randrange(lines), None])
    for number, line in enumerate(worker.process.stdout):
        is_erasing = last is None and line.endswith(": erase\n")
        if is_erasing or number == last:
            time.sleep(dice.uniform(0, 0.01 if is_erasing else 0.03))
            break
    worker.process.kill()
    worker.end()


def check_store(runs):
    """The person is gone, the others are whole, the audit log agrees with the store, and the backup is unreadable."""
    data = runs / "data"
    keys = KeyFile(runs / "safe" / "keys")
    with FileSystemSaver(data / "checkpoints", cipher=keys) as store:
        assert store.verify().ok
        check_threads(store)
        public_key = (runs / "safe" / "public.key").read_bytes()
        log = AuditLog(data / "audit")
        report = log.verify(store, public_key=public_key)
        assert report.problems == ()
    assert find_files(runs, NAME) == []
    assert find_files(data / "checkpoints", KEY_ID) == []
    backup = runs / "backup" / "checkpoints"
    assert find_files(backup, KEY_ID) != []
    with FileSystemSaver(backup, cipher=keys) as saver, pytest.raises(CheckpointErasedError):
        saver.get("acme/1")


def check_threads(store):
    """The threads of the others are there, and each has all of its notes."""
    threads = store.threads()
    assert {*threads} == WHOLE | {"acme/erasure-of-17"}
    assert {store.summary(thread).status for thread in threads} == {"finished"}
    for thread in WHOLE:
        assert len(store.get(thread).state["notes"]) == 3
    assert store.own_key("globex/1") == "globex-17", "the same number of another tenant"


def test_it_prints_its_story(tmp_path):
    out = run("--runs", tmp_path)
    assert out[out.index("killed; started again") - 1] == "acme/erasure-of-17: erase"
    end = out[out.index("all work is done") :]
    deleted = [line for line in end if line.startswith("acme: delete acme/1: ")]
    assert deleted
    assert [line for line in end if line not in deleted] == [
        "all work is done",
        f"globex sees {', '.join(f'globex/{number}' for number in range(1, 9))}",
        "globex asks for acme/2: AccessDeniedError",
        "acme: get acme/2: ok",
        "globex: get acme/2: refused",
        "the log and the store agree: True",
        "the backup has acme/1, acme/2, acme/3, acme/4, globex/1, globex/2, globex/3, globex/4",
        "acme/1 cannot be read: the key acme-17 was destroyed",
        "erased again: acme/1, acme/3; nothing is left: True",
        "there are acme/2, acme/4, globex/1, globex/2, globex/3, globex/4",
        "its log and its store agree: True",
    ]
    check_store(tmp_path)
    assert find_files(tmp_path / "restored" / "checkpoints", KEY_ID) == []


def test_random_kills_leave_nothing_of_the_person_and_everything_of_the_others(tmp_path, launcher, sweep):
    dice = random.Random(27)
    for number in range(sweep.count(15, 3)):
        runs = tmp_path / str(number)
        kill_somewhere(launcher, dice, runs, 40)
        kill_somewhere(launcher, dice, runs, 16)
        out, err, code = start(launcher, runs).end()
        assert code == 0, err
        assert out[-1] == "all work is done", err
        # A kill may cut a write at the end of a page; what it left is set aside, and logged.
        for line in err.splitlines():
            assert "the last write did not finish" in line
        check_store(runs)
