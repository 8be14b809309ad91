"""What verify finds in the tables, and what reading a damaged history says."""

import os
import sqlite3
from contextlib import closing
from enum import Enum
from functools import partial

import psycopg
import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError, CheckpointSerializationError
from graphkit.recovery import last_good
from graphkit.testing import made
from savers import FileSystemSaver
from savers._sql import verify
from tests.sql.savers import every_store, fill, names_of, put, run_sql
from tests.support.logs import flip, pack_frame

T = RunnableConfig("t")


class Kind(Enum):
    """A type that a saver must be told of."""

    X = "x"
    Y = "y"


def find_problems(saver):
    report = saver.verify()
    assert report.ok is not bool(report.problems)
    return [
        (thread.thread_id, file.state, file.reason) for thread in report.threads for file in thread.files if file.reason
    ]


def test_a_good_store_has_no_problems(saver):
    fill(saver, 30)
    saver.release(T)
    fill(saver, 3)
    seen = []
    report = saver.verify(progress=lambda *done: seen.append(done))
    assert report.ok
    (thread,) = report.threads
    assert thread.thread_id == "t"
    assert [file.checkpoints for file in thread.files] == [3, 30, 1, 1]
    size = saver.size()
    assert report.size == size
    done, total, *_ = seen[-1]
    assert done == size
    assert total == size
    assert saver.verify("t").ok
    assert saver.verify("missing").threads == ()


def rows_of(saver):
    """The history, position and bytes of each row of the root namespace."""
    names = names_of(saver)
    return saver._database.read(
        f"SELECT r.history, r.position, r.frame FROM {names.records} AS r "
        f"JOIN {names.histories} AS h ON h.history = r.history WHERE h.namespace = '' ORDER BY r.position"
    )


OF_ROW = " WHERE position = ? AND history = (SELECT history FROM {histories} WHERE namespace = '')"
DAMAGE = {
    "a missing row": "DELETE FROM {records}",
    "a wrong checkpoint": "UPDATE {records} SET checkpoint = frame",
    "a wrong mark of keyframes": "UPDATE {records} SET is_keyframe = is_keyframe IS NULL",
    "no checkpoint": "UPDATE {records} SET checkpoint = NULL",
}


@pytest.mark.sweep(2, of="index", in_turn=True)
@pytest.mark.parametrize("index", [0, 1, 5, -2])
@pytest.mark.parametrize("kind", ["a changed byte", *DAMAGE])
def test_damage_of_a_row_is_found(saver, kind, index):
    fill(saver, 9)
    if kind in {"no checkpoint", "a wrong mark of keyframes"} and index == 0:
        pytest.skip("the first row has none")
    _, position, frame = rows_of(saver)[index]
    if kind in DAMAGE:
        run_sql(saver, DAMAGE[kind] + OF_ROW, (position,))
    else:
        run_sql(saver, "UPDATE {records} SET frame = ?" + OF_ROW, (flip(frame, len(frame) // 2), position))
    saver.close()
    assert_damaged(saver)


def assert_damaged(saver, expected=""):
    """Check that verify reports one problem, with this in its reason."""
    ((thread, state, reason),) = find_problems(saver)
    assert (thread, state) == ("t", "damaged"), reason
    assert expected in reason


def test_two_records_in_one_row_are_found(saver):
    fill(saver, 8)
    rows = rows_of(saver)
    (history, first, one) = rows[3]
    (_, second, other) = rows[4]
    run_sql(saver, "DELETE FROM {records} WHERE history = ? AND position = ?", (history, second))
    run_sql(saver, "UPDATE {records} SET frame = ? WHERE history = ? AND position = ?", (one + other, history, first))
    saver.close()
    assert_damaged(saver, "it does not have a row of its own")


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_history_that_is_deleted_during_the_check_is_no_damage(saver, monkeypatch, is_damaged):
    """Before its columns are read, and after some of its rows are: a rewrite looks like damage."""
    fill(saver, 3)
    fill(saver, 3, thread="other")
    saver.close()
    read_columns = verify._read_columns
    calls = []

    def read_and_delete(store, history):
        if history.thread_id == "t":
            calls.append(history)
            if len(calls) == 1 and is_damaged:
                found = read_columns(store, history)
                run_sql(saver, "DELETE FROM {records} WHERE history = ?", (history.number,))
                return found
            saver.delete("t")
        return read_columns(store, history)

    monkeypatch.setattr(verify, "_read_columns", read_and_delete)
    report = saver.verify()
    assert report.ok
    assert [thread.thread_id for thread in report.threads] == ["other"]


@every_store
def test_metadata_of_a_type_that_is_not_registered_are_no_damage_and_hide_none(open_saver, caplog):
    saver = open_saver(types=[Kind])
    for kind in (Kind.X, Kind.Y):
        saver.put(T, Checkpoint(node_id="a", next_node_id="b", state={"kind": kind}, metadata={"kind": kind}))
    put(saver, {"n": 1}, thread="other")

    with open_saver.opener() as other:
        assert other.verify().ok
        replay = other.replay(T)
        for read in (other.list, other.history, other.get, partial(last_good, other), lambda _: list(replay)):
            with pytest.raises(CheckpointSerializationError, match="its type is not registered"):
                read(T)
        with other.watch(latest=True) as watch:
            assert watch.get(60).thread_id == "other"
            assert watch.get(0) is None
        assert "changes are not reported here" in caplog.text
        other.register_types(Kind)
        assert [checkpoint.metadata["kind"] for checkpoint in other.list(T)] == [Kind.Y, Kind.X]
    if not isinstance(saver, FileSystemSaver):
        run_sql(saver, "UPDATE {histories} SET keyframe = keyframe + 1 WHERE thread = 't'")
        with open_saver.opener() as other:
            assert_damaged(other)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("UPDATE {histories} SET keyframe = keyframe + 1 WHERE namespace = ''", "keyframe"),
        ("UPDATE {histories} SET keyframe = 0 WHERE namespace = ''", "keyframe"),
        ("DELETE FROM {records} WHERE history = (SELECT history FROM {histories} WHERE namespace = '')", "no records"),
        ("UPDATE {histories} SET status = NULL WHERE namespace = ''", "status"),
        ("UPDATE {histories} SET status = 'interrupted' WHERE namespace = ''", "status"),
        ("UPDATE {histories} SET thread = 'u' WHERE namespace = ''", "another thread"),
    ],
)
def test_a_wrong_column_of_a_history_is_found(saver, sql, expected):
    fill(saver, 8)
    run_sql(saver, sql)
    saver.close()
    ((_, _, reason),) = find_problems(saver)
    assert expected in reason


def test_records_without_a_history_are_found(saver):
    fill(saver, 2)
    without_foreign_keys(saver, "DELETE FROM {histories} WHERE namespace = ''")
    saver.close()
    problems = find_problems(saver)
    assert {problem[:2] for problem in problems} == {(None, "damaged")}
    assert len([reason for *_, reason in problems if "belongs to no thread" in reason]) == 1


def without_foreign_keys(saver, sql):
    sql = sql.format(**names_of(saver)._asdict())
    if hasattr(saver, "db_file"):
        with closing(sqlite3.connect(saver.db_file)) as connection, connection:
            connection.execute(sql)
    else:
        with psycopg.connect(saver._connection_string) as connection:
            connection.execute(f"SET session_replication_role = replica; {sql}")


USES = {
    "list": lambda saver: saver.list(T),
    "history": lambda saver: saver.history(T),
    "get": lambda saver: saver.get(T),
    "find": lambda saver: saver.get(T.with_check_point_id("missing")),
    "release": lambda saver: saver.release(T),
    "tags": lambda saver: saver.add_tags(T, "label"),
    "copy": lambda saver: saver.copy("t", "u"),
    "compact": lambda saver: saver.compact("t"),
    "recent": lambda saver: [*saver.recent(T, limit=20)],
    "replay": lambda saver: [*saver.replay(T)],
    "prune": lambda saver: saver.prune("t", keep_last=1),
    "put": lambda saver: fill(saver, 1),
}


BAD_ROWS = {
    "missing": (4, None),
    "the first missing": (0, None),
    **{f"the first, cut to {length}": (0, length) for length in (0, 20, 100)},
    "one without bytes": (4, 0),
    "the last without bytes": (-1, 0),  # behind which no record is missing
}
"""Which row it is, and how many of its bytes are left."""
is_damage = partial(
    pytest.raises, CheckpointCorruptionError, match="restore a backup of the database, or delete the thread"
)


def cut_row(saver, index, length):
    """Cut the bytes of a row, or delete it."""
    history, position, frame = rows_of(saver)[index]
    if length is None:
        run_sql(saver, "DELETE FROM {records} WHERE history = ? AND position = ?", (history, position))
    else:
        sql = "UPDATE {records} SET frame = ? WHERE history = ? AND position = ?"
        run_sql(saver, sql, (frame[:length], history, position))


@pytest.mark.sweep(3, of="bad", in_turn=True)
@pytest.mark.parametrize("bad", BAD_ROWS)
@pytest.mark.parametrize("use", USES)
def test_a_bad_row_is_an_error_and_nothing_is_cut_off_or_takes_its_place(saver, use, bad):
    fill(saver, 8)
    cut_row(saver, *BAD_ROWS[bad])
    before = rows_of(saver)
    assert_damaged(saver)
    saver.close()
    with is_damage():
        USES[use](saver)
    assert rows_of(saver) == before
    assert len(find_problems(saver)) == 1


@pytest.mark.parametrize(("index", "what"), [(0, "the first record"), (4, "a record")])
def test_a_missing_row_is_reported_where_it_would_begin(saver, index, what):
    fill(saver, 8)
    _, position, _ = rows_of(saver)[index]
    cut_row(saver, index, None)
    saver.close()
    with pytest.raises(CheckpointCorruptionError, match=f"{what} is missing") as caught:
        saver.list(T)
    assert caught.value.offset == position


@pytest.mark.parametrize("use", USES)
def test_a_missing_row_before_the_last_keyframe_is_an_error_for_those_who_need_it(saver, use):
    fill(saver, 8)
    for number in range(4):
        put(saver, {"whole": os.urandom(100_000), "number": number})
    cut_row(saver, *BAD_ROWS["missing"])
    saver.close()
    before = rows_of(saver)
    if use in {"get", "put", "find", "tags"}:
        USES[use](saver)
        assert rows_of(saver)[: len(before)] == before
        assert not saver.verify().ok
    else:
        with is_damage():
            USES[use](saver)
        assert rows_of(saver) == before


@pytest.mark.parametrize(("index", "length"), [(-1, 0), (-2, None)], ids=["without bytes", "missing"])
def test_a_reader_that_goes_on_finds_a_bad_row(saver, open_saver, index, length):
    fill(saver, 3)
    reader = open_saver()
    assert reader.get(T).state["number"] == 2
    for number in (3, 4):
        put(saver, {"number": number})
    cut_row(saver, index, length)
    for read in (reader.get, reader.list):
        with is_damage():
            read(T)


@pytest.mark.parametrize(
    ("metadata", "writes"), [({"graphkit:incomplete": "copy"}, {}), ({}, {"graphkit:incomplete": "copy"})]
)
def test_an_incomplete_thread_has_its_status_in_its_row(saver, metadata, writes):
    checkpoint = Checkpoint(node_id="a", next_node_id="b", state={}, metadata=metadata)
    saver.put(T, checkpoint)
    saver.put_writes(T, writes)
    rows = saver._database.read(f"SELECT status FROM {names_of(saver).histories} WHERE version = 0")
    assert rows == [("incomplete",)]
    assert saver.verify().ok
    # The mark is taken away, as at the end of a copy.
    saver.put(T, Checkpoint(id=checkpoint.id, node_id="a", next_node_id="b", state={}))
    saver.put_writes(T, {"graphkit:incomplete": None} if writes else {})
    assert saver.verify().ok


# A history is opened from the rows of its end


@pytest.fixture
def opened_rows(saver):
    """The positions and bytes of the rows of a history of one keyframe and nine changes."""
    for number in range(10):
        saver.put("t", made({"n": number}))
    return [(position, frame) for _, position, frame in rows_of(saver)]


@pytest.mark.sweep(3, of="number")
@pytest.mark.parametrize("number", range(1, 11))
def test_a_damaged_row_is_reported_at_its_position(saver, open_saver, opened_rows, number):
    position, frame = opened_rows[number]
    run_sql(saver, "UPDATE {records} SET frame = ? WHERE position = ?", (flip(frame, -9), position))
    with pytest.raises(CheckpointCorruptionError) as caught:
        open_saver().get("t")
    assert caught.value.offset == position


def test_a_record_of_a_newer_format_is_refused(saver, open_saver, opened_rows):
    """Also if it stands before the last checkpoint."""
    position, _ = opened_rows[5]
    frames = saver._store.shared_log("t", "").frames
    frame = pack_frame(position, frames.fid, 6, 100, b"")
    run_sql(saver, "DELETE FROM {records} WHERE position > ?", (position,))
    run_sql(saver, "UPDATE {records} SET frame = ?, checkpoint = NULL WHERE position = ?", (frame, position))
    with pytest.raises(CheckpointFormatError, match="newer graphkit"):
        open_saver().get("t")
