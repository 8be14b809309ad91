"""FileSource: the logs of a directory that a watch reads, on file events.

watchdog reports which files change; `FileEvents` passes on which threads they belong to, and does not
know their contents. A process that dies closes its files, which is an event too: that is how a run lock
without a holder is noticed at once.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from logging import LogRecord, getLogger
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, final
from warnings import filterwarnings

from graphkit.errors import CheckpointerError, CheckpointFormatError
from graphkit.saver_kit import Change, is_namespace_inside
from savers._filesystem import catalog, layout, log_bytes
from savers._filesystem.io import opened
from savers._log.log_watch import Bookmark, ChangeReader, FoundLog, LogSource, Place, Signals

if TYPE_CHECKING:
    from graphkit import RunnableConfig
    from savers._filesystem.store import FileLog, Store


_NETWORK: Final = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs"}
)
"""File systems that other machines may change without an event on this one; most kinds of FUSE
are."""


@final
class FileEvents:
    """Collects the threads whose files have changed, as watchdog reports them."""

    process = 0
    """The process that has started watchdog; 0: none."""

    def __init__(self, signals: Signals, root: str, only: str | None) -> None:
        """Start to listen.

        Args:
            signals: collects the directories of threads whose files have changed.
            root: the directory of the store.
            only: the name of the directory of the only thread to collect; None: all.

        Raises:
            OSError: the system has no such events, or no room for more.
        """
        network = find_network_file_system(root)
        if network is not None:
            raise OSError(f"{network} is a network file system")
        from watchdog import events
        from watchdog.observers import Observer

        if FileEvents.process not in {0, os.getpid()}:
            raise OSError("watchdog's thread stayed with the process that this one was forked from")
        FileEvents.process = os.getpid()
        getLogger("watchdog.observers.inotify").addFilter(_is_relevant)
        # watchdog warns of a directory that is created while it walks through the others. That is
        # harmless.
        filterwarnings("ignore", "Callback with id", RuntimeWarning)
        self.unlocked: set[str] = set()
        """The directories of threads whose run lock a process has closed, until the reader pops them."""
        self._signals = signals
        self._root = root
        self._only = only
        self._event_filter = [
            events.FileClosedEvent,
            events.FileModifiedEvent,
            events.FileCreatedEvent,
            events.FileMovedEvent,
            events.FileDeletedEvent,
            events.DirCreatedEvent,
            events.DirMovedEvent,
            events.DirDeletedEvent,
        ]
        self._observer: Any = Observer()
        self._thread_watch: Any = None
        """watchdog's watch of the only thread's directory."""
        self._inode = 0
        """The file number of that directory; 0 if it is not there."""
        self._listen(root, recursive=only is None)
        self._observer.start()

    def _listen(self, path: str, *, recursive: bool) -> Any:
        # All watches have the same filter: watchdog asks the system only once for a directory that
        # two of them cover.
        return self._observer.schedule(self, path, recursive=recursive, event_filter=self._event_filter)

    def cover(self, directory: str) -> None:
        """Listen to the directory of the only thread, which may have been created again.

        The caller reads the directory afterwards.
        """
        if self._only is None:
            return
        inode = 0
        if os.path.isdir(directory) and not os.path.islink(directory):
            inode = os.lstat(directory).st_ino
        if inode == self._inode:
            return
        if self._thread_watch is not None:
            with suppress(KeyError):
                self._observer.unschedule(self._thread_watch)
        self._inode = inode
        self._thread_watch = None
        if inode:
            with suppress(FileNotFoundError):
                self._thread_watch = self._listen(directory, recursive=True)

    def dispatch(self, event: Any) -> None:
        """Take an event from watchdog."""
        is_close = event.event_type == "closed"
        for path in (event.src_path, event.dest_path):
            thread, _, file = path[len(self._root) + 1 :].partition(os.sep)
            # The holder of a run lock writes to it, and readers close logs: neither is a change.
            is_change = is_close == (file == layout.RUN_LOCK)
            if not is_change or not layout.is_thread(thread) or self._only not in {None, thread}:
                continue
            if is_close:
                self.unlocked.add(thread)
            self._signals.notify(thread)

    def is_alive(self) -> bool:
        """Return whether watchdog still reports events."""
        return bool(self._observer.is_alive())

    def stop(self) -> None:
        """Stop to listen."""
        self._observer.stop()
        self._observer.join()


def _is_relevant(record: LogRecord) -> bool:
    """Return False for watchdog's message about an event during the closing of a watch."""
    return "when the thread is inactive" not in record.getMessage()


def find_network_file_system(path: str) -> str | None:
    """Return the kind of the network file system of a directory; None if it is local."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with (
        suppress(OSError),
        open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            mount, _, source = line.partition(" - ")
            kind = source.split(" ", 1)[0]
            is_network = kind in _NETWORK or kind.startswith("fuse.")
            if is_network and mount.split()[2] == number:
                return kind
    return None


_TAIL_SIZE: Final = 4
"""If this many bytes at the end of a log are zero, they do not belong to a record."""
_RECHECK_DELAY: Final = 0.05
"""Seconds after which a run lock is checked again: its file is closed a moment before it is
free."""
_LOGGER: Final = getLogger("graphkit")


@final
class FileSource(LogSource):
    """The logs of a directory of checkpoints. A place is named by its directories, a log by its inode."""

    def __init__(self, store: Store, config: RunnableConfig | None, interval: float) -> None:
        """Begin to listen.

        Args:
            store: the directory.
            config: what to follow; None: all threads.
            interval: seconds between reads on a file system without events.
        """
        self.signals = Signals()
        self._store = store
        self._config = config
        self._interval = interval
        self._only = None if config is None else layout.locate_thread(config.thread).name
        """The directory of the only thread to follow; None: all threads."""
        self._versions: dict[str, dict[str, int]] = {}
        """The last version that was reported, or was there before, by thread and namespace."""
        self._unlocked: set[str] = set()
        """Threads whose run lock may be free."""
        self._rechecks: dict[str, float] = {}
        """Threads whose run lock must be checked again, and when."""
        self._events: FileEvents | None = None
        try:
            self._events = FileEvents(self.signals, store.root, self._only)
            self.signals.hears_all = True
        except OSError as error:
            self._warn_polling(error)

    # Signals

    def _warn_polling(self, reason: object) -> None:
        message = "%s: no file events (%s); looking every %g seconds instead"
        _LOGGER.warning(message, self._store.root, reason, self._interval)

    def _stop_events(self, reason: object) -> None:
        """Go on without events."""
        self.close()
        self.signals.hears_all = False
        # The watch reads all threads, and then at its interval.
        self.signals.notify()
        self._warn_polling(reason)

    def close(self) -> None:
        if self._events is not None:
            self._events.stop()
            self._events = None

    def take_threads(self) -> set[str] | None:
        now = monotonic()
        self._unlocked.update(thread for thread, due in self._rechecks.items() if due <= now)
        # Before the changes: what a run has written before it let its lock go is read first.
        while self._events is not None and self._events.unlocked:
            self._unlocked.add(self._events.unlocked.pop())
        changed = self.signals.take_threads()
        return None if changed is None else changed | self._unlocked

    # Listing

    def list_threads(self) -> Collection[str]:
        if self._events is not None and not self._events.is_alive():
            self._stop_events("they have ended")
        if self._only is not None:
            return [self._only]
        return self._store.directories_in(self._store.root, layout.is_thread)

    def list_logs(self, thread: str) -> list[FoundLog]:
        directory = layout.join(self._store.root, thread)
        if self._events is not None:
            try:
                # It may have been created again.
                self._events.cover(directory)
            except OSError as error:
                self._stop_events(error)
        namespaces = ["", *self._store.directories_in(directory, layout.is_namespace)]
        known = self._versions.get(thread, {})
        kept: dict[str, int] = {}
        logs: list[FoundLog] = []
        for namespace in namespaces:
            place = Place(thread, namespace)
            # First: if it is released after that, the version is there when versions are listed.
            live = self._find(place, 0)
            names = self._store.io.listdir(layout.join(self._store.root, *place))
            versions = sorted(version for version in map(layout.parse_version, names) if version is not None)
            last = known.get(namespace, 0)
            if not versions or versions[-1] < last:
                # The thread was deleted, and perhaps created again: its versions begin with 1.
                last = 0
            if last:
                kept[namespace] = last
            released = [self._find(place, version) for version in versions if version > last]
            logs += [found for found in (*released, live) if found is not None]
        if known:
            self._versions[thread] = kept
        if self._config is None or not self._config.checkpoint_ns:
            return logs
        # Those in the namespace to follow, and below it, as far as a log says where it is.
        owned = [(found, self._find_owner(found)) for found in logs]
        wanted = self._config.checkpoint_ns
        return [found for found, owner in owned if owner is None or is_namespace_inside(owner[1], wanted)]

    def _find(self, place: Place, version: int) -> FoundLog | None:
        status = self._store.io.stat(self._path_of(place, version))
        return None if status is None else FoundLog(place, Bookmark(status.st_ino, status.st_size), version)

    def _path_of(self, place: Place, version: int) -> str:
        name = layout.version_name(version) if version else layout.LOG
        return layout.join(self._store.root, *place, name)

    def note_reported(self, found: FoundLog) -> None:
        self._versions.setdefault(found.place.thread, {})[found.place.namespace] = found.version

    def _find_owner(self, found: FoundLog) -> tuple[str, str] | None:
        """Return the thread and the namespace of a log; None while it does not contain them."""
        namespace: str | None
        thread, namespace = found.place
        path = self._path_of(found.place, found.version)
        thread_id = self._find_thread(thread, [path])
        if namespace:
            namespace = catalog.find_id(self._store, os.path.dirname(path), [path], "ns")
        if thread_id is None or namespace is None:
            return None
        return thread_id, namespace

    def _find_thread(self, thread: str, logs: Iterable[str]) -> str | None:
        """Return the id of the thread with a directory; None while none of its logs contains it."""
        if self._config is not None:
            return self._config.thread
        return catalog.find_id(self._store, layout.join(self._store.root, thread), logs, "thread")

    # Reading

    def skip(self, found: FoundLog) -> Bookmark:
        return found.mark._replace(end=self._find_end(found), owner=self._find_owner(found))

    def _find_end(self, found: FoundLog) -> int:
        """Return where the records of a log end: before the zeros by which it was extended."""
        if found.mark.end < log_bytes.SHORTEST_EXTENDED:
            return found.mark.end
        io = self._store.io
        try:
            with opened(io, self._path_of(found.place, found.version)) as fd:
                tail = io.read_at(fd, max(0, found.mark.end - _TAIL_SIZE), _TAIL_SIZE)
        except FileNotFoundError:
            return found.mark.end
        reader = None if tail.strip(b"\0") else self.new_reader(found)
        if reader is None:
            return found.mark.end
        try:
            return reader.end if reader.open_at(None) else found.mark.end
        except CheckpointerError:
            return found.mark.end  # Reading it reports the damage.
        finally:
            reader.log.close()

    def new_reader(self, found: FoundLog) -> ChangeReader | None:
        owner = found.mark.owner or self._find_owner(found)
        if owner is None:
            return None
        log = self._store.new_reader(*owner, self._path_of(found.place, found.version))
        medium = log.frames.bytes
        return ChangeReader(log, lambda: datetime.fromtimestamp(medium.io.fstat(medium.fd).st_mtime, UTC))

    def identify(self, log: FileLog) -> int:
        file = log.frames.bytes.file
        return 0 if file is None else file.inode

    # Run locks

    def check_run_locks(self) -> Generator[Change, None, float]:
        for thread in sorted(self._unlocked):
            yield from self._report_if_idle(thread)
            self._unlocked.discard(thread)
        return min(self._rechecks.values(), default=inf)

    def _report_if_idle(self, thread: str) -> Iterator[Change]:
        """Report a thread as idle if its run lock is free; else check it again after a moment."""
        is_second_check = self._rechecks.pop(thread, None) is not None
        try:
            logs = catalog.list_logs(self._store, layout.join(self._store.root, thread), released=True)
            thread_id = self._find_thread(thread, logs)
        except CheckpointFormatError:
            return  # The watch has logged the reason.
        if thread_id is None:
            return
        lock = self._store.run_lock(thread_id, None)
        if not lock.is_held():
            yield Change("idle", thread_id, "", value=lock.is_abandoned())
        elif not is_second_check:
            self._rechecks[thread] = monotonic() + _RECHECK_DELAY
