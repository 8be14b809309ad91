"""What an erasure leaves in the files of a database: nothing, or a reason."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.operations import erase, erase_where
from savers import SqliteSaver
from tests.sql.savers import names_of, put

MARKER = "marker-7f3a"
"""In ids, metadata, values, tags and pending writes of the thread to erase."""


def fill(saver, thread=MARKER, text=MARKER):
    """Store a text wherever a thread can have one: short, long, replaced, pruned, released."""
    config = RunnableConfig(thread)
    for number in range(4):
        state = {"n": number, "short": text, "long": text * 3000, text: text}
        metadata = {"user": text, text: number}
        saver.put(config, Checkpoint(node_id=f"{text} node", next_node_id="b", state=state, metadata=metadata))
        saver.put_writes(config, {text: text})
        saver.add_tags(config, text)
    saver.put(config.replace(checkpoint_ns=text), Checkpoint(node_id="a", next_node_id="b", state={"x": text}))
    saver.prune(thread, keep_last=2)
    saver.release(config)
    saver.put(config, Checkpoint(node_id="a", next_node_id="b", state={"x": text}, metadata={"user": text}))
    with saver.run_lock(config):
        pass


def find_files(directory, marker=MARKER):
    """Return the files below a directory that have a text in them or in their names."""
    return [
        str(path.relative_to(directory))
        for path in Path(directory).rglob("*")
        if marker in path.name or (path.is_file() and marker.encode() in path.read_bytes())
    ]


# SQLite


@pytest.fixture
def sqlite_saver(tmp_path):
    with SqliteSaver(tmp_path / "a.db", compression=None, lock_timeout=0.5) as saver:
        yield saver


@pytest.mark.requirement("P73")
def test_no_file_of_sqlite_has_a_byte_of_what_was_erased(sqlite_saver, tmp_path):
    fill(sqlite_saver)
    put(sqlite_saver, {"x": "kept"}, "other")
    delete_without_overwriting(sqlite_saver, tmp_path, "deleted before")
    report = erase(sqlite_saver, MARKER)
    assert (report.ok, report.remaining, report.copies) == (True, (), ())
    assert find_files(tmp_path) == []
    assert sqlite_saver.get("other").state["x"] == "kept"
    assert sqlite_saver.verify().ok


def delete_without_overwriting(saver, tmp_path, thread):
    """Store and delete a thread as where SQLite does not overwrite by default what it deletes."""
    fill(saver, thread)
    saver.close()  # which copies the write-ahead log to the file
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"DELETE FROM {names_of(saver).histories} WHERE thread = ?", (thread,))
    assert thread not in saver.threads(released=True)
    saver.close()
    assert find_files(tmp_path)


def test_an_erasure_of_sqlite_that_was_cut_short_is_completed(sqlite_saver, tmp_path):
    delete_without_overwriting(sqlite_saver, tmp_path, MARKER)
    assert erase(sqlite_saver, MARKER).ok
    assert find_files(tmp_path) == []


def test_a_reader_of_sqlite_with_an_old_snapshot_keeps_bytes(sqlite_saver, tmp_path):
    fill(sqlite_saver)
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute(f"SELECT count(*) FROM {names_of(sqlite_saver).records}").fetchall()
        report = erase(sqlite_saver, MARKER)
        assert not report.ok
        assert "another connection reads an older state" in report.remaining[0]
        assert find_files(tmp_path)
    assert erase(sqlite_saver, MARKER).ok
    assert find_files(tmp_path) == []


def test_a_writer_of_sqlite_that_does_not_end_keeps_bytes(sqlite_saver, tmp_path):
    fill(sqlite_saver)
    sqlite_saver.delete(MARKER)
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        (reason,) = sqlite_saver.erase_deleted()
        assert "VACUUM failed" in reason
        writer.execute("ROLLBACK")
    assert sqlite_saver.erase_deleted() == ()


def test_a_watch_of_sqlite_misses_nothing_of_what_follows_an_erasure(sqlite_saver):
    for number in range(20):
        put(sqlite_saver, {"n": number}, MARKER)
        put(sqlite_saver, {"n": number}, "kept")
    with sqlite_saver.watch("kept") as changes:
        assert erase(sqlite_saver, MARKER).ok
        stored = put(sqlite_saver, {"n": 20}, "kept")
        found = changes.get(10)
        assert found.checkpoint.id == stored.id


# PostgreSQL


def base(server):
    """The directory with the files of the tables; the write-ahead log is elsewhere."""
    return Path(server.directory, "data", "base")


@pytest.mark.requirement("P73")
@pytest.mark.parametrize("analyzes", [False, True])
def test_no_table_of_postgres_has_a_byte_of_what_was_erased(open_postgres_saver, server, analyzes):
    saver = open_postgres_saver(compression=None)
    fill(saver)
    put(saver, {"x": "kept"}, "other")
    with saver.run_lock("other"), saver.watch("other"):
        if analyzes:
            # The statistics have samples of all columns.
            execute(server, "ANALYZE")
        execute(server, "CHECKPOINT")
        assert find_files(base(server))
        report = erase(saver, MARKER)
        assert not report.ok
        assert "until VACUUM FULL" in report.remaining[0]
        report = erase(saver, MARKER, full=True)
        assert report.remaining == ()
    execute(server, "CHECKPOINT")
    assert find_files(base(server)) == []
    assert saver.get("other").state["x"] == "kept"


def execute(server, sql):
    with psycopg.connect(server.connection_string, autocommit=True) as connection:
        connection.execute(sql)
