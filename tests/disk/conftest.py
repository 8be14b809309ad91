"""Savers on one store, and logs that are short."""

import os
import threading

import pytest

from graphkit import RunnableConfig
from savers import FileSystemSaver
from tests.support import logs


@pytest.fixture(autouse=True)
def short_logs_are_extended(monkeypatch):
    """The logs of these tests are short, and are extended ahead as if they were long."""
    logs.extend_short_logs(monkeypatch)


@pytest.fixture(autouse=True)
def ended_flushers():
    """Ends the threads that sync every so many seconds, of savers whose process is said to have died."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        arguments = getattr(thread, "_args", ())  # a thread that ends meanwhile has lost them
        if thread.name == "graphkit-flush" and arguments:
            (stop,) = arguments
            stop.set()
            thread.join()


@pytest.fixture
def short_records(monkeypatch):
    """A record has at most 64 KiB, not 1 GiB."""
    logs.shorten_records(monkeypatch)


@pytest.fixture
def config():
    return RunnableConfig(thread_id="t")


@pytest.fixture
def opener(tmp_path):
    """Opens savers on one store, and closes them all at the end."""
    opened = []

    def open_saver(path=None, **options):
        options = {"fsync": "never", **options}
        opened.append(FileSystemSaver(path or tmp_path / "store", **options))
        return opened[-1]

    yield open_saver
    for saver in opened:
        saver.close()


@pytest.fixture
def saver(opener):
    return opener()


@pytest.fixture
def odd_umask():
    """A umask that would leave nothing to the owner's group, nor to the owner."""
    before = os.umask(0o777)
    yield
    os.umask(before)
