"""Follows a store on file events: which logs have grown, and whose run has ended.

Theory of operation. watchdog reports which files change. Of those reports only the names of threads
are kept, in a set, so nothing accumulates however slowly the caller reads. The changes themselves
are read from the logs, starting at a bookmark: the position where the last read ended. So a
superfluous event does no harm, and a change that was written while the watch was being set up needs
no event. A process that dies closes its files, which is an event too: that is how a run lock
without a holder is noticed at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from logging import getLogger
from time import monotonic
from typing import TYPE_CHECKING, Final, final

from graphkit.abc import Change, Watch
from graphkit.errors import CheckpointerError, CheckpointFormatError, CheckpointKeyError, CheckpointStorageError
from savers._filesystem import layout
from savers._filesystem.bookmarks import Bookmark, Bookmarks, LogIds, LogName
from savers._filesystem.file_events import FileEvents, find_network_file_system
from savers._log.change_reader import ChangeReader

if TYPE_CHECKING:
    import os

    from graphkit import RunnableConfig
    from graphkit.abc import BaseCheckpointSaver
    from savers._filesystem.store import Store

_MAX_OPEN_LOGS: Final = 64
_TAIL_SIZE: Final = 4
"""If this many bytes at the end of a log are zero, they do not belong to a record."""
_FULL_READ_INTERVAL: Final = 60.0
"""Seconds after which all threads are read without an event, because a system's queue may
overflow."""
_RECHECK_DELAY: Final = 0.05
"""Seconds after which a run lock is checked again: its file is closed a moment before it is
free."""
_LOGGER: Final = getLogger("graphkit")


@final
class FileWatch(Watch):
    """Reports the changes of a checkpoint directory, whichever process makes them."""

    def __init__(
        self,
        saver: BaseCheckpointSaver,
        store: Store,
        config: RunnableConfig | None,
        *,
        latest: bool,
        interval: float,
    ) -> None:
        """Begin to follow a store; see `BaseCheckpointSaver.watch`.

        Args:
            saver: the saver of the directory, which tells the status of a thread.
            store: the directory.
            config: what to follow.
            latest: begin with the latest checkpoint of each history.
            interval: seconds between reads on a file system without events.
        """
        super().__init__(interval)
        self._store = store
        self._config = config
        self._saver = saver
        self._only = None if config is None else layout.locate_thread(config.thread).name
        """The directory of the only thread to follow; None: all threads."""
        self._ids = LogIds(store, config)
        self._marks = Bookmarks()
        self._versions: dict[LogName, int] = {}
        """The last version of each log that was reported, or was there before."""
        self._logs: OrderedDict[LogName, ChangeReader] = OrderedDict()
        """The open logs, the least recently used first."""
        self._latest_first: set[LogName] = set()
        """The logs whose latest checkpoint must be reported first."""
        self._rechecks: dict[str, float] = {}
        """Threads whose run lock must be checked again, and when."""
        self._events = self._start_events()
        begins_earlier = latest or (config is not None and config.checkpoint_id is not None)
        self._full_read_at = monotonic() if begins_earlier else self._next_full_read()
        for thread in self._list_threads():
            for name in self._list_logs(thread):
                self._set_start(name, latest=latest)

    def _start_events(self) -> FileEvents | None:
        root = self._store.root
        try:
            network = find_network_file_system(root)
            if network is not None:
                self._warn_polling(f"{network} is a network file system")
                return None
            events = FileEvents(self._condition, root, self._only)
            if self._only is not None:
                events.cover(layout.join(root, self._only))
        except OSError as error:
            self._warn_polling(error)
            return None
        return events

    def _warn_polling(self, reason: object) -> None:
        _LOGGER.warning(
            "%s: no file events (%s); looking every %g seconds instead",
            self._store.root,
            reason,
            self._interval,
        )

    def _next_full_read(self) -> float:
        return monotonic() + (self._interval if self._events is None else _FULL_READ_INTERVAL)

    # Waiting

    def _wait(self, deadline: float | None) -> bool:
        while not self._is_interrupted and not self._has_events():
            now = monotonic()
            due = min([self._full_read_at, *self._rechecks.values()])
            if now >= due:
                break
            if deadline is not None and now >= deadline:
                return False
            self._sleep_until(due if deadline is None else min(deadline, due))
        return True

    def _has_events(self) -> bool:
        return self._events is not None and bool(self._events.changed or self._events.unlocked)

    def _close_resources(self) -> None:
        if self._events is not None:
            self._events.stop()
            self._events = None
        while self._logs:
            _, follower = self._logs.popitem()
            follower.log.close()

    # Reading

    def _read_changes(self) -> Generator[Change, None, None]:
        try:
            is_full = monotonic() >= self._full_read_at
            changed, unlocked = self._take_events(is_full=is_full)
            for thread in sorted(changed | unlocked):
                yield from self._read_thread(thread)
            for thread in sorted(unlocked):
                yield from self._check_run_lock(thread)
            if is_full:
                self._full_read_at = self._next_full_read()
        except OSError as error:
            # The next call reads the threads that were not read yet.
            self._full_read_at = monotonic()
            path = error.filename or self._store.root
            raise CheckpointStorageError(path, "follow", error) from error

    def _take_events(self, *, is_full: bool) -> tuple[set[str], set[str]]:
        """Return the threads to read, and those whose run lock may be free.

        Args:
            is_full: read all threads, and not only those with events.
        """
        now = monotonic()
        changed: set[str] = set()
        unlocked = {thread for thread, due in self._rechecks.items() if due <= now}
        if is_full:
            changed = {*self._list_threads(), *self._marks.threads()}
            if self._events is not None and not self._events.is_alive:
                self._stop_events("they have ended")
        if self._events is not None:
            with self._condition:
                changed |= self._events.changed
                unlocked |= self._events.unlocked
                self._events.changed = set()
                self._events.unlocked = set()
        return changed, unlocked

    def _stop_events(self, reason: object) -> None:
        """Read without events from now on."""
        assert self._events is not None
        self._events.stop()
        self._events = None
        self._full_read_at = self._next_full_read()
        self._warn_polling(reason)

    def _cover(self, thread: str) -> None:
        """Listen to the directory of a thread, which may have been created again."""
        if self._events is None:
            return
        try:
            self._events.cover(layout.join(self._store.root, thread))
        except OSError as error:
            self._stop_events(error)

    def _list_threads(self) -> list[str]:
        """Return the directories of the threads to follow."""
        if self._only is not None:
            return [self._only]
        return self._store.directories_in(self._store.root, layout.is_thread)

    def _list_logs(self, thread: str) -> list[LogName]:
        """Return the logs of a thread, including those that were removed since they were read."""
        directory = layout.join(self._store.root, thread)
        namespaces = {"", *self._store.directories_in(directory, layout.is_namespace)}
        namespaces.update(self._marks.namespaces(thread))
        return [LogName(thread, namespace) for namespace in sorted(namespaces)]

    def _live_path(self, name: LogName) -> str:
        return layout.join(self._store.root, *name, layout.LOG)

    def _read_thread(self, thread: str) -> Iterator[Change]:
        self._cover(thread)
        try:
            names = self._list_logs(thread)
        except CheckpointFormatError as error:
            _LOGGER.warning("changes are not reported here: %s", error)
            return
        for name in names:
            try:
                if self._ids.is_followed(name):
                    yield from self._read_log(name)
            except CheckpointKeyError:
                # Every later change would be lost too.
                self._close_follower(name)
                raise
            except CheckpointerError as error:
                _LOGGER.warning("changes are not reported here: %s", error)
                self._close_follower(name)
                self._mark_end(name)

    def _read_log(self, name: LogName) -> Iterator[Change]:
        """Yield the changes of a live log, and of the versions that it has become."""
        # The live log first: if it was released after that, the version is there when versions are
        # listed.
        status = self._store.io.stat(self._live_path(name))
        mark = yield from self._read_versions(name, self._marks.find(name))
        if status is None:
            if mark is not None:
                yield from self._read_replaced(name, mark, is_gone=True)
            return
        if mark is not None and status.st_ino != mark.inode:
            yield from self._read_replaced(name, mark, is_gone=False)
            mark = mark._replace(inode=0)
        elif mark is not None and status.st_size < mark.end:
            # A write that never finished was cut off, and acknowledged records may have been cut
            # off with it.
            self._close_follower(name)
            mark = mark._replace(inode=0)
        if not self._is_read(status, mark):
            yield from self._read_live(name, mark)

    @staticmethod
    def _is_read(status: os.stat_result, mark: Bookmark | None) -> bool:
        """Return whether a log was read to its end already."""
        return mark is not None and status.st_ino == mark.inode and status.st_size == mark.end

    def _read_live(self, name: LogName, mark: Bookmark | None) -> Iterator[Change]:
        """Yield the changes of a live log from its bookmark on, and set the bookmark."""
        is_rewritten = mark is not None and not mark.inode
        follower = self._logs.get(name)
        if follower is None:
            ids = self._ids.find(name)
            if ids is None:
                return
            follower = self._make_follower(name, layout.LOG, ids)
            start: int | None = 0
            if name in self._latest_first or is_rewritten:
                start = None
            elif mark is not None:
                start = mark.end
            if not follower.open_at(start):
                return
            self._keep_open(name, follower)
        self._logs.move_to_end(name)
        try:
            if mark is not None and is_rewritten:
                yield from follower.changes_after(mark.last)
            elif name in self._latest_first:
                yield from follower.latest_changes(self._saver)
            yield from follower.read_changes()
        finally:
            if follower.log.is_open:
                self._latest_first.discard(name)
                self._marks.set(name, _make_bookmark(follower))

    def _read_replaced(self, name: LogName, mark: Bookmark, *, is_gone: bool) -> Iterator[Change]:
        """Yield the changes at the end of a file that was deleted, or replaced by a rewrite."""
        follower = self._logs.pop(name, None)
        try:
            if follower is not None:
                yield from follower.read_changes()
        finally:
            if follower is not None:
                follower.log.close()
        if not is_gone:
            return
        is_reported = mark.is_over or (follower is not None and follower.log.history.closed_by is not None)
        ids = None if is_reported else self._ids.find(name)
        if ids is not None:
            yield Change("delete", *ids)
        self._marks.remove(name)
        self._versions.pop(name, None)

    def _make_follower(self, name: LogName, file: str, ids: tuple[str, str]) -> ChangeReader:
        log = self._store.new_reader(*ids, layout.join(self._store.root, *name, file))
        medium = log.frames.bytes

        def find_write_time() -> datetime:
            return datetime.fromtimestamp(medium.io.fstat(medium.fd).st_mtime, UTC)

        return ChangeReader(log, find_write_time)

    def _keep_open(self, name: LogName, follower: ChangeReader) -> None:
        self._logs[name] = follower
        if len(self._logs) > _MAX_OPEN_LOGS:
            _, oldest = self._logs.popitem(last=False)
            oldest.log.close()

    def _close_follower(self, name: LogName) -> None:
        follower = self._logs.pop(name, None)
        if follower is not None:
            follower.log.close()

    # Versions

    def _read_versions(self, name: LogName, mark: Bookmark | None) -> Generator[Change, None, Bookmark | None]:
        """Yield the changes in new versions from a bookmark on.

        Returns:
            The bookmark, if the live log still needs it.
        """
        for version in self._list_new_versions(name):
            # Before the version is read, so that a damaged one is skipped next time.
            self._versions[name] = version
            file = layout.version_name(version)
            status = self._store.io.stat(layout.join(self._store.root, *name, file))
            if status is not None:
                is_same = mark is not None and status.st_ino == mark.inode
                yield from self._read_version(name, file, mark, is_same=is_same)
                self._marks.remove(name)
                mark = None
        return mark

    def _read_version(self, name: LogName, file: str, mark: Bookmark | None, *, is_same: bool) -> Iterator[Change]:
        """Yield the changes of a log that has become a version.

        Args:
            name: the directory.
            file: the name of the version.
            mark: the bookmark of the live log.
            is_same: whether the version is the file of the bookmark; False if the log was rewritten
                before.
        """
        follower = self._logs.pop(name, None)
        ids = self._ids.find(name)
        try:
            if follower is None or not is_same:
                # An open follower of another file is closed below.
                if follower is not None:
                    follower.log.close()
                if ids is None:
                    return
                follower = self._make_follower(name, file, ids)
                start: int | None = 0
                if mark is not None:
                    start = mark.end if is_same else None
                if not follower.open_at(start):
                    return
            if mark is not None and not is_same:
                yield from follower.changes_after(mark.last)
            yield from follower.read_changes()
        finally:
            if follower is not None:
                follower.log.close()

    def _list_new_versions(self, name: LogName) -> list[int]:
        """Return the versions after the last one reported.

        All versions, if that one is gone: the thread was deleted and created again.
        """
        last = self._versions.get(name, 0)
        versions = self._list_versions(name)
        if versions and versions[-1] < last:
            return versions
        return [version for version in versions if version > last]

    def _list_versions(self, name: LogName) -> list[int]:
        versions = []
        for file in self._store.io.listdir(layout.join(self._store.root, *name)):
            version = layout.parse_version(file)
            if version is not None:
                versions.append(version)
        return sorted(versions)

    # Bookmarks

    def _set_start(self, name: LogName, *, latest: bool) -> None:
        """Decide where reading a log begins."""
        versions = self._list_versions(name)
        if versions:
            self._versions[name] = versions[-1]
        if self._mark_checkpoint(name):
            return
        if latest:
            self._latest_first.add(name)
        else:
            self._mark_end(name)

    def _mark_checkpoint(self, name: LogName) -> bool:
        """Set the bookmark of a log to the checkpoint that the config names.

        Returns:
            False if the config names no checkpoint of this log.
        """
        config = self._config
        if config is None or config.checkpoint_id is None:
            return False
        if layout.namespace_name(config.checkpoint_ns) != name.namespace:
            return False
        log = self._store.shared_log(config.thread, config.checkpoint_ns)
        with log.mutex:
            checkpoint = log.find(config.checkpoint_id) if log.refresh() else None
            if checkpoint is None:
                return False
            inode = log.frames.bytes.inode
        self._marks.set(name, Bookmark(inode=inode, end=checkpoint.end, last=checkpoint.id))
        return True

    def _mark_end(self, name: LogName) -> None:
        status = self._store.io.stat(self._live_path(name))
        if status is not None:
            # The store remembers the ids; later there may be no file to read them from.
            self._ids.find(name)
            end = self._find_end(name, status.st_size)
            self._marks.set(name, Bookmark(inode=status.st_ino, end=end))

    def _find_end(self, name: LogName, size: int) -> int:
        """Return where the records of a live log end: before the zeros by which it was extended."""
        io = self._store.io
        try:
            fd = io.open(self._live_path(name))
        except FileNotFoundError:
            return size
        try:
            is_extended = size > 0 and not io.read_at(fd, max(0, size - _TAIL_SIZE), _TAIL_SIZE).strip(b"\0")
        finally:
            io.close(fd)
        ids = self._ids.find(name) if is_extended else None
        if ids is None:
            return size
        follower = self._make_follower(name, layout.LOG, ids)
        try:
            return follower.log.frames.end if follower.open_at(None) else size
        except CheckpointerError:
            return size  # Reading it reports the damage.
        finally:
            follower.log.close()

    # Run locks

    def _check_run_lock(self, thread: str) -> Iterator[Change]:
        """Report a thread as idle if its run lock is free; else check it again after a moment."""
        is_second_check = self._rechecks.pop(thread, None) is not None
        try:
            thread_id = self._ids.find_thread(thread)
        except CheckpointFormatError:
            return  # `_read_thread` has logged the reason.
        if thread_id is None:
            return
        lock = self._store.run_lock(thread_id, None)
        if not lock.is_held():
            yield Change("idle", thread_id, "", value=lock.is_abandoned())
        elif not is_second_check:
            self._rechecks[thread] = monotonic() + _RECHECK_DELAY


def _make_bookmark(follower: ChangeReader) -> Bookmark:
    """Return a bookmark for the position to which a log was read."""
    log = follower.log
    return Bookmark(
        inode=log.frames.bytes.inode,
        end=log.frames.end,
        last=follower.last_reported,
        is_over=log.history.closed_by is not None,
    )
