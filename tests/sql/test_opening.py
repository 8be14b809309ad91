"""A history is opened from the rows of its end: what is wrong with one of them is reported."""

import pytest

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError
from graphkit.testing import made
from tests.sql.savers import run_sql
from tests.support.logs import flip, pack_frame


@pytest.fixture
def rows(saver):
    """The positions and bytes of the rows of a history of one keyframe and nine changes."""
    for number in range(10):
        saver.put("t", made({"n": number}))
    database = saver._database
    return database.read(f"SELECT position, frame FROM {database.names.records} ORDER BY position")


@pytest.mark.sweep(3, of="number")
@pytest.mark.parametrize("number", range(1, 11))
def test_a_damaged_row_is_reported_at_its_position(saver, open_saver, rows, number):
    position, frame = rows[number]
    run_sql(saver, "UPDATE {records} SET frame = ? WHERE position = ?", (flip(frame, -9), position))
    with pytest.raises(CheckpointCorruptionError) as caught:
        open_saver().get("t")
    assert caught.value.offset == position


def test_a_record_of_a_newer_format_is_refused(saver, open_saver, rows):
    """Also if it stands before the last checkpoint."""
    position, _ = rows[5]
    frames = saver._store.shared_log("t", "").frames
    frame = pack_frame(position, frames.fid, 6, 100, b"")
    run_sql(saver, "DELETE FROM {records} WHERE position > ?", (position,))
    run_sql(saver, "UPDATE {records} SET frame = ?, checkpoint = NULL WHERE position = ?", (frame, position))
    with pytest.raises(CheckpointFormatError, match="newer graphkit"):
        open_saver().get("t")
