"""A `graphkit` in a process of its own, which is killed after a minute."""

import os
import subprocess
import sys
import threading

PATIENCE = 60.0


class CommandProcess:
    """A command whose lines can be read while it runs."""

    def __init__(self, *args, code=("-m", "graphkit"), cwd=None):
        command = [sys.executable, "-W", "error", *code, *map(str, args)]
        self.process = subprocess.Popen(
            command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        )
        self.killer = threading.Timer(PATIENCE, self.process.kill)
        self.killer.start()

    def end(self):
        """Wait for its end; return the lines that it printed since, its errors and its exit code."""
        out, err = self.process.communicate()
        self.killer.cancel()
        return out.splitlines(), err, self.process.returncode
