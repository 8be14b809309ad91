"""Retention: which checkpoints `prune` keeps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from graphkit._records.output import CheckpointInfo


class Retention:
    """Which checkpoints of a history may go; see `BaseCheckpointSaver.prune`."""

    def __init__(
        self, keep_last: int | None, older_than: datetime | None, keep_tags: Sequence[str], keep_interrupted: bool
    ) -> None:
        if keep_last is None and older_than is None:
            raise ValueError("say what to prune: keep_last=, older_than= or both")
        if keep_last is not None and keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, not {keep_last}: delete() removes a whole thread")
        self.keep_last = keep_last or 1
        self.older_than = older_than
        self.keep_tags = frozenset(keep_tags)
        self.keep_interrupted = keep_interrupted

    def going(self, history: Sequence[CheckpointInfo]) -> Sequence[CheckpointInfo]:
        """Those of a history, newest first, that go."""
        return [info for info in history[self.keep_last :] if self._goes(info)]

    def _goes(self, info: CheckpointInfo) -> bool:
        if self.older_than is not None and info.created_at >= self.older_than:
            return False
        if self.keep_tags.intersection(info.tags):
            return False
        return not (self.keep_interrupted and info.status == "interrupted")
