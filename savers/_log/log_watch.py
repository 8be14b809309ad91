"""LogWatch: follows the logs of a store, wherever their bytes lie.

Theory of operation. A `LogSource` signals which threads may have changed; of these signals only the
names are kept, so nothing accumulates however slowly the caller reads. The changes themselves are
read from the logs, each from a bookmark on: the position where the last read of it ended. So a
superfluous signal does no harm, and a change that was written while the watch was being set up
needs no signal.

Each history has a place, and one bookmark. At a place there are released logs, which are read once
and in the order of their versions, and then the live log, if there is one. If the log of the
bookmark is among them, reading goes on in it, also after it was released. Otherwise it was
rewritten, or deleted, and the first of the others has taken its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from logging import getLogger
from math import inf
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from graphkit.abc import BaseCheckpointSaver, Watch
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointErasedError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointSerializationError,
    CheckpointStorageError,
)
from graphkit.saver_kit import (
    Change,
    ChangeKind,
    MalformedDataError,
    is_incomplete,
    iter_changes,
    with_status,
    with_status_when_stored,
)
from savers._log import payloads
from savers._log.frame import CHECKPOINT, EARLY, META_RECORDS, RELEASE, TOMBSTONE, WRITE, Frame
from savers._log.log import make_info

if TYPE_CHECKING:
    from graphkit import CheckpointInfo, RunnableConfig
    from savers._log.log import AnyLog
    from savers._log.log_saver import LogSaver
    from savers._log.stored_checkpoint import StoredCheckpoint


class ChangeReader:
    """Reports the records of one log as changes; it decodes no states, and keeps no index.

    Attributes:
        log: the log, used by no other caller.
        end: where the next record begins whose changes were not all yielded.
    """

    _reported: str | None = None
    """The id of the checkpoint that was reported last, except those that mark an incomplete thread."""

    def __init__(self, log: AnyLog, find_write_time: Callable[[], datetime | None]) -> None:
        """Read a log.

        Args:
            log: the log.
            find_write_time: returns when the log was last written to; None if the store does not
                record it.
        """
        self.log = log
        self.end = 0
        self._find_write_time = find_write_time

    def make_bookmark(self, id: int) -> Bookmark:
        """Return a bookmark for the position to which the log, which has this id, was read."""
        history = self.log.history
        last = history.last
        reported = self._reported
        if reported is None and last is not None:
            reported = MARKED if is_incomplete(last.metadata) else last.id
        return Bookmark(
            id=id,
            end=self.end,
            owner=(self.log.thread_id, self.log.namespace),
            last=reported,
            reports_end=history.closed_by is None and last is not None,
        )

    def open_at(self, end: int | None) -> bool:
        """Open the log as it was when it ended at an offset; return False if there is none.

        The caller closes the log, also after an error.

        Args:
            end: the offset; None: the present end.
        """
        log = self.log
        if not log.frames.open():
            return False
        medium = log.frames.bytes
        if end is not None:
            medium.size = min(end, medium.size)
        if medium.size > log.frames.end:
            log.history.load_end()
        log.history.drop_index()
        self.end = log.frames.end
        return True

    def read_changes(self) -> Iterator[Change]:
        """Yield the changes that were appended since the last call."""
        log = self.log
        medium = log.frames.bytes
        medium.refresh(log.frames.end)
        for frame in log.history.iter_on(medium.size):
            last = log.history.last
            if frame.type == CHECKPOINT:
                assert last is not None
                yield from self._checkpoint_changes(last, self._make_info(last))
            elif frame.type == WRITE and not frame.flags & EARLY:
                # Early writes are reported with their checkpoint, when that comes.
                owner, packed = payloads.decode_writes(log.path, frame)
                about = self._make_info(last) if last is not None and last.id == owner else None
                yield from self._writes_changes(packed, about)
            elif frame.type in {RELEASE, TOMBSTONE}:
                yield from self._end_changes(frame)
            self.end = frame.end

    def latest_changes(self, saver: BaseCheckpointSaver) -> Iterator[Change]:
        """Yield the latest checkpoint and its pending writes, as if they were new.

        Args:
            saver: finds the status of the thread.
        """
        latest = self.log.history.find_latest()
        if latest is not None:
            yield from self._checkpoint_changes(latest, with_status(saver, make_info(self.log, latest)))
        self.log.history.drop_index()

    def changes_after(self, id: str | None) -> Iterator[Change]:
        """Yield what follows a checkpoint in a rewritten log: its pending writes, then checkpoints.

        Args:
            id: the checkpoint; if it is gone, all checkpoints are reported.
        """
        history = self.log.history
        new = history.load_index().checkpoints
        ids = [checkpoint.id for checkpoint in new]
        if id in ids:
            position = ids.index(id)
            known = new[position]
            new = new[position + 1 :]
            yield from self._writes_changes(history.chains.read_writes(known), self._make_info(known))
        for checkpoint in new:
            yield from self._checkpoint_changes(checkpoint, self._make_info(checkpoint))
        history.drop_index()
        if history.closed_by is not None:
            yield from self._end_changes(history.closed_by)

    def _make_info(self, checkpoint: StoredCheckpoint) -> CheckpointInfo:
        return with_status_when_stored(make_info(self.log, checkpoint))

    def _checkpoint_changes(self, checkpoint: StoredCheckpoint, about: CheckpointInfo) -> Iterator[Change]:
        if not is_incomplete(about.metadata):
            self._reported = about.id
        yield Change("checkpoint", self.log.thread_id, self.log.namespace, about, at=about.created_at)
        if checkpoint.writes:
            yield from self._writes_changes(self.log.history.chains.read_writes(checkpoint), about)

    def _writes_changes(self, packed: Mapping[str, bytes], about: CheckpointInfo | None) -> Iterator[Change]:
        """Yield the changes that packed writes are, of the checkpoint that `about` describes, if that is known."""
        log = self.log
        writes: dict[str, Any] = {}
        for key, value in packed.items():
            try:
                writes[key] = log.codec.unpack(value, key)
            except CheckpointSerializationError as error:
                writes[key] = error.raw  # A follower need not know the application's types.
            except MalformedDataError as error:
                reason = f"the pending write {key!r} is malformed: {error}"
                raise CheckpointCorruptionError(log.path, log.frames.end, reason) from error
        yield from iter_changes((log.thread_id, log.namespace), about, writes, self._find_write_time())

    def _end_changes(self, frame: Frame) -> Iterator[Change]:
        """Yield the change that a RELEASE or TOMBSTONE record is."""
        # A log with only META records before it was created to end those of the other namespaces.
        if frame.seq == META_RECORDS:
            return
        kind: ChangeKind = "release" if frame.type == RELEASE else "delete"
        yield Change(kind, self.log.thread_id, self.log.namespace, at=self._find_write_time())


MAX_OPEN_LOGS: Final = 64
FULL_READ_INTERVAL: Final = 60.0
"""Seconds after which all threads are read although each change is signalled: a queue of the system may
overflow, and a connection may be cut off without a sign."""
_PAUSE_PER_LISTING: Final = 10.0
"""The pause before all threads are listed again is at least this many times as long as the listing."""
_PAUSE_IF_SIGNALLED: Final = 200.0
"""The same if each change is signalled, so that the listing seldom finds anything."""
_MOST_THREADS: Final = 10_000
"""If more threads have changed between two reads, all are read."""
MARKED: Final = ""
"""Stands for the id of a checkpoint that marks its thread as incomplete. Another one takes its place, or itself without
the mark, and the log may be rewritten by then: a watch goes on there as if it had reported nothing."""
DAMAGE: Final = (
    CheckpointCorruptionError,
    CheckpointErasedError,
    CheckpointFormatError,
    CheckpointSerializationError,
)
"""Errors that concern one log: it is named in a warning unless it was erased, and the others are followed."""
_LOGGER: Final = getLogger("graphkit")


class Place(NamedTuple):
    """Where the logs of one history are, as the medium names it."""

    thread: str
    namespace: str


class Bookmark(NamedTuple):
    """How far a log has been reported."""

    id: int
    """Identifies the bytes of the log: a rewrite makes a log with another id; a release keeps it."""
    end: int
    """Where the next record begins that was not reported yet."""
    owner: tuple[str, str] | None = None
    """The thread and the namespace; None if they are not known."""
    last: str | None = None
    """The id of the last checkpoint that was reported, or must not be; MARKED; None if it is not known."""
    reports_end: bool = True
    """Whether a release or a delete is reported when the log is released or gone. Not if its log has
    said so, nor for a history that never had a checkpoint."""
    wants_latest: bool = False
    """Whether the latest checkpoint before `end` must be reported first."""


class FoundLog(NamedTuple):
    """A log as the medium lists it."""

    place: Place
    mark: Bookmark
    """A bookmark at its end, as far as the listing says."""
    version: int = 0
    """0: live; above: released."""
    released: datetime | None = None
    """When it was released, if its log does not say so."""


class Signals:
    """Collects the names of the threads that may have changed, for one watch.

    Attributes:
        wake: wakes the reader of the watch.
        hears_all: whether each change is signalled. Otherwise all threads are read at an interval.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.hears_all = False
        self._mutex = RLock()
        self._threads: set[str] | None = set()

    def notify(self, thread: str | None = None) -> None:
        """Record a change of a thread; None: of any."""
        with self._mutex:
            if thread is None or self._threads is None or len(self._threads) >= _MOST_THREADS:
                self._threads = None
            else:
                self._threads.add(thread)
        self.wake()

    def has_changes(self) -> bool:
        """Return whether a change was recorded since the last `take_threads`."""
        return self._threads is None or bool(self._threads)

    def take_threads(self) -> set[str] | None:
        """Return the threads that may have changed since the last call; None: any may have."""
        with self._mutex:
            threads, self._threads = self._threads, set()
            return threads


class LogSource(ABC):
    """What a LogWatch follows: which threads may have changed, and which logs there are.

    Attributes:
        signals: which threads may have changed.
    """

    signals: Signals

    def take_threads(self) -> set[str] | None:
        """Return the threads to read; None: all."""
        return self.signals.take_threads()

    @abstractmethod
    def list_threads(self) -> Collection[str]:
        """Return the threads to follow; `list_logs` is called for each of them next."""

    @abstractmethod
    def list_logs(self, thread: str) -> list[FoundLog]:
        """Return the logs to follow of a thread: the released ones that are news, by version, then live ones.

        Raises:
            CheckpointFormatError: the thread cannot be read.
        """

    def find_log(self, mark: Bookmark) -> FoundLog | None:  # noqa: ARG002 - for media that list less
        """Return what has become of a log that `list_logs` does not return any more, if it is there."""
        return None

    @abstractmethod
    def note_reported(self, found: FoundLog) -> None:
        """Note that a released log is no news any more."""

    def skip(self, found: FoundLog) -> Bookmark:
        """Return a bookmark at the end of a log, with what its listing does not say."""
        return found.mark

    @abstractmethod
    def new_reader(self, found: FoundLog) -> ChangeReader | None:
        """Return a reader of a log, not open yet; None while no log names its thread and namespace."""

    @abstractmethod
    def identify(self, log: AnyLog) -> int:
        """Return the id of an open log."""

    @abstractmethod
    def check_run_locks(self) -> Generator[Change, None, float]:
        """Yield a change for each thread that no run holds any more.

        Returns:
            When to do this again, by the monotonic clock.
        """

    def note_change(self, thread_id: str) -> None:  # noqa: B027 - for media that do not signal free locks
        """Note that a thread has changed: a run may hold its lock."""

    @abstractmethod
    def close(self) -> None:
        """Stop listening."""


@final
class LogWatch(Watch):
    """Reports the changes of the logs of a store, whichever process makes them."""

    def __init__(
        self,
        saver: LogSaver[Any],
        source: LogSource,
        config: RunnableConfig | None,
        *,
        latest: bool,
        interval: float,
    ) -> None:
        """Begin to follow a store; see `BaseCheckpointSaver.watch`.

        Args:
            saver: the saver of the store.
            source: the logs; closed with the watch.
            config: what to follow.
            latest: begin with the latest checkpoint of each history.
            interval: seconds between two reads of all threads, if the source does not hear of each
                change.
        """
        self._source = source
        self._saver = saver
        self._marks: dict[str, dict[str, Bookmark]] = {}
        """The bookmark of each place, by its thread and its namespace."""
        self._readers: OrderedDict[Place, ChangeReader] = OrderedDict()
        """The open logs, each read up to its bookmark, the least recently used first."""
        self._full_read_at = 0.0
        self._listing_time = 0.0
        """How many seconds listing the logs has taken since all threads were listed."""
        self._locks_due = inf
        try:
            # The source listens already: a change is either in this listing, or signalled after it.
            super().__init__(interval)
            source.signals.wake = self._waker.wake
            for thread in self._list_threads():
                for found in self._list_logs(thread):
                    self._set_start(found, config, latest=latest)
            self._plan_full_read()
        except BaseException:
            source.close()
            raise
        if latest:
            self._unread = self._read_latest()
        if config is not None and config.checkpoint_id is not None:
            self._full_read_at = monotonic()
        self._next_read = self._full_read_at

    def _set_start(self, found: FoundLog, config: RunnableConfig | None, *, latest: bool) -> None:
        """Decide where reading a log begins that is there already."""
        if found.version:
            self._source.note_reported(found)
            return
        mark = self._source.skip(found)._replace(wants_latest=latest)
        start = None
        if config is not None and (config.thread, config.checkpoint_ns) == mark.owner:
            # The caller may have named the checkpoint after which the history is reported.
            start = config.checkpoint_id
        reader = None if start is None else self._open(found, None)
        if reader is not None:
            checkpoint = reader.log.history.find(start)
            self._close_reader(found.place)
            if checkpoint is not None:
                mark = mark._replace(end=checkpoint.end, last=checkpoint.id, wants_latest=False)
        self._set_mark(found.place, mark)

    def _has_signal(self) -> bool:
        return self._source.signals.has_changes()

    def _read_all_next(self) -> None:
        self._full_read_at = self._next_read = monotonic()

    def _close_resources(self) -> None:
        self._source.close()
        for place in list(self._readers):
            self._close_reader(place)

    # One pass

    def _read_latest(self) -> Generator[Change, None, None]:
        """Yield what was the latest of each history when the watch began.

        The listing of that time is good enough: what has changed since was signalled, or is found by the
        next listing. These are not changes: of their threads, only those that run may hold a lock.
        """
        with self._make_pass():
            unread = [
                FoundLog(Place(thread, namespace), mark)
                for thread, marks in self._marks.items()
                for namespace, mark in marks.items()
                if mark.wants_latest
            ]
            for found in sorted(unread):
                for change in self._read_log(found):
                    if change.checkpoint is not None and change.checkpoint.status == "running":
                        self._source.note_change(change.thread_id)
                    yield change
            self._locks_due = yield from self._source.check_run_locks()

    def _read_changes(self) -> Generator[Change, None, None]:
        source = self._source
        with self._make_pass():
            # Taken before anything is read: what is signalled from here on is read by the next call.
            threads = source.take_threads()
            is_full = threads is None or monotonic() >= self._full_read_at
            if is_full:
                threads = self._list_threads()
            for thread in sorted(threads or ()):
                for change in self._read_thread(thread):
                    source.note_change(change.thread_id)
                    yield change
            if is_full:
                self._plan_full_read()
            self._locks_due = yield from source.check_run_locks()

    @contextmanager
    def _make_pass(self) -> Iterator[None]:
        """Decide when the next pass comes; after an error, it reads all threads."""
        try:
            yield
        except BaseException as error:
            # The signals of the threads that were not read yet are gone, so the next call reads all.
            self._full_read_at = monotonic()
            if isinstance(error, OSError) and not isinstance(error, CheckpointerError):
                raise CheckpointStorageError(error.filename or self._saver.describe(), "follow", error) from error
            raise
        finally:
            self._next_read = min(self._full_read_at, self._locks_due)

    def _list_threads(self) -> set[str]:
        """Return all threads, those included that are gone."""
        started = monotonic()
        threads = set(self._source.list_threads())
        self._listing_time = monotonic() - started
        return threads.union(self._marks)

    def _list_logs(self, thread: str) -> list[FoundLog]:
        started = monotonic()
        logs = self._source.list_logs(thread)
        self._listing_time += monotonic() - started
        return logs

    def _plan_full_read(self) -> None:
        """Decide when all threads are listed again, which takes a share of a core that does not grow with them."""
        pause = max(self._interval, _PAUSE_PER_LISTING * self._listing_time)
        if self._source.signals.hears_all:
            pause = max(FULL_READ_INTERVAL, _PAUSE_IF_SIGNALLED * self._listing_time)
        self._full_read_at = monotonic() + pause

    def _read_thread(self, thread: str) -> Iterator[Change]:
        try:
            logs = self._list_logs(thread)
        except CheckpointFormatError as error:
            _warn(error)
            return
        by_namespace: dict[str, list[FoundLog]] = {namespace: [] for namespace in self._marks.get(thread, ())}
        for found in logs:
            by_namespace.setdefault(found.place.namespace, []).append(found)
        for namespace in sorted(by_namespace):
            place = Place(thread, namespace)
            logs = by_namespace[namespace]
            mark = self._find_mark(place)
            if mark is not None and all(found.mark.id != mark.id for found in logs):
                moved = self._source.find_log(mark)
                if moved is not None:
                    # It has ended since: what it still has comes before all other logs of its place.
                    logs.insert(0, moved)
            for found in logs:
                yield from self._read_log(found)
            if mark is not None and not logs:
                mark = yield from self._read_rest(place, mark)
                self._remove_mark(place)
                yield from _iter_end("delete", mark)

    def _read_log(self, found: FoundLog) -> Iterator[Change]:
        """Yield what is new in a log, and its end if it is a released one."""
        place = found.place
        try:
            is_read = yield from self._read_new(found)
        except DAMAGE as error:
            reader = self._readers.get(place)
            # One that was removed while it was read only seems damaged.
            is_read = reader is None or not reader.log.frames.bytes.is_gone()
            self._close_reader(place)
            if is_read:
                _warn(error)
                self._set_mark(place, self._source.skip(found))
        except BaseException:
            self._close_reader(place)
            raise
        if found.version and is_read:
            # The next log of the place begins without a bookmark. A log in a file ends in a record
            # of its release, which was reported when it was read.
            mark = self._find_mark(place)
            self._close_reader(place)
            self._remove_mark(place)
            self._source.note_reported(found)
            yield from _iter_end("release", mark, found.released)

    def _read_new(self, found: FoundLog) -> Generator[Change, None, bool]:
        """Yield the changes in a log from the bookmark of its place on, and set the bookmark.

        Returns:
            Whether the log was read to its end.
        """
        place = found.place
        mark = self._find_mark(place)
        if mark is None:
            reader = self._open(found, 0)
        elif found.mark.id != mark.id or found.mark.end < mark.end:
            reader = yield from self._read_replacement(found, mark)
        elif found.mark.end > mark.end or mark.wants_latest:
            reader = self._readers.get(place) or self._open(found, mark.end)
            if mark.wants_latest and reader is not None:
                yield from reader.latest_changes(self._saver)
        else:
            return True
        if reader is None:
            return False
        self._readers.move_to_end(place)
        try:
            yield from reader.read_changes()
        finally:
            # Also after an error: the next read repeats one record, and not all since the bookmark.
            self._set_mark(place, reader.make_bookmark(found.mark.id))
        return True

    def _read_replacement(self, found: FoundLog, mark: Bookmark) -> Generator[Change, None, ChangeReader | None]:
        """Yield what leads from a bookmark to a log that has taken the place of the bookmarked one.

        A log of the same id is shorter than it was: a write that never finished was cut off, and
        acknowledged records may have been cut off with it. Another one is a rewrite if its header
        says so, which it does not in every medium, or if it has the last checkpoint. Otherwise the
        history was deleted, and begun again.

        Returns:
            The reader to go on with; None if the log is there no longer.
        """
        if found.mark.id != mark.id and not found.version:
            # A release has all that its log had, but a rewrite may have dropped what was not read
            # yet, and a delete has left a record of itself at the end.
            mark = yield from self._read_rest(found.place, mark)
        reader = self._open(found, None)
        if reader is None:
            return None
        if found.mark.id == mark.id or _is_rewritten(reader.log, mark):
            # What was the latest when the watch began is not known any more: it is one of all.
            yield from reader.changes_after(None if mark.wants_latest else mark.last)
        else:
            self._remove_mark(found.place)
            yield from _iter_end("delete", mark)
            reader = self._open(found, 0)
        return reader

    def _read_rest(self, place: Place, mark: Bookmark) -> Generator[Change, None, Bookmark]:
        """Yield what an open log has left that is gone, as an unlinked file is still read; return where it ends."""
        reader = self._readers.pop(place, None)
        if reader is None:
            return mark
        try:
            yield from reader.read_changes()
            return reader.make_bookmark(mark.id)
        except DAMAGE as error:
            _warn(error)
            return mark
        finally:
            reader.log.close()

    # Bookmarks and open logs

    def _find_mark(self, place: Place) -> Bookmark | None:
        return self._marks.get(place.thread, {}).get(place.namespace)

    def _set_mark(self, place: Place, mark: Bookmark) -> None:
        self._marks.setdefault(place.thread, {})[place.namespace] = mark

    def _remove_mark(self, place: Place) -> None:
        marks = self._marks.get(place.thread, {})
        marks.pop(place.namespace, None)
        if not marks:
            self._marks.pop(place.thread, None)

    def _open(self, found: FoundLog, end: int | None) -> ChangeReader | None:
        """Open a log as it was when it ended at an offset (None: now); return None if it is there no longer."""
        place = found.place
        self._close_reader(place)
        reader = self._source.new_reader(found)
        if reader is None:
            return None
        # Before it is opened, so that `_read_log` closes it after an error.
        self._readers[place] = reader
        if len(self._readers) > MAX_OPEN_LOGS:
            _, oldest = self._readers.popitem(last=False)
            oldest.log.close()
        # A file is opened by its name, which another one may have taken since the listing.
        if reader.open_at(end) and self._source.identify(reader.log) == found.mark.id:
            return reader
        self._close_reader(place)
        return None

    def _close_reader(self, place: Place) -> None:
        reader = self._readers.pop(place, None)
        if reader is not None:
            reader.log.close()


def _warn(error: CheckpointerError) -> None:
    if not isinstance(error, CheckpointErasedError):
        _LOGGER.warning("changes are not reported here: %s", error)


def _iter_end(kind: ChangeKind, mark: Bookmark | None, at: datetime | None = None) -> Iterator[Change]:
    if mark is not None and mark.reports_end and mark.owner is not None:
        yield Change(kind, *mark.owner, at=at)


def _is_rewritten(log: AnyLog, mark: Bookmark) -> bool:
    """Return whether a log has come from a rewrite of the bookmarked one."""
    header = log.frames.header
    assert header is not None
    if header.generation > 1 or mark.last == MARKED:
        return True
    return mark.last is not None and log.history.find(mark.last) is not None
