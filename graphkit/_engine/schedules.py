"""Schedules: runs that are submitted at the times of a cron expression; see `graphkit.schedules`.

A schedule is a thread of its own, whose id begins with `graphkit:schedule:`. Each of its checkpoints
has the definition and the last time for which a run was submitted, in its state; the latest counts.
Every saver stores that, and every worker sees it among the changes that it watches anyway.
docs/adr/0058-schedules-in-the-store.md has the reasons.

Submitting is two steps under the run lock of the schedule: the run is submitted to a thread whose id
follows from the name and the time, then the time is recorded. The lock lets one worker at a time do
both. If it dies in between, the next one finds the thread, and submits nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta, tzinfo
from time import monotonic
from typing import Any, Final, final

from graphkit._engine.submit import freeze_update, submit_once
from graphkit._options import check_text
from graphkit._plan.retry import RetryPolicy
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import END, RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.watch import Change
from graphkit._saver.writes import SCHEDULE_THREADS, Submission, is_schedule
from graphkit._wording import suggest
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    MissingDependencyError,
    ThreadBusyError,
)

_LOG: Final = logging.getLogger("graphkit.worker")
_LONGEST_NAME: Final = 200
_NODE: Final = "schedule"
"""The node id of the checkpoints of a schedule."""
_KEPT: Final = 10
_PRUNE_EVERY: Final = 100
"""A schedule stores a checkpoint for each due time. After this many, all but the newest `_KEPT` are pruned."""
_LOOK_BACK: Final = (timedelta(days=1), timedelta(days=40), timedelta(days=1500))
"""How far before now the latest due time is searched, step by step. A schedule of every minute may have
missed a million of them."""
_BUSY_PAUSE: Final = 0.05
"""Seconds until a schedule is looked at again that another worker holds."""
_FAILURES: Final = RetryPolicy(initial_delay=1.0, backoff=2.0, max_delay=300.0)
"""The same after errors: a store may be gone for a moment, but a schedule of an unknown type stays unreadable."""
_NEVER: Final = float("inf")
_AT_ONCE: Final = datetime.min.replace(tzinfo=UTC)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule: when runs are submitted, and with which input."""

    name: str
    cron: str
    """Five fields: minute, hour, day of the month, month, day of the week."""
    input: Mapping[str, Any]
    """The input of each run."""
    graph_id: str | None = None
    """The graph, for workers that serve several."""
    timezone: str | None = None
    """The zone of the cron expression, such as "Europe/Zurich"; None: UTC."""
    created_at: datetime
    """When it was defined. Earlier times are not due."""
    last_due: datetime | None = None
    """The last time for which a run was submitted; None if there was none."""

    def next_due(self, after: datetime) -> datetime | None:
        """Return the next due time after a moment, in UTC; None if there is none within 50 years.

        Raises:
            MissingDependencyError: the package of the extra `schedules` is not installed.
        """
        return next(iter_due_times(self, after), None)

    def find_unsubmitted(self, now: datetime, watched_since: datetime) -> list[datetime]:
        """Return the due times until now for which a run is to be submitted.

        Those since a worker has watched the clock, and before that the latest only.

        Args:
            now: the present.
            watched_since: since when.
        """
        start = self.created_at if self.last_due is None else self.last_due
        watched_since = min(now, max(start, watched_since))
        # The latest due time that was missed: looked for in the last day, then further back, because the due
        # times can only be listed forward.
        missed: list[datetime] = []
        for step in (*_LOOK_BACK, watched_since - start):
            begin = max(start, watched_since - step)
            missed = [*iter_due_times(self, begin, watched_since)]
            if missed or begin == start:
                break
        return [*missed[-1:], *iter_due_times(self, watched_since, now)]


_STORED: Final = tuple(each.name for each in fields(Schedule) if each.name != "name")
"""The fields in the state of a schedule's checkpoints; its name is in the thread id."""


def iter_due_times(schedule: Schedule, after: datetime, until: datetime | None = None) -> Iterator[datetime]:
    """Yield the due times after a moment, ascending, in UTC, until another one (included).

    At a change of daylight saving time, an expression with fixed hours and minutes is due once a day, as
    in Debian's cron: a time that the clock skips is due when it has skipped, and one that it repeats is
    due the first time. With `*` as the minute or hour, the clock decides.
    """
    zone: tzinfo = UTC
    if schedule.timezone is not None:
        from zoneinfo import ZoneInfo, available_timezones

        try:
            zone = ZoneInfo(schedule.timezone)
        except (LookupError, ValueError, OSError, TypeError) as error:
            hint = suggest(str(schedule.timezone), sorted(available_timezones()), most=1)
            raise CheckpointerConfigurationError(f"there is no time zone {schedule.timezone!r}{hint}") from error
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise MissingDependencyError("cronsim", "schedules") from error
    cron: Any = schedule.cron
    parts = cron.split() if isinstance(cron, str) else []
    if len(parts) != 5:  # noqa: PLR2004 - a cron expression has five
        raise CheckpointerConfigurationError(
            f'cron must be five fields (minute, hour, day, month, weekday), such as "0 9 * * 1-5", not {cron!r}'
        )
    try:
        local_times = CronSim(cron, after.astimezone(zone))
    except (CronSimError, AssertionError, ValueError, TypeError) as error:
        reason = str(error) or "it is malformed"
        raise CheckpointerConfigurationError(f"the cron expression {cron!r} is wrong: {reason}") from error
    previous = after.astimezone(UTC)
    for local in local_times:
        due = local.astimezone(UTC)
        if until is not None and due > until:
            return
        # Two skipped times may be due at one moment; and within an hour that is repeated, the library
        # begins with the first one.
        if due > previous:
            previous = due
            yield due


# The schedules of a store


def add(
    saver: BaseCheckpointSaver,
    name: str,
    cron: str,
    input: Mapping[str, Any],
    *,
    graph_id: str | None = None,
    timezone: str | None = None,
    created_at: datetime | None = None,
) -> Schedule:
    """Store a schedule; the workers of the store submit a run at each of its times.

    The same definition again changes nothing. Another one replaces it; its times count from now on.

    Args:
        saver: the store.
        name: names the schedule in the store.
        cron: five fields: minute, hour, day of the month, month, day of the week.
        input: the input of each run, as for `graphkit.operations.submit`.
        graph_id: the graph, for workers that serve several.
        timezone: the zone of the cron expression, by its name; None: UTC.
        created_at: since when its times are due; now by default.

    Raises:
        CheckpointerConfigurationError: the name, the cron expression, the zone or the id of the graph is none.
        CheckpointSerializationError: the input is not a mapping, or cannot be stored.
        MissingDependencyError: the package of the extra `schedules` is not installed.
        ThreadBusyError: another process holds the schedule.

        None of them changes the store.
    """
    since = created_at or datetime.now(UTC)
    new = Schedule(name=name, cron=cron, input=input, graph_id=graph_id, timezone=timezone, created_at=since)
    return store_schedule(saver, check_schedule(new))


def check_schedule(new: Schedule) -> Schedule:
    """Return a new schedule as it is stored; see `add`."""
    _check_name(new.name)
    if new.graph_id is not None:
        check_text("graph_id", new.graph_id, CheckpointerConfigurationError)
    recorded = freeze_update("input", new.input)
    if new.next_due(new.created_at) is None:
        raise CheckpointerConfigurationError(f"the cron expression {new.cron!r} is never due")
    return replace(new, input=recorded, created_at=new.created_at.astimezone(UTC))


def store_schedule(saver: BaseCheckpointSaver, new: Schedule) -> Schedule:
    """Store a schedule; return the stored one if it has the same definition."""
    config = _config_of(new.name)
    with saver.run_lock(config):
        latest = saver.get(config)
        if latest is not None:
            old = _read(latest, new.name)
            if replace(old, created_at=new.created_at, last_due=None) == new:
                return old
        _put(saver, new, latest)
    return new


def remove(saver: BaseCheckpointSaver, name: str) -> bool:
    """Remove a schedule; return whether there was one. Runs that it submitted stay.

    Raises:
        ThreadBusyError: another process holds the schedule. It stays.
    """
    config = _config_of(_check_name(name))
    if saver.get(config) is None:  # the lock would create its thread
        return False
    with saver.run_lock(config):
        return saver.delete(config.thread)


def find_all(saver: BaseCheckpointSaver) -> list[Schedule]:
    """Return the schedules of a store, by name.

    Raises:
        CheckpointerConfigurationError: the saver cannot list its threads.
        CheckpointSerializationError: an input has a type that is not registered.
    """
    found = []
    for thread in sorted(saver.threads()):
        name = find_name(thread)
        latest = None if name is None else saver.get(RunnableConfig(thread))
        if name is not None and latest is not None:
            found.append(_read(latest, name))
    return found


def find_name(thread_id: str) -> str | None:
    """Return the name of the schedule that a thread is; None if it is another thread."""
    if not thread_id.startswith(SCHEDULE_THREADS):
        return None
    return thread_id.removeprefix(SCHEDULE_THREADS)


def _check_name(name: object) -> str:
    is_name = isinstance(name, str) and bool(name) and name.isprintable() and name == name.strip()
    if not isinstance(name, str) or not is_name or len(name) > _LONGEST_NAME:
        raise CheckpointerConfigurationError(
            f"the name of a schedule is printable text of at most {_LONGEST_NAME} characters, not {name!r}"
        )
    if is_schedule(name):  # the threads of its runs would be taken for schedules
        raise CheckpointerConfigurationError(f"the name of a schedule must not begin with {SCHEDULE_THREADS}: {name!r}")
    return name


def _config_of(name: str) -> RunnableConfig:
    return RunnableConfig(SCHEDULE_THREADS + name)


def _read(latest: Checkpoint, name: str) -> Schedule:
    """Return the schedule that a checkpoint holds.

    Raises:
        CheckpointCorruptionError: it was written by hand, and is none.
    """
    try:
        return Schedule(name=name, **{key: latest.state[key] for key in _STORED})
    except KeyError as error:
        raise CheckpointCorruptionError(SCHEDULE_THREADS + name, 0, f"the schedule has no {error}") from error


def _put(saver: BaseCheckpointSaver, schedule: Schedule, latest: Checkpoint | None) -> Checkpoint:
    """Store a schedule as the latest checkpoint of its thread; its run lock is held."""
    step = 0 if latest is None else latest.metadata.get("step", 0) + 1
    checkpoint = Checkpoint(
        node_id=_NODE,
        # Finished: no run and no worker takes the thread.
        next_node_id=END,
        state={key: getattr(schedule, key) for key in _STORED},
        parent_id=None if latest is None else latest.id,
        metadata={"source": "schedule", "step": step},
    )
    config = _config_of(schedule.name)
    saver.put(config, checkpoint)
    if step and step % _PRUNE_EVERY == 0:
        saver.prune(config.thread, keep_last=_KEPT)
    return checkpoint


# What a worker does


@final
@dataclass(slots=True)
class _Entry:
    """When to look at a schedule."""

    due: datetime = _AT_ONCE
    """Its next due time; `_AT_ONCE` if the schedule has changed since it was read."""
    retry_at: float = 0.0
    """Not before this time of `monotonic`."""
    failures: int = 0
    """How many times in a row it failed."""
    watched_since: float = _NEVER
    """The time of `monotonic` of the last look before the one that failed; `_NEVER` if that one did not fail."""


@final
class ScheduleAgenda:
    """The schedules of a store by their next due times, for one worker. Only its main thread uses it.

    It is a cache of what the store holds, kept up to date by the changes that the worker watches.
    What it says is checked under the run lock of the schedule before a run is submitted.
    """

    def __init__(self, saver: BaseCheckpointSaver, now: Callable[[], datetime], longest_wait: float) -> None:
        """Begin without schedules; the watch reports those that there are.

        Args:
            saver: the store.
            now: the clock.
            longest_wait: the number of seconds after which the clock is looked at again.
        """
        self._saver = saver
        self._now = now
        self._longest_wait = longest_wait
        self._entries: dict[str, _Entry] = {}
        self._looked_at = monotonic()
        """When the clock was looked at last."""

    def note_change(self, change: Change) -> bool:
        """Note a change of a schedule; return False for a change of another thread."""
        name = find_name(change.thread_id)
        if name is None:
            return False
        if change.kind in {"checkpoint", "release", "delete"}:
            entry = self._entries.setdefault(name, _Entry())
            entry.due = _AT_ONCE
            entry.retry_at = 0.0
        return True

    def seconds_until_due(self) -> float:
        """Return how many seconds remain until a schedule is due; infinity if there is none."""
        if not self._entries:
            return _NEVER
        now = self._now()
        waits = [
            max((entry.due - now).total_seconds(), entry.retry_at - monotonic()) for entry in self._entries.values()
        ]
        return max(0.0, min(self._longest_wait, *waits))

    def submit_due(self) -> list[str]:
        """Submit the runs that are due; return their threads. Errors are logged, and tried again."""
        now = self._now()
        # The worker may have been busy with a run in its main thread: it submits a run for each time that
        # passed meanwhile. `monotonic` does not go on while the machine sleeps, and a clock that is set
        # jumps: of such a gap only the latest time counts, as if no worker had run.
        last_look = self._looked_at
        self._looked_at = monotonic()
        due = {
            name: entry for name, entry in self._entries.items() if entry.due <= now and entry.retry_at <= monotonic()
        }
        submitted: list[str] = []
        for name, entry in due.items():
            since = min(last_look, entry.watched_since)
            # One schedule that fails must not end the other ones: it is looked at again later, and the
            # times that pass until then count as watched.
            try:
                submitted += self._look_at(name, now, now - timedelta(seconds=self._looked_at - since))
            except ThreadBusyError:
                self._entries[name] = _Entry(now, monotonic() + _BUSY_PAUSE, watched_since=since)
            except Exception as error:  # noqa: BLE001 - one schedule's failure is not the others'
                failures = entry.failures + 1
                pause = _FAILURES.delay_after(failures)
                _LOG.warning("schedule %r failed here; the next attempt is in %.3g s: %s", name, pause, error)
                self._entries[name] = _Entry(now, monotonic() + pause, failures, since)
        return submitted

    def _look_at(self, name: str, now: datetime, watched_since: datetime) -> list[str]:
        """Submit the runs of a schedule that are due, and note when the next one is; return their threads.

        Raises:
            ThreadBusyError: another worker does it.
        """
        config = _config_of(name)
        due = self._note_due(name, self._saver.get(config))
        if due is None or due > now:  # the lock would create a thread that was removed
            return []
        threads: list[str] = []
        with self._saver.run_lock(config, 0.0):
            latest = self._saver.get(config)
            if latest is not None:
                schedule = _read(latest, name)
                for due in schedule.find_unsubmitted(now, watched_since):
                    # Two schedules never make the same id: what follows the name has a fixed length. A cron
                    # expression counts in minutes.
                    thread = f"{name}-{due:%Y-%m-%dT%H:%MZ}"
                    submission = Submission(schedule.input, at=None, key=thread, is_new=False)
                    run_config = RunnableConfig(thread, metadata={"schedule": name, "due": due.isoformat()})
                    # Another worker may have submitted it, and died before it could record that.
                    submit_once(self._saver, run_config, submission, schedule.graph_id, is_own=True)
                    threads.append(thread)
                    schedule = replace(schedule, last_due=due)
                    latest = _put(self._saver, schedule, latest)
        self._note_due(name, latest)
        return threads

    def _note_due(self, name: str, latest: Checkpoint | None) -> datetime | None:
        """Note, and return, when the next run of a schedule is due; None if never, or if there is no schedule."""
        due = None
        if latest is not None:
            schedule = _read(latest, name)
            due = schedule.next_due(schedule.last_due or schedule.created_at)
        if due is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = _Entry(due)
        return due
