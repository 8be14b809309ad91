"""What every medium of a log promises."""

from contextlib import ExitStack

import pytest

from savers._filesystem.io import FileIO
from savers._filesystem.lock import WriteLock
from savers._filesystem.log_bytes import FileLogBytes
from savers._log.frame import HEADER_SIZE
from savers._log.log_bytes import search_back
from savers.log import Change, MemoryLogBytes

BEGINNING = b"B" * HEADER_SIZE


@pytest.fixture(params=["memory", "file"])
def make(request, tmp_path):
    """A function that makes one more object over the same bytes."""
    if request.param == "memory":
        data = bytearray()
        yield lambda: MemoryLogBytes(data=data)
        return
    io = FileIO()
    lock = WriteLock(io, str(tmp_path / "lock"), lambda: None, 10)
    with ExitStack() as stack:
        stack.callback(lock.close)

        def make_file():
            medium = FileLogBytes(io, str(tmp_path / "log"), lock)
            stack.callback(medium.close)
            return medium

        yield make_file


def write(medium, *parts):
    """Begin a log with some parts; return where it ends."""
    medium.begin(BEGINNING)
    end = len(BEGINNING)
    for part in parts:
        medium.append(end, part, 0, None)
        end += len(part)
    return end


def open_other(make):
    other = make()
    assert other.open()
    return other


def test_the_beginning_is_written_with_the_first_record(make):
    medium = make()
    medium.begin(BEGINNING)
    assert not make().open()
    medium.append(len(BEGINNING), b"first", 0, None)
    assert medium.is_open
    other = open_other(make)
    assert other.read_at(0, 100) == BEGINNING + b"first"
    assert other.size == len(BEGINNING) + 5


def test_ranges_are_read_at_their_places(make):
    medium = make()
    end = write(medium, b"one", b"two", b"three")
    start = len(BEGINNING)

    for each in (medium, open_other(make)):
        assert each.read_at(start + 3, 3) == b"two"
        assert each.read_at(end - 2, 100) == b"ee", "fewer at the end"
        assert each.read_many([(start, start + 3), (start + 6, end)]) == [b"one", b"three"]
        first, data = each.read_back(end, 5)
        written = BEGINNING + b"onetwothree"
        assert written.endswith(data)
        assert first == end - len(data)
        assert len(data) >= 5


def test_a_search_finds_all_occurrences_the_last_one_first(make):
    medium = make()
    end = write(medium, b"needle", b"x" * 100_000, b"needleneedle", b"tail needle")
    data = medium.read_at(0, end)
    places = [place for place in range(len(data)) if data.startswith(b"needle", place)]
    assert [*search_back(medium, b"needle", end)] == places[::-1]
    assert [*search_back(medium, b"needle", places[-1])] == places[-2::-1], "only before an offset"
    assert [*search_back(medium, b"absent", end)] == []


def test_the_records_of_another_writer_are_found(make):
    medium = make()
    end = write(medium, b"one")
    assert medium.refresh(end) is Change.NONE, "its own are no news"
    other = open_other(make)
    other.append(end, b"two", 0, None)
    assert medium.refresh(end) is Change.GREW
    assert medium.size == end + 3
    assert medium.read_at(end, 3) == b"two"
    assert medium.refresh(end + 3) is Change.NONE


def test_a_log_that_is_shorter_now_is_another_one(make):
    medium = make()
    end = write(medium, b"one", b"two")
    open_other(make).undo(end - 3)
    assert medium.refresh(end) is Change.REPLACED


def test_what_was_appended_is_taken_back(make):
    medium = make()
    end = write(medium, b"one")
    medium.append(end, b"two", 0, None)
    medium.undo(end)
    assert open_other(make).read_at(end - 3, 100) == b"one"
    medium.append(end, b"other", 0, None)
    assert open_other(make).read_at(end - 3, 100) == b"oneother"


def test_a_log_that_is_taken_back_as_a_whole_is_gone(make):
    medium = make()
    write(medium, b"one")
    medium.undo(0)
    assert not medium.is_open
    assert not make().open()
    assert write(medium, b"again") == len(BEGINNING) + 5
    assert open_other(make).read_at(len(BEGINNING), 100) == b"again"


def test_a_writer_cuts_off_what_follows_the_last_record(make):
    medium = make()
    end = write(medium, b"one", b"torn")
    other = open_other(make)
    other.note_end(end - 4)
    other.prepare_end(end - 4, 1)
    other.append(end - 4, b"two", 0, None)
    assert open_other(make).read_at(len(BEGINNING), 100) == b"onetwo"
