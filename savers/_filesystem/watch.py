"""Following a store on file events: which logs have grown, what was appended to them, whose run has ended.

Theory of operation. watchdog tells which files change, and of those only the names of threads are kept, in a set, so
nothing piles up however slowly a reader asks. What has happened is read from the logs themselves, on from a bookmark:
where the last look ended. So an event too many does no harm, and what was written while the watch was being set up
needs none. A process that dies closes its files, which is an event too: that is how a run lock that nobody holds any
more is noticed at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator
from logging import getLogger
from time import monotonic
from typing import TYPE_CHECKING, Final, final

from graphkit.abc import Change, Watch, is_namespace_inside
from graphkit.errors import CheckpointerError, CheckpointFormatError, CheckpointStorageError
from savers._filesystem import catalog, layout
from savers._filesystem.file_events import Events, is_locked, remote_kind
from savers._filesystem.log_follower import Bookmark, Info, LogFollower

if TYPE_CHECKING:
    from graphkit import RunnableConfig
    from savers._filesystem.store import Store

_OPEN: Final = 64
"""So many logs are kept open."""
_TRUST: Final = 60.0
"""Seconds after which all is looked at without an event: a system's queue of them may run over."""
_SOON: Final = 0.05
"""Seconds after which a lock is looked at again: its file is closed a moment before it is free."""
_LOGGER: Final = getLogger("graphkit")

_Place = tuple[str, str]
"""The names of a thread's directory and of a namespace's inside it, "" at the root."""


@final
class FileWatch(Watch):
    """The changes of a checkpoint directory, whoever makes them."""

    def __init__(
        self, store: Store, config: RunnableConfig | None, info: Info, *, latest: bool, interval: float
    ) -> None:
        """Begin to follow; see `BaseCheckpointSaver.watch`.

        Args:
            store: the directory.
            config: what to follow.
            info: makes what is told of a checkpoint.
            latest: begin with the latest checkpoint of each history.
            interval: seconds between looks on a file system without events.
        """
        super().__init__(interval)
        self._store, self._config, self._info = store, config, info
        self._only = None if config is None else layout.locate_thread(config.thread).name
        self._marks: dict[str, dict[str, Bookmark]] = {}
        """Per thread's directory and namespace's."""
        self._versions: dict[_Place, int] = {}
        """The last version of each that was told, or was there before."""
        self._logs: OrderedDict[_Place, LogFollower] = OrderedDict()
        self._fresh: set[_Place] = set()
        """Of which the latest checkpoint is to be told first."""
        self._suspects: dict[str, float] = {}
        """Threads whose lock is to be looked at again, and when."""
        self._events = self._listen()
        begins_earlier = latest or (config is not None and config.checkpoint_id is not None)
        self._next = monotonic() if begins_earlier else self._due()
        for name in self._names():
            for place in self._places(name):
                self._begin(place, latest=latest)

    def _listen(self) -> Events | None:
        root = self._store.root
        try:
            if (kind := remote_kind(root)) is not None:
                raise OSError(f"{kind} is a network file system")  # noqa: TRY301
            events = Events(self._condition, root, self._only)
            if self._only is not None:
                events.cover(layout.join(root, self._only))
        except OSError as error:
            self._tell_that_it_polls(error)
            return None
        return events

    def _tell_that_it_polls(self, reason: object) -> None:
        _LOGGER.warning(
            "%s: no file events (%s); looking every %g seconds instead", self._store.root, reason, self._interval
        )

    def _due(self) -> float:
        return monotonic() + (self._interval if self._events is None else _TRUST)

    # Waiting

    def _wait(self, deadline: float | None) -> bool:
        while not self._is_interrupted and not self._has_news() and (now := monotonic()) < self._wanted():
            if deadline is not None and now >= deadline:
                return False
            self._sleep_until(self._wanted() if deadline is None else min(deadline, self._wanted()))
        return True

    def _has_news(self) -> bool:
        return self._events is not None and bool(self._events.names or self._events.closed)

    def _wanted(self) -> float:
        return min([self._next, *self._suspects.values()])

    def _close_resources(self) -> None:
        if self._events is not None:
            self._events.stop()
            self._events = None
        while self._logs:
            self._logs.popitem()[1].close()

    # Looking

    def _read_changes(self) -> Generator[Change, None, None]:
        try:
            is_whole = monotonic() >= self._next
            names, closed = self._news(is_whole=is_whole)
            for name in sorted(names | closed):
                yield from self._look_at(name)
            for name in sorted(closed):
                yield from self._idle(name)
            if is_whole:
                self._next = self._due()
        except OSError as error:
            self._next = monotonic()  # what was not looked at yet is, when somebody asks again
            raise CheckpointStorageError(error.filename or self._store.root, "follow", error) from error

    def _news(self, *, is_whole: bool) -> tuple[set[str], set[str]]:
        """The threads to look at, all of them or those with news, and those whose lock may be free."""
        now = monotonic()
        names: set[str] = set()
        closed = {name for name, due in self._suspects.items() if due <= now}
        if is_whole:
            names = {*self._names(), *self._marks}
            self._check_events()
        if self._events is not None:
            with self._condition:
                names, self._events.names = names | self._events.names, set()
                closed, self._events.closed = closed | self._events.closed, set()
        return names, closed

    def _check_events(self) -> None:
        if self._events is not None and not self._events.is_alive:
            self._poll("they have ended")

    def _poll(self, reason: object) -> None:
        """Do without events from here on."""
        assert self._events is not None
        self._events.stop()
        self._events = None
        self._next = self._due()
        self._tell_that_it_polls(reason)

    def _cover(self, name: str) -> None:
        try:
            if self._events is not None:
                self._events.cover(layout.join(self._store.root, name))
        except OSError as error:
            self._poll(error)

    def _names(self) -> list[str]:
        """The directories of threads."""
        if self._only is not None:
            return [self._only]
        return self._store.directories_in(self._store.root, layout.is_thread)

    def _places(self, name: str) -> list[_Place]:
        """The root of a thread and its namespaces, those too that have been there."""
        found = self._store.directories_in(layout.join(self._store.root, name), layout.is_namespace)
        return [(name, one) for one in sorted({"", *found, *self._marks.get(name, ())})]

    def _path(self, place: _Place) -> str:
        return layout.join(self._store.root, *place, layout.LOG)

    def _look_at(self, name: str) -> Iterator[Change]:
        self._cover(name)
        try:
            places = self._places(name)
        except CheckpointFormatError as error:
            _LOGGER.warning("what happens here is not told: %s", error)
            return
        for place in places:
            try:
                if self._is_wanted(place):
                    yield from self._look_at_log(place)
            except CheckpointerError as error:
                _LOGGER.warning("what happens here is not told: %s", error)
                self._close(place)
                self._mark_end(place)

    def _look_at_log(self, place: _Place) -> Iterator[Change]:
        # In this order: what is no longer there as the log is there as a version, if it was released.
        there = self._store.io.stat(self._path(place))
        mark = yield from self._look_at_versions(place, self._marks.get(place[0], {}).get(place[1]))
        if mark is not None and (there is None or there.st_ino != mark.inode):
            yield from self._rest(place, mark, is_gone=there is None)
            mark = None if there is None else mark._replace(inode=0)
        elif mark is not None and there is not None and there.st_size < mark.end:
            self._close(place)  # a write that never finished was cut off, and more than that may have been
            mark = mark._replace(inode=0)
        if there is not None and (mark is None or (there.st_ino, there.st_size) != mark[:2]):
            yield from self._read(place, mark)

    def _look_at_versions(self, place: _Place, mark: Bookmark | None) -> Generator[Change, None, Bookmark | None]:
        """Tell what was released since the last look, from the mark on; the mark, if it is still to be looked for."""
        for version in self._new_versions(place):
            self._versions[place] = version  # first, for a damaged one is passed over
            name = layout.version_name(version)
            found = self._store.io.stat(layout.join(self._store.root, *place, name))
            if found is not None:
                yield from self._released(place, name, mark, is_same=mark is not None and found.st_ino == mark.inode)
                self._forget(place)
                mark = None
        return mark

    def _released(self, place: _Place, name: str, mark: Bookmark | None, *, is_same: bool) -> Iterator[Change]:
        """What is new in a log that has become a version; it may have been written anew before."""
        opened, ids = self._logs.pop(place, None), self._ids(place)
        try:
            if opened is None or not is_same:
                self._close(place)
                if ids is None:
                    return
                opened = self._log(place, name, ids)
                if not opened.open_at(0 if mark is None else mark.end if is_same else None):
                    return
            if mark is not None and not is_same:
                yield from opened.changes_after(mark.last, self._info)
            yield from opened.read_changes(self._info)
        finally:
            if opened is not None:
                opened.close()

    def _new_versions(self, place: _Place) -> list[int]:
        """Those behind the last one known; all, if that one is gone, for then the thread was deleted meanwhile."""
        known, found = self._versions.get(place, 0), self._all_versions(place)
        return [version for version in found if version > known or found[-1] < known]

    def _all_versions(self, place: _Place) -> list[int]:
        names = self._store.io.listdir(layout.join(self._store.root, *place))
        return sorted(version for name in names if (version := layout.parse_version(name)) is not None)

    def _rest(self, place: _Place, mark: Bookmark, *, is_gone: bool) -> Iterator[Change]:
        """What was still written to a file that was deleted, or written anew."""
        opened = self._logs.pop(place, None)
        try:
            if opened is not None:
                yield from opened.read_changes(self._info)
        finally:
            if opened is not None:
                opened.close()
        if is_gone:
            is_told = mark.is_over or (opened is not None and opened.closed_by is not None)
            if not is_told and (ids := self._ids(place)) is not None:
                yield Change("delete", *ids)
            self._forget(place)
            self._versions.pop(place, None)

    def _read(self, place: _Place, mark: Bookmark | None) -> Iterator[Change]:
        opened = self._logs.get(place)
        if opened is None:
            if (ids := self._ids(place)) is None:
                return
            opened = self._log(place, layout.LOG, ids)
            starts_later = place in self._fresh or (mark is not None and not mark.inode)
            if not opened.open_at(None if starts_later else mark.end if mark is not None else 0):
                return
            self._keep(place, opened)
        self._logs.move_to_end(place)
        try:
            if mark is not None and not mark.inode:
                yield from opened.changes_after(mark.last, self._info)
            elif place in self._fresh:
                yield from opened.latest_changes(self._info)
            yield from opened.read_changes(self._info)
        finally:
            if opened.fd >= 0:
                self._fresh.discard(place)
                self._marks.setdefault(place[0], {})[place[1]] = opened.bookmark()

    def _keep(self, place: _Place, opened: LogFollower) -> None:
        self._logs[place] = opened
        if len(self._logs) > _OPEN:
            self._logs.popitem(last=False)[1].close()

    def _log(self, place: _Place, name: str, ids: tuple[str, str]) -> LogFollower:
        path = layout.join(self._store.root, *place, name)
        return LogFollower(*self._store._arguments(path, *ids))  # noqa: SLF001 - of the same package

    def _close(self, place: _Place) -> None:
        if (opened := self._logs.pop(place, None)) is not None:
            opened.close()

    # Bookmarks

    def _begin(self, place: _Place, *, latest: bool) -> None:
        if there_are := self._all_versions(place):
            self._versions[place] = there_are[-1]
        if self._begins_inside(place):
            return
        if latest:
            self._fresh.add(place)
        else:
            self._mark_end(place)

    def _begins_inside(self, place: _Place) -> bool:
        """Whether a history is followed from one of its checkpoints on, which is marked."""
        config = self._config
        if config is None or config.checkpoint_id is None:
            return False
        if layout.namespace_name(config.checkpoint_ns) != place[1]:
            return False
        history = self._store.shared_writer(config.thread, config.checkpoint_ns)
        with history.mutex:
            entry = history.find(config.checkpoint_id) if history.refresh() else None
            if entry is None:
                return False
            inode = history.io.fstat(history.fd).st_ino
        self._marks.setdefault(place[0], {})[place[1]] = Bookmark(inode, entry.offset + entry.size, entry.id)
        return True

    def _mark_end(self, place: _Place) -> None:
        found = self._store.io.stat(self._path(place))
        if found is not None:
            self._ids(place)  # while there is a file that tells them
            self._marks.setdefault(place[0], {})[place[1]] = Bookmark(found.st_ino, found.st_size)

    def _forget(self, place: _Place) -> None:
        marks = self._marks.get(place[0], {})
        marks.pop(place[1], None)
        if not marks:
            self._marks.pop(place[0], None)

    # Whose they are

    def _is_wanted(self, place: _Place) -> bool:
        if self._config is None or not self._config.checkpoint_ns:
            return True
        ids = self._ids(place)
        return ids is not None and is_namespace_inside(ids[1], self._config.checkpoint_ns)

    def _ids(self, place: _Place) -> tuple[str, str] | None:
        """The thread and the namespace; None while no file tells them."""
        name, inner = place
        thread = self._thread(name)
        if thread is None or not inner:
            return None if thread is None else (thread, "")
        namespace = catalog.find_id(self._store, layout.join(self._store.root, name, inner), [layout.LOG], "ns")
        return None if namespace is None else (thread, namespace)

    def _thread(self, name: str) -> str | None:
        if self._config is not None:
            return self._config.thread
        known = layout.plain_id(name) or self._store.ids.get(name)
        if known is not None:
            return known
        directory = layout.join(self._store.root, name)
        logs = catalog.logs_of_thread(self._store, directory, released=True)
        return catalog.find_id(self._store, directory, logs, "thread")

    # Run locks

    def _idle(self, name: str) -> Iterator[Change]:
        """Tell that nobody runs a thread, if so; if not yet, there is a second look."""
        is_second = self._suspects.pop(name, None) is not None
        path = layout.join(self._store.root, name, layout.RUN_LOCK)
        try:
            found, thread = self._store.io.stat(path), self._thread(name)
        except CheckpointFormatError:
            return  # `_look_at` has told why.
        if found is not None and thread is not None:
            if not is_locked(found.st_ino):
                yield Change("idle", thread, "")
            elif not is_second:
                self._suspects[name] = monotonic() + _SOON
