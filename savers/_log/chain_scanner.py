"""Scans the chains of an open log: the records from a keyframe on, with what belongs to their checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from savers._log import log, payloads
from savers._log.decoded_chain import MAX_LENGTH
from savers._log.early_writes import EarlyWrites
from savers._log.index import Index
from savers._log.kept_records import KeptRecords
from savers._log.open_log import OpenLog
from savers._log.plain_records import PlainRun, read_plain_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from savers._log.payloads import DecodedRecord
    from savers._log.stored_checkpoint import StoredCheckpoint


class ScannedChain(NamedTuple):
    """The checkpoints from a keyframe on."""

    checkpoints: list[StoredCheckpoint]
    end: int
    """Where the record behind them begins."""


class ChainScanner(OpenLog):
    """An open log whose chains can be scanned; the caller holds `mutex`."""

    def scan_chain(self, start: int, end: int, kept: KeptRecords) -> ScannedChain | None:
        """Read the records from a keyframe on, with what belongs to their checkpoints.

        The log must be neither sealed nor SCATTERED. Stops before a second keyframe, and before a
        record that is not good or does not end before `end`.

        Args:
            start: the offset of the keyframe.
            end: where to stop.
            kept: what is decoded besides checkpoints is added to it.

        Returns:
            None if there is no keyframe.

        Raises:
            CheckpointCorruptionError: a record is malformed.
        """
        if not log.HEADER_SIZE <= start < end:
            return None
        data = self.io.read_at(self.fd, start, end - start)
        checkpoints: list[StoredCheckpoint] = []
        early = EarlyWrites()
        offset = start
        seq = 0
        while offset < end:
            if checkpoints:
                run = self._read_run(data, start, offset, end, seq, checkpoints[-1], kept)
                if run.end > offset:
                    checkpoints += run.checkpoints
                    offset = run.end
                    seq = run.seq
                    continue
            frame = log.parse_frame(data, offset - start, offset, self.fid)
            if isinstance(frame, str) or (checkpoints and frame.seq != seq):
                break
            log.check_known(self.path, frame)
            if not self._take_into_chain(frame, start, checkpoints, early, kept):
                break
            offset = frame.end
            seq = frame.seq + 1
        return ScannedChain(checkpoints, offset) if checkpoints else None

    def scan_to(
        self, start: int, target: int, data: bytes, kept: KeptRecords, is_wanted: Callable[[DecodedRecord], bool]
    ) -> StoredCheckpoint | None:
        """Read the records from a keyframe to a checkpoint, with what belongs to it.

        The log must be neither sealed nor SCATTERED: the next CHECKPOINT record, or the end of the
        log, then ends what belongs to it.

        Args:
            start: the offset of the keyframe.
            target: the offset of the checkpoint.
            data: the bytes of the log from `start` on.
            kept: what is decoded besides checkpoints is added to it.
            is_wanted: returns whether to go on behind a keyframe.

        Returns:
            None if there is no such chain, a record is not good, or the data end too early.

        Raises:
            CheckpointCorruptionError: a record is malformed.
        """
        checkpoints: list[StoredCheckpoint] = []
        early = EarlyWrites()
        offset = start
        seq = 0
        while offset < self.end:
            is_behind = offset > target
            if checkpoints and not (is_behind and log.begins_checkpoint(data, offset - start)):
                # Behind the checkpoint, one record at a time: the next one is not wanted any more.
                stop = offset + 1 if is_behind else target + 1
                run = self._read_run(data, start, offset, stop, seq, checkpoints[-1], kept)
                if run.end > offset:
                    checkpoints += run.checkpoints
                    offset = run.end
                    seq = run.seq
                    continue
            frame = log.parse_frame(data, offset - start, offset, self.fid)
            if isinstance(frame, str) or (checkpoints and frame.seq != seq):
                return None
            if is_behind and frame.type == log.CHECKPOINT:
                break
            log.check_known(self.path, frame)
            is_keyframe = not checkpoints
            if not self._take_into_chain(frame, start, checkpoints, early, kept):
                return None
            if is_keyframe and not is_wanted(kept.last[0]):
                return None
            offset = frame.end
            seq = frame.seq + 1
        is_found = bool(checkpoints) and checkpoints[-1].offset == target
        return checkpoints[-1] if is_found else None

    def _read_run(
        self, data: bytes, start: int, offset: int, stop: int, seq: int, last: StoredCheckpoint, kept: KeptRecords
    ) -> PlainRun:
        """Read the plain records from an offset on; see `read_plain_run`."""
        return read_plain_run(
            data, start, offset, stop, self.fid, seq, last, self.codec.unpack, kept.last, kept.written
        )

    def _take_into_chain(
        self, frame: log.Frame, start: int, checkpoints: list[StoredCheckpoint], early: EarlyWrites, kept: KeptRecords
    ) -> bool:
        """Take in the next record of a chain; return False if it does not belong to the chain."""
        last = checkpoints[-1] if checkpoints else None
        if frame.type != log.CHECKPOINT:
            if last is None:
                return False
            self._apply_writes_and_tags(frame, lambda wanted: last if last.id == wanted else None, early)
            return True
        is_keyframe = bool(frame.flags & log.KEY)
        if is_keyframe is not (last is None):
            return False
        decoded = payloads.decode_checkpoint(self.path, frame, last, self.codec.unpack)
        checkpoint = decoded.checkpoint
        if checkpoint.keyframe_offset != start or checkpoint.is_replacement:
            return False
        kept.add(decoded)
        self.take_early(decoded, early, start)
        checkpoints.append(checkpoint)
        return True

    def index_last_chains(self, limit: int, kept: KeptRecords | None) -> Index | None:
        """Return an index of the last chains, with at least `limit` checkpoints.

        None if the log has fewer, is sealed or SCATTERED, or if something is wrong with its records.

        Args:
            limit: how many checkpoints.
            kept: what is decoded besides checkpoints is added to it.
        """
        if self.last_checkpoint is None or self.seal is not None or self.is_scattered:
            return None
        chains: list[list[StoredCheckpoint]] = []
        count = 0
        end = self.end
        start: int | None = self.last_checkpoint.keyframe_offset
        while count < limit:
            if start is None or end - start > MAX_LENGTH:
                return None
            scanned = self.scan_chain(start, end, kept or KeptRecords())
            if scanned is None or scanned.end != end:
                return None
            chains.append(scanned.checkpoints)
            count += len(scanned.checkpoints)
            end = start
            start = self._find_keyframe_before(end) if count < limit else None
        index = Index()
        for checkpoints in reversed(chains):
            index.extend(checkpoints)
        return index

    def _find_keyframe_before(self, offset: int) -> int | None:
        """Return where the chain begins that ends at an offset; None if there is none."""
        backward = log.BackwardReader(self.file, offset)
        while (frame := backward.step()) is not None:
            if frame.type == log.CHECKPOINT:
                return frame.offset - frame.key
        return None
