"""A log of frames: its header, its records, and where the next one goes; whatever the records hold.

The log of a thread's history and the log of entries of LangGraph's store and cache are both one of
these, over the bytes of a file, of rows, of objects, or of memory.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError, CheckpointSerializationError
from graphkit.saver_kit import find_copied_key
from savers._cipher import own_key
from savers._log import payloads
from savers._log.frame import (
    FRAME_SIZE,
    HEADER_SIZE,
    META,
    META_RECORDS,
    REPLACE,
    SCATTERED,
    SEALED,
    SEALED_TYPES,
    Frame,
    Header,
    IncompleteLog,
    digest_thread,
    is_headless,
    pack_frame,
    parse_frame,
    read_header,
)
from savers._log.log_bytes import Change, MemoryLogBytes
from savers._log.records import Records, is_torn
from savers._log.sealing import MAX_OVERHEAD, LogSeal, pack_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from savers._cipher import KeyRing
    from savers._log.log_bytes import LogBytes
    from savers._log.stored_checkpoint import StoredCheckpoint

Medium = TypeVar("Medium", bound="LogBytes")
"""Where the bytes of a log lie."""
Owner = TypeVar("Owner", bound="Identity")
"""Whose log it is."""
_BEGINNING: Final = 1 << 14
"""Nearly all first records end within so many bytes."""
_LONG_BEGINNING: Final = 1 << 20
"""Where the first record ends at the latest."""


class Identity(ABC):
    """Whose log it is: what META records hold, and what a reader accepts."""

    digest: bytes
    """What stands in the header."""

    @abstractmethod
    def make_meta(self) -> dict[str, Any]:
        """Return the content of the META records of a new log."""

    @abstractmethod
    def check_meta(self, path: str, meta: Any) -> str | None:
        """Return the id of the key with which the log was begun; None if it is plain.

        Raises:
            CheckpointFormatError: the log belongs to something else.
        """

    def make_seal(self, path: str, key_id: str) -> LogSeal:
        """Return what seals and opens the records of a log.

        Args:
            path: the log.
            key_id: the stored id of the key with which it was begun; for a new one, that of a key of
                its own, or "".
        """
        raise NotImplementedError("no log of this kind is sealed")

    def choose_key(self, path: str, metadata: Mapping[str, Any]) -> str:  # noqa: ARG002 - for logs that have keys
        """Return the stored id of the key that a new log has of its own; "" if it has none.

        Args:
            path: the log.
            metadata: those of its first checkpoint.
        """
        return ""

    @property
    def seals_new_logs(self) -> bool:
        """Whether the records of a new log are sealed."""
        return False


class NamedIdentity(Identity):
    """The identity of a log that is no history: a value under a key, so that logs cannot change places."""

    def __init__(self, key: str, value: object, name: str, what: str) -> None:
        """Take the key and the value in META records, the text whose digest is in the header, and what the log is."""
        self.meta = {key: value}
        self.digest = digest_thread(name)
        self._what = what

    def make_meta(self) -> dict[str, Any]:
        return dict(self.meta)

    def check_meta(self, path: str, meta: Any) -> None:
        if not isinstance(meta, dict) or not meta.items() >= self.meta.items():
            raise CheckpointFormatError(path, f"it is not {self._what}; put the file back where it came from")


class FrameLog(Generic[Medium, Owner]):
    """The frames of one log. One OS thread may use it at a time, the one that holds the log's mutex."""

    in_doubt = False
    """Whether a change of what this object knows has begun and not ended.

    An exception may come at any line: Ctrl-C, a signal handler that raises, a lack of memory. If it
    comes between a write and the bookkeeping, what is known is no longer what the bytes say, and the
    next record would be relative to a state that the log does not have. So the first line of each
    change sets this, and its last line resets it; the next use of a log in doubt closes it and reads
    it again. Two assignments are all that this costs a put, and no line needs a guard of its own.
    """

    def __init__(self, bytes: Medium, identity: Owner) -> None:
        self.bytes = bytes
        self.path = bytes.path
        self.identity = identity
        self._reset()

    def _reset(self) -> None:
        self.header: Header | None = None
        self.records = Records(self.bytes, 0)
        self.first = 0
        """Where the first record behind the META records begins."""
        self.end = 0
        """Where the next record goes; 0 if there is no log."""
        self.seq = 0
        """The number of the next record."""
        self.is_scattered = False
        """Whether the records about a checkpoint may stand anywhere behind it; see SCATTERED."""
        self._kept_key = ""
        """The stored id of the key of its own that a new log takes over from another one; "" if it does not."""

    @property
    def fid(self) -> int:
        """The id of the log; 0 if there is none."""
        return 0 if self.header is None else self.header.fid

    @property
    def seal(self) -> LogSeal | None:
        """What seals and opens the records, if the log is sealed."""
        return self.records.seal

    @property
    def must_be_sealed(self) -> bool:
        """Whether the log is open and plain, and its saver has a cipher: it is rewritten before the next record."""
        return self.records.seal is None and self.identity.seals_new_logs and self.bytes.is_open

    # Opening

    def open(self) -> bool:
        """Open the log and read its beginning; return False if there is none, or an incomplete one.

        Raises:
            CheckpointCorruptionError: the beginning of the log is damaged. It is closed.
            CheckpointFormatError: another version of graphkit wrote it, or it belongs to something
                else. It is closed.
        """
        try:
            if not self.bytes.open():
                return False
            self.read_beginning(self.bytes.size)
        except IncompleteLog:
            self.close()
            if self.bytes.begins_whole:
                raise CheckpointCorruptionError(self.path, 0, "the first record is cut short") from None
            return False
        except BaseException:
            self.close()
            raise
        return True

    def read_beginning(self, size: int) -> None:
        """Read the header and the first META record.

        Args:
            size: where the bytes end.

        Raises:
            IncompleteLog: the creation of the log was cut short.
            CheckpointCorruptionError: the header or the record is damaged.
            CheckpointFormatError: another version of graphkit wrote the log, or it belongs to
                something else.
        """
        data = self.bytes.read_record(0, min(size, _BEGINNING))
        is_without_head = len(data) >= HEADER_SIZE and is_headless(data)
        if is_without_head and Records(self.bytes, None).find_vouched_end(0, size) <= 0:
            raise IncompleteLog
        self.adopt(read_header(self.path, data), None)
        meta = parse_frame(data, HEADER_SIZE, HEADER_SIZE, self.fid)
        if meta == "" and len(data) < size:
            data = self.bytes.read_at(0, min(size, _LONG_BEGINNING))
            meta = parse_frame(data, HEADER_SIZE, HEADER_SIZE, self.fid)
        if isinstance(meta, str):
            raise self._explain_no_meta(size, meta or "the record is cut short")
        if meta.type != META or meta.seq:
            raise self._explain_no_meta(size, "the first record is not the log's description")
        key_id = self.identity.check_meta(self.path, payloads.unpack_payload(self.path, meta))
        if key_id is not None:
            self.adopt(self.header, key_id)
        self.seq = 1
        self.end = meta.end
        # The copies of the record are equally long.
        self.first = HEADER_SIZE + META_RECORDS * (meta.end - HEADER_SIZE)

    def adopt(self, header: Header | None, key_id: str | None) -> None:
        """Take over a header, and whether the log is sealed; see `Identity.make_seal`."""
        self.header = header
        seal = None if key_id is None else self.identity.make_seal(self.path, key_id)
        self.records = Records(self.bytes, self.fid, seal)

    def _explain_no_meta(self, size: int, reason: str) -> Exception:
        """Return the error for a log that does not begin with a META record."""
        # After a power loss, later sectors of the first write may be there without earlier ones,
        # and so may records behind it that did not wait for it.
        records = self.records
        if not records.find_vouched_end(HEADER_SIZE, size) and is_torn(records, HEADER_SIZE, size):
            return IncompleteLog()
        return CheckpointCorruptionError(self.path, HEADER_SIZE, reason)

    def read_on(self, size: int) -> Iterator[Frame]:
        """Yield the records behind the known end, up to `size`; note each when the next one is asked for."""
        for frame in self.records.scan(self.end, size, self.seq):
            self.bytes.durability.note_frame(frame)
            yield frame
            self.note_read(frame)

    def note_read(self, frame: Frame) -> None:
        """Note that a record was read: the next one follows it."""
        self.seq = frame.seq + 1
        self.end = frame.end
        self.is_scattered = bool(frame.flags & SCATTERED)

    def find_change(self) -> Change:
        """Return what has become of the bytes since they were read; REPLACED also if they must be read again.

        If the bytes were replaced or removed, the caller closes what it made of them, and opens this log.
        """
        if self.in_doubt or not self.bytes.is_open:
            return Change.REPLACED
        return self.bytes.refresh(self.end)

    def close(self) -> None:
        """Forget what was read; the next use opens the log again."""
        self.in_doubt = True
        self.bytes.close()
        self._reset()
        self.in_doubt = False

    # Appending

    def prepare_end(self) -> str:
        """Cut off what a dead writer left behind the last record, if there is a log; see `LogBytes.prepare_end`."""
        if self.header is None:
            return ""
        return self.bytes.prepare_end(self.end, self.header.generation)

    def append(
        self,
        type: int,
        payload: bytes,
        flags: int = 0,
        back: int = 0,
        key: int = 0,
        checkpoint: StoredCheckpoint | None = None,
    ) -> int:
        """Append a record and return its offset. Begins the log if there is none.

        Leaves the log in doubt: the caller does its own bookkeeping, and then says that it is not.

        Args:
            type: the type of the record.
            payload: its content.
            flags: its flags; those of sealing and scattering are added.
            back: the distance to the base record.
            key: the distance to the keyframe.
            checkpoint: the checkpoint of a CHECKPOINT record.

        Raises:
            CheckpointSerializationError: the record would be longer than a reader accepts. Nothing
                was changed.
            OSError: the medium refused. The log is as it was.
        """
        medium = self.bytes
        durability = medium.durability
        # Two steps, because this is part of every put.
        if len(payload) > medium.max_payload - MAX_OVERHEAD and len(payload) > self.max_payload:
            reason = f"it takes {len(payload)} bytes, and a record has at most {self.max_payload}"
            raise CheckpointSerializationError("", "record", reason)
        self.in_doubt = True
        if self.header is None:
            self.begin_new({})
        offset = self.end
        seq = self.seq
        header = self.header
        assert header is not None
        if self.is_scattered or flags & (SCATTERED | REPLACE):
            self.is_scattered = True
            flags |= SCATTERED
        seal = self.records.seal
        if seal is not None and type in SEALED_TYPES:
            flags |= SEALED
            sealed = seal.seal(payload, pack_place(flags, back, key, seq, header.fid, type, offset))
            self.records.note_appended(offset + FRAME_SIZE + len(sealed), payload)
            payload = sealed
        # By position, because this is part of every put.
        frame = pack_frame(
            offset, header.fid, seq, type, payload, flags, back, key, durability.count_unsynced(offset), durability.boot
        )
        medium.append(offset, frame, flags, checkpoint)
        self.end = offset + len(frame)
        self.seq = seq + 1
        return offset

    @property
    def max_payload(self) -> int:
        """The most bytes of a payload before it is sealed."""
        if self.identity.seals_new_logs or self.seal is not None:
            return self.bytes.max_payload - MAX_OVERHEAD
        return self.bytes.max_payload

    @property
    def max_values(self) -> int:
        """The most bytes of values in one record: the rest of its payload needs room, too."""
        return self.bytes.max_payload - self.bytes.max_payload // 16

    @property
    def max_part(self) -> int:
        """The most bytes of values in a keyframe; more are in DATA records before it, of this length each."""
        return min(self.max_values, self.bytes.max_part)

    def read_own_key(self) -> str:
        """Open the log, and return the stored id of the key that it has of its own; "" if it has none. Needs no key.

        The caller closes the log.
        """
        if not self.open() or self.seal is None:
            return ""
        return self.seal.own_key

    def keep_key_of(self, other: AnyFrameLog) -> None:
        """Let a log that is not begun yet have the key of its own that another one has, if that has one.

        It takes the place of that one, or is a copy of it.
        """
        if other.seal is not None:
            self._kept_key = other.seal.own_key

    def begin_new(self, metadata: Mapping[str, Any]) -> None:
        """Begin a log where there was none; see `begin`."""
        self.begin(new_header(self.identity.digest, 1), metadata)

    def begin(self, header: Header, metadata: Mapping[str, Any]) -> None:
        """Begin a log with a header; its first bytes are written with the first record.

        Leaves the log in doubt, as `append` does.

        Args:
            header: the header.
            metadata: those of its first checkpoint; they decide whether it has a key of its own.

        Raises:
            CheckpointKeyError: there is no key, or it was destroyed. Nothing was changed.
        """
        self.in_doubt = True
        seal = None
        meta = self.identity.make_meta()
        if self.identity.seals_new_logs:
            own_key = self._kept_key or self.identity.choose_key(self.path, metadata)
            seal = self.identity.make_seal(self.path, own_key)
            seal.begin()
            meta["sealed"] = seal.key_id
        beginning = header.pack() + pack_meta_frames(header.fid, meta, self.bytes.durability.boot)
        self.bytes.begin(beginning)
        self.header = header
        self.records = Records(self.bytes, header.fid, seal)
        self.seq = META_RECORDS
        self.first = self.end = len(beginning)

    def undo(self, start: int) -> None:
        """Take back the records from an offset on, because not all that belong together were appended.

        The log stays in doubt.
        """
        self.in_doubt = True
        if self.bytes.is_open and self.end > start:
            self.bytes.undo(start)


AnyFrameLog = FrameLog[Any, Any]


class ThreadIdentity(Identity):
    """The identity of a thread's log: the thread, the namespace, and whether states are opaque."""

    def __init__(
        self,
        owner: tuple[str, str],
        digest: bytes,
        key_ring: KeyRing | None,
        *,
        is_opaque: bool,
        find_thread_key: Callable[[str], str] | None = None,
    ) -> None:
        self.owner = owner
        self.digest = digest
        self.key_ring = key_ring
        self.is_opaque = is_opaque
        """Whether states are the bytes of a StateSerializer."""
        self._find_thread_key = find_thread_key
        """Returns the key that the history of a thread's own graph has of its own, as `FrameLog.read_own_key`."""

    @property
    def seals_new_logs(self) -> bool:
        """Whether the records of a new log are sealed."""
        return self.key_ring is not None

    def make_meta(self) -> dict[str, Any]:
        """Return the content of the META records of a new log."""
        thread_id, namespace = self.owner
        return {"thread": thread_id, "ns": namespace, "opaque": self.is_opaque}

    def check_meta(self, path: str, meta: Any) -> str | None:
        """Return the id of the key with which a log was begun; see Identity."""
        key_id = check_owner(path, meta, self.owner)
        is_opaque = bool(meta.get("opaque"))
        if is_opaque is not self.is_opaque:
            how = "with a state_serializer" if is_opaque else "without a state_serializer"
            raise CheckpointFormatError(path, f"it was written {how}; open the store in the same way")
        return key_id

    def choose_key(self, path: str, metadata: Mapping[str, Any]) -> str:
        """Return the stored id of the key that a new log has of its own; see Identity."""
        if self.key_ring is None:
            return ""
        copied = find_copied_key(metadata)
        if copied is not None:
            return own_key(copied)
        thread_id, namespace = self.owner
        if namespace and self._find_thread_key is not None:
            # One key opens all of a thread, whoever begins the history of a nested graph: `key_for` may not know it by
            # its metadata, and other savers of the store have no `key_for`.
            key_of_thread = self._find_thread_key(thread_id)
            if key_of_thread:
                return key_of_thread
        return self.key_ring.choose(thread_id, metadata, path)

    def make_seal(self, path: str, key_id: str) -> LogSeal:
        """Return what seals and opens the records of a log; see Identity."""
        return LogSeal(self.key_ring, path, self.owner, key_id)


def check_owner(path: str, meta: Any, owner: tuple[str, str]) -> str | None:
    """Check the thread and the namespace in a META record; return the id of the key, None if the log is plain.

    Raises:
        CheckpointFormatError: the log belongs to another thread.
    """
    if not isinstance(meta, dict) or (meta.get("thread"), meta.get("ns")) != owner:
        raise CheckpointFormatError(path, "it belongs to another thread; put the file back where it came from")
    key_id = meta.get("sealed")
    return None if key_id is None else str(key_id)


def read_owner(path: str, data: bytes) -> tuple[str, str]:
    """Return the thread and the namespace of a log, from the META records at its beginning."""
    records = Records(MemoryLogBytes(path, bytearray(data)), None)
    meta = payloads.unpack_payload(path, next(records.search(HEADER_SIZE, len(data))))
    return meta["thread"], meta["ns"]


def new_header(digest: bytes, generation: int) -> Header:
    """Return the header of a new log.

    Args:
        digest: the digest of its owner.
        generation: 1, or one more than that of the log that is rewritten.
    """
    fid = int.from_bytes(os.urandom(4), "little") or 1
    return Header(fid, generation, time_ns(), digest)


def pack_meta_frames(fid: int, meta: dict[str, Any], boot: int) -> bytes:
    """Return the first records, which say whose log this is.

    There are two copies, so that one damaged copy costs nothing.

    Args:
        fid: the id of the log.
        meta: what the records hold.
        boot: the number of the boot; 0 if a power loss takes no bytes.
    """
    payload = payloads.packb(meta)
    frames = b""
    for seq in range(META_RECORDS):
        offset = HEADER_SIZE + len(frames)
        frames += pack_frame(offset, fid, seq, META, payload, unsynced=offset, boot=boot)
    return frames
