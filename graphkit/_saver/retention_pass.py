"""One application of a retention policy to a store.

The policy chooses threads, and `prune` of the contract removes what its rules do not keep. What must
never be lost is therefore guarded in one place, `Retention`, and each saver prunes a history as it
does for every other caller: all of it or nothing. A pass that is cut short has done some histories
and not the others, so the next one does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from logging import getLogger
from typing import TYPE_CHECKING, Final, final

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.failed_threads import is_out_of_resources
from graphkit._saver.reports import OverLimit, RetentionReport
from graphkit._saver.retention import Retention, RetentionOptions, is_of_early_writes, list_removable
from graphkit._saver.submissions import is_schedule
from graphkit._wording import describe_error
from graphkit.errors import (
    CheckpointErasedError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointKeyError,
    ThreadBusyError,
)

if TYPE_CHECKING:
    from graphkit._saver.retention_policy import RetentionPolicy

_LOG: Final = getLogger("graphkit.retention")


def apply_policy(
    policy: RetentionPolicy,
    saver: BaseCheckpointSaver,
    *,
    now: datetime,
    dry_run: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
) -> RetentionReport:
    """Apply a policy to a store.

    Args:
        policy: the policy.
        saver: as for `RetentionPolicy.apply`.
        now: the time from which ages count.
        dry_run: only return what would be done.
        is_stopped: called after each thread; True ends the pass, without an alert.

    Raises:
        CheckpointerConfigurationError: as `RetentionPolicy.apply`; and so the others.
    """
    store = find_store(policy, saver)
    current = _Pass(policy, store, now=now, dry_run=dry_run)
    for thread_id in store.threads():
        if fnmatchcase(thread_id, policy.threads) and not is_schedule(thread_id):
            current.prune(thread_id)
            if is_stopped():
                return current.report()
    if policy.max_bytes_per_thread is not None:
        for thread_id in current.chosen:
            current.measure(thread_id, policy.max_bytes_per_thread)
            if is_stopped():
                return current.report()
    if policy.max_bytes is not None:
        current.compare(None, policy.max_bytes)
    if not dry_run:
        current.alert()
    return current.report()


def find_store(policy: RetentionPolicy, saver: object) -> BaseCheckpointSaver:
    """Return the saver to which a policy applies: the given one, or that below a saver of LangGraph.

    Raises:
        CheckpointerConfigurationError: it is neither; or it cannot do what the policy needs.
    """
    for store in (saver, getattr(saver, "store", None)):
        if isinstance(store, BaseCheckpointSaver):
            break
    else:
        raise CheckpointerConfigurationError(f"a retention policy needs a saver, not {saver!r}")
    name = type(store).__name__
    if not store.lists_threads:
        raise CheckpointerConfigurationError(f"{name} cannot list its threads, so no retention policy applies to it")
    has_limits = policy.max_bytes_per_thread is not None or policy.max_bytes is not None
    if has_limits and not store.measures_size:
        raise CheckpointerConfigurationError(f"{name} cannot measure sizes: omit max_bytes and max_bytes_per_thread")
    return store


@final
class LimitAlerts:
    """What was over its limit when a policy was applied last, so that each crossing alerts once."""

    def __init__(self) -> None:
        self._known: dict[object, set[str | None]] = {}
        """By the key of the store: the threads, and None for the store itself."""

    def find_new(
        self, store: BaseCheckpointSaver, over_limit: Sequence[OverLimit], unmeasured: set[str]
    ) -> list[OverLimit]:
        """Note what is over its limit now; return what was not before."""
        key = store.run_lock_key()
        known = self._known.get(key, set())
        # A thread that was not measured this time, because of an error or its status, has not been below its limit.
        self._known[key] = known.intersection(unmeasured).union(found.thread_id for found in over_limit)
        return [found for found in over_limit if found.thread_id not in known]


@final
class _Pass:
    """What a policy has done so far."""

    def __init__(self, policy: RetentionPolicy, store: BaseCheckpointSaver, *, now: datetime, dry_run: bool) -> None:
        self._policy = policy
        self._store = store
        self._dry_run = dry_run
        self._options = _make_options(policy, now)
        self.chosen: list[str] = []
        self._unmeasured: set[str] = set()
        self._removed = 0
        self._pruned: list[str] = []
        self._busy: list[str] = []
        self._failed: dict[str, str] = {}
        self._over_limit: list[OverLimit] = []

    def report(self) -> RetentionReport:
        return RetentionReport(
            threads=len(self.chosen),
            removed=self._removed,
            pruned=tuple(self._pruned),
            busy=tuple(self._busy),
            failed=self._failed,
            over_limit=tuple(self._over_limit),
            dry_run=self._dry_run,
        )

    def prune(self, thread_id: str) -> None:
        """Prune a thread, if it has one of the statuses of the policy."""
        self._unmeasured.add(thread_id)
        with self._noting_errors(thread_id):
            if not self._has_status(thread_id):
                return
            self.chosen.append(thread_id)
            removed = self._remove(thread_id)
            if removed:
                self._removed += removed
                self._pruned.append(thread_id)

    def _has_status(self, thread_id: str) -> bool:
        if not self._policy.statuses:
            return True
        latest = self._store.recent(RunnableConfig(thread_id), limit=1)
        return bool(latest) and latest[0].status in self._policy.statuses

    def _remove(self, thread_id: str) -> int:
        """Prune a thread, or only count what `prune` would remove; return how many checkpoints."""
        if self._options is None:
            return 0
        # Most threads lose nothing, and a listing takes no lock and rewrites nothing. `prune` decides again under
        # its lock, because a run may have put checkpoints since then.
        removable = list_removable(self._store, thread_id, Retention(**self._options))
        if removable and not self._dry_run:
            return self._store.prune(thread_id, **self._options)
        return sum(not is_of_early_writes(info.checkpoint_ns) for info in removable)

    def measure(self, thread_id: str, limit: int) -> None:
        """Compare the size of a thread with its limit, unless it has an error."""
        with self._noting_errors(thread_id):
            self.compare(thread_id, limit)
            self._unmeasured.discard(thread_id)

    def compare(self, thread_id: str | None, limit: int) -> None:
        """Compare the size of a thread, or of the store (None), with its limit."""
        size = self._store.size(thread_id)
        if size > limit:
            self._over_limit.append(OverLimit(thread_id, size, limit))

    def alert(self) -> None:
        """Call `on_limit` for what has grown beyond its limit since the policy was applied last."""
        alerts = self._policy._alerts  # noqa: SLF001 - a part of the policy
        for found in alerts.find_new(self._store, self._over_limit, self._unmeasured):
            _alert(self._policy, found)

    @contextmanager
    def _noting_errors(self, thread_id: str) -> Iterator[None]:
        """Note an error that concerns one thread instead of raising it."""
        try:
            yield
        except ThreadBusyError:
            self._busy.append(thread_id)
        except CheckpointErasedError:
            # Its key was destroyed, and with it all that could be removed.
            pass
        except (CheckpointerError, OSError) as error:
            if is_out_of_resources(error) or isinstance(error, CheckpointKeyError):
                raise
            # Not the error itself: the frames of its traceback hold the states of the thread.
            self._failed[thread_id] = describe_error(error)


def _make_options(policy: RetentionPolicy, now: datetime) -> RetentionOptions | None:
    """Return the keywords of `prune`; None if the policy only has byte limits."""
    options: RetentionOptions = {"keep_last": policy.keep_last, "keep_tags": policy.keep_tags}
    if isinstance(policy.max_age, timedelta):
        options["older_than"] = now - policy.max_age
    elif policy.keep_last is None:
        return None
    return options


def _alert(policy: RetentionPolicy, found: OverLimit) -> None:
    if policy.on_limit is None:
        what = "the store" if found.thread_id is None else f"thread {found.thread_id!r}"
        _LOG.warning("%s takes %d bytes; its limit is %d", what, found.size, found.limit)
        return
    try:
        policy.on_limit(*found)
    except (Exception, SystemExit):  # noqa: BLE001 - an alert that fails ends no pass
        _LOG.exception("on_limit failed")
