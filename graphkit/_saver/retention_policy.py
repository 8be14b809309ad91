"""RetentionPolicy: rules for a whole store, from code or a file; applied once, or by a worker in the background.

The policy chooses threads, and `prune` of the contract removes what its rules do not keep. What must
never be lost is therefore guarded in one place, `Retention`, and each saver prunes a history as it
does for every other caller: all of it or nothing. A pass that is cut short has done some histories
and not the others, so the next one does the rest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from logging import getLogger
from time import monotonic
from typing import Final, Self, final

from graphkit._options import check_age, check_choice, check_count, check_function, check_texts, read_options
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.failed_threads import concerns_all_threads, name_threads, without_option
from graphkit._saver.reports import OverLimit, RetentionReport
from graphkit._saver.retention import RetentionOptions, prune_thread
from graphkit._saver.status import STATUSES
from graphkit._saver.writes import is_schedule
from graphkit._waker import Waker
from graphkit._wording import describe_error
from graphkit.errors import (
    CheckpointErasedError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointKeyError,
    ThreadBusyError,
)

_LOG: Final = getLogger("graphkit.retention")
_WORKER_LOG: Final = getLogger("graphkit.worker")
_LOCK: Final = "graphkit:retention"
"""The thread whose run lock the worker holds that applies the policy. It has no checkpoints."""
_PAUSE: Final = 600.0
"""Seconds between two passes, and between two attempts."""
_BURST: Final = 1.0
"""Seconds of work after which a pass rests, so that runs in this process get the interpreter and the store.

Not shorter: on SQLite, a watch cannot tell which history was rewritten, and lists all of them at each look.
With a rest after every ten milliseconds, a worker on 10,000 threads did little else for as long as a pass took, and
three runs in ten began a second late."""
_REST_PER_WORK: Final = 9.0
"""How many times as long as the work a rest is: a pass takes at most a tenth of a core."""


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
    _over_limit: dict[object, set[str | None]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was over its limit when the policy was applied last, so that each crossing alerts once: by the key of the
    store, the threads, and None for the store itself."""

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
            texts = check_texts(name, getattr(self, name), CheckpointerConfigurationError)
            object.__setattr__(self, name, texts)
        for status in self.statuses:
            check_choice("statuses", status, *STATUSES, error=CheckpointerConfigurationError)
        pattern: object = self.threads
        if not isinstance(pattern, str) or not pattern:
            raise CheckpointerConfigurationError(f"threads must be a pattern such as 'chat-*', not {pattern!r}")
        if self.on_limit is not None:
            check_function("on_limit", self.on_limit, CheckpointerConfigurationError)

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


# One pass


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
        CheckpointerConfigurationError: it is neither; or it cannot do what the policy needs; or the policy is none.
    """
    if not isinstance(policy, RetentionPolicy):
        raise CheckpointerConfigurationError(f"policy must be a graphkit.retention.RetentionPolicy, not {policy!r}")
    store = saver if isinstance(saver, BaseCheckpointSaver) else getattr(saver, "store", None)
    if not isinstance(store, BaseCheckpointSaver):
        raise CheckpointerConfigurationError(f"a retention policy needs a saver, not {saver!r}")
    name = type(store).__name__
    if not store.lists_threads:
        raise CheckpointerConfigurationError(f"{name} cannot list its threads, so no retention policy applies to it")
    has_limits = policy.max_bytes_per_thread is not None or policy.max_bytes is not None
    if has_limits and not store.measures_size:
        raise CheckpointerConfigurationError(f"{name} cannot measure sizes: omit max_bytes and max_bytes_per_thread")
    return store


@final
class _Pass:
    """What a policy has done so far."""

    def __init__(self, policy: RetentionPolicy, store: BaseCheckpointSaver, *, now: datetime, dry_run: bool) -> None:
        self._policy = policy
        self._store = store
        self._dry_run = dry_run
        self._options: RetentionOptions | None = {"keep_last": policy.keep_last, "keep_tags": policy.keep_tags}
        """The keywords of `prune`; None if the policy only has byte limits."""
        if isinstance(policy.max_age, timedelta):
            self._options["older_than"] = now - policy.max_age
        elif policy.keep_last is None:
            self._options = None
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
            if self._policy.statuses:
                latest = self._store.recent(RunnableConfig(thread_id), limit=1)
                if not latest or latest[0].status not in self._policy.statuses:
                    return
            self.chosen.append(thread_id)
            if self._options is None:
                return
            removed = prune_thread(self._store, thread_id, self._options, dry_run=self._dry_run)
            if removed:
                self._removed += removed
                self._pruned.append(thread_id)

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
        policy = self._policy
        over_limit = policy._over_limit  # noqa: SLF001 - a part of the policy
        key = self._store.run_lock_key()
        known = over_limit.get(key, set())
        # A thread that was not measured this time, because of an error or its status, has not been below its limit.
        over_limit[key] = known.intersection(self._unmeasured).union(found.thread_id for found in self._over_limit)
        for found in self._over_limit:
            if found.thread_id in known:
                continue
            if policy.on_limit is None:
                what = "the store" if found.thread_id is None else f"thread {found.thread_id!r}"
                _LOG.warning("%s takes %d bytes; its limit is %d", what, found.size, found.limit)
                continue
            try:
                policy.on_limit(*found)
            except (Exception, SystemExit):  # noqa: BLE001 - an alert that fails ends no pass
                _LOG.exception("on_limit failed")

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
            if concerns_all_threads(error) or isinstance(error, CheckpointKeyError):
                raise
            # Not the error itself: the frames of its traceback hold the states of the thread.
            self._failed[thread_id] = describe_error(without_option(error))


# In the background


@final
class RetentionThread:
    """Applies a policy to a store again and again, in a daemon thread.

    Of the workers of a store, one does: that which holds the run lock of a thread without checkpoints,
    for as long as it lives. When it ends or dies, another one takes over at its next attempt.
    """

    def __init__(self, policy: RetentionPolicy, saver: BaseCheckpointSaver, now: Callable[[], datetime]) -> None:
        """Prepare; `start` starts the thread.

        Args:
            policy: the policy.
            saver: the store, which can do what the policy needs: `find_store` has checked that.
            now: the clock from which ages count.
        """
        self._policy = policy
        self._store = saver
        self._now = now
        self._is_stopping = False
        self._waker = Waker()
        """Ends the pauses of the thread."""
        self._rested_at = 0.0
        # A daemon: a second Ctrl-C ends the process, which a history survives unchanged or pruned.
        self._thread = threading.Thread(
            target=copy_context().run,  # as the principal that runs the worker
            args=(self._run,),
            name="graphkit-retention",
            daemon=True,
        )

    def start(self) -> None:
        """Start the thread unless it runs; the first pass begins at once."""
        if self._thread.ident is None:
            self._thread.start()

    def apply_now(self) -> None:
        """Apply the policy once, in place of the thread, unless another worker applies it. Log errors."""
        self._attempt(lambda: self._apply(is_stopped=lambda: self._is_stopping))

    def request_stop(self) -> None:
        """End a pass after the history that it prunes now, and then the thread. May be called from a signal handler."""
        self._is_stopping = True
        self._waker.wake()

    def stop(self) -> None:
        """End the thread if it runs, and wait until it has ended."""
        self.request_stop()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        """Apply the policy as long as no other worker does. After an error, the next attempt is a while later."""
        while not self._is_stopping:
            self._attempt(self._apply_repeatedly, f"; the next attempt is in {_PAUSE:.3g} s")
            self._pause(_PAUSE)

    def _attempt(self, apply: Callable[[], None], outlook: str = "") -> None:
        """Apply the policy under the lock of the worker that does. A logged error ends with the outlook."""
        try:
            with self._store.run_lock(_LOCK, 0.0):
                apply()
        except ThreadBusyError:
            _WORKER_LOG.debug("another worker applies the retention policy")
        except Exception as error:  # noqa: BLE001 - a policy ends no worker
            _WORKER_LOG.warning("the retention policy failed here%s: %s", outlook, describe_error(error))

    def _apply_repeatedly(self) -> None:
        while not self._is_stopping:
            self._rested_at = monotonic()
            self._apply(is_stopped=self._rest)
            self._pause(_PAUSE)

    def _apply(self, is_stopped: Callable[[], bool]) -> None:
        report = apply_policy(self._policy, self._store, now=self._now(), is_stopped=is_stopped)
        if report.removed:
            _WORKER_LOG.info("retention: removed %d checkpoints of %d threads", report.removed, len(report.pruned))
        if report.failed:
            reason = next(iter(report.failed.values()))
            _WORKER_LOG.warning("retention: cannot prune %s: %s", name_threads([*report.failed]), reason)

    def _rest(self) -> bool:
        """Rest if the pass has worked for a while; return whether the worker stops."""
        worked = monotonic() - self._rested_at
        if worked >= _BURST:
            self._pause(worked * _REST_PER_WORK)
            self._rested_at = monotonic()
        return self._is_stopping

    def _pause(self, seconds: float) -> None:
        """Pause, unless the worker stops."""
        end = monotonic() + seconds
        while not self._is_stopping and monotonic() < end:
            self._waker.sleep(end - monotonic())
