"""Where the bytes of one log lie: in a file, in the rows of a table, in objects, in memory.

A log knows records; `LogBytes` knows none of that. It reads and appends bytes at offsets, and finds
out what other writers have done. A saver with deltas on another medium implements this
class, or `BufferedLogBytes` if its medium stores at once what belongs together.
"""

# ruff: noqa: B027 - a medium implements only those of the empty methods that it needs

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from savers._log.frame import HEADER_SIZE, MAX_PAYLOAD

if TYPE_CHECKING:
    from savers._log.frame import Frame
    from savers._log.stored_checkpoint import StoredCheckpoint

_BACK: Final = 1 << 16
"""How many bytes a reader from the end gets at once."""
_FIRST_SEARCH: Final = 1 << 16
_LONGEST_SEARCH: Final = 7 << 14
"""How many bytes are searched at once. More would take new memory each time, which costs as much as
reading into it."""


class Change(Enum):
    """What a look at the bytes has found."""

    NONE = auto()
    """They end where the caller's last record ends; zeros may follow."""
    GREW = auto()
    """Something follows the caller's last record."""
    REPLACED = auto()
    """They are gone, were cut, or others are in their place: the caller closes them and opens them again."""
    REMOVED = auto()
    """The same, and the bytes that have lost their name can still be read, up to `size`."""


class StaleLogError(Exception):
    """Another writer has changed the log: read what is new, and append again. Nothing was changed."""


class Durability:
    """What a power loss may take of the bytes of a log: nothing, unless a medium says otherwise."""

    boot = 0
    """The number of the boot of the system, if the bytes can be lost with it; else 0."""
    is_suspect = False
    """Whether what was appended may be lost if the log is closed now."""

    def count_unsynced(self, offset: int) -> int:  # noqa: ARG002 - for bytes that a power loss may take
        """Return how many bytes before an offset are not known to survive a power loss."""
        return 0

    def note_frame(self, frame: Frame) -> None:
        """Note that the next record was read; it says up to where the bytes survive a power loss."""

    def has_whole_end(self, frames: Iterator[Frame]) -> bool:  # noqa: ARG002 - a power loss may take bytes
        """Return whether no record at the end is missing that a power loss may have taken.

        Args:
            frames: the last records, newest first; as many as are asked for.
        """
        return True


class LogBytes(ABC):
    """The bytes of one log, as one caller at a time uses them: the one that holds the log's mutex.

    Offsets are those of docs/format.md: the header of the log begins at 0. A caller that appends also
    excludes other writers of the medium, or the medium refuses the second one.

    Attributes:
        path: names the log in errors.
        size: where the bytes end, as found by the last `open` or `refresh`.
    """

    durability = Durability()
    """What is known of the bytes that a power loss may take."""
    max_payload = MAX_PAYLOAD
    """The most bytes of a record's payload."""
    max_part = MAX_PAYLOAD
    """A keyframe with more bytes of values has them in DATA records before it, of this length each."""
    read_window = 7 << 14
    """About how many bytes to read at once of a value whose pieces are in order."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0

    # What a medium implements

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether there is a log, as far as this caller knows."""

    @abstractmethod
    def open(self) -> bool:
        """Open the log as it is now, and set `size`; return False if there is none."""

    @abstractmethod
    def refresh(self, end: int) -> Change:
        """Find out what other writers have done since the last look, and set `size`.

        Args:
            end: where the caller's last record ends.
        """

    @abstractmethod
    def read_at(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from an offset; fewer only at the end of the log."""

    @abstractmethod
    def append(self, offset: int, data: bytes, flags: int, checkpoint: StoredCheckpoint | None) -> None:
        """Append one record.

        Args:
            offset: where it begins: where the log ends.
            data: its bytes, header and trailer included.
            flags: its flags.
            checkpoint: the checkpoint that it holds, if it is a CHECKPOINT record.

        Raises:
            OSError: the medium refused. The log is as it was.
            StaleLogError: another writer was faster.
        """

    @abstractmethod
    def begin(self, beginning: bytes) -> None:
        """Begin a log that does not exist: these bytes are written before the first record, with it."""

    @abstractmethod
    def undo(self, start: int) -> None:
        """Take back what was appended from an offset on; if that is 0, there is no log afterwards."""

    @abstractmethod
    def close(self) -> None:
        """Forget what is known of the log; the next caller opens it again. Works after any error."""

    # For a medium that takes what belongs together at once

    begins_whole = False
    """Whether no log is created in part: a beginning that is cut short is damage."""
    has_pending = False
    """Whether something was appended that waits for `commit`. Until then, reads find it here."""

    def commit(self, latest: StoredCheckpoint | None) -> None:
        """Store what was appended since the last commit, all of it or nothing.

        Args:
            latest: the latest checkpoint of the history, as it then is.

        Raises:
            StaleLogError: another writer was faster.
            CheckpointStorageError: the medium refused. Nothing was changed.
        """

    def replace(self, data: bytes, version: int = 0) -> None:
        """Replace the whole log, at once, as `LogSaver` does to rewrite, release or delete it; the caller closes it.

        Args:
            data: the bytes of the new log; empty: there is none, and a released log is gone, too.
            version: if it is not 0, the bytes of the live log are kept as this released version.

        Raises:
            StaleLogError: another writer has changed it since the last look. Nothing was changed.
        """
        raise NotImplementedError(f"{type(self).__name__} does not replace logs")

    def is_gone(self) -> bool:
        """Return whether the log that was open last does not exist any more: then it only seems damaged."""
        return False

    # What a medium may do better

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes between several pairs of start and end."""
        return [self.read_at(start, end - start) for start, end in ranges]

    def read_record(self, offset: int, length: int) -> bytes:
        """Return the bytes from an offset, at which a record begins: all of it, or about `length` bytes.

        At offset 0, the header of the log and its META records are what a record is elsewhere.
        """
        return self.read_at(offset, length)

    def expect_keyframes(self, offset: int) -> None:
        """Note that the keyframe at an offset is read next, and then perhaps keyframes before it."""

    def read_back(self, end: int, length: int) -> tuple[int, bytes]:
        """Return where some bytes before an offset begin, and the bytes: `length` or more, or all there are."""
        start = max(0, end - max(length, _BACK))
        return start, self.read_at(start, end - start)

    def locate(self, id: str) -> Sequence[int] | None:  # noqa: ARG002 - for bytes with an index
        """Return where CHECKPOINT records with an id are, the last one first; None if the bytes must be searched.

        Empty if there is none: then no caller looks further.
        """
        return None

    def expect_absent(self, id: str) -> bool:  # noqa: ARG002 - for bytes with an index
        """Return whether the medium refuses the next record if the log has a checkpoint with an id by then."""
        return False

    def prepare_end(self, end: int, generation: int) -> str:  # noqa: ARG002 - a dead writer leaves bytes
        """Cut off what a dead writer left behind the last record.

        Args:
            end: where the last record ends.
            generation: that of the log.

        Returns:
            The name of a file to which bytes were moved; "" if there is none.
        """
        return ""

    def note_ended(self, end: int) -> None:
        """Note that the last record ends the log: nothing follows it."""

    def retire(self, end: int) -> None:
        """Prepare to be closed, because the saver keeps the log open no longer; the last record ends at `end`."""

    def close_after_fork(self) -> None:
        """Prepare to be closed in the child of a fork: what is shared with the parent stays as it is."""

    @property
    def kept_size(self) -> int:
        """How many bytes are kept in memory."""
        return 0

    def drop_caches(self) -> None:
        """Drop the bytes that are kept in memory."""

    def note_end(self, end: int, last: StoredCheckpoint | None = None) -> None:
        """Note where the last record ends, and the last checkpoint, after the bytes up to `size` were read."""

    def start_writing(self) -> None:
        """Let the medium begin to store what was appended, while the caller still works."""


class BufferedLogBytes(LogBytes):
    """The bytes of a log in a medium that stores at once what belongs together.

    What is appended waits in memory for `commit`. A medium implements `open`, `refresh`, `read_stored`, `store` and
    `replace`, and refuses in `store` what does not begin where the log ends.
    """

    begins_whole = True

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._pending = b""
        """What was appended and is not stored: the last bytes before `size`."""

    @abstractmethod
    def read_stored(self, offset: int, length: int) -> bytes:
        """Return bytes that are stored."""

    @abstractmethod
    def store(self, offset: int, data: bytes) -> None:
        """Store bytes behind the others, all or none; at offset 0, a log begins.

        Raises:
            StaleLogError: another writer was faster.
        """

    @property
    def is_open(self) -> bool:
        return self.size > 0

    @property
    def has_pending(self) -> bool:  # type: ignore[override] # it changes here
        return bool(self._pending)

    def read_at(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        stored = self.size - len(self._pending)
        data = b""
        if offset < min(end, stored):
            data = self.read_stored(offset, min(end, stored) - offset)
        if end > stored:
            data += self._pending[max(0, offset - stored) : end - stored]
        return data

    def begin(self, beginning: bytes) -> None:
        self._pending = beginning
        self.size = len(beginning)

    def append(self, offset: int, data: bytes, flags: int, checkpoint: StoredCheckpoint | None) -> None:  # noqa: ARG002 - bytes are stored, whatever they are
        self._pending += data
        self.size = offset + len(data)

    def undo(self, start: int) -> None:  # noqa: ARG002 - what is pending belongs together
        self.close()

    def commit(self, latest: StoredCheckpoint | None) -> None:  # noqa: ARG002 - as in `append`
        if self._pending:
            self.store(self.size - len(self._pending), self._pending)
            self._pending = b""

    def close(self) -> None:
        self.size = 0
        self._pending = b""


def search_back(medium: LogBytes, needle: bytes, end: int) -> Iterator[int]:
    """Yield where some bytes occur before an offset, the last occurrence first."""
    high = end
    length = _FIRST_SEARCH
    while high > HEADER_SIZE:
        low = max(HEADER_SIZE, high - length)
        # An occurrence may begin before `high` and end behind it.
        data = medium.read_at(low, min(high + len(needle) - 1, end) - low)
        position = data.rfind(needle)
        while position >= 0:
            yield low + position
            position = data.rfind(needle, 0, position + len(needle) - 1)
        high = low
        length = min(2 * length, _LONGEST_SEARCH)


class MemoryLogBytes(LogBytes):
    """The bytes of a log in memory: of one that is rewritten before it replaces another, or for tests.

    Several objects may use the same bytes, as several writers use a file.
    """

    def __init__(self, path: str = "memory", data: bytearray | None = None) -> None:
        super().__init__(path)
        self.data = bytearray() if data is None else data
        """All bytes."""
        self._is_open = False
        self._beginning = b""

    @property
    def is_open(self) -> bool:
        return self._is_open

    def open(self) -> bool:
        self.size = len(self.data)
        self._is_open = self.size > 0
        return self._is_open

    def refresh(self, end: int) -> Change:
        self.size = len(self.data)
        if self.size < end:
            return Change.REPLACED
        return Change.NONE if self.size == end else Change.GREW

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])

    def begin(self, beginning: bytes) -> None:
        self._beginning = beginning

    def append(self, offset: int, data: bytes, flags: int, checkpoint: StoredCheckpoint | None) -> None:  # noqa: ARG002
        if len(self.data) + len(self._beginning) != offset:
            raise StaleLogError
        self.data += self._beginning + data
        self._beginning = b""
        self._is_open = True

    def undo(self, start: int) -> None:
        del self.data[start:]
        self._is_open = start > 0

    def prepare_end(self, end: int, generation: int) -> str:  # noqa: ARG002
        del self.data[end:]
        return ""

    def close(self) -> None:
        self._is_open = False
        self._beginning = b""
