"""The processes that tests/support/launcher.py forks behave as new interpreters do."""

import os
import select
import signal

import pytest


def test_the_id_of_a_process_that_has_ended_gets_no_signal(launcher, monkeypatch):
    sent = []
    with launcher.start("-c", "pass") as process:
        select.select([process._end], [], [])
        monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
        process.kill()
        assert (sent, process.returncode) == ([], 0)


def test_a_process_that_runs_gets_signals(launcher):
    with launcher.start("-c", "print('ready', flush=True); input()") as process:
        assert process.stdout.readline() == "ready\n"
        assert process.poll() is None
        process.kill()
        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("code", "returncode", "shown"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import warnings; warnings.warn('old')", 1, "UserWarning: old"),
    ],
)
def test_exit_codes_and_errors_are_those_of_an_interpreter(launcher, code, returncode, shown):
    done = launcher.run("-c", code)
    assert (done.returncode, done.stdout) == (returncode, "")
    assert shown in done.stderr


def test_what_a_process_registers_runs_at_its_end(launcher):
    code = "import atexit, threading\natexit.register(print, 'last')\nthreading.Timer(0.01, print, ['first']).start()"
    done = launcher.run("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "first\nlast\n", "")


def test_a_process_has_no_descriptors_of_others(launcher):
    code = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    alone = launcher.run("-c", code).stdout
    with launcher.start("-c", "input()"):
        assert launcher.run("-c", code).stdout == alone
