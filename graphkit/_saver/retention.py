"""Retention: which checkpoints `prune` removes, and which it keeps.

`prune` applies it to each live history of a thread, nested ones included. The latest checkpoint
always stays. Released versions are not touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import final

from graphkit._records.output import CheckpointInfo


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """The options of a `prune`, checked; decides which checkpoints of a history it removes.

    Raises:
        ValueError: neither `keep_last` nor `older_than` is given, or `keep_last` is below one.
    """

    keep_last: int | None = None
    """How many of the newest checkpoints stay, whatever their age; None is one."""
    older_than: datetime | None = None
    """Checkpoints made at this time or later stay; None leaves their age out of account."""
    keep_tags: Collection[str] = ()
    """Checkpoints with one of these tags stay."""
    keep_interrupted: bool = True
    """Whether checkpoints with pending interrupts stay."""

    def __post_init__(self) -> None:
        if self.keep_last is None and self.older_than is None:
            raise ValueError("say what to prune: keep_last=, older_than= or both")
        if self.keep_last is not None and self.keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, not {self.keep_last}: delete() removes a whole thread")

    def select_removable(self, history: Sequence[CheckpointInfo]) -> Sequence[CheckpointInfo]:
        """Return the checkpoints of a history that `prune` removes.

        Args:
            history: all checkpoints of one namespace, newest first.
        """
        return [info for info in history[self.keep_last or 1 :] if not self._keeps(info)]

    def _keeps(self, info: CheckpointInfo) -> bool:
        if self.older_than is not None and info.created_at >= self.older_than:
            return True
        if not set(info.tags).isdisjoint(self.keep_tags):
            return True
        return self.keep_interrupted and info.status == "interrupted"
