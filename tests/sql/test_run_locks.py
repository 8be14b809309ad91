"""Run locks: one holder per thread among threads of execution, database objects and processes."""

import json
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from graphkit.errors import CheckpointStorageError, ThreadBusyError
from tests.sql.rows import add_history, fenced_put
from tests.support.client import ROOT
from tests.support.databases import PostgresDatabase
from tests.support.forked import run_in_child
from tests.support.interruptions import count_signal_points, interrupt_signal_point

SOON = 60
"""Seconds within which anything happens that must happen."""


class Holder:
    """A process that holds a run lock."""

    def __init__(self, launcher, *arguments):
        self.process = launcher.start("-m", "tests.sql.holder", json.dumps(arguments), cwd=ROOT)

    def read(self):
        return self.process.stdout.readline().strip()

    def put(self, history, position):
        self.process.stdin.write(f"{history} {position}\n")
        self.process.stdin.flush()
        return int(self.read())

    def send(self, number):
        os.kill(self.process.pid, number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def start_holder(request, launcher, tmp_path, database, at_end):
    def start(thread_id="t", timeout=SOON, **options):
        kind, place = "sqlite", str(tmp_path / "test.db")
        if isinstance(database, PostgresDatabase):
            kind, place = "postgres", request.getfixturevalue("server").connection_string
            options["schema"] = database.schema
        return at_end.enter_context(Holder(launcher, kind, place, options, thread_id, timeout))

    return start


def test_a_second_holder_waits_and_then_gives_up(database, open_database):
    with database.run_locks.hold("t", 1):
        for each in (database, open_database()):
            with pytest.raises(ThreadBusyError) as caught, each.run_locks.hold("t", 0.05):
                pass
            assert caught.value.thread_id == "t"
            assert f"process {os.getpid()} on host" in caught.value.holder
            assert 0 < caught.value.waited < SOON
        with database.run_locks.hold("u", 0):
            assert database.run_locks.is_held("u")
    with open_database().run_locks.hold("t", 0):
        assert database.run_locks.is_held("t")


def test_another_process_is_named_and_its_death_gives_the_lock_to_the_one_that_waits(database, start_holder):
    options = {"lease": 3600} if isinstance(database, PostgresDatabase) else {}
    first = start_holder(**options)
    assert first.read() == "held"
    assert database.run_locks.is_held("t")
    with pytest.raises(ThreadBusyError, match=f"process {first.process.pid}"), database.run_locks.hold("t", 0.05):
        pass
    second = start_holder(**options)
    assert start_holder(timeout=0).read() == "busy"
    assert second.process.poll() is None
    first.send(signal.SIGKILL)
    assert second.read() == "held"
    second.process.stdin.close()
    second.process.wait()
    with database.run_locks.hold("t", 0):
        assert database.run_locks.is_held("t")


def test_a_forked_child_holds_nothing(database):
    locks = database.run_locks

    def use():
        with locks.hold("u", SOON):
            assert not locks.is_mine("t")
            assert locks.is_held("t")
        with pytest.raises(ThreadBusyError), locks.hold("t", 0.05):
            pass

    with locks.hold("t", 0):
        assert run_in_child(use)
        assert locks.is_held("t")
    assert not locks.is_held("t")


def test_a_copy_of_the_directory_releases_nothing(open_sqlite, launcher, tmp_path):
    database = open_sqlite()
    with database.run_locks.hold("t", 1):
        shutil.copytree(tmp_path, tmp_path.with_name("backup"))  # opens and closes the lock file
        with Holder(launcher, "sqlite", str(tmp_path / "test.db"), {}, "t", 0.1) as holder:
            assert holder.read() == "busy"


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


def expires(database, thread="t"):
    rows = database.read(f"SELECT expires FROM {database.names.run_locks} WHERE thread = ?", (thread,))
    return rows[0][0] if rows else None


def wait_until(condition):
    """Wait for something that happens elsewhere."""
    event = threading.Event()
    for _ in range(SOON * 100):
        if condition():
            return
        event.wait(0.01)
    raise AssertionError("it does not happen")


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

    def is_renewed(thread, then):
        return expires(database, thread) > then

    with database.run_locks.hold("t", 0), database.run_locks.hold("u", 0):
        for _ in range(2):
            then = {thread: expires(database, thread) for thread in ("t", "u")}
            for thread, time in then.items():
                wait_until(partial(is_renewed, thread, time))
        with pytest.raises(ThreadBusyError), other.run_locks.hold("t", 0):
            pass
    assert expires(database) is None


def test_a_paused_holder_that_no_run_has_taken_over_goes_on(launcher, open_postgres, server, schema):
    database = open_postgres(lease=2)
    history = add_history(database)
    with Holder(launcher, "postgres", server.connection_string, {"schema": schema, "lease": 2}, "t", SOON) as holder:
        assert holder.read() == "held"
        holder.send(signal.SIGSTOP)
        wait_until(lambda: not database.run_locks.is_held("t"))
        holder.send(signal.SIGCONT)
        assert holder.put(history, 0) == 1
        wait_until(lambda: database.run_locks.is_held("t"))
        with pytest.raises(ThreadBusyError), database.run_locks.hold("t", 0):
            pass


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


def test_a_holder_whose_connection_is_lost_locks_its_token_again(open_postgres, server):
    database = open_postgres(lease=3600)
    other = open_postgres(lease=3600)
    history = add_history(database)
    with database.run_locks.hold("t", 0):
        token = database.run_locks.token_of("t")
        for position in range(3):
            server.end_connections()
            wait_until(lambda: other.run_locks.is_held("t"))
            with pytest.raises(ThreadBusyError), other.run_locks.hold("t", 0):
                pass
            assert database.run_locks.token_of("t") == token
            assert fenced_put(database, "t", history, position) == 1
    with other.run_locks.hold("t", 0):
        assert other.run_locks.is_held("t")


PATIENT = {"lease": 3600, "lock_timeout": 60}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("how", ["kill", "fast", "immediate"])
def test_a_holder_keeps_its_lock_across_a_restart_of_the_server(own_server, how):
    database, other = (PostgresDatabase(own_server.connection_string, **PATIENT) for _ in range(2))
    history = add_history(database)
    assert not other.run_locks.is_held("t")
    with database.run_locks.hold("t", 0):
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(wait_for_lock, other)
            own_server.kill() if how == "kill" else own_server.stop(how)
            own_server.start()
            assert fenced_put(database, "t", history, 0) == 1
            assert not waiting.result()
        assert fenced_put(database, "t", history, 1) == 1
    with other.run_locks.hold("t", 0):
        assert other.run_locks.is_held("t")
    database.close()
    other.close()


def test_a_paused_holder_keeps_its_lock_across_a_restart_of_the_server(launcher, own_server):
    """Its advisory lock is gone, which proves nothing; its lease counts."""
    database = PostgresDatabase(own_server.connection_string, **PATIENT)
    history = add_history(database)
    with Holder(launcher, "postgres", own_server.connection_string, PATIENT, "t", SOON) as holder:
        assert holder.read() == "held"
        holder.send(signal.SIGSTOP)
        own_server.stop("fast")
        own_server.start()
        assert database.run_locks.is_held("t")
        assert not wait_for_lock(database)
        holder.send(signal.SIGCONT)
        assert holder.put(history, 0) == 1
        database.close()


def wait_for_lock(database):
    try:
        with database.run_locks.hold("t", 1):
            return True
    except (ThreadBusyError, CheckpointStorageError):
        return False
