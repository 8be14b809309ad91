"""SQLite files of which a page or a value is damaged: what verify reports, and what reading says."""

import itertools
import os
import sqlite3
from contextlib import closing, suppress

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointerError, CheckpointFormatError
from savers import SqliteSaver
from tests.sql.savers import fill
from tests.support.readings import READINGS

PAGE = 4096
THREADS = ("t", "u", "v")


NEED_NO_INDEX = {"threads", "all threads", "get", "list", "history", "recent", "summary", "namespaces", "replay"}
"""What finds all threads, or one thread, although the index of the threads is damaged; or is an error."""


def read_all(saver):
    """Read in every way; return the results, and the errors."""
    found = {}
    errors = {}
    for (name, read), thread in itertools.product(READINGS.items(), THREADS):
        try:
            found[name, thread] = read(saver, RunnableConfig(thread))
        except CheckpointerError as error:
            errors[name, thread] = error
    return found, errors


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The bytes of a file with some threads, and what there is to read in it."""
    file = tmp_path_factory.mktemp("written") / "x.db"
    with SqliteSaver(file, fsync="never") as saver:
        for thread in THREADS:
            fill(saver, 12, thread)
            saver.add_tags(RunnableConfig(thread), "label")
        saver.release(RunnableConfig("v"))
        fill(saver, 12, "v")
        saver.put(RunnableConfig("u"), Checkpoint(node_id="a", next_node_id="b", state={"long": os.urandom(3 * PAGE)}))
        found, errors = read_all(saver)
        assert not errors
        assert saver.verify().ok
    return file.read_bytes(), found


@pytest.fixture
def open_damaged(tmp_path):
    """Opens a saver on a file with other bytes."""
    numbers = itertools.count()

    def open_damaged(data):
        file = tmp_path / f"{next(numbers)}.db"
        file.write_bytes(data)
        return SqliteSaver(file, fsync="never")

    return open_damaged


def with_page(data, number, content):
    return data[: number * PAGE] + content + data[(number + 1) * PAGE :]


def take_page(data, number):
    return data[number * PAGE : (number + 1) * PAGE]


def list_unexpected(errors):
    """Return the errors that do not say that something is damaged."""
    return [
        error for error in errors.values() if not isinstance(error, (CheckpointCorruptionError, CheckpointFormatError))
    ]


def is_reported(saver):
    """Whether verify reports damage, or takes the tables for those of a newer version."""
    try:
        for thread in THREADS:
            saver.verify(thread)
        return not saver.verify().ok
    except CheckpointFormatError:
        return True


def check_damaged(saver, expected):
    """Check that verify reports damage, and that reading returns what is there or raises."""
    with saver:
        found, errors = read_all(saver)
        assert is_reported(saver)
        for thread in THREADS:
            with suppress(CheckpointerError):
                saver.delete(thread)
    assert list_unexpected(errors) == []
    needed = {name: value for name, value in found.items() if name[0] in NEED_NO_INDEX}
    assert needed == {name: expected[name] for name in needed}


def test_a_page_of_zeros_is_reported(written, open_damaged, sweep):
    data, expected = written
    for number in sweep.some(range(len(data) // PAGE), 12):
        check_damaged(open_damaged(with_page(data, number, bytes(PAGE))), expected)


def test_swapped_pages_are_reported_and_hide_no_thread(written, open_damaged, sweep):
    data, expected = written
    pairs = [*itertools.combinations(range(1, len(data) // PAGE), 2)]
    pairs = [pair for pair in pairs if take_page(data, pair[0]) != take_page(data, pair[1])]
    for first, second in sweep.some(pairs, 20):
        swapped = with_page(with_page(data, first, take_page(data, second)), second, take_page(data, first))
        check_damaged(open_damaged(swapped), expected)


def test_a_flipped_bit_is_reported_if_it_changes_anything(written, open_damaged, sweep):
    data, expected = written
    reported = 0
    step = 97
    schema = data.index(b"CREATE") | 7  # a flip there makes it no text, and SQLite's errors quote it
    for offset in (schema, *sweep.some(range(0, len(data), step), 60)):
        flipped = bytearray(data)
        flipped[offset] ^= 1 << offset % 8
        with open_damaged(flipped) as saver:
            found, errors = read_all(saver)
            is_noticed = is_reported(saver)
        assert list_unexpected(errors) == []
        assert is_noticed or (found, errors) == (expected, {})
        reported += is_noticed
    assert reported


INTEGER = 7
TEXT = "text"
BYTES = b"\0bytes"
COLUMNS = {
    (BYTES,): ["histories.thread", "histories.namespace", "histories.status", "meta.name"],
    (TEXT, BYTES): [
        *("histories.created", "histories.released", "records.is_keyframe", "records.written"),
        *("terms.term", "terms.history", "run_locks.token", "meta.value"),
    ],
    (TEXT, BYTES, 0.5): ["histories.version", "histories.keyframe", "records.history", "records.position"],
    (INTEGER, TEXT): ["histories.long_thread", "histories.long_namespace", "records.checkpoint", "records.frame"],
}
"""Values, which SQLite keeps in any column, and the columns that do not have such."""
WRONG = [(column, value) for values, columns in COLUMNS.items() for column in columns for value in values]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_value_of_another_type_is_reported(written, tmp_path, name, value):
    table, _, column = name.partition(".")
    file = tmp_path / "x.db"
    file.write_bytes(written[0])
    last = f"rowid = (SELECT max(rowid) FROM graphkit_{table})"
    if table == "terms":
        last = "(term, history) = (SELECT term, history FROM graphkit_terms LIMIT 1)"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT INTO graphkit_run_locks VALUES ('t', 1, 1, 1, 'holder')")
        changed = connection.execute(f"UPDATE graphkit_{table} SET {column} = ? WHERE {last}", (value,))
        assert changed.rowcount > 0
    with SqliteSaver(file, fsync="never") as saver:
        found, errors = read_all(saver)
        assert not saver.verify().ok
    assert list_unexpected(errors) == []
    if table == "run_locks":
        assert (found, errors) == (written[1], {})
