"""RetentionPolicy: rules for a whole store, from code or a file; see `graphkit.retention`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Self, final

from graphkit._options import check_age, check_count, read_options
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.reports import RetentionReport
from graphkit._saver.retention_pass import LimitAlerts, apply_policy
from graphkit._saver.status import STATUSES
from graphkit._wording import suggest
from graphkit.errors import CheckpointerConfigurationError


@final
@dataclass(frozen=True, kw_only=True)
class RetentionPolicy:
    """Which checkpoints of a store stay, and how large it may grow before an alert.

    A checkpoint stays if any rule keeps it. Whatever the rules say, the latest checkpoint of each
    history stays, and so do a checkpoint that a kept one needs and one with a pending interrupt.
    Schedules are left alone. Byte limits remove nothing.

    Raises:
        CheckpointerConfigurationError: an option has a value that it cannot have; or none of
            `keep_last`, `max_age` and the byte limits is given, so that the policy would do nothing
            or remove nearly everything.
    """

    keep_last: int | None = None
    """How many of the newest checkpoints of each history stay, whatever their age; None is one."""
    max_age: timedelta | str | None = None
    """Younger checkpoints stay: a timedelta, or text such as "30d" or "12h". None ignores the age."""
    keep_tags: Collection[str] = ()
    """Checkpoints with one of these tags stay."""
    statuses: Collection[str] = ()
    """The policy is for threads with one of these statuses; for all if empty."""
    threads: str = "*"
    """The policy is for threads whose id matches this pattern, with `*`, `?` and `[abc]` as in names of files."""
    max_bytes_per_thread: int | None = None
    """Alert when a thread of the policy takes more bytes."""
    max_bytes: int | None = None
    """Alert when the whole store takes more bytes."""
    on_limit: Callable[[str | None, int, int], object] | None = None
    """Called as `on_limit(thread_id | None, size, limit)` when a size has grown beyond its limit; again only after it
    has been below. None logs a warning. What it raises is logged."""
    _alerts: LimitAlerts = field(default_factory=LimitAlerts, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("keep_last", "max_bytes_per_thread", "max_bytes"):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value, CheckpointerConfigurationError)
        if all(each is None for each in (self.keep_last, self.max_age, self.max_bytes_per_thread, self.max_bytes)):
            raise CheckpointerConfigurationError(
                "a retention policy needs keep_last, max_age, max_bytes_per_thread or max_bytes"
            )
        if self.max_age is not None:
            object.__setattr__(self, "max_age", check_age("max_age", self.max_age, CheckpointerConfigurationError))
        for name in ("keep_tags", "statuses"):
            object.__setattr__(self, name, _check_texts(name, getattr(self, name)))
        for status in self.statuses:
            if status not in STATUSES:
                hint = suggest(status, STATUSES) or f"; they are {', '.join(STATUSES)}"
                raise CheckpointerConfigurationError(f"there is no status {status!r}{hint}")
        pattern: object = self.threads
        if not isinstance(pattern, str) or not pattern:
            raise CheckpointerConfigurationError(f"threads must be a pattern such as 'chat-*', not {pattern!r}")
        if self.on_limit is not None and not callable(self.on_limit):
            raise CheckpointerConfigurationError(f"on_limit must be callable, not {self.on_limit!r}")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Return the policy that a file in YAML or JSON describes: a mapping with the options as keys.

        Args:
            path: the file. One that ends in `.json` is JSON; others are YAML, for which PyYAML must be installed.

        Raises:
            CheckpointerConfigurationError: the file cannot be read or parsed; a key is unknown or
                occurs twice; or the policy is not valid. The message names the file.
            MissingDependencyError: the file is YAML, and PyYAML is not installed.
        """
        known = [each.name for each in fields(cls) if each.init and each.name != "on_limit"]
        options = read_options(path, known)
        try:
            return cls(**options)
        except CheckpointerConfigurationError as error:
            raise CheckpointerConfigurationError(f"{os.fsdecode(path)}: {error}") from error

    def apply(self, saver: BaseCheckpointSaver, *, dry_run: bool = False) -> RetentionReport:
        """Remove what the rules do not keep, and alert if a size has outgrown its limit.

        It goes on after a thread that cannot be read or pruned. If the process dies, the histories
        that were pruned are pruned, and the others are as they were; apply the policy again.

        Args:
            saver: the store. One of LangGraph's savers stands for its `store`.
            dry_run: change nothing and alert nobody; only return what would be done.

        Raises:
            CheckpointerConfigurationError: the saver cannot list its threads; or there is a byte limit,
                and it cannot measure sizes. Nothing was changed.
            CheckpointStorageError: the threads cannot be listed, or the process has no memory or no
                descriptors left.
            CheckpointKeyError: a key is missing. The threads before the sealed one are done.
        """
        return apply_policy(self, saver, now=datetime.now(UTC), dry_run=dry_run)


def _check_texts(name: str, value: Any) -> frozenset[str]:
    is_collection = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    if not is_collection or not all(isinstance(item, str) for item in value):
        raise CheckpointerConfigurationError(f"{name} must be a list of texts, not {value!r}")
    return frozenset(value)
