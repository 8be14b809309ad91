"""Runs scripts in processes that have their packages imported, which costs most of a second per process otherwise.

The fixture `launcher` of `tests/conftest.py` starts a process that imports graphkit, its savers and the packages of
others once, and forks for each script. What an import itself does is tested with new interpreters: those of
tests/api/test_examples.py and tests/support/fresh_process.py.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import atexit, gc, importlib, json, os, runpy, select, signal, socket, sys, threading, traceback

others = ["click", "langgraph.graph", "mcp", "openai", "psycopg", "pydantic_ai"]
for name in [*others, "graphkit.agents", "graphkit.cli.app", "savers.langgraph"]:
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # A script that needs it says so.
assert threading.active_count() == 1
gc.freeze()
requests = socket.socket(fileno=int(sys.argv[1]))
woken, waker = os.pipe()
os.set_blocking(waker, False)
signal.set_wakeup_fd(waker)  # The end of a child wakes the loop up.
signal.signal(signal.SIGCHLD, lambda *_: None)
ends = {}
child = None
while child != 0:
    ready, _, _ = select.select([requests, woken], [], [])
    if woken in ready:
        os.read(woken, 1000)
        for ended in [*ends]:
            process, status = os.waitpid(ended, os.WNOHANG)
            if process:
                end = ends.pop(process)
                os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(end)
    if requests in ready:
        request = requests.recv(1_000_000)
        if not request:
            os._exit(0)
        *files, end = socket.recv_fds(requests, 1, 4)[1]
        child = os.fork()
        if child:
            ends[child] = end
            for file in files:
                os.close(file)
            requests.send(str(child).encode())
signal.set_wakeup_fd(-1)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
requests.close()
for other in (woken, waker, end, *ends.values()):
    os.close(other)
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
command, directory, environment = json.loads(request)
os.chdir(directory)
os.environ.clear()
os.environ.update(environment)
encoding = environment.get("PYTHONIOENCODING", "utf-8")  # new streams: a pipe cannot seek, where a file could
sys.stdin = sys.__stdin__ = open(0, encoding=encoding, closefd=False)
sys.stdout = sys.__stdout__ = open(1, "w", encoding=encoding, closefd=False)
sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)
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


class Process:
    """A process that was started, with the attributes and methods of subprocess.Popen that tests use."""

    def __init__(self, pid, end, stdin=None, stdout=None, stderr=None):
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.returncode = None
        self._end = end

    def poll(self):
        if self.returncode is not None:
            return self.returncode
        return self.wait() if self._has_ended(0) else None

    def wait(self, timeout=120):
        if self.returncode is None:
            if not self._has_ended(timeout):
                self.kill()
                raise TimeoutError(f"process {self.pid} has not ended")
            self.returncode = int(os.read(self._end, 100))
            os.close(self._end)
        return self.returncode

    def _has_ended(self, timeout):
        # Not select: a long run may have more than 1024 files open.
        poller = select.poll()
        poller.register(self._end, select.POLLIN)
        return bool(poller.poll(timeout * 1000))

    def send_signal(self, number):
        # The launcher waits for its children at once, so that the id of one that has ended may be another's by now.
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, text=""):
        """Give it the rest of its input; return the rest of its output and, if they have a pipe, of its errors."""
        with self.stdin:
            self.stdin.write(text)
        with self.stdout:
            out = self.stdout.read()
        err = None
        if self.stderr is not None:
            with self.stderr:
                err = self.stderr.read()
        self.wait()
        return out, err

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                stream.close()
        self.wait()


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
            theirs_in = files[0]
            theirs_in.write(given.encode())
            for file in files:
                file.seek(0)
            streams = [file.fileno() for file in files]
            pid, end = self._fork(command, cwd, environment, streams)
            code = Process(pid, end).wait()
            for file in files:
                file.seek(0)
            _, out, err = (file.read().decode() for file in files)
        return subprocess.CompletedProcess(command, code, out, err)

    def start(self, *command, cwd=".", environment=None, has_errors=False):
        """Start what `run` takes, with pipes of text as its standard input and output.

        Args:
            has_errors: whether its standard error gets a pipe, too; otherwise it is that of the tests.
        """
        theirs_in, stdin = os.pipe()
        stdout, theirs_out = os.pipe()
        read = [stdout]
        if has_errors:
            stderr, theirs_err = os.pipe()
            read.append(stderr)
        else:
            theirs_err = os.dup(2)
        theirs = [theirs_in, theirs_out, theirs_err]
        pid, end = self._fork(command, cwd, environment, theirs)
        for file in theirs:
            os.close(file)
        given = os.fdopen(stdin, "w", encoding="utf-8")
        outputs = [os.fdopen(file, encoding="utf-8") for file in read]
        return Process(pid, end, given, *outputs)

    def start_at(self, terminal, *command, environment):
        """Start what `run` takes with the descriptor of a terminal as all of its streams."""
        return Process(*self._fork(command, ".", environment, [terminal] * 3))

    def _fork(self, command, cwd, environment, files):
        """Return the process id, and a descriptor from which its exit code can be read."""
        end, theirs = os.pipe()
        request = [[str(part) for part in command], str(Path(cwd).resolve()), os.environ | (environment or {})]
        self.requests.send(json.dumps(request).encode())
        socket.send_fds(self.requests, [b"."], [*files, theirs])
        os.close(theirs)
        return int(self.requests.recv(100)), end


@contextmanager
def start():
    """Start the process; it ends with the block, or with the tests."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.settimeout(120)
    number = there.fileno()
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(number)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    with here, subprocess.Popen(command, pass_fds=[number], env=environment, cwd=ROOT) as process:
        there.close()
        yield Launcher(here)
        here.close()
    assert process.returncode == 0
