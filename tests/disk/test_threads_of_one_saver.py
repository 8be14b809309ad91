"""One FileSystemSaver, used by several threads of execution at once."""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from graphkit import Checkpoint, CheckpointConflictError, RunnableConfig
from savers import FileSystemSaver

THREADS = 4
OPERATIONS = 400
ROOT = RunnableConfig("t")
NESTED = RunnableConfig("t", checkpoint_ns="nested")


def make_operations(saver):
    checkpoint = Checkpoint(node_id="a", next_node_id="b", state={"n": 1})
    return [
        lambda: saver.put(ROOT, checkpoint),
        lambda: saver.put(NESTED, checkpoint),
        lambda: saver.get(ROOT),
        lambda: saver.get(NESTED),
        lambda: saver.versions_by_thread_id("t"),
        lambda: saver.release(ROOT),
        lambda: saver.delete("t"),
    ]


def test_no_two_operations_wait_for_each_other(tmp_path):
    """Whoever waits for ever gets an error after the timeout, which is longer than all of them take."""
    with FileSystemSaver(tmp_path, fsync="never", lock_timeout=30) as saver, ThreadPoolExecutor(THREADS) as executor:
        operations = make_operations(saver)

        def work(seed):
            chosen = random.Random(seed).choices(operations, k=OPERATIONS)
            for operation in chosen:
                # A put that comes in the middle of a delete is refused.
                with suppress(CheckpointConflictError):
                    operation()

        for working in [executor.submit(work, seed) for seed in range(THREADS)]:
            working.result()
        assert saver.verify().ok
