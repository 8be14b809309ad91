"""Watches of the savers on databases: changes in time, complete, and only what is new."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import psycopg
import pytest

from graphkit import RunnableConfig
from graphkit.abc import Watch
from graphkit.errors import CheckpointStorageError
from graphkit.testing import made
from savers import PostgresSaver
from tests.sql.rows import add_history
from tests.support import postgres_server
from tests.support.checkpoints import make_interrupt
from tests.support.client import start_client
from tests.support.databases import PostgresSession, limit_wait_for_puts, open_commits
from tests.support.disks import count_open_files

LONG = 60.0
"""No change may wait for the next read of all histories."""


def put(saver, thread="t", number=0, namespace=""):
    checkpoint = made({"n": number})
    saver.put(RunnableConfig(thread, checkpoint_ns=namespace), checkpoint)
    return checkpoint.id


def take(watch):
    """Return the next change, without waiting for a read of all histories."""
    change = watch.get(LONG / 2)
    assert change is not None
    return change


def take_id(watch):
    change = take(watch)
    assert change.kind == "checkpoint"
    return change.checkpoint.id


def test_a_history_that_was_rewritten_goes_on_and_each_delete_is_reported(saver, open_saver):
    other = open_saver()
    ids = [put(other, number=number) for number in range(4)]
    with saver.watch("t", interval=LONG) as watch:
        assert other.remove(RunnableConfig("t"), ids[:2]) == 2
        assert put(other, number=9) == take_id(watch)
        assert watch.get(0) is None

        other.delete("t")
        assert take(watch).kind == "delete"

        other.put("t", made(metadata={"graphkit:incomplete": {}}))
        assert take(watch).checkpoint.status == "incomplete"
        other.delete("t")
        assert take(watch).kind == "delete"


def test_a_watch_that_begins_before_the_last_keyframe_reads_what_is_put_meanwhile(saver):
    ids = [put(saver)]
    with saver.watch("t", latest=True, interval=LONG) as watch:
        ids += [put(saver, number=number) for number in range(1, 24)]
        assert take_id(watch) == ids[0]
        ids.append(put(saver, number=24))
        assert [take_id(watch) for _ in ids[1:]] == ids[1:]


def test_a_reader_that_sleeps_is_woken_by_a_change_by_wake_and_by_close(saver, monkeypatch):
    monkeypatch.setattr("graphkit._waker._LONGEST_SLEEP", LONG / 2)
    sleep = Watch._sleep_until
    sleeps = threading.Event()

    def sleep_until(watch, time):
        sleeps.set()
        sleep(watch, time)

    monkeypatch.setattr(Watch, "_sleep_until", sleep_until)
    put(saver)
    # Then a put is a transaction, as one of 16 MB is.
    monkeypatch.setattr("savers._sql.row_inserts.Commit.is_usual", False)
    monkeypatch.setattr("savers._sql.row_inserts.Commit.is_short", False)
    watch = saver.watch("t", interval=LONG)
    assert watch.get(0) is None
    with ThreadPoolExecutor(2) as pool:
        found = []
        for end_sleep in (partial(put, saver), watch.wake, watch.close):
            sleeps.clear()
            reader = pool.submit(watch.get)
            assert sleeps.wait(LONG)
            ended = pool.submit(end_sleep)
            found.append(reader.result(LONG / 4))
            ended.result()
    assert [change and change.kind for change in found] == ["checkpoint", None, None]


def test_a_watch_hears_of_changes_after_one_that_could_not_begin(saver, monkeypatch):
    counts = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        for _ in range(2):
            with pytest.raises(RuntimeError):
                saver.watch("t", interval=LONG)
            counts.append(count_open_files())
    assert counts[0] == counts[1]
    with saver.watch("t", interval=LONG) as watch:
        assert watch.get(0) is None
        assert put(saver) == take_id(watch)


@pytest.mark.parametrize("latest", [False, True])
def test_a_history_that_is_deleted_before_it_is_read_has_ended(saver, open_saver, monkeypatch, latest):
    put(saver)
    other = open_saver()
    with saver.watch("t", latest=latest, interval=LONG) as watch:
        open_log = watch._open

        def delete_and_open(found, end):
            other.delete("t")
            return open_log(found, end)

        monkeypatch.setattr(watch, "_open", delete_and_open)
        put(other, number=1)
        assert take(watch).kind == "delete"
        assert watch.get(0) is None


def test_a_damaged_history_is_reported_to_the_log_and_no_other_is_lost(saver, open_saver, caplog):
    other = open_saver()
    put(other, "damaged")
    put(other, "whole")
    with saver.watch(interval=0.01) as watch:
        put(other, "damaged", 1)
        assert take(watch).thread_id == "damaged"
        database = other._database
        put(saver, "damaged", 2)
        assert take(watch).thread_id == "damaged"
        put(other, "damaged", 3)
        database.write(
            f"UPDATE {database.names.records} SET frame = ? WHERE position = (SELECT max(position) FROM "
            f"{database.names.records}) AND history = (SELECT min(history) FROM {database.names.histories})",
            (b"damaged",),
        )
        with caplog.at_level(logging.WARNING, logger="graphkit"):
            ids = [put(other, "whole", number) for number in range(2)]
            seen = []
            while ids[-1] not in seen:
                seen.append(take_id(watch))
        assert ids == [found for found in seen if found in ids]


@pytest.mark.parametrize("dies", [True, False])
def test_a_watch_distinguishes_the_death_of_a_run_from_its_end(saver, launcher, dies):
    put(saver)
    with saver.watch("t", interval=0.01) as watch:
        holder = start_client(launcher, saver.opener(), "holder")
        assert holder.stdout.readline() == "held\n"
        put(saver, number=1)
        assert take(watch).checkpoint.status == "running"
        assert saver.history(RunnableConfig("t"))[0].status == "running"
        while "t" not in watch._source._running:
            assert watch.get(0.05) is None
        if dies:
            holder.kill()
        holder.communicate()
        change = take(watch)
        assert change.kind == "idle"
        assert change.value == dies
        assert saver.history(RunnableConfig("t"))[0].status == "stalled"


def test_the_thread_that_listens_ends_with_the_last_watch(saver):
    before = set(threading.enumerate())
    watches = [saver.watch("t") for _ in range(3)]
    (thread,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "graphkit-changes"]
    for watch in watches:
        assert thread.is_alive()
        watch.close()
    thread.join(LONG)
    assert not thread.is_alive()


def test_a_file_that_was_replaced_is_watched_again(sqlite_opener, tmp_path):
    with sqlite_opener() as saver, saver.watch("t", interval=LONG) as watch:
        for name in ("store.db", "store.db-wal", "store.db-shm"):
            (tmp_path / name).unlink()
        with sqlite_opener() as other:
            assert put(other) == take_id(watch)


def test_a_file_that_could_not_be_opened_for_a_while_is_watched_again(open_sqlite, tmp_path):
    database = open_sqlite()
    add_history(database)
    commits = open_commits(database)
    file = tmp_path / "test.db"
    file.rename(tmp_path / "away")
    file.mkdir()
    # None: any thread may have changed.
    assert commits.find_threads() == {None}
    file.rmdir()
    (tmp_path / "away").rename(file)
    assert commits.find_threads() == {None}
    assert commits.find_threads() == set()
    commits.close()


def test_puts_notify_only_where_a_watch_listens(server, schema):
    with PostgresSaver(server.connection_string, schema=schema) as saver:
        put(saver)
        database = saver._database
        with psycopg.connect(server.connection_string, autocommit=True) as listener:
            listener.execute(f"LISTEN {database.changes.channel}")
            with saver.watch("other"):
                put(saver, number=1)
            put(saver, "other")
            saver.put_writes(RunnableConfig("t"), {"interrupt:i": make_interrupt("x")})
            notified = listener.notifies(timeout=0.2)
            assert [found.payload for found in notified if found.payload] == []
        assert database.read(f"SELECT * FROM {database.names.watchers}") == []


def test_a_watch_waits_for_the_puts_that_asked_before_it_was_there(server, schema, monkeypatch):
    limit_wait_for_puts(monkeypatch, LONG)
    with PostgresSaver(server.connection_string, schema=schema) as saver, ThreadPoolExecutor(1) as pool:
        put(saver)
        database = saver._database
        statements = saver._store.statements

        def put_late(transaction):
            # As a put that has executed its statement and not committed yet.
            ((history,),) = transaction.execute(statements.select_history, ("t", "", 0))
            transaction.execute(statements.update_history, (0, "running", history, history, 0, None, history, None))
            transaction.notify_status("t")
            opening = pool.submit(database.changes.open_listener, "t")
            while not transaction.execute(f"SELECT 1 FROM {database.names.watchers}"):
                assert not opening.done()
            assert not opening.done()
            return opening

        database.transact(put_late).result(LONG).close()


def test_a_watch_looks_at_intervals_where_no_notification_arrives(server, schema, monkeypatch):
    monkeypatch.setattr(PostgresSession, "take_notifications", lambda session: [])
    with PostgresSaver(server.connection_string, schema=schema) as saver, saver.watch("t", interval=0.01) as watch:
        assert put(saver, number=1) == take_id(watch)
        assert not watch._source._listener.hears_all


def test_a_role_that_only_reads_watches_at_intervals(own_server):
    with PostgresSaver(own_server.connection_string) as saver:
        put(saver)
        own_server.execute("CREATE ROLE onlooker LOGIN")
        own_server.execute("GRANT USAGE ON SCHEMA graphkit TO onlooker")
        own_server.execute("GRANT SELECT ON ALL TABLES IN SCHEMA graphkit TO onlooker")
        reading = PostgresSaver(own_server.connection_string.replace("user=test", "user=onlooker"))
        with reading, reading.watch("t", interval=0.01) as watch:
            assert put(saver, number=1) == take_id(watch)
            assert put(saver, number=2) == take_id(watch)
            assert not watch._source._listener.hears_all
            with pytest.raises(CheckpointStorageError, match="permission denied"):
                put(reading, number=3)


def test_a_watch_on_a_standby_reads_at_intervals(own_server):
    with PostgresSaver(own_server.connection_string, lease=600.0) as saver:
        put(saver)
        with postgres_server.start_standby(own_server) as standby, PostgresSaver(standby.connection_string) as reading:
            with reading.watch("t", interval=0.01) as watch:
                with saver.run_lock(RunnableConfig("t")):
                    assert put(saver, number=1) == take_id(watch)
                    # The advisory lock of the holder is on the primary only.
                    assert reading._database.run_locks.is_held("t")
                assert not watch._source._listener.hears_all
            with pytest.raises(CheckpointStorageError, match="connect to a server that accepts writes"):
                put(reading, number=3)


def test_a_watch_whose_server_refuses_to_notify_is_an_error(server, schema, monkeypatch):
    with PostgresSaver(server.connection_string, schema=schema) as saver:
        monkeypatch.setattr(saver._database.changes, "channel", "no name")
        with pytest.raises(CheckpointStorageError, match="cannot watch"):
            saver.watch("t")


def test_watching_goes_on_after_a_restart_of_the_server(own_server):
    with PostgresSaver(own_server.connection_string) as saver, PostgresSaver(own_server.connection_string) as other:
        put(saver)
        with saver.watch("t", interval=LONG) as watch:
            put(other)
            take(watch)
            own_server.stop()
            own_server.start()
            # Connections that were lost are noticed by their first use.
            with PostgresSaver(own_server.connection_string) as fresh:
                assert put(fresh) == take_id(watch)
