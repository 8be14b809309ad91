"""A view of a history whose log is short, and was read once as a whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointerError
from savers import _delta as delta
from savers._log import log
from savers._log.history_view import ReadCheckpoint, Visit
from savers._log.index import Index
from savers._log.log_reader import LogReader
from savers._log.packed_states import PackedState, RecordContent, StateDecoder, replay_contents, replay_states
from savers._log.plain_log import PlainLog, read_plain_log

if TYPE_CHECKING:
    from graphkit.codec import Codec
    from graphkit.values import FrozenDict
    from savers._log.log_file import ByteSource
    from savers._log.stored_checkpoint import StoredCheckpoint

_EARLY_ROOM: Final = 2
"""How many times the bytes of the log the states may take that are made when it is scanned."""


class LogBytes:
    """The bytes of a log that was read as a whole; a ByteSource of this one log."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_at(self, fd: int, offset: int, length: int) -> bytes:  # noqa: ARG002 - there is one log
        """Return `length` bytes from an offset; fewer at the end."""
        return self.data[offset : offset + length]


class BytesLog(LogReader):
    """A log whose bytes were read as a whole."""

    def refresh(self) -> bool:
        """Return whether there are bytes; they do not change."""
        return self.fd >= 0

    def close(self) -> None:
        """Do nothing: there is nothing to close, and nothing to read again."""

    def take_bytes(self, data: bytes) -> None:
        """Read from these bytes from now on."""
        self.io = LogBytes(data)
        self.fd = 0

    def forget_bytes(self, io: ByteSource) -> None:
        """Drop the bytes, and what was made of them except the index."""
        self.fd = -1
        self.io = io
        self._forget_past()

    def find_all(self, data: bytes) -> PlainLog | None:
        """Find the checkpoints in the bytes; None if the log is torn, or has ended.

        Raises:
            CheckpointerError: the log is damaged, or cannot be read.
            IncompleteLog: its creation was cut short.
        """
        self.take_bytes(data)
        self.index = Index()
        self.end = self.read_beginning(len(data), data)
        # A record of version 2 does not end in zeros. Those behind the last one are nothing yet.
        end = len(data.rstrip(b"\0")) if self.version == log.MAJOR else len(data)
        self._read_index(end)
        if self.end != end or self.closed_by is not None:
            return None
        return PlainLog(self.index.checkpoints, self.fid, end)

    def adopt(self, fid: int, end: int) -> None:
        """Take over what is known of a plain log."""
        self.fid = fid
        self.end = end

    @property
    def has_packed_states(self) -> bool:
        """Whether `replay_states` may know its states."""
        return self.serializer is None and self.seal is None and not self.is_scattered


class ScannedLog(ABC):
    """A view of a short log that was read once, as a whole, and is not kept open; a HistoryView."""

    # A plain log is read without a LogReader, which would take a quarter of the time of a listing.

    def __init__(self, path: str, owner: tuple[str, str], codec: Codec, *, is_opaque: bool) -> None:
        """Make a view of nothing; `_scan` fills it.

        Args:
            path: the log, for errors.
            owner: the thread and the namespace.
            codec: unpacks the values.
            is_opaque: whether the states are written by a serializer of the application.
        """
        self.path = path
        self.thread_id, self.namespace = owner
        self._codec = codec
        self._is_opaque = is_opaque
        self.is_only = False
        """Whether the thread certainly has no other namespace."""
        self._mutex = Lock()
        self.checkpoints: Sequence[StoredCheckpoint] = ()
        self.end = 0
        """Where the last record ends."""
        self._fid = 0
        self._reader: BytesLog | None = None
        """Reads what needs the general way. That of a plain log is made when it is needed."""
        self._is_plain = False
        """Whether the log was read without it."""
        self._contents: Sequence[RecordContent] | None = None
        """What the records of the checkpoints say of their states, between `_scan` and `make_states`."""
        self.states: dict[int, PackedState] = {}
        """The packed states that are made, by the offsets of their records. They are those of the log
        as it was read; `read_packed` also asks whether it is still so."""
        self._has_all_states = False
        """Whether a state that is not among them must be read in the general way."""
        self._decoder = StateDecoder(codec)
        self._data: bytes | None = None
        """The bytes of the log, while they are kept."""

    @abstractmethod
    def _new_reader(self) -> BytesLog:
        """Return a log that is still without bytes."""

    @abstractmethod
    def _get_current_bytes(self) -> bytes | None:
        """Return the bytes of the log; None if it has changed since it was read."""

    def _scan(self, data: bytes, *, keeps_contents: bool) -> bool:
        """Find the checkpoints in the bytes; return False if the log is torn, or has ended.

        Args:
            data: the bytes of the log.
            keeps_contents: whether `make_states` is called next.
        """
        scanned = None
        if not self._is_opaque:
            owner = (self.thread_id, self.namespace)
            contents: list[RecordContent] | None = [] if keeps_contents else None
            scanned = read_plain_log(self.path, data, owner, self._codec.unpack, contents)
            self._contents = contents
        if scanned is not None:
            self._is_plain = True
        else:
            self._contents = None
            self._reader = self._new_reader()
            scanned = self._reader.find_all(data)
            if scanned is None:
                return False
        self.checkpoints, self._fid, self.end = scanned
        self._data = data
        return True

    def make_states(self, wanted: Sequence[StoredCheckpoint]) -> None:
        """Make the states of checkpoints that will be read, if what the scan decoded was kept until now.

        This takes half of the time of a second pass over the log, and less if few are wanted. States
        that take much more room than the log are made when the first one is read.
        """
        contents = self._contents
        self._contents = None
        data = self._data
        if contents is not None and data is not None and wanted:
            states = replay_contents(contents, self.checkpoints, wanted, _EARLY_ROOM * len(data))
            if states is not None:
                self.states = states
                self._has_all_states = not states or len(wanted) == len(self.checkpoints)

    def _keep_bytes(self, data: bytes) -> None:
        """Keep the bytes of the log, which were read again."""
        self._data = data
        if self._reader is not None:
            self._reader.take_bytes(data)

    def _get_reader(self, data: bytes) -> BytesLog:
        """Return what reads the bytes in the general way."""
        if self._reader is None:
            self._reader = self._new_reader()
            self._reader.take_bytes(data)
            self._reader.adopt(self._fid, self.end)
        return self._reader

    def _find_packed(self, data: bytes, stored: StoredCheckpoint) -> PackedState | None:
        """Return the packed state of a checkpoint; None if it must be read in the general way."""
        packed = self.states.get(stored.offset)
        if packed is None and not self._has_all_states:
            has_packed_states = self._is_plain or self._get_reader(data).has_packed_states
            self.states = replay_states(data, self.checkpoints) if has_packed_states else {}
            self._has_all_states = True
            packed = self.states.get(stored.offset)
        return packed

    def _load_state(self, data: bytes, stored: StoredCheckpoint) -> FrozenDict:
        """Return the state of a checkpoint; raise the same errors as every log."""
        values = self._find_packed(data, stored)
        if values is not None:
            try:
                return self._decoder.decode(values)
            except (CheckpointerError, *delta.MALFORMED):
                # The general way finds out what is wrong.
                self.states = {}
                self._has_all_states = True
        return self._get_reader(data).load_state(stored)

    def walk_back(self, visit: Visit, expected: int | None) -> None:  # noqa: ARG002 - all are known
        """See HistoryView."""
        for stored in reversed(self.checkpoints):
            if not visit(stored):
                return

    def forget(self) -> None:
        """See HistoryView. A later `read` loads the log again."""
        with self._mutex:
            self._data = None
            self._contents = None
            self.states = {}
            self._has_all_states = False
            self._decoder = StateDecoder(self._codec)
            if self._is_plain:
                self._reader = None
            elif self._reader is not None:
                self._reader.forget_bytes(LogBytes(b""))

    def read(self, stored: StoredCheckpoint) -> ReadCheckpoint | None:
        """See HistoryView."""
        with self._mutex:
            data = self._get_current_bytes()
            if data is None:
                return None
            writes = self._get_reader(data).read_writes(stored) if stored.writes else {}
            return ReadCheckpoint(self._load_state(data, stored), writes)

    def read_packed(self, stored: StoredCheckpoint) -> PackedState | None:
        """Return the packed state of a checkpoint.

        None if `read` has to find out: the state may have another form, or the log may have changed.
        """
        with self._mutex:
            data = self._get_current_bytes()
            return None if data is None else self._find_packed(data, stored)
