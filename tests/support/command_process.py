"""Processes of their own: a `graphkit` that is killed after a minute, and Python programs."""

import threading
from contextlib import ExitStack, contextmanager

PATIENCE = 60.0


class CommandProcess:
    """A command whose lines can be read while it runs."""

    def __init__(self, launcher, *args, code=("-m", "graphkit"), cwd="."):
        self.process = launcher.start(*code, *args, cwd=cwd, has_errors=True)
        self.killer = threading.Timer(PATIENCE, self.process.kill)
        self.killer.start()

    def end(self):
        """Wait for its end; return the lines that it printed since, its errors and its exit code."""
        out, err = self.process.communicate()
        self.killer.cancel()
        return out.splitlines(), err, self.process.returncode


@contextmanager
def program_starter(launcher, program, *arguments, ready=None):
    """Yield a function that starts a Python program with the launcher; kill the processes that are left at the end.

    The function takes the last arguments of the program. With `ready`, it waits for this line.
    """
    with ExitStack() as stack:

        def start(*last):
            process = stack.enter_context(launcher.start("-c", program, *arguments, *last))
            stack.callback(process.kill)
            if ready is not None:
                assert process.stdout.readline() == f"{ready}\n"
            return process

        yield start
