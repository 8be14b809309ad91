"""What tests of LangGraph's checkpointer, store and cache need of their private parts."""

import asyncio
import subprocess
import sys
from pathlib import Path

from savers._filesystem import layout
from savers._filesystem.io import DirectoryGuard, FileIO as FileIO
from savers._log.frame import HEADER_SIZE as HEADER_SIZE, WRITE
from savers._log.log import SMALL_STATE as SMALL_STATE
from savers.langgraph import entry_log, saver as langgraph_saver


def find_log(directory, thread_id):
    """The path of the log of a thread."""
    return Path(directory, layout.locate_thread(thread_id).name, layout.LOG)


def find_write_lock(directory, thread_id):
    """The path of the file that a writer of a thread locks."""
    return Path(directory, layout.LOCKS, f"{layout.locate_thread(thread_id).stripe:02x}")


def set_listed_directories(monkeypatch, names):
    """Let the listings of a FileSystemSaver find these directories of threads, whatever there is by now."""
    monkeypatch.setattr(DirectoryGuard, "entries", lambda *_: [(name, True) for name in names])


def rewrite_short_logs(monkeypatch):
    """Let a FileSystemStore rewrite logs that are much shorter than usual."""
    monkeypatch.setattr(entry_log, "_LEAST_REWRITTEN", 1000)


def run_without_langgraph(*arguments):
    """Run `graphkit` in a process in which LangGraph is not installed."""
    code = "import sys; sys.modules['langgraph'] = None; from graphkit.cli.main import main; main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def append_record(store, payload):
    """Append a record with right checksums to the log of a FileSystemStore."""
    store._log.frames.append(WRITE, payload)
    store._log.frames.in_doubt = False


class WorkerCalls(list):
    """The names of the methods of a checkpointer that run in a worker thread."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.has_any = asyncio.Event()
        monkeypatch.setattr(langgraph_saver, "run_in_thread", self._run_in_thread)

    def forget(self):
        """Begin again, as if nothing had run in a thread."""
        self.clear()
        self.has_any.clear()

    async def _run_in_thread(self, call, *arguments):
        self.append(getattr(call, "func", call).__name__)
        self.has_any.set()
        return await asyncio.to_thread(call, *arguments)
