"""What holds on SQLite: the file, its faults, its durability."""

import errno
import os
import sqlite3
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from graphkit import RunnableConfig
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointFormatError,
    CheckpointStorageError,
)
from savers import SqliteSaver
from savers._sql import sqlite_connection, sqlite_database
from savers._sql.sqlite_connection import translate_error
from tests.sql.rows import add_history, positions, put
from tests.sql.savers import put as put_state
from tests.support.checkpoints import list_numbers
from tests.support.databases import SqliteConnection, SqliteDatabase
from tests.support.disks import as_an_ordinary_user


@pytest.fixture
def file(tmp_path):
    return tmp_path / "made" / "for it" / "graphkit.db"


@pytest.fixture
def database(file):
    with closing(SqliteDatabase(file, fsync="never")) as database:
        yield database


@pytest.fixture
def history(database):
    return add_history(database)


def pragma(database, name):
    return database.read(f"PRAGMA {name}")[0][0]


@pytest.mark.parametrize(("fsync", "synchronous"), [("always", 2), (5, 1), (0.5, 1), ("never", 0)])
def test_the_log_is_synced_as_fsync_requires(file, fsync, synchronous):
    with closing(SqliteDatabase(file, fsync=fsync)) as database:
        assert (pragma(database, "journal_mode"), pragma(database, "synchronous")) == ("wal", synchronous)


def test_a_flush_syncs_what_was_written_since_the_last_one(file, monkeypatch):
    synced = []
    monkeypatch.setattr(
        sqlite_database.os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
    )
    database = SqliteDatabase(file, fsync=3600)
    add_history(database)
    synced.clear()
    database.flush()
    assert synced == [f"{file}-wal"]
    database.flush()
    assert synced == [f"{file}-wal"]
    put(database, 1, 0)
    database.close()
    assert synced == [f"{file}-wal"] * 2


def test_a_put_is_synced_by_itself_after_some_seconds_even_if_the_first_could_not_start_the_thread(file, monkeypatch):
    synced = threading.Event()
    monkeypatch.setattr(sqlite_database, "sync_file", lambda path: path.endswith("-wal") and synced.set())
    database = SqliteDatabase(file, fsync=0.01)
    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError):
            add_history(database)
    add_history(database, "u")
    assert synced.wait(30)
    database.close()


def test_after_a_failed_sync_the_log_is_copied_and_emptied(file, monkeypatch):
    def refuse(fd):
        raise OSError(errno.EIO, "the disk is broken")

    database = SqliteDatabase(file, fsync=3600)
    history = add_history(database)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_database.os, "fsync", refuse)
        with pytest.raises(CheckpointStorageError, match="cannot sync"):
            database.flush()
    assert Path(f"{file}-wal").stat().st_size == 0
    assert put(database, history, 0) == 1
    database.close()


@pytest.mark.parametrize("db_file", ["runs/", Path(), "runs/.", "..", "runs/..", "/"])
def test_a_path_that_can_only_be_a_directory_is_refused(tmp_path, monkeypatch, db_file):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointerConfigurationError, match="must be the path of a file, not of a directory"):
        SqliteDatabase(db_file)
    assert list(tmp_path.iterdir()) == []


def test_an_old_sqlite_is_refused(file, monkeypatch):
    monkeypatch.setattr(sqlite_connection.sqlite3, "sqlite_version_info", (3, 39, 4))
    with pytest.raises(CheckpointerConfigurationError, match=r"3\.40"):
        SqliteDatabase(file)


@pytest.mark.parametrize("content", [b"graphkit" * 1000, b"x", b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path, content):
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    with pytest.raises((CheckpointFormatError, CheckpointCorruptionError), match=r"notes\.txt"):
        SqliteDatabase(file).read("SELECT 1")
    assert file.read_bytes() == content


def test_a_full_disk_leaves_what_was_there(database, history):
    put(database, history, 0)
    database.read(f"PRAGMA max_page_count = {pragma(database, 'page_count') + 2}")
    with pytest.raises(CheckpointStorageError, match="full") as caught:
        put(database, history, 1, os.urandom(100_000))
    assert caught.value.errno == errno.ENOSPC

    def write_much(transaction):
        transaction.execute(f"UPDATE {database.names.histories} SET version = 1")
        transaction.execute(f"UPDATE {database.names.records} SET frame = ?", (os.urandom(100_000),))

    with pytest.raises(CheckpointStorageError, match="full"):
        database.transact(write_much)
    database.read("PRAGMA max_page_count = 1000000")
    assert put(database, history, 1, os.urandom(100_000)) == 1


def test_a_rollback_that_fails_leaves_no_transaction(file, monkeypatch, database, history):
    def fail(connection):
        raise CheckpointStorageError(connection.path, "write", "a fault")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteConnection, "roll_back_if_open", fail)
        with pytest.raises(CheckpointStorageError, match="a fault"):
            database.transact(lambda _: 1 / 0)
    assert put(database, history, 0) == 1
    with closing(SqliteDatabase(file, fsync="never")) as other:
        assert positions(other, history) == [0]


def test_a_value_that_sqlite_cannot_store_is_an_error(database, history):
    database._connections.use_main()._raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
    with pytest.raises(CheckpointStorageError, match="1 GB"):
        put(database, history, 0, b"x" * 1001)
    assert put(database, history, 0, b"x" * 100) == 1


@pytest.fixture
def open_directory():
    """A directory that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="graphkit") as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


def test_a_directory_without_rights_is_an_error(open_directory):
    closed = open_directory / "closed"
    closed.mkdir()
    closed.chmod(0o500)
    with as_an_ordinary_user(), closing(SqliteDatabase(closed / "x.db", fsync="never")) as database:
        for operate in (database.read, database.write):
            with pytest.raises(CheckpointStorageError, match="may not create files in"):
                operate("SELECT 1")
    assert list(closed.iterdir()) == []


def test_a_read_only_file_can_be_read_and_not_written(open_directory):
    file = open_directory / "x.db"
    with closing(SqliteDatabase(file, fsync="never")) as database:
        add_history(database)
    file.chmod(0o444)
    with as_an_ordinary_user(), closing(SqliteDatabase(file, fsync="never")) as reader:
        assert reader.read("SELECT 1") == [(1,)]
        with pytest.raises(CheckpointStorageError, match=r"cannot write .*let this user write"):
            reader.write(f"UPDATE {reader.names.histories} SET version = 1")

    assert database.read(f"SELECT version FROM {database.names.histories}") == [(0,)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".", "it is a directory"),
        ("loop.db", "symbolic links"),
        ("x" * 300, "name too long"),
        ("file/inside/x.db", "cannot create"),
    ],
)
def test_a_path_that_no_file_can_have_is_an_error_with_the_reason(tmp_path, name, reason):
    (tmp_path / "loop.db").symlink_to("loop.db")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointStorageError, match=f"(?i){reason}"):
        SqliteDatabase(tmp_path / name).read("SELECT 1")


def test_why_sqlite_cannot_open_a_file_is_explained(tmp_path, monkeypatch):
    def explain(path):
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorname = "SQLITE_CANTOPEN"
        return str(translate_error(error, str(path), "open"))

    file = tmp_path / "runs.db"
    file.touch()
    assert "it is a directory" in explain(tmp_path)
    assert f"its directory {tmp_path / 'absent'} does not exist" in explain(tmp_path / "absent" / "runs.db")
    assert f"may not create files in {tmp_path}" in explain(file)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "may not read the file" in explain(file)


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_removed_write_ahead_log_is_noticed_and_costs_nothing(tmp_path, how):
    path = tmp_path / "x.db"
    with SqliteSaver(path) as saver:
        put_state(saver, {"n": 0})
        (tmp_path / "x.db-wal").unlink()
        if how == "replaced":
            (tmp_path / "x.db-wal").write_bytes(b"")
        with pytest.raises(CheckpointStorageError, match="removed or replaced"):
            put_state(saver, {"n": 1})
        put_state(saver, {"n": 2})
        assert list_numbers(saver, RunnableConfig("t")) == [2, 0]
    with SqliteSaver(path) as saver:
        assert list_numbers(saver, RunnableConfig("t")) == [2, 0]
        assert saver.verify().ok
