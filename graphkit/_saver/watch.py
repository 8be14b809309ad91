"""Watching a store: Change, one change of it, and Watch, which reports changes as they happen.

PollingWatch reads a store at an interval, for savers without change events.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from datetime import datetime
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, final

from graphkit._options import check_choice, check_seconds, parse_timeout
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver import langgraph_writes
from graphkit._saver.capabilities import list_versions
from graphkit._saver.status import ENDED, STATUSES, with_status_when_stored
from graphkit._saver.writes import (
    ANSWER,
    CANCELLED,
    FAILURE,
    INTERRUPT,
    SUBGRAPH_INTERRUPT,
    TASK,
    TIMER,
    is_cancelled,
    is_incomplete,
    subgraph_interrupts,
    time_or_none,
    unanswered_stops,
)
from graphkit._waker import Waker
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointFormatError,
    CheckpointSerializationError,
)

if TYPE_CHECKING:
    from graphkit._saver.base import BaseCheckpointSaver

ChangeKind = Literal[
    "checkpoint",
    "interrupt",
    "timer",
    "answer",
    "failure",
    "cancel",
    "progress",
    "release",
    "delete",
    "idle",
]
"""The kind of a `Change`."""


@final
class Change(NamedTuple):
    """One change of a store.

    The kinds:

    * checkpoint: a checkpoint was stored.
    * interrupt: a run waits for a human.
    * timer: a run sleeps.
    * answer: an interrupt was answered, or the run moved past it. For an interrupt in a nested graph,
      the outer graph reports it too, once it continues.
    * failure: a run failed.
    * cancel: a run was cancelled, and has ended.
    * progress: nodes of branches, or items of a map, have finished.
    * release: a history has ended and is kept as a version.
    * delete: a history is gone.
    * idle: no run holds the thread any more, because it has ended or its process has died; nor does an
      operation such as `answer`. Only some savers report it.
    """

    kind: ChangeKind
    thread_id: str
    checkpoint_ns: str
    checkpoint: CheckpointInfo | None = None
    """The checkpoint of the change, with its status at that time. None for release, delete and idle,
    and for pending writes of a checkpoint that is not the latest."""
    id: str | None = None
    """For interrupt, timer and answer: the id of the interrupt."""
    value: Any = None
    """For interrupt: {node_id, when, payload, metadata, created_at}, and perhaps its deadline and
    default. For timer: the same, with the time at which it is due. For answer: the answer; None if
    the run moved past the interrupt, or the timer was due. For failure: {node_id, type, message, at}.
    For cancel: {reason, at}. For progress:
    {node_id}, the node that finished last. For idle: True if the process that held the thread has
    died."""
    at: datetime | None = None
    """When the change was stored; None if the store does not record it, and the change was noticed
    just now. Answers, releases and deletes have no time of their own: the file saver reports the
    time of the last write to their log."""

    @property
    def time(self) -> datetime | None:
        """When the change was stored; that of the checkpoint if the saver leaves it to that."""
        if self.at is None and self.checkpoint is not None and self.kind == "checkpoint":
            return self.checkpoint.created_at
        return self.at

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON can hold it: times as text in UTC, values without their types.

        The keys are kind, thread, ns, checkpoint, node, next, status, step, time, id and value, as in
        the lines of `graphkit watch --json`. Those of a checkpoint are None without one, and the
        status is that at the time of the change.
        """
        from graphkit._values.frozen import to_plain

        row: dict[str, Any] = {
            "kind": self.kind,
            "thread": self.thread_id,
            "ns": self.checkpoint_ns,
            **dict.fromkeys(("checkpoint", "node", "next", "status", "step")),
            "time": self.time,
            "id": self.id,
            "value": self.value,
        }
        info = self.checkpoint
        if info is not None:
            row["checkpoint"] = info.id
            row["node"] = info.node_id
            row["next"] = info.next_node_id
            row["status"] = info.status or None
            row["step"] = info.metadata.get("step")
        plain: dict[str, Any] = to_plain(row)
        return plain


_OF_THE_RUN_LOCK: Final = frozenset({"running", "stalled"})
"""The statuses that change without a write. Not every saver reports that a run lock is free."""
_UNREADABLE: Final = (CheckpointCorruptionError, CheckpointFormatError, CheckpointSerializationError)


@final
class WatchEnd:
    """When a watch ends: once no thread is left that has not reached a status.

    A thread is left out once its run is over, because a run that has failed does not finish any more,
    and once it is gone. `Watch` asks for the end only after it has reported what it has read.
    """

    def __init__(self, saver: BaseCheckpointSaver, config: RunnableConfig | None, until: str) -> None:
        """Decide which threads are waited for.

        Args:
            saver: the saver that is watched.
            config: what is watched; None: all threads that there are now or later.
            until: the status.

        Raises:
            CheckpointerConfigurationError: there is no such status.
        """
        check_choice("until", until, *STATUSES, error=CheckpointerConfigurationError)
        self.reached: str | None = None
        """The status of the thread that was waited for last."""
        self._saver = saver
        self._config = config
        self._namespace = "" if config is None else config.checkpoint_ns
        self._until = until
        self._seen: set[str] = set()
        """The threads that the store has, or had."""
        self._left: set[str] = set()
        """The threads that the watch waits for."""
        self._unread: set[str] = set()
        """Those of them whose status may have changed since it was read."""

    @property
    def awaits_run_lock(self) -> bool:
        """Whether a status that is waited for may come without a change. Asked after `has_come`."""
        return bool(self._unread)

    def begin(self) -> None:
        """Note the threads that there are. Called after the watch has begun, so that none is missed."""
        threads = self._saver.threads() if self._config is None else [self._config.thread]
        self._left.update(threads)
        self._unread.update(threads)

    def note_change(self, change: Change) -> None:
        """Note what a change says of the status of its thread."""
        thread = change.thread_id
        if change.checkpoint_ns != self._namespace:
            # An answer to a nested graph changes the status of the graph around it.
            if thread in self._left:
                self._unread.add(thread)
            return
        if change.kind in {"release", "delete"}:
            self._leave_out(thread, None)
            return
        self._seen.add(thread)
        status = "" if change.checkpoint is None else change.checkpoint.status
        if self._is_wanted(status):
            self._leave_out(thread, status)
        elif self._config is None or thread in self._left:
            self._left.add(thread)
            self._unread.add(thread)

    def has_come(self) -> bool:
        """Return whether no thread is left; read the statuses that may have changed.

        Raises:
            CheckpointStorageError: the store cannot be read.
            CheckpointCorruptionError: the only thread that is watched is damaged.
        """
        for thread in sorted(self._unread):
            self._unread.discard(thread)
            config = RunnableConfig(thread, checkpoint_ns=self._namespace)
            try:
                latest = next(iter(self._saver.recent(config, limit=1)), None)
            except _UNREADABLE:
                if self._config is not None:
                    raise
                self._leave_out(thread, None)  # one of many, whose status nobody can learn
                continue
            if latest is None:
                if thread in self._seen:  # else it does not exist yet
                    self._leave_out(thread, None)
                continue
            self._seen.add(thread)
            if self._is_wanted(latest.status):
                self._leave_out(thread, latest.status)
            elif latest.status in _OF_THE_RUN_LOCK and self._until in _OF_THE_RUN_LOCK:
                self._unread.add(thread)
        return not self._left

    def _is_wanted(self, status: str) -> bool:
        return status == self._until or status in ENDED

    def _leave_out(self, thread: str, status: str | None) -> None:
        if thread in self._left:
            self.reached = status
        self._left.discard(thread)
        self._unread.discard(thread)


def _no_changes() -> Generator[Change, None, None]:
    yield from ()


class Watch(abc.ABC):
    """Reports the changes of a store from its creation on, each at least once. Iterate it, and close it.

    Changes of one history (a namespace of a thread) are reported in the order of writing, those of
    different histories in the order in which they are seen. Changes that were not requested yet wait
    in the store, not in memory. One thread at a time may read a watch; `wake` and `close` may be
    called from any other.

    Implementers provide `_read_changes`, which yields the changes and sets `_next_read`. A store with
    change events also provides `_has_signal`.
    """

    def __init__(self, interval: float) -> None:
        check_seconds("interval", interval, CheckpointerConfigurationError)
        self._interval = interval
        """The polling interval in seconds, for stores without change events."""
        self._read_lock = threading.RLock()
        """Held while changes are read."""
        self._waker = Waker()
        """Wakes the reader."""
        self._next_read = monotonic()
        """When changes are read even without a signal, by the monotonic clock."""
        self._is_closed = False
        self._is_woken = False
        self._unread = _no_changes()

    _end: WatchEnd | None = None
    """When the watch ends by itself."""
    _filters: tuple[Callable[[Change], bool], ...] = ()
    """A change is reported if each of them accepts it."""

    @property
    def reached(self) -> str | None:
        """The status at which the watch ended, with `until`; None before, and if the thread is gone."""
        if self._end is None or not self._is_closed:
            return None
        return self._end.reached

    def end_at(self, end: WatchEnd) -> None:
        """Let the watch end by itself; for `BaseCheckpointSaver.watch`, before anything is read."""
        try:
            end.begin()
        except BaseException:
            self.close()
            raise
        self._end = end

    def report_only(self, accepts: Callable[[Change], bool]) -> None:
        """Report only the changes that a function accepts; for wrappers, before anything is read.

        Raises:
            CheckpointerConfigurationError: the watch has a `get` of its own, which would report them all.
        """
        if type(self).get is not Watch.get:
            raise CheckpointerConfigurationError(f"{type(self).__name__} overrides get(): override _read_changes()")
        self._filters += (accepts,)

    def _has_signal(self) -> bool:
        """Return whether the store has reported that there may be a change. It calls `_notify` afterwards."""
        return False

    @abc.abstractmethod
    def _read_changes(self) -> Generator[Change, None, None]:
        """Yield what has changed since the last call."""

    def _read_all_next(self) -> None:
        """Make the next `_read_changes` report all that is stored by then, signalled or not."""
        self._next_read = monotonic()

    def _close_resources(self) -> None:  # noqa: B027 - a watch that polls has none
        """Close files and observers. Nothing is read afterwards."""

    def get(self, timeout: float | None = None) -> Change | None:
        """Return the next change; None after the timeout or `wake`, or if the watch is closed or has ended.

        Args:
            timeout: the maximum time to wait, in seconds; None waits forever.

        Raises:
            CheckpointStorageError: the store cannot be read.
        """
        deadline = inf if timeout is None else monotonic() + parse_timeout(timeout)
        has_read = False
        has_read_all = False
        with self._read_lock:
            while not self._is_closed:
                change = next(self._unread, None)
                if change is not None:
                    if not all(accepts(change) for accepts in self._filters):
                        continue
                    if self._end is not None:
                        self._end.note_change(change)
                    return change
                if self._end is not None and self._end.has_come():
                    if has_read_all:
                        self.close()
                        return None
                    # The statuses are of now. What led to them is perhaps not reported yet.
                    self._read_all_next()
                    self._unread = self._read_changes()
                    has_read = has_read_all = True
                    continue
                # Even if the next read is due: one read may take longer than the interval, and the
                # caller would never get control back.
                if has_read and monotonic() >= deadline:
                    return None
                if self._end is not None and self._end.awaits_run_lock:
                    self._next_read = min(self._next_read, monotonic() + self._interval)
                if self._is_woken or not self._wait(deadline):
                    self._is_woken = False
                    return None
                self._unread = self._read_changes()
                has_read = True
        return None

    def _wait(self, deadline: float) -> bool:
        """Wait until there may be a change.

        Returns:
            False once the deadline (of the monotonic clock) has passed.
        """
        while not (self._is_closed or self._is_woken or self._has_signal()):
            now = monotonic()
            if now >= self._next_read:
                break
            if now >= deadline:
                return False
            self._sleep_until(min(deadline, self._next_read))
        return True

    def _sleep_until(self, time: float) -> None:
        """Sleep until a notification or a time of the monotonic clock, or shorter."""
        self._waker.sleep(time - monotonic())

    def wake(self) -> None:
        """Make the `get` that waits, or the next one, return None. May be called from a signal handler."""
        self._is_woken = True
        self._notify()

    def _notify(self) -> None:
        """End the sleep of the reader, or its next one, so that it looks again."""
        self._waker.wake()

    def close(self) -> None:
        """Close the watch. A `get` that waits returns None."""
        self._is_closed = True
        self._notify()
        with self._read_lock:
            self._unread.close()
            self._close_resources()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        while not self._is_closed:
            change = self.get()
            if change is not None:
                return change
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_namespace_inside(namespace: str, outer: str) -> bool:
    """Return whether a namespace is `outer` or below it. Every namespace is below the root, ""."""
    return not outer or namespace == outer or namespace.startswith(f"{outer}/")


_STOP_KINDS: Final[Mapping[str, ChangeKind]] = {INTERRUPT: "interrupt", TIMER: "timer"}
"""The kinds of changes that records of stops make, by the prefix of their keys."""
_END_KINDS: Final[Mapping[str, ChangeKind]] = {FAILURE: "failure", CANCELLED: "cancel"}
"""The same for what ends a run, by key."""


def iter_changes(
    history: tuple[str, str],
    info: CheckpointInfo | None,
    writes: Mapping[str, Any],
    written_at: datetime | None = None,
) -> Iterator[Change]:
    """Yield the changes that pending writes make, for a watch.

    Args:
        history: the thread id and the namespace.
        info: the checkpoint; None if it is not the latest.
        writes: the pending writes that are new.
        written_at: when they were stored, for those that have no time of their own.
    """
    thread_id, namespace = history
    make_change = partial(Change, thread_id=thread_id, checkpoint_ns=namespace, checkpoint=info)
    last_task = None
    for key, value in writes.items():
        kind, colon, id = key.partition(":")  # noqa: A001 - the name of the field
        prefix = kind + colon
        if prefix in _STOP_KINDS:
            stored_at = _get_time(value, "created_at")
            yield make_change(_STOP_KINDS[prefix], id=id, value=value, at=stored_at)
        elif prefix == ANSWER:
            yield make_change("answer", id=id, value=value, at=written_at)
        elif prefix == SUBGRAPH_INTERRUPT and value is None:
            yield make_change("answer", id=id, at=written_at)
        elif key in _END_KINDS and value is not None:
            stored_at = _get_time(value, "at")
            yield make_change(_END_KINDS[key], value=value, at=stored_at)
        elif key.startswith(TASK):
            last_task = key
    # Of LangGraph's tasks, the outer graph has those of nested graphs, too.
    for id, question in langgraph_writes.find_questions(writes, written_at):  # noqa: A001 - the same
        yield make_change("interrupt", id=id, value=question, at=written_at)
    failure = langgraph_writes.find_failure(writes)
    if failure is not None:
        yield make_change("failure", value=failure, at=written_at)
    if last_task is not None:
        # One change for all tasks that were recorded together: a map may have thousands.
        task = writes[last_task]
        node_id = None
        if isinstance(task, Mapping):
            node_id = task.get("node")
        yield make_change("progress", value={"node_id": node_id}, at=written_at)


def _get_time(record: Any, key: str) -> datetime | None:
    """Return the time in a pending write; None if it has none, because it was written by hand."""
    if isinstance(record, Mapping):
        return time_or_none(record.get(key))
    return None


_HistoryKey = tuple[str, str]
"""A thread id and a namespace."""

_WriteKey = tuple[str, bool, datetime | None]
"""The key of a pending write; whether its value is None, which withdraws it; and when the run ended, if it says so.

A run that fails again at a checkpoint records its failure again, under the same key.
"""


class _Bookmark(NamedTuple):
    """How far a history has been reported."""

    checkpoint_id: str
    """The latest checkpoint."""
    writes: frozenset[_WriteKey]
    """The pending writes of that checkpoint."""
    version: int
    """The newest version of the thread; 0 if there is none."""


@final
class PollingWatch(Watch):
    """Reads the histories that it follows every `interval` seconds. Each read costs O(threads)."""

    def __init__(
        self, saver: BaseCheckpointSaver, config: RunnableConfig | None, *, latest: bool, interval: float
    ) -> None:
        """Start to follow a saver.

        Args:
            saver: the saver.
            config: what to follow; None is all threads. See `BaseCheckpointSaver.watch`.
            latest: report the latest checkpoint of each history first.
            interval: the time between two reads, in seconds.
        """
        super().__init__(interval)
        self._saver = saver
        self._config = config
        self._bookmarks: dict[_HistoryKey, _Bookmark] = {}
        for key in self._list_histories():
            thread, namespace = key
            version = self._read_version(thread)
            if config is not None and config.checkpoint_ns == namespace and config.checkpoint_id is not None:
                # The caller has named the checkpoint after which the history is reported.
                self._bookmarks[key] = _Bookmark(config.checkpoint_id, writes=frozenset(), version=version)
                continue
            history = [info for info in saver.history(_make_config(key)) if not is_incomplete(info.metadata)]
            if latest:
                history = history[1:]
            if history:
                self._set_bookmark(key, history[0].id, version)

    def _list_histories(self) -> list[_HistoryKey]:
        saver = self._saver
        if self._config is None:
            return [(thread, namespace) for thread in saver.threads() for namespace in saver.namespaces(thread)]
        thread = self._config.thread
        root = self._config.checkpoint_ns
        namespaces = {name for name in saver.namespaces(thread) if is_namespace_inside(name, root)}
        # Read with `get`: a saver that cannot list its namespaces does not name one that the
        # application chose.
        if saver.get(self._config.with_check_point_id(None)) is not None:
            namespaces.add(root)
        return [(thread, namespace) for namespace in sorted(namespaces)]

    def _set_bookmark(self, key: _HistoryKey, checkpoint_id: str, version: int) -> Mapping[str, Any]:
        """Remember a checkpoint as reported; return its pending writes, which count as reported too."""
        writes = self._saver.get_writes(_make_config(key, checkpoint_id))
        self._bookmarks[key] = _Bookmark(checkpoint_id, writes=_make_write_keys(writes), version=version)
        return writes

    def _read_version(self, thread: str) -> int:
        """Return the newest version of a thread: a release makes a newer one, and a delete removes them all."""
        return max(list_versions(self._saver, thread), default=0)

    def _read_changes(self) -> Generator[Change, None, None]:
        histories = self._list_histories()
        for key in [key for key in self._bookmarks if key not in histories]:
            yield self._end_history(key)
        for key in histories:
            yield from self._read_history(key)
        self._next_read = monotonic() + self._interval

    def _end_history(self, key: _HistoryKey) -> Change:
        thread, namespace = key
        bookmark = self._bookmarks.pop(key)
        is_released = self._read_version(thread) > bookmark.version
        kind: ChangeKind = "release" if is_released else "delete"
        return Change(kind, thread, namespace)

    def _read_history(self, key: _HistoryKey) -> Iterator[Change]:
        thread, namespace = key
        bookmark = self._bookmarks.get(key)
        # Before the history: the caller may take its time with a change, and the thread be released meanwhile.
        version = self._read_version(thread)
        if bookmark is not None and bookmark.version != version:
            yield self._end_history(key)
            bookmark = None
        if bookmark is None:
            bookmark = _Bookmark(checkpoint_id="", writes=frozenset(), version=0)
        reported = bookmark.writes
        # From the bookmark on, oldest first; all of them if the checkpoint of the bookmark is gone.
        history = self._saver.history(_make_config(key))
        if history and is_incomplete(history[0].metadata):
            return  # More comes, and this checkpoint will be replaced: by another one, or by itself without the mark.
        ids = [info.id for info in history]
        if bookmark.checkpoint_id in ids:
            history = history[: ids.index(bookmark.checkpoint_id) + 1]
        for stored in reversed(history):
            info = stored if stored.status else with_status_when_stored(stored)
            if info.id != bookmark.checkpoint_id:
                reported = frozenset()
                yield Change("checkpoint", thread, namespace, checkpoint=info, at=info.created_at)
            writes = self._set_bookmark(key, info.id, version)
            was_cancelled = any(name == CANCELLED and not is_none for name, is_none, _ in reported)
            if was_cancelled and not is_cancelled(writes):
                # They wait again, because the run goes on.
                waiting = {*unanswered_stops(writes, INTERRUPT), *subgraph_interrupts(writes)}
                reported = _without_questions(reported, waiting)
                self._forget_questions(thread, waiting)
            new = _make_write_keys(writes) - reported
            names = {name for name, _, _ in new}
            new_writes = {name: value for name, value in writes.items() if name in names}
            yield from iter_changes(key, info, new_writes)

    def _forget_questions(self, thread: str, interrupt_ids: Collection[str]) -> None:
        """Let the questions of nested graphs count as not reported."""
        for key, bookmark in self._bookmarks.items():
            history_thread, namespace = key
            if history_thread == thread and namespace:
                writes = _without_questions(bookmark.writes, interrupt_ids)
                self._bookmarks[key] = bookmark._replace(writes=writes)


def _without_questions(records: frozenset[_WriteKey], interrupt_ids: Collection[str]) -> frozenset[_WriteKey]:
    return frozenset(record for record in records if record[0].removeprefix(INTERRUPT) not in interrupt_ids)


def _make_config(key: _HistoryKey, checkpoint_id: str | None = None) -> RunnableConfig:
    thread, namespace = key
    return RunnableConfig(thread, checkpoint_id, namespace)


def _make_write_keys(writes: Mapping[str, Any]) -> frozenset[_WriteKey]:
    return frozenset((name, value is None, _get_time(value, "at")) for name, value in writes.items())
