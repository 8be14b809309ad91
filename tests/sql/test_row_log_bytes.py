"""The bytes of a history in rows: read, appended all or none, and refused when another writer was faster."""

import random

import pytest

from graphkit.errors import CheckpointCorruptionError
from savers._sql import row_log_bytes
from savers._sql.row_inserts import SealMark
from savers._sql.statements import Statements
from savers.log import Change, StaleLogError, StoredCheckpoint
from tests.sql.rows import positions
from tests.support.databases import RowLogBytes
from tests.support.logs import KEY

BEGINNING = b"B" * 100
FRAMES = [bytes([n % 251]) * (40_000 if n == 150 else n % 90 + 1) for n in range(600)]
"""One of them is long."""


@pytest.fixture
def make(database):
    """Makes one more object of the same history; or of the one with a number."""
    statements = Statements(database)

    def make_bytes(number=None):
        return RowLogBytes(database, statements, ("t", ""), number=number, mark=SealMark(database, statements, None))

    return make_bytes


def make_checkpoint(id):
    return StoredCheckpoint(id, "a", "b", 0, None, {})


def write(medium, *parts):
    """Append records, and commit them together; begin the history if there is none. Return where it ends."""
    if not medium.is_open:
        medium.begin(BEGINNING)
    for part in parts:
        medium.append(medium.size, part, 0, None)
    medium.commit(None)
    return medium.size


def open_other(make):
    other = make()
    assert other.open()
    return other


@pytest.fixture
def history(make):
    """A history with these frames, opened by another object that keeps no rows of it."""
    medium = make()
    end = write(medium, *FRAMES)
    other = make(medium.history)
    other.open_to(end)
    return other


WHOLE = BEGINNING + b"".join(FRAMES)


def delete_row(database, position):
    database.write(f"DELETE FROM {database.names.records} WHERE position = ?", (position,))


# What every medium promises


@pytest.mark.parametrize("sql", ["DELETE FROM {histories}", "UPDATE {histories} SET version = 1"])
def test_a_history_that_is_deleted_or_released_is_replaced(make, database, sql):
    medium = make()
    end = write(medium, b"one")
    by_number = make(medium.history)
    assert by_number.open()
    database.write(sql.format(histories=database.names.histories))
    assert medium.refresh(end) is Change.REPLACED
    is_deleted = sql.startswith("DELETE")
    assert by_number.refresh(end) is (Change.REPLACED if is_deleted else Change.NONE)
    medium.close()
    assert medium.is_gone() is is_deleted
    assert not medium.open()


def test_what_was_not_committed_is_taken_back(make):
    medium = make()
    end = write(medium, b"one")
    medium.append(end, b"two", 0, None)
    medium.undo(end)
    assert not medium.has_pending
    medium.close()
    assert medium.open()
    assert medium.size == end
    assert write(medium, b"other") == end + 5
    assert open_other(make).read_at(end - 3, 100) == b"oneother"


# Reading


@pytest.mark.parametrize("length", [0, 1, 16_383, 40_000, 100_000])
def test_any_range_has_the_bytes_of_its_rows(history, length):
    for offset in (*range(0, len(WHOLE), 1777), len(WHOLE) - 1):
        assert history.read_at(offset, length) == WHOLE[offset : offset + length], offset
        history.drop_caches()
    assert history.read_at(len(WHOLE), 10) == b""


def test_any_ranges_in_any_order_have_the_bytes_of_their_rows(history):
    randomness = random.Random(1)
    for _ in range(300):
        ranges = []
        for _ in range(randomness.choice([1, 2, 3, 70])):
            start = randomness.randrange(len(WHOLE))
            ranges.append((start, min(len(WHOLE), start + randomness.choice([0, 5, 300, 20_000]))))
        assert history.read_many(ranges) == [WHOLE[start:end] for start, end in ranges]


@pytest.mark.parametrize("missing", [0, 1, 149, 150, 151, 400, 598])
def test_a_missing_row_is_reported_where_it_would_begin(history, database, missing):
    before = FRAMES[:missing]
    start = len(BEGINNING) + sum(map(len, before))
    end = start + len(FRAMES[missing])
    delete_row(database, start)
    assert history.read_at(0, start) == WHOLE[:start]
    assert history.read_at(end, len(WHOLE)) == WHOLE[end:]
    history.drop_caches()
    for read in (
        lambda: history.read_at(start - 1, 3),
        lambda: history.read_at(start, 1),
        lambda: history.read_many([(5, 9), (start - 1, end)]),
    ):
        with pytest.raises(CheckpointCorruptionError, match="a record is missing") as caught:
            read()
        assert caught.value.offset == start


def test_a_missing_row_among_those_that_are_new_is_reported(make, database):
    medium = make()
    end = write(medium, b"one")
    write(open_other(make), b"two", b"three")
    delete_row(database, end)
    with pytest.raises(CheckpointCorruptionError) as caught:
        medium.refresh(end)
    assert caught.value.offset == end


def test_a_history_without_its_first_row_is_damaged(make, database):
    write(make(), b"one")
    delete_row(database, 0)
    with pytest.raises(CheckpointCorruptionError, match="the first record is missing"):
        make().open()


def test_no_more_bytes_are_kept_than_wanted(history, monkeypatch):
    monkeypatch.setattr(row_log_bytes, "_MAX_READ", 20_000)
    for length in (5_000, 15_000, 80_000):
        for offset in range(0, len(WHOLE) - length, 3_000):
            history.read_at(offset, length)
            assert history.kept_size <= 20_000


# Appending


@pytest.mark.parametrize("count", [2, 30])
def test_all_records_of_a_commit_are_inserted_or_none(make, database, count):
    medium = make()
    end = write(medium, b"one")
    # The last position is taken, and the first one is not.
    last = end + 3 * (count - 1)
    insert = f"INSERT INTO {database.names.records} (history, position, frame, written) VALUES (?, ?, ?, 0)"
    database.write(insert, (medium.history, last, b"taken"))
    with pytest.raises(StaleLogError):
        write(medium, *[b"new"] * count)
    assert positions(database, medium.history) == [0, 100, last]


def test_nothing_is_inserted_behind_a_record_that_is_not_there(make, database):
    medium = make()
    end = write(medium, b"one", b"two")
    delete_row(database, end - 3)
    with pytest.raises(StaleLogError):
        write(medium, b"three")
    assert positions(database, medium.history) == [0, 100]


def append_checkpoint(medium, id, frame=b"record", flags=0):
    medium.append(medium.size, frame, flags, make_checkpoint(id))


def test_a_checkpoint_is_located_by_its_id(make):
    medium = make()
    write(medium, b"one")
    known = open_other(make)
    places = []
    for name in ("a", "b", "a"):
        places.append(medium.size)
        append_checkpoint(medium, name, flags=KEY)
        medium.commit(make_checkpoint(name))
    reader = open_other(make)
    assert [*reader.locate("a")] == places[2:]
    assert [*reader.locate("b")] == [places[1]]
    assert [*reader.locate("c")] == []
    assert [*known.locate("a")] == [], "it is behind the known end"
    append_checkpoint(reader, "c")
    assert [*reader.locate("c")] == [medium.size], "it waits"
