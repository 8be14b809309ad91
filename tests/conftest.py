"""How much of the sweeps a run does, on how many processes, which examples Hypothesis takes; and PostgreSQL."""

import asyncio
import gc
import inspect
import itertools
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import launcher as launching, postgres_server
from tests.support.sweeps import FULL_EXAMPLES, Sweep, sampled_items

COLLECT_INSIDE_TEST = 100_000
"""Objects that a test may make until the collector runs inside it after all, so that memory stays bounded."""
_TESTS = itertools.count(1)
TESTS_PER_FULL_COLLECTION = 400
"""After how many tests the collector looks at all objects. Older garbage holds descriptors: thousands in a whole run."""

ROOM_FOR_FILES = 4 << 30
"""Bytes of memory that must be free for the files of the tests."""

# The same examples on every machine and at every hour; HYPOTHESIS_PROFILE=search looks for new ones.
SAME_EVERY_TIME = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}

settings.register_profile("default", max_examples=FULL_EXAMPLES // 4, **SAME_EVERY_TIME)
settings.register_profile("full", max_examples=FULL_EXAMPLES, **SAME_EVERY_TIME)
settings.register_profile("search", max_examples=2000, deadline=None, print_blob=True)


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="run all cases of all sweeps, not a sample of them")


def pytest_configure(config):
    _use_memory()
    _share_bytecode(config)
    profile = "full" if config.getoption("full") else "default"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", profile))


def _use_memory():
    """Let the tests keep their files in memory, where that can be: they wait half as long as on a disk.

    What a disk may lose is tested with a simulated one. `--basetemp` names another directory.
    """
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK | os.X_OK) and shutil.disk_usage(memory).free > ROOM_FOR_FILES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def _share_bytecode(config):
    """Let the hundreds of processes that tests start compile each module once, where nothing is to be written beside it."""
    if sys.dont_write_bytecode and hasattr(config, "cache"):
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(config.cache.mkdir("bytecode"))
        sys.dont_write_bytecode = False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_report_header(config):
    if config.getoption("full"):
        return "sweeps: all cases"
    return "sweeps: the same sample every time; --full runs all cases"


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers(config):
    """Files and tests that are named one by one run in this process; folders in one more than there are processors.

    A quarter of the time of the tests passes with waiting: for processes, locks, servers.
    """
    processors = yield
    names = [argument.partition("::")[0] for argument in config.args]
    return 0 if all(name.endswith(".py") for name in names) else processors + 1


def pytest_collection_modifyitems(config, items):
    if config.getoption("full"):
        return
    kept = set(sampled_items(items))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_collection():
    """Collect the tests without the garbage collector: almost nothing of what they make is garbage."""
    gc.disable()


def pytest_collection_finish():
    """Let the garbage collector pass by the million objects of the collected tests, and start more rarely.

    A full collection takes a tenth of a second with them. Some tests call it a hundred times.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_INSIDE_TEST)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """Let the garbage collector run between tests, not at some moment inside one.

    Its finalizers fail at the limit of the recursion, to which some tests go. A finalizer that warns fails the test
    that left the object, not a later one.
    """
    is_full = next(_TESTS) % TESTS_PER_FULL_COLLECTION == 0
    gc.collect(2 if is_full else 1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine function in an event loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    asyncio.run(test(**arguments))
    return True


@pytest.fixture(scope="session", autouse=True)
def patient_observers():
    """Give the observers of runs a minute for each event, not a second, in which a thread may not get a processor."""
    from graphkit._plan.events import Outbox  # not before coverage has started

    close = Outbox.close
    Outbox.close = lambda outbox, timeout=60.0: close(outbox, timeout)
    yield
    Outbox.close = close


@pytest.fixture(scope="session")
def sweep(request):
    return Sweep(is_full=request.config.getoption("full"))


@pytest.fixture(scope="session")
def launcher():
    """Runs scripts and commands in processes that have imported their packages."""
    with launching.start() as launcher:
        yield launcher


# PostgreSQL


@pytest.fixture(scope="session")
def postgres_data():
    with postgres_server.make_data() as data:
        yield data


@pytest.fixture(scope="session")
def server(postgres_data):
    """One server for all tests of a worker of pytest. Each takes a schema or a database of its own."""
    with postgres_server.start(postgres_data) as server:
        yield server


@pytest.fixture(scope="session")
def mortal_server(postgres_data):
    with postgres_server.start(postgres_data) as server:
        yield server


@pytest.fixture
def own_server(mortal_server):
    """A server that the test may stop and kill, without a schema of graphkit."""
    mortal_server.reset()
    return mortal_server


@pytest.fixture(scope="module")
def own_database(server):
    """The connection string of a database that no other module uses."""
    return server.create_database()
