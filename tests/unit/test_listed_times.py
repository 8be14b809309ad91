"""The time in an info is that of its checkpoint to the microsecond."""

from datetime import UTC, datetime, timedelta

from hypothesis import example, given, strategies as st

from graphkit import Checkpoint
from savers import FileSystemSaver
from tests.support.graphs import CONFIG

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXACT = EPOCH + timedelta(seconds=1 << 32)
"""From here on, the microseconds of a timestamp take more than the bits of a double."""
SMALLEST = timedelta(microseconds=1)
LIMITS = [
    datetime.min.replace(tzinfo=UTC),
    EPOCH - SMALLEST,
    EPOCH,
    EPOCH + SMALLEST,
    EXACT - SMALLEST,
    EXACT,
    datetime.max.replace(tzinfo=UTC),
]


@given(st.lists(st.datetimes(timezones=st.just(UTC)), min_size=1, max_size=20))
@example(LIMITS)
def test_a_time_is_exact_to_the_microsecond(tmp_path_factory, times):
    saver = FileSystemSaver(tmp_path_factory.mktemp("store"), fsync="never")
    for time in times:
        saver.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={}, created_at=time))
    found = [info.created_at for info in saver.history(CONFIG)]
    assert found[::-1] == times
    assert {time.tzinfo for time in found} == {UTC}
