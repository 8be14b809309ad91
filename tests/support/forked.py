"""Runs a function in a fork of this process, which does nothing else: neither the other tests nor the end of this one."""

import os
import sys
import traceback


def run_in_child(function):
    """Return whether the function returned in the child, and did not return False. What it raises is printed."""
    return exit_code_of_child(function) == 0


def exit_code_of_child(function):
    """Return 0 if the function returned in the child, 1 if it raised or returned False, or the signal that killed it, negated."""
    return start_in_child(function)()


def start_in_child(function):
    """Run a function in a child meanwhile; return a function that waits for the end and returns the exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 1 if function() is False else 0
        except BaseException:  # noqa: BLE001 - the child ends here
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
