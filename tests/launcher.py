"""Runs scripts in processes that have their packages imported, which costs most of a second per process otherwise.

The fixture `launcher` of `tests/conftest.py` starts a process that imports graphkit, its savers and the packages of
others once, and forks for each script. What an import itself does is tested with new interpreters: those of
tests/api/test_examples.py and tests/fresh_process.py.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import atexit, gc, importlib, json, os, runpy, socket, sys, threading, traceback

others = ["langgraph.graph", "mcp", "openai", "psycopg", "typer"]
for name in [*others, "graphkit.agents", "graphkit.cli.app", "savers.langgraph"]:
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # A script that needs it says so.
assert threading.active_count() == 1
gc.freeze()
requests = socket.socket(fileno=int(sys.argv[1]))
while request := requests.recv(1_000_000):
    files = socket.recv_fds(requests, 1, 3)[1]
    child = os.fork()
    if child == 0:
        break
    for file in files:
        os.close(file)
    requests.send(str(child).encode())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    requests.send(str(code).encode())
else:
    requests.close()
    sys.exit()
requests.close()
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
command, directory, environment = json.loads(request)
os.chdir(directory)
os.environ.clear()
os.environ.update(environment)
kind = command[0] if command[0] in {"-c", "-m"} else "script"
sys.argv[:] = ["-c", *command[2:]] if kind == "-c" else command[kind == "-m":]
own = os.path.dirname(command[0]) if kind == "script" else ""
sys.path[:1] = [own, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
code = 1
try:
    if kind == "-c":
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(command[0], run_name="__main__")
    code = 0
except SystemExit as end:
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
    else:
        code = end.code or 0
except BaseException:
    traceback.print_exc()
# What the interpreter does in the end, except that it frees the packages, which takes a second.
threading._shutdown()
atexit._run_exitfuncs()
gc.collect()
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
"""


class Launcher:
    """A process that forks for each script."""

    def __init__(self, requests):
        self.requests = requests

    def run(self, *command, cwd=".", environment=None, given=""):
        """Run a script, -m and a module or -c and code, with warnings as errors and UTF-8 on its streams, until it ends.

        Returns:
            What `subprocess.run` returns, with the output as text.
        """
        with ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(given.encode())
            for file in files:
                file.seek(0)
            request = [[str(part) for part in command], str(Path(cwd).resolve()), os.environ | (environment or {})]
            self.requests.send(json.dumps(request).encode())
            socket.send_fds(self.requests, [b"."], [file.fileno() for file in files])
            process_id = int(self.requests.recv(100))
            try:
                code = int(self.requests.recv(100))
            except TimeoutError:
                os.kill(process_id, signal.SIGKILL)
                raise
            for file in files:
                file.seek(0)
            _, out, err = (file.read().decode() for file in files)
        return subprocess.CompletedProcess(command, code, out, err)


@contextmanager
def start():
    """Start the process; it ends with the block, or with the tests."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.settimeout(120)
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(there.fileno())]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    with here, subprocess.Popen(command, pass_fds=[there.fileno()], env=environment, cwd=ROOT) as process:
        there.close()
        yield Launcher(here)
        here.close()
    assert process.returncode == 0
