"""What holds on every database: statements, transactions, keys, values, threads, forks."""

import pytest

from graphkit.errors import CheckpointFormatError, CheckpointStorageError
from graphkit.testing._values import HOSTILE_IDS
from savers._sql.columns import MOST_BYTES, decode_id, decode_text, encode_id, is_cut
from savers._sql.statements import SCHEMA_VERSION
from tests.sql.rows import USES, add_history, interrupt_at_each_point, put
from tests.support.databases import PostgresDatabase, encode_text


def test_an_id_takes_16_bytes_if_it_is_a_uuid_and_returns_as_it_was():
    uuid = "0195f2c4-8f5e-7b61-a3d0-5a1c2e4f6b7d"
    assert encode_id(uuid) == bytes.fromhex(uuid.replace("-", ""))
    ids = [uuid, uuid.upper(), uuid.replace("-", ""), "16 letters of it", "1", "", *HOSTILE_IDS]
    assert len({encode_id(name) for name in ids}) == len(set(ids))
    short = [name for name in ids if not is_cut(encode_text(name))]
    assert [decode_id(encode_id(name)) for name in short] == short


def test_each_text_has_an_encoding_of_its_own_which_is_cut_if_it_is_long():
    short = [*HOSTILE_IDS, "\x1a", "\x1a0000", "\0", "\ud800\udc00", "\U00010000"]
    texts = [*short, "x" * MOST_BYTES + "y", "x" * MOST_BYTES + "z", "\u20ac" * 300, "\u20ac" * 301, "\0" * 200]
    encoded = {encode_text(text) for text in texts}

    assert len(encoded) == len(texts)
    assert max(len(each.encode()) for each in encoded) <= MOST_BYTES

    for text in texts:
        if is_cut(encode_text(text)):
            assert len(text) >= 200
            with pytest.raises(ValueError, match="only the beginning"):
                decode_text(encode_text(text))
        else:
            assert decode_text(encode_text(text)) == text


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("use", USES)
def test_a_signal_at_any_point_leaves_no_transaction_and_no_lock(database, open_database, use):
    interrupt_at_each_point(database, open_database(lock_timeout=1.0), use)


def test_a_write_inside_a_transaction_of_the_same_thread_is_refused(database):
    history = add_history(database)
    with pytest.raises(RuntimeError):
        database.transact(lambda _: put(database, history, 0))
    assert put(database, history, 0) == 1


def test_a_writer_waits_for_another_one_and_then_gives_up(database, open_database):
    history = add_history(database)
    impatient = open_database(lock_timeout=0.05)
    update = f"UPDATE {database.names.histories} SET version = ?"

    def keep_waiting(transaction):
        transaction.execute(update, (1,))
        with pytest.raises(CheckpointStorageError, match="lock_timeout"):
            impatient.transact(lambda late: late.execute(update, (2,)))

    database.transact(keep_waiting)
    assert put(impatient, history, 0) == 0


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0, -1, "x", 1.5, b"1"])
def test_another_version_of_the_schema_is_refused_and_left_alone(database, open_database, version):
    add_history(database)
    if not isinstance(version, int) and isinstance(database, PostgresDatabase):
        pytest.skip("PostgreSQL keeps other types out")
    database.write(f"UPDATE {database.names.meta} SET value = ?", (version,))
    other = open_database()
    advice = "upgrade graphkit" if version == SCHEMA_VERSION + 1 else "restore a backup"

    with pytest.raises(CheckpointFormatError, match=advice):
        other.has_tables()
    with pytest.raises(CheckpointFormatError, match=advice):
        add_history(other, "other")
    assert database.read(f"SELECT thread FROM {database.names.histories}") == [("t",)]


@pytest.mark.parametrize("missing", ["records", "meta"])
def test_tables_of_which_one_is_missing_or_that_have_no_version_are_refused_and_left_alone(
    database, open_database, missing
):
    add_history(database)
    database.write(f"DROP TABLE {getattr(database.names, missing)}")
    with pytest.raises(CheckpointFormatError, match="not those of graphkit or not complete"):
        open_database().read(f"SELECT * FROM {database.names.records}")
    assert database.read(f"SELECT thread FROM {database.names.histories}") == [("t",)]


def test_asking_for_the_tables_creates_none(open_database):
    database = open_database()
    assert not database.has_tables()
    assert not open_database().has_tables()
    database.read(f"SELECT count(*) FROM {database.names.meta}")
    assert database.has_tables()
    assert open_database().has_tables()
