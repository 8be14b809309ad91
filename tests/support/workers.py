"""Workers that serve while a test goes on, and what tests ask a store about their threads."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic

from graphkit import RunnableConfig

PATIENCE = 60.0
"""Seconds that a test waits for another thread or process before it fails."""


@contextmanager
def serving(*workers):
    """Run workers in threads meanwhile, and stop them; the futures have what their `run` returns."""
    with ThreadPoolExecutor(len(workers)) as pool:
        running = [pool.submit(worker.run) for worker in workers]
        try:
            yield running
        finally:
            for worker in workers:
                worker.stop()
            for served in running:
                served.result(PATIENCE)


def status(saver, config="t"):
    return saver.recent(config, limit=1)[0].status


def status_everywhere(saver, thread="t"):
    """Return the status on which the summary, the history and the newest checkpoint of a thread agree."""
    config = RunnableConfig(thread)
    found = {saver.summary(config).status, saver.history(config)[0].status, status(saver, thread)}
    (agreed,) = found
    return agreed


def log_of(saver, thread="t"):
    return [*saver.get(RunnableConfig(thread)).state["log"]]


def wait_for(saver, wanted, thread="t"):
    """Wait until a thread has a status."""
    deadline = monotonic() + 2 * PATIENCE
    with saver.watch(RunnableConfig(thread), interval=0.02) as changes:
        while status(saver, thread) != wanted:
            assert monotonic() < deadline, f"{thread} is not {wanted}"
            changes.get(0.1)
