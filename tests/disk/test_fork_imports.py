"""A fork beside threads that do their first puts: the child is never left with a module that is locked for ever."""

import os
import subprocess
import sys

import pytest

if not hasattr(os, "fork"):
    pytest.skip("forks", allow_module_level=True)

NOTHING_LEFT = """
import sys
from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
from tests.support.disks import preload_modules
t, inner = RunnableConfig("t"), RunnableConfig("t", checkpoint_ns="a b")
one = lambda: Checkpoint(node_id="a", next_node_id="b", state={"n": 1, "list": [1.5, None, "x"]}, metadata={"m": 1})
saver = FileSystemSaver(sys.argv[1], fsync=FSYNC)
preload_modules()  # as the first put does it, while no fork can come
before = set(sys.modules)
for config in (t, inner):
    saver.put(config, one())
    saver.put(config, one())
    saver.put_writes(config, {"key": 1})
    saver.add_tags(config, "tag")
    saver.get(config), saver.list(config)[0].state, saver.history(config), saver.summary(config)
with saver.run_lock(t, 0):
    pass
saver.release(t)
saver.put(t, one())
saver.threads(), saver.interrupts(), saver.namespaces("t"), saver.versions_by_thread_id("t"), saver.tag(t)
saver.copy("t", "u")
saver.prune(keep_last=1), saver.compact(), saver.delete("t"), saver.flush()
saver.close()
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("fsync", ["'always'", "'never'", "0.01"])
def test_nothing_else_is_imported_after_what_the_first_put_imports(fsync, tmp_path):
    code = NOTHING_LEFT.replace("FSYNC", fsync)
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "s"], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("[]\n", "")


FORKS = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
one = lambda: Checkpoint(node_id="a", next_node_id="b", state={})
root = sys.argv[2]
stuck = done = 0
for turn in range(int(sys.argv[1])):
    pid = os.fork()  # a fresh state of the interpreter each time
    if pid == 0:
        go = threading.Event()
        def first_put(number):
            go.wait()
            saver = MADE or FileSystemSaver(f"{root}/{turn}/{number}", fsync="never")
            saver.put(RunnableConfig(f"p{number}"), one())
        MADE = FileSystemSaver(f"{root}/{turn}/all", fsync="never") if turn % 2 else None
        for number in range(4):
            threading.Thread(target=first_put, args=(number,), daemon=True).start()
        go.set()
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends a child that hangs
            saver = FileSystemSaver(f"{root}/{turn}/all", fsync="never")
            saver.put(RunnableConfig("child"), one())
            with saver.run_lock(RunnableConfig("child")):
                os._exit(0 if saver.get(RunnableConfig("child")) is not None else 2)
        os._exit(1 if os.waitpid(child, 0)[1] else 0)
    done += 1
    stuck += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
print(done, stuck)
"""


def test_a_child_that_is_forked_beside_first_puts_does_its_own(sweep, tmp_path):
    count = sweep.count(40, 8)
    run = subprocess.run(
        [sys.executable, "-c", FORKS, str(count), tmp_path], capture_output=True, text=True, check=False
    )
    assert run.stdout == f"{count} 0\n", run.stderr
