"""The bytes of one history in the rows of a table, a record in each.

Theory of operation. The rows of a history, in the order of their positions, are the bytes that
docs/format.md specifies: the first row has the header and the META records, each other row one
record. A position is the offset of its record in these bytes.

A writer need not ask whether others have written. It inserts a record at the position where the log
ends as far as it knows. If another writer was faster, the position is taken, and the unique key
refuses the row. If the history was released or deleted, the statement inserts nothing. In both
cases the writer reads what is new and makes its record again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Final, NamedTuple, final

from graphkit.errors import CheckpointCorruptionError
from savers._log.log_bytes import Change, LogBytes
from savers._sql.columns import encode_id
from savers._sql.row_inserts import NEW, RowHead, RowInserter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers._sql.database import Row
    from savers._sql.row_store import RowStore

_LONG_ROW: Final = 4 << 20
"""Values of more bytes are in rows of their own, of this length each. The client library of PostgreSQL
moves what it has not sent yet with each part that it sends: 100 MB take 2 s in such rows, and 25 in one."""
_MAX_RANGES: Final = 64
"""Ranges that one statement reads. A database prepares each number of them separately, so numbers
between powers of two are not used."""
_LAST_POSITION: Final = (1 << 63) - 1
_BACK: Final = 1 << 16
"""How many bytes a reader from the end gets at first."""
_MAX_LAST: Final = 1 << 16
"""How many bytes of the last rows are kept. The records since a keyframe, which readers want together,
take 5 to 60 KB as a rule."""
_MAX_READ: Final = 5 << 20
"""How many bytes of the rows that were read are kept: those of a history of usual length. A keyframe has up to 4 MB."""


@final
class Rows:
    """The rows of one history that are in memory: the last ones, without a gap, and those that were read.

    Rows never change, so they stay right as long as the history is open.
    """

    def __init__(self) -> None:
        self._positions: list[int] = []
        """In order; rows may be missing between them."""
        self._frames: dict[int, bytes] = {}
        self.size = 0
        """How many bytes are in memory."""
        self.start = _LAST_POSITION
        """Where the last rows begin;"""
        self._end = _LAST_POSITION
        """and where they end."""
        self._back_start = 0
        """Where the last bytes begin that were read back from an end;"""
        self._back_length = _BACK
        """and how many these were."""

    def append(self, position: int, frame: bytes) -> None:
        """Add a row behind the last one, or again as a reader does that goes back."""
        if position != self._end:
            self.start = position
        if position not in self._frames:
            # Nearly always the last one. A reader that goes on before the last keyframe has that one already.
            insort(self._positions, position)
            self._frames[position] = frame
            self.size += len(frame)
        self._end = position + len(frame)

    def trim(self) -> None:
        """Forget earlier ones of the last rows, if there are many."""
        if self._end - self.start <= _MAX_LAST:
            return
        # In large steps, because each moves what remains. A last row that is longer than a step goes, too.
        limit = self._end - _MAX_LAST // 2
        self._forget(self.start, limit)
        self.start = self._end
        first = bisect_left(self._positions, limit)
        if first < len(self._positions):
            self.start = self._positions[first]

    def keep(self, rows: Iterable[Row]) -> None:
        """Add the position and the bytes of rows that were read, which may be there already."""
        new = {position: frame for position, frame in rows if position not in self._frames}
        self._frames.update(new)
        self.size += sum(map(len, new.values()))
        # They come in a few runs that are in order, which takes a sort little time.
        self._positions += new
        self._positions.sort()

    def forget_read(self) -> None:
        """Forget the rows that were read, if there are too many; their caller has them."""
        if self.size - (self._end - self.start) > _MAX_READ:
            self._forget(0, self.start)

    def _forget(self, start: int, end: int) -> None:
        """Forget the rows that begin between two offsets."""
        first = bisect_left(self._positions, start)
        last = bisect_left(self._positions, end)
        for position in self._positions[first:last]:
            self.size -= len(self._frames.pop(position))
        del self._positions[first:last]

    def choose_start(self, end: int, length: int, window: int) -> int:
        """Return from where on to read the bytes before an offset: more and more at once, up to a window."""
        if end <= self._back_start:
            self._back_length = min(2 * self._back_length, window)
        else:
            self._back_length = _BACK
        self._back_start = max(0, end - max(length, self._back_length))
        return self._back_start

    def find(self, position: int) -> bytes | None:
        """Return the row at a position; None if it is not in memory."""
        return self._frames.get(position)

    def read_at(self, offset: int, length: int) -> bytes | None:
        """Return the bytes from an offset; None if not all of them are in memory."""
        if not length:
            return b""
        positions = self._positions
        first = bisect_right(positions, offset) - 1
        if first < 0:
            return None
        start = positions[first]
        data = self._frames[start]
        if offset + length > start + len(data):
            # Several rows. If one is missing between them, they have fewer bytes than from the first to the last.
            wanted = positions[first : bisect_left(positions, offset + length)]
            data = b"".join([self._frames[position] for position in wanted])
            end = wanted[-1] + len(self._frames[wanted[-1]])
            if end != start + len(data) or end < offset + length:
                return None
        return data[offset - start : offset - start + length]

    def find_missing(self, offset: int) -> int:
        """Return where the first byte is missing from an offset on."""
        first = max(0, bisect_right(self._positions, offset) - 1)
        for position in self._positions[first:]:
            if position > offset:
                break
            end = position + len(self._frames[position])
            offset = max(offset, end)
        return offset


class _Row(NamedTuple):
    """A row of a history, and what the row of the history says."""

    history: int
    status: str | None
    keyframe: int
    """The position of the last keyframe."""
    position: int
    frame: bytes | None
    """None: there is no such row."""


@final
class RowLogBytes(LogBytes):
    """The bytes of one history. What is appended waits in memory until `commit` inserts it, all or none.

    Attributes:
        history: the number of the history; NEW if it is not open, or not inserted yet.
        inserter: what was appended and is not committed, and what the row of the history says.
    """

    max_payload = 800 << 20
    """SQLite refuses rows of 1,000,000,000 bytes, and PostgreSQL messages of 1 GiB."""
    max_part = _LONG_ROW
    begins_whole = True

    def __init__(self, store: RowStore, owner: tuple[str, str], version: int = 0, number: int | None = None) -> None:
        """Prepare to open a history.

        Args:
            store: the histories of the database.
            owner: the thread and the namespace.
            version: 0 for the live history; otherwise a released version.
            number: opens the history with this number, whatever has become of it.
        """
        database = store.database
        super().__init__(f"{describe_history(owner, version)} in {database.path}")
        self._database = database
        self.read_window = database.read_size
        self._statements = store.statements
        self.inserter: Final = RowInserter(store, owner, version)
        self._number = number
        self._version = version if number is None else None
        """The version that the history must keep; None if any will do."""
        self._last_history = NEW
        """The number of the history that was open last."""
        self._generation = database.generation
        """Of the database from which the rows come."""
        self.close()

    def close(self) -> None:
        self.history = NEW
        self.size = 0
        self._rows = Rows()
        self.inserter.forget()

    # Opening, and what other writers have done

    @property
    def is_open(self) -> bool:
        return self.history != NEW or bool(self.inserter.pending)

    def open(self) -> bool:
        key = self.inserter.key
        while True:
            self._generation = self._database.generation
            if self._number is None:
                found = self._database.read(self._statements.select_first, (*key, *key))
            else:
                found = self._database.read(self._statements.select_first_of, (self._number, self._number))
            if self._database.generation == self._generation:
                break
            # The statement has found another database in place of the one that is known.
        if not found:
            self._database.integrity.check_absence(key[0])
            return False
        rows = [_Row(*row) for row in found]
        self.history = self._last_history = rows[0].history
        if rows[0].frame is None or rows[0].position:
            raise CheckpointCorruptionError(self.path, 0, "the first record is missing")
        for row in rows:
            self._take(row)
        self._database.integrity.check_end(self.history, rows[-1].position)
        return True

    def open_to(self, size: int) -> None:
        """Open the history with the number, of which the caller has looked up the end; nothing of it is read."""
        assert self._number is not None
        self._generation = self._database.generation
        self.history = self._last_history = self._number
        self.size = size

    def refresh(self, end: int) -> Change:
        found = self._database.read(self._statements.select_new, (self.size, self.history, self._version))
        # The numbers of histories mean nothing in another database, which the statement may have found.
        if not found or self._database.generation != self._generation:
            return Change.REPLACED
        rows = [_Row(*row) for row in found]
        if rows[0].frame is not None:
            for row in rows:
                if row.position != self.size:
                    raise CheckpointCorruptionError(self.path, self.size, "a record is missing")
                self._take(row)
        if self.size == end:
            return Change.NONE
        return Change.GREW

    def _take(self, row: _Row) -> None:
        """Take in a row that follows those that are known, or the row of the last keyframe."""
        if not row.frame:
            # It ends where it begins, so that a last row without bytes would look as if there were none.
            raise CheckpointCorruptionError(self.path, row.position, "its row has no bytes")
        self.inserter.head = RowHead(row.status, row.keyframe, row.position)
        self._rows.append(row.position, row.frame)
        self.size = row.position + len(row.frame)

    def note_end(self, end: int, last: StoredCheckpoint | None = None) -> None:
        # No row is cut short, so whatever is no record is damage.
        if end != self.size:
            raise CheckpointCorruptionError(self.path, end, "the record there is damaged")
        head = self.inserter.head
        if last is not None and last.offset == head.last_position:
            # From the record: the row may say something else, and then takes no other behind it.
            self.inserter.head = head._replace(last_id=encode_id(last.id))

    def is_gone(self) -> bool:
        if self._database.generation != self._generation:
            return True
        if self._last_history == NEW:
            return False
        return not self._database.read(self._statements.select_status, (self._last_history,))

    # Reading

    def read_at(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        data = self._rows.read_at(offset, end - offset)
        if data is None:
            (data,) = self._read_ranges([(offset, end)])
        return data

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found: dict[tuple[int, int], bytes] = {}
        missing: list[tuple[int, int]] = []
        for start, end in ranges:
            data = self._rows.read_at(start, end - start)
            if data is None:
                missing.append((start, end))
            else:
                found[start, end] = data
        for first in range(0, len(missing), _MAX_RANGES):
            wanted = missing[first : first + _MAX_RANGES]
            found.update(zip(wanted, self._read_ranges(wanted), strict=True))
        return [found[pair] for pair in ranges]

    def _read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of a few ranges with one statement, and keep their rows for later reads.

        Raises:
            CheckpointCorruptionError: a row is missing.
        """
        count = 1 << (len(ranges) - 1).bit_length()
        parameters: list[int] = []
        for start, end in ranges:
            parameters += (self.history, self.history, start, end)
        # A power of two: the others are ranges without bytes.
        parameters += [self.history, self.history, 0, 0] * (count - len(ranges))
        sql = self._statements.select_ranges(count)
        self._rows.keep(self._database.read(sql, parameters))
        read: list[bytes] = []
        for start, end in ranges:
            data = self._rows.read_at(start, end - start)
            if data is None:
                offset = self._rows.find_missing(start)
                raise CheckpointCorruptionError(self.path, offset, "a record is missing")
            read.append(data)
        self._rows.forget_read()
        return read

    def read_record(self, offset: int, length: int) -> bytes:
        frame = self._rows.find(offset)
        if frame is None:
            return self.read_at(offset, length)
        return frame

    def expect_keyframes(self, offset: int) -> None:
        if 0 <= offset < self.size and self._rows.find(offset) is None:
            parameters = (self.history, offset, offset)
            self._keep(self._database.read(self._statements.select_keyframes, parameters))

    def read_back(self, end: int, length: int) -> tuple[int, bytes]:
        start = self._rows.start
        if start <= end - length:
            data = self._rows.read_at(start, end - start)
            if data is not None:
                return start, data
        start = self._rows.choose_start(end, length, self.read_window)
        return start, self.read_at(start, end - start)

    def locate(self, id: str) -> Sequence[int] | None:
        encoded = encode_id(id)
        pending = [row.position for row in reversed(self.inserter.pending) if row.checkpoint == encoded]
        if pending:
            return pending
        rows = self._database.read(self._statements.select_around, (self.history, encoded, self.size))
        if not rows:
            return ()
        # Not those that another writer has added meanwhile: what this one appends may take their place.
        self._keep([row[:2] for row in rows if row[0] < self.size])
        return (int(rows[0][2]),)

    def _keep(self, rows: Iterable[Row]) -> None:
        """Keep rows for the reads that follow."""
        self._rows.keep(rows)
        self._rows.forget_read()

    @property
    def kept_size(self) -> int:
        return self._rows.size

    def drop_caches(self) -> None:
        if not self.has_pending:
            self._rows = Rows()

    # Appending

    def expect_absent(self, id: str) -> bool:
        return self.inserter.expect_absent(id)

    def begin(self, beginning: bytes) -> None:
        self.inserter.begin(beginning)
        self._rows.append(0, beginning)
        self.size = len(beginning)

    def append(self, offset: int, data: bytes, flags: int, checkpoint: StoredCheckpoint | None) -> None:
        self.inserter.add(offset, data, flags, checkpoint)
        self._rows.append(offset, data)
        self.size = offset + len(data)

    def undo(self, start: int) -> None:  # noqa: ARG002 - what is pending belongs together
        # The caller closes the log: nothing of it was inserted.
        self.inserter.pending.clear()

    @property
    def has_pending(self) -> bool:  # type: ignore[override] # it changes here
        return bool(self.inserter.pending)

    def commit(self, latest: StoredCheckpoint | None) -> None:
        history = self.inserter.commit(self.history, latest)
        if history != NEW:
            self.history = self._last_history = history
            self._rows.trim()


def describe_history(owner: tuple[str, str], version: int) -> str:
    """Return what errors and reports call a history."""
    thread_id, namespace = owner
    name = f"the history of thread {thread_id!r:.80}"
    if namespace:
        name += f", namespace {namespace!r:.80}"
    if version > 0:
        name += f", version {version}"
    return name
