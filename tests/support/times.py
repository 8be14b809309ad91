"""The times of tests whose clock is set by hand."""

from datetime import UTC, datetime, timedelta

NOON = datetime(2031, 4, 1, 12, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
WEEK = timedelta(weeks=1)
