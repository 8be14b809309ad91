"""What a scan of a log decodes besides checkpoints, for a caller that reads their states next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from savers._log.payloads import DecodedRecord


class KeptRecords:
    """The records of some chains. A chain is the CHECKPOINT records from a keyframe to the next one."""

    def __init__(self) -> None:
        self.chains: dict[int, list[DecodedRecord]] = {}
        """By the offset of the keyframe: the CHECKPOINT records of a chain, or the first of them."""
        self.written: dict[int, Mapping[str, bytes]] = {}
        """The packed values of WRITE records, by their offsets; not those of all of them."""
        self.last: list[DecodedRecord] = []
        """The chain of the last record."""

    def add(self, decoded: DecodedRecord) -> None:
        """Add the CHECKPOINT record that follows the last one."""
        if decoded.table is None:
            self.last.append(decoded)
        else:
            self.last = [decoded]
            self.chains[decoded.checkpoint.offset] = self.last
