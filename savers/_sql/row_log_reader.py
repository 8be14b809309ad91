"""Reads the log of one history in the rows of a table, and takes in the rows that others have inserted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphkit.errors import CheckpointCorruptionError
from savers import _delta as delta
from savers._log import log, payloads
from savers._log.beginning import META_RECORDS
from savers._log.frame import IncompleteLog, digest_thread
from savers._log.log_reader import LogReader
from savers._log.past_checkpoint import Place
from savers._sql.encoded_text import encode_id, encode_text
from savers._sql.row_inserts import NEW
from savers._sql.row_source import MOST_KEPT, FoundRow, LogSource, RowSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from graphkit.codec import Codec
    from savers._log.index import Index
    from savers._log.kept_records import KeptRecords
    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers._sql.database import Database, Parameters, Row
    from savers._sql.statements import Statements


class RowLogReader(LogReader):
    """An open log in rows. One thread of execution may use it at a time, which holds `mutex`."""

    def __init__(
        self,
        database: Database,
        source: RowSource,
        statements: Statements,
        owner: tuple[str, str],
        codec: Codec,
        version: int = 0,
    ) -> None:
        self._database = database
        self._statements = statements
        self._generation = database.generation
        """Of the database from which the rows come."""
        self._last_history = NEW
        """The number of the history that was open last."""
        self._source = LogSource(source)
        path = _describe(owner, version, database)
        self._wanted: str | None = None
        """The id that the caller of `refresh` is about to look for."""
        super().__init__(self._source, path, owner, digest_thread(owner[0]), codec, None)
        self.read_many = delta.ManyReader(self._read_many, database.read_size)
        thread_id, namespace = owner
        self.key = (encode_text(thread_id), encode_text(namespace), version)
        """The thread, the namespace and the version in the row of the history."""

    def _reset(self) -> None:
        super()._reset()
        self.fd = -1
        self._source.clear()
        self._located: tuple[str, FoundRow | None] | None = None
        """The id that was searched for last, and where its record is; None if there is none."""
        self._status: str | None = None
        """The status in the row of the history."""
        self._keyframe = 0
        """The position of the last keyframe in that row."""
        self._last_row: tuple[int, bytes | None] = (0, None)
        """The position of the last row, and the encoded id of its checkpoint."""
        self.is_known_absent = False
        """Whether there was no history at the last refresh."""
        self.is_alone = False
        """Whether the history was the only live one of its thread when it was opened."""

    def close(self) -> None:
        self.in_doubt = True
        self._reset()
        self.in_doubt = False

    @property
    def kept_size(self) -> int:
        return self._source.size

    def drop_caches(self) -> None:
        super().drop_caches()
        self._source.clear()

    def read_keyframe(self, position: int) -> log.Frame:
        data = self._source.read_keyframe(self.fd, position)
        if data is None:
            return super().read_keyframe(position)
        return self._parse_keyframe(data, position)

    def _parse_keyframe(self, data: bytes, position: int) -> log.Frame:
        frame = self._parse(data, position)
        log.check_known(self.path, frame)
        return frame

    def _read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if any(start < 0 or end < start or end > self.end for start, end in ranges):
            raise delta.Mismatch
        return self._source.read_ranges(self.fd, ranges)

    def refresh(self) -> bool:
        """Take in the rows that others have inserted; see OpenLog.

        The cost is one statement.
        """
        if self.in_doubt:
            self.close()
        is_known = self.fd >= 0
        self._located = None
        try:
            return self._read_new_rows()
        except CheckpointCorruptionError:
            # A part of the rows may have been taken in.
            self.close()
            if not is_known:
                raise
        except BaseException:
            self.close()
            raise
        # The rows do not continue what is known: a backup may have been restored since.
        try:
            return self._read_new_rows()
        except BaseException:
            self.close()
            raise

    def refresh_for(self, id: str) -> bool:
        """As `refresh`; if the log is open, look in the same statement for a checkpoint that is not the latest.

        `locate` and `find` then need no statement of their own.
        """
        last = self.last_checkpoint
        self._wanted = id if self.index is None and (last is None or last.id != id) else None
        try:
            return self.refresh()
        finally:
            self._wanted = None

    def _read_new_rows(self) -> bool:
        if self.fd < 0:
            return self._read_first_rows()
        wanted = self._wanted
        if wanted is None:
            return self._take_new_rows(self._select_new())
        rows = self._select_new_and_past(encode_id(wanted))
        if not rows:
            # The known history is not live any more.
            return self._take_new_rows(self._select_new())
        first = next((number for number, row in enumerate(rows) if row[4]), len(rows))
        self._take_new_rows([row[:4] for row in rows[:first]])
        self._located = wanted, self._source.rows.keep_around(self.fd, [row[2:] for row in rows[first:]])
        return True

    def _read_first_rows(self) -> bool:
        owner = self.key
        thread, namespace, _ = owner
        sql = self._statements.select_first
        rows = self._read_current(sql, lambda: (thread, namespace, *owner, *owner))
        is_found = self._take_new_rows([row[:4] for row in rows])
        if is_found:
            self._database.check_end(self.fd, self._last_row[0])
        self.is_alone = is_found and not rows[-1][4]
        return is_found

    def _take_new_rows(self, rows: Sequence[Row]) -> bool:
        if not rows:
            self.close()
            self._database.check_absence(self.key[0])
            self.is_known_absent = True
            return False
        history = rows[0][0]
        if history != self.fd:
            self.open_rows(history, rows)
        elif rows[0][3] is not None:
            self._take_rows(rows)
        return True

    def _select_new(self) -> Sequence[Row]:
        owner = self.key
        return self._read_current(self._statements.select_new, lambda: (self.fd, self.end, *owner, *owner, self.fd))

    def _select_new_and_past(self, checkpoint: bytes) -> Sequence[Row]:
        """Return what is new in the known history, and the rows around a checkpoint; nothing if it is not live."""
        version = self.key[-1]
        return self._read_current(
            self._statements.select_new_and_past, lambda: (self.fd, checkpoint, self.end, self.fd, version)
        )

    def _read_current(self, sql: str, make_parameters: Callable[[], Parameters]) -> Sequence[Row]:
        """Return the rows of a statement, executed on the database from which the known rows come."""
        database = self._database
        while True:
            generation = database.generation
            if generation != self._generation:
                self.close()
                self._generation = generation
            rows = database.read(sql, make_parameters())
            if database.generation == generation:
                return rows
            # The statement has found another database in place of the one that is known.

    def open_rows(self, history: int, rows: Sequence[tuple[int, str, int, bytes]]) -> None:
        """Begin with the rows from the last keyframe on, and the first row.

        Args:
            history: the number of the history.
            rows: the number, the status, the position and the record of each row.

        Raises:
            CheckpointCorruptionError: a record is missing or damaged.
        """
        self._open_first(history, rows[0])
        if len(rows) == 1:
            return
        try:
            if self._open_last(rows[1:]):
                return
        except CheckpointCorruptionError:
            # Reading one row after the other finds out which of them is wrong.
            pass
        self._open_first(history, rows[0])
        if rows[1][2] != self.end:
            self._skip_to(rows[1][2], rows[1][3])
        self._take_rows(rows[1:])

    def _open_first(self, history: int, row: tuple[int, str, int, bytes]) -> None:
        """Begin with the first row of a history."""
        self.close()
        self.fd = self._last_history = history
        _, status, position, beginning = row
        if position != 0:
            raise CheckpointCorruptionError(self.path, 0, "the first record is missing")
        try:
            self.read_beginning(len(beginning), beginning)
        except IncompleteLog:
            raise CheckpointCorruptionError(self.path, 0, "the first record is cut short") from None
        self.seq = META_RECORDS
        self.end = len(beginning)
        self._source.add(0, beginning, is_keyframe=False)
        self._status = status

    def _open_last(self, rows: Sequence[tuple[int, str, int, bytes]]) -> bool:
        """Take in the rows from the last keyframe on, without the state of each checkpoint in turn.

        Of 50 rows, this takes a third of the time of `_take_rows`.

        Returns:
            Whether they were taken in; False if they do not begin with a keyframe that leads to the
            last checkpoint, have many bytes, or something is wrong with them.
        """
        if rows[-1][2] + len(rows[-1][3]) - rows[0][2] > MOST_KEPT:
            # They would be read again.
            return False
        frames = self._parse_rows(rows)
        if frames is None:
            return False
        number = len(frames) - 1
        while frames[number].type != log.CHECKPOINT:
            # The first one is a checkpoint.
            number -= 1
        last = frames[number]
        first = frames[0]
        if last.offset - last.key != first.offset:
            return False
        self.end = last.end
        for (_, _, position, data), frame in zip(rows, frames, strict=True):
            self._source.add(position, data, is_keyframe=bool(frame.flags & log.KEY))
        self._load_last_checkpoint(last)
        self.is_scattered = last.is_scattered
        self._keyframe = first.offset
        self._status = rows[-1][1]
        for frame in frames[number + 1 :]:
            self._take_next(frame)
        self.seq = frames[-1].seq + 1
        self._last_row = frames[-1].offset, self._encode_checkpoint_of(frames[-1])
        return True

    def _parse_rows(self, rows: Sequence[tuple[int, str, int, bytes]]) -> list[log.Frame] | None:
        """Return the records of rows, kept for the reads that follow; None unless a keyframe is followed by others.

        Each row must have one record, and stand where the one before it ends.
        """
        position = rows[0][2]
        first = log.parse_frame(rows[0][3], 0, position, self.fid)
        if isinstance(first, str) or first.type != log.CHECKPOINT or not first.flags & log.KEY:
            return None
        data = self._source.rows.keep(self.fd, [row[2:] for row in rows])
        end = position + len(data)
        frames: list[log.Frame] = []
        offset = position
        while offset < end:
            found = log.parse_frames(data, offset - position, len(data), offset, self.fid, first.seq + len(frames))
            if not found:
                return None
            frames += found
            offset = found[-1].end
        if [frame.offset for frame in frames] != [row[2] for row in rows]:
            return None
        return frames

    def _skip_to(self, position: int, frame: bytes) -> None:
        """Go on with the record at a position, which is a keyframe."""
        keyframe = self._parse(frame, position)
        self.seq = keyframe.seq
        self.end = position
        self._keyframe = position
        decoded = payloads.decode_checkpoint(self.path, keyframe, None, self.codec.unpack)
        self.early_start = position
        self.early_unread = position - decoded.early[1]

    def _take_rows(self, rows: Sequence[tuple[int, str, int, bytes]]) -> None:
        for _, status, position, data in rows:
            if position != self.end:
                raise CheckpointCorruptionError(self.path, self.end, "a record is missing")
            frame = self._parse(data, position)
            if frame.seq != self.seq or frame.end != position + len(data):
                raise CheckpointCorruptionError(self.path, position, "it is not the record that belongs here")
            log.check_known(self.path, frame)
            self._take_next(frame)
            self._source.add(position, data, is_keyframe=bool(frame.flags & log.KEY))
            if frame.flags & log.KEY:
                self._keyframe = position
            self._status = status
            self._last_row = position, self._encode_checkpoint_of(frame)

    def _encode_checkpoint_of(self, frame: log.Frame) -> bytes | None:
        """Return what the row of a record that was just taken in has as its checkpoint."""
        if frame.type != log.CHECKPOINT:
            return None
        assert self.last_checkpoint is not None
        return encode_id(self.last_checkpoint.id)

    def find_first_record(self) -> int:
        return log.read_frame(self.file, log.HEADER_SIZE, self.end).end

    def load_index(self, kept: KeptRecords | None = None) -> Index:
        end = self.end
        index = super().load_index(kept)
        if self.end != end:
            # The scan has stopped early, as at the end of a file.
            offset = self.end
            self.close()
            raise CheckpointCorruptionError(self.path, offset, "a record is missing")
        return index

    def _parse(self, data: bytes, position: int) -> log.Frame:
        frame = log.parse_frame(data, 0, position, self.fid)
        if isinstance(frame, str):
            raise CheckpointCorruptionError(self.path, position, frame or "the record is cut short")
        return frame

    def locate(self, id: str) -> Place | None:
        """Return where a checkpoint seems to be; None if only `find` can tell. `find` then looks no further."""
        last = self.last_checkpoint
        if not self.can_search() or (last is not None and last.id == id):
            return None
        found = self._find_row(id)
        if found is None or found.position >= self.end:
            return None
        return Place(found.position, found.start, found.data)

    def find(self, id: str | None) -> StoredCheckpoint | None:
        last = self.last_checkpoint
        is_last = id is None or (last is not None and last.id == id)
        if not is_last and id is not None and self.can_search() and id not in self.found:
            found = self._find_row(id)
            if found is None:
                # No scan is needed: the rows say which checkpoints there are.
                return None
            if found.position >= self.end and next(self._list_positions(id), None) is None:
                # It was inserted since the log was refreshed.
                return None
        return super().find(id)

    def _find_row(self, id: str) -> FoundRow | None:
        """Return where the last record of a checkpoint is; None if there is none. The cost is one statement."""
        if self._located is None or self._located[0] != id:
            self._located = id, self._source.rows.find(self.fd, encode_id(id))
        return self._located[1]

    def _list_positions(self, id: str) -> Iterator[int]:
        """Yield where the known records of a checkpoint begin, the last one first."""
        for (position,) in self._database.read(self._statements.select_checkpoint, (self.fd, encode_id(id))):
            if position < self.end:
                yield position

    def can_search(self) -> bool:
        """Return whether a row shows where a checkpoint is, and what belongs to it stands behind it."""
        return self.index is None and not self.is_scattered

    def search_offsets(self, id: str) -> Iterator[int]:
        first = None
        if self._located is not None and self._located[0] == id:
            found = self._located[1]
            if found is not None and found.position < self.end:
                first = found.position
                yield first
        for position in self._list_positions(id):
            if position != first:
                yield position

    def is_gone(self) -> bool:
        """Return whether the history that was open last was deleted or rewritten meanwhile.

        Then what was read of it may be incomplete, which looks like damage.
        """
        history = self._last_history
        return history > NEW and not self._database.read(self._statements.select_status, (history,))


def _describe(owner: tuple[str, str], version: int, database: Database) -> str:
    """Return what errors call a history."""
    thread_id, namespace = owner
    name = f"the history of thread {thread_id!r:.80}"
    if namespace:
        name += f", namespace {namespace!r:.80}"
    if version > 0:
        name += f", version {version}"
    return f"{name} in {database.path}"
