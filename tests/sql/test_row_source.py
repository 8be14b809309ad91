"""How the bytes of a history are read from its rows."""

import sqlite3
from contextlib import closing

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError
from graphkit.values import FrozenList
from savers._sql import row_source
from savers._sql.row_source import RowSource
from savers._sql.sqlite_saver import SqliteSaver
from tests.sql.rows import add_history, put

CONFIG = RunnableConfig("t")


class Statements:
    """Notes the statements that a database executes."""

    def __init__(self, database, monkeypatch):
        self.executed = []
        read = database.read

        def read_and_note(sql, parameters=()):
            self.executed.append(sql)
            return read(sql, parameters)

        monkeypatch.setattr(database, "read", read_and_note)

    def take(self):
        executed, self.executed = self.executed, []
        return executed


@pytest.fixture
def history(database):
    """The number of a history, and its frames, of which one is long."""
    number = add_history(database)
    frames = [bytes([n % 251]) * (40_000 if n == 150 else n % 90 + 1) for n in range(600)]
    position = 0
    with database.transaction() as transaction:
        insert = f"INSERT INTO {database.names.records} (history, position, frame) VALUES (?, ?, ?)"
        for frame in frames:
            transaction.execute(insert, (number, position, frame))
            position += len(frame)
    return number, frames


def delete_frame(database, history, position):
    database.write(f"DELETE FROM {database.names.records} WHERE history = ? AND position = ?", (history, position))


def grow(saver, count):
    """Put checkpoints whose list grows; return the ids."""
    messages = FrozenList()
    ids = []
    for number in range(count):
        messages = FrozenList([*messages, f"message {number} " * 10])
        checkpoint = Checkpoint(node_id="chat", next_node_id="chat", state={"messages": messages})
        saver.put(CONFIG, checkpoint)
        ids.append(checkpoint.id)
    return ids


@pytest.mark.parametrize("length", [0, 1, 16_383, 16_384, 40_000, 65_000, 100_000])
def test_any_range_has_the_bytes_of_its_rows(database, history, length):
    number, frames = history
    whole = b"".join(frames)
    for offset in (*range(0, len(whole), 1777), len(whole) - 1):
        wanted = min(length, len(whole) - offset)
        assert RowSource(database).read_at(number, offset, wanted) == whole[offset : offset + wanted], offset


def test_a_range_behind_the_end_has_what_is_there(database, history):
    number, frames = history
    whole = b"".join(frames)
    for offset in (0, len(whole) - 20_000, len(whole) - 3):
        assert RowSource(database).read_at(number, offset, 1 << 20) == whole[offset:]
    assert RowSource(database).read_at(number, len(whole), 1 << 20) == b""


@pytest.mark.parametrize("missing", [0, 1, 149, 150, 151, 400, 598, 599])
def test_a_range_ends_before_a_missing_row(database, history, missing):
    number, frames = history
    starts = [sum(map(len, frames[:n])) for n in range(len(frames))]
    delete_frame(database, number, starts[missing])
    whole = b"".join(frames)
    for first in {0, missing - 1, missing, missing + 1} & set(range(len(frames))):
        found = RowSource(database).read_at(number, starts[first], len(whole) - starts[first])
        if first < missing:
            assert found == whole[starts[first] : starts[missing]]
        elif first == missing:
            assert found == b""
        else:
            assert found == whole[starts[first] :]


def test_sqlite_joins_the_rows_of_a_long_range(tmp_path, monkeypatch):
    with SqliteSaver(tmp_path / "test.db", fsync="never") as saver:
        grow(saver, 400)
        whole = saver.get(CONFIG).state
    with SqliteSaver(tmp_path / "test.db", fsync="never") as saver:
        statements = Statements(saver._database, monkeypatch)
        assert saver.get(CONFIG).state == whole
        assert any("FROM (SELECT r.position" in sql for sql in statements.take())


def test_a_sqlite_file_whose_text_is_utf_16_joins_no_rows(tmp_path):
    file = tmp_path / "test.db"
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("PRAGMA encoding = 'UTF-16'")
        raw.execute("CREATE TABLE own (n)")
    with SqliteSaver(file, fsync="never") as saver:
        ids = grow(saver, 400)
    with SqliteSaver(file, fsync="never") as saver:
        assert len(saver.get(CONFIG).state["messages"]) == 400
        assert len(saver.get(RunnableConfig("t", ids[200])).state["messages"]) == 201
        assert not saver._database.joins_bytes()


def test_what_was_read_is_not_read_again(database, history, monkeypatch):
    number, frames = history
    whole = b"".join(frames)
    source = RowSource(database)
    source.read_at(number, 0, 16_000)
    source.read_at(number, 50_000, 10_000)
    statements = Statements(database, monkeypatch)
    assert source.read_at(number, 900, 14_000) == whole[900:14_900]
    assert source.read_at(number, 52_000, 100) == whole[52_000:52_100]
    assert source.read_ranges(number, [(10, 30), (51_000, 51_500)]) == [whole[10:30], whole[51_000:51_500]]
    assert statements.take() == []
    assert source.read_ranges(number, [(10, 30), (47_000, 48_000)]) == [whole[10:30], whole[47_000:48_000]]
    assert len(statements.take()) == 1


def test_few_ranges_and_few_bytes_are_kept(database, history, monkeypatch):
    number, frames = history
    length = sum(map(len, frames))
    source = RowSource(database)
    for offset in range(0, length - 100, 500):
        source.read_at(number, offset, 100)
        assert len(source._kept) <= row_source._MOST_KEPT_RANGES
    monkeypatch.setattr(row_source, "MOST_KEPT", 20_000)
    for offset in range(0, length - 9_000, 3_000):
        source.read_at(number, offset, 9_000)
        assert sum(len(kept.data) for kept in source._kept) <= 20_000


def test_a_range_that_covers_others_replaces_them(database, history):
    number, _ = history
    source = RowSource(database)
    source.read_at(number, 1_000, 100)
    source.read_at(number, 3_000, 100)
    source.read_at(number, 0, 12_000)
    assert len(source._kept) == 1


def test_bytes_of_another_history_are_never_taken(database, history):
    number, _ = history
    other = add_history(database, "other")
    put(database, other, 0, b"x" * 100)
    source = RowSource(database)
    source.read_at(number, 0, 10_000)
    assert source.read_at(other, 10, 20) == b"x" * 20
    assert source.read_ranges(other, [(0, 5), (50, 60)]) == [b"x" * 5, b"x" * 10]


def test_the_keyframes_of_a_long_value_take_one_statement(saver, open_saver, monkeypatch):
    grow(saver, 1500)
    with open_saver() as fresh:
        statements = Statements(fresh._database, monkeypatch)
        fresh.get(CONFIG)
        assert sum("k.is_keyframe" in sql and "LIMIT" in sql for sql in statements.take()) == 1


def test_a_missing_row_of_a_long_value_is_reported(saver, open_saver):
    grow(saver, 400)
    database = saver._database
    records = database.names.records
    positions = [row[0] for row in database.read(f"SELECT position FROM {records} ORDER BY position")]
    with database.transaction() as transaction:
        transaction.execute(f"DELETE FROM {records} WHERE position = ?", (positions[100],))
    with open_saver() as fresh, pytest.raises(CheckpointCorruptionError):
        fresh.get(CONFIG)
