"""Mixins of wrappers: each forwards the method of one optional capability to the delegate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from graphkit import Checkpoint
from graphkit.abc import ConfigLike, Progress, RepairReport, RotationReport, ThreadLike, VerifyReport


class VerifyMixin:
    """Forwards `verify`; see `graphkit.abc.SupportsVerify`."""

    delegate: Any

    def verify(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> VerifyReport:
        return self.delegate.verify(thread, progress=progress)  # type: ignore[no-any-return]


class RepairMixin:
    """Forwards `repair`; see `graphkit.abc.SupportsRepair`."""

    delegate: Any

    def repair(
        self, thread: ThreadLike = None, *, dry_run: bool = False, progress: Progress | None = None
    ) -> RepairReport:
        return self.delegate.repair(thread, dry_run=dry_run, progress=progress)  # type: ignore[no-any-return]


class CompactMixin:
    """Forwards `compact`; see `graphkit.abc.SupportsCompact`."""

    delegate: Any

    def compact(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> int:
        return self.delegate.compact(thread, progress=progress)  # type: ignore[no-any-return]


class FlushMixin:
    """Forwards `flush`; see `graphkit.abc.SupportsFlush`."""

    delegate: Any

    def flush(self) -> None:
        self.delegate.flush()


class DeleteIdleMixin:
    """Forwards `delete_idle`; see `graphkit.abc.SupportsDeleteIdle`."""

    delegate: Any

    def delete_idle(
        self,
        thread: ThreadLike = None,
        *,
        idle_since: datetime,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Sequence[str]:
        return self.delegate.delete_idle(  # type: ignore[no-any-return]
            thread, idle_since=idle_since, dry_run=dry_run, progress=progress
        )


class RotateMixin:
    """Forwards `rotate`; see `graphkit.abc.SupportsRotate`."""

    delegate: Any

    def rotate(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> RotationReport:
        return self.delegate.rotate(thread, progress=progress)  # type: ignore[no-any-return]


class ReplayMixin:
    """Forwards `replay`; see `graphkit.abc.SupportsReplay`."""

    delegate: Any

    def replay(self, config: ConfigLike = None, *, version: int | None = None) -> Iterator[Checkpoint]:
        return self.delegate.replay(config, version=version)  # type: ignore[no-any-return]


class ExistsMixin:
    """Forwards `exists`; see `graphkit.abc.SupportsExists`."""

    delegate: Any

    def exists(self) -> bool:
        return self.delegate.exists()  # type: ignore[no-any-return]
