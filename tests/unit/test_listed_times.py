"""The time of an info is that of its checkpoint to the microsecond, however it is worked out."""

from datetime import UTC, datetime, timedelta

from hypothesis import example, given, strategies as st

from savers._log.listing import _make_time
from savers._log.payloads import FIRST_TIME, LAST_TIME

EXACT = (1 << 32) * 1_000_000


@given(st.integers(FIRST_TIME, LAST_TIME) | st.integers(0, EXACT))
@example(-1)
@example(0)
@example(1)
@example(EXACT - 1)
@example(EXACT)
@example(FIRST_TIME)
@example(LAST_TIME)
def test_a_time_is_exact_to_the_microsecond(created):
    found = _make_time(created)
    assert found == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=created)
    assert found.tzinfo is UTC
