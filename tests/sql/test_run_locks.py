"""Run locks of stores: one holder per thread among threads of execution, savers and processes; leases of PostgreSQL."""

import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic

import pytest

from graphkit.errors import CheckpointStorageError, ThreadBusyError
from graphkit.testing import made
from savers import PostgresSaver
from tests.sql.savers import every_store
from tests.support.client import start_client
from tests.support.forked import run_in_child
from tests.support.interruptions import count_signal_points, interrupt_signal_point

# Since 3.12 a fork beside other threads warns; none of them is in the middle of anything here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
SOON = 60
"""Seconds within which anything happens that must happen."""


def is_busy(saver, timeout=0):
    """Whether another run holds the lock of thread "t", also after a wait."""
    try:
        with saver.run_lock("t", timeout):
            return False
    except ThreadBusyError:
        return True


@every_store
def test_another_process_is_named_and_its_death_gives_the_lock_to_the_one_that_waits(open_saver, launcher):
    saver = open_saver()
    options = {"lease": 3600.0} if isinstance(saver, PostgresSaver) else {}
    opener = partial(open_saver.opener, lock_timeout=SOON, **options)
    with start_client(launcher, opener, "first") as first:
        assert first.stdout.readline() == "held\n"
        with start_client(launcher, opener, "second") as second:
            with pytest.raises(ThreadBusyError, match=f"process {first.pid}"), saver.run_lock("t", 0.05):
                pass
            assert saver.is_run_locked("t")
            first.kill()
            assert second.stdout.readline() == "held\n"
    assert not is_busy(saver)


def test_a_copy_of_the_directory_releases_nothing(sqlite_opener, tmp_path):
    with sqlite_opener() as saver, saver.run_lock("t"):
        shutil.copytree(tmp_path, tmp_path.with_name("backup"))  # opens and closes the lock file
        assert run_in_child(lambda: is_busy(sqlite_opener()))


def test_a_lock_file_that_is_removed_is_made_again(open_sqlite, tmp_path):
    first = open_sqlite()
    second = open_sqlite()
    with first.run_locks.hold("t", 0):
        (tmp_path / "test.db-lock").unlink()
        with second.run_locks.hold("u", 0):
            assert first.run_locks.is_held("u")
    with second.run_locks.hold("t", 0):
        assert first.run_locks.is_held("t")


# Leases


def first_expiry(database):
    """When the first of all leases ends; None without any."""
    return database.read(f"SELECT min(expires) FROM {database.names.run_locks}", ())[0][0]


def wait_until(condition):
    """Wait for something that happens elsewhere."""
    deadline = monotonic() + SOON
    while not condition():
        assert monotonic() < deadline, "it does not happen"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_lock_that_a_signal_interrupts_at_any_point_is_free(open_postgres):
    """That of a file is interrupted in tests/disk/test_interruptions.py."""
    locks, locks_of_other = (open_postgres(lease=3600).run_locks for _ in range(2))

    def hold():
        with locks.hold("t", SOON):
            pass

    hold()
    count = count_signal_points(hold)
    assert count > 30
    for number in range(1, count + 1):
        interrupt_signal_point(hold, number)
        with locks_of_other.hold("t", 5):
            assert locks.token_of("t") is None, f"interrupted at {number} of {count}"
        hold()


def test_a_lease_is_renewed_while_the_lock_is_held(open_postgres):
    database = open_postgres(lease=2)
    other = open_postgres(lease=2)

    with database.run_locks.hold("t", 0), database.run_locks.hold("u", 0):
        for _ in range(4):  # both leases, twice
            then = first_expiry(database)
            wait_until(lambda then=then: first_expiry(database) > then)
        with pytest.raises(ThreadBusyError), other.run_locks.hold("t", 0):
            pass
    assert first_expiry(database) is None


def start_holder(launcher, opener):
    """Start a process that holds the lock of thread "t"."""
    holder = start_client(launcher, opener, "holder")
    assert holder.stdout.readline() == "held\n"
    return holder


def put_by(holder):
    """Let the holder of the lock put a checkpoint."""
    holder.stdin.write("1\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "put\n"


def test_a_paused_holder_that_no_run_has_taken_over_goes_on(launcher, postgres_opener):
    opener = partial(postgres_opener, lease=2, lock_timeout=SOON)
    with opener() as saver, start_holder(launcher, opener) as holder:
        holder.send_signal(signal.SIGSTOP)
        wait_until(lambda: not saver.is_run_locked("t"))
        holder.send_signal(signal.SIGCONT)
        put_by(holder)
        wait_until(lambda: saver.is_run_locked("t"))
        assert is_busy(saver)


def test_a_run_whose_connection_is_lost_while_it_waits_is_not_taken_over(open_postgres):
    holding, waiting, third = (open_postgres(lease=3600) for _ in range(3))
    has_tried = (
        "SELECT a.pid FROM pg_stat_activity AS a JOIN pg_locks AS l ON l.pid = a.pid"
        " WHERE l.locktype = 'advisory' AND l.granted AND a.state = 'idle' AND a.query LIKE '%INSERT INTO%'"
    )
    is_over = threading.Event()

    def run():
        with waiting.run_locks.hold("t", SOON):
            return is_over.wait(SOON)

    with ThreadPoolExecutor(1) as executor:
        with holding.run_locks.hold("t", 0):
            own = set(holding.read(has_tried))
            running = executor.submit(run)
            wait_until(lambda: set(holding.read(has_tried)) - own)
            for process in set(holding.read(has_tried)) - own:
                holding.read("SELECT pg_terminate_backend(?::integer, 10000)", process)
        try:
            wait_until(lambda: waiting.run_locks.token_of("t") is not None)
            with pytest.raises(ThreadBusyError), third.run_locks.hold("t", 0):
                pass
        finally:
            is_over.set()
        assert running.result()


def test_a_holder_whose_connection_is_lost_locks_its_token_again(open_postgres_saver, server):
    saver, other = (open_postgres_saver(lease=3600) for _ in range(2))
    locks = saver._database.run_locks
    with saver.run_lock("t"):
        token = locks.token_of("t")
        for number in range(3):
            server.end_connections()
            wait_until(lambda: other.is_run_locked("t"))
            assert is_busy(other)
            assert locks.token_of("t") == token
            saver.put("t", made({"n": number}))
    assert not is_busy(other)


def test_a_connection_that_is_lost_just_before_the_wait_is_replaced_at_once(open_postgres_saver, server):
    saver, other = (open_postgres_saver(lease=3600) for _ in range(2))
    locks = saver._database.run_locks
    wait = locks._wait

    def lose_and_wait(*arguments):
        server.end_connections()
        locks._wait = wait
        wait(*arguments)

    locks._wait = lose_and_wait
    with saver.run_lock("t"):
        wait_until(lambda: locks._wait is wait and other.is_run_locked("t"))


@pytest.fixture
def patient_opener(own_server):
    return partial(PostgresSaver, own_server.connection_string, lease=3600, lock_timeout=SOON)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("how", ["kill", "fast", "immediate"])
def test_a_holder_keeps_its_lock_across_a_restart_of_the_server(own_server, patient_opener, how):
    with patient_opener() as saver, patient_opener() as other:
        assert not other.is_run_locked("t")
        with saver.run_lock("t"):
            with ThreadPoolExecutor(1) as executor:
                waiting = executor.submit(is_refused, other)
                own_server.kill() if how == "kill" else own_server.stop(how)
                own_server.start()
                saver.put("t", made())
                assert waiting.result()
            saver.put("t", made())
        assert not is_busy(other)


def test_a_paused_holder_keeps_its_lock_across_a_restart_of_the_server(launcher, own_server, patient_opener):
    """Its advisory lock is gone, which proves nothing; its lease counts."""
    with patient_opener() as saver, start_holder(launcher, patient_opener) as holder:
        holder.send_signal(signal.SIGSTOP)
        own_server.stop("fast")
        own_server.start()
        assert saver.is_run_locked("t")
        assert is_refused(saver)
        holder.send_signal(signal.SIGCONT)
        put_by(holder)


def is_refused(saver):
    """Whether a run does not get the lock within a second, because it is held or the server is gone."""
    try:
        return is_busy(saver, 1)
    except CheckpointStorageError:
        return True
