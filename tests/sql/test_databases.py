"""What holds on every database: statements, transactions, keys, values, threads, forks."""

import os

import pytest

from graphkit.errors import CheckpointFormatError, CheckpointStorageError
from graphkit.testing._values import HOSTILE_IDS
from savers._sql.columns import MOST_BYTES, decode_id, decode_text, encode_id, is_cut
from savers._sql.statements import SCHEMA_VERSION
from savers.log import StaleLogError
from tests.sql.rows import add_history, positions, put
from tests.support.databases import PostgresDatabase, PostgresSession, SqliteConnection, encode_text


class Stopped(Exception):
    pass


def test_bytes_and_numbers_return_as_they_were_put(database):
    history = add_history(database)
    frames = [b"", b"\0", bytes(range(256)), b"\\x00%s?" * 1000, os.urandom(1 << 20)]
    for number, frame in enumerate(frames):
        assert put(database, history, number << 40, frame) == 1
    rows = database.read(f"SELECT position, frame FROM {database.names.records} ORDER BY position")
    assert rows == [(number << 40, frame) for number, frame in enumerate(frames)]
    assert all(type(frame) is bytes for _, frame in rows)


def test_a_literal_question_mark_or_percent_sign_is_no_placeholder(database):
    assert database.read("SELECT '?', '%s', 7 % 4, CAST(? AS TEXT) LIKE 'a%'", ("abc",)) in [
        [("?", "%s", 3, 1)],
        [("?", "%s", 3, True)],
    ]


def test_an_id_takes_16_bytes_if_it_is_a_uuid_and_returns_as_it_was():
    uuid = "0195f2c4-8f5e-7b61-a3d0-5a1c2e4f6b7d"
    assert encode_id(uuid) == bytes.fromhex(uuid.replace("-", ""))
    ids = [uuid, uuid.upper(), uuid.replace("-", ""), "16 letters of it", "1", "", *HOSTILE_IDS]
    assert len({encode_id(name) for name in ids}) == len(set(ids))
    assert [decode_id(encode_id(name)) for name in ids if not is_cut(encode_text(name))] == [
        name for name in ids if not is_cut(encode_text(name))
    ]


def test_a_record_without_its_history_is_refused(database):
    with pytest.raises(StaleLogError):
        database.write(f"INSERT INTO {database.names.records} (history, position, frame) VALUES (?, 0, ?)", (99, b""))


@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt])
def test_an_exception_rolls_a_transaction_back(database, error):
    history = add_history(database)

    def stop():
        with database.transaction() as transaction:
            transaction.execute(f"DELETE FROM {database.names.histories}")
            raise error

    with pytest.raises(error):
        stop()
    assert put(database, history, 0) == 1


def test_an_interrupt_from_the_keyboard_during_begin_leaves_no_transaction(database, open_database, monkeypatch):
    history = add_history(database)
    interrupt_once_after(monkeypatch, "BEGIN")
    with pytest.raises(KeyboardInterrupt), database.transaction():
        pass
    monkeypatch.undo()
    assert put(database, history, 0) == 1
    assert positions(open_database(), history) == [0]
    assert add_history(database, "another thread") != history


def interrupt_once_after(monkeypatch, beginning):
    """Raise what Ctrl-C raises, when a statement has been executed."""
    for owner in (SqliteConnection, PostgresSession):

        def run(self, sql, *args, execute=owner.run):
            result = execute(self, sql, *args)
            if sql.startswith(beginning):
                raise KeyboardInterrupt
            return result

        monkeypatch.setattr(owner, "run", run)


def test_a_write_inside_a_transaction_of_the_same_thread_is_refused(database):
    history = add_history(database)
    with database.transaction(), pytest.raises(RuntimeError):
        put(database, history, 0)
    assert put(database, history, 0) == 1


def test_a_writer_waits_for_another_one_and_then_gives_up(database, open_database):
    history = add_history(database)
    impatient = open_database(lock_timeout=0.05)
    with database.transaction() as transaction:
        transaction.execute(f"UPDATE {database.names.histories} SET version = 1")
        with pytest.raises(CheckpointStorageError, match="lock_timeout"), impatient.transaction() as late:
            late.execute(f"UPDATE {database.names.histories} SET version = 2")
    assert put(impatient, history, 0) == 0


def test_a_newer_schema_is_refused_and_left_alone(database, open_database):
    add_history(database)
    database.write(f"UPDATE {database.names.meta} SET value = ?", (SCHEMA_VERSION + 1,))
    with pytest.raises(CheckpointFormatError, match="upgrade graphkit"):
        add_history(open_database(), "other")
    assert database.read(f"SELECT thread FROM {database.names.histories}") == [("t",)]


@pytest.mark.parametrize("version", [0, -1, "x", 1.5, b"1"])
def test_a_schema_version_that_no_release_has_written_is_refused(database, open_database, version):
    add_history(database)
    if not isinstance(version, int) and isinstance(database, PostgresDatabase):
        pytest.skip("PostgreSQL keeps other types out")
    database.write(f"UPDATE {database.names.meta} SET value = ?", (version,))
    other = open_database()
    with pytest.raises(CheckpointFormatError, match="restore a backup"):
        other.has_tables()
    with pytest.raises(CheckpointFormatError, match="restore a backup"):
        add_history(other, "other")
    assert database.read(f"SELECT thread FROM {database.names.histories}") == [("t",)]


def test_tables_of_which_one_is_missing_are_refused(database, open_database):
    add_history(database)
    database.write(f"DROP TABLE {database.names.records}")
    with pytest.raises(CheckpointFormatError, match="not complete"):
        open_database().read(f"SELECT * FROM {database.names.records}")


def test_every_id_is_a_key_of_its_own(database):
    escapes = ["\x1a", "\x1a0000", "\0"]
    surrogates = ["\ud800\udc00", "\U00010000"]
    ids = [*HOSTILE_IDS, *escapes, *surrogates, "\u20ac" * 300]
    for text in ids:
        add_history(database, encode_text(text))
    rows = database.read(f"SELECT thread FROM {database.names.histories}")
    keys = {key for (key,) in rows}
    assert len(keys) == len(ids)
    for key in keys:
        encoded = key.encode()
        assert len(encoded) <= MOST_BYTES
    decoded = {decode_text(key) for key in keys if not is_cut(key)}
    short = {text for text in ids if len(text) < 300}
    assert decoded == short


@pytest.mark.parametrize("text", ["x" * MOST_BYTES + "y", "\u20ac" * 300, "\0" * 200])
def test_a_long_id_keeps_its_beginning_and_cannot_be_decoded(text):
    encoded = encode_text(text)
    assert is_cut(encoded)
    assert encoded != encode_text(text + "z")
    with pytest.raises(ValueError, match="only the beginning"):
        decode_text(encoded)


def test_asking_for_the_tables_creates_none(open_database):
    database = open_database()
    assert not database.has_tables()
    assert not open_database().has_tables()
    database.read(f"SELECT count(*) FROM {database.names.meta}")
    assert database.has_tables()
    assert open_database().has_tables()
